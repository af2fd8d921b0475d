package edge

import (
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// coupons is what a user asks about coupons: GET /v1/coupons, and POST /v1/coupons/{id}/use.
func (x *exchange) coupons(id []byte) {
	who, ok := x.user()
	if !ok {
		return
	}
	switch {
	case x.route == routeCoupons:
		if !x.cursor() {
			return
		}
	case !wire.ValidClaimID(id):
		x.refuse(problem.New(problem.NotFound, "there is no such coupon of yours"))
		return
	case !x.noBody():
		return
	}
	if !x.takeOwn(who.UID) || !x.room(upstream.Settle, 0) {
		return
	}
	if x.route == routeCoupons {
		x.forward(&upstream.Request{Method: fasthttp.MethodGet, Target: wire.CouponsPath + x.query("cursor"), UID: who.UID})
		return
	}
	x.forward(&upstream.Request{Method: fasthttp.MethodPost, Target: wire.UsePath(string(id)), UID: who.UID})
}
