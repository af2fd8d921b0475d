package sku

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/store"
)

// ErrUnits: a SKU's row does not allow a change: too few units, or no such SKU.
var ErrUnits = errors.New("the SKU's row does not allow it")

// Row is a SKU as MySQL has it, locked until the transaction ends.
type Row struct {
	ledger.Units
	Epoch    int64
	Price    int64
	Currency string
	Own      bool // made for one sale: not for carts
}

// Rows are the SKUs that one transaction has locked.
type Rows map[int64]*Row

// Lock locks SKUs' rows, by ascending id, and reads them; those that do not exist are left out. Reading and deciding under
// the lock, instead of updating and reading back, is what gives the ledger its before, and a cart the price that it pays.
func Lock(ctx context.Context, tx *sql.Tx, skus []int64) (Rows, error) {
	locked := Rows{}
	if len(skus) == 0 {
		return locked, nil
	}
	err := store.Each(ctx, tx, func(rows *sql.Rows) error {
		var id int64
		var r Row
		err := rows.Scan(&id, &r.Available, &r.Locked, &r.Epoch, &r.Price, &r.Currency, &r.Own)
		locked[id] = &r
		return err
	}, `SELECT id, available, locked, epoch, price, currency, own FROM skus WHERE id IN (`+store.Marks(len(skus))+`) ORDER BY id FOR UPDATE`, store.Anys(skus)...)
	if err != nil {
		return nil, fmt.Errorf("lock %d SKUs: %w", len(skus), err)
	}
	return locked, nil
}

// Change is what one order does to the units of one SKU.
type Change struct {
	SKU                     int64
	Kind                    ledger.Kind
	Ref                     string // of its ledger row
	Available, Locked, Sold int64
}

// Move makes the changes: each SKU's row by one conditional UPDATE, and a ledger row for each change. ErrUnits.
func (r Rows) Move(ctx context.Context, tx *sql.Tx, at time.Time, changes []Change) error {
	sums := map[int64]Change{}
	for _, c := range changes {
		sum := sums[c.SKU]
		sum.Available += c.Available
		sum.Locked += c.Locked
		sum.Sold += c.Sold
		sums[c.SKU] = sum
	}
	for _, sku := range slices.Sorted(maps.Keys(sums)) {
		sum := sums[sku]
		n, err := store.Changed(tx.ExecContext(ctx, `UPDATE skus SET available = available + ?, locked = locked + ?, sold = sold + ? WHERE id = ? AND available >= ? AND locked >= ?`,
			sum.Available, sum.Locked, sum.Sold, sku, max(0, -sum.Available), max(0, -sum.Locked)))
		if err != nil {
			return fmt.Errorf("stock of SKU %d: %w", sku, err)
		}
		if n != 1 || r[sku] == nil {
			return fmt.Errorf("stock of SKU %d, available %+d, locked %+d: %w", sku, sum.Available, sum.Locked, ErrUnits)
		}
	}
	written := make([]ledger.Row, len(changes))
	for i, c := range changes {
		row := r[c.SKU]
		written[i] = ledger.Row{Of: c.SKU, Kind: c.Kind, Ref: c.Ref, Before: row.Units, Change: ledger.Units{Available: c.Available, Locked: c.Locked}}
		row.Units = row.Plus(written[i].Change)
	}
	return ledger.OfSKUs(ctx, tx, at, written...)
}

// End ends the lock that carts' orders have on their units, in the transaction that ends the orders: they are sold, or
// available again. kind is that of the ledger rows. It returns the holds that end with the locks: Redis is to follow.
func End(ctx context.Context, tx *sql.Tx, at time.Time, kind ledger.Kind, sold bool, orders []string) ([]Hold, error) {
	if len(orders) == 0 {
		return nil, nil
	}
	var changes []Change
	var skus []int64
	var holds []Hold
	err := store.Each(ctx, tx, func(rows *sql.Rows) error {
		c := Change{Kind: kind}
		var units int64
		var lock string
		if err := rows.Scan(&c.Ref, &c.SKU, &units, &lock); err != nil {
			return err
		}
		c.Locked = -units
		if sold {
			c.Sold = units
		} else {
			c.Available = units
		}
		changes = append(changes, c)
		skus = append(skus, c.SKU)
		holds = append(holds, Hold{c.SKU, c.Ref, lock})
		return nil
	}, `SELECT order_id, sku_id, quantity, lock_id FROM cart_lines WHERE order_id IN (`+store.Marks(len(orders))+`) ORDER BY sku_id, order_id`, store.Anys(orders)...)
	if err != nil {
		return nil, fmt.Errorf("lines of %d orders: %w", len(orders), err)
	}
	locked, err := Lock(ctx, tx, slices.Compact(skus))
	if err != nil {
		return nil, err
	}
	if err := locked.Move(ctx, tx, at, changes); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE cart_lines SET held = FALSE WHERE order_id IN (`+store.Marks(len(orders))+`)`, store.Anys(orders)...); err != nil {
		return nil, fmt.Errorf("lines of %d orders: %w", len(orders), err)
	}
	return holds, nil
}
