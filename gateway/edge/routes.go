package edge

import (
	"bytes"
	"strings"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

const orderPath = "/v1/sales/{sale_id}/orders"

// table is every operation of the public server. HEAD is answered wherever GET is.
//
//   - path: a segment in braces is open, at most one in a path.
//   - name: the label of metrics and logs.
//   - limit: the rule whose buckets the request draws on. A user's (order, payment, read) comes after the address's;
//     ip and webhook are an address's; rules is none. Orders and carts draw on the bucket of all orders, too.
//   - class: what the request is to the backends.
var table = []operation{
	{method: "GET", path: "/v1/sales", name: "sales", limit: ruleRead, class: upstream.Page, handle: (*exchange).cached},
	{method: "GET", path: "/v1/sales/{sale_id}", name: "sale", limit: ruleRead, class: upstream.Page, handle: (*exchange).sale},
	{method: "POST", path: orderPath, name: "order_post", limit: ruleOrder, class: upstream.Order, handle: (*exchange).order},
	{method: "GET", path: "/v1/sales/{sale_id}/timeline", name: "timeline", limit: ruleRead, class: upstream.Page, handle: (*exchange).timeline},
	{method: "GET", path: "/v1/sales/{sale_id}/standby", name: "standby", limit: ruleRead, class: upstream.Order, handle: (*exchange).standby},
	{method: "POST", path: "/v1/sales/{sale_id}/standby", name: "standby", limit: ruleRead, class: upstream.Order, handle: (*exchange).joinStandby},
	{method: "DELETE", path: "/v1/sales/{sale_id}/standby", name: "standby", limit: ruleRead, class: upstream.Settle, handle: (*exchange).standby},
	{method: "GET", path: "/v1/orders", name: "orders_get", limit: ruleRead, query: true, handle: (*exchange).ownOrders},
	{method: "GET", path: "/v1/orders/{order_id}", name: "order_get", limit: ruleRead, query: true, handle: (*exchange).orderStatus},
	{method: "POST", path: "/v1/orders/{order_id}/payment", name: "payment", limit: rulePayment, handle: (*exchange).changeOrder},
	{method: "POST", path: "/v1/orders/{order_id}/cancellation", name: "cancellation", limit: rulePayment, handle: (*exchange).changeOrder},
	{method: "POST", path: wire.WebhookPath + "{provider}", name: "webhook", limit: ruleWebhook, handle: (*exchange).webhook},
	{method: "GET", path: wire.CouponsPath, name: "coupons", limit: ruleRead, query: true, handle: (*exchange).ownCoupons},
	{method: "POST", path: wire.CouponsPath + "/{claim_id}/use", name: "coupon_use", limit: rulePayment, handle: (*exchange).useCoupon},
	{method: "POST", path: wire.CartPath, name: "cart_post", limit: ruleOrder, class: upstream.Order, handle: (*exchange).cart},
	{method: "GET", path: wire.SKUsPath, name: "skus", limit: ruleRead, class: upstream.Page, handle: (*exchange).cached},
	{method: "GET", path: "/v1/time", name: "time", limit: rules, handle: (*exchange).time},
	{method: "GET", path: "/", name: "page", limit: rules, handle: (*exchange).page},
	{method: "GET", path: "/sales/{sale_id}", name: "page", limit: rules, handle: (*exchange).page},
	{method: "GET", path: "/assets/{name}", name: "page", limit: rules, handle: (*exchange).page},
	{method: "GET", path: "/v1/session", name: "session", limit: ruleRead, handle: (*exchange).session},
	{method: "POST", path: "/v1/session", name: "session", limit: ruleRead, handle: (*exchange).signIn},
	{method: "DELETE", path: "/v1/session", name: "session", limit: rules, handle: (*exchange).signOut},
	{method: "POST", path: "/v1/dev/session", name: "dev_session", limit: ruleIP, development: true, handle: (*exchange).devSession},
}

// operation is one line of the table of routes.
type operation struct {
	method, path, name string
	limit              rule
	class              upstream.Class
	query              bool // it reads the query: a parameter may be there once
	development        bool // it is not there in production
	handle             func(*exchange)
}

// route is one path of the table, with all its methods.
type route struct {
	label             int // the place of its name in labels
	get, post, delete *operation
	allow             string // the value of Allow
	development       bool
}

// Routes of what has no line in the table.
var (
	unknownPath = &route{label: 0}
	malformed   = &route{label: 1} // not a canonical path, or not a request at all
)

// labels is the names of all routes, as metrics and logs have them. routeTree is where their paths lead.
var labels, routeTree = compile(table)

func (r *route) name() string { return labels[r.label] }

// segment is a node of the tree of paths.
type segment struct {
	text  string // "" for an open one
	next  []*segment
	open  *segment          // the next one, where the path leaves it open
	valid func([]byte) bool // what an open one may be; nil: anything but nothing
	route *route            // nil where no path ends
}

func compile(table []operation) (labels []string, root *segment) {
	labels, root = []string{"none", "malformed"}, &segment{}
	label := map[string]int{}
	for i := range table {
		op := &table[i]
		if _, ok := label[op.name]; !ok {
			label[op.name] = len(labels)
			labels = append(labels, op.name)
		}
		at := root
		for _, text := range strings.Split(op.path[1:], "/") {
			at = at.add(text)
		}
		if at.route == nil {
			at.route = &route{label: label[op.name], development: op.development}
		}
		at.route.add(op)
	}
	return labels, root
}

// add returns the segment behind s that has this text, and makes it if there is none.
func (s *segment) add(text string) *segment {
	if text != "" && text[0] == '{' {
		if s.open == nil {
			s.open = &segment{}
			if text == "{provider}" {
				s.open.valid = func(given []byte) bool { return wire.ValidProvider(string(given)) }
			}
		}
		return s.open
	}
	for _, n := range s.next {
		if n.text == text {
			return n
		}
	}
	n := &segment{text: text}
	s.next = append(s.next, n)
	return n
}

func (r *route) add(op *operation) {
	allow := op.method
	switch op.method {
	case "GET":
		r.get, allow = op, "GET, HEAD"
	case "POST":
		r.post = op
	case "DELETE":
		r.delete = op
	}
	r.allow = strings.TrimPrefix(r.allow+", "+allow, ", ")
}

// match finds the route of a canonical path, and the part of the path that the route leaves open.
func match(path []byte) (r *route, param []byte) {
	at := routeTree
next:
	for len(path) > 0 {
		text := path[1:] // behind the slash
		path = nil
		if end := bytes.IndexByte(text, '/'); end >= 0 {
			text, path = text[:end], text[end:]
		}
		for _, n := range at.next {
			if n.text == string(text) {
				at = n
				continue next
			}
		}
		if at = at.open; at == nil || len(text) == 0 || at.valid != nil && !at.valid(text) {
			return unknownPath, nil
		}
		param = text
	}
	if at.route == nil {
		return unknownPath, nil
	}
	return at.route, param
}

// operation is what the route does for a method; nil: nothing.
func (r *route) operation(h *fasthttp.RequestHeader) *operation {
	switch {
	case h.IsGet() || h.IsHead():
		return r.get
	case h.IsPost():
		return r.post
	case h.IsDelete():
		return r.delete
	}
	return nil
}

// dispatch finds the request's operation and has it answer.
func (x *exchange) dispatch() {
	h := &x.ctx.Request.Header
	path, query, ok := split(h.RequestURI())
	if !ok {
		x.route = malformed
		x.reject(ruleProtocol, problem.New(problem.BadRequest, "the path must be plain: no percent-encoding, no empty or dot segments, no host"))
		return
	}
	if !x.oneClient() {
		return
	}
	x.path = path
	x.route, x.param = match(path)
	if x.route == unknownPath || x.route.development && x.set.Sign == nil {
		x.notFound()
		return
	}
	if !x.set.BannedNetworks.Empty() && x.set.BannedNetworks.Contains(x.client()) {
		x.rejectPrepared(ruleBan, bannedNetwork, 0)
		return
	}
	if x.op = x.route.operation(h); x.op == nil {
		if x.preflight() {
			return
		}
		h := &x.ctx.Response.Header
		h.Set("Allow", x.route.allow)
		x.refuse(problem.New(problem.MethodNotAllowed, "allowed here: "+x.route.allow))
		return
	}
	if !h.IsPost() && len(x.ctx.Request.Body()) > 0 {
		x.reject(ruleBody, problem.New(problem.BadRequest, "a request of this method has no body"))
		return
	}
	if len(query) > 0 && x.op.query && !x.queryOnce() {
		return
	}
	x.op.handle(x)
}
