//go:build servers

package command

import (
	"encoding/json"
	"strings"
	"testing"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/cli"
)

// Row E6: one command writes a SKU anew, whatever Redis has of it.
func TestASKUIsAuditedAndRebuilt(t *testing.T) {
	t.Attr("row", "E6")
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	db := backendtest.OpenMySQL(t, c.MySQL, 1)
	sku := backendtest.SKU(t, db, 7, 100, "EUR")
	must(t, c, strings.Fields("sale create -config f --stock 10 --price 1 --currency EUR --ends-at +1h --title x")...)
	if sku != 1 {
		t.Fatalf("the first SKU has id %d", sku)
	}
	for _, step := range []struct{ line, want string }{
		{"audit -config f --sku 1", "not loaded"},
		{"rebuild -config f --sku 1", "7 + 0 + 0, 0 in flight"},
		{"audit -config f --sku 1", "balanced"},
		{"audit -config f --all", "IN REDIS"},
		{"audit -config f --all --json", `"sku_id": 1`},
	} {
		if out := must(t, c, strings.Fields(step.line)...); !strings.Contains(out, step.want) {
			t.Errorf("%s: got\n%s\nwant %q in it", step.line, out, step.want)
		}
	}
	store, err := reserve.Open(c.Redis, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r := store.Client()
	if err := r.Do(t.Context(), r.B().Hincrby().Key(store.Client().Prefix()+"{sku:1}:state").Field("available").Increment(3).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for _, which := range []string{"--sku 1", "--all"} {
		out, err := run(t.Context(), c, strings.Fields("audit -config f "+which)...)
		if cli.ExitCode(err) != 1 || !strings.Contains(out, "NOT BALANCED") || !strings.Contains(out, "available 10 + locked 0 + sold 0, total 7") || !strings.Contains(out, "backend rebuild --sku 1") {
			t.Errorf("%s: got %v\n%s", which, err, out)
		}
	}
	var s audit.SKU
	out, err := run(t.Context(), c, strings.Fields("audit -config f --sku 1 --json")...)
	if e := json.Unmarshal([]byte(out), &s); e != nil || cli.ExitCode(err) != 1 || s.Balanced || len(s.Findings) == 0 {
		t.Errorf("got %v, %v\n%s", err, e, out)
	}
	out = must(t, c, strings.Fields("rebuild -config f --sku 1 --json")...)
	if e := json.Unmarshal([]byte(out), &s); e != nil || !s.Balanced || s.Redis.Available != 7 {
		t.Errorf("got %v\n%s", e, out)
	}
	for _, line := range []string{"audit -config f --sku 99", "rebuild -config f --sku 99", "rebuild -config f --sku 2"} {
		if out, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != 1 {
			t.Errorf("%s: got %v\n%s", line, err, out)
		}
	}
}
