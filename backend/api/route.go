package api

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// route is one path and method. Its name is the label of its metrics.
type route struct {
	name   string
	method string
	params []string // query parameters it takes
	handle func(*Server, *request) (result string)
	others []*route // of the same path, with other methods
}

var (
	unrouted     = route{name: "none"}
	feedRoute    = route{"feed", "GET", []string{"instance", "since", "wait_ms"}, (*Server).getFeed, nil}
	timeRoute    = route{"time", "GET", nil, (*Server).getTime, nil}
	salesRoute   = route{"sales", "GET", nil, (*Server).getSales, nil}
	saleRoute    = route{"sale", "GET", nil, (*Server).getSale, nil}
	orderRoute   = route{"order", "POST", nil, (*Server).postOrder, nil}
	statusRoute  = route{"status", "GET", []string{"wait_ms"}, (*Server).getOrder, nil}
	listRoute    = route{"orders", "GET", []string{"sale_id", "cursor"}, (*Server).getOrders, nil}
	paymentRoute = route{"payment", "POST", nil, (*Server).postPayment, nil}
	cancelRoute  = route{"cancellation", "POST", nil, (*Server).postCancellation, nil}
	webhookRoute = route{"webhook", "POST", nil, (*Server).postWebhook, nil}
	couponsRoute = route{"coupons", "GET", []string{"cursor"}, (*Server).getCoupons, nil}
	useRoute     = route{"coupon_use", "POST", nil, (*Server).postUse, nil}
	cartRoute    = route{"cart", "POST", nil, (*Server).postCart, nil}
	skusRoute    = route{"skus", "GET", nil, (*Server).getSKUs, nil}
	joinRoute    = route{"standby_join", "POST", nil, (*Server).postStandby, nil}
	leaveRoute   = route{"standby_leave", "DELETE", nil, (*Server).deleteStandby, nil}
	standbyRoute = route{"standby", "GET", nil, (*Server).getStandby, []*route{&joinRoute, &leaveRoute}}

	healthRoute   = route{"health", "GET", nil, (*Server).getHealth, nil}
	timelineRoute = route{"timeline", "GET", nil, (*Server).getTimeline, nil}
	recordsRoute  = route{"records", "POST", nil, (*Server).postRecords, nil}
)

// routes lists them all, for the metrics.
var routes = []*route{&unrouted, &feedRoute, &healthRoute, &timeRoute, &salesRoute, &saleRoute, &orderRoute, &statusRoute, &listRoute,
	&paymentRoute, &cancelRoute, &webhookRoute, &couponsRoute, &useRoute, &cartRoute, &skusRoute,
	&timelineRoute, &recordsRoute, &joinRoute, &leaveRoute, &standbyRoute}

// match finds the route of a path as it stands in the request line: nothing is decoded, so what would need decoding is no
// path of ours. nil: there is none.
func match(path string) (rt *route, arg string) {
	switch path {
	case wire.FeedPath:
		return &feedRoute, ""
	case wire.HealthPath:
		return &healthRoute, ""
	case verdict.Path:
		return &recordsRoute, ""
	case "/v1/time":
		return &timeRoute, ""
	case "/v1/sales":
		return &salesRoute, ""
	case "/v1/orders":
		return &listRoute, ""
	case wire.CouponsPath:
		return &couponsRoute, ""
	case wire.CartPath:
		return &cartRoute, ""
	case wire.SKUsPath:
		return &skusRoute, ""
	}
	if rest, ok := strings.CutPrefix(path, "/v1/sales/"); ok {
		arg, rest, more := strings.Cut(rest, "/")
		switch {
		case arg == "":
		case !more:
			return &saleRoute, arg
		case rest == "orders":
			return &orderRoute, arg
		case rest == "timeline":
			return &timelineRoute, arg
		case rest == "standby":
			return &standbyRoute, arg
		}
	}
	if rest, ok := strings.CutPrefix(path, "/v1/orders/"); ok {
		arg, rest, more := strings.Cut(rest, "/")
		switch {
		case arg == "":
		case !more:
			return &statusRoute, arg
		case rest == "payment":
			return &paymentRoute, arg
		case rest == "cancellation":
			return &cancelRoute, arg
		}
	}
	if arg, ok := strings.CutPrefix(path, wire.WebhookPath); ok && wire.ValidProvider(arg) {
		return &webhookRoute, arg
	}
	if rest, ok := strings.CutPrefix(path, wire.CouponsPath+"/"); ok {
		if arg, rest, _ := strings.Cut(rest, "/"); arg != "" && rest == "use" {
			return &useRoute, arg
		}
	}
	return nil, ""
}

// find sets the route, its argument and the query, or says what is wrong with them.
func (r *request) find() *problem.Problem {
	path, rawQuery, _ := strings.Cut(string(r.Request.Header.RequestURI()), "?")
	rt, arg := match(path)
	if rt == nil {
		return problem.New(problem.NotFound, "there is no such path")
	}
	method, allowed := string(r.Method()), rt.method
	for _, other := range rt.others {
		allowed += ", " + other.method
		if other.method == method {
			rt = other
		}
	}
	r.route, r.arg = rt, arg
	if method != rt.method {
		p := problem.New(problem.MethodNotAllowed, fmt.Sprintf("this path takes %s only", allowed))
		r.Response.Header.Set("Allow", allowed)
		return p
	}
	var p *problem.Problem
	r.query, p = parseQuery(rawQuery, rt.params)
	return p
}

// query is the parameters of a request: each is known, and there once.
type query map[string]string

func parseQuery(raw string, known []string) (query, *problem.Problem) {
	if raw == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, problem.Invalid("query", "it cannot be read")
	}
	q := query{}
	for name, v := range values {
		if !contains(known, name) {
			return nil, problem.Invalid(clip(name), "this path has no such parameter")
		}
		if len(v) > 1 {
			return nil, problem.Invalid(name, "it is there more than once")
		}
		q[name] = v[0]
	}
	return q, nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// clip keeps what a client sent short enough to be said back.
func clip(s string) string {
	if len(s) > 40 {
		s = s[:40]
	}
	return strings.ToValidUTF8(s, "?")
}

// wait reads wait_ms.
func (q query) wait() (time.Duration, *problem.Problem) {
	s, ok := q["wait_ms"]
	if !ok {
		return 0, nil
	}
	ms, err := strconv.ParseUint(s, 10, 32)
	if err != nil || time.Duration(ms)*time.Millisecond > wire.MaxWait {
		return 0, problem.Invalid("wait_ms", fmt.Sprintf("it must be a whole number of milliseconds from 0 to %d", wire.MaxWait.Milliseconds()))
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// saleID reads the {id} of a sale's path.
func (r *request) saleID() (int64, *problem.Problem) {
	id, ok := wire.ParseID(r.arg)
	if !ok {
		return 0, problem.Invalid("sale_id", "it must be a positive whole number")
	}
	return id, nil
}

// orderID reads the {id} of an order's path. What is no order id names no order.
func (r *request) orderID() (string, *problem.Problem) {
	if !wire.ValidOrderID(r.arg) {
		return "", noSuchOrder()
	}
	return r.arg, nil
}

func noSuchOrder() *problem.Problem {
	return problem.New(problem.OrderNotFound, "you have no order with this id")
}

func noSuchSale() *problem.Problem {
	return problem.New(problem.SaleNotFound, "there is no sale with this id")
}

// user is the user in whose name the request was signed.
func (r *request) user() (string, *problem.Problem) {
	if r.uid == "" {
		return "", problem.New(problem.Unauthenticated, "this takes a user")
	}
	return r.uid, nil
}

// idempotencyKey reads the header; "" when it is absent.
func (r *request) idempotencyKey() (string, *problem.Problem) {
	values := r.Request.Header.PeekAll("Idempotency-Key")
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		key := string(values[0])
		if !wire.ValidIdempotencyKey(key) {
			return "", problem.Invalid("Idempotency-Key", fmt.Sprintf("it must be 1 to %d visible ASCII characters", wire.MaxIdempotencyKey))
		}
		return key, nil
	default:
		return "", problem.Invalid("Idempotency-Key", "it is there more than once")
	}
}

// jsonBody returns the body, which is JSON if there is one.
func (r *request) jsonBody() ([]byte, *problem.Problem) {
	body := r.Request.Body()
	if len(body) == 0 {
		return nil, nil
	}
	kind, _, _ := strings.Cut(string(r.Request.Header.ContentType()), ";")
	if kind = strings.TrimSpace(kind); kind != "" && !strings.EqualFold(kind, "application/json") {
		return nil, problem.New(problem.UnsupportedMediaType, fmt.Sprintf("the body is %s; it must be application/json", clip(kind)))
	}
	return body, nil
}

// noBody refuses a body that says anything.
func (r *request) noBody() *problem.Problem {
	body, p := r.jsonBody()
	if p != nil || len(body) == 0 {
		return p
	}
	var nothing struct{}
	if err := wire.DecodeStrict(body, &nothing); err != nil {
		return badBody(err)
	}
	return nil
}

// badBody names the member that is wrong, where the error does.
func badBody(err error) *problem.Problem {
	p := problem.New(problem.BadRequest, err.Error())
	p.Field = "body"
	if member, _, ok := strings.Cut(err.Error(), ": "); ok && !strings.ContainsAny(member, " ") {
		p.Field = member
	}
	return p
}

func validUID(s string) bool { return wire.ValidUID(s) }
