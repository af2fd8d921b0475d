package order

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/stock"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

// change is what a shopper, support, or time does to an order that waits for its payment. One conditional UPDATE decides:
// whichever of payment, cancellation and expiry changes the row first has won.
type change struct {
	to   wire.OrderStatus
	kind string // of the ledger row
	// where and args narrow the UPDATE beyond the order id and the status it must have.
	where string
	args  []any
}

// Pay marks an order as paid. Paying again changes nothing and answers the same order. ErrNotFound; ErrState when it was
// cancelled, rejected or expired, is still queued, is a coupon, or when its time to pay is over, expired already or not.
func (b *Book) Pay(ctx context.Context, uid, orderID string) (wire.Order, error) {
	if uid == "" {
		return wire.Order{}, ErrNotFound
	}
	now := b.now()
	return b.change(ctx, uid, orderID, now, change{to: wire.Paid, kind: ledgerPay, where: ` AND uid = ? AND pay_before > ?`, args: []any{uid, now}})
}

// Cancel ends an order that is not paid; the units are back in Redis when it returns, or soon after. uid "" is support,
// who may cancel anybody's. Cancelling again changes nothing and answers the same order. ErrNotFound; ErrState.
func (b *Book) Cancel(ctx context.Context, uid, orderID string) (wire.Order, error) {
	c := change{to: wire.Cancelled, kind: ledgerCancel}
	if uid != "" {
		c.where, c.args = ` AND uid = ?`, []any{uid}
	}
	return b.change(ctx, uid, orderID, b.now(), c)
}

func (b *Book) change(ctx context.Context, uid, orderID string, now time.Time, c change) (wire.Order, error) {
	if !wire.ValidOrderID(orderID) {
		return wire.Order{}, ErrNotFound
	}
	var won []row
	var intent int64
	err := store.InTx(ctx, b.db, func(tx *sql.Tx) (err error) {
		won = nil
		n, err := changed(tx.ExecContext(ctx, `UPDATE orders SET status = ?, ended_at = ? WHERE id = ? AND status = ?`+c.where,
			append([]any{string(c.to), now, orderID, string(wire.PendingPayment)}, c.args...)...))
		if err != nil || n == 0 {
			return err
		}
		if won, err = read(ctx, tx, `SELECT `+columns+` FROM orders WHERE id = ?`, orderID); err != nil {
			return err
		}
		if err := readItems(ctx, tx, won); err != nil {
			return err
		}
		intent, err = b.follow(ctx, tx, now, c, won)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrUnknown) {
		return wire.Order{}, fmt.Errorf("order %s to %s: %w", orderID, c.to, err)
	}
	if err == nil && len(won) == 1 {
		b.metrics.changes.WithLabelValues(string(c.to)).Inc()
		switch {
		case won[0].ofCart():
			b.unlockNow(ctx, won)
		case !c.to.Live():
			failpoint.Hit("cancel.before-release")
			b.releaseNow(ctx, intent, won)
		}
		return won[0].wire(), nil
	}
	stands, lookup := b.stands(ctx, uid, orderID)
	switch {
	case lookup != nil:
		return wire.Order{}, errors.Join(err, lookup)
	case stands.status == c.to: // before, or by the COMMIT whose answer was lost
		return stands.wire(), nil
	case err != nil:
		return wire.Order{}, fmt.Errorf("order %s to %s: %w", orderID, c.to, err)
	default:
		return wire.Order{}, &StateError{stands.wire(), why(stands, c.to, now)}
	}
}

// follow carries the consequences of orders' change in its transaction: the slots, the stock, the ledger, the intents. The
// intent it returns is the first of the releases of sales' orders.
func (b *Book) follow(ctx context.Context, tx *sql.Tx, now time.Time, c change, orders []row) (intent int64, err error) {
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
		if _, err := tx.ExecContext(ctx, `DELETE FROM order_slots WHERE order_id IN (`+marks(len(ids))+`)`, anys(ids)...); err != nil {
			return 0, fmt.Errorf("free the slots of %d orders: %w", len(ids), err)
		}
	}
	if err := stock.End(ctx, tx, now, c.kind, c.to.Live(), carts); err != nil {
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
	return writeReleases(ctx, tx, now, orders)
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

// unlockNow ends in Redis what carts' orders have locked, after the COMMIT that ended them. What cannot be done now, the
// timer does.
func (b *Book) unlockNow(ctx context.Context, orders []row) {
	carts, _ := apart(orders)
	if len(carts) == 0 {
		return
	}
	failpoint.Hit("cart.before-unlock")
	if err := (stock.Intents{DB: b.db, Redis: b.redis, Clock: b.clk}).OfOrders(ctx, carts); err != nil {
		b.log.Warn("order: carts' units are unlocked later, by the timer", "orders", len(carts), "error", err)
	}
}

// stands reads an order as its owner may see it: from MySQL, else from Redis, where it is queued.
func (b *Book) stands(ctx context.Context, uid, orderID string) (row, error) {
	found, err := find(ctx, b.db, []string{orderID})
	if err != nil {
		return row{}, err
	}
	r, ok := found[orderID]
	if !ok && wire.IsCartOrder(orderID) { // it is never queued
		return row{}, ErrNotFound
	}
	if !ok {
		sale, _ := wire.SaleOfOrder(orderID)
		held, reserved, err := b.redis.Lookup(ctx, sale, orderID)
		if !reserved {
			unsure, err := uncertain(ctx, b.db, sale, err)
			if err != nil {
				return row{}, err
			}
			if found, err = find(ctx, b.db, []string{orderID}); err != nil { // it may have moved in between
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
		p, err := price(ctx, b.db, sale)
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

// expireOnce bounds one pass of Expire.
const expireOnce = 200

// Expire is one pass over the orders whose time to pay is over, the longest overdue first, at most expireOnce of them:
// found by an index, ended in one transaction, their units given back. It returns how many it ended; call again at once
// while that is more than none. Any number of passes may run at once, in any number of processes.
func (b *Book) Expire(ctx context.Context) (n int, err error) {
	now := b.now()
	due, err := read(ctx, b.db, `SELECT `+columns+fmt.Sprintf(` FROM orders WHERE status = ? AND pay_before <= ? ORDER BY pay_before LIMIT %d`, expireOnce),
		string(wire.PendingPayment), now)
	if err != nil {
		return 0, fmt.Errorf("find orders to expire: %w", err)
	}
	if len(due) == 0 {
		return 0, nil
	}
	n, err = b.expire(ctx, now, due)
	if err == nil || len(due) == 1 || !errors.Is(err, errUnits) && !errors.Is(err, stock.ErrUnits) && !store.Refused(err) {
		return n, err
	}
	var errs []error // one of them does not fit its stock row: it must not keep the others
	for _, o := range due {
		one, err := b.expire(ctx, now, []row{o})
		n += one
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// expire ends those of the orders that are still unpaid.
func (b *Book) expire(ctx context.Context, now time.Time, due []row) (int, error) {
	ids := make([]string, len(due))
	for i, o := range due {
		ids[i] = o.id
	}
	c := change{to: wire.Expired, kind: ledgerExpire}
	var won []row
	var intent int64
	err := store.InTx(ctx, b.db, func(tx *sql.Tx) (err error) {
		args := append(anys(ids), string(wire.PendingPayment), now)
		won, err = read(ctx, tx, `SELECT `+columns+` FROM orders WHERE id IN (`+marks(len(ids))+`) AND status = ? AND pay_before <= ? ORDER BY id FOR UPDATE`, args...)
		if err != nil || len(won) == 0 {
			return err
		}
		args = []any{string(c.to), now}
		for _, o := range won {
			args = append(args, o.id)
		}
		n, err := changed(tx.ExecContext(ctx, `UPDATE orders SET status = ?, ended_at = ? WHERE id IN (`+marks(len(won))+`) AND status = ?`,
			append(args, string(wire.PendingPayment))...))
		if err != nil {
			return err
		}
		if n != int64(len(won)) {
			return fmt.Errorf("%d of %d locked orders changed", n, len(won))
		}
		intent, err = b.follow(ctx, tx, now, c, won)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("expire %d orders: %w", len(due), err)
	}
	if len(won) == 0 {
		return 0, nil
	}
	b.metrics.changes.WithLabelValues(string(c.to)).Add(float64(len(won)))
	failpoint.Hit("timer.before-release")
	b.unlockNow(ctx, won)
	b.releaseNow(ctx, intent, won)
	return len(won), nil
}
