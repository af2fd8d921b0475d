package edge

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// order is POST /v1/sales/{id}/orders.
func (x *exchange) order(sale int64) {
	v := x.s.Gate.Order(sale, x.now)
	if v.Refusal != nil && !(v.Doubtful() && x.named()) {
		x.prepared(ruleGate, v.Refusal, v.RetryAfter)
		return
	}
	who, ok := x.buyer(v)
	if !ok {
		return
	}
	if v.Sale != nil {
		defer x.record(sale, who.UID)
	}
	if !x.mayBuy(who.UID) {
		return
	}
	h := &x.ctx.Request.Header
	key := h.Peek("Idempotency-Key")
	if len(h.PeekAll("Idempotency-Key")) > 0 && !wire.ValidIdempotencyKey(key) {
		x.reject(ruleBody, problem.Invalid("Idempotency-Key", "it must be 1 to 128 visible ASCII characters"))
		return
	}
	limit := 1 << 30 // not known: the backend knows
	if v.Sale != nil {
		limit = v.Sale.PerUserLimit
	}
	body := x.ctx.Request.Body()
	if !x.isJSON(body) {
		return
	}
	quantity, category, err := wire.ParseOrderRequest(body, limit)
	if err != nil {
		x.reject(ruleBody, problem.New(problem.BadRequest, err.Error()))
		return
	}
	d := x.takeUser(x.s.orders, x.set.Order, who.UID)
	if v.Refusal != nil && !(d.OK && x.s.Gate.Ask(v, x.now)) {
		x.prepared(ruleGate, v.Refusal, v.RetryAfter)
		return
	}
	if !x.takeOrder(d) || !x.room(upstream.Order, sale) {
		return
	}
	status := x.forward(&upstream.Request{
		Method: fasthttp.MethodPost, Target: "/v1/sales/" + strconv.FormatInt(sale, 10) + "/orders", UID: who.UID,
		Class: upstream.Order, Sale: sale, IdempotencyKey: string(key), Client: x.network(), Body: wire.AppendOrderRequest(nil, quantity, category),
	})
	if v.Sale == nil {
		if status > 0 { // the backend knows the sale, or says that there is none
			x.record(sale, who.UID)
		}
		return
	}
	switch {
	case status == 202:
		v.Sale.Sold(x.now)
	case status == 409 && quantity == 1 && x.result == resultOf(problem.SoldOut):
		v.Sale.SoldOut(x.now)
	}
}

// mine is what a user asks about orders: GET /v1/orders, GET /v1/orders/{id}, and payment and cancellation.
func (x *exchange) mine(id []byte) {
	who, ok := x.user()
	if !ok {
		return
	}
	args := x.ctx.QueryArgs()
	var wait time.Duration
	switch {
	case x.route == routeMine:
		if sale := args.Peek("sale_id"); len(sale) > 0 {
			if _, ok := wire.ParseID(sale); !ok {
				x.reject(ruleBody, problem.Invalid("sale_id", "it must be a positive integer"))
				return
			}
		}
		if !x.cursor() {
			return
		}
	case !wire.ValidOrderID(id):
		x.refuse(problem.New(problem.OrderNotFound, "there is no such order of yours"))
		return
	case x.route != routeStatus:
		if !x.noBody() {
			return
		}
	case len(args.Peek("wait_ms")) > 0:
		ms, err := strconv.ParseUint(string(args.Peek("wait_ms")), 10, 32)
		if err != nil || ms > uint64(wire.MaxWait/time.Millisecond) {
			x.reject(ruleBody, problem.Invalid("wait_ms", "it must be 0 to "+itoa(int(wire.MaxWait/time.Millisecond))))
			return
		}
		wait = time.Duration(ms) * time.Millisecond
	}
	if !x.takeOwn(who.UID) {
		return
	}
	if wait > 0 && (x.s.draining.Load() || !x.s.Pool.CanWait()) {
		wait = 0 // the present status at once is better than none
	}
	if wait == 0 && !x.room(upstream.Settle, 0) {
		return
	}
	r := &upstream.Request{Method: fasthttp.MethodGet, Wait: wait, UID: who.UID}
	switch x.route {
	case routeMine:
		r.Target = "/v1/orders" + x.query("sale_id", "cursor")
	case routePay:
		r.Method, r.Target = fasthttp.MethodPost, wire.OrderPath(string(id))+"/payment"
	case routeCancel:
		r.Method, r.Target = fasthttp.MethodPost, wire.OrderPath(string(id))+"/cancellation"
	default:
		r.Target = wire.OrderPath(string(id))
		if wait > 0 {
			r.Target += "?wait_ms=" + strconv.FormatInt(wait.Milliseconds(), 10)
		}
	}
	x.forward(r)
}
