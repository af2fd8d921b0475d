package edge

import (
	"encoding/json"
	"strings"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// cart is POST /v1/cart/orders.
func (x *exchange) cart() {
	if !x.user() || !x.mayBuy() {
		return
	}
	key, ok := x.idempotencyKey()
	if !ok {
		return
	}
	if len(key) == 0 {
		x.badField("Idempotency-Key", "missing: a cart needs one, so that asking again is never ordering again")
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
	if !x.admitOrder(x.takeUser(x.uid)) || !x.room(0) {
		return
	}
	r := x.request()
	r.IdempotencyKey = string(key)
	if r.Body, err = json.Marshal(wire.Cart{Items: items}); err != nil {
		panic("BUG: a cart that does not marshal: " + err.Error())
	}
	x.forward(r)
}
