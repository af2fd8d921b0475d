package order

import (
	"context"
	"database/sql"
	"maps"
	"slices"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/store"
)

// forRelease are the orders as intent.Release takes them.
func forRelease(orders []row) []intent.Order {
	list := make([]intent.Order, len(orders))
	for i, o := range orders {
		list[i] = intent.Order{ID: o.id, Sale: o.sale}
	}
	return list
}

// releaseNow gives back in Redis what intent.Release wrote, from its first intent on, after the COMMIT. What cannot be done now,
// the timer does.
func (s *Store) releaseNow(ctx context.Context, first int64, orders []row) {
	_, ofSales := apart(orders)
	if len(ofSales) == 0 {
		return
	}
	ids := make([]string, len(ofSales))
	for i, o := range ofSales {
		ids[i] = o.id
	}
	if err := s.intents.Released(ctx, first, ids); err != nil {
		s.log.Warn("order: units are given back later, by the timer", "orders", len(ids), "error", err)
	}
}

// releaseAgain gives back what orders that ended in MySQL may have been given in Redis since: a consumer that slept
// between reading MySQL and adopting an order does that. It costs nothing where there is nothing to give back; those of a sale
// whose gate is closed are left to the timer, all of them by one statement: they may be thousands, and the reconciler waits for them.
func (s *Store) releaseAgain(ctx context.Context, ended []row) error {
	closed := map[int64]bool{}
	later := map[string]row{}
	for _, o := range ended {
		if !closed[o.sale] {
			released, err := s.redis.Release(ctx, o.sale, o.id)
			if released {
				s.log.Warn("order: an order that ended held units in redis again; they are back", "order", o.id, "status", o.status)
			}
			if err == nil {
				continue
			}
			closed[o.sale] = true // whatever it was: the others would meet the same
		}
		later[o.id] = o
	}
	if len(later) == 0 {
		return nil
	}
	releasing, err := intent.Releasing(ctx, s.db, slices.Sorted(maps.Keys(later)))
	if err != nil {
		return err
	}
	for _, id := range releasing {
		delete(later, id)
	}
	if len(later) == 0 {
		return nil
	}
	return store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		_, err := intent.Release(ctx, tx, s.now(), forRelease(slices.Collect(maps.Values(later)))...)
		return err
	})
}
