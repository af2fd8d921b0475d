// Package ledger writes down every change of units in MySQL: of a sale's stock in the table ledger, of a SKU's units in
// sku_ledger. Rows are written in the transaction of the change. The sum of their changes is what the stock is; the audit
// compares both.
package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"floodgate.internal/backend/store"
)

// Kind says what a row is for.
type Kind string

// The kinds of an order's rows. They name the order.
const (
	Order  Kind = "order"
	Issue  Kind = "issue"
	Pay    Kind = "pay"
	Cancel Kind = "cancel"
	Expire Kind = "expire"
	Lock   Kind = "lock" // of a cart's order, on a SKU
)

// The kinds of operators' rows. They name the intent for Redis; the first row of a sale or a SKU names Create.
const (
	Create  Kind = "create"
	Allot   Kind = "allot"
	Restock Kind = "restock"
	Return  Kind = "return"
)

// Units are what a row counts, or a change of it.
type Units struct{ Available, Locked int64 }

// Plus is u after the change v.
func (u Units) Plus(v Units) Units { return Units{u.Available + v.Available, u.Locked + v.Locked} }

// Minus is u before the change v.
func (u Units) Minus(v Units) Units { return Units{u.Available - v.Available, u.Locked - v.Locked} }

// Row is one change. A sale or a SKU has at most one row of a Kind and a Ref: a second one is a duplicate key of MySQL.
type Row struct {
	Of             int64 // the sale or the SKU
	Kind           Kind
	Ref            string
	Before, Change Units
}

// OfSales writes rows of sales.
func OfSales(ctx context.Context, tx *sql.Tx, at time.Time, rows ...Row) error {
	return write(ctx, tx, at, "ledger", "sale_id", rows)
}

// OfSKUs writes rows of SKUs.
func OfSKUs(ctx context.Context, tx *sql.Tx, at time.Time, rows ...Row) error {
	return write(ctx, tx, at, "sku_ledger", "sku_id", rows)
}

func write(ctx context.Context, tx *sql.Tx, at time.Time, table, of string, rows []Row) error {
	for part := range slices.Chunk(rows, 500) { // a statement of bounded size
		args := make([]any, 0, 10*len(part))
		for _, r := range part {
			after := r.Before.Plus(r.Change)
			args = append(args, r.Of, string(r.Kind), r.Ref, r.Before.Available, r.Change.Available, after.Available, r.Before.Locked, r.Change.Locked, after.Locked, at)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO `+table+` (`+of+`, kind, ref, available_before, available_change, available_after,
			locked_before, locked_change, locked_after, created_at) VALUES `+store.Tuples(len(part), 10), args...); err != nil {
			return fmt.Errorf("write %d rows of %s: %w", len(part), table, err)
		}
	}
	return nil
}
