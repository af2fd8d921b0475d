//go:build servers

package order

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reserve"
)

// BenchmarkSettle is what a consumer does with batches of new orders of one sale, in turn with the same rows written by
// plain multi-row INSERTs on one connection, without a decision: the most that this MySQL takes. of_raw is the one rate
// over the other, by medians of the same run.
func BenchmarkSettle(b *testing.B) {
	for _, size := range []int{1, 50, 200} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			s := newShop(b)
			sale := s.sale(backendtest.SaleOptions{Stock: int64(size * b.N)})
			raw := backendtest.Sale(b, s.db, backendtest.SaleOptions{}) // not one of the shop's: it does not balance
			conn, err := s.db.Conn(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			ours, theirs := forgedBatches(sale, size, b.N), forgedBatches(raw, size, b.N)
			var settled, inserted []time.Duration
			b.ResetTimer()
			for i := range b.N {
				began := time.Now()
				if err := s.book.Settle(b.Context(), ours[i]); err != nil {
					b.Fatal(err)
				}
				settled = append(settled, time.Since(began))
				b.StopTimer()
				began = time.Now()
				if err := rawInsert(b.Context(), conn, theirs[i], s.clk.Now()); err != nil {
					b.Fatal(err)
				}
				inserted = append(inserted, time.Since(began))
				b.StartTimer()
			}
			b.StopTimer()
			b.ReportMetric(float64(size)/median(settled).Seconds(), "orders/s")
			b.ReportMetric(float64(size)/median(inserted).Seconds(), "raw_orders/s")
			b.ReportMetric(float64(median(inserted))/float64(median(settled)), "of_raw")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func rawInsert(ctx context.Context, conn *sql.Conn, batch []reserve.Entry, now time.Time) error {
	var orders, slots, ledger []any
	for _, e := range batch {
		orders = append(orders, e.ID, e.Sale, e.UID, e.Quantity, 100, "pending_payment", nil, now, now, now)
		slots = append(slots, e.Sale, e.UID, 1, e.ID)
		ledger = append(ledger, e.Sale, "order", e.ID, 0, -1, -1, 0, 1, 1, now)
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, q := range []struct {
		text  string
		width int
		args  []any
	}{
		{`INSERT INTO orders (id, sale_id, uid, quantity, amount, status, idem_key, created_at, decided_at, pay_before) VALUES `, 10, orders},
		{`INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES `, 4, slots},
		{`INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at) VALUES `, 10, ledger},
	} {
		if _, err := tx.ExecContext(ctx, q.text+tuples(len(batch), q.width), q.args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func forgedBatches(sale int64, size, n int) [][]reserve.Entry {
	batches := make([][]reserve.Entry, n)
	for i := range batches {
		for j := range size {
			batches[i] = append(batches[i], forged(sale, fmt.Sprintf("u%d-%d", i, j), reserve.Entry{}))
		}
	}
	return batches
}
