package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

const (
	expireOnce = 200              // orders that one pass of Expire ends, at most
	stuckFor   = 10 * time.Minute // how long an order that does not fit its stock row is left alone
)

// Expire is one pass over the orders whose time to pay is over, the longest overdue first, at most expireOnce of them. It
// finds them by a range of the index orders_due, ends them in one transaction, and gives their units back. It returns how
// many it handled: call again at once until that is 0.
//
// Any number of passes may run at once, in any number of processes, without a leader. Each locks the orders that it finds
// and skips those that others have locked (SKIP LOCKED: MySQL 8.0, MariaDB 10.6), so they share the work.
//
// An order that does not fit its stock row stays as it is for the auditor to find. It is logged, counted, and left alone
// for stuckFor, so that it does not keep others from expiring.
func (s *Store) Expire(ctx context.Context) (n int, err error) {
	now := s.now()
	n, won, err := s.expire(ctx, now, nil)
	if !misfits(err) {
		return n, err
	}
	return s.expireApart(ctx, now, won, err)
}

// misfits reports whether err is MySQL's refusal of the orders themselves: another attempt would fail likewise.
func misfits(err error) bool {
	return errors.Is(err, errUnits) || errors.Is(err, sku.ErrUnits) || store.Refused(err)
}

// expireApart handles orders that could not be expired together, for the reason in cause: in halves, down to those that
// are stuck.
func (s *Store) expireApart(ctx context.Context, now time.Time, due []row, cause error) (n int, err error) {
	if len(due) == 1 {
		return 1, s.setAside(ctx, now, due[0], cause)
	}
	half := len(due) / 2
	for _, part := range [][]row{due[:half], due[half:]} {
		done, _, err := s.expire(ctx, now, part)
		if misfits(err) {
			done, err = s.expireApart(ctx, now, part, err)
		}
		n += done
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// setAside leaves an order alone for a while.
func (s *Store) setAside(ctx context.Context, now time.Time, o row, cause error) error {
	s.metrics.stuck.Inc()
	s.log.Error("order: an overdue order cannot be expired and is left alone for a while: audit its sale", "order", o.id, "sale", o.sale,
		"again_in", stuckFor, "error", cause)
	_, err := s.db.ExecContext(ctx, `UPDATE orders SET stuck_at = ? WHERE id = ? AND status = ?`, now, o.id, string(wire.PendingPayment))
	if err != nil {
		return fmt.Errorf("set order %s aside: %w", o.id, err)
	}
	return nil
}

// overdue takes the status, the time, and the time before which an order must have been found stuck.
const overdue = `SELECT ` + columns + ` FROM orders WHERE status = ? AND pay_before <= ? AND (stuck_at IS NULL OR stuck_at <= ?)`

// oldestFirst bounds it.
var oldestFirst = fmt.Sprintf(` ORDER BY pay_before LIMIT %d`, expireOnce)

// expire ends overdue orders that no other transaction is changing, at most expireOnce: of these, or with nil those that
// are overdue the longest. won are those that it took, whatever the error.
func (s *Store) expire(ctx context.Context, now time.Time, these []row) (n int, won []row, err error) {
	query, due := overdue, []any{string(wire.PendingPayment), now, now.Add(-stuckFor)}
	if these != nil {
		query += ` AND id IN (` + store.Marks(len(these)) + `)`
		for _, o := range these {
			due = append(due, o.id)
		}
	}
	query += oldestFirst + ` FOR UPDATE SKIP LOCKED`
	c := change{to: wire.Expired, kind: ledger.Expire}
	var release int64
	err = store.InTx(ctx, s.db, func(tx *sql.Tx) (err error) {
		if won, err = read(ctx, tx, query, due...); err != nil || len(won) == 0 {
			return err
		}
		args := []any{string(c.to), now}
		for _, o := range won {
			args = append(args, o.id)
		}
		n, err := store.Changed(tx.ExecContext(ctx, `UPDATE orders SET status = ?, ended_at = ? WHERE id IN (`+store.Marks(len(won))+`) AND status = ?`,
			append(args, string(wire.PendingPayment))...))
		if err != nil {
			return err
		}
		if n != int64(len(won)) {
			return fmt.Errorf("%d of %d locked orders changed", n, len(won))
		}
		release, err = s.follow(ctx, tx, now, c, won)
		return err
	})
	if err != nil {
		return 0, won, fmt.Errorf("expire %d orders: %w", len(won), err)
	}
	if len(won) == 0 {
		return 0, nil, nil
	}
	s.metrics.changes.WithLabelValues(string(c.to)).Add(float64(len(won)))
	failpoint.Hit("timer.before-release")
	s.unlockNow(ctx, won)
	s.releaseNow(ctx, release, won)
	return len(won), won, nil
}
