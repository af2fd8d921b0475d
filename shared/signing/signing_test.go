package signing

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

var (
	key   = Key{ID: "gw-1", Secret: "0123456789abcdef0123456789abcdef"}
	now   = time.UnixMilli(1_800_000_000_000)
	other = Key{ID: "gw-2", Secret: "fedcba9876543210fedcba9876543210"}
)

func request() *fasthttp.Request {
	req := &fasthttp.Request{}
	req.Header.SetMethod("POST")
	req.SetRequestURI("http://backend/v1/sales/7/orders")
	req.Header.Set("Idempotency-Key", "k1")
	req.SetBodyString(`{"quantity":1}`)
	NewSigner(key).Sign(req, "alice", now)
	return req
}

func TestVerifyTakesWhatWasSigned(t *testing.T) {
	v := NewVerifier(other, key)
	for _, at := range []time.Time{now, now.Add(Window), now.Add(-Window)} {
		if uid, err := v.Verify(request(), at); uid != "alice" || err != nil {
			t.Errorf("at %v: got %q, %v; want alice", at.Sub(now), uid, err)
		}
	}
	req := request()
	NewSigner(other).Sign(req, "", now)
	if uid, err := v.Verify(req, now); uid != "" || err != nil {
		t.Errorf("signed for nobody by the other key: got %q, %v", uid, err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	v := NewVerifier(key)
	for name, c := range map[string]struct {
		change func(*fasthttp.Request)
		at     time.Time
		want   error
	}{
		"unsigned":              {func(r *fasthttp.Request) { r.Header.Del(HeaderSignature) }, now, ErrUnsigned},
		"unknown key":           {func(r *fasthttp.Request) { r.Header.Set(HeaderKey, "gw-2") }, now, ErrKey},
		"another method":        {func(r *fasthttp.Request) { r.Header.SetMethod("GET") }, now, ErrMismatch},
		"another path":          {func(r *fasthttp.Request) { r.SetRequestURI("http://backend/v1/sales/8/orders") }, now, ErrMismatch},
		"another query":         {func(r *fasthttp.Request) { r.SetRequestURI("http://backend/v1/sales/7/orders?x=1") }, now, ErrMismatch},
		"another uid":           {func(r *fasthttp.Request) { r.Header.Set(HeaderUID, "bob") }, now, ErrMismatch},
		"no uid":                {func(r *fasthttp.Request) { r.Header.Del(HeaderUID) }, now, ErrMismatch},
		"another body":          {func(r *fasthttp.Request) { r.SetBodyString(`{"quantity":2}`) }, now, ErrMismatch},
		"another key":           {func(r *fasthttp.Request) { r.Header.Set("Idempotency-Key", "k2") }, now, ErrMismatch},
		"another time":          {func(r *fasthttp.Request) { r.Header.Set(HeaderTime, "1800000000001") }, now, ErrMismatch},
		"another nonce":         {func(r *fasthttp.Request) { r.Header.Set(HeaderNonce, "00") }, now, ErrMismatch},
		"a network added":       {func(r *fasthttp.Request) { r.Header.Set(HeaderClient, "203.0.113.0/24") }, now, ErrMismatch},
		"a cut signature":       {func(r *fasthttp.Request) { r.Header.Set(HeaderSignature, "ab") }, now, ErrMismatch},
		"no time":               {func(r *fasthttp.Request) { r.Header.Del(HeaderTime) }, now, ErrTime},
		"an hour later":         {func(*fasthttp.Request) {}, now.Add(time.Hour), ErrTime},
		"an hour before":        {func(*fasthttp.Request) {}, now.Add(-time.Hour), ErrTime},
		"just after the window": {func(*fasthttp.Request) {}, now.Add(Window + time.Millisecond), ErrTime},
	} {
		req := request()
		c.change(req)
		if uid, err := v.Verify(req, c.at); !errors.Is(err, c.want) || uid != "" {
			t.Errorf("%s: got %q, %v; want %v", name, uid, err, c.want)
		}
	}
}

// The client's network is signed where it is named; a request without one is signed as ever.
func TestTheNetworkIsSigned(t *testing.T) {
	v := NewVerifier(key)
	signed := func() *fasthttp.Request {
		req := request()
		req.Header.Set(HeaderClient, "203.0.113.0/24")
		NewSigner(key).Sign(req, "alice", now)
		return req
	}
	if uid, err := v.Verify(signed(), now); uid != "alice" || err != nil {
		t.Errorf("got %q, %v; want alice", uid, err)
	}
	for name, change := range map[string]func(*fasthttp.Request){
		"another network": func(r *fasthttp.Request) { r.Header.Set(HeaderClient, "203.0.114.0/24") },
		"no network":      func(r *fasthttp.Request) { r.Header.Del(HeaderClient) },
		"as the key": func(r *fasthttp.Request) {
			r.Header.Del(HeaderClient)
			r.Header.Set("Idempotency-Key", "203.0.113.0/24")
		},
	} {
		req := signed()
		change(req)
		if uid, err := v.Verify(req, now); !errors.Is(err, ErrMismatch) || uid != "" {
			t.Errorf("%s: got %q, %v; want %v", name, uid, err, ErrMismatch)
		}
	}
}

// The deadline is signed where it is named, beside a network or without one, and neither reads as the other.
func TestTheDeadlineIsSigned(t *testing.T) {
	v := NewVerifier(key)
	signed := func(client string) *fasthttp.Request {
		req := request()
		if client != "" {
			req.Header.Set(HeaderClient, client)
		}
		req.Header.Set(HeaderDeadline, "1800000003000")
		NewSigner(key).Sign(req, "alice", now)
		return req
	}
	for _, client := range []string{"", "203.0.113.0/24"} {
		if uid, err := v.Verify(signed(client), now); uid != "alice" || err != nil {
			t.Errorf("network %q: got %q, %v; want alice", client, uid, err)
		}
		for name, change := range map[string]func(*fasthttp.Request){
			"another deadline": func(r *fasthttp.Request) { r.Header.Set(HeaderDeadline, "1800000003001") },
			"no deadline":      func(r *fasthttp.Request) { r.Header.Del(HeaderDeadline) },
			"as the network": func(r *fasthttp.Request) {
				r.Header.Del(HeaderDeadline)
				r.Header.Set(HeaderClient, "1800000003000")
			},
		} {
			req := signed(client)
			change(req)
			if uid, err := v.Verify(req, now); !errors.Is(err, ErrMismatch) || uid != "" {
				t.Errorf("network %q, %s: got %q, %v; want %v", client, name, uid, err, ErrMismatch)
			}
		}
	}
}

func TestSignAgainReplacesTheUser(t *testing.T) {
	req := request()
	NewSigner(key).Sign(req, "", now)
	if uid, err := NewVerifier(key).Verify(req, now); uid != "" || err != nil {
		t.Errorf("got %q, %v; want nobody", uid, err)
	}
}

func BenchmarkSignVerify(b *testing.B) {
	req, s, v := request(), NewSigner(key), NewVerifier(key)
	b.ReportAllocs()
	for b.Loop() {
		s.Sign(req, "alice", now)
		if _, err := v.Verify(req, now); err != nil {
			b.Fatal(err)
		}
	}
}

// Of all requests with these parts, only the one that was signed is taken.
func FuzzVerify(f *testing.F) {
	signed := request()
	sig, at, nonce := string(signed.Header.Peek(HeaderSignature)), string(signed.Header.Peek(HeaderTime)), string(signed.Header.Peek(HeaderNonce))
	f.Add("POST", "/v1/sales/7/orders", "gw-1", at, "alice", "k1", "", sig, `{"quantity":1}`)
	f.Add("GET", "/v1/orders", "gw-2", "1800000000000", "", "", "203.0.113.0/24", "", "")
	f.Add("POST", "/v1/sales/7/orders", "gw-1", "+1800000000000", "alice\n", "k1", "x", strings.ToUpper(sig), `{"quantity":1}`)
	v := NewVerifier(key)
	f.Fuzz(func(t *testing.T, method, target, id, at, uid, idem, client, signature, body string) {
		req := &fasthttp.Request{}
		req.Header.SetMethod(method)
		req.Header.SetRequestURI(target)
		for name, value := range map[string]string{HeaderKey: id, HeaderTime: at, HeaderNonce: nonce, HeaderUID: uid, "Idempotency-Key": idem, HeaderClient: client, HeaderSignature: signature} {
			req.Header.Set(name, value)
		}
		req.SetBodyString(body)
		got, err := v.Verify(req, now)
		if err != nil {
			if got != "" {
				t.Errorf("refused with %v, and names %q", err, got)
			}
			return
		}
		if string(req.Header.Method()) != "POST" || string(req.Header.RequestURI()) != "/v1/sales/7/orders" || got != "alice" || body != `{"quantity":1}` {
			t.Errorf("took %s %s of %q with %q", method, target, uid, body)
		}
	})
}
