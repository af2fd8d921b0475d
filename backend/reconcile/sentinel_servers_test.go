//go:build servers

package reconcile

import (
	"testing"

	"floodgate.internal/backend/backendtest"
)

// Sentinel promotes a replica that lags. One address of a sentinel is configured; the promoted server is noticed as another
// incarnation, and what was promised after a confirm is kept.
func TestSentinelPromotesALaggingReplica(t *testing.T) {
	for _, mode := range []struct {
		name    string
		confirm bool
		paused  bool
	}{{"confirm, killed", true, false}, {"confirm, paused", true, true}, {"fsync, killed", false, false}} {
		t.Run(mode.name, func(t *testing.T) {
			pair := backendtest.RedisPair(t)
			s := newSystemOn(t, pair.Store(), true)
			sale := backendtest.Sale(t, s.db, backendtest.SaleOptions{Stock: promotedStock})
			s.reconcile(sale)
			promotion{s, []int64{sale}, pair.Primary, pair.Replica}.run(mode.confirm, mode.paused)
		})
	}
}
