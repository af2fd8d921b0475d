//go:build servers

package e2e

import (
	"fmt"
	"testing"
	"time"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// newCoupon makes a coupon campaign that is valid for an hour.
func (w *system) newCoupon(title string, published bool, limit, total int, guard string) int64 {
	w.t.Helper()
	now := time.Now().UTC()
	return w.want(w.admin("POST", "/admin/v1/coupons", fmt.Sprintf(
		`{"title":%q,"category":"shoes","published":%v,"valid_from":%q,"valid_until":%q,"per_user_limit":%d,"total":%d,"guard":%q}`,
		title, published, now.Add(-time.Minute).Format(wire.TimeFormat), now.Add(time.Hour).Format(wire.TimeFormat), limit, total, guard)), 201, "").ID
}

func (w *system) listed(sale int64) bool {
	w.t.Helper()
	var list wire.SaleList
	w.want(w.public("GET", "/v1/sales", "", ""), 200, "").Decode(w.t, &list)
	for _, s := range list.Sales {
		if s.ID == sale {
			return s.Kind == wire.Coupon
		}
	}
	return false
}

func (w *system) claims(token string) []wire.Claim {
	w.t.Helper()
	var list wire.ClaimList
	w.want(w.public("GET", wire.CouponsPath, token, ""), 200, "").Decode(w.t, &list)
	return list.Coupons
}

// TestCouponStory is the life of a campaign, through the gateway. Row C1.
func TestCouponStory(t *testing.T) {
	t.Attr("row", "C1")
	t.Parallel()
	for _, guard := range []string{"conditional", "version"} {
		t.Run(guard, func(t *testing.T) {
			w := newSystem(t, world.Options{Limits: orders("{rate: 100, burst: 100, max_keys: 1000}")})
			w.couponStory(guard)
		})
	}
}

func (w *system) couponStory(guard string) {
	t := w.t
	sale := w.newCoupon("Ten off", false, 2, 5, guard)
	admin, path, page := fmt.Sprintf("/admin/v1/coupons/%d", sale), fmt.Sprintf("/v1/sales/%d/orders", sale), fmt.Sprintf("/v1/sales/%d", sale)
	tokens := w.tokens(1, 4)
	ann, bob, cyd, dan := tokens[0], tokens[1], tokens[2], tokens[3]

	// Before it is published there is no such sale. What the gateway knows of later ones it would know of this one.
	w.state(w.newSale("A later one", 1, time.Now().Add(-time.Minute), 600), wire.Open)
	if w.listed(sale) {
		t.Error("a campaign that is not published is listed")
	}
	w.want(w.public("GET", page, "", ""), 404, "SALE_NOT_FOUND")
	w.want(w.public("POST", path, ann, ""), 404, "SALE_NOT_FOUND")

	// Published, it is claimed up to the limit, and no further.
	w.want(w.admin("PATCH", admin, `{"published":true}`), 200, "")
	w.state(sale, wire.Open)
	if !w.listed(sale) {
		t.Error("a campaign that is published is not listed")
	}
	first := w.want(w.public("POST", path, ann, ""), 202, "")
	w.order(first.OrderID, ann, wire.Issued)
	second := w.want(w.public("POST", path, ann, `{"quantity":1}`), 202, "")
	if third := w.want(w.public("POST", path, ann, ""), 409, "ALREADY_ORDERED"); third.OrderID != second.OrderID {
		t.Errorf("beyond the limit: got order %s, want the newest, %s", third.OrderID, second.OrderID)
	}
	w.want(w.public("POST", path, bob, `{"quantity":3}`), 400, "BAD_REQUEST")
	w.want(w.public("POST", path, bob, `{"quantity":2,"category":"hats"}`), 400, "BAD_REQUEST")
	both := w.want(w.public("POST", path, bob, `{"quantity":2,"category":"shoes"}`), 202, "")
	w.want(w.public("POST", path, cyd, `{"quantity":2}`), 409, "INSUFFICIENT_STOCK")
	w.want(w.public("POST", path, cyd, ""), 202, "")
	w.want(w.public("POST", path, dan, ""), 409, "SOLD_OUT")
	w.order(second.OrderID, ann, wire.Issued)
	if o := w.order(both.OrderID, bob, wire.Issued); o.Amount != 0 || o.PayBefore != nil || o.Quantity != 2 {
		t.Errorf("an issued order: got %+v", o)
	}

	// Each unit is a claim, which is used once, by its owner.
	mine := w.claims(ann)
	if len(mine) != 2 || mine[0].OrderID != second.OrderID || mine[1].OrderID != first.OrderID || mine[0].SaleID != sale || mine[0].Category != "shoes" || mine[0].State != wire.ClaimNew {
		t.Fatalf("ann's coupons are %+v", mine)
	}
	if his := w.claims(bob); len(his) != 2 || his[0].OrderID != both.OrderID || his[1].OrderID != both.OrderID || his[0].ClaimID == his[1].ClaimID {
		t.Errorf("bob's coupons are %+v", his)
	}
	if none := w.claims(dan); len(none) != 0 {
		t.Errorf("dan's coupons are %+v", none)
	}
	use := wire.UsePath(mine[1].ClaimID)
	w.want(w.public("POST", use, "", ""), 401, "UNAUTHENTICATED")
	w.want(w.public("POST", use, bob, ""), 404, "NOT_FOUND")
	var used wire.Claim
	w.want(w.public("POST", use, ann, ""), 200, "").Decode(w.t, &used)
	if used.State != wire.ClaimUsed || used.UsedAt == nil || used.ClaimID != mine[1].ClaimID {
		t.Errorf("used: got %+v", used)
	}
	w.want(w.public("POST", use, ann, ""), 409, "ORDER_STATE_CONFLICT")
	w.want(w.public("POST", use, bob, ""), 404, "NOT_FOUND")
	w.want(w.public("POST", wire.OrderPath(first.OrderID)+"/cancellation", ann, ""), 409, "ORDER_STATE_CONFLICT")

	// From valid_until on a claim is expired: to its owner at once, in the record when the timer comes to it.
	his := w.claims(bob)[0].ClaimID
	if _, err := w.Books.DB.ExecContext(w.ctx, "UPDATE coupon_claims SET valid_until = claimed_at WHERE id = ?", his); err != nil {
		t.Fatal(err)
	}
	if c := w.claims(bob)[0]; c.State != wire.ClaimExpired || c.UsedAt != nil {
		t.Errorf("past its end: got %+v", c)
	}
	w.want(w.public("POST", wire.UsePath(his), bob, ""), 409, "ORDER_STATE_CONFLICT")
	w.until("the timer records that it expired", patience, func() (bool, string) {
		var state string
		w.must(w.Books.DB.QueryRowContext(w.ctx, "SELECT state FROM coupon_claims WHERE id = ? AND ended_at IS NOT NULL OR id = ? AND state = 'new'", his, his).Scan(&state))
		return state == string(wire.ClaimExpired), state
	})

	// Hidden again, it is gone; what was issued is its owner's all the same.
	w.want(w.admin("PATCH", admin, `{"published":false}`), 200, "")
	w.until("the campaign is gone", patience, func() (bool, string) {
		a := w.public("POST", path, dan, "")
		return a.Code == "SALE_NOT_FOUND", a.String()
	})
	w.until("its page is gone", patience, func() (bool, string) {
		a := w.public("GET", page, "", "")
		return a.Code == "SALE_NOT_FOUND", a.String()
	})
	w.want(w.public("POST", wire.UsePath(w.claims(ann)[0].ClaimID), ann, ""), 200, "")
	w.until("the audit balances", patience, func() (bool, string) {
		r, a := w.audit(sale)
		return r.Balanced && r.Sold == 5, a.String()
	})
}
