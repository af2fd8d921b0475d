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
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// campaign makes s what the members say; absent ones stay. units is how many the campaign has.
func campaign(in adminapi.CouponPatch, s *sale.Sale, guard *string, units int64) error {
	limit := int64(s.PerUserLimit)
	if err := first(
		text("title", in.Title, 1, maxTitle, &s.Title),
		text("category", in.Category, 0, maxCategory, &s.Category),
		moment("valid_from", in.ValidFrom, &s.StartsAt),
		moment("valid_until", in.ValidUntil, &s.EndsAt),
		between("per_user_limit", in.PerUserLimit, 1, maxLimit, &limit),
		oneOf("guard", in.Guard, guard, order.GuardConditional, order.GuardVersion),
	); err != nil {
		return err
	}
	s.PerUserLimit = int(limit)
	if in.Published != nil {
		s.Hidden = !*in.Published
	}
	return asSent(s.Campaign(units, in.ValidUntil == nil), "valid_until", in.ValidUntil)
}

// mayCoupons refuses who may not make and change coupon campaigns: a sale of kind coupon is one, by whichever path.
func (r *request) mayCoupons() error {
	if !r.by.Role.Covers(operator.Admin) {
		return operator.TooLow(r.by, operator.Admin)
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
	n := sale.New{HasPrice: true, Guard: order.GuardConditional,
		Sale: sale.Sale{Kind: wire.Coupon, Currency: noCurrency, PerUserLimit: 1, PayWithin: payWithin * time.Second}}
	if err := first(
		needed("title", in.Title), needed("valid_from", in.ValidFrom), needed("valid_until", in.ValidUntil),
		needed("total", in.Total), between("total", in.Total, 1, sale.MaxUnits, &n.Units),
	); err != nil {
		return nil, err
	}
	if err := first(campaign(in.CouponPatch, &n.Sale, &n.Guard, n.Units), a.picture(in.Picture, &n.Picture)); err != nil {
		return nil, err
	}
	return a.create(r, "coupon.create", n)
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
	return a.changeSale(r, id, "coupon.update", func(ctx context.Context, tx *sql.Tx, at time.Time, before sale.Record) (sale.Change, error) {
		if before.Kind != wire.Coupon {
			return sale.Change{}, noCampaign(id)
		}
		next := before
		err := first(r.match(before.Version, false), before.Open(), campaign(in, &next.Sale, &next.Guard, before.Total), a.picture(in.Picture, &next.Picture))
		if err == nil {
			err = before.AllowsCampaign(&next.Sale, a.Clock.Now())
		}
		if err != nil {
			return sale.Change{}, err
		}
		return sale.Update(ctx, tx, at, before, next)
	})
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
	s, err := a.readSale(r.Context(), id)
	if err == nil && s.Kind != wire.Coupon {
		err = noCampaign(id)
	}
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: s}, nil
}
