//go:build servers

package reconcile

import (
	"testing"

	"floodgate.internal/backend/backendtest"
)

// Sentinel promotes a replica that lags. One address of a sentinel is configured; the promoted server is noticed as another
// incarnation, and what was promised after a confirm or the replica's acknowledgement is kept.
func TestSentinelPromotesALaggingReplica(t *testing.T) {
	for _, mode := range promotions {
		t.Run(mode.String(), func(t *testing.T) {
			pair := backendtest.RedisPair(t)
			s := newSystemOn(t, pair.Store(), true)
			sale := backendtest.Sale(t, s.db, backendtest.SaleOptions{Stock: promotedStock})
			s.reconcile(sale)
			promotion{s, []int64{sale}, pair.Primary, pair.Replica}.run(mode)
		})
	}
}
