//go:build servers

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// TestContractWalk asks every operation of docs/openapi.yaml for something good and something bad. Every answer is held
// against the contract; every operation must have answered well.
func TestContractWalk(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{Backend: "events: {endpoints: [{name: shop, url: 'http://127.0.0.1:9/', secret: whsec_d2ViaG9va3MtdGhhdC1ub2JvZHktdGFrZXM=}]}\n"})
	k := &walk{w: w, good: map[string]bool{}}
	open := w.newSale("Open", 3, time.Now().Add(-time.Minute), 600)
	soon := w.newSale("Soon", 3, time.Now().Add(time.Hour), 600)
	over := w.newSale("Over", 3, time.Now().Add(-2*time.Hour), 600)
	w.state(open, wire.Open)
	w.state(over, wire.Ended)
	k.tokens = w.tokens(1, 13)
	k.pages(open)
	k.reads(open)
	k.orders(open, soon, over)
	k.payments()
	k.events()
	k.ops()
	k.session()
	k.feed()
	k.reports()
	k.timelines(open)
	k.adminSKUs()
	k.carts()
	k.adminSales()
	k.operate()
	k.paused()
	k.standby(soon, over)
	k.coupons()
	for _, r := range w.contract.routes {
		if id := r.kin.Operation.OperationID; !k.good[id] {
			t.Errorf("%s %s (%s) never answered well", r.kin.Method, r.kin.Path, id)
		}
	}
}

// walk remembers which operations answered well.
type walk struct {
	w      *system
	tokens []string
	good   map[string]bool
}

// try sends a request, which must be answered with this status, and this code if it is a problem.
func (k *walk) try(c world.Call, status int, code string) world.Answer {
	k.w.t.Helper()
	a := k.w.do(k.w.ctx, c)
	if a.Status != status || a.Code != code {
		k.w.t.Errorf("%s %s %s: got %s, want %d %s", c.Method, c.URL, c.Body, a, status, code)
	}
	if a.Status/100 == 2 {
		u, err := url.Parse(c.URL)
		k.w.must(err)
		if r, _ := k.w.contract.find(k.w.usual(u), c.Method, u.Path); r != nil {
			k.good[r.kin.Operation.OperationID] = true
		}
	}
	return a
}

func (k *walk) public(method, path, token, body string, status int, code string) world.Answer {
	k.w.t.Helper()
	return k.try(world.Call{Method: method, URL: k.w.Ports.PublicURL() + path, Token: token, Body: body}, status, code)
}

func (k *walk) admin(method, path, body string, status int, code string) world.Answer {
	k.w.t.Helper()
	return k.try(world.Call{Method: method, URL: k.w.Ports.AdminURL() + "/admin/v1" + path, Token: development.AdminToken, Body: body}, status, code)
}

func (k *walk) pages(sale int64) {
	k.w.t.Helper()
	for _, path := range []string{"/", fmt.Sprintf("/sales/%d", sale), "/sales/999999", "/assets/favicon.svg"} {
		a := k.public("GET", path, "", "", 200, "")
		k.try(world.Call{Method: "GET", URL: k.w.Ports.PublicURL() + path, Header: map[string]string{"If-None-Match": a.Header.Get("ETag")}}, 304, "")
		k.public("POST", path, "", "", 405, "METHOD_NOT_ALLOWED")
	}
	for _, path := range []string{"/sales/x", "/sales/0", "/assets/none.js", "/nowhere", "/v1", "/v1/nowhere", "/v2/sales", "/-/ready", "/metrics",
		"/internal/v1/feed", "/admin/v1/sales", "/debug/pprof/", "/favicon.ico/x"} {
		k.public("GET", path, "", "", 404, "NOT_FOUND")
	}
	a := k.public("POST", "/v1/dev/session", "", `{"uid":"walker"}`, 200, "")
	cookie, _, _ := strings.Cut(a.Header.Get("Set-Cookie"), ";")
	list := k.try(world.Call{Method: "GET", URL: k.w.Ports.PublicURL() + "/v1/orders", Header: map[string]string{"Cookie": cookie}}, 200, "")
	if len(list.Body) == 0 {
		k.w.t.Errorf("orders by cookie: got %s", list)
	}
	k.try(world.Call{Method: "GET", URL: k.w.Ports.PublicURL() + "/v1/orders", Header: map[string]string{"Cookie": cookie + "x"}}, 401, "UNAUTHENTICATED")
	for _, body := range []string{"", "{}", `{"uid":""}`, `{"uid":"a b"}`, `{"uid":1}`, `{"uid":"a","x":1}`, "x", "[]", `{"uid":"` + strings.Repeat("a", 65) + `"}`} {
		k.public("POST", "/v1/dev/session", "", body, 400, "BAD_REQUEST")
	}
	k.public("POST", "/v1/session", "", `{"token":"`+k.tokens[0]+`"}`, 200, "")
	k.public("POST", "/v1/session", "", `{"token":"x"}`, 401, "UNAUTHENTICATED")
	for _, body := range []string{`{"token":1}`, `{"x":1}`, "x", "[]"} {
		k.public("POST", "/v1/session", "", body, 400, "BAD_REQUEST")
	}
	for _, body := range []string{"", "{}", `{"token":""}`} {
		k.public("POST", "/v1/session", "", body, 401, "UNAUTHENTICATED")
	}
	session := func(method string, header map[string]string, status int, code string) world.Answer {
		k.w.t.Helper()
		header["Cookie"] = cookie
		return k.try(world.Call{Method: method, URL: k.w.Ports.PublicURL() + "/v1/session", Header: header}, status, code)
	}
	if who := session("GET", map[string]string{}, 200, ""); !strings.Contains(string(who.Body), `"walker"`) {
		k.w.t.Errorf("the session is %s, want walker's", who)
	}
	session("DELETE", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, "FORBIDDEN")
	session("DELETE", map[string]string{"Sec-Fetch-Site": "same-origin"}, 204, "")
	k.public("GET", "/v1/session", "", "", 401, "UNAUTHENTICATED")
	k.public("PUT", "/v1/session", "", "", 405, "METHOD_NOT_ALLOWED")
}

func (k *walk) reads(sale int64) {
	k.w.t.Helper()
	one := fmt.Sprintf("/v1/sales/%d", sale)
	k.public("GET", "/v1/time", "", "", 200, "")
	for _, path := range []string{"/v1/sales", one} {
		a := k.public("GET", path, "", "", 200, "")
		if a.Header.Get("X-Cache") == "" {
			k.w.t.Errorf("GET %s: no X-Cache in %v", path, a.Header)
		}
		k.try(world.Call{Method: "GET", URL: k.w.Ports.PublicURL() + path, Header: map[string]string{"If-None-Match": a.Header.Get("ETag")}}, 304, "")
		k.public("GET", path, k.tokens[0], "", 200, "")
		k.public("DELETE", path, "", "", 405, "METHOD_NOT_ALLOWED")
	}
	k.public("POST", "/v1/time", "", "", 405, "METHOD_NOT_ALLOWED")
	k.public("GET", "/v1/sales/999999", "", "", 404, "SALE_NOT_FOUND")
	for _, id := range []string{"0", "01", "-1", "x", "1.5", "99999999999999999999", "%31", "1%2f2"} {
		k.refused(world.Call{Method: "GET", URL: k.w.Ports.PublicURL() + "/v1/sales/" + id})
		k.refused(world.Call{Method: "POST", URL: k.w.Ports.PublicURL() + "/v1/sales/" + id + "/orders", Token: k.tokens[0]})
	}
}

// refused sends a malformed request: any 4xx that the contract has will do.
func (k *walk) refused(c world.Call) {
	k.w.t.Helper()
	if a := k.w.do(k.w.ctx, c); a.Status/100 != 4 || a.Code == "" {
		k.w.t.Errorf("%s %s %q: got %s, want a problem of 4xx", c.Method, c.URL, c.Body, a)
	}
}

func (k *walk) orders(open, soon, over int64) {
	k.w.t.Helper()
	path := func(sale int64) string { return fmt.Sprintf("/v1/sales/%d/orders", sale) }
	at := k.w.Ports.PublicURL() + path(open)
	k.public("POST", path(999999), "", "", 404, "SALE_NOT_FOUND")
	k.public("POST", path(soon), "", "", 403, "SALE_NOT_STARTED")
	k.public("POST", path(over), "", "", 403, "SALE_ENDED")
	k.public("POST", path(open), "", "", 401, "UNAUTHENTICATED")
	k.public("GET", path(open), k.tokens[0], "", 405, "METHOD_NOT_ALLOWED")
	for i, body := range []string{"x", `{"quantity":0}`, `{"quantity":2}`, `{"quantity":"1"}`, `{"uid":"bob"}`, `[]`, `{"quantity":1,"quantity":1}`} {
		// A token each: a refused order draws on the limit, too.
		k.try(world.Call{Method: "POST", URL: at, Token: k.w.tokens(100+i, 100+i)[0], Body: body}, 400, "BAD_REQUEST")
	}
	k.try(world.Call{Method: "POST", URL: at, Token: k.w.tokens(110, 110)[0], Key: strings.Repeat("k", 129)}, 400, "BAD_REQUEST")
	k.try(world.Call{Method: "POST", URL: at, Token: k.w.tokens(111, 111)[0], Body: "{}", Header: map[string]string{"Content-Type": "text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE")
	k.try(world.Call{Method: "POST", URL: at, Token: k.w.tokens(112, 112)[0], Body: `{"quantity":` + strings.Repeat(" ", 70000) + `1}`}, 413, "PAYLOAD_TOO_LARGE")

	mine, other := k.tokens[1], k.tokens[2]
	a := k.try(world.Call{Method: "POST", URL: at, Token: mine, Key: "walk", Body: `{"quantity":1}`}, 202, "")
	id := a.OrderID
	k.public("POST", path(open), mine, "", 429, "RATE_LIMITED")
	k.w.order(id, mine, wire.PendingPayment)
	order := "/v1/orders/" + id
	k.public("GET", order, mine, "", 200, "")
	k.public("GET", order+"?wait_ms=100", mine, "", 200, "")
	k.public("GET", order, other, "", 404, "ORDER_NOT_FOUND")
	k.public("GET", order, "", "", 401, "UNAUTHENTICATED")
	for _, q := range []string{"?wait_ms=x", "?wait_ms=-1", "?wait_ms=20001", "?wait_ms=1&wait_ms=2"} {
		k.public("GET", order+q, k.tokens[3], "", 400, "BAD_REQUEST")
	}
	k.public("GET", "/v1/orders/nonsense", k.tokens[4], "", 404, "ORDER_NOT_FOUND")
	k.public("GET", "/v1/orders", mine, "", 200, "")
	k.public("GET", fmt.Sprintf("/v1/orders?sale_id=%d", open), mine, "", 200, "")
	k.public("GET", "/v1/orders", "", "", 401, "UNAUTHENTICATED")
	for _, q := range []string{"?sale_id=x", "?sale_id=0", "?cursor=%20", "?cursor=nonsense"} {
		k.public("GET", "/v1/orders"+q, k.tokens[5], "", 400, "BAD_REQUEST")
	}
	for _, what := range []string{"/payment", "/cancellation"} {
		k.public("POST", order+what, "", "", 401, "UNAUTHENTICATED")
		k.public("POST", order+what, other, "", 404, "ORDER_NOT_FOUND")
		k.public("POST", "/v1/orders/nonsense"+what, k.tokens[6], "", 404, "ORDER_NOT_FOUND")
		k.public("GET", order+what, mine, "", 405, "METHOD_NOT_ALLOWED")
		k.public("POST", order+what, mine, `{"x":1}`, 400, "BAD_REQUEST")
		k.try(world.Call{Method: "POST", URL: k.w.Ports.PublicURL() + order + what, Token: mine, Body: "x", Header: map[string]string{"Content-Type": "text/plain"}},
			415, "UNSUPPORTED_MEDIA_TYPE")
	}
	k.public("POST", order+"/payment", mine, "", 200, "")
	k.public("POST", order+"/payment", mine, "{}", 200, "")
	k.public("POST", order+"/cancellation", mine, "", 409, "ORDER_STATE_CONFLICT")

	// Past the gateway's limit the backend answers the repeats.
	signer := signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})
	internal := func(uid, key, body string, status int, code string) world.Answer {
		k.w.t.Helper()
		return k.try(k.signed(signer, "POST", path(open), uid, key, body), status, code)
	}
	if again := internal("2", "walk", `{"quantity":1}`, 202, ""); again.OrderID != id {
		k.w.t.Errorf("the same key: got order %s, want %s", again.OrderID, id)
	}
	internal("2", "", "", 409, "ALREADY_ORDERED")
	b := internal("bob", "one", "", 202, "")
	internal("bob", "one", "", 202, "")
	k.w.until("bob's order is there", patience, func() (bool, string) {
		a := k.w.do(k.w.ctx, k.signed(signer, "POST", "/v1/orders/"+b.OrderID+"/cancellation", "bob", "", ""))
		return a.Status == 200, a.String()
	})
	k.try(k.signed(signer, "POST", "/v1/orders/"+b.OrderID+"/cancellation", "bob", "", ""), 200, "")
	internal("carol", "", "", 202, "")
	internal("dave", "", "", 202, "")
	internal("erin", "", "", 409, "SOLD_OUT")
	k.w.state(open, wire.SoldOut)
	k.public("POST", path(open), k.tokens[7], "", 409, "SOLD_OUT")
	k.public("POST", path(open), "", "", 409, "SOLD_OUT")
}

// payments delivers webhooks through the gateway. What becomes of orders by them is another test's.
func (k *walk) payments() {
	k.w.t.Helper()
	sale := k.w.newSale("Paid for by webhook", 1, time.Now().Add(-time.Minute), 600)
	k.w.state(sale, wire.Open)
	token := k.w.tokens(170, 170)[0] // who orders nothing else within 5 s
	id := k.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), token, "", 202, "").OrderID
	k.w.order(id, token, wire.PendingPayment)
	deliver := func(e event, status int, code string) world.Answer {
		k.w.t.Helper()
		return k.try(k.w.webhook(e), status, code)
	}
	e := event{ID: "walk-1", Type: "payment.succeeded", PaymentID: "walk", OrderID: id, Amount: 4900, Currency: "EUR"}
	deliver(e.with(func(e *event) { e.Amount, e.ID, e.PaymentID = 1, "walk-0", "walk-0" }), 422, "PAYMENT_MISMATCH")
	deliver(e, 200, "")
	deliver(e, 200, "")
	deliver(e.with(func(e *event) { e.Type = "payment.refunded" }), 422, "IDEMPOTENCY_KEY_REUSED")
	deliver(e.with(func(e *event) { e.OrderID = "nonsense" }), 404, "ORDER_NOT_FOUND")
	deliver(e.with(func(e *event) { e.Currency = "euro" }), 400, "BAD_REQUEST")
	bad := k.w.webhook(e)
	bad.URL = strings.Replace(bad.URL, "/test", "/nobody", 1)
	k.try(bad, 404, "NOT_FOUND")
	bad = k.w.webhook(e)
	bad.Header[wire.PaymentSignature] = "t=1,v1=00"
	k.try(bad, 401, "UNAUTHENTICATED")
	bad.Header["Content-Type"] = "text/plain"
	k.try(bad, 415, "UNSUPPORTED_MEDIA_TYPE")
	bad = k.w.webhook(e)
	bad.Body += strings.Repeat(" ", wire.MaxWebhook)
	k.try(bad, 413, "PAYLOAD_TOO_LARGE")
	k.public("GET", wire.WebhookPath+development.Provider, "", "", 405, "METHOD_NOT_ALLOWED")

	k.admin("GET", "/payments", "", 200, "")
	k.admin("GET", "/payments?limit=1", "", 200, "")
	due := k.admin("GET", "/payments?status=refund_due&order_id="+id, "", 200, "")
	if !strings.Contains(string(due.Body), `"walk-0"`) || strings.Contains(string(due.Body), `"walk"`) {
		k.w.t.Errorf("refunds that are due: got %s", due)
	}
	for _, q := range []string{"?status=x", "?order_id=x", "?cursor=x", "?limit=0", "?x=1"} {
		k.admin("GET", "/payments"+q, "", 400, "BAD_REQUEST")
	}
	k.admin("POST", "/payments", "", 405, "METHOD_NOT_ALLOWED")
}

// events lists and replays what an endpoint is to be told at which nobody listens.
func (k *walk) events() {
	k.w.t.Helper()
	k.admin("GET", "/events", "", 200, "")
	page := k.admin("GET", "/events?limit=1&endpoint=shop&state=waiting", "", 200, "")
	id := regexp.MustCompile(`"id":(\d+)`).FindSubmatch(page.Body)
	if id == nil {
		k.w.t.Fatalf("events: got %s", page)
	}
	k.admin("POST", "/events/"+string(id[1])+"/replay", "", 200, "")
	k.admin("POST", "/events/999999/replay", "", 404, "NOT_FOUND")
	for _, q := range []string{"?state=x", "?endpoint=X", "?cursor=x", "?limit=0", "?x=1"} {
		k.admin("GET", "/events"+q, "", 400, "BAD_REQUEST")
	}
	k.admin("POST", "/events", "", 405, "METHOD_NOT_ALLOWED")
}

// signed is a call to the internal listener as a gateway makes it.
func (k *walk) signed(s *signing.Signer, method, target, uid, key, body string) world.Call {
	var req fasthttp.Request
	req.Header.SetMethod(method)
	req.SetRequestURI(target)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	req.SetBodyString(body)
	s.Sign(&req, uid, time.Now())
	c := world.Call{Method: method, URL: k.w.Ports.InternalURL() + target, Key: key, Body: body, Header: map[string]string{}}
	for name, v := range req.Header.All() {
		if n := string(name); strings.HasPrefix(n, "Floodgate-") {
			c.Header[n] = string(v)
		}
	}
	return c
}

func (k *walk) ops() {
	k.w.t.Helper()
	ops := k.w.Ports.OpsURL()
	for _, base := range []string{ops, k.w.Ports.AdminURL()} {
		for _, path := range []string{"/-/healthy", "/-/ready", "/metrics"} {
			k.try(world.Call{Method: "GET", URL: base + path}, 200, "")
			k.try(world.Call{Method: "DELETE", URL: base + path}, 405, "METHOD_NOT_ALLOWED")
		}
		k.refused(world.Call{Method: "GET", URL: base + "/nowhere"})
	}
	k.try(world.Call{Method: "GET", URL: ops + "/debug/pprof/"}, 200, "")
	k.try(world.Call{Method: "GET", URL: k.w.Ports.AdminURL() + "/debug/pprof/", Token: development.AdminToken}, 200, "")
	k.try(world.Call{Method: "GET", URL: k.w.Ports.AdminURL() + "/debug/pprof/"}, 401, "UNAUTHENTICATED")
	k.try(world.Call{Method: "GET", URL: ops + "/-/top?n=3"}, 200, "")
	k.try(world.Call{Method: "GET", URL: ops + "/-/top?n=0"}, 400, "BAD_REQUEST")
	a := k.try(world.Call{Method: "GET", URL: ops + "/-/config"}, 200, "")
	for _, secret := range []string{development.LoginSecret, development.SigningSecret} {
		if strings.Contains(string(a.Body), secret) {
			k.w.t.Errorf("/-/config shows a secret: %s", a)
		}
	}
	k.try(world.Call{Method: "POST", URL: ops + "/-/reload"}, 200, "")
	k.try(world.Call{Method: "GET", URL: ops + "/-/reload"}, 405, "METHOD_NOT_ALLOWED")
	k.try(world.Call{Method: "GET", URL: ops + "/-/reloads"}, 200, "")
}

// session logs in as the console's page does, and out.
func (k *walk) session() {
	k.w.t.Helper()
	admin := k.w.Ports.AdminURL()
	at := admin + "/admin/v1/session"
	page := map[string]string{"Origin": admin}
	k.try(world.Call{Method: "GET", URL: at}, 401, "UNAUTHENTICATED")
	k.try(world.Call{Method: "GET", URL: at, Token: development.AdminToken}, 200, "")
	k.try(world.Call{Method: "POST", URL: at, Body: `{"token":"wrong"}`, Header: page}, 401, "UNAUTHENTICATED")
	k.try(world.Call{Method: "POST", URL: at, Body: `{}`, Header: page}, 400, "BAD_REQUEST")
	k.try(world.Call{Method: "POST", URL: at, Body: `{"token":"` + development.AdminToken + `"}`, Header: map[string]string{"Origin": "http://evil.example"}}, 403, "FORBIDDEN")
	a := k.try(world.Call{Method: "POST", URL: at, Body: `{"token":"` + development.AdminToken + `"}`, Header: page}, 200, "")
	cookie, _, _ := strings.Cut(a.Header.Get("Set-Cookie"), ";")
	mine := map[string]string{"Origin": admin, "Cookie": cookie}
	k.try(world.Call{Method: "GET", URL: at, Header: mine}, 200, "")
	k.try(world.Call{Method: "GET", URL: admin + "/debug/pprof/", Header: mine}, 200, "")
	k.try(world.Call{Method: "POST", URL: admin + "/admin/v1/bans", Body: `{"add":["nobody-1"]}`, Header: map[string]string{"Origin": "http://evil.example", "Cookie": cookie}}, 403, "FORBIDDEN")
	k.try(world.Call{Method: "DELETE", URL: at, Header: mine}, 200, "")
	k.try(world.Call{Method: "GET", URL: at, Header: mine}, 401, "UNAUTHENTICATED")
}

func (k *walk) feed() {
	k.w.t.Helper()
	signer := signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})
	var feed wire.Feed
	k.try(k.signed(signer, "GET", wire.FeedPath, "", "", ""), 200, "").Decode(k.w.t, &feed)
	if !feed.Full || len(feed.Sales) < 3 {
		k.w.t.Errorf("the first answer of the feed: got %+v", feed)
	}
	k.try(k.signed(signer, "GET", fmt.Sprintf("%s?instance=%s&since=%d&wait_ms=50", wire.FeedPath, feed.Instance, feed.Version), "", "", ""), 200, "")
	for _, q := range []string{"?since=x", "?wait_ms=20001", "?wait_ms=x", "?instance=a/b", "?x=1"} {
		k.try(k.signed(signer, "GET", wire.FeedPath+q, "", "", ""), 400, "BAD_REQUEST")
	}
	var revoked wire.Revocations
	k.try(k.signed(signer, "GET", wire.RevocationsPath, "", "", ""), 200, "").Decode(k.w.t, &revoked)
	if !revoked.Full || revoked.KeepMS == 0 {
		k.w.t.Errorf("the first answer of the revoked tokens: got %+v", revoked)
	}
	k.try(k.signed(signer, "GET", fmt.Sprintf("%s?since=%d&wait_ms=50", wire.RevocationsPath, revoked.Version), "", "", ""), 200, "")
	for _, q := range []string{"?since=x", "?wait_ms=20001", "?x=1"} {
		k.try(k.signed(signer, "GET", wire.RevocationsPath+q, "", "", ""), 400, "BAD_REQUEST")
	}
	k.try(k.signed(signer, "GET", wire.HealthPath, "", "", ""), 200, "")
	for _, path := range []string{"/v1/time", "/v1/sales", "/v1/sales/1"} {
		// The paths of the public API are there, too; what they answer is held against the contract at the gateway.
		if a := k.w.do(k.w.ctx, k.signed(signer, "GET", path, "", "", "")); a.Status != 200 {
			k.w.t.Errorf("internal GET %s: got %s", path, a)
		}
	}
}

// reports has the gateway's own report sent once more, and listens to what happens now.
func (k *walk) reports() {
	k.w.t.Helper()
	var list adminapi.Gateways
	k.w.until("the gateway has reported", patience, func() (bool, string) {
		k.admin("GET", "/gateways", "", 200, "").Decode(k.w.t, &list)
		return len(list.Gateways) == 1, fmt.Sprint(list)
	})
	body, err := json.Marshal(list.Gateways[0].GatewayReport)
	k.w.must(err)
	signer := signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})
	k.try(k.signed(signer, "POST", wire.ReportPath, "", "", string(body)), 204, "")
	for _, body := range []string{"", "{}", `{"name":"a b"}`, "[]"} {
		k.try(k.signed(signer, "POST", wire.ReportPath, "", "", body), 400, "BAD_REQUEST")
	}

	ctx, leave := context.WithCancel(k.w.ctx)
	defer leave() // the stream has no end
	req, err := http.NewRequestWithContext(ctx, "GET", k.w.AdminURL("/live"), http.NoBody)
	k.w.must(err)
	req.Header.Set("Authorization", "Bearer "+development.AdminToken)
	resp, err := http.DefaultClient.Do(req)
	k.w.must(err)
	defer resp.Body.Close()
	begun := false
	for lines := bufio.NewScanner(resp.Body); !begun && lines.Scan(); {
		begun = lines.Text() == "event: begin"
	}
	k.good["live"] = begun && resp.StatusCode == 200 && resp.Header.Get("Content-Type") == "text/event-stream" && resp.Header.Get("Cache-Control") == "no-store"
	if !k.good["live"] {
		k.w.t.Errorf("live: %d, %v, begun %v", resp.StatusCode, resp.Header, begun)
	}
}

func (k *walk) adminSKUs() {
	k.w.t.Helper()
	sku := k.admin("POST", "/skus", `{"title":"A mug","price":900,"currency":"EUR","stock":10}`, 201, "")
	at := strings.TrimPrefix(sku.Header.Get("Location"), "/admin/v1")
	k.admin("GET", "/skus", "", 200, "")
	k.admin("GET", "/skus?limit=1", "", 200, "")
	k.admin("GET", at, "", 200, "")
	k.admin("PATCH", at, `{"title":"A better mug"}`, 200, "")
	k.admin("POST", at+"/restock", `{"quantity":5}`, 200, "")
	k.admin("GET", "/skus/999999", "", 404, "NOT_FOUND")
	k.admin("GET", "/skus/x", "", 404, "NOT_FOUND")
	k.admin("PATCH", "/skus/999999", `{"title":"x"}`, 404, "NOT_FOUND")
	k.admin("POST", "/skus/999999/restock", `{"quantity":1}`, 404, "NOT_FOUND")
	k.admin("DELETE", at, "", 405, "METHOD_NOT_ALLOWED")
	k.admin("GET", "/skus?cursor=x", "", 400, "BAD_REQUEST")
	k.admin("POST", at+"/restock", `{"quantity":0}`, 400, "BAD_REQUEST")
	for _, body := range []string{"", "x", "{}", `{"title":"","price":1,"currency":"EUR","stock":1}`, `{"title":"a","price":-1,"currency":"EUR","stock":1}`,
		`{"title":"a","price":1,"currency":"euro","stock":1}`, `{"title":"a","price":1,"currency":"EUR","stock":0}`, `{"title":"a","price":1,"currency":"EUR","stock":1,"x":1}`} {
		k.admin("POST", "/skus", body, 400, "BAD_REQUEST")
	}
	for _, c := range []world.Call{{Method: "GET", URL: "/skus"}, {Method: "POST", URL: "/skus", Body: "{}"}, {Method: "GET", URL: "/sales", Token: "wrong"}, {Method: "GET", URL: "/nowhere"}} {
		c.URL = k.w.Ports.AdminURL() + "/admin/v1" + c.URL
		k.try(c, 401, "UNAUTHENTICATED")
	}
	k.admin("GET", "/nowhere", "", 404, "NOT_FOUND")
	k.admin("POST", "/skus", `{"title":"`+strings.Repeat("a", 70000)+`"}`, 413, "PAYLOAD_TOO_LARGE")
	k.try(world.Call{Method: "POST", URL: k.w.Ports.AdminURL() + "/admin/v1/skus", Token: development.AdminToken, Body: "x", Header: map[string]string{"Content-Type": "text/plain"}},
		415, "UNSUPPORTED_MEDIA_TYPE")
}

func (k *walk) adminSales() {
	k.w.t.Helper()
	now, later := time.Now().UTC().Format(wire.TimeFormat), time.Now().Add(time.Hour).UTC().Format(wire.TimeFormat)
	body := func(more string) string {
		return fmt.Sprintf(`{"kind":"goods","title":"Walked","price":100,"currency":"EUR","stock":4,"starts_at":%q,"ends_at":%q%s}`, now, later, more)
	}
	sales := k.w.Ports.AdminURL() + "/admin/v1/sales"
	first := k.try(world.Call{Method: "POST", URL: sales, Token: development.AdminToken, Key: "make-it-once", Body: body("")}, 201, "")
	again := k.try(world.Call{Method: "POST", URL: sales, Token: development.AdminToken, Key: "make-it-once", Body: body("")}, 201, "")
	if string(first.Body) != string(again.Body) {
		k.w.t.Errorf("the same Idempotency-Key: got %s, before %s", again, first)
	}
	k.try(world.Call{Method: "POST", URL: sales, Token: development.AdminToken, Key: "make-it-once", Body: body(`,"per_user_limit":2`)}, 422, "IDEMPOTENCY_KEY_REUSED")
	at := strings.TrimPrefix(first.Header.Get("Location"), "/admin/v1")
	k.admin("GET", "/sales", "", 200, "")
	k.admin("GET", at, "", 200, "")
	k.admin("GET", at+"/audit", "", 200, "")
	k.admin("GET", at+"/preflight?shoppers=1000&accept=secrets", "", 200, "")
	k.admin("GET", at+"/preflight?accept=luck", "", 400, "BAD_REQUEST")
	k.admin("POST", at+"/rebuild", "", 200, "")
	k.admin("POST", at+"/restock", `{"quantity":2}`, 200, "")
	k.admin("POST", at+"/pause", "", 200, "")
	k.admin("POST", at+"/pause", "", 200, "")
	k.admin("POST", at+"/resume", "", 200, "")
	sale := k.admin("GET", at, "", 200, "")
	patch := func(tag, body string, status int, code string) {
		k.w.t.Helper()
		k.try(world.Call{Method: "PATCH", URL: k.w.Ports.AdminURL() + "/admin/v1" + at, Token: development.AdminToken, Body: body, Header: map[string]string{"If-Match": tag}}, status, code)
	}
	patch(`"1"`, `{"title":"Changed"}`, 412, "PRECONDITION_FAILED")
	patch(sale.Header.Get("ETag"), `{"price":-1}`, 400, "BAD_REQUEST")
	patch(sale.Header.Get("ETag"), `{"stock":9}`, 400, "BAD_REQUEST")
	patch(sale.Header.Get("ETag"), `{"title":"Changed"}`, 200, "")
	k.admin("PATCH", at, `{"title":"No If-Match"}`, 400, "BAD_REQUEST")
	k.admin("POST", at+"/close", "", 200, "")
	k.admin("POST", at+"/close", "", 200, "")
	k.admin("POST", at+"/restock", `{"quantity":2}`, 403, "SALE_ENDED")
	k.admin("POST", at+"/pause", "", 403, "SALE_ENDED")
	k.admin("POST", at+"/resume", "", 403, "SALE_ENDED")

	for what, text := range map[string]string{
		"stock 0": strings.Replace(body(""), `"stock":4`, `"stock":0`, 1), "stock negative": strings.Replace(body(""), `"stock":4`, `"stock":-4`, 1),
		"ends before it starts": fmt.Sprintf(`{"title":"x","price":1,"currency":"EUR","stock":1,"starts_at":%q,"ends_at":%q}`, later, now),
		"price negative":        strings.Replace(body(""), `"price":100`, `"price":-1`, 1), "kind": strings.Replace(body(""), "goods", "bads", 1),
		"duplicate tranche": body(fmt.Sprintf(`,"tranches":[{"at":%q,"quantity":2},{"at":%q,"quantity":2}]`, now, now)),
		"tranches short":    body(fmt.Sprintf(`,"tranches":[{"at":%q,"quantity":2}]`, now)),
		"unknown SKU":       body(`,"sku_id":999999`), "time": strings.Replace(body(""), now, "yesterday", 1), "limit": body(`,"per_user_limit":0`),
		"unknown member": body(`,"colour":"red"`), "trailing": body("") + "{}", "empty": "", "array": "[]",
	} {
		if a := k.admin("POST", "/sales", text, 400, "BAD_REQUEST"); !strings.Contains(string(a.Body), `"field":`) && what != "empty" && what != "array" && what != "trailing" {
			k.w.t.Errorf("a sale with a bad %s: the answer names no field: %s", what, a)
		}
	}
	k.admin("POST", "/sales", body(`,"sku_id":1`), 409, "INSUFFICIENT_STOCK")
	for _, what := range []string{"", "/audit", "/preflight"} {
		k.admin("GET", "/sales/999999"+what, "", 404, "SALE_NOT_FOUND")
		k.admin("GET", "/sales/x"+what, "", 404, "SALE_NOT_FOUND")
	}
	for _, what := range []string{"/restock", "/pause", "/resume", "/close", "/rebuild"} {
		body := map[string]string{"/restock": `{"quantity":1}`}[what]
		k.admin("POST", "/sales/999999"+what, body, 404, "SALE_NOT_FOUND")
		k.admin("POST", at+what, `{"x":1}`, 400, "BAD_REQUEST")
		k.admin("GET", at+what, "", 405, "METHOD_NOT_ALLOWED")
	}
	campaign := k.admin("POST", "/coupons", fmt.Sprintf(`{"title":"Ten off","category":"shoes","published":true,"valid_from":%q,"valid_until":%q,"per_user_limit":1,"total":3,"guard":"version"}`, now, later), 201, "")
	k.admin("POST", "/coupons", `{"title":"Ten off"}`, 400, "BAD_REQUEST")
	of := strings.TrimPrefix(campaign.Header.Get("Location"), "/admin/v1")
	k.admin("GET", "/coupons", "", 200, "")
	k.admin("GET", "/coupons?limit=0", "", 400, "BAD_REQUEST")
	k.admin("GET", of, "", 200, "")
	k.admin("GET", strings.Replace(at, "/sales", "/coupons", 1), "", 404, "SALE_NOT_FOUND")
	k.admin("PATCH", of, `{"per_user_limit":4}`, 400, "BAD_REQUEST")
	k.admin("PATCH", of, `{"title":"Twenty off","published":false,"per_user_limit":2}`, 200, "")
	k.try(world.Call{Method: "PATCH", URL: k.w.Ports.AdminURL() + "/admin/v1" + of, Token: development.AdminToken, Body: `{"guard":"conditional"}`, Header: map[string]string{"If-Match": `"1"`}}, 412, "PRECONDITION_FAILED")
	k.admin("PATCH", "/coupons/999999", `{"published":true}`, 404, "SALE_NOT_FOUND")
	k.admin("POST", strings.Replace(of, "/coupons", "/sales", 1)+"/close", "", 200, "")
	k.admin("PATCH", of, `{"published":true}`, 403, "SALE_ENDED")
	k.admin("GET", "/queue", "", 200, "")
	k.w.must(k.w.Stores.Manage(k.w.ctx, "POST", "/exchanges/"+k.w.Name+"/fg.orders/publish",
		`{"properties":{"type":"order"},"routing_key":"0","payload":"no order","payload_encoding":"string"}`, nil))
	k.w.until("a dead letter", patience, func() (bool, string) {
		a := k.admin("GET", "/dead-letters", "", 200, "")
		return strings.Contains(string(a.Body), "no order"), string(a.Body)
	})
	k.admin("GET", "/dead-letters/1", "", 200, "")
	k.admin("POST", "/dead-letters/1/replay", "", 200, "")
	k.admin("POST", "/dead-letters/1/replay", "", 200, "")
	k.admin("GET", "/dead-letters?open=true&limit=1", "", 200, "")
	k.admin("GET", "/dead-letters?open=x", "", 400, "BAD_REQUEST")
	k.admin("GET", "/dead-letters/999999", "", 404, "NOT_FOUND")
	k.admin("POST", "/dead-letters/999999/replay", "", 404, "NOT_FOUND")
	k.admin("POST", "/dead-letters/replay", `{"limit":1}`, 200, "")
	k.admin("POST", "/dead-letters/replay", `{"limit":101}`, 400, "BAD_REQUEST")
	log := k.admin("GET", "/audit-log", "", 200, "")
	for _, action := range []string{"sale.create", "sale.pause", "sale.resume", "sale.restock", "sale.update", "sale.close", "sale.rebuild", "sku.create", "sku.update",
		"sku.restock", "coupon.create", "coupon.update"} {
		if !strings.Contains(string(log.Body), `"`+action+`"`) {
			k.w.t.Errorf("the audit log has no %s", action)
		}
	}
	k.admin("GET", "/audit-log?limit=1", "", 200, "")
	k.admin("GET", "/audit-log?limit=0", "", 400, "BAD_REQUEST")
}

// paused shows a refusal that passes by itself: a paused sale is OVERLOADED, with Retry-After.
func (k *walk) paused() {
	k.w.t.Helper()
	sale := k.w.newSale("Paused", 1, time.Now().Add(-time.Minute), 600)
	k.w.state(sale, wire.Open)
	k.admin("POST", fmt.Sprintf("/sales/%d/pause", sale), "", 200, "")
	k.w.state(sale, wire.Paused)
	k.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), k.tokens[8], "", http.StatusServiceUnavailable, "OVERLOADED")
	k.admin("POST", fmt.Sprintf("/sales/%d/resume", sale), "", 200, "")
	k.w.state(sale, wire.Open)
	k.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), k.tokens[9], "", 202, "")
}

// standby walks a standby line; TestStandbyStory tells what it is for.
func (k *walk) standby(soon, over int64) {
	k.w.t.Helper()
	sale := k.w.newSale("Nothing left", 1, time.Now().Add(-time.Minute), 600)
	k.w.state(sale, wire.Open)
	path, t := wire.StandbyPath(sale), k.w.tokens(160, 162)
	mine, other := t[1], t[2]
	k.public("POST", path, mine, "", 409, "UNITS_AVAILABLE")
	k.public("GET", path, mine, "", 404, "NOT_IN_LINE")
	k.public("DELETE", path, mine, "", 404, "NOT_IN_LINE")
	order := k.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), t[0], "", 202, "")
	k.w.order(order.OrderID, t[0], wire.PendingPayment)
	if refused := k.public("POST", path, t[0], "", 409, "ALREADY_ORDERED"); refused.OrderID != order.OrderID {
		k.w.t.Errorf("at the limit: got order %s, want %s", refused.OrderID, order.OrderID)
	}
	k.public("POST", path, mine, "", 200, "")
	k.public("POST", path, mine, "{}", 200, "")
	k.public("POST", path, other, "", 200, "")
	k.public("GET", path, mine, "", 200, "")
	k.public("DELETE", path, other, "", 200, "")
	k.public("GET", path, other, "", 200, "")
	k.public("POST", "/v1/orders/"+order.OrderID+"/cancellation", t[0], "", 200, "")
	at := k.w.becomes(sale, mine, wire.StandbyOffered)
	k.public("POST", "/v1/orders/"+at.Offer.OrderID+"/payment", mine, "", 200, "")
	k.public("DELETE", path, mine, "", 409, "ORDER_STATE_CONFLICT")
	k.public("POST", wire.StandbyPath(soon), mine, "", 403, "SALE_NOT_STARTED")
	k.public("POST", wire.StandbyPath(over), mine, "", 403, "SALE_ENDED")
	for _, method := range []string{"GET", "POST", "DELETE"} {
		k.public(method, wire.StandbyPath(999999), mine, "", 404, "SALE_NOT_FOUND")
		k.public(method, path, "", "", 401, "UNAUTHENTICATED")
		k.refused(world.Call{Method: method, URL: k.w.Ports.PublicURL() + "/v1/sales/x/standby", Token: mine})
	}
	k.public("POST", path, other, `{"x":1}`, 400, "BAD_REQUEST")
	k.public("PUT", path, other, "", 405, "METHOD_NOT_ALLOWED")
	k.try(world.Call{Method: "POST", URL: k.w.Ports.PublicURL() + path, Token: other, Body: "x", Header: map[string]string{"Content-Type": "text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE")
}

// coupons walks the public side of coupons; TestCouponStory tells what they are for.
func (k *walk) coupons() {
	k.w.t.Helper()
	now := time.Now().UTC()
	a := k.admin("POST", "/coupons", fmt.Sprintf(`{"title":"Five off","valid_from":%q,"valid_until":%q,"total":3}`,
		now.Add(-time.Minute).Format(wire.TimeFormat), now.Add(time.Hour).Format(wire.TimeFormat)), 201, "")
	k.w.state(a.ID, wire.Open)
	mine, other := k.w.tokens(150, 150)[0], k.w.tokens(151, 151)[0] // who has not ordered a moment ago
	order := k.public("POST", fmt.Sprintf("/v1/sales/%d/orders", a.ID), mine, "", 202, "")
	k.w.order(order.OrderID, mine, wire.Issued)
	var list wire.ClaimList
	k.public("GET", wire.CouponsPath, mine, "", 200, "").Decode(k.w.t, &list)
	if len(list.Coupons) != 1 || list.Next != "" {
		k.w.t.Fatalf("got the coupons %+v", list)
	}
	use := wire.UsePath(list.Coupons[0].ClaimID)
	k.public("GET", wire.CouponsPath+"?cursor="+list.Coupons[0].ClaimID, mine, "", 200, "")
	for _, q := range []string{"?cursor=x", "?cursor=a%26b", "?cursor=a&cursor=b"} {
		k.public("GET", wire.CouponsPath+q, mine, "", 400, "BAD_REQUEST")
	}
	k.public("GET", wire.CouponsPath, "", "", 401, "UNAUTHENTICATED")
	k.public("POST", wire.CouponsPath, mine, "", 405, "METHOD_NOT_ALLOWED")
	k.public("POST", use, "", "", 401, "UNAUTHENTICATED")
	k.public("POST", use, other, "", 404, "NOT_FOUND")
	k.public("POST", wire.UsePath("nonsense"), mine, "", 404, "NOT_FOUND")
	k.public("GET", use, mine, "", 405, "METHOD_NOT_ALLOWED")
	k.public("POST", use, mine, `{"x":1}`, 400, "BAD_REQUEST")
	k.try(world.Call{Method: "POST", URL: k.w.Ports.PublicURL() + use, Token: mine, Body: "x", Header: map[string]string{"Content-Type": "text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE")
	k.public("POST", use, mine, "", 200, "")
	if again := k.public("POST", use, mine, "{}", 409, "ORDER_STATE_CONFLICT"); again.OrderID != order.OrderID {
		k.w.t.Errorf("used twice: got order %s, want %s", again.OrderID, order.OrderID)
	}
}
