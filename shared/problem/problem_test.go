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
