//go:build servers

package outbox_test

import (
	"testing"

	"github.com/google/uuid"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// An order with accept.after: fsync (the script alone) and with confirm (the broker's confirm and Redis's word as well), 128
// at once.
func BenchmarkAccept(b *testing.B) {
	for _, after := range []string{"fsync", "confirm"} {
		b.Run(after, func(b *testing.B) {
			s := backendtest.Redis(b)
			c := confirmer(s, openBroker(b, backendtest.AMQP(b)))
			load(b, s, 1)
			b.SetParallelism(64)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), 1)
					r := reserve.Request{Sale: 1, UID: id[:36], Quantity: 1, OrderID: id, Epoch: 1}
					v, err := s.Reserve(b.Context(), r)
					if err != nil || v.Answer != lua.Reserved {
						b.Errorf("reserve: %+v, %v", v, err)
						return
					}
					if after == "fsync" {
						continue
					}
					if err := c.Confirm(b.Context(), r.Entry(v)); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
		})
	}
}
