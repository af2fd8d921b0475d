//go:build servers

package outbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// An order with accept.after: fsync (the script alone), with confirm (the broker's confirm and Redis's word as well) and with
// replicas:1 (the replica's acknowledgement as well), 128 at once. Redis is a primary with one replica; both sync every write.
func BenchmarkAccept(b *testing.B) {
	for _, after := range []string{"fsync", "confirm", "replicas:1"} {
		b.Run(after, func(b *testing.B) {
			_, s := onPair(b)
			wait := func(context.Context, queued.Entry) error { return nil }
			switch after {
			case "confirm":
				wait = confirmer(s, openBroker(b, backendtest.AMQP(b))).Confirm
			case "replicas:1":
				wait = replicated(b, s, 1, 10*time.Second).Confirm
			}
			var mu sync.Mutex // guards took
			var took []time.Duration
			b.SetParallelism(64)
			b.RunParallel(func(pb *testing.PB) {
				var mine []time.Duration
				defer func() { mu.Lock(); defer mu.Unlock(); took = append(took, mine...) }()
				for pb.Next() {
					began := time.Now()
					id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), 1)
					r := reserve.Request{Sale: 1, UID: id[:36], Quantity: 1, OrderID: id, Epoch: 1}
					v, err := s.Reserve(b.Context(), r)
					if err != nil || v.Answer != lua.Reserved {
						b.Errorf("reserve: %+v, %v", v, err)
						return
					}
					if err := wait(b.Context(), r.Entry(v)); err != nil {
						b.Error(err)
						return
					}
					mine = append(mine, time.Since(began))
				}
			})
			slices.Sort(took)
			if len(took) > 0 {
				b.ReportMetric(took[len(took)/2].Seconds()*1000, "ms/p50")
				b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "ms/p99")
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
		})
	}
}
