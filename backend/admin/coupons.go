package admin

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/order"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// campaign is what operators decide of a coupon campaign beside its units.
type campaign struct {
	title, category string
	hidden          bool
	from, until     time.Time
	limit           int64
	guard           string
}

// applyCampaign makes c what the members say; absent ones stay. total is how many units the campaign has.
func applyCampaign(in adminapi.CouponPatch, c *campaign, total int64) error {
	if err := first(
		text("title", in.Title, 1, maxTitle, &c.title),
		text("category", in.Category, 0, maxCategory, &c.category),
		moment("valid_from", in.ValidFrom, &c.from),
		moment("valid_until", in.ValidUntil, &c.until),
		between("per_user_limit", in.PerUserLimit, 1, maxLimit, &c.limit),
		oneOf("guard", in.Guard, &c.guard, order.GuardConditional, order.GuardVersion),
	); err != nil {
		return err
	}
	if in.Published != nil {
		c.hidden = !*in.Published
	}
	if !c.until.After(c.from) && in.ValidUntil == nil {
		return problem.Invalid("valid_from", fmt.Sprintf("%q is not before valid_until %q: give an earlier time, or a later valid_until too",
			c.from.Format(wire.TimeFormat), c.until.Format(wire.TimeFormat)))
	}
	if err := after("valid_until", in.ValidUntil, c.until, "valid_from", c.from); err != nil {
		return err
	}
	if c.limit > total {
		return problem.Invalid("per_user_limit", fmt.Sprintf("%d is more than total, %d: one shopper cannot claim more than there are", c.limit, total))
	}
	return nil
}

// createCoupon makes a coupon campaign: a sale of kind coupon with a SKU of its own, for nothing. One that is not
// published is there for operators alone.
func (a *Admin) createCoupon(r *request) (*answer, error) {
	var in adminapi.NewCoupon
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	var total int64
	c := campaign{limit: 1, guard: order.GuardConditional}
	if err := first(
		needed("title", in.Title), needed("valid_from", in.ValidFrom), needed("valid_until", in.ValidUntil),
		needed("total", in.Total), between("total", in.Total, 1, maxUnits, &total),
	); err != nil {
		return nil, err
	}
	if err := applyCampaign(in.CouponPatch, &c, total); err != nil {
		return nil, err
	}
	return a.create(r, newSale{kind: string(wire.Coupon), hasPrice: true, currency: noCurrency, payWithin: payWithin, stock: total,
		title: c.title, category: c.category, hidden: c.hidden, starts: c.from, ends: c.until, limit: c.limit, guard: c.guard, action: "coupon.create"})
}

// patchCoupon changes a campaign; publishing it is one of the changes. If-Match is honoured where it is given.
//
// What shoppers were promised does not change under them: once the campaign has begun (or is about to), valid_from stays
// and per_user_limit may only be raised; and a coupon that was issued stays valid as long as it said then, whatever
// becomes of valid_until.
func (a *Admin) patchCoupon(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "coupon campaign")
	if err != nil {
		return nil, err
	}
	var in adminapi.CouponPatch
	if err := first(
		r.fixed("total", fmt.Sprintf("POST /admin/v1/sales/%d/restock adds units", id)),
		r.decode(&in),
	); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		before, s, err := a.lockSale(ctx, tx, id)
		if err != nil {
			return change{}, err
		}
		if before.Kind != wire.Coupon {
			return change{}, noCampaign(id)
		}
		if err := first(r.match(before.Version, false), notClosed(before)); err != nil {
			return change{}, err
		}
		was := campaign{s.Title, *before.Category, s.Hidden, s.StartsAt, s.EndsAt, int64(s.PerUserLimit), *before.Guard}
		next := was
		if err := first(applyCampaign(in, &next, before.Total), promised(was, next, a.Clock.Now())); err != nil {
			return change{}, err
		}
		if next == was {
			return change{status: http.StatusOK, after: before, nothing: true}, nil
		}
		if _, err := tx.ExecContext(ctx, `UPDATE sales SET title = ?, category = ?, published = ?, starts_at = ?, ends_at = ?, per_user_limit = ?, stock_guard = ? WHERE id = ?`,
			next.title, next.category, !next.hidden, next.from, next.until, next.limit, next.guard, id); err != nil {
			return change{}, fmt.Errorf("update campaign %d: %w", id, err)
		}
		return a.redefine(ctx, tx, "coupon.update", before)
	})
}

// promised says what of a change would break what shoppers were shown.
func promised(was, next campaign, now time.Time) error {
	if now.Add(freeze).Before(was.from) {
		return nil
	}
	began := "the campaign began at " + was.from.Format(wire.TimeFormat)
	if now.Before(was.from) {
		began = "the campaign is about to begin"
	}
	switch {
	case !next.from.Equal(was.from):
		return problem.Invalid("valid_from", fmt.Sprintf("%q: %s; withdraw it with published false instead", next.from.Format(wire.TimeFormat), began))
	case next.limit < was.limit:
		return problem.Invalid("per_user_limit", fmt.Sprintf("%d: %s, some may hold %d already; it can only be raised", next.limit, began, was.limit))
	}
	return nil
}

func noCampaign(id int64) error {
	return problem.New(problem.SaleNotFound, "no coupon campaign "+strconv.FormatInt(id, 10)+": GET /admin/v1/coupons lists them")
}

func (a *Admin) listCoupons(r *request) (*answer, error) {
	list, next, err := a.pageOfSales(r, true)
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: adminapi.Coupons{Coupons: list, Page: adminapi.Page{Next: next}}}, nil
}

func (a *Admin) getCoupon(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "coupon campaign")
	if err != nil {
		return nil, err
	}
	s, _, err := a.readSale(r.Context(), a.DB, id)
	if err == nil && s.Kind != wire.Coupon {
		err = noCampaign(id)
	}
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: s}, nil
}
