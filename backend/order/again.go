package order

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// EndAgain ends orders of a sale as they had ended in a MySQL that is gone. The one that took over has forgotten it and serves nobody
// yet; conn leads there. Those of live that wait for a payment are expired if their time to pay is over, else cancelled. Those of
// absent, of which it has no row, get one as cancelled. It returns how many were ended.
func (s *Store) EndAgain(ctx context.Context, conn *sql.Conn, sale int64, live []string, absent []reserve.Held) (n int, err error) {
	again := func(f func(tx *sql.Tx) (int, error)) error {
		tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return fmt.Errorf("end orders of sale %d again: %w", sale, err)
		}
		defer tx.Rollback() // where f fails
		done, err := f(tx)
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			return fmt.Errorf("end orders of sale %d again: %w", sale, err)
		}
		n += done
		return nil
	}
	for ids := range slices.Chunk(live, expireOnce) {
		if err := again(func(tx *sql.Tx) (int, error) { return s.endAgain(ctx, tx, ids) }); err != nil {
			return n, err
		}
	}
	for orders := range slices.Chunk(absent, expireOnce) {
		if err := again(func(tx *sql.Tx) (int, error) { return s.insertEnded(ctx, tx, sale, orders) }); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s *Store) endAgain(ctx context.Context, tx *sql.Tx, ids []string) (n int, err error) {
	now := s.now()
	found, err := read(ctx, tx, `SELECT `+columns+` FROM orders WHERE id IN (`+store.Marks(len(ids))+`) FOR UPDATE`, store.Anys(ids)...)
	if err != nil {
		return 0, err
	}
	var cancelled, expired []row
	for _, o := range found {
		switch {
		case o.status != wire.PendingPayment:
			s.log.Error("order: redis does not hold an order that is live in mysql: audit its sale", "order", o.id, "sale", o.sale, "status", o.status)
		case o.payBefore.Valid && !now.Before(o.payBefore.Time):
			expired = append(expired, o)
		default:
			cancelled = append(cancelled, o)
		}
	}
	if err := s.endAll(ctx, tx, now, change{to: wire.Cancelled, kind: ledger.Cancel}, cancelled); err != nil {
		return 0, err
	}
	return len(cancelled) + len(expired), s.endAll(ctx, tx, now, change{to: wire.Expired, kind: ledger.Expire}, expired)
}

// endAll changes orders that are locked, and writes the consequences.
func (s *Store) endAll(ctx context.Context, tx *sql.Tx, now time.Time, c change, orders []row) error {
	if len(orders) == 0 {
		return nil
	}
	args := []any{string(c.to), now}
	for _, o := range orders {
		args = append(args, o.id)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE orders SET status = ?, ended_at = ? WHERE id IN (`+store.Marks(len(orders))+`)`, args...); err != nil {
		return err
	}
	_, err := s.follow(ctx, tx, now, c, orders)
	return err
}

// insertEnded inserts orders that hold nothing. One whose key another order of the buyer has is left out.
func (s *Store) insertEnded(ctx context.Context, tx *sql.Tx, sale int64, orders []reserve.Held) (int, error) {
	each, err := price(ctx, tx, sale)
	if err != nil {
		return 0, err
	}
	now := s.now()
	args := make([]any, 0, 10*len(orders))
	for _, o := range orders {
		args = append(args, o.ID, sale, o.UID, o.Quantity, each*int64(o.Quantity), string(wire.Cancelled), nullable(o.Key), time.UnixMilli(o.At).UTC(), now, now)
	}
	n, err := store.Changed(tx.ExecContext(ctx, `INSERT IGNORE INTO orders (id, sale_id, uid, quantity, amount, status, idem_key, created_at, decided_at, ended_at)
		VALUES `+store.Tuples(len(orders), 10), args...))
	return int(n), err
}
