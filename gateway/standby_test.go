package gateway

import (
	"strings"
	"testing"

	"floodgate.internal/shared/wire"
)

// A sale's standby line is the user's own business: sent on in the token's name, each request once, never kept.
func TestStandbyGoesThrough(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.on(echo)
	g := run(t, []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 0.01, burst: 4"))
	path := wire.StandbyPath(1)
	for _, method := range []string{"GET", "POST", "DELETE"} {
		if a := g.do(method, path+"?x=1", g.as("7"), "X-User-Id: 8"); a.code != 200 || a.body != method+" "+path+" 7" || a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Cache") != "" {
			t.Errorf("%s: got %v %v", method, a, a.header)
		}
		if a := g.do(method, path); a.problem() != "UNAUTHENTICATED" {
			t.Errorf("nobody's %s: got %v", method, a)
		}
		if a := g.do(method, wire.StandbyPath(2), g.as("7")); a.problem() != "SALE_NOT_FOUND" {
			t.Errorf("%s of no sale: got %v", method, a)
		}
		if a := g.do(method, "/v1/sales/x/standby", g.as("7")); a.problem() != "SALE_NOT_FOUND" {
			t.Errorf("%s of no sale: got %v", method, a)
		}
	}
	if a := g.do("HEAD", path, g.as("7")); a.code != 200 || a.body != "" {
		t.Errorf("HEAD: got %v", a)
	}
	if a := g.do("POST", path, g.as("7")); a.problem() != "RATE_LIMITED" { // the fifth; what went nowhere drew on nothing
		t.Errorf("past the read limit: got %v", a)
	}
	if a := g.do("PUT", path, g.as("8")); a.problem() != "METHOD_NOT_ALLOWED" || a.header.Get("Allow") != "GET, HEAD, POST, DELETE" {
		t.Errorf("PUT: got %v %v", a, a.header)
	}
	if a := g.do("POST", path, g.as("8"), `{"uid":"7"}`); a.problem() != "BAD_REQUEST" {
		t.Errorf("a body that says something: got %v", a)
	}
	if a := g.do("DELETE", path, g.as("8"), `{}`); a.problem() != "BAD_REQUEST" {
		t.Errorf("a DELETE with a body: got %v", a)
	}
	if n := len(p.got(path)); n != 4 {
		t.Errorf("the backend got %d requests, want 4", n)
	}

	// No other site's page joins or leaves in a shopper's name.
	cookie, _, _ := strings.Cut(g.do("POST", "/v1/dev/session", `{"uid":"9"}`).header.Get("Set-Cookie"), ";")
	for _, method := range []string{"POST", "DELETE"} {
		if a := g.do(method, path, "Cookie: "+cookie, "Sec-Fetch-Site: cross-site"); a.problem() != "FORBIDDEN" {
			t.Errorf("%s from another site: got %v", method, a)
		}
		if a := g.do(method, path, "Cookie: "+cookie, "Sec-Fetch-Site: same-origin"); a.body != method+" "+path+" 9" {
			t.Errorf("%s from the page: got %v", method, a)
		}
		// An answer that is lost: nobody knows, and it is not sent again.
		p.on(func(ctx *fastCtx, _ call) { ctx.Conn().Close() })
		before := len(p.got(path))
		if a := g.do(method, path, g.as("10")); a.problem() != "OUTCOME_UNKNOWN" || !strings.Contains(a.body, path) {
			t.Errorf("%s without an answer: got %v", method, a)
		}
		if n := len(p.got(path)) - before; n != 1 {
			t.Errorf("%s without an answer was sent %d times", method, n)
		}
		p.on(echo)
	}
}
