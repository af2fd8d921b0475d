package cart

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

const (
	sweepSKUs  = 500 // whose holds one pass looks at
	sweepHolds = 100 // of one SKU in one pass
)

// Sweep is one pass over units that were locked in Redis longer than AbandonedAfter ago and were not compared with MySQL
// since. Units of orders that MySQL has stay locked, others are given back. It looks at the next sweepSKUs SKUs, loads
// those whose loader died, and returns how many holds it settled. Only one call at a time in a process, but in any number
// of processes.
func (c *Carts) Sweep(ctx context.Context) (n int, err error) {
	skus, err := c.skus.After(ctx, c.swept, sweepSKUs)
	if err != nil {
		return 0, err
	}
	c.swept = 0
	if len(skus) == sweepSKUs {
		c.swept = skus[len(skus)-1]
	}
	if err := c.skus.Heal(ctx, skus, c.clk.Now()); err != nil {
		return 0, err
	}
	due, err := c.skus.Due(ctx, skus, c.clk.Now().Add(-c.config.AbandonedAfter), sweepHolds)
	if err != nil {
		return 0, err
	}
	return c.compare(ctx, due)
}

// compare settles holds by what MySQL has, and returns how many. An undecided request first gets another order id, under
// its row's lock, so nothing can be decided under the old one afterwards. A hold that is not the one with which the order
// was made came late, and is given back.
func (c *Carts) compare(ctx context.Context, holds []sku.Hold) (n int, err error) {
	if len(holds) == 0 {
		return 0, nil
	}
	var orders []string
	seen := map[string]bool{}
	for _, h := range holds {
		if !seen[h.Order] {
			seen[h.Order] = true
			orders = append(orders, h.Order)
		}
	}
	answered, err := c.answered(ctx, orders)
	if err != nil {
		return 0, err
	}
	undecided := map[string]bool{}
	for _, order := range orders {
		if decided, ok := answered[order]; !ok || decided {
			continue
		}
		retired, err := c.retire(ctx, order)
		if err != nil {
			return 0, err
		}
		undecided[order] = !retired
		failpoint.Hit("cart.after-retire")
	}
	stands, err := c.stands(ctx, orders)
	acts := func(h sku.Hold) bool { return !undecided[h.Order] && stands[h] != wire.PendingPayment }
	if err == nil && slices.ContainsFunc(holds, acts) {
		err = store.Durable(ctx, c.db) // an order that ended just now must not come back when its units are somebody else's
	}
	if err != nil {
		return 0, err
	}
	var kept []sku.Hold
	var errs []error
	for _, h := range holds {
		if undecided[h.Order] { // it was, or was given another id, just now
			continue
		}
		result, to := "back", lua.ToBack
		switch stands[h] {
		case wire.PendingPayment:
			kept = append(kept, h)
			continue
		case wire.Paid:
			result, to = "sold", lua.ToSold
		}
		done, err := c.skus.Unlock(ctx, to, h)
		errs = append(errs, err)
		n += done
		c.metrics.swept.WithLabelValues(result).Add(float64(done))
	}
	if err := c.skus.Compared(ctx, kept); err != nil {
		return n, errors.Join(append(errs, err)...)
	}
	c.metrics.swept.WithLabelValues("kept").Add(float64(len(kept)))
	return n + len(kept), errors.Join(errs...)
}

// answered reads which of the order ids belong to requests, and whether these are decided.
func (c *Carts) answered(ctx context.Context, orders []string) (map[string]bool, error) {
	found := map[string]bool{}
	err := store.Each(ctx, c.db, func(rows *sql.Rows) error {
		var order string
		var decided bool
		err := rows.Scan(&order, &decided)
		found[order] = decided
		return err
	}, `SELECT order_id, answer IS NOT NULL FROM cart_requests WHERE order_id IN (`+store.Marks(len(orders))+`)`, store.Anys(orders)...)
	if err != nil {
		return nil, fmt.Errorf("requests of %d orders: %w", len(orders), err)
	}
	return found, nil
}

// retire gives an undecided request another order id. False: it was decided in between.
func (c *Carts) retire(ctx context.Context, order string) (bool, error) {
	next, err := newOrder()
	if err != nil {
		return false, err
	}
	r, err := c.db.ExecContext(ctx, `UPDATE cart_requests SET order_id = ? WHERE order_id = ? AND answer IS NULL`, next, order)
	if err != nil {
		return false, fmt.Errorf("retire order id %s: %w", order, err)
	}
	n, err := r.RowsAffected()
	if err == nil && n == 1 {
		c.log.Info("cart: nobody went on with a request: what it had locked is given back", "order", order, "next", next)
	}
	return n == 1, err
}

// stands reads, by the holds that lines of orders were made with, how these orders stand.
func (c *Carts) stands(ctx context.Context, orders []string) (map[sku.Hold]wire.OrderStatus, error) {
	found := map[sku.Hold]wire.OrderStatus{}
	err := store.Each(ctx, c.db, func(rows *sql.Rows) error {
		var h sku.Hold
		var status wire.OrderStatus
		err := rows.Scan(&h.SKU, &h.Order, &h.Lock, &status)
		found[h] = status
		return err
	}, `SELECT l.sku_id, l.order_id, l.lock_id, o.status FROM cart_lines l JOIN orders o ON o.id = l.order_id WHERE l.order_id IN (`+store.Marks(len(orders))+`)`, store.Anys(orders)...)
	if err != nil {
		return nil, fmt.Errorf("lines of %d orders: %w", len(orders), err)
	}
	return found, nil
}
