//go:build servers

package cart

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/sku"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// BenchmarkPlace is carts of three lines, 16 at once: of a hundred SKUs, of three that all of them want, and where Redis
// says no to every line.
func BenchmarkPlace(b *testing.B) {
	for _, c := range []struct {
		name        string
		skus, units int64
	}{{"100_SKUs", 100, 1 << 30}, {"3_SKUs", 3, 1 << 30}, {"sold_out", 3, 0}} {
		b.Run(c.name, func(b *testing.B) {
			db, redis := backendtest.MySQL(b), backendtest.Redis(b)
			log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
			carts := New(Config{PayWithin: time.Hour, MaxInFlight: 64, DB: db, SKUs: sku.NewCache(sku.Config{DB: db, Redis: redis.Client(), Log: log, Register: reg}), Clock: new(clock.Clock), Log: log, Register: reg})
			var skus []int64
			for range c.skus {
				skus = append(skus, backendtest.SKU(b, db, c.units, 100, "EUR"))
			}
			var n atomic.Int64
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := n.Add(1)
					var items []wire.CartItem
					for j := range int64(3) {
						items = append(items, wire.CartItem{SKU: skus[(i+j)%c.skus], Quantity: 1})
					}
					if _, _, err := carts.Place(b.Context(), "ann", fmt.Sprint(i), items); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "carts/s")
		})
	}
}
