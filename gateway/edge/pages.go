package edge

import (
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/page"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
)

// page answers with the shopper page or a file of it.
func (x *exchange) page(path string) {
	a, ok := page.Get(path)
	if !ok {
		x.refuse(problem.New(problem.NotFound, "there is no such path"))
		return
	}
	h := &x.ctx.Response.Header
	h.Set("Content-Security-Policy", page.Policy)
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	x.kept(&pagecache.Page{Status: 200, ContentType: a.ContentType, ETag: a.ETag, Body: a.Body}, pagecache.Hit, "public, max-age=10")
}

// kept answers with a page that may be kept, or 304.
func (x *exchange) kept(p *pagecache.Page, how pagecache.How, cacheControl string) {
	h := &x.ctx.Response.Header
	h.Set("Cache-Control", cacheControl)
	h.Set("X-Cache", string(how))
	if p.ETag != "" {
		h.Set("ETag", p.ETag)
	}
	if pagecache.Matches(x.ctx.Request.Header.Peek("If-None-Match"), p.ETag) {
		x.ctx.Response.SetStatusCode(fasthttp.StatusNotModified)
		x.result = resultNotModified
		return
	}
	x.ctx.Response.SetStatusCode(p.Status)
	h.SetContentType(p.ContentType)
	x.ctx.Response.SetBodyRaw(p.Body)
	x.result = resultOK
}

// cached answers a public read. Nobody's token is looked at while the page is fresh; who is over a limit gets the page that
// is kept, however stale within the rule, and 429 only where there is none.
func (x *exchange) cached(target string) {
	cache, rule := x.s.Cache, x.set.Pages
	fetch := x.s.fetch(target, x.id)
	if p, how, ok := cache.Fresh(target, rule, x.now, fetch); ok {
		x.kept(p, how, x.set.pagesMaxAge)
		return
	}
	if by, d := x.overReading(); !d.OK {
		if p, ok := cache.Kept(target, rule, x.now); ok {
			x.kept(p, pagecache.Stale, x.set.pagesMaxAge)
			return
		}
		x.admit(by, d)
		return
	}
	p, how, err := cache.Get(target, rule, x.now, 2*x.s.Pool.Timeout(), fetch)
	switch {
	case err != nil:
		x.ctx.Response.Header.Set("X-Cache", string(how))
		x.unanswered(&upstream.Request{Method: fasthttp.MethodGet}, err)
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
	x.wait = d.Wait
	if token, _ := x.token(); len(token) > 0 {
		if who, err := x.set.Verifier.Verify(token); err == nil { // else it is anybody's read
			return ruleRead, x.s.reads.Take(who.UID, x.set.Read, x.now)
		}
	}
	return 0, limit.Decision{OK: true}
}

// fetch gets a page from a backend, in nobody's name.
func (s *Server) fetch(target, requestID string) pagecache.Fetch {
	return func() (*pagecache.Page, error) {
		resp := fasthttp.AcquireResponse()
		defer fasthttp.ReleaseResponse(resp)
		err := s.Pool.Do(&upstream.Request{Method: fasthttp.MethodGet, Target: target, RequestID: requestID}, resp)
		if err != nil {
			return nil, err
		}
		if code := resp.StatusCode(); code == fasthttp.StatusUnauthorized {
			s.warn("check the signing keys on both sides", errSignature, requestID)
		}
		return &pagecache.Page{
			Status: resp.StatusCode(), ContentType: string(resp.Header.ContentType()), ETag: string(resp.Header.Peek("ETag")),
			Body: append([]byte(nil), resp.Body()...),
		}, nil
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
