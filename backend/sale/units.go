package sale

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/sku"
)

// skuRow is a SKU's row, locked until the transaction ends.
type skuRow struct {
	id                       int64
	title, currency          string
	price                    int64
	own                      bool // made for one sale
	total, available, locked int64
}

// lockSKU locks and reads a SKU's row. *NoSKUError.
func lockSKU(ctx context.Context, tx *sql.Tx, id int64) (skuRow, error) {
	k := skuRow{id: id}
	err := tx.QueryRowContext(ctx, `SELECT title, price, currency, own, total, available, locked FROM skus WHERE id = ? FOR UPDATE`, id).
		Scan(&k.title, &k.price, &k.currency, &k.own, &k.total, &k.available, &k.locked)
	if errors.Is(err, sql.ErrNoRows) {
		return k, &NoSKUError{id}
	}
	if err != nil {
		return k, fmt.Errorf("sku %d: %w", id, err)
	}
	return k, nil
}

// allot takes available units for a sale. *UnitsError.
func (k skuRow) allot(ctx context.Context, tx *sql.Tx, at time.Time, units int64) error {
	result, err := tx.ExecContext(ctx, `UPDATE skus SET available = available - ?, allotted = allotted + ? WHERE id = ? AND available >= ?`,
		units, units, k.id, units)
	var n int64
	if err == nil {
		n, err = result.RowsAffected()
	}
	if err != nil {
		return fmt.Errorf("allot %d units of sku %d: %w", units, k.id, err)
	}
	if n == 0 {
		return &UnitsError{SKU: k.id, Asked: units, Available: k.available}
	}
	return k.move(ctx, tx, at, sku.Allot, -units)
}

// giveBack moves a sale's available units back to its SKU. The sale's stock row is locked.
func (k skuRow) giveBack(ctx context.Context, tx *sql.Tx, at time.Time, sale, units int64) (intent.Intent, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE skus SET allotted = allotted - ?, available = available + ? WHERE id = ?`, units, units, k.id); err != nil {
		return intent.Intent{}, fmt.Errorf("sku %d: %w", k.id, err)
	}
	if err := k.move(ctx, tx, at, sku.Returned, units); err != nil {
		return intent.Intent{}, err
	}
	return moveUnits(ctx, tx, at, sale, "return", -units)
}

// move writes the ledger row, and the intent for Redis, of a change of the SKU's available units. k is as it was before.
func (k skuRow) move(ctx context.Context, tx *sql.Tx, at time.Time, kind string, units int64) error {
	i, err := intent.AdjustSKU(ctx, tx, at, k.id, units)
	if err != nil {
		return err
	}
	return sku.Record(ctx, tx, at, sku.Change{SKU: k.id, Kind: kind, Ref: i.Ref(), Available: units}, k.available, k.locked)
}

// moveUnits changes a sale's total and available units, in the stock row and in the ledger, and intends it for Redis.
func moveUnits(ctx context.Context, tx *sql.Tx, at time.Time, sale int64, kind string, units int64) (intent.Intent, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE sale_stock SET total = total + ?, available = available + ?, version = version + 1 WHERE sale_id = ?`, units, units, sale); err != nil {
		return intent.Intent{}, fmt.Errorf("%s sale %d by %d: %w", kind, sale, units, err)
	}
	var available, locked int64
	if err := tx.QueryRowContext(ctx, `SELECT available, locked FROM sale_stock WHERE sale_id = ? FOR UPDATE`, sale).Scan(&available, &locked); err != nil {
		return intent.Intent{}, fmt.Errorf("stock of sale %d: %w", sale, err)
	}
	i, err := intent.Adjust(ctx, tx, at, sale, units)
	if err != nil {
		return intent.Intent{}, err
	}
	return i, record(ctx, tx, at, sale, kind, i.Ref(), units, available, locked)
}

// record writes a ledger row for a change of a sale's available units, after the stock row was updated: available and locked are
// what it has now.
func record(ctx context.Context, tx *sql.Tx, at time.Time, sale int64, kind, ref string, units, available, locked int64) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after,
		locked_before, locked_change, locked_after, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?)`,
		sale, kind, ref, available-units, units, available, locked, locked, at)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}
