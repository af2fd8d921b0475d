package admin

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"floodgate.internal/backend/console"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
)

// route is a row of the admin listener's table.
type route struct {
	method string
	path   string
	role   operator.Role // that the operator must have, at least
	handle func(*Admin, *request) (*answer, error)

	plain func(*Admin) http.Handler // instead of handle: it answers by itself
	post  bool                      // a plain one that takes POST as well
}

const v1 = "/admin/v1"

// routes is the table. HEAD is answered wherever GET is. A viewer reads; an operator also runs sales, and what is up to their shoppers;
// an admin also changes prices of SKUs and coupons, and does what cannot be taken back or costs the stores much.
var routes = []route{
	{method: "GET", path: v1 + "/skus", role: operator.Viewer, handle: (*Admin).listSKUs},
	{method: "POST", path: v1 + "/skus", role: operator.Operates, handle: (*Admin).createSKU},
	{method: "GET", path: v1 + "/skus/{id}", role: operator.Viewer, handle: (*Admin).getSKU},
	{method: "PATCH", path: v1 + "/skus/{id}", role: operator.Admin, handle: (*Admin).patchSKU},
	{method: "POST", path: v1 + "/skus/{id}/restock", role: operator.Operates, handle: (*Admin).restockSKU},
	{method: "GET", path: v1 + "/skus/{id}/audit", role: operator.Viewer, handle: (*Admin).auditSKU},
	{method: "POST", path: v1 + "/skus/{id}/rebuild", role: operator.Admin, handle: (*Admin).rebuildSKU},
	{method: "GET", path: v1 + "/sales", role: operator.Viewer, handle: (*Admin).listSales},
	{method: "POST", path: v1 + "/sales", role: operator.Operates, handle: (*Admin).createSale},
	{method: "GET", path: v1 + "/sales/{id}", role: operator.Viewer, handle: (*Admin).getSale},
	{method: "PATCH", path: v1 + "/sales/{id}", role: operator.Operates, handle: (*Admin).patchSale},
	{method: "POST", path: v1 + "/sales/{id}/restock", role: operator.Operates, handle: (*Admin).restockSale},
	{method: "POST", path: v1 + "/sales/{id}/pause", role: operator.Operates, handle: (*Admin).pauseSale},
	{method: "POST", path: v1 + "/sales/{id}/resume", role: operator.Operates, handle: (*Admin).resumeSale},
	{method: "POST", path: v1 + "/sales/{id}/close", role: operator.Operates, handle: (*Admin).closeSale},
	{method: "POST", path: v1 + "/sales/{id}/archive", role: operator.Admin, handle: (*Admin).archiveSale},
	{method: "GET", path: v1 + "/sales/{id}/orders.csv", role: operator.Viewer, handle: (*Admin).exportOrders},
	{method: "GET", path: v1 + "/sales/{id}/audit", role: operator.Viewer, handle: (*Admin).auditSale},
	{method: "GET", path: v1 + "/sales/{id}/preflight", role: operator.Viewer, handle: (*Admin).preflight},
	{method: "POST", path: v1 + "/sales/{id}/rebuild", role: operator.Admin, handle: (*Admin).rebuildSale},
	{method: "GET", path: v1 + "/sales/{id}/eligibility", role: operator.Viewer, handle: (*Admin).getEligible},
	{method: "POST", path: v1 + "/sales/{id}/eligibility", role: operator.Operates, handle: (*Admin).changeEligible},
	{method: "PUT", path: v1 + "/sales/{id}/eligibility", role: operator.Operates, handle: (*Admin).setEligible},
	{method: "DELETE", path: v1 + "/sales/{id}/eligibility", role: operator.Operates, handle: (*Admin).liftEligible},
	{method: "GET", path: v1 + "/sales/{id}/concentration", role: operator.Viewer, handle: (*Admin).concentration},
	{method: "GET", path: v1 + "/bans", role: operator.Viewer, handle: (*Admin).getBans},
	{method: "POST", path: v1 + "/bans", role: operator.Operates, handle: (*Admin).changeBans},
	{method: "GET", path: v1 + "/revocations", role: operator.Viewer, handle: (*Admin).listRevocations},
	{method: "POST", path: v1 + "/revocations", role: operator.Operates, handle: (*Admin).revoke},
	{method: "DELETE", path: v1 + "/revocations", role: operator.Operates, handle: (*Admin).unrevoke},
	{method: "GET", path: v1 + "/orders", role: operator.Viewer, handle: (*Admin).searchOrders},
	{method: "POST", path: v1 + "/orders/{id}/cancel", role: operator.Operates, handle: (*Admin).cancelOrder},
	{method: "GET", path: v1 + "/coupons", role: operator.Viewer, handle: (*Admin).listCoupons},
	{method: "POST", path: v1 + "/coupons", role: operator.Admin, handle: (*Admin).createCoupon},
	{method: "GET", path: v1 + "/coupons/{id}", role: operator.Viewer, handle: (*Admin).getCoupon},
	{method: "PATCH", path: v1 + "/coupons/{id}", role: operator.Admin, handle: (*Admin).patchCoupon},
	{method: "GET", path: v1 + "/queue", role: operator.Viewer, handle: (*Admin).queue},
	{method: "GET", path: v1 + "/gateways", role: operator.Viewer, handle: (*Admin).listGateways},
	{method: "GET", path: v1 + "/dead-letters", role: operator.Viewer, handle: (*Admin).listDeadLetters},
	{method: "GET", path: v1 + "/dead-letters/{id}", role: operator.Viewer, handle: (*Admin).getDeadLetter},
	{method: "POST", path: v1 + "/dead-letters/{id}/replay", role: operator.Operates, handle: (*Admin).replayDeadLetter},
	{method: "GET", path: v1 + "/payments", role: operator.Viewer, handle: (*Admin).listPayments},
	{method: "GET", path: v1 + "/events", role: operator.Viewer, handle: (*Admin).listEvents},
	{method: "POST", path: v1 + "/events/{id}/replay", role: operator.Operates, handle: (*Admin).replayEvent},
	{method: "GET", path: v1 + "/timeline", role: operator.Viewer, handle: (*Admin).timeline},
	{method: "GET", path: v1 + "/audit-log", role: operator.Viewer, handle: (*Admin).auditLog},
	{method: "GET", path: v1 + "/session", role: operator.Viewer, handle: (*Admin).getSession},
	{method: "POST", path: v1 + "/session", role: operator.Anybody, handle: (*Admin).login},
	{method: "DELETE", path: v1 + "/session", role: operator.Anybody, handle: (*Admin).logout},
	{method: "GET", path: "/-/healthy", role: operator.Anybody, handle: (*Admin).healthy},
	{method: "GET", path: "/-/ready", role: operator.Anybody, handle: (*Admin).ready},
	{method: "GET", path: "/metrics", role: operator.Anybody, plain: (*Admin).metrics},
	// A profile costs the process time that its orders have not.
	{method: "GET", path: "/debug/pprof/", role: operator.Operates, plain: profile(pprof.Index), post: true},
	{method: "GET", path: "/debug/pprof/cmdline", role: operator.Operates, plain: profile(pprof.Cmdline), post: true},
	{method: "GET", path: "/debug/pprof/profile", role: operator.Operates, plain: profile(pprof.Profile), post: true},
	{method: "GET", path: "/debug/pprof/symbol", role: operator.Operates, plain: profile(pprof.Symbol), post: true},
	{method: "GET", path: "/debug/pprof/trace", role: operator.Operates, plain: profile(pprof.Trace), post: true},
}

// label is the route in the metrics.
func (rt *route) label() string {
	if strings.HasPrefix(rt.path, "/debug/pprof/") {
		return "/debug/pprof/"
	}
	return rt.path
}

func (a *Admin) metrics() http.Handler {
	return promhttp.HandlerFor(a.Gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

func profile(f http.HandlerFunc) func(*Admin) http.Handler {
	return func(*Admin) http.Handler { return f }
}

// methods are the routes of one path.
type methods map[string]*route

// routes puts the table into the mux.
func (a *Admin) routes() {
	byPath := map[string]methods{}
	for i := range routes {
		rt := &routes[i]
		if rt.plain != nil {
			a.mux.Handle(rt.path, a.plain(rt, rt.plain(a)))
			continue
		}
		if byPath[rt.path] == nil {
			byPath[rt.path] = methods{}
		}
		byPath[rt.path][rt.method] = rt
	}
	for path, m := range byPath {
		a.mux.Handle(path, a.path(path, m))
	}
	file := &route{method: "GET", path: "console", role: operator.Anybody}
	for _, path := range console.Paths {
		if path == "/" {
			path = "/{$}" // alone, not what is below it
		}
		a.mux.Handle(path, a.plain(file, http.HandlerFunc(console.ServeHTTP)))
	}
	a.mux.Handle("/", a.path("other", nil))
}

// find returns the route of a request, and notes who sent it. Where no route takes just anybody, only an operator learns which there are.
func (a *Admin) find(w http.ResponseWriter, r *request, m methods) (*route, error) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	rt := m[method]
	need := operator.Anybody
	if rt != nil {
		need = rt.role
	} else if strings.HasPrefix(r.URL.Path, "/admin/") || strings.HasPrefix(r.URL.Path, "/debug/") {
		need = operator.Viewer
	}
	if need != operator.Anybody {
		by, err := a.who(w, r.Request)
		if err != nil {
			return nil, err
		}
		if r.by = by; !by.Role.Covers(need) {
			return nil, operator.TooLow(by, need)
		}
	}
	switch {
	case rt != nil:
		return rt, nil
	case m == nil:
		return nil, problem.New(problem.NotFound, "no such path: the admin API is under /admin/v1")
	}
	w.Header().Set("Allow", strings.Join(m.allowed(), ", "))
	return nil, problem.New(problem.MethodNotAllowed, fmt.Sprintf("%s is not for this path, only %s", r.Method, strings.Join(m.allowed(), ", ")))
}

// allowed lists the methods of a path; HEAD comes with GET.
func (m methods) allowed() []string {
	var list []string
	for name := range m {
		list = append(list, name)
		if name == http.MethodGet {
			list = append(list, http.MethodHead)
		}
	}
	slices.Sort(list)
	return list
}
