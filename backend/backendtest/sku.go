package backendtest

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/redis"
)

// SKU writes a SKU that carts can hold into MySQL, as creating it does, and returns its id.
func SKU(t testing.TB, db *sql.DB, units, price int64, currency string) int64 {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	sku := insert(t, db, `INSERT INTO skus (title, price, currency, own, total, available, created_at) VALUES ('test sku', ?, ?, FALSE, ?, ?, ?)`, price, currency, units, units, now)
	insert(t, db, `INSERT INTO sku_ledger (sku_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
		VALUES (?, 'create', 'create', 0, ?, ?, 0, 0, 0, ?)`, sku, units, units, now)
	return sku
}

// Units is what a SKU has, for carts.
type Units struct{ Available, Locked, Sold int64 }

// SKUBalanced returns what MySQL has of a SKU, after holding it against its orders, its ledger, and, where it is loaded, Redis:
// everything that is in flight must be over.
func SKUBalanced(t testing.TB, db *sql.DB, redis *redis.Client, sku int64) Units {
	t.Helper()
	u, err := skuBalance(t, db, redis, sku)
	if err != nil {
		t.Errorf("SKU %d does not balance: %v", sku, err)
	}
	return u
}

func skuBalance(t testing.TB, db *sql.DB, redis *redis.Client, sku int64) (u Units, err error) {
	t.Helper()
	var total, allotted int64
	if err := db.QueryRowContext(t.Context(), `SELECT total, available, allotted, locked, sold FROM skus WHERE id = ?`, sku).
		Scan(&total, &u.Available, &allotted, &u.Locked, &u.Sold); err != nil {
		return u, err
	}
	if u.Available < 0 || allotted < 0 || u.Locked < 0 || u.Sold < 0 || u.Available+allotted+u.Locked+u.Sold != total {
		return u, fmt.Errorf("available %d + allotted %d + locked %d + sold %d is not total %d", u.Available, allotted, u.Locked, u.Sold, total)
	}
	// The ledger leads from nothing to the row in an unbroken chain.
	rows, err := db.QueryContext(t.Context(), `SELECT id, available_before, available_change, available_after, locked_before, locked_change, locked_after
		FROM sku_ledger WHERE sku_id = ? ORDER BY id`, sku)
	if err != nil {
		return u, err
	}
	defer rows.Close()
	var a, l int64
	for rows.Next() {
		var id, ab, ac, aa, lb, lc, la int64
		if err := rows.Scan(&id, &ab, &ac, &aa, &lb, &lc, &la); err != nil {
			return u, err
		}
		if ab != a || ab+ac != aa || lb != l || lb+lc != la {
			return u, fmt.Errorf("ledger row %d: available %d%+d=%d after %d, locked %d%+d=%d after %d", id, ab, ac, aa, a, lb, lc, la, l)
		}
		a, l = aa, la
	}
	if err := rows.Err(); err != nil {
		return u, err
	}
	if a != u.Available || l != u.Locked {
		return u, fmt.Errorf("the ledger ends at available %d, locked %d; the row has %+v", a, l, u)
	}
	held := map[string]int64{} // of unpaid orders
	var unpaid, paid int64
	lines, err := db.QueryContext(t.Context(), `SELECT l.order_id, l.quantity, o.status, l.held FROM cart_lines l JOIN orders o ON o.id = l.order_id WHERE l.sku_id = ?`, sku)
	if err != nil {
		return u, err
	}
	defer lines.Close()
	for lines.Next() {
		var id, status string
		var n int64
		var is bool
		if err := lines.Scan(&id, &n, &status, &is); err != nil {
			return u, err
		}
		if is != (status == "pending_payment") {
			return u, fmt.Errorf("order %s is %s, held of its line is %v", id, status, is)
		}
		switch status {
		case "pending_payment":
			held[id] = n
			unpaid += n
		case "paid":
			paid += n
		}
	}
	if err := lines.Err(); err != nil {
		return u, err
	}
	if unpaid != u.Locked || paid != u.Sold {
		return u, fmt.Errorf("orders have %d unpaid and %d paid units; the row has %+v", unpaid, paid, u)
	}
	return u, skuInRedis(t, redis, sku, u, held)
}

func skuInRedis(t testing.TB, c *redis.Client, sku int64, u Units, held map[string]int64) error {
	base := fmt.Sprintf("%s{sku:%d}:", c.Prefix(), sku)
	state, err := c.Do(t.Context(), c.B().Hgetall().Key(base+"state").Build()).AsStrMap()
	if err != nil || len(state) == 0 {
		return err
	}
	num := func(name string) int64 { n, _ := strconv.ParseInt(state[name], 10, 64); return n }
	if in := (Units{num("available"), num("locked"), num("sold")}); state["gate"] != "open" || in != u || in.Available+in.Locked+in.Sold != num("total") {
		return fmt.Errorf("Redis has %v, MySQL %+v", state, u)
	}
	orders, err := c.Do(t.Context(), c.B().Hgetall().Key(base+"orders").Build()).AsStrMap()
	if err != nil {
		return err
	}
	for id, value := range orders {
		units, _, _ := strings.Cut(value, " ")
		if n, _ := strconv.ParseInt(units, 10, 64); held[id] != n {
			return fmt.Errorf("order %s has %s units locked in Redis and %d in MySQL", id, units, held[id])
		}
	}
	if len(orders) != len(held) {
		return fmt.Errorf("%d orders have units locked in Redis, %d in MySQL", len(orders), len(held))
	}
	return nil
}
