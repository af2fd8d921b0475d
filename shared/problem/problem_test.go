package problem

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

func TestWriteTo(t *testing.T) {
	var ctx fasthttp.RequestCtx
	p := New(RateLimited, "slow down")
	p.RetryAfter = 1100 * time.Millisecond
	p.WriteTo(&ctx, "r-1")
	if ctx.Response.StatusCode() != 429 || string(ctx.Response.Header.ContentType()) != ContentType ||
		string(ctx.Response.Header.Peek("Retry-After")) != "2" || string(ctx.Response.Header.Peek("Cache-Control")) != "no-store" {
		t.Errorf("got %s", ctx.Response.Header.String())
	}
	var m map[string]any
	if err := json.Unmarshal(ctx.Response.Body(), &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"type", "title", "status", "detail", "code", "request_id"} {
		if m[k] == nil {
			t.Errorf("%s is missing in %s", k, ctx.Response.Body())
		}
	}
	if m["code"] != "RATE_LIMITED" || m["request_id"] != "r-1" || m["order_id"] != nil {
		t.Errorf("got %s", ctx.Response.Body())
	}
}

func TestUnauthenticatedSaysHow(t *testing.T) {
	var ctx fasthttp.RequestCtx
	New(Unauthenticated, "no token").WriteTo(&ctx, "r")
	if ctx.Response.StatusCode() != 401 || len(ctx.Response.Header.Peek("WWW-Authenticate")) == 0 {
		t.Errorf("got %s", ctx.Response.Header.String())
	}
}

// Whatever a problem says of what a client sent, its body is JSON with the code as it is, and its headers stay two lines.
func FuzzWriteTo(f *testing.F) {
	f.Add("quantity: 0", "quantity", "r-1", int64(0))
	f.Add("\xff\x00\u2028\"\\", "a\r\nSet-Cookie: a=b", "\r\n", int64(1500))
	f.Fuzz(func(t *testing.T, detail, field, id string, ms int64) {
		p := New(BadRequest, detail)
		p.Field, p.RetryAfter = field, time.Duration(ms)*time.Millisecond
		var ctx fasthttp.RequestCtx
		p.WriteTo(&ctx, id)
		var m map[string]any
		if err := json.Unmarshal(ctx.Response.Body(), &m); err != nil || m["code"] != "BAD_REQUEST" || m["status"] != 400.0 {
			t.Errorf("got %v of %q", err, ctx.Response.Body())
		}
		if after := string(ctx.Response.Header.Peek("Retry-After")); (after == "") != (p.RetryAfter <= 0) {
			t.Errorf("%v: got Retry-After %q", p.RetryAfter, after)
		}
	})
}
