package sale

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/store"
)

// SKU is what sales and carts sell units of: Available + Allotted + Locked + Sold = Total. Allotted units are its sales';
// carts lock and buy the others, which is for package sku.
type SKU struct {
	ID                                       int64
	Title, Currency                          string
	Price                                    int64 // minor units
	Own                                      bool  // made for one sale, and not for carts
	Total, Available, Allotted, Locked, Sold int64
	Version                                  int64 // counts operators' changes
	CreatedAt                                time.Time
}

// SKUs returns at most limit SKUs with ids below one, the newest first.
func SKUs(ctx context.Context, q store.Queryer, below, limit int64) ([]SKU, error) {
	list, err := readSKUs(ctx, q, `id < ? ORDER BY id DESC LIMIT ?`, below, limit)
	if err != nil {
		return nil, fmt.Errorf("skus: %w", err)
	}
	return list, nil
}

// GetSKU reads a SKU. *NoSKUError.
func GetSKU(ctx context.Context, q store.Queryer, id int64) (SKU, error) {
	return oneSKU(ctx, q, id, `id = ?`)
}

// lockSKU reads a SKU and locks its row until the transaction ends. *NoSKUError.
func lockSKU(ctx context.Context, tx *sql.Tx, id int64) (SKU, error) {
	return oneSKU(ctx, tx, id, `id = ? FOR UPDATE`)
}

func oneSKU(ctx context.Context, q store.Queryer, id int64, where string) (SKU, error) {
	list, err := readSKUs(ctx, q, where, id)
	if err != nil {
		return SKU{}, fmt.Errorf("sku %d: %w", id, err)
	}
	if len(list) == 0 {
		return SKU{}, &NoSKUError{id}
	}
	return list[0], nil
}

func readSKUs(ctx context.Context, q store.Queryer, where string, args ...any) ([]SKU, error) {
	var list []SKU
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var k SKU
		err := rows.Scan(&k.ID, &k.Title, &k.Price, &k.Currency, &k.Own, &k.Total, &k.Available, &k.Allotted, &k.Locked, &k.Sold, &k.Version, &k.CreatedAt)
		list = append(list, k)
		return err
	}, `SELECT id, title, price, currency, own, total, available, allotted, locked, sold, version, created_at FROM skus WHERE `+where, args...)
	return list, err
}

// CreateSKU makes a SKU that carts can hold and sales can be made of, of what k says of its title, price, currency and Total.
func CreateSKU(ctx context.Context, tx *sql.Tx, at time.Time, k SKU) (SKU, error) {
	id, err := insert(ctx, tx, `INSERT INTO skus (title, price, currency, own, total, available, allotted, created_at) VALUES (?, ?, ?, FALSE, ?, ?, 0, ?)`,
		k.Title, k.Price, k.Currency, k.Total, k.Total, at)
	if err != nil {
		return SKU{}, fmt.Errorf("insert sku: %w", err)
	}
	if err := ledger.OfSKUs(ctx, tx, at, ledger.Row{Of: id, Kind: ledger.Create, Ref: string(ledger.Create), Change: ledger.Units{Available: k.Total}}); err != nil {
		return SKU{}, err
	}
	return GetSKU(ctx, tx, id)
}

// UpdateSKU gives a SKU the title, price and currency of next. Its next sales and carts take them over; sales there are keep
// their own. ErrChanged: the SKU has not the version of before any more.
//
// It is optimistic: the row is hot with carts, which do not count the version, and a lock on it from the reading to the
// COMMIT would make them all wait for this.
func UpdateSKU(ctx context.Context, tx *sql.Tx, before, next SKU) (SKU, error) {
	next.Version = before.Version + 1
	n, err := store.Changed(tx.ExecContext(ctx, `UPDATE skus SET title = ?, price = ?, currency = ?, version = ? WHERE id = ? AND version = ?`,
		next.Title, next.Price, next.Currency, next.Version, before.ID, before.Version))
	if err != nil {
		return SKU{}, fmt.Errorf("update sku %d: %w", before.ID, err)
	}
	if n != 1 {
		return SKU{}, ErrChanged
	}
	return next, nil
}

// RestockSKU gives a SKU more available units. *NoSKUError, *LimitError.
func RestockSKU(ctx context.Context, tx *sql.Tx, at time.Time, id, units int64) (before, after SKU, err error) {
	if before, err = lockSKU(ctx, tx, id); err != nil {
		return before, after, err
	}
	if before.Total+units > MaxUnits {
		return before, after, &LimitError{before.Total, units}
	}
	if _, err := tx.ExecContext(ctx, `UPDATE skus SET total = total + ?, available = available + ?, version = version + 1 WHERE id = ?`, units, units, id); err != nil {
		return before, after, fmt.Errorf("restock sku %d: %w", id, err)
	}
	if err := before.move(ctx, tx, at, ledger.Restock, units); err != nil {
		return before, after, err
	}
	after, err = GetSKU(ctx, tx, id)
	return before, after, err
}

// allot takes available units for a sale. The SKU is locked. *UnitsError.
func (k SKU) allot(ctx context.Context, tx *sql.Tx, at time.Time, units int64) error {
	n, err := store.Changed(tx.ExecContext(ctx, `UPDATE skus SET available = available - ?, allotted = allotted + ? WHERE id = ? AND available >= ?`,
		units, units, k.ID, units))
	if err != nil {
		return fmt.Errorf("allot %d units of sku %d: %w", units, k.ID, err)
	}
	if n == 0 {
		return &UnitsError{SKU: k.ID, Asked: units, Available: k.Available}
	}
	return k.move(ctx, tx, at, ledger.Allot, -units)
}

// giveBack moves a sale's available units back to its SKU. The SKU and the sale's stock row are locked.
func (k SKU) giveBack(ctx context.Context, tx *sql.Tx, at time.Time, sale, units int64) (intent.Intent, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE skus SET allotted = allotted - ?, available = available + ? WHERE id = ?`, units, units, k.ID); err != nil {
		return intent.Intent{}, fmt.Errorf("sku %d: %w", k.ID, err)
	}
	if err := k.move(ctx, tx, at, ledger.Return, units); err != nil {
		return intent.Intent{}, err
	}
	return moveUnits(ctx, tx, at, sale, ledger.Return, -units)
}

// move writes the ledger row, and the intent for Redis, of a change of the SKU's available units. k is as it was before.
func (k SKU) move(ctx context.Context, tx *sql.Tx, at time.Time, kind ledger.Kind, units int64) error {
	i, err := intent.AdjustSKU(ctx, tx, at, k.ID, units)
	if err != nil {
		return err
	}
	return ledger.OfSKUs(ctx, tx, at, ledger.Row{Of: k.ID, Kind: kind, Ref: i.Ref(),
		Before: ledger.Units{Available: k.Available, Locked: k.Locked}, Change: ledger.Units{Available: units}})
}
