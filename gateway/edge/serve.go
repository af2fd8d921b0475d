package edge

import (
	"bytes"

	"floodgate.internal/shared/problem"
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
