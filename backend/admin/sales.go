package admin

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// readSale reads a sale as operators see it.
func (a *Admin) readSale(ctx context.Context, id int64) (adminapi.Sale, error) {
	r, err := sale.Get(ctx, a.DB, id)
	if err != nil {
		return adminapi.Sale{}, err
	}
	list, err := a.Changes.Sales(ctx, a.DB, r)
	if err != nil {
		return adminapi.Sale{}, err
	}
	return list[0], nil
}

func (a *Admin) getSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	s, err := a.readSale(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: s}, nil
}

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
		list, err = a.Changes.Sales(r.Context(), a.DB, records...)
	}
	slices.Reverse(list)
	return list, next, err
}

func (a *Admin) createSale(r *request) (*answer, error) {
	var in adminapi.NewSale
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	kind, limit, pay := string(wire.Goods), int64(1), int64(payWithin)
	n := sale.New{HasPrice: in.Price != nil}
	if err := first(
		between("sku_id", in.SKU, 1, 1<<63-1, &n.SKU),
		oneOf("kind", in.Kind, &kind, string(wire.Goods), string(wire.Coupon)),
		text("title", in.Title, 1, maxTitle, &n.Title),
		between("price", in.Price, 0, maxPrice, &n.Price),
		currency("currency", in.Currency, &n.Currency),
		a.picture(in.Picture, &n.Picture),
		needed("stock", in.Stock), between("stock", in.Stock, 1, sale.MaxUnits, &n.Units),
		needed("starts_at", in.StartsAt), moment("starts_at", in.StartsAt, &n.StartsAt),
		needed("ends_at", in.EndsAt), moment("ends_at", in.EndsAt, &n.EndsAt),
		between("per_user_limit", in.PerUserLimit, 1, maxLimit, &limit),
		between("pay_within_s", in.PayWithin, 1, maxPayWithin, &pay),
	); err != nil {
		return nil, err
	}
	n.Kind, n.PerUserLimit, n.PayWithin = wire.SaleKind(kind), int(limit), time.Duration(pay)*time.Second
	if err := sale.Window("starts_at", n.StartsAt, "ends_at", n.EndsAt); err != nil {
		return nil, asSent(err, "ends_at", in.EndsAt)
	}
	if in.Tranches != nil {
		list, err := tranches(*in.Tranches)
		if err == nil {
			n.Tranches, err = sale.Schedule(list, n.Units, n.StartsAt, n.EndsAt)
		}
		for i, t := range *in.Tranches {
			err = asSent(err, fmt.Sprintf("tranches/%d/at", i), t.At)
		}
		if err != nil {
			return nil, err
		}
	}
	if n.Kind == wire.Coupon {
		if err := r.mayCoupons(); err != nil {
			return nil, err
		}
		n.Guard = order.GuardConditional
	}
	return a.create(r, "sale.create", n)
}

// create makes a sale. What no SKU says must be asked for.
func (a *Admin) create(r *request, action string, n sale.New) (*answer, error) {
	if n.SKU == 0 {
		coupon := n.Kind == wire.Coupon
		if n.Currency == "" && coupon {
			n.Currency = noCurrency
		}
		switch {
		case n.Title == "":
			return nil, missing("title")
		case !n.HasPrice && !coupon:
			return nil, missing("price")
		case n.Currency == "":
			return nil, missing("currency")
		}
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		c, err := sale.Create(ctx, tx, a.Changes.Now(), n)
		if err != nil {
			return change.Change{}, inField("stock", err)
		}
		return a.Changes.OfSale(ctx, tx, action, c)
	})
}

// changeSale changes a sale by f, which gets it locked.
func (a *Admin) changeSale(r *request, id int64, action string, f func(ctx context.Context, tx *sql.Tx, at time.Time, before sale.Record) (sale.Change, error)) (*answer, error) {
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		before, err := sale.Lock(ctx, tx, id)
		if err != nil {
			return change.Change{}, err
		}
		c, err := f(ctx, tx, a.Changes.Now(), before)
		if err != nil {
			return change.Change{}, err
		}
		return a.Changes.OfSale(ctx, tx, action, c)
	})
}

// patchSale changes title, window, limit and time to pay, and before the start also the price; see sale.Sale.Allows. Its SKU,
// kind, currency and tranches stay for good; stock, pause and close have paths of their own. A closed sale never changes again.
func (a *Admin) patchSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	var in adminapi.SalePatch
	path := "POST /admin/v1/sales/" + strconv.FormatInt(id, 10)
	if err := first(err,
		r.fixed("sku_id", "it stays as it was made; make another sale"),
		r.fixed("kind", "it stays as it was made; make another sale"),
		r.fixed("currency", "it stays as it was made; make another sale"),
		r.fixed("tranches", "they stay as they were made; make another sale, or end this one with "+path+"/close"),
		r.fixed("stock", path+"/restock adds units"),
		r.fixed("paused", path+"/pause and /resume do that"),
		r.decode(&in),
	); err != nil {
		return nil, err
	}
	return a.changeSale(r, id, "sale.update", func(ctx context.Context, tx *sql.Tx, at time.Time, before sale.Record) (sale.Change, error) {
		next := before
		var may error
		if before.Kind == wire.Coupon {
			may = r.mayCoupons()
		}
		err := first(may, r.match(before.Version, true), before.Open(), patch(in, &next), a.picture(in.Picture, &next.Picture))
		if err == nil {
			err = asSent(asSent(before.Allows(&next.Sale, a.Clock.Now()), "starts_at", in.StartsAt), "ends_at", in.EndsAt)
		}
		if err != nil {
			return sale.Change{}, err
		}
		return sale.Update(ctx, tx, at, before, next)
	})
}

// patch makes s what the members say; absent ones stay.
func patch(in adminapi.SalePatch, s *sale.Record) error {
	limit, pay := int64(s.PerUserLimit), int64(s.PayWithin/time.Second)
	err := first(
		text("title", in.Title, 1, maxTitle, &s.Title),
		between("price", in.Price, 0, maxPrice, &s.Price),
		moment("starts_at", in.StartsAt, &s.StartsAt),
		moment("ends_at", in.EndsAt, &s.EndsAt),
		between("per_user_limit", in.PerUserLimit, 1, maxLimit, &limit),
		between("pay_within_s", in.PayWithin, 1, maxPayWithin, &pay),
	)
	s.PerUserLimit, s.PayWithin = int(limit), time.Duration(pay)*time.Second
	return err
}

func (a *Admin) pauseSale(r *request) (*answer, error) { return a.pause(r, "sale.pause", true) }

func (a *Admin) resumeSale(r *request) (*answer, error) { return a.pause(r, "sale.resume", false) }

func (a *Admin) pause(r *request, action string, paused bool) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	return a.changeSale(r, id, action, func(ctx context.Context, tx *sql.Tx, at time.Time, before sale.Record) (sale.Change, error) {
		return sale.Pause(ctx, tx, at, before, paused)
	})
}

func (a *Admin) closeSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	return a.changeSale(r, id, "sale.close", sale.Close)
}

func (a *Admin) restockSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	units, err2 := r.quantity()
	if err := first(err, err2); err != nil {
		return nil, err
	}
	return a.changeSale(r, id, "sale.restock", func(ctx context.Context, tx *sql.Tx, at time.Time, before sale.Record) (sale.Change, error) {
		c, err := sale.Restock(ctx, tx, at, before, units)
		return c, inField("quantity", err)
	})
}

// archiveSale takes a sale that is over out of Redis, see closing.Sales.Archive.
func (a *Admin) archiveSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	archive, err := a.Closing.Archive(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return a.change(r, archive)
}
