package edge

import (
	"strings"
	"time"
)

// CORS is which other sites' pages may use the API (Fetch Standard, 3.3). Their scripts send the token themselves: the session
// cookie is never read for them, so no answer allows credentials.
type CORS struct {
	origins map[string]struct{}
	maxAge  string // of a preflight, in seconds
}

// NewCORS makes the rule for these origins, each as browsers write it. Of none it is nil: no answer says anything about it.
func NewCORS(origins []string, maxAge time.Duration) *CORS {
	if len(origins) == 0 {
		return nil
	}
	c := &CORS{origins: make(map[string]struct{}, len(origins)), maxAge: itoa(int(maxAge / time.Second))}
	for _, o := range origins {
		c.origins[o] = struct{}{}
	}
	return c
}

// allows reports whether a page of this origin may use the API.
func (c *CORS) allows(origin []byte) bool {
	if c == nil || len(origin) == 0 {
		return false
	}
	_, ok := c.origins[string(origin)]
	return ok
}

const (
	// allowedHeaders are what a script may set beyond what it always may.
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key, If-None-Match, Traceparent, X-Request-Id"
	// exposedHeaders are what a script may read beyond what it always may.
	exposedHeaders = "ETag, Location, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Cache, X-Request-Id"
)

// allowOrigin lets the page that asks read the answer, where it may. What caches may keep says by itself that it varies.
func (x *exchange) allowOrigin() {
	origin := x.ctx.Request.Header.Peek("Origin")
	if !x.set.CORS.allows(origin) {
		return
	}
	h := &x.ctx.Response.Header
	h.SetBytesV("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
	if len(h.Peek("Vary")) == 0 {
		h.Set("Vary", "Origin")
	}
}

// vary is the Vary of an answer that caches may keep.
func (x *exchange) vary() string {
	if x.set.CORS == nil {
		return "Accept-Encoding"
	}
	return "Accept-Encoding, Origin"
}

// preflightOf draws on the address's buckets: an answer costs as much as any other.
var preflightOf = &operation{limit: ruleIP}

// preflight answers the question of a browser whether a page of another origin may send what it wants to. It reports whether the
// request is one that is answered here: by a page of the list.
func (x *exchange) preflight() bool {
	in := &x.ctx.Request.Header
	if !in.IsOptions() || len(x.ctx.Request.Body()) > 0 || len(in.Peek("Access-Control-Request-Method")) == 0 || !x.set.CORS.allows(in.Peek("Origin")) {
		return false
	}
	x.op = preflightOf
	if !x.admitAddress() {
		return true
	}
	h := &x.ctx.Response.Header
	h.Set("Access-Control-Allow-Methods", strings.ReplaceAll(x.route.allow, "GET, HEAD", "GET"))
	h.Set("Access-Control-Allow-Headers", allowedHeaders)
	h.Set("Access-Control-Max-Age", x.set.CORS.maxAge)
	h.Set("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers")
	h.Set("Cache-Control", "no-store")
	x.ctx.Response.SetStatusCode(204)
	x.result = resultOK
	return true
}
