package api

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// route is a row of the internal listener's table.
type route struct {
	method string
	path   string   // one segment may be {a parameter}
	name   string   // the label of its metrics
	params []string // query parameters it takes
	always bool     // answered however many requests are in flight
	handle func(*Server, *request) (result string)
}

// routes is the table. Where a path takes several methods its first row names the metrics of those that it does not take.
var routes = []route{
	{"GET", wire.FeedPath, "feed", []string{"instance", "since", "wait_ms"}, false, (*Server).getFeed},
	{"GET", wire.RevocationsPath, "revocations", []string{"since", "wait_ms"}, false, (*Server).getRevocations},
	{"GET", wire.HealthPath, "health", nil, true, (*Server).getHealth},
	{"POST", verdict.Path, "records", nil, false, (*Server).postRecords},
	{"POST", wire.ReportPath, "report", nil, false, (*Server).postReport},
	{"GET", "/v1/time", "time", nil, false, (*Server).getTime},
	{"GET", "/v1/sales", "sales", nil, false, (*Server).getSales},
	{"GET", "/v1/sales/{sale_id}", "sale", nil, false, (*Server).getSale},
	{"POST", "/v1/sales/{sale_id}/orders", "order", nil, false, (*Server).postOrder},
	{"GET", "/v1/sales/{sale_id}/timeline", "timeline", nil, false, (*Server).getTimeline},
	{"GET", "/v1/sales/{sale_id}/standby", "standby", nil, false, (*Server).getStandby},
	{"POST", "/v1/sales/{sale_id}/standby", "standby_join", nil, false, (*Server).postStandby},
	{"DELETE", "/v1/sales/{sale_id}/standby", "standby_leave", nil, false, (*Server).deleteStandby},
	{"GET", "/v1/orders", "orders", []string{"sale_id", "cursor"}, false, (*Server).getOrders},
	{"GET", "/v1/orders/{order_id}", "status", []string{"wait_ms"}, false, (*Server).getOrder},
	{"POST", "/v1/orders/{order_id}/payment", "payment", nil, false, (*Server).postPayment},
	{"POST", "/v1/orders/{order_id}/cancellation", "cancellation", nil, false, (*Server).postCancellation},
	{"POST", wire.WebhookPath + "{provider}", "webhook", nil, false, (*Server).postWebhook},
	{"GET", wire.CouponsPath, "coupons", []string{"cursor"}, false, (*Server).getCoupons},
	{"POST", wire.CouponsPath + "/{claim_id}/use", "coupon_use", nil, false, (*Server).postUse},
	{"POST", wire.CartPath, "cart", nil, false, (*Server).postCart},
	{"GET", wire.SKUsPath, "skus", nil, false, (*Server).getSKUs},
}

// unrouted stands for requests that no row is for.
var unrouted = route{name: "none"}

// endpoint is the routes of one path.
type endpoint struct {
	before, after string // of the parameter, where the path has one
	valid         func(string) bool
	routes        []*route
}

// exact and patterns are the endpoints without and with a parameter.
var exact, patterns = endpoints()

func endpoints() (exact map[string]*endpoint, patterns []*endpoint) {
	byPath := map[string]*endpoint{}
	exact = map[string]*endpoint{}
	for i := range routes {
		rt := &routes[i]
		e := byPath[rt.path]
		if e == nil {
			e = &endpoint{valid: func(arg string) bool { return arg != "" && !strings.Contains(arg, "/") }}
			byPath[rt.path] = e
			before, rest, ok := strings.Cut(rt.path, "{")
			if param, after, _ := strings.Cut(rest, "}"); ok {
				e.before, e.after = before, after
				if param == "provider" {
					e.valid = wire.ValidProvider
				}
				patterns = append(patterns, e)
			} else {
				exact[rt.path] = e
			}
		}
		e.routes = append(e.routes, rt)
	}
	return exact, patterns
}

// match finds the routes of a path as it stands in the request line: nothing is decoded, so what would need decoding is no
// path of ours. nil: there are none.
func match(path string) (found []*route, arg string) {
	if e := exact[path]; e != nil {
		return e.routes, ""
	}
	for _, e := range patterns {
		rest, ok := strings.CutPrefix(path, e.before)
		if !ok {
			continue
		}
		if arg, ok := strings.CutSuffix(rest, e.after); ok && e.valid(arg) {
			return e.routes, arg
		}
	}
	return nil, ""
}

// find sets the route, its argument and the query, or says what is wrong with them.
func (r *request) find() *problem.Problem {
	path, rawQuery, _ := strings.Cut(string(r.Request.Header.RequestURI()), "?")
	found, arg := match(path)
	if found == nil {
		return problem.New(problem.NotFound, "there is no such path")
	}
	r.route, r.arg = found[0], arg
	method := string(r.Method())
	i := slices.IndexFunc(found, func(rt *route) bool { return rt.method == method })
	if i < 0 {
		allowed := found[0].method
		for _, rt := range found[1:] {
			allowed += ", " + rt.method
		}
		r.Response.Header.Set("Allow", allowed)
		return problem.New(problem.MethodNotAllowed, fmt.Sprintf("this path takes %s only", allowed))
	}
	r.route = found[i]
	var p *problem.Problem
	r.query, p = parseQuery(rawQuery, r.route.params)
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
		if !slices.Contains(known, name) {
			return nil, problem.Invalid(clip(name), "this path has no such parameter")
		}
		if len(v) > 1 {
			return nil, problem.Invalid(name, "it is there more than once")
		}
		q[name] = v[0]
	}
	return q, nil
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
