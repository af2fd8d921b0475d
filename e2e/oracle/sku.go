package oracle

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Units is what a SKU has.
type Units struct{ Available, Allotted, Locked, Sold int64 }

// SKU holds a SKU against its equations: in MySQL, of its ledger, of the orders' lines, and in Redis, which may have nothing of it.
func (b Books) SKU(ctx context.Context, sku int64) (u Units, err error) {
	var total, ledger, lockedLedger, unpaid, paid, badOrders int64
	if err := b.DB.QueryRowContext(ctx, `SELECT total, available, allotted, locked, sold FROM skus WHERE id = ?`, sku).
		Scan(&total, &u.Available, &u.Allotted, &u.Locked, &u.Sold); err != nil {
		return u, err
	}
	if min(u.Available, u.Allotted, u.Locked, u.Sold) < 0 || u.Available+u.Allotted+u.Locked+u.Sold != total {
		return u, fmt.Errorf("%+v is not total %d", u, total)
	}
	if err := b.DB.QueryRowContext(ctx, `SELECT SUM(available_change), SUM(locked_change) FROM sku_ledger WHERE sku_id = ?`, sku).Scan(&ledger, &lockedLedger); err != nil {
		return u, err
	}
	if err := b.DB.QueryRowContext(ctx, `SELECT COALESCE(SUM(CASE WHEN o.status = 'pending_payment' THEN l.quantity ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN o.status = 'paid' THEN l.quantity ELSE 0 END), 0) FROM cart_lines l JOIN orders o ON o.id = l.order_id WHERE l.sku_id = ?`, sku).Scan(&unpaid, &paid); err != nil {
		return u, err
	}
	if ledger != u.Available || lockedLedger != u.Locked || unpaid != u.Locked || paid != u.Sold {
		return u, fmt.Errorf("%+v; the ledger adds up to %d and %d, orders have %d unpaid and %d paid", u, ledger, lockedLedger, unpaid, paid)
	}
	if err := b.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM orders o JOIN (SELECT order_id, SUM(quantity) n, SUM(quantity * price) a FROM cart_lines GROUP BY order_id) l
		ON l.order_id = o.id WHERE o.quantity <> l.n OR o.amount <> l.a OR o.sale_id <> 0`).Scan(&badOrders); err != nil || badOrders > 0 {
		return u, fmt.Errorf("%d orders are not the sum of their lines: %w", badOrders, err)
	}
	base := fmt.Sprintf("%s{sku:%d}:", b.Prefix, sku)
	state, err := b.Redis.Do(ctx, b.Redis.B().Hgetall().Key(base+"state").Build()).AsStrMap()
	if err != nil || len(state) == 0 { // nobody has asked for it since it was forgotten
		return u, err
	}
	for name, want := range map[string]int64{"available": u.Available, "locked": u.Locked, "sold": u.Sold, "total": u.Available + u.Locked + u.Sold} {
		if state[name] != strconv.FormatInt(want, 10) {
			return u, fmt.Errorf("redis has %v, mysql %+v", state, u)
		}
	}
	orders, err := b.Redis.Do(ctx, b.Redis.B().Hgetall().Key(base+"orders").Build()).AsStrMap()
	if err != nil {
		return u, err
	}
	var held int64
	for _, value := range orders {
		units, _, _ := strings.Cut(value, " ")
		n, err := strconv.ParseInt(units, 10, 64)
		if err != nil {
			return u, err
		}
		held += n
	}
	if held != u.Locked {
		return u, fmt.Errorf("orders have %d units locked in redis, %d in mysql", held, u.Locked)
	}
	return u, nil
}
