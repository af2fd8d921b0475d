package gateway

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

const (
	hook = wire.WebhookPath + "acme"
	mark = wire.PaymentSignature + ": t=1767225600, v1=00,v1=11"
)

// noted answers as a backend that takes everything.
func noted(ctx *fasthttp.RequestCtx, _ call) {
	ctx.SetBodyString(`{"event_id":"e","order_id":"o","result":"paid"}`)
}

// Of a webhook the body and its signature reach the backend as they came, in nobody's name, and nothing else does.
func TestWebhookIsPassedOnUntouched(t *testing.T) {
	p := newPeer(t)
	p.on(noted)
	g := run(t, []string{p.addr}) // that knows no sale
	body := "{ \"id\":\"é\\u0000\",\r\n\t\"amount\": 4.9e3 }\n"
	a := g.do("POST", hook, g.as("7"), mark, "X-User-Id: 9", "Idempotency-Key: k", "Cookie: floodgate_session=x", "Floodgate-Uid: 9", "X-Secret: s",
		"X-Request-Id: delivery-1", "Content-Type: application/json; charset=utf-8", body)
	if a.code != 200 || !strings.Contains(a.body, `"paid"`) || a.header.Get("X-Request-Id") != "delivery-1" || a.header.Get("Set-Cookie") != "" {
		t.Errorf("got %v %v", a, a.header)
	}
	got := p.got(wire.WebhookPath)
	if len(got) != 1 || got[0].Body != body || got[0].UID != "" || got[0].Key != "" || got[0].Method != "POST" || got[0].Target != hook {
		t.Fatalf("the backend got %+v", got)
	}
	header := "\r\n" + strings.ToLower(got[0].Header)
	if !strings.Contains(header, "\r\n"+strings.ToLower(mark)+"\r\n") {
		t.Errorf("the signature did not come as it was sent: %s", got[0].Header)
	}
	for _, name := range []string{"authorization", "cookie", "x-user-id", "x-secret", signing.HeaderUID} {
		if strings.Contains(header, "\r\n"+strings.ToLower(name)+":") {
			t.Errorf("%s was passed on: %s", name, got[0].Header)
		}
	}
	if a := g.do("POST", hook, body); a.code != 200 { // the backend says what is missing
		t.Errorf("without a signature: got %v", a)
	}
}

func TestAnswersToWebhooksArePassedOn(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	for _, status := range []int{400, 401, 404, 413, 422, 503} {
		p.on(func(ctx *fasthttp.RequestCtx, _ call) {
			ctx.SetStatusCode(status)
			ctx.SetContentType("application/problem+json")
			ctx.Response.Header.Set("WWW-Authenticate", "Payment-Signature")
			ctx.Response.Header.Set("Retry-After", "3")
			ctx.SetBodyString(fmt.Sprintf(`{"code":"CODE_%d"}`, status))
		})
		a := g.do("POST", hook, mark, "{}")
		if a.code != status || a.problem() != fmt.Sprint("CODE_", status) || a.header.Get("WWW-Authenticate") != "Payment-Signature" || a.header.Get("Retry-After") != "3" {
			t.Errorf("%d: got %v %v", status, a, a.header)
		}
	}
	// It is this gateway that the backend does not know: that is nothing to tell a provider.
	p.on(func(ctx *fasthttp.RequestCtx, _ call) {
		ctx.SetStatusCode(401)
		ctx.Response.Header.Set(signing.HeaderTime, "1")
	})
	if a := g.do("POST", hook, mark, "{}"); a.problem() != "OVERLOADED" {
		t.Errorf("a gateway that is not known: got %v", a)
	}
	p.on(func(ctx *fasthttp.RequestCtx, _ call) { ctx.Conn().Close() })
	if a := g.do("POST", hook, mark, "{}"); a.problem() != "OUTCOME_UNKNOWN" || !strings.Contains(a.body, "deliver it again") {
		t.Errorf("no answer: got %v", a)
	}
	p.stop()
	g.do("GET", "/v1/orders", g.as("7"))
	if a := g.do("POST", hook, mark, "{}"); a.problem() != "OVERLOADED" && a.problem() != "OUTCOME_UNKNOWN" {
		t.Errorf("no backend: got %v", a)
	}
}

func TestWebhooksThatAreNotPassedOn(t *testing.T) {
	p := newPeer(t)
	p.on(noted)
	g := run(t, []string{p.addr})
	fits := "{" + strings.Repeat(" ", wire.MaxWebhook-2) + "}"
	if a := g.do("POST", hook, mark, fits); a.code != 200 {
		t.Fatalf("%d bytes: got %v", len(fits), a)
	}
	was := len(p.got(""))
	for _, c := range []struct {
		name, method, path string
		extra              []string
		status             int
		code               string
	}{
		{"too large", "POST", hook, []string{mark, fits + " "}, 413, "PAYLOAD_TOO_LARGE"},
		{"larger than any body", "POST", hook, []string{mark, "{" + strings.Repeat(" ", 70_000)}, 413, "PAYLOAD_TOO_LARGE"},
		{"no JSON", "POST", hook, []string{mark, "Content-Type: text/plain", "{}"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"signed twice", "POST", hook, []string{mark, mark, "{}"}, 400, "BAD_REQUEST"},
		{"a signature that is too long", "POST", hook, []string{wire.PaymentSignature + ": " + strings.Repeat("v", wire.MaxSignature+1), "{}"}, 400, "BAD_REQUEST"},
		{"a signature that is not ASCII", "POST", hook, []string{wire.PaymentSignature + ": t=é", "{}"}, 400, "BAD_REQUEST"},
		{"another method", "GET", hook, nil, 405, "METHOD_NOT_ALLOWED"},
		{"another method", "DELETE", hook, nil, 405, "METHOD_NOT_ALLOWED"},
		{"no provider", "POST", wire.WebhookPath, []string{mark, "{}"}, 404, "NOT_FOUND"},
		{"no provider's name", "POST", wire.WebhookPath + "Acme", []string{mark, "{}"}, 404, "NOT_FOUND"},
		{"a provider's name that is too long", "POST", wire.WebhookPath + strings.Repeat("a", wire.MaxProvider+1), []string{mark, "{}"}, 404, "NOT_FOUND"},
		{"more of a path", "POST", hook + "/x", []string{mark, "{}"}, 404, "NOT_FOUND"},
		{"a path that is encoded", "POST", wire.WebhookPath + "%61cme", []string{mark, "{}"}, 400, "BAD_REQUEST"},
	} {
		a := g.do(c.method, c.path, c.extra...)
		if a.code != c.status || a.problem() != c.code || c.status == 405 && a.header.Get("Allow") != "POST" {
			t.Errorf("%s: got %v %v, want %d %s", c.name, a, a.header, c.status, c.code)
		}
	}
	if now := len(p.got("")); now != was {
		t.Errorf("the backend got %d of them: %+v", now-was, p.got("")[was:])
	}
}

// Deliveries have a bucket of their own, an address each: they take nothing from shoppers, nor shoppers from them.
func TestWebhookLimit(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.on(noted)
	g := run(t, []string{p.addr}, with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: []`), with("ip: {rate: 50, burst: 100", "ip: {rate: 0.01, burst: 2"),
		with("limits:", "limits:\n  webhook: {rate: 0.01, burst: 3, max_keys: 1000}"))
	for range 3 {
		if a := g.do("POST", hook, mark, "{}"); a.code != 200 {
			t.Fatalf("got %v", a)
		}
	}
	a := g.do("POST", hook, mark, "X-Forwarded-For: 9.9.9.9", "{}")
	if a.code != 429 || a.problem() != "RATE_LIMITED" || a.header.Get("RateLimit-Policy") != `"webhook";q=3;w=300` || !strings.HasPrefix(a.header.Get("RateLimit"), `"webhook";r=0;t=`) ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("got %v %v", a, a.header)
	}
	if got := g.metric(`gateway_refusals_total{rule="webhook"}`); got != "1" {
		t.Errorf("%s refusals are counted", got)
	}
	for range 2 {
		if a := g.do("GET", "/v1/orders"); a.code != 401 {
			t.Errorf("a shopper: got %v", a)
		}
	}
	if a := g.do("GET", "/v1/orders"); a.problem() != "RATE_LIMITED" || !strings.Contains(a.header.Get("RateLimit"), `"ip"`) {
		t.Errorf("a shopper: got %v", a)
	}
}

// A flood of deliveries takes no shopper's place at the backend.
func TestDeliveriesAtOnceAreBounded(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	free, came := make(chan struct{}), make(chan struct{}, 100)
	p.on(func(ctx *fasthttp.RequestCtx, c call) {
		if strings.HasPrefix(c.Target, wire.WebhookPath) {
			came <- struct{}{}
			<-free
			noted(ctx, c)
			return
		}
		accept(ctx)
	})
	g := run(t, []string{p.addr}, with("max_in_flight: 64", "max_in_flight: 100"), with("timeout: 3s", "timeout: 60s"))
	const bound = 64
	var all sync.WaitGroup
	for range bound {
		all.Go(func() {
			if a := g.do("POST", hook, mark, "{}"); a.code != 200 {
				t.Errorf("got %v", a)
			}
		})
	}
	for range bound {
		<-came
	}
	if a := g.do("POST", hook, mark, "{}"); a.problem() != "OVERLOADED" || a.header.Get("Retry-After") == "" {
		t.Errorf("one more: got %v", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("7")); a.code != 202 {
		t.Errorf("an order: got %v", a)
	}
	close(free)
	all.Wait()
	if a := g.do("POST", hook, mark, "{}"); a.code != 200 {
		t.Errorf("afterwards: got %v", a)
	}
}
