package api

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"floodgate.internal/shared/wire"
)

// Row A8: processes that know nothing of each other make ids at once; none is made twice, and those of one process are in
// the order in which they were made.
func TestOrderIDsOfManyProcesses(t *testing.T) {
	t.Attr("row", "A8")
	const each = 20_000
	if os.Getenv("MAKE_ORDER_IDS") != "" {
		out := bufio.NewWriter(os.Stdout)
		defer out.Flush()
		for range each {
			id, err := newOrderID(7)
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString(id + "\n")
		}
		return
	}
	const processes = 4
	made := make([][]byte, processes)
	var all sync.WaitGroup
	for i := range made {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestOrderIDsOfManyProcesses$")
			cmd.Env = append(os.Environ(), "MAKE_ORDER_IDS=1")
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
			made[i] = out
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for i, out := range made {
		var ids []string
		for line := range bytes.Lines(out) {
			if id := strings.TrimSpace(string(line)); wire.ValidOrderID(id) {
				ids = append(ids, id)
				seen[id] = true
			}
		}
		if len(ids) != each || !slices.IsSorted(ids) {
			t.Errorf("process %d: %d ids, want %d; in order: %v", i, len(ids), each, slices.IsSorted(ids))
		}
	}
	if len(seen) != processes*each {
		t.Errorf("%d different ids, want %d", len(seen), processes*each)
	}
}
