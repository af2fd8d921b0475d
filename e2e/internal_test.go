//go:build servers

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// TestInternalListenerTakesSignedRequestsOnly shows that a signature is good for one request only: its method, path, user,
// body, key and time.
func TestInternalListenerTakesSignedRequestsOnly(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	sale := w.newSale("Ten", 10, time.Now().Add(-time.Minute), 600)
	other := w.newSale("Ten others", 10, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	path, body := fmt.Sprintf("/v1/sales/%d/orders", sale), `{"quantity":1}`
	signer := signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})

	signed := func(s *signing.Signer, at time.Time, uid string) *fasthttp.Request {
		var req fasthttp.Request
		req.Header.SetMethod("POST")
		req.SetRequestURI(path)
		req.Header.Set("Idempotency-Key", "k-"+uid)
		req.Header.SetContentType("application/json")
		req.SetBodyString(body)
		s.Sign(&req, uid, at)
		return &req
	}
	// send sends what was signed, but for what change says.
	send := func(req *fasthttp.Request, change func(*world.Call)) world.Answer {
		c := world.Call{Method: "POST", URL: w.Ports.InternalURL() + path, Body: body, Header: map[string]string{}}
		for k, v := range req.Header.All() {
			if k := string(k); strings.HasPrefix(k, "Floodgate-") || k == "Idempotency-Key" {
				c.Header[k] = string(v)
			}
		}
		if change != nil {
			change(&c)
		}
		return w.do(w.ctx, c)
	}

	first := w.want(send(signed(signer, time.Now(), "alice"), nil), 202, "")
	// The very same request again is the same order, not a second one.
	if again := send(signed(signer, time.Now(), "alice"), nil); again.OrderID != first.OrderID {
		t.Errorf("repeated: got %s, want order %s", again, first.OrderID)
	}

	good := func() *fasthttp.Request { return signed(signer, time.Now(), "mallory") }
	for what, a := range map[string]world.Answer{
		"unsigned":          w.do(w.ctx, world.Call{Method: "POST", URL: w.Ports.InternalURL() + path, Body: body}),
		"unsigned, a token": w.do(w.ctx, world.Call{Method: "POST", URL: w.Ports.InternalURL() + path, Body: body, Token: w.tokens(1, 1)[0]}),
		"the admin token":   w.do(w.ctx, world.Call{Method: "POST", URL: w.Ports.InternalURL() + path, Body: body, Token: development.AdminToken}),
		"unsigned feed":     w.do(w.ctx, world.Call{Method: "GET", URL: w.Ports.InternalURL() + "/internal/v1/feed"}),
		"unsigned, unknown": w.do(w.ctx, world.Call{Method: "GET", URL: w.Ports.InternalURL() + "/nowhere"}),
		"another path": send(good(), func(c *world.Call) {
			c.URL = fmt.Sprintf("%s/v1/sales/%d/orders", w.Ports.InternalURL(), other)
		}),
		"another query":     send(good(), func(c *world.Call) { c.URL += "?x=1" }),
		"another method":    send(good(), func(c *world.Call) { c.Method = http.MethodPut }),
		"another uid":       send(good(), func(c *world.Call) { c.Header[signing.HeaderUID] = "bob" }),
		"no uid":            send(good(), func(c *world.Call) { delete(c.Header, signing.HeaderUID) }),
		"another body":      send(good(), func(c *world.Call) { c.Body = `{"quantity":2}` }),
		"no body":           send(good(), func(c *world.Call) { c.Body = "" }),
		"another key":       send(good(), func(c *world.Call) { c.Header["Idempotency-Key"] = "other" }),
		"another nonce":     send(good(), func(c *world.Call) { c.Header[signing.HeaderNonce] = strings.Repeat("0", 32) }),
		"another time":      send(good(), func(c *world.Call) { c.Header[signing.HeaderTime] = fmt.Sprint(time.Now().UnixMilli() + 1) }),
		"no signature":      send(good(), func(c *world.Call) { delete(c.Header, signing.HeaderSignature) }),
		"an hour later":     send(signed(signer, time.Now().Add(-time.Hour), "mallory"), nil),
		"an hour too early": send(signed(signer, time.Now().Add(time.Hour), "mallory"), nil),
		"an unknown key id": send(signed(signing.NewSigner(signing.Key{ID: "other", Secret: development.SigningSecret}), time.Now(), "mallory"), nil),
		"another secret": send(signed(signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: strings.Repeat("x", 40)}),
			time.Now(), "mallory"), nil),
	} {
		if a.Status != 401 || a.Code != "UNAUTHENTICATED" {
			t.Errorf("%s: got %s, want 401", what, a)
		}
	}
	for _, id := range []int64{sale, other} {
		o, err := w.look(id)
		w.must(err)
		want := map[int64]int{sale: 1, other: 0}[id]
		if len(o.Reservations) != want {
			t.Errorf("sale %d has reservations %v, want %d", id, o.Reservations, want)
		}
	}
	// Each refusal is counted.
	if n := w.metric("backend_unsigned_total"); n < 20 {
		t.Errorf("the backend counted %v refused requests, want at least 20", n)
	}
}
