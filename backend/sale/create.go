package sale

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"floodgate.internal/backend/ledger"
	"floodgate.internal/shared/failpoint"
)

// New is a sale that is to be made. Of Sale it takes what operators decide; without a SKU it gets one of its own.
type New struct {
	Sale
	HasPrice bool // else the price is the SKU's; so are a title and a currency that are ""
	Units    int64
	Guard    string
}

// Create makes a sale, and takes its units out of its SKU. The caller loads it into Redis after the COMMIT. ErrTooMany,
// *NoSKUError, *UnitsError.
func Create(ctx context.Context, tx *sql.Tx, at time.Time, n New) (Change, error) {
	var live int64
	if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM sales WHERE archived_at IS NULL`).Scan(&live); err != nil {
		return Change{}, fmt.Errorf("live sales: %w", err)
	}
	if live >= MaxLive {
		return Change{}, ErrTooMany
	}
	shared := n.SKU
	if err := n.takeUnits(ctx, tx, at); err != nil {
		return Change{}, err
	}
	id, err := insert(ctx, tx, `INSERT INTO sales (sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s,
		published, category, picture, stock_guard, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		n.SKU, n.Kind, n.Title, n.Price, n.Currency, n.StartsAt, n.EndsAt, n.PerUserLimit, int64(n.PayWithin/time.Second),
		!n.Hidden, n.Category, n.Picture, n.Guard, at)
	if err != nil {
		return Change{}, fmt.Errorf("insert sale: %w", err)
	}
	for _, t := range n.Tranches {
		if _, err := tx.ExecContext(ctx, `INSERT INTO tranches (sale_id, at, quantity) VALUES (?, ?, ?)`, id, t.At, t.Quantity); err != nil {
			return Change{}, fmt.Errorf("insert tranche: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO sale_stock (sale_id, total, available) VALUES (?, ?, ?)`, id, n.Units, n.Units); err != nil {
		return Change{}, fmt.Errorf("insert stock: %w", err)
	}
	failpoint.Hit("admin.mid-create")
	if err := ledger.OfSales(ctx, tx, at, ledger.Row{Of: id, Kind: ledger.Allot, Ref: string(ledger.Create), Change: ledger.Units{Available: n.Units}}); err != nil {
		return Change{}, err
	}
	after, err := Get(ctx, tx, id)
	return Change{After: after, SKU: shared}, err
}

// takeUnits allots the sale's units from its SKU, or makes one for it, and fills in what the SKU says.
func (n *New) takeUnits(ctx context.Context, tx *sql.Tx, at time.Time) (err error) {
	if n.SKU == 0 {
		n.SKU, err = insert(ctx, tx, `INSERT INTO skus (title, price, currency, own, total, available, allotted, created_at) VALUES (?, ?, ?, TRUE, ?, 0, ?, ?)`,
			n.Title, n.Price, n.Currency, n.Units, n.Units, at)
		if err != nil {
			return fmt.Errorf("insert sku: %w", err)
		}
		return nil
	}
	k, err := lockSKU(ctx, tx, n.SKU)
	if err != nil {
		return err
	}
	if n.Title == "" {
		n.Title = k.Title
	}
	if !n.HasPrice {
		n.Price = k.Price
	}
	if n.Currency == "" {
		n.Currency = k.Currency
	}
	return k.allot(ctx, tx, at, n.Units)
}

// insert runs an INSERT and returns the id of its row.
func insert(ctx context.Context, tx *sql.Tx, query string, args ...any) (int64, error) {
	r, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}
