package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/standby"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func noSale(id int64) error {
	return problem.New(problem.SaleNotFound, fmt.Sprintf("no sale %d: GET /admin/v1/sales lists them", id))
}

// readSale reads a sale with its stock.
func (a *Admin) readSale(ctx context.Context, q sale.Queryer, id int64) (adminapi.Sale, sale.Record, error) {
	r, err := sale.Get(ctx, q, id)
	return a.view(ctx, q, id, r, err)
}

// lockSale reads a sale that no other change can touch until the transaction ends.
func (a *Admin) lockSale(ctx context.Context, tx *sql.Tx, id int64) (adminapi.Sale, sale.Record, error) {
	r, err := sale.Lock(ctx, tx, id)
	return a.view(ctx, tx, id, r, err)
}

func (a *Admin) view(ctx context.Context, q sale.Queryer, id int64, r sale.Record, err error) (adminapi.Sale, sale.Record, error) {
	if errors.Is(err, sale.ErrNotFound) {
		err = noSale(id)
	}
	if err != nil {
		return adminapi.Sale{}, r, err
	}
	list, err := a.views(ctx, q, r)
	if err != nil {
		return adminapi.Sale{}, r, err
	}
	return list[0], r, nil
}

// views are the sales as operators see them.
func (a *Admin) views(ctx context.Context, q sale.Queryer, records ...sale.Record) ([]adminapi.Sale, error) {
	list := make([]adminapi.Sale, len(records))
	if len(records) == 0 {
		return list, nil
	}
	ids := make([]int64, len(records))
	for i, r := range records {
		ids[i] = r.ID
	}
	lines, err := standby.Lengths(ctx, q, ids)
	if err != nil {
		return nil, err
	}
	now := a.Clock.Now()
	for i, r := range records {
		list[i] = saleView(r, now)
		list[i].Standby = lines[r.ID]
	}
	return list, nil
}

func saleView(r sale.Record, now time.Time) adminapi.Sale {
	v := adminapi.Sale{
		ID: r.ID, SKU: r.SKU, Kind: r.Kind, Title: r.Title, Price: r.Price, Currency: r.Currency, Stock: r.Total,
		StartsAt: wire.At(r.StartsAt), EndsAt: wire.At(r.EndsAt), PerUserLimit: r.PerUserLimit, PayWithin: int64(r.PayWithin / time.Second),
		Tranches: []adminapi.Tranche{}, State: r.State(now), Paused: r.Paused, ClosedAt: timeOf(r.ClosedAt), ArchivedAt: timeOf(r.ArchivedAt),
		Total: r.Total, Available: r.Available, Locked: r.Locked, Sold: r.Sold, Version: r.Version, CreatedAt: wire.At(r.CreatedAt),
	}
	for _, t := range r.Tranches {
		v.Tranches = append(v.Tranches, adminapi.Tranche{At: wire.At(t.At), Quantity: t.Quantity})
	}
	if r.Kind == wire.Coupon {
		published := !r.Hidden
		v.Category, v.Published, v.Guard, v.ValidFrom, v.ValidUntil = &r.Category, &published, &r.Guard, &v.StartsAt, &v.EndsAt
	}
	return v
}

func timeOf(t *time.Time) *wire.Time {
	if t == nil {
		return nil
	}
	at := wire.At(*t)
	return &at
}

func saleName(id int64) string { return "sale " + strconv.FormatInt(id, 10) }

func (a *Admin) listSales(r *request) (*answer, error) {
	list, next, err := a.pageOfSales(r, false)
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: adminapi.Sales{Sales: list, Page: adminapi.Page{Next: next}}}, nil
}

// pageOfSales reads the sales below a cursor, newest first, at most so many; of coupon campaigns alone where it is asked.
func (a *Admin) pageOfSales(r *request, coupons bool) (list []adminapi.Sale, next string, err error) {
	below, limit, err := r.page(maxPage)
	if err != nil {
		return nil, "", err
	}
	ids, err := sale.Newest(r.Context(), a.DB, coupons, below, limit+1)
	if err != nil {
		return nil, "", err
	}
	if int64(len(ids)) > limit {
		ids = ids[:limit]
		next = strconv.FormatInt(ids[limit-1], 10)
	}
	records, err := sale.Records(r.Context(), a.DB, ids...)
	if err == nil {
		list, err = a.views(r.Context(), a.DB, records...)
	}
	slices.Reverse(list)
	return list, next, err
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
