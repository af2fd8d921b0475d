//go:build servers

package order

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
)

// BenchmarkSettle is what a consumer does with batches of new orders of one sale. What that is beside raw INSERTs, `make bench` says.
func BenchmarkSettle(b *testing.B) {
	for _, size := range []int{1, 50, 200} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			s := newShop(b)
			sale := s.sale(backendtest.SaleOptions{Stock: int64(size * b.N)})
			batches := make([][]queued.Entry, b.N)
			for i := range batches {
				for j := range size {
					batches[i] = append(batches[i], forged(sale, fmt.Sprintf("u%d-%d", i, j), queued.Entry{}))
				}
			}
			var took []time.Duration
			b.ResetTimer()
			for i := range b.N {
				began := time.Now()
				if err := s.orders.Settle(b.Context(), batches[i]); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(size)/took[len(took)/2].Seconds(), "orders/s")
		})
	}
}
