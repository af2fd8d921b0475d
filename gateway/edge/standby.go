package edge

import (
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/wire"
)

// standby is GET, POST and DELETE /v1/sales/{id}/standby: see the place in a sale's standby line, join it, leave it.
func (x *exchange) standby(sale int64) {
	if refusal, sure := x.s.Gate.Unknown(sale, x.now); sure {
		x.prepared(ruleGate, refusal, 0)
		return
	}
	who, ok := x.user()
	if !ok || x.ctx.IsPost() && !x.mayBuy(who.UID) || !x.noBody() || !x.takeOwn(who.UID) {
		return
	}
	method, class := fasthttp.MethodGet, upstream.Order
	switch h := &x.ctx.Request.Header; {
	case h.IsPost():
		method = fasthttp.MethodPost
	case h.IsDelete():
		method, class = fasthttp.MethodDelete, upstream.Settle
	}
	if !x.room(class, 0) {
		return
	}
	x.forward(&upstream.Request{Method: method, Class: class, Target: wire.StandbyPath(sale), UID: who.UID})
}
