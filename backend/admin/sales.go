package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/standby"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// queryer is a *sql.DB or a *sql.Tx.
type queryer interface {
	catalog.Queryer
	rower
}

func noSale(id int64) error {
	return problem.New(problem.SaleNotFound, fmt.Sprintf("no sale %d: GET /admin/v1/sales lists them", id))
}

// readSale reads a sale with its stock.
func (a *Admin) readSale(ctx context.Context, q queryer, id int64) (adminapi.Sale, catalog.Sale, error) {
	list, err := a.readSales(ctx, q, []int64{id})
	if err != nil {
		return adminapi.Sale{}, catalog.Sale{}, err
	}
	if len(list) == 0 {
		return adminapi.Sale{}, catalog.Sale{}, noSale(id)
	}
	return list[0].Sale, list[0].sale, nil
}

type saleRow struct {
	adminapi.Sale
	sale catalog.Sale
}

// readSales reads sales with these ids, ascending.
func (a *Admin) readSales(ctx context.Context, q queryer, ids []int64) ([]saleRow, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	sales, err := catalog.Read(ctx, q, ids...)
	if err != nil {
		return nil, err
	}
	now := a.Clock.Now()
	rows := make([]saleRow, len(sales))
	index := map[int64]*saleRow{}
	for i, s := range sales {
		rows[i] = saleRow{sale: s, Sale: adminapi.Sale{
			ID: s.ID, SKU: s.SKU, Kind: s.Kind, Title: s.Title, Price: s.Price, Currency: s.Currency,
			StartsAt: wire.At(s.StartsAt), EndsAt: wire.At(s.EndsAt), PerUserLimit: s.PerUserLimit, PayWithin: int64(s.PayWithin / time.Second),
			Tranches: []adminapi.Tranche{}, Paused: s.Paused, ClosedAt: timeOf(s.ClosedAt), ArchivedAt: timeOf(s.ArchivedAt), Version: s.Version,
		}}
		for _, t := range s.Tranches {
			rows[i].Tranches = append(rows[i].Tranches, adminapi.Tranche{At: wire.At(t.At), Quantity: t.Quantity})
		}
		index[s.ID] = &rows[i]
	}
	where, args := oneOfIDs(ids)
	more, err := q.QueryContext(ctx, `SELECT s.id, s.created_at, s.category, s.stock_guard, k.total, k.available, k.locked, k.sold
		FROM sales s JOIN sale_stock k ON k.sale_id = s.id WHERE s.id IN `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("sales: %w", err)
	}
	defer more.Close()
	for more.Next() {
		var id, total, available, locked, sold int64
		var created time.Time
		var category, guard string
		if err := more.Scan(&id, &created, &category, &guard, &total, &available, &locked, &sold); err != nil {
			return nil, fmt.Errorf("sales: %w", err)
		}
		r, ok := index[id]
		if !ok {
			continue
		}
		r.CreatedAt, r.Stock, r.Total, r.Available, r.Locked, r.Sold = wire.At(created), total, total, available, locked, sold
		if r.Kind == wire.Coupon {
			published := !r.sale.Hidden
			r.Category, r.Published, r.Guard, r.ValidFrom, r.ValidUntil = &category, &published, &guard, &r.StartsAt, &r.EndsAt
		}
		r.State = state(r.sale, available, now)
	}
	if err := errors.Join(more.Err(), more.Close()); err != nil {
		return nil, fmt.Errorf("sales: %w", err)
	}
	lines, err := standby.Lengths(ctx, q, ids)
	if err != nil {
		return nil, err
	}
	for id, n := range lines {
		index[id].Standby = n
	}
	return rows, nil
}

// oneOfIDs is "(?,?)" and its arguments.
func oneOfIDs(ids []int64) (string, []any) {
	marks, args := []byte("("), make([]any, len(ids))
	for i, id := range ids {
		marks, args[i] = append(marks, "?,"...), id
	}
	marks[len(marks)-1] = ')'
	return string(marks), args
}

func timeOf(t *time.Time) *wire.Time {
	if t == nil {
		return nil
	}
	at := wire.At(*t)
	return &at
}

// state is what the public is told, as far as MySQL knows it.
func state(s catalog.Sale, available int64, now time.Time) wire.SaleState {
	for _, t := range s.Definition().Later {
		if t.At > now.UnixMilli() {
			available -= t.Units
		}
	}
	switch {
	case s.ClosedAt != nil || !now.Before(s.EndsAt):
		return wire.Ended
	case s.Paused || s.Hidden:
		return wire.Paused
	case now.Before(s.StartsAt):
		return wire.Upcoming
	case available <= 0:
		return wire.SoldOut
	default:
		return wire.Open
	}
}

func saleName(id int64) string { return "sale " + strconv.FormatInt(id, 10) }

func (a *Admin) listSales(r *request) (*answer, error) {
	list, next, err := a.pageOfSales(r, `SELECT id FROM sales WHERE id < ? ORDER BY id DESC LIMIT ?`)
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: adminapi.Sales{Sales: list, Page: adminapi.Page{Next: next}}}, nil
}

// pageOfSales reads the sales whose ids query selects, newest first: those below a cursor, at most so many.
func (a *Admin) pageOfSales(r *request, query string) (list []adminapi.Sale, next string, err error) {
	below, limit, err := r.page(maxPage)
	if err != nil {
		return nil, "", err
	}
	ids, err := newest(r.Context(), a.DB, query, below, limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("sales: %w", err)
	}
	if int64(len(ids)) > limit {
		ids = ids[:limit]
		next = strconv.FormatInt(ids[limit-1], 10)
	}
	rows, err := a.readSales(r.Context(), a.DB, ids)
	if err != nil {
		return nil, "", err
	}
	list = make([]adminapi.Sale, 0, len(rows))
	for i := len(rows) - 1; i >= 0; i-- {
		list = append(list, rows[i].Sale)
	}
	return list, next, nil
}

func newest(ctx context.Context, q catalog.Queryer, query string, args ...any) ([]int64, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

func (a *Admin) getSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	s, _, err := a.readSale(r.Context(), a.DB, id)
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: s}, nil
}

// lockSale reads a sale that no other change can touch until the transaction ends.
func (a *Admin) lockSale(ctx context.Context, tx *sql.Tx, id int64) (adminapi.Sale, catalog.Sale, error) {
	var locked int64
	err := tx.QueryRowContext(ctx, `SELECT id FROM sales WHERE id = ? FOR UPDATE`, id).Scan(&locked)
	if errors.Is(err, sql.ErrNoRows) {
		return adminapi.Sale{}, catalog.Sale{}, noSale(id)
	}
	if err != nil {
		return adminapi.Sale{}, catalog.Sale{}, fmt.Errorf("lock sale %d: %w", id, err)
	}
	return a.readSale(ctx, tx, id)
}
