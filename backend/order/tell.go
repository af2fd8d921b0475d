package order

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"floodgate.internal/backend/event"
)

// tellCreated writes the events of orders that a batch has inserted, and of sales that it has sold out.
func (s *Store) tellCreated(ctx context.Context, tx *sql.Tx, now time.Time, in insertion) error {
	if len(in.told) == 0 {
		return nil
	}
	if err := s.events.Write(ctx, tx, now, in.told...); err != nil {
		return err
	}
	var sales []int64
	for _, m := range in.moves {
		sales = append(sales, m.sale)
	}
	slices.Sort(sales)
	return s.events.SoldOut(ctx, tx, now, slices.Compact(sales))
}

// tellChanged writes the events of orders that have left pending_payment.
func (s *Store) tellChanged(ctx context.Context, tx *sql.Tx, now time.Time, c change, orders []row) error {
	if !s.events.On() {
		return nil
	}
	orders = slices.Clone(orders)
	for i := range orders {
		orders[i].status, orders[i].reason, orders[i].items = c.to, c.reason, nil
	}
	if err := readItems(ctx, tx, orders); err != nil {
		return err
	}
	events := make([]event.Event, len(orders))
	for i := range orders {
		events[i] = event.OrderEvent(orders[i].wire(), orders[i].uid)
	}
	return s.events.Write(ctx, tx, now, events...)
}

// tellRejected writes the event of an order that was accepted and cannot be made.
func (s *Store) tellRejected(ctx context.Context, tx *sql.Tx, now time.Time, o row) error {
	if !s.events.On() {
		return nil
	}
	return s.events.Write(ctx, tx, now, event.OrderEvent(o.wire(), o.uid))
}
