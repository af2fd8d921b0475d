package order

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
)

// move is one order's effect on its sale's stock row.
type move struct {
	sale      int64
	epoch     int64 // that the sale must be in; anyEpoch for a change that every epoch allows
	order     string
	kind      ledger.Kind
	available int64 // changes, in units
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
	before := map[int64]ledger.Units{}
	if err := store.Each(ctx, tx, func(rows *sql.Rows) error {
		var sale int64
		var now ledger.Units
		err := rows.Scan(&sale, &now.Available, &now.Locked)
		before[sale] = now.Minus(ledger.Units{Available: bySale[sale].available, Locked: bySale[sale].locked})
		return err
	}, `SELECT sale_id, available, locked FROM sale_stock WHERE sale_id IN (`+store.Marks(len(sales))+`)`, store.Anys(sales)...); err != nil {
		return fmt.Errorf("read the stock rows back: %w", err)
	}
	failpoint.Hit("order.before-ledger")
	rows := make([]ledger.Row, len(moves))
	for i, m := range moves {
		rows[i] = ledger.Row{Of: m.sale, Kind: m.kind, Ref: m.order, Before: before[m.sale], Change: ledger.Units{Available: m.available, Locked: m.locked}}
		before[m.sale] = before[m.sale].Plus(rows[i].Change)
	}
	return ledger.OfSales(ctx, tx, at, rows...)
}
