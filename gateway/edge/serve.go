package edge

import (
	"bytes"
	"errors"
	"net/netip"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/timeline"
	"floodgate.internal/shared/wire"
)

// serve judges the request, in order.
func (x *exchange) serve() {
	path, query, ok := split(x.ctx.Request.Header.RequestURI())
	if !ok {
		x.route = routeMalformed
		x.reject(ruleProtocol, problem.New(problem.BadRequest, "the path must be plain: no percent-encoding, no empty or dot segments, no host"))
		return
	}
	r, sale, name := match(path)
	x.route = r
	if r == routeNone || r == routeDevSession && x.set.Sign == nil {
		x.refuse(problem.New(problem.NotFound, "there is no such path"))
		return
	}
	if !x.set.BannedNetworks.Empty() && x.set.BannedNetworks.Contains(x.client()) {
		x.prepared(ruleBan, bannedNetwork, 0)
		return
	}
	if !x.allowed() {
		return
	}
	if len(query) > 0 && (r == routeStatus || r == routeMine || r == routeCoupons) {
		for _, name := range []string{"wait_ms", "sale_id", "cursor"} {
			n := 0
			for key := range x.ctx.QueryArgs().All() {
				if string(key) == name {
					n++
				}
			}
			if n > 1 {
				x.reject(ruleBody, problem.Invalid(name, "it is there twice"))
				return
			}
		}
	}
	switch r {
	case routePage:
		x.page(string(path))
	case routeTime:
		body, _ := wire.Millis(x.s.Clock.NowMillis()).MarshalJSON()
		x.json(200, append(append([]byte(`{"now":`), body...), '}'))
	case routeSales:
		x.cached(path)
	case routeSale:
		if refusal, sure := x.s.Gate.Unknown(sale, x.now); sure {
			x.prepared(ruleGate, refusal, 0)
			return
		}
		x.cached(path) // as canonical as the id: there is one way to write it
	case routeOrder:
		x.order(sale)
	case routeStandby:
		x.standby(sale)
	case routeWebhook:
		x.webhook(string(name))
	case routeTimeline:
		x.timeline(sale)
	case routeCart:
		x.cart()
	case routeSKUs:
		x.cached(path)
	case routeSession:
		x.session()
	case routeDevSession:
		x.devSession()
	case routeCoupons, routeUse:
		x.coupons(name)
	default:
		x.mine(name)
	}
}

// allowed checks the method, and that nothing carries a body that has no use for one.
func (x *exchange) allowed() bool {
	h := &x.ctx.Request.Header
	ok := false
	switch {
	case h.IsGet() || h.IsHead():
		ok = allow[x.route] != "POST"
	case h.IsPost():
		ok = allow[x.route] == "POST" || x.route == routeSession || x.route == routeStandby
	case h.IsDelete():
		ok = x.route == routeSession || x.route == routeStandby
	}
	if !ok {
		x.ctx.Response.Header.Set("Allow", allow[x.route])
		x.refuse(problem.New(problem.MethodNotAllowed, "allowed here: "+allow[x.route]))
		return false
	}
	if !h.IsPost() && len(x.ctx.Request.Body()) > 0 {
		x.reject(ruleBody, problem.New(problem.BadRequest, "a request of this method has no body"))
		return false
	}
	return true
}

// client is the address that the request counts for: the connection's, or the one that a trusted proxy names. There is none
// where a listener in memory has none.
func (x *exchange) client() netip.Addr {
	if !x.from.IsValid() {
		x.from = x.addr.addr
		if x.set.Trusted.Contains(x.from) {
			x.from = network.Client(x.from, x.set.Trusted, x.ctx.Request.Header.PeekAll("X-Forwarded-For"))
		}
	}
	return x.from
}

// takeAddress draws on the address's buckets, where it has any.
func (x *exchange) takeAddress(buckets *limit.Buckets[[16]byte], rule *limit.Rule) limit.Decision {
	a := x.client()
	if !a.IsValid() || x.set.Exempt.Contains(a) {
		return limit.Decision{OK: true}
	}
	return x.noted(buckets.Take(network.Key(a), rule, x.now))
}

// takeUser draws on the user's buckets, where they have any.
func (x *exchange) takeUser(buckets *limit.Buckets[string], rule *limit.Rule, uid string) limit.Decision {
	if _, exempt := x.set.ExemptUsers[uid]; exempt {
		return limit.Decision{OK: true}
	}
	return x.noted(buckets.Take(uid, rule, x.now))
}

// noted notes when the next request would find a token: whatever this one is refused by, it is told no earlier time to come back.
func (x *exchange) noted(d limit.Decision) limit.Decision {
	x.wait = max(x.wait, d.Wait)
	return d
}

// network is the network that the client's address is in: backends count where orders come from, and need to know no more.
func (x *exchange) network() string {
	a := x.client()
	if !a.IsValid() {
		return ""
	}
	return wire.Network(a)
}

// overLimit is what a request is told that a rule refused.
var overLimit = func() (l [rules]*salegate.Refusal) {
	for by, detail := range map[rule]string{
		ruleIP:      "too many requests from your address; nothing was done",
		ruleWebhook: "too many deliveries from your address; nothing was done, deliver it again",
		ruleOrder:   "one order at a time; nothing was done",
		rulePayment: "too many changes of your orders; nothing was done",
		ruleRead:    "too many requests; nothing was done",
		ruleGlobal:  "too many orders are coming in; nothing was done",
	} {
		l[by] = salegate.Prepare(problem.New(problem.RateLimited, detail))
	}
	return l
}()

// The other refusals that are made in advance.
var (
	bannedNetwork  = salegate.Prepare(problem.New(problem.Forbidden, "requests from this network are not taken; nothing was done"))
	bannedUser     = salegate.Prepare(problem.New(problem.Forbidden, "this account may not buy here; orders that it has stand"))
	notEligible    = salegate.Prepare(problem.New(problem.Forbidden, "ordering here is for invited accounts only, and this one is not on the list; orders that it has stand"))
	crowded        = salegate.Prepare(problem.New(problem.Overloaded, "too many orders are waiting; nothing was done"))
	busy           = salegate.Prepare(problem.New(problem.Overloaded, "the shop is busy; nothing was done"))
	deliveriesFull = salegate.Prepare(problem.New(problem.Overloaded, "too many deliveries at once; nothing was done"))
)

// admit answers 429 where the decision of a rule is one.
func (x *exchange) admit(by rule, d limit.Decision) bool {
	if d.OK {
		return true
	}
	seconds := max(1, d.Seconds())
	h := &x.ctx.Response.Header
	h.Set("RateLimit-Policy", d.Rule.Policy())
	x.body = d.Rule.AppendExhausted(x.body[:0], d.Law, seconds)
	h.SetBytesV("RateLimit", x.body)
	x.prepared(by, overLimit[by], time.Duration(seconds)*time.Second)
	return false
}

const sessionCookie = "floodgate_session"

var bearer = []byte("Bearer ")

// token returns the request's token, and whether the browser sent it by itself, as a cookie.
func (x *exchange) token() (token []byte, byCookie bool) {
	h := &x.ctx.Request.Header
	if auth := h.Peek("Authorization"); len(auth) > 0 {
		if len(auth) > len(bearer) && bytes.EqualFold(auth[:len(bearer)], bearer) {
			return bytes.Trim(auth[len(bearer):], " "), false
		}
		return nil, false // of another scheme, or of none: nobody's, whatever the cookie says
	}
	c := h.Cookie(sessionCookie)
	return c, len(c) > 0
}

// identify returns the user, or answers 401 or 403.
func (x *exchange) identify() (identity.Who, bool) {
	token, byCookie := x.token()
	if h := &x.ctx.Request.Header; byCookie && (h.IsPost() || h.IsDelete()) && !x.sameOrigin() {
		x.reject(ruleOrigin, problem.New(problem.Forbidden, "a request by cookie must come from this site's own page"))
		return identity.Who{}, false
	}
	who, err := x.set.Verifier.Verify(token)
	if err != nil {
		x.reject(ruleIdentity, problem.New(problem.Unauthenticated, err.Error()))
		return identity.Who{}, false
	}
	x.uid = who.UID
	return who, true
}

// known reports whether the request names a user, without a word to who does not.
func (x *exchange) known() bool {
	token, _ := x.token()
	_, err := x.set.Verifier.Verify(token)
	return err == nil
}

// sameOrigin reports whether a browser says that its request comes from a page of this host.
func (x *exchange) sameOrigin() bool {
	h := &x.ctx.Request.Header
	if site := h.Peek("Sec-Fetch-Site"); len(site) > 0 {
		return string(site) == "same-origin"
	}
	scheme, host, ok := bytes.Cut(h.Peek("Origin"), []byte("://"))
	return ok && len(host) > 0 && bytes.EqualFold(host, h.Host()) && (x.set.InsecureCookies || string(scheme) == "https")
}

// user is what every request in a user's name goes through: the address's buckets and the token.
func (x *exchange) user() (identity.Who, bool) {
	if !x.admit(ruleIP, x.takeAddress(x.s.ips, x.set.IP)) {
		return identity.Who{}, false
	}
	return x.identify()
}

// mayBuy reports that the user may order here, or answers 403. Backends have lists of their own, which change while they run; who
// is refused here costs them nothing.
func (x *exchange) mayBuy(uid string) bool {
	if _, banned := x.set.BannedUsers[uid]; banned {
		x.prepared(ruleBan, bannedUser, 0)
		return false
	}
	if _, eligible := x.set.EligibleUsers[uid]; !eligible && len(x.set.EligibleUsers) > 0 {
		x.prepared(ruleEligible, notEligible, 0)
		return false
	}
	return true
}

// takeOwn draws on the user's buckets for everything but orders, or answers 429.
func (x *exchange) takeOwn(uid string) bool {
	switch x.route {
	case routePay, routeCancel, routeUse:
		return x.admit(rulePayment, x.takeUser(x.s.payments, x.set.Payment, uid))
	}
	return x.admit(ruleRead, x.takeUser(x.s.reads, x.set.Read, uid))
}

// takeOrder is what follows on the decision of the user's buckets for orders: it draws on the bucket of all, or answers 429 or 503.
func (x *exchange) takeOrder(d limit.Decision) bool {
	if !d.OK { // who comes back meets the bucket of all next
		x.wait = max(x.wait, x.s.global.Wait(x.set.Global, x.set.Patience, x.now))
	}
	return x.admit(ruleOrder, d) && x.takeGlobal()
}

// takeGlobal draws on the bucket of all orders, for which an order may wait; or it answers 429, or 503 where too many wait. It
// comes after the user's own buckets, so that nobody takes more than their share of it.
func (x *exchange) takeGlobal() bool {
	d := x.noted(x.s.global.Take(x.set.Global, x.set.Patience, x.now))
	if d.Crowded {
		x.prepared(ruleGlobal, crowded, time.Duration(max(1, d.Seconds()))*time.Second)
		x.rule = timeline.Crowd
		return false
	}
	return x.admit(ruleGlobal, d)
}

// room reports that there is a place at the backends for a request of this class, and for this sale, 0 for none, or answers 503.
func (x *exchange) room(class upstream.Class, sale int64) bool {
	if x.s.Pool.Full(class, sale) {
		x.busy()
		return false
	}
	return true
}

// busy answers 503 where all places at the backends are taken.
func (x *exchange) busy() { x.prepared(ruleInFlight, busy, time.Second+jitter(time.Second)) }

// order is POST /v1/sales/{id}/orders.
func (x *exchange) order(sale int64) {
	v := x.s.Gate.Order(sale, x.now)
	if v.Refusal != nil && !(v.Doubtful() && x.known()) {
		x.prepared(ruleGate, v.Refusal, v.RetryAfter)
		return
	}
	who, ok := x.user()
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
	quantity, err := wire.ParseOrderRequest(body, limit)
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
		Class: upstream.Order, Sale: sale, IdempotencyKey: string(key), Client: x.network(), Body: append(strconv.AppendInt([]byte(`{"quantity":`), int64(quantity), 10), '}'),
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

// isJSON checks the media type of a body that is not empty, or answers 415.
func (x *exchange) isJSON(body []byte) bool {
	if len(body) == 0 {
		return true
	}
	media, _, _ := bytes.Cut(x.ctx.Request.Header.ContentType(), []byte(";"))
	if bytes.EqualFold(bytes.TrimSpace(media), []byte("application/json")) {
		return true
	}
	x.reject(ruleBody, problem.New(problem.UnsupportedMediaType, "the body must be application/json"))
	return false
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

// query is the request's own query, as far as it has these parameters, which are checked.
func (x *exchange) query(names ...string) (q string) {
	join := "?"
	for _, name := range names {
		if v := x.ctx.QueryArgs().Peek(name); len(v) > 0 {
			q += join + name + "=" + string(v)
			join = "&"
		}
	}
	return q
}

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

// noBody reports that the body says nothing, or answers 415 or 400.
func (x *exchange) noBody() bool {
	body := x.ctx.Request.Body()
	if len(body) == 0 {
		return true
	}
	if !x.isJSON(body) {
		return false
	}
	if err := wire.DecodeStrict(body, &struct{}{}); err != nil {
		x.reject(ruleBody, problem.New(problem.BadRequest, err.Error()))
		return false
	}
	return true
}

// cursor reports that the query's cursor, if it has one, may be sent on, or answers 400.
func (x *exchange) cursor() bool {
	if !plainCursor(x.ctx.QueryArgs().Peek("cursor")) {
		x.reject(ruleBody, problem.Invalid("cursor", "it must be one that an earlier answer gave"))
		return false
	}
	return true
}

// plainCursor keeps what is forwarded to characters that mean nothing else in a query.
func plainCursor[S string | []byte](s S) bool {
	if len(s) > 200 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~') {
			return false
		}
	}
	return true
}

// forward sends r and passes the answer on: its status, body and the headers that are allowed. It returns the status, 0
// where there was no answer.
func (x *exchange) forward(r *upstream.Request) int {
	r.RequestID, r.Trace = string(x.id), x.traceparent()
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	err := x.s.Pool.Do(r, resp)
	if err != nil {
		x.unanswered(r, err)
		return 0
	}
	code := resp.StatusCode()
	if code == fasthttp.StatusUnauthorized && len(resp.Header.Peek(signing.HeaderTime)) > 0 {
		// It is this gateway that the backend does not know, not the client: that refusal names the time to sign by.
		x.s.warn("check the signing keys on both sides", errSignature, r)
		x.overloaded("the shop cannot be reached; nothing was done")
		x.rule = timeline.Unreachable
		return 0
	}
	if r.Method != fasthttp.MethodGet {
		failpoint.Hit("gateway.before-answer")
	}
	out := &x.ctx.Response
	out.SetStatusCode(code)
	out.Header.Set("Cache-Control", "no-store")
	for _, name := range passed {
		if v := resp.Header.Peek(name); len(v) > 0 {
			out.Header.SetBytesV(name, v)
		}
	}
	if after, err := strconv.Atoi(string(out.Header.Peek("Retry-After"))); err == nil && time.Duration(after)*time.Second < x.wait {
		out.Header.Set("Retry-After", itoa(limit.Decision{Wait: x.wait + jitter(time.Second)}.Seconds()))
	}
	out.SetBody(resp.Body())
	x.result = resultOfAnswer(code, resp.Body())
	x.rule, _ = timeline.Known(resp.Header.Peek(timeline.HeaderRule))
	return code
}

// passed is every header of a backend's answer that a client sees.
var passed = []string{"Content-Type", "Location", "ETag", "Cache-Control", "Retry-After", "WWW-Authenticate"}

// unanswered says what is known of a request that got no answer.
func (x *exchange) unanswered(r *upstream.Request, err error) {
	if r.Method != fasthttp.MethodGet && errors.Is(err, upstream.ErrUnknown) {
		x.s.warn("no answer from the backend", err, r)
		detail := "the request was sent on and no answer came: ask again with the same Idempotency-Key, or look at GET /v1/orders?sale_id="
		switch x.route {
		case routeWebhook:
			detail = "the event was sent on and no answer came: deliver it again, it counts once"
		case routeUse:
			detail = "the request was sent on and no answer came: look at GET " + wire.CouponsPath
		case routeStandby:
			detail = "the request was sent on and no answer came: ask again, it is done once; or look at GET " + r.Target
		}
		p := problem.New(problem.OutcomeUnknown, detail)
		p.RetryAfter = time.Second + jitter(2*time.Second)
		x.refuse(p)
		x.rule = timeline.NoAnswer
		return
	}
	if errors.Is(err, upstream.ErrBusy) {
		x.busy()
		return
	}
	x.rule = timeline.Unreachable
	x.s.warn("the backend was not reached", err, r)
	x.overloaded("the shop cannot be reached; nothing was done")
}
