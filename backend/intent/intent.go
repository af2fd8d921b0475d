// Package intent is what was decided in MySQL and is still to be done in Redis.
//
// An intent is a row that is written in the transaction of the decision: of the table intents for a sale, of sku_intents for a
// SKU. A Runner carries it out in Redis, at once after the COMMIT or later by the timer, and marks it done. Each intent has its
// effect once, however many processes carry it out, and wherever they end: Redis knows what it has applied.
package intent

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"time"

	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
)

// Kinds of intent. The locks of carts' orders end by lua.ToSold and lua.ToBack.
const (
	release = "release" // the units of an order that ended
	adjust  = "adjust"  // the stock of a sale or a SKU, by Units
	define  = "define"  // the sale, as MySQL has it by now
	archive = "archive" // the sale's keys leave Redis
)

// Intent is a row that is not done yet.
type Intent struct {
	ID    int64
	Kind  string
	Of    int64  // the sale, or the SKU
	Units int64  // of an adjust
	Order string // of a release, or of the end of a lock
	Lock  string // of the end of a lock
}

// Ref is how the ledger's row of an adjust names it.
func (i Intent) Ref() string { return "intent:" + strconv.FormatInt(i.ID, 10) }

// Order is an order of a sale.
type Order struct {
	ID   string
	Sale int64
}

// table is where the intents of sales, or those of SKUs, are.
type table struct {
	name string
	what string // what an intent is of
	of   string // the column that names it
	lock string // the column of locks
	do   func(r *Runner, ctx context.Context, i Intent) error
}

var (
	ofSales = &table{"intents", "sale", "sale_id", "''", (*Runner).ofSale}
	ofSKUs  = &table{"sku_intents", "SKU", "sku_id", "lock_id", (*Runner).ofSKU}
)

// Writer is a *sql.Tx, or a *sql.DB where an intent is all there is to write.
type Writer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Adjust writes that Redis is to change a sale's stock by units, after sale_stock was changed in the same transaction.
func Adjust(ctx context.Context, w Writer, at time.Time, sale, units int64) (Intent, error) {
	return ofSales.write(ctx, w, at, Intent{Kind: adjust, Of: sale, Units: units})
}

// AdjustSKU writes that Redis is to change a SKU's available units, in the transaction that has locked the SKU's row and changed
// it.
func AdjustSKU(ctx context.Context, w Writer, at time.Time, skuID, units int64) (Intent, error) {
	return ofSKUs.write(ctx, w, at, Intent{Kind: adjust, Of: skuID, Units: units})
}

// Define writes that Redis is to define a sale as MySQL has it.
func Define(ctx context.Context, w Writer, at time.Time, sale int64) (Intent, error) {
	return ofSales.write(ctx, w, at, Intent{Kind: define, Of: sale})
}

// Archive writes that the keys of an archived sale are to leave Redis.
func Archive(ctx context.Context, w Writer, at time.Time, sale int64) (Intent, error) {
	return ofSales.write(ctx, w, at, Intent{Kind: archive, Of: sale})
}

func (t *table) write(ctx context.Context, w Writer, at time.Time, i Intent) (Intent, error) {
	r, err := w.ExecContext(ctx, `INSERT INTO `+t.name+` (`+t.of+`, kind, quantity, created_at) VALUES (?, ?, ?, ?)`, i.Of, i.Kind, i.Units, at)
	if err == nil {
		i.ID, err = r.LastInsertId()
	}
	if err != nil {
		return Intent{}, fmt.Errorf("write the intent %s of %s %d: %w", i.Kind, t.what, i.Of, err)
	}
	return i, nil
}

// Release writes that Redis is to give the orders' units back, and returns the first intent's id: the others have higher ones.
func Release(ctx context.Context, w Writer, at time.Time, orders ...Order) (first int64, err error) {
	args := make([]any, 0, 4*len(orders))
	for _, o := range orders {
		args = append(args, o.Sale, release, o.ID, at)
	}
	r, err := w.ExecContext(ctx, `INSERT INTO intents (sale_id, kind, order_id, created_at) VALUES `+store.Tuples(len(orders), 4), args...)
	if err != nil {
		return 0, fmt.Errorf("write %d release intents: %w", len(orders), err)
	}
	return r.LastInsertId()
}

// EndLocks writes that Redis is to end the locks of carts' orders, which ended in the same transaction: their units are sold, or
// available again.
func EndLocks(ctx context.Context, w Writer, at time.Time, sold bool, holds []sku.Hold) error {
	to := lua.ToBack
	if sold {
		to = lua.ToSold
	}
	for part := range slices.Chunk(holds, 500) { // a statement of bounded size
		args := make([]any, 0, 5*len(part))
		for _, h := range part {
			args = append(args, h.SKU, to, h.Order, h.Lock, at)
		}
		if _, err := w.ExecContext(ctx, `INSERT INTO sku_intents (sku_id, kind, order_id, lock_id, created_at) VALUES `+store.Tuples(len(part), 5), args...); err != nil {
			return fmt.Errorf("write %d intents of SKUs: %w", len(part), err)
		}
	}
	return nil
}

// Done marks intents of sales as done, for a reconciler that loaded what they say.
func Done(ctx context.Context, w Writer, at time.Time, ids []int64) error {
	return ofSales.done(ctx, w, at, ids)
}

func (t *table) done(ctx context.Context, w Writer, at time.Time, ids []int64) error {
	_, err := w.ExecContext(ctx, `UPDATE `+t.name+` SET done_at = ? WHERE done_at IS NULL AND id IN (`+store.Marks(len(ids))+`)`, append([]any{at}, store.Anys(ids)...)...)
	if err != nil {
		return fmt.Errorf("mark %d %s done: %w", len(ids), t.name, err)
	}
	return nil
}

// Releasing returns those of the orders that an open intent is to release.
func Releasing(ctx context.Context, q store.Queryer, orders []string) ([]string, error) {
	list, err := ofSales.open(ctx, q, ` AND order_id IN (`+store.Marks(len(orders))+`)`, store.Anys(orders)...)
	ids := make([]string, len(list))
	for n, i := range list {
		ids[n] = i.Order
	}
	return ids, err
}

// open reads intents that are not done.
func (t *table) open(ctx context.Context, q store.Queryer, where string, args ...any) ([]Intent, error) {
	var list []Intent
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var i Intent
		err := rows.Scan(&i.ID, &i.Kind, &i.Of, &i.Units, &i.Order, &i.Lock)
		list = append(list, i)
		return err
	}, `SELECT id, kind, `+t.of+`, quantity, order_id, `+t.lock+` FROM `+t.name+` WHERE done_at IS NULL`+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t.name, err)
	}
	return list, nil
}
