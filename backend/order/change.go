package order

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

// change is what a shopper, support, or time does to an order that waits for its payment. One conditional UPDATE decides:
// whichever of payment, cancellation and expiry changes the row first has won.
type change struct {
	to     wire.OrderStatus
	kind   ledger.Kind
	reason string // "" for none
	// where and args narrow the UPDATE beyond the order id and the status it must have.
	where string
	args  []any
}

// Pay marks an order as paid. Paying again changes nothing and returns the same order. ErrNotFound. ErrState if it was
// cancelled, rejected or expired, is still queued, is a coupon, or if its time to pay is over, expired already or not.
func (s *Store) Pay(ctx context.Context, uid, orderID string) (wire.Order, error) {
	if uid == "" {
		return wire.Order{}, ErrNotFound
	}
	now := s.now()
	return s.change(ctx, uid, orderID, now, change{to: wire.Paid, kind: ledger.Pay, where: ` AND uid = ? AND pay_before > ?`, args: []any{uid, now}})
}

// PayIn is Pay within the transaction that records a payment taken elsewhere, whoever owns the order. paid: this call
// made the order paid. Otherwise stands is its status, and pending_payment means that its time to pay is over. Take other
// locks before this call. Call Paid after the COMMIT. The timer ends what a cart's order has locked in Redis.
func (s *Store) PayIn(ctx context.Context, tx *sql.Tx, orderID string) (paid bool, stands wire.OrderStatus, err error) {
	now := s.now()
	won, _, err := s.transition(ctx, tx, orderID, now, change{to: wire.Paid, kind: ledger.Pay, where: ` AND pay_before > ?`, args: []any{now}})
	if err != nil {
		return false, "", fmt.Errorf("order %s to %s: %w", orderID, wire.Paid, err)
	}
	if len(won) == 1 {
		return true, wire.Paid, nil
	}
	found, err := find(ctx, tx, []string{orderID})
	if err != nil {
		return false, "", err
	}
	o, ok := found[orderID]
	if !ok {
		return false, "", ErrNotFound
	}
	return false, o.status, nil
}

// Paid counts an order that PayIn made paid, and does in Redis what is left to do.
func (s *Store) Paid(ctx context.Context, orderID string) {
	s.metrics.changes.WithLabelValues(string(wire.Paid)).Inc()
	if wire.IsCartOrder(orderID) {
		s.unlockNow(ctx, []row{{id: orderID}})
	}
}

// Bill is what is to be paid for an order, and the order's status. Only the status ever changes.
type Bill struct {
	wire.Order
	Currency string
}

// Bill reads what is to be paid for an order, whoever owns it. A queued order has a bill, too. ErrNotFound.
func (s *Store) Bill(ctx context.Context, orderID string) (Bill, error) {
	if !wire.ValidOrderID(orderID) {
		return Bill{}, ErrNotFound
	}
	o, err := s.stands(ctx, "", orderID)
	if err != nil {
		return Bill{}, err
	}
	bill := Bill{Order: o.wire()}
	if o.ofCart() { // its lines have one currency, which is the SKUs' as they were then
		if err := s.db.QueryRowContext(ctx, `SELECT currency FROM cart_lines WHERE order_id = ? LIMIT 1`, orderID).Scan(&bill.Currency); err != nil {
			return Bill{}, fmt.Errorf("currency of order %s: %w", orderID, err)
		}
		return bill, nil
	}
	if err := s.db.QueryRowContext(ctx, `SELECT currency FROM sales WHERE id = ?`, o.sale).Scan(&bill.Currency); err != nil {
		return Bill{}, fmt.Errorf("currency of sale %d: %w", o.sale, err)
	}
	return bill, nil
}

// Cancel ends an order that is not paid. Its units are back in Redis when it returns, or soon after. uid "" may cancel
// any order. Cancelling again changes nothing and returns the same order. ErrNotFound, ErrState.
func (s *Store) Cancel(ctx context.Context, uid, orderID string) (wire.Order, error) {
	c := change{to: wire.Cancelled, kind: ledger.Cancel}
	if uid != "" {
		c.where, c.args = ` AND uid = ?`, []any{uid}
	}
	return s.change(ctx, uid, orderID, s.now(), c)
}

func (s *Store) change(ctx context.Context, uid, orderID string, now time.Time, c change) (wire.Order, error) {
	if !wire.ValidOrderID(orderID) {
		return wire.Order{}, ErrNotFound
	}
	var won []row
	var release int64
	err := store.InTx(ctx, s.db, func(tx *sql.Tx) (err error) {
		won, release, err = s.transition(ctx, tx, orderID, now, c)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrUnknown) {
		return wire.Order{}, fmt.Errorf("order %s to %s: %w", orderID, c.to, err)
	}
	if err == nil && len(won) == 1 {
		s.changed(ctx, c, release, won)
		return won[0].wire(), nil
	}
	stands, lookup := s.stands(ctx, uid, orderID)
	switch {
	case lookup != nil:
		return wire.Order{}, errors.Join(err, lookup)
	case stands.status == c.to: // before, or by the COMMIT whose answer was lost
		if err := store.Durable(ctx, s.db); err != nil {
			return wire.Order{}, fmt.Errorf("order %s to %s: %w", orderID, c.to, err)
		}
		return stands.wire(), nil
	case err != nil:
		return wire.Order{}, fmt.Errorf("order %s to %s: %w", orderID, c.to, err)
	default:
		return wire.Order{}, &StateError{stands.wire(), why(stands, c.to, now)}
	}
}

// transition is the conditional UPDATE and its consequences. won is the order if this call made the change, else nothing.
func (s *Store) transition(ctx context.Context, tx *sql.Tx, orderID string, now time.Time, c change) (won []row, release int64, err error) {
	n, err := store.Changed(tx.ExecContext(ctx, `UPDATE orders SET status = ?, reason = ?, ended_at = ? WHERE id = ? AND status = ?`+c.where,
		append([]any{string(c.to), c.reason, now, orderID, string(wire.PendingPayment)}, c.args...)...))
	if err != nil || n == 0 {
		return nil, 0, err
	}
	if won, err = read(ctx, tx, `SELECT `+columns+` FROM orders WHERE id = ?`, orderID); err != nil {
		return nil, 0, err
	}
	if err := readItems(ctx, tx, won); err != nil {
		return nil, 0, err
	}
	release, err = s.follow(ctx, tx, now, c, won)
	return won, release, err
}

// changed continues after the COMMIT of an order's change: it gives back the units of an order that ended, and sells
// those of a cart's order that was paid.
func (s *Store) changed(ctx context.Context, c change, release int64, won []row) {
	s.metrics.changes.WithLabelValues(string(c.to)).Inc()
	switch {
	case won[0].ofCart():
		s.unlockNow(ctx, won)
	case !c.to.Live():
		failpoint.Hit("cancel.before-release")
		s.releaseNow(ctx, release, won)
	}
}

// follow writes the consequences of orders' change in its transaction: the slots, the stock, the ledger, the intents, the
// events. It returns the first of the release intents for sales' orders.
func (s *Store) follow(ctx context.Context, tx *sql.Tx, now time.Time, c change, orders []row) (release int64, err error) {
	if err := s.tellChanged(ctx, tx, now, c, orders); err != nil {
		return 0, err
	}
	carts, orders := apart(orders)
	ids := make([]string, len(orders))
	moves := make([]move, len(orders))
	for i, o := range orders {
		ids[i] = o.id
		moves[i] = move{sale: o.sale, epoch: anyEpoch, order: o.id, kind: c.kind, locked: -int64(o.quantity)}
		if c.to.Live() {
			moves[i].sold = int64(o.quantity)
		} else {
			moves[i].available = int64(o.quantity)
		}
	}
	if !c.to.Live() && len(ids) > 0 {
		if _, err := tx.ExecContext(ctx, `DELETE FROM order_slots WHERE order_id IN (`+store.Marks(len(ids))+`)`, store.Anys(ids)...); err != nil {
			return 0, fmt.Errorf("free the slots of %d orders: %w", len(ids), err)
		}
	}
	holds, err := sku.End(ctx, tx, now, c.kind, c.to.Live(), carts)
	if err == nil {
		err = intent.EndLocks(ctx, tx, now, c.to.Live(), holds)
	}
	if err != nil {
		return 0, err
	}
	if len(ids) == 0 {
		return 0, nil
	}
	if err := moveStock(ctx, tx, now, moves); err != nil {
		return 0, err
	}
	if c.to.Live() {
		return 0, nil
	}
	return intent.Release(ctx, tx, now, forRelease(orders)...)
}

// apart separates the ids of carts' orders from the orders of sales.
func apart(orders []row) (carts []string, ofSales []row) {
	for _, o := range orders {
		if o.ofCart() {
			carts = append(carts, o.id)
		} else {
			ofSales = append(ofSales, o)
		}
	}
	return carts, ofSales
}

// unlockNow ends in Redis what carts' orders have locked, after the COMMIT that ended them. The timer does what cannot be
// done now.
func (s *Store) unlockNow(ctx context.Context, orders []row) {
	carts, _ := apart(orders)
	if len(carts) == 0 {
		return
	}
	failpoint.Hit("cart.before-unlock")
	if err := s.intents.LocksEnded(ctx, carts); err != nil {
		s.log.Warn("order: carts' units are unlocked later, by the timer", "orders", len(carts), "error", err)
	}
}

// stands reads an order as its owner may see it: from MySQL, else from Redis, where a queued order is.
func (s *Store) stands(ctx context.Context, uid, orderID string) (row, error) {
	found, err := find(ctx, s.db, []string{orderID})
	if err != nil {
		return row{}, err
	}
	r, ok := found[orderID]
	if !ok && wire.IsCartOrder(orderID) { // it is never queued
		return row{}, ErrNotFound
	}
	if !ok {
		sale, _ := wire.SaleOfOrder(orderID)
		held, reserved, err := s.redis.Lookup(ctx, sale, orderID)
		if !reserved {
			unsure, err := uncertain(ctx, s.db, sale, err)
			if err != nil {
				return row{}, err
			}
			if found, err = find(ctx, s.db, []string{orderID}); err != nil { // it may have moved in between
				return row{}, err
			}
			if r, ok = found[orderID]; !ok {
				return row{}, cmp.Or(unsure, ErrNotFound)
			}
			if uid != "" && r.uid != uid {
				return row{}, ErrNotFound
			}
			return r, nil
		}
		p, err := price(ctx, s.db, sale)
		if err != nil {
			return row{}, err
		}
		r = queuedRow(held, sale, p)
	}
	if uid != "" && r.uid != uid {
		return row{}, ErrNotFound
	}
	return r, nil
}

func why(o row, to wire.OrderStatus, now time.Time) string {
	switch {
	case o.status == wire.Queued:
		return "it is still queued: ask again when it waits for payment"
	case o.status == wire.PendingPayment && to == wire.Paid && o.payBefore.Valid && !now.Before(o.payBefore.Time):
		return "its time to pay was over at " + o.payBefore.Time.UTC().Format(wire.TimeFormat) + ": it is expired"
	case o.status == wire.PendingPayment:
		return "it is being changed: ask again"
	case o.status == wire.Issued:
		return "a coupon is neither paid for nor cancelled"
	default:
		return "it cannot become " + string(to)
	}
}
