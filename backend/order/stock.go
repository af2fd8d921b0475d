package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
)

// What a ledger row is for.
const (
	ledgerOrder  = "order"
	ledgerIssue  = "issue"
	ledgerPay    = "pay"
	ledgerCancel = "cancel"
	ledgerExpire = "expire"
)

// move is one order's effect on its sale's stock row.
type move struct {
	sale      int64
	epoch     int64 // that the sale must be in; anyEpoch for a change that every epoch allows
	order     string
	kind      string // of its ledger row
	available int64  // changes, in units
	locked    int64
	sold      int64
	guard     guard // of the stock row; nil for conditional
}

const anyEpoch = -1

// moveStock changes the stock rows of all the moves' sales, by ascending sale. For each it makes one UPDATE under its
// guard, reads the row back under its lock, and writes one ledger row for each move. Moves of one sale must agree on the
// epoch and the guard.
func moveStock(ctx context.Context, tx *sql.Tx, at time.Time, moves []move) error {
	bySale := map[int64]move{}
	for _, m := range moves {
		sum := bySale[m.sale]
		sum.epoch, sum.guard = m.epoch, m.guard
		sum.available += m.available
		sum.locked += m.locked
		sum.sold += m.sold
		bySale[m.sale] = sum
	}
	sales := slices.Sorted(maps.Keys(bySale))
	for _, sale := range sales {
		sum := bySale[sale]
		change := sum.guard
		if change == nil {
			change = conditional
		}
		if err := change(ctx, tx, sale, sum); err != nil {
			return fmt.Errorf("stock of sale %d, available %+d, locked %+d: %w", sale, sum.available, sum.locked, err)
		}
		failpoint.Hit("order.after-stock")
	}
	return writeLedger(ctx, tx, at, sales, bySale, moves)
}

func writeLedger(ctx context.Context, tx *sql.Tx, at time.Time, sales []int64, bySale map[int64]move, moves []move) error {
	rows, err := tx.QueryContext(ctx, `SELECT sale_id, available, locked FROM sale_stock WHERE sale_id IN (`+store.Marks(len(sales))+`)`, store.Anys(sales)...)
	if err != nil {
		return fmt.Errorf("read the stock rows back: %w", err)
	}
	defer rows.Close()
	type level struct{ available, locked int64 }
	levels := map[int64]level{}
	for rows.Next() {
		var sale int64
		var l level
		if err := rows.Scan(&sale, &l.available, &l.locked); err != nil {
			return fmt.Errorf("read the stock rows back: %w", err)
		}
		l.available -= bySale[sale].available
		l.locked -= bySale[sale].locked
		levels[sale] = l
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return fmt.Errorf("read the stock rows back: %w", err)
	}
	failpoint.Hit("order.before-ledger")
	args := make([]any, 0, 10*len(moves))
	for _, m := range moves {
		l := levels[m.sale]
		args = append(args, m.sale, m.kind, m.order, l.available, m.available, l.available+m.available, l.locked, m.locked, l.locked+m.locked, at)
		levels[m.sale] = level{l.available + m.available, l.locked + m.locked}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after,
		locked_before, locked_change, locked_after, created_at) VALUES `+store.Tuples(len(moves), 10), args...); err != nil {
		return fmt.Errorf("write %d ledger rows: %w", len(moves), err)
	}
	return nil
}
