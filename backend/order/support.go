package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"floodgate.internal/backend/ledger"
	"floodgate.internal/shared/wire"
)

// Support is the reason of an order that an operator cancelled.
const Support = "support"

// CancelIn cancels an unpaid order, whoever owns it, in the caller's transaction. The caller calls release after the
// COMMIT, which gives the units back at once, or leaves that to the timer. Cancelling again changes nothing: then before
// is after, and release is nil. ErrNotFound: MySQL does not have it (it may be queued: see Stands). ErrState.
func (s *Store) CancelIn(ctx context.Context, tx *sql.Tx, orderID string) (before, after wire.Order, release func(context.Context), err error) {
	c := change{to: wire.Cancelled, kind: ledger.Cancel, reason: Support}
	now := s.now()
	found, err := read(ctx, tx, `SELECT `+columns+` FROM orders WHERE id = ? FOR UPDATE`, orderID)
	switch {
	case err != nil:
		return before, after, nil, fmt.Errorf("order %s: %w", orderID, err)
	case len(found) == 0:
		return before, after, nil, ErrNotFound
	}
	if err := readItems(ctx, tx, found); err != nil {
		return before, after, nil, fmt.Errorf("order %s: %w", orderID, err)
	}
	before = found[0].wire()
	switch before.Status {
	case wire.PendingPayment:
	case c.to:
		return before, before, nil, nil
	default:
		return before, before, nil, &StateError{before, why(found[0], c.to, now)}
	}
	won, intent, err := s.transition(ctx, tx, orderID, now, c)
	if err != nil {
		return before, after, nil, fmt.Errorf("order %s to %s: %w", orderID, c.to, err)
	}
	if len(won) != 1 {
		return before, after, nil, fmt.Errorf("order %s is locked and %s, and does not change", orderID, before.Status)
	}
	return before, won[0].wire(), func(ctx context.Context) { s.changed(ctx, c, intent, won) }, nil
}

// Stands reads an order: from MySQL, else from Redis, where a queued order is. ErrNotFound.
func (s *Store) Stands(ctx context.Context, orderID string) (wire.Order, error) {
	if !wire.ValidOrderID(orderID) {
		return wire.Order{}, ErrNotFound
	}
	o, err := s.stands(ctx, "", orderID)
	return o.wire(), err
}

// ByKey is the order that a buyer's Idempotency-Key made, and its units, as MySQL has it. false if it made none.
func (r *Reader) ByKey(ctx context.Context, sale int64, uid, key string) (orderID string, quantity int, ok bool, err error) {
	err = r.db.QueryRowContext(ctx, `SELECT id, quantity FROM orders WHERE sale_id = ? AND uid = ? AND idem_key = ?`, sale, uid, key).Scan(&orderID, &quantity)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, false, nil
	}
	if err != nil {
		return "", 0, false, fmt.Errorf("order of uid %s in sale %d by its key: %w", uid, sale, err)
	}
	return orderID, quantity, true, nil
}
