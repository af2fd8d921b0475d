package edge

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A budget gives its lines in each second, whoever asks, and counts what is beyond them.
func TestBudget(t *testing.T) {
	b := &newBudgets(prometheus.NewRegistry())[failedLine]
	now := time.Unix(1_800_000_000, 0)
	take := func(n, most int) (taken int) {
		for range n {
			if b.take(now, most) {
				taken++
			}
		}
		return taken
	}
	if got := take(5, 3); got != 3 {
		t.Errorf("got %d lines of 5, want 3", got)
	}
	if b.available(now, 3) || !b.available(now, 4) {
		t.Error("the budget is taken for what it is not")
	}
	now = now.Add(time.Second)
	if !b.available(now, 3) || take(5, 3) != 3 {
		t.Error("a new second has no new lines")
	}
	if take(1, 0) != 0 || b.available(now.Add(time.Second), 0) {
		t.Error("a budget of none gives a line")
	}
	if got := testutil.ToFloat64(b.dropped); got != 7 {
		t.Errorf("got %v dropped, want 7", got)
	}
	now = now.Add(time.Second)
	var wg sync.WaitGroup
	var mu sync.Mutex
	all := 0
	for range 8 {
		wg.Go(func() {
			n := take(100, 50)
			mu.Lock()
			defer mu.Unlock()
			all += n
		})
	}
	if wg.Wait(); all != 50 {
		t.Errorf("got %d lines of 800 taken at once, want 50", all)
	}
}

// The hash tells addresses apart as the buckets do, and says nothing without the key.
func TestHashOfAddress(t *testing.T) {
	l, other := LogSettings{Key: []byte("a")}, LogSettings{Key: []byte("b")}
	hash := func(l LogSettings, addr string) string { return l.hash(netip.MustParseAddr(addr), 64) }
	if got := l.hash(netip.Addr{}, 64); got != "" {
		t.Errorf("of no address: got %q", got)
	}
	one := hash(l, "192.0.2.1")
	if len(one) != 16 || one != hash(l, "192.0.2.1") || one == hash(l, "192.0.2.2") || one == hash(other, "192.0.2.1") {
		t.Errorf("got %q, %q, %q, %q", one, hash(l, "192.0.2.1"), hash(l, "192.0.2.2"), hash(other, "192.0.2.1"))
	}
	if hash(l, "2001:db8::1") != hash(l, "2001:db8::2") {
		t.Error("two addresses of one bucket have two hashes")
	}
}
