//go:build servers

package rehearse

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/world"
)

// A small rehearsal from its first to its last line: everything is killed once, every promise is kept, and the stock is sold
// as far as anybody paid for it.
func TestRehearsal(t *testing.T) {
	const shoppers, stock = 400, 40
	bin, dir := t.TempDir(), t.TempDir()
	world.Must(t, world.Build(bin))
	var log bytes.Buffer
	r, err := Run(t.Context(), Options{Shoppers: shoppers, Stock: stock, Length: 15 * time.Second, Faults: 5, Seed: 7, Dir: dir, Bin: bin, Progress: t.Logf, Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.Bytes())
	}
	if !r.Good() {
		t.Errorf("not everything holds: %+v, %q\n%s", r.Tally, r.Broken, r.Audit)
	}
	told, _ := r.crowd.total()
	if r.Tally.Promised < stock || r.Sold < stock/2 || told[soldOut] == 0 || len(r.crowd.strange) > 0 || len(r.Units) == 0 {
		t.Errorf("%d promised, %d sold of %d, %d told that it is sold out, strange: %v, %d samples", r.Tally.Promised, r.Sold, stock, told[soldOut], r.crowd.strange, len(r.Units))
	}
	killed := map[string]bool{}
	for _, f := range r.Faults {
		killed[f.Victim] = true
		if f.Error != "" {
			t.Errorf("%s: %s", f.Victim, f.Error)
		}
	}
	if len(killed) != 5 {
		t.Errorf("killed were %v, want each of the five once", killed)
	}
	var report strings.Builder
	if err := r.WriteHTML(&report); err != nil || !strings.Contains(report.String(), "Every promise was kept") {
		t.Errorf("the report: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 1 { // its own answers.jsonl
		t.Errorf("left behind: %v, %v", left, err)
	}
}
