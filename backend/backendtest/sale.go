package backendtest

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// SaleOptions describe a sale; what is left zero has the default that stands beside it.
type SaleOptions struct {
	Kind      wire.SaleKind // goods
	Stock     int64         // 10
	Limit     int           // 1
	Guard     string        // of the stock row: ""
	Price     int64         // 100
	PayWithin time.Duration // 15 minutes
	StartsAt  time.Time     // an hour ago
	EndsAt    time.Time     // in an hour
	Tranches  []Tranche     // one: all of the stock at StartsAt
}

// Tranche is a part of the stock and when it goes on sale.
type Tranche struct {
	At       time.Time
	Quantity int64
}

// Sale writes a sale with a SKU of its own into MySQL, as creating it does, and returns its id. It is not in Redis: see
// Load.
func Sale(t testing.TB, db *sql.DB, o SaleOptions) int64 {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	o.Kind = cmp.Or(o.Kind, wire.Goods)
	o.Stock = cmp.Or(o.Stock, 10)
	o.Limit = cmp.Or(o.Limit, 1)
	o.Price = cmp.Or(o.Price, 100)
	o.PayWithin = cmp.Or(o.PayWithin, 15*time.Minute)
	if o.StartsAt.IsZero() {
		o.StartsAt = now.Add(-time.Hour)
	}
	if o.EndsAt.IsZero() {
		o.EndsAt = now.Add(time.Hour)
	}
	if len(o.Tranches) == 0 {
		o.Tranches = []Tranche{{o.StartsAt, o.Stock}}
	}
	sku := insert(t, db, `INSERT INTO skus (title, price, currency, own, total, available, allotted, created_at) VALUES (?, ?, 'EUR', TRUE, ?, 0, ?, ?)`,
		"test sku", o.Price, o.Stock, o.Stock, now)
	sale := insert(t, db, `INSERT INTO sales (sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, stock_guard, created_at)
		VALUES (?, ?, 'test sale', ?, 'EUR', ?, ?, ?, ?, ?, ?)`,
		sku, string(o.Kind), o.Price, o.StartsAt, o.EndsAt, o.Limit, int64(o.PayWithin/time.Second), o.Guard, now)
	for _, tr := range o.Tranches {
		insert(t, db, `INSERT INTO tranches (sale_id, at, quantity) VALUES (?, ?, ?)`, sale, tr.At, tr.Quantity)
	}
	insert(t, db, `INSERT INTO sale_stock (sale_id, total, available) VALUES (?, ?, ?)`, sale, o.Stock, o.Stock)
	insert(t, db, `INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
		VALUES (?, 'allot', 'create', 0, ?, ?, 0, 0, 0, ?)`, sale, o.Stock, o.Stock, now)
	return sale
}

func insert(t testing.TB, db *sql.DB, statement string, args ...any) int64 {
	t.Helper()
	r, err := db.ExecContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	id, err := r.LastInsertId()
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return id
}

// Load loads a sale that has no orders yet into Redis under epoch 1 and opens its gate, for tests that are not about
// reconciling. All of the stock is released.
func Load(t testing.TB, db *sql.DB, redis *reserve.Store, sale int64) {
	t.Helper()
	var l reserve.Loaded
	var starts, ends time.Time
	err := db.QueryRowContext(t.Context(), `SELECT s.starts_at, s.ends_at, s.per_user_limit, s.version, k.available, k.total
		FROM sales s JOIN sale_stock k ON k.sale_id = s.id WHERE s.id = ?`, sale).Scan(&starts, &ends, &l.Limit, &l.Version, &l.Stock, &l.Total)
	if err != nil {
		t.Fatalf("sale %d: %v", sale, err)
	}
	l.Epoch, l.Starts, l.Ends = 1, starts.UnixMilli(), ends.UnixMilli()
	insert(t, db, `UPDATE sale_stock SET epoch = 1, token = 1 WHERE sale_id = ?`, sale)
	if _, err := redis.Shut(t.Context(), sale, 1); err != nil {
		t.Fatal(err)
	}
	if err := redis.Load(t.Context(), sale, 1, l); err != nil {
		t.Fatal(err)
	}
	if err := redis.Unlock(t.Context(), sale, 1); err != nil {
		t.Fatal(err)
	}
}

// Balanced fails the test unless MySQL's equations hold for a sale: the stock row adds up, the ledger leads from nothing
// to it in an unbroken chain, and orders, slots and claims say the same.
func Balanced(t testing.TB, db *sql.DB, sale int64) {
	t.Helper()
	if err := Balance(t.Context(), db, sale); err != nil {
		t.Errorf("sale %d does not balance: %v", sale, err)
	}
}

// Balance is Balanced as an error.
func Balance(ctx context.Context, db *sql.DB, sale int64) error {
	var total, available, locked, sold int64
	if err := db.QueryRowContext(ctx, `SELECT total, available, locked, sold FROM sale_stock WHERE sale_id = ?`, sale).
		Scan(&total, &available, &locked, &sold); err != nil {
		return err
	}
	if available < 0 || locked < 0 || sold < 0 || available+locked+sold != total {
		return fmt.Errorf("available %d + locked %d + sold %d is not total %d", available, locked, sold, total)
	}
	rows, err := db.QueryContext(ctx, `SELECT id, available_before, available_change, available_after, locked_before, locked_change, locked_after
		FROM ledger WHERE sale_id = ? ORDER BY id`, sale)
	if err != nil {
		return err
	}
	defer rows.Close()
	var a, l int64
	for rows.Next() {
		var id, ab, ac, aa, lb, lc, la int64
		if err := rows.Scan(&id, &ab, &ac, &aa, &lb, &lc, &la); err != nil {
			return err
		}
		if ab != a || ab+ac != aa || lb != l || lb+lc != la {
			return fmt.Errorf("ledger row %d: available %d%+d=%d after %d, locked %d%+d=%d after %d", id, ab, ac, aa, a, lb, lc, la, l)
		}
		a, l = aa, la
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if a != available || l != locked {
		return fmt.Errorf("the ledger ends at available %d, locked %d; the stock row has %d, %d", a, l, available, locked)
	}
	var pending, done, slots, wrong int64
	if err := db.QueryRowContext(ctx, `SELECT
		COALESCE(SUM(CASE WHEN status = 'pending_payment' THEN quantity ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN status IN ('paid', 'issued') THEN quantity ELSE 0 END), 0)
		FROM orders WHERE sale_id = ?`, sale).Scan(&pending, &done); err != nil {
		return err
	}
	if pending != locked || done != sold {
		return fmt.Errorf("orders hold %d unpaid and %d paid or issued units; the stock row has locked %d, sold %d", pending, done, locked, sold)
	}
	if err := db.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(CASE WHEN o.status IN ('pending_payment', 'paid', 'issued') THEN 0 ELSE 1 END), 0)
		FROM order_slots s JOIN orders o ON o.id = s.order_id WHERE s.sale_id = ?`, sale).Scan(&slots, &wrong); err != nil {
		return err
	}
	if slots != pending+done || wrong != 0 {
		return fmt.Errorf("%d slots are taken, %d of them by orders that ended; live orders hold %d units", slots, wrong, pending+done)
	}
	var issued, claims, strange int64
	if err := db.QueryRowContext(ctx, `SELECT COALESCE(SUM(quantity), 0) FROM orders WHERE sale_id = ? AND status = 'issued'`, sale).Scan(&issued); err != nil {
		return err
	}
	if err := db.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(CASE WHEN s.uid = c.uid THEN 0 ELSE 1 END), 0)
		FROM coupon_claims c LEFT JOIN order_slots s ON s.order_id = c.order_id AND c.id = CONCAT(s.order_id, '.', s.slot) WHERE c.sale_id = ?`, sale).Scan(&claims, &strange); err != nil {
		return err
	}
	if claims != issued || strange != 0 {
		return fmt.Errorf("%d units are issued, there are %d claims, %d of them for no slot of their owner's", issued, claims, strange)
	}
	return nil
}

// RedisBalanced fails the test unless stock and reservations add up to the total of a sale in Redis, and, when every
// order is settled and every release done, the reservations are exactly MySQL's live orders.
func RedisBalanced(t testing.TB, db *sql.DB, redis *reserve.Store, sale int64) {
	t.Helper()
	snap, err := redis.Snapshot(t.Context(), sale)
	if err != nil {
		t.Fatal(err)
	}
	held, units := map[string]int{}, int64(0)
	for _, h := range snap.Orders {
		held[h.ID] = h.Quantity
		units += int64(h.Quantity)
	}
	if snap.State.Stock+units != snap.State.Total {
		t.Errorf("sale %d in Redis: stock %d + reserved %d is not total %d", sale, snap.State.Stock, units, snap.State.Total)
	}
	rows, err := db.QueryContext(t.Context(), `SELECT id FROM orders WHERE sale_id = ? AND status IN ('pending_payment', 'paid', 'issued')`, sale)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	live := 0
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		if _, ok := held[id]; !ok {
			t.Errorf("sale %d: order %s is live in MySQL and not reserved in Redis", sale, id)
		}
		live++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if live != len(held) {
		t.Errorf("sale %d: %d reservations in Redis, %d live orders in MySQL", sale, len(held), live)
	}
}
