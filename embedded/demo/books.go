package demo

import (
	"context"
	"fmt"
	"net/http"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/store"
	"floodgate.internal/embedded"
	"floodgate.internal/shared/wire"
)

// books is what MySQL says of the sale, read past the backend.
type books struct {
	orders   map[string]wire.OrderStatus
	live     int64 // units
	statuses map[wire.OrderStatus]int
	total    int64
	sold     int64
}

func readBooks(ctx context.Context, s *embedded.System, sale int64) (books, error) {
	b := books{orders: map[string]wire.OrderStatus{}, statuses: map[wire.OrderStatus]int{}}
	db, err := store.Open(s.MySQLDSN(), 1)
	if err != nil {
		return b, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, "SELECT id, quantity, status FROM orders WHERE sale_id=?", sale)
	if err != nil {
		return b, fmt.Errorf("read the orders of sale %d: %w", sale, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var units int64
		var status wire.OrderStatus
		if err := rows.Scan(&id, &units, &status); err != nil {
			return b, fmt.Errorf("read the orders of sale %d: %w", sale, err)
		}
		b.orders[id] = status
		b.statuses[status]++
		if status.Live() {
			b.live += units
		}
	}
	if err := rows.Err(); err != nil {
		return b, fmt.Errorf("read the orders of sale %d: %w", sale, err)
	}
	err = db.QueryRowContext(ctx, "SELECT total, sold FROM sale_stock WHERE sale_id=?", sale).Scan(&b.total, &b.sold)
	if err != nil {
		return b, fmt.Errorf("read the stock of sale %d: %w", sale, err)
	}
	return b, nil
}

// lost is how many of the accepted orders have no row.
func (b books) lost(accepted map[string]bool) (n int) {
	for id := range accepted {
		if _, ok := b.orders[id]; !ok {
			n++
		}
	}
	return n
}

// oversold is how many units live orders hold beyond the stock.
func (b books) oversold() int64 { return max(0, b.live-b.total) }

func readAudit(ctx context.Context, s *embedded.System, sale int64) (a audit.Result, err error) {
	err = s.Admin().Call(ctx, http.MethodGet, fmt.Sprintf("%s/sales/%d/audit", adminapi.Prefix, sale), "", nil, &a)
	return a, err
}
