package edge

import (
	"encoding/json"
	"strings"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// cart is POST /v1/cart/orders. It draws on the user's limit of orders, and on the bucket of all.
func (x *exchange) cart() {
	who, ok := x.user()
	if !ok || !x.mayBuy(who.UID) {
		return
	}
	h := &x.ctx.Request.Header
	key := string(h.Peek("Idempotency-Key"))
	if len(h.PeekAll("Idempotency-Key")) == 0 {
		x.reject(ruleBody, problem.Invalid("Idempotency-Key", "missing: a cart needs one, so that asking again is never ordering again"))
		return
	}
	if !wire.ValidIdempotencyKey(key) {
		x.reject(ruleBody, problem.Invalid("Idempotency-Key", "it must be 1 to 128 visible ASCII characters"))
		return
	}
	body := x.ctx.Request.Body()
	if !x.isJSON(body) {
		return
	}
	items, err := wire.ParseCart(body)
	if err != nil {
		p := problem.New(problem.BadRequest, err.Error())
		if member, _, ok := strings.Cut(err.Error(), ": "); ok && !strings.Contains(member, " ") {
			p.Field = member
		}
		x.reject(ruleBody, p)
		return
	}
	if !x.takeOrder(x.takeUser(x.s.orders, x.set.Order, who.UID)) || !x.room(upstream.Order, 0) {
		return
	}
	text, err := json.Marshal(wire.Cart{Items: items})
	if err != nil {
		panic("BUG: a cart that does not marshal: " + err.Error())
	}
	x.forward(&upstream.Request{Method: fasthttp.MethodPost, Class: upstream.Order, Target: wire.CartPath, UID: who.UID, IdempotencyKey: key, Body: text})
}
