package edge

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/page"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
)

// pressed is the page's files as pages, by ETag: as many as there are files.
var pressed sync.Map

// page answers with the shopper page or a file of it.
func (x *exchange) page(path string) {
	a, ok := page.Get(path)
	if !ok {
		x.refuse(problem.New(problem.NotFound, "there is no such path"))
		return
	}
	p, ok := pressed.Load(a.ETag)
	if !ok {
		p, _ = pressed.LoadOrStore(a.ETag, pagecache.NewPage(200, a.ContentType, a.ETag, a.Body))
	}
	h := &x.ctx.Response.Header
	h.Set("Content-Security-Policy", page.Policy)
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=()")
	if !x.set.InsecureCookies { // then nobody can sign in but by HTTPS
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
	x.kept(p.(*pagecache.Page), pagecache.Hit, "public, max-age=10")
}

// kept answers with a page that may be kept, in the coding that the client likes best, or with 304, or 406.
func (x *exchange) kept(p *pagecache.Page, how pagecache.How, cacheControl string) {
	in := &x.ctx.Request.Header
	h := &x.ctx.Response.Header
	h.Set("X-Cache", string(how))
	h.Set("Vary", "Accept-Encoding")
	coding, ok := p.Choose(in.PeekAll("Accept-Encoding"))
	if !ok {
		x.refuse(status(fasthttp.StatusNotAcceptable, "there is no coding that Accept-Encoding accepts: ask for gzip, br or identity"))
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

// cached answers a public read. Its key is the canonical path, which is also what a backend is asked for. Nobody's token is
// looked at while the page is fresh; who is over a limit gets the page that is kept, however stale within the rule, and 429
// only where there is none.
func (x *exchange) cached(path []byte) {
	cache, rule := x.s.Cache, x.set.Pages
	if p, how, renew := cache.Fresh(path, rule, x.now); how != "" {
		if renew {
			r := x.read(path)
			cache.Renew(r.Target, x.s.fetch(r))
		}
		x.kept(p, how, x.set.pagesMaxAge)
		return
	}
	if by, d := x.overReading(); !d.OK {
		if p, ok := cache.Kept(path, rule, x.now); ok {
			x.kept(p, pagecache.Stale, x.set.pagesMaxAge)
			return
		}
		x.admit(by, d)
		return
	}
	r := x.read(path)
	p, how, err := cache.Get(r.Target, rule, x.now, 2*x.s.Pool.Timeout(), x.s.fetch(r))
	switch {
	case err != nil:
		x.ctx.Response.Header.Set("X-Cache", string(how))
		x.unanswered(r, err)
	case p.Status == 200:
		x.kept(p, how, x.set.pagesMaxAge)
	case p.Status == fasthttp.StatusNotFound:
		x.ctx.Response.Header.Set("X-Cache", string(how))
		x.refuse(problem.New(problem.SaleNotFound, "there is no such sale"))
	default:
		x.ctx.Response.Header.Set("X-Cache", string(how))
		x.overloaded("the shop is busy or cannot be reached")
	}
}

// overReading draws on the address's buckets, and on the user's where the request names one.
func (x *exchange) overReading() (rule, limit.Decision) {
	d := x.takeAddress(x.s.ips, x.set.IP)
	if !d.OK {
		return ruleIP, d
	}
	if token, _ := x.token(); len(token) > 0 {
		if who, err := x.set.Verifier.Verify(token); err == nil { // else it is anybody's read
			return ruleRead, x.takeUser(x.s.reads, x.set.Read, who.UID)
		}
	}
	return 0, limit.Decision{OK: true}
}

// read is what a backend is asked for a page, in nobody's name. It may outlive the exchange.
func (x *exchange) read(path []byte) *upstream.Request {
	return &upstream.Request{Method: fasthttp.MethodGet, Class: upstream.Page, Target: string(path), RequestID: string(x.id), Trace: bytes.Clone(x.traceparent())}
}

// fetch gets a page from a backend.
func (s *Server) fetch(r *upstream.Request) pagecache.Fetch {
	return func() (*pagecache.Page, error) {
		resp := fasthttp.AcquireResponse()
		defer fasthttp.ReleaseResponse(resp)
		if err := s.Pool.Do(r, resp); err != nil {
			return nil, err
		}
		if code := resp.StatusCode(); code == fasthttp.StatusUnauthorized {
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

// Changed makes the pages of these sales old. It is what the feed's news is for.
func (s *Server) Changed(sales []int64) {
	keys := make([]string, 0, len(sales)+1)
	for _, id := range sales {
		keys = append(keys, "/v1/sales/"+itoa(int(id)))
	}
	s.Cache.Purge(append(keys, "/v1/sales")...)
}
