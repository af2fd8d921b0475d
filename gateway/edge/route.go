package edge

import (
	"bytes"

	"floodgate.internal/shared/wire"
)

// route is what a path stands for; it is also a metric's label.
type route int

const (
	routeNone      route = iota // no such path
	routeMalformed              // not a canonical path, or not a request at all
	routePage
	routeTime
	routeSales
	routeSale
	routeOrder   // a new order
	routeStandby // a sale's standby line
	routeMine    // own orders
	routeStatus  // one order
	routePay
	routeCancel
	routeWebhook
	routeCoupons // own coupons
	routeUse     // of one
	routeCart    // an order of several SKUs
	routeSKUs
	routeTimeline // of a user in a sale
	routeSession
	routeDevSession
	routes
)

var routeNames = [routes]string{
	"none", "malformed", "page", "time", "sales", "sale", "order_post", "standby", "orders_get", "order_get", "payment", "cancellation",
	"webhook", "coupons", "coupon_use", "cart_post", "skus", "timeline", "session", "dev_session",
}

// allow is the methods of each route, as the Allow field lists them. HEAD goes wherever GET goes.
var allow = [routes]string{
	routePage: "GET, HEAD", routeTime: "GET, HEAD", routeSales: "GET, HEAD", routeSale: "GET, HEAD", routeOrder: "POST",
	routeStandby: "GET, HEAD, POST, DELETE",
	routeMine:    "GET, HEAD", routeStatus: "GET, HEAD", routePay: "POST", routeCancel: "POST",
	routeWebhook: "POST",
	routeCoupons: "GET, HEAD", routeUse: "POST",
	routeCart: "POST", routeSKUs: "GET, HEAD",
	routeTimeline: "GET, HEAD",
	routeSession:  "GET, HEAD, POST, DELETE", routeDevSession: "POST",
}

// split takes the request target apart. The path must be in origin form and canonical: no percent-encoding, no empty or
// dot segments, nothing but letters, digits and "._-/".
func split(target []byte) (path, query []byte, ok bool) {
	path = target
	if i := bytes.IndexByte(target, '?'); i >= 0 {
		path, query = target[:i], target[i+1:]
	}
	if len(path) == 0 || path[0] != '/' || len(path) > 256 {
		return nil, nil, false
	}
	segment := 0 // where the present segment starts
	for i, c := range path {
		switch {
		case c == '/':
			if i > 0 && (i == segment || dots(path[segment:i])) {
				return nil, nil, false
			}
			segment = i + 1
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-':
		default:
			return nil, nil, false
		}
	}
	for _, c := range query {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return nil, nil, false
		}
	}
	return path, query, !dots(path[segment:])
}

func dots(s []byte) bool { return string(s) == "." || string(s) == ".." }

// match finds the route of a canonical path, and what it names: a sale (0 if it cannot be one), an order, a coupon or a payment provider.
func match(path []byte) (r route, sale int64, name []byte) {
	switch string(path) {
	case "/":
		return routePage, 0, nil
	case "/v1/time":
		return routeTime, 0, nil
	case "/v1/sales":
		return routeSales, 0, nil
	case "/v1/orders":
		return routeMine, 0, nil
	case wire.CouponsPath:
		return routeCoupons, 0, nil
	case wire.CartPath:
		return routeCart, 0, nil
	case wire.SKUsPath:
		return routeSKUs, 0, nil
	case "/v1/session":
		return routeSession, 0, nil
	case "/v1/dev/session":
		return routeDevSession, 0, nil
	}
	if rest, ok := bytes.CutPrefix(path, []byte("/v1/sales/")); ok {
		id, tail, more := bytes.Cut(rest, []byte("/"))
		sale, _ = wire.ParseID(string(id))
		switch {
		case len(id) == 0:
		case !more:
			return routeSale, sale, nil
		case string(tail) == "orders":
			return routeOrder, sale, nil
		case string(tail) == "timeline":
			return routeTimeline, sale, nil
		case string(tail) == "standby":
			return routeStandby, sale, nil
		}
		return routeNone, 0, nil
	}
	if rest, ok := bytes.CutPrefix(path, []byte("/v1/orders/")); ok {
		id, tail, more := bytes.Cut(rest, []byte("/"))
		switch {
		case len(id) == 0:
		case !more:
			return routeStatus, 0, id
		case string(tail) == "payment":
			return routePay, 0, id
		case string(tail) == "cancellation":
			return routeCancel, 0, id
		}
		return routeNone, 0, nil
	}
	if provider, ok := bytes.CutPrefix(path, []byte(wire.WebhookPath)); ok && wire.ValidProvider(string(provider)) {
		return routeWebhook, 0, provider
	}
	if rest, ok := bytes.CutPrefix(path, []byte(wire.CouponsPath+"/")); ok {
		if id, tail, _ := bytes.Cut(rest, []byte("/")); len(id) > 0 && string(tail) == "use" {
			return routeUse, 0, id
		}
		return routeNone, 0, nil
	}
	if bytes.HasPrefix(path, []byte("/sales/")) || bytes.HasPrefix(path, []byte("/assets/")) {
		return routePage, 0, nil
	}
	return routeNone, 0, nil
}
