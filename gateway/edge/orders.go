package edge

import (
	"strconv"
	"time"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// saleID is the sale that the path names; 0: it cannot be one.
func (x *exchange) saleID() int64 {
	id, _ := wire.ParseID(x.param)
	return id
}

// knownSale reports whether the sale may exist, or answers 404.
func (x *exchange) knownSale() bool {
	refusal, certain := x.s.Gate.Unknown(x.saleID(), x.now)
	if certain {
		x.rejectPrepared(ruleGate, refusal, 0)
	}
	return !certain
}

// idempotencyKey is the request's key, nil for none; false: it was answered 400.
func (x *exchange) idempotencyKey() (key []byte, ok bool) {
	h := &x.ctx.Request.Header
	key = h.Peek("Idempotency-Key")
	if len(h.PeekAll("Idempotency-Key")) > 0 && !wire.ValidIdempotencyKey(key) {
		x.badField("Idempotency-Key", "it must be 1 to 128 visible ASCII characters")
		return nil, false
	}
	return key, true
}

// order is POST /v1/sales/{sale_id}/orders.
func (x *exchange) order() {
	sale := x.saleID()
	v := x.s.Gate.Order(sale, x.now)
	if v.Refusal != nil && !(v.MayProbe() && x.hasToken()) {
		x.rejectPrepared(ruleGate, v.Refusal, v.RetryAfter)
		return
	}
	if !x.admitAddress() || !x.identify(v) {
		return
	}
	if v.Sale != nil {
		defer x.recordPress(sale)
	}
	if !x.mayBuy() {
		return
	}
	key, ok := x.idempotencyKey()
	if !ok {
		return
	}
	perUser := 1 << 30 // not known here: the backend checks it
	if v.Sale != nil {
		perUser = v.Sale.PerUserLimit
	}
	body := x.ctx.Request.Body()
	if !x.isJSON(body) {
		return
	}
	quantity, category, err := wire.ParseOrderRequest(body, perUser)
	if err != nil {
		x.badBody(err)
		return
	}
	d := x.takeUser(x.uid)
	if v.Refusal != nil && !(d.OK && x.s.Gate.Probe(v, x.now)) {
		x.rejectPrepared(ruleGate, v.Refusal, v.RetryAfter)
		return
	}
	if !x.admitOrder(d) || !x.room(sale) {
		return
	}
	r := x.request()
	r.Sale, r.IdempotencyKey, r.Client = sale, string(key), x.network()
	r.Body = wire.AppendOrderRequest(nil, quantity, category)
	status := x.forward(r)
	if v.Sale == nil {
		if status > 0 { // the backend knows whether there is such a sale
			x.recordPress(sale)
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

// ownOrders is GET /v1/orders.
func (x *exchange) ownOrders() {
	if !x.user() {
		return
	}
	if sale := x.ctx.QueryArgs().Peek("sale_id"); len(sale) > 0 {
		if _, ok := wire.ParseID(sale); !ok {
			x.badField("sale_id", "it must be a positive integer")
			return
		}
	}
	if !x.goodCursor() || !x.admitUser(x.uid) || !x.room(0) {
		return
	}
	r := x.request()
	r.Target += x.query("sale_id", "cursor")
	x.forward(r)
}

// ownOrder finds the user, and whether the path can name an order of theirs, or answers 401 or 404.
func (x *exchange) ownOrder() bool {
	if !x.user() {
		return false
	}
	if !wire.ValidOrderID(x.param) {
		x.refuse(problem.New(problem.OrderNotFound, "there is no such order of yours"))
		return false
	}
	return true
}

// changeOrder is POST /v1/orders/{order_id}/payment and .../cancellation.
func (x *exchange) changeOrder() {
	if x.ownOrder() && x.noBody() && x.admitUser(x.uid) && x.room(0) {
		x.forward(x.request())
	}
}

// orderStatus is GET /v1/orders/{order_id}, a long poll with wait_ms.
func (x *exchange) orderStatus() {
	if !x.ownOrder() {
		return
	}
	var wait time.Duration
	if given := x.ctx.QueryArgs().Peek("wait_ms"); len(given) > 0 {
		ms, err := strconv.ParseUint(string(given), 10, 32)
		if err != nil || ms > uint64(wire.MaxWait/time.Millisecond) {
			x.badField("wait_ms", "it must be 0 to "+itoa(int(wire.MaxWait/time.Millisecond)))
			return
		}
		wait = time.Duration(ms) * time.Millisecond
	}
	if !x.admitUser(x.uid) {
		return
	}
	if wait > 0 && (x.s.draining.Load() || !x.s.Backends.CanWait()) {
		wait = 0 // the present status at once is better than none
	}
	if wait == 0 && !x.room(0) {
		return
	}
	r := x.request()
	if r.Wait = wait; wait > 0 {
		r.Target += "?wait_ms=" + strconv.FormatInt(wait.Milliseconds(), 10)
	}
	x.forward(r)
}
