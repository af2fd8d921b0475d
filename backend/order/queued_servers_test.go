//go:build servers

package order

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
)

// Each order's time in queued is measured once, by Redis's clock, and those past the bound are counted.
func TestTimeInQueuedIsMeasured(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 10})
	s.orders.bound = time.Minute
	s.press(sale, "ann", 1, "")
	s.press(sale, "bob", 1, "")
	batch := s.outbox(sale)
	if err := s.orders.Settle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if err := s.orders.Settle(t.Context(), batch); err != nil { // delivered again
		t.Fatal(err)
	}
	measured := func(b *Store) (count uint64, sum float64) {
		t.Helper()
		reg := prometheus.NewRegistry()
		reg.MustRegister(b.metrics.queued)
		families, err := reg.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("got %v, %v", families, err)
		}
		h := families[0].GetMetric()[0].GetHistogram()
		return h.GetSampleCount(), h.GetSampleSum()
	}
	if n, sum := measured(s.orders); n != 2 || sum < 0 || sum > 60 || testutil.ToFloat64(s.orders.metrics.late) != 0 {
		t.Errorf("got %d orders in %v s, %v late; want 2 in less than a minute, none late", n, sum, testutil.ToFloat64(s.orders.metrics.late))
	}

	late := s.ordersAt(s.clockAhead(5 * time.Minute))
	late.bound = time.Minute
	s.press(sale, "carol", 1, "")
	if err := late.Settle(t.Context(), s.outbox(sale)); err != nil {
		t.Fatal(err)
	}
	if n, sum := measured(late); n != 1 || sum < 300 || testutil.ToFloat64(late.metrics.late) != 1 {
		t.Errorf("got %d orders in %v s, %v late; want one of at least five minutes, late", n, sum, testutil.ToFloat64(late.metrics.late))
	}
}
