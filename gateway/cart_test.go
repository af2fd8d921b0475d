package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/wire"
)

// Row E3, Row D2: a cart goes to the backend anew, in the name of the token's user, and draws on the limit of orders.
func TestCartGoesThrough(t *testing.T) {
	t.Attr("row", "E3 D2")
	p := newPeer(t)
	p.set(1, nil)
	p.on(func(ctx *fasthttp.RequestCtx, c call) {
		ctx.SetBodyString(`{"order_id":"x","results":[{"sku_id":3,"ok":true,"code":""}]}`)
	})
	g := run(t, []string{p.addr})
	me := g.as("7")
	bad := func(want string, lines ...string) {
		t.Helper()
		a := g.do("POST", "/v1/cart/orders", append([]string{me}, lines...)...)
		if a.problem() != "BAD_REQUEST" || !strings.Contains(a.body, want) {
			t.Errorf("%q: got %v, want BAD_REQUEST that names %q", lines, a, want)
		}
	}
	good := `{"items":[{"quantity":2, "sku_id":3},{"sku_id":1}]}`
	bad("Idempotency-Key", good)
	bad("Idempotency-Key", "Idempotency-Key: "+strings.Repeat("k", 129), good)
	bad("Idempotency-Key", "Idempotency-Key: a b", good)
	bad("twice", "Idempotency-Key: a", "Idempotency-Key: b", good)
	for body, want := range map[string]string{
		"": "object", "[]": "object", `{"items":[]}`: "items", `{"items":[{"sku_id":3,"quantity":0}]}`: "items/0/quantity",
		`{"items":[{"sku_id":3},{"sku_id":3}]}`: "items/1/sku_id", `{"items":[{"sku_id":3}],"uid":"8"}`: "uid",
	} {
		if body == "" {
			bad(want, "Idempotency-Key: k")
			continue
		}
		bad(want, "Idempotency-Key: k", body)
	}
	if a := g.do("POST", "/v1/cart/orders", "Idempotency-Key: k", good); a.problem() != "UNAUTHENTICATED" {
		t.Errorf("nobody's cart: got %v", a)
	}
	if a := g.do("POST", "/v1/cart/orders", me, "Idempotency-Key: k", "Content-Type: text/plain", good); a.problem() != "UNSUPPORTED_MEDIA_TYPE" {
		t.Errorf("text/plain: got %v", a)
	}
	if a := g.do("GET", "/v1/cart/orders", me); a.problem() != "METHOD_NOT_ALLOWED" || a.header.Get("Allow") != "POST" {
		t.Errorf("GET: got %v", a)
	}
	if calls := p.got("/v1/cart"); len(calls) != 0 {
		t.Fatalf("the backend got %+v", calls)
	}

	a := g.do("POST", "/v1/cart/orders", me, "Idempotency-Key: k-1", "X-User-Id: 8", "Connection: idempotency-key", good)
	if a.code != 200 || !strings.Contains(a.body, `"results"`) || a.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("got %v", a)
	}
	calls := p.got("/v1/cart")
	if want := `{"items":[{"sku_id":3,"quantity":2},{"sku_id":1,"quantity":1}]}`; len(calls) != 1 || calls[0].UID != "7" || calls[0].Key != "k-1" || calls[0].Body != want {
		t.Errorf("the backend got %+v, want %s of 7 under k-1", calls, want)
	}
	if a := g.do("POST", "/v1/cart/orders", me, "Idempotency-Key: k-2", good); a.problem() != "RATE_LIMITED" {
		t.Errorf("a cart after a cart: got %v, want RATE_LIMITED", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", me); a.problem() != "RATE_LIMITED" {
		t.Errorf("an order after a cart: got %v, want RATE_LIMITED", a)
	}

	var most strings.Builder
	for i := range wire.MaxCartLines {
		fmt.Fprintf(&most, `,{"sku_id":%d,"quantity":1000000}`, 1<<62+i)
	}
	if a := g.do("POST", "/v1/cart/orders", g.as("9"), "Idempotency-Key: "+strings.Repeat("k", 128), `{"items":[`+most.String()[1:]+`]}`); a.code != 200 {
		t.Errorf("the largest cart: got %v", a)
	}
}

// Row D3, Row D5: what carts can hold is a page like any other.
func TestSKUsAreAPage(t *testing.T) {
	t.Attr("row", "D3 D5")
	p := newPeer(t)
	p.on(func(ctx *fasthttp.RequestCtx, c call) {
		ctx.Response.Header.Set("ETag", `W/"a"`)
		ctx.SetBodyString(`{"skus":[]}`)
	})
	g := run(t, []string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 1m"))
	first := g.do("GET", "/v1/skus")
	if first.code != 200 || first.header.Get("X-Cache") != "MISS" || first.body != `{"skus":[]}` {
		t.Fatalf("got %v", first)
	}
	for range 20 {
		if a := g.do("GET", "/v1/skus"); a.code != 200 || a.header.Get("X-Cache") != "HIT" {
			t.Fatalf("got %v", a)
		}
	}
	if a := g.do("GET", "/v1/skus", `If-None-Match: W/"a"`); a.code != 304 {
		t.Errorf("got %v, want 304", a)
	}
	if calls := p.got("/v1/skus"); len(calls) != 1 || calls[0].UID != "" {
		t.Errorf("the backend got %+v", calls)
	}
	if a := g.do("POST", "/v1/skus", `{}`); a.problem() != "METHOD_NOT_ALLOWED" {
		t.Errorf("POST: got %v", a)
	}
}

// A cart's order is read, paid and cancelled as any other.
func TestACartsOrderIsForwarded(t *testing.T) {
	p := newPeer(t)
	p.on(echo)
	g := run(t, []string{p.addr})
	id := wire.NewCartOrderID(orderID[:36])
	for _, c := range [][2]string{{"GET", ""}, {"POST", "/payment"}, {"POST", "/cancellation"}} {
		path := wire.OrderPath(id) + c[1]
		if a := g.do(c[0], path, g.as("7")); a.code != 200 || a.body != c[0]+" "+path+" 7" {
			t.Errorf("%s %s: got %v", c[0], path, a)
		}
	}
}
