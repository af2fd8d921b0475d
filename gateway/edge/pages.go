package edge

import (
	"bytes"
	"fmt"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// page answers with the shopper page, or a file that it loads.
func (x *exchange) page() {
	p, ok := x.set.Page.Get(string(x.path))
	if !ok {
		x.notFound()
		return
	}
	h := &x.ctx.Response.Header
	h.Set("Content-Security-Policy", x.set.Page.Policy)
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=()")
	if !x.set.InsecureCookies { // then nobody can sign in but by HTTPS
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
	x.answerPage(p, pagecache.Hit, "public, max-age=10")
}

// time is GET /v1/time.
func (x *exchange) time() {
	body, _ := wire.Millis(x.s.Clock.NowMillis()).MarshalJSON()
	x.json(append(append([]byte(`{"now":`), body...), '}'))
}

// sale is GET /v1/sales/{sale_id}.
func (x *exchange) sale() {
	if x.knownSale() {
		x.cached()
	}
}

// answerPage answers with a page that clients may cache, in the coding that the client prefers, or with 304 or 406.
func (x *exchange) answerPage(p *pagecache.Page, how pagecache.How, cacheControl string) {
	in := &x.ctx.Request.Header
	h := &x.ctx.Response.Header
	h.Set("X-Cache", string(how))
	h.Set("Vary", x.vary())
	coding, ok := p.Choose(in.PeekAll("Accept-Encoding"))
	if !ok {
		x.refuse(badRequest(fasthttp.StatusNotAcceptable, "there is no coding that Accept-Encoding accepts: ask for gzip, br or identity"))
		return
	}
	h.Set("Cache-Control", cacheControl)
	if p.ETag != "" {
		h.Set("ETag", p.ETag)
	}
	if pagecache.Matches(in.PeekAll("If-None-Match"), p.ETag) {
		x.ctx.Response.SetStatusCode(fasthttp.StatusNotModified)
		x.result = resultNotModified
		return
	}
	x.ctx.Response.SetStatusCode(p.Status)
	h.SetContentType(p.ContentType)
	if coding != pagecache.Identity {
		h.SetContentEncoding(coding.String())
	}
	x.ctx.Response.SetBodyRaw(p.Body(coding))
	x.result = resultOK
}

// cached answers a public read from the page cache. The key is the canonical path. While the page is fresh, no token is
// verified and no bucket drawn on. A reader over a limit gets the stale page if there is one, and 429 otherwise.
func (x *exchange) cached() {
	cache, rule := x.s.Cache, x.set.Pages
	if p, how, renew := cache.Fresh(x.path, rule, x.now); how != "" {
		if renew {
			r := x.pageRequest()
			cache.Renew(r.Target, x.s.fetch(r))
		}
		x.answerPage(p, how, x.set.pagesMaxAge)
		return
	}
	if by, d := x.takeReader(); !d.OK {
		if p, ok := cache.Stale(x.path, rule, x.now); ok {
			x.answerPage(p, pagecache.Stale, x.set.pagesMaxAge)
			return
		}
		x.admit(by, d)
		return
	}
	r := x.pageRequest()
	p, how, err := cache.Get(r.Target, rule, x.now, 2*x.s.Backends.Timeout(), x.s.fetch(r))
	switch {
	case err != nil:
		x.ctx.Response.Header.Set("X-Cache", string(how))
		x.noAnswer(r, err)
	case p.Status == 200:
		x.answerPage(p, how, x.set.pagesMaxAge)
	case p.Status == fasthttp.StatusNotFound:
		x.ctx.Response.Header.Set("X-Cache", string(how))
		x.refuse(problem.New(problem.SaleNotFound, "there is no such sale"))
	default:
		x.ctx.Response.Header.Set("X-Cache", string(how))
		x.overloaded("the shop is busy or cannot be reached")
	}
}

// takeReader draws on the address's buckets, and on the user's where the request has a good token.
func (x *exchange) takeReader() (rule, limit.Decision) {
	if by, d := x.takeAddress(); !d.OK {
		return by, d
	}
	if token, _ := x.token(); len(token) > 0 {
		if user, err := x.verified(token); err == nil {
			return ruleRead, x.takeUser(user.UID)
		}
	}
	return ruleRead, limit.Decision{OK: true}
}

// pageRequest asks a backend for a page, in nobody's name. It may outlive the exchange.
func (x *exchange) pageRequest() *upstream.Request {
	return &upstream.Request{Method: fasthttp.MethodGet, Class: upstream.Page, Target: string(x.path), RequestID: string(x.id), Trace: bytes.Clone(x.traceparent())}
}

// fetch gets a page from a backend.
func (s *Server) fetch(r *upstream.Request) pagecache.Fetch {
	return func() (*pagecache.Page, error) {
		resp := fasthttp.AcquireResponse()
		defer fasthttp.ReleaseResponse(resp)
		if err := s.Backends.Do(r, resp); err != nil {
			return nil, err
		}
		if resp.StatusCode() == fasthttp.StatusUnauthorized {
			s.warn("check the signing keys on both sides", errSignature, r)
		}
		if coding := resp.Header.ContentEncoding(); len(coding) > 0 {
			return nil, fmt.Errorf("the page %s came as %q, which nobody asked for", r.Target, coding)
		}
		p := pagecache.NewPage(resp.StatusCode(), string(resp.Header.ContentType()), string(resp.Header.Peek("ETag")), bytes.Clone(resp.Body()))
		rule := resp.Header.Peek("Cache-Control")
		p.Private = bytes.Contains(rule, []byte("no-store")) || bytes.Contains(rule, []byte("private"))
		return p, nil
	}
}

// SalesChanged makes the pages of these sales stale.
func (s *Server) SalesChanged(sales []int64) {
	keys := make([]string, 0, len(sales)+1)
	for _, id := range sales {
		keys = append(keys, "/v1/sales/"+itoa(int(id)))
	}
	s.Cache.Purge(append(keys, "/v1/sales")...)
}
