package edge

import (
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// ownCoupons is GET /v1/coupons.
func (x *exchange) ownCoupons() {
	if !x.user() || !x.goodCursor() || !x.admitUser(x.uid) || !x.room(0) {
		return
	}
	r := x.request()
	r.Target += x.query("cursor")
	x.forward(r)
}

// useCoupon is POST /v1/coupons/{claim_id}/use.
func (x *exchange) useCoupon() {
	if !x.user() {
		return
	}
	if !wire.ValidClaimID(x.param) {
		x.refuse(problem.New(problem.NotFound, "there is no such coupon of yours"))
		return
	}
	if x.noBody() && x.admitUser(x.uid) && x.room(0) {
		x.forward(x.request())
	}
}
