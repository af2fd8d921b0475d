// Package edge is the gateway's public side: what a request must look like, in which order it is judged, and what it is
// answered. The cheapest check comes first: method, path and size, then the sale gate, the page cache, the address's bucket,
// identity, the user's bucket, for an order everybody's bucket, and only then a backend.
package edge

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/salegate"
	records "floodgate.internal/gateway/timeline"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/timeline"
)

// Settings is what a reload changes at the edge, swapped as one pointer.
type Settings struct {
	Verifier         *identity.Verifier
	Order, Read, IP  *limit.Law
	Webhook          *limit.Law // of an address that delivers webhooks
	Global           *limit.Law // of all orders
	Patience         limit.Patience
	Exempt           []netip.Prefix // from the laws of addresses
	Pages            pagecache.Rule
	Sign             *identity.Key // may mint test tokens; nil outside development
	InsecureCookies  bool          // without Secure, for plain HTTP in development
	pagesMaxAge      string
	cookieAttributes string
}

// Parts are what the edge works with; they live as long as the process.
type Parts struct {
	Clock *clock.Clock
	Gate  *salegate.Gate
	Cache *pagecache.Cache
	Pool  *upstream.Pool
	// Records are of what became of users' presses, which Handover takes to the backends.
	Records  *records.Recorder
	Handover *records.Handover
	Log      *slog.Logger
}

// Server answers requests. Make it with New.
type Server struct {
	Parts
	settings atomic.Pointer[Settings]
	draining atomic.Bool

	delivering atomic.Int64 // webhooks at the backends

	orders, reads *limit.Buckets[string]
	ips, webhooks *limit.Buckets[[16]byte]
	global        *limit.Shared
	metrics       *metrics

	idPrefix string
	idCount  atomic.Uint64
	warnings *rate.Limiter
}

var errSignature = errors.New("the backend refuses this gateway's signature")

// warn logs what would otherwise be logged for every request of an outage: a few lines a second.
func (s *Server) warn(message string, err error, requestID string) {
	if s.warnings.Allow() {
		s.Log.Warn(message, "error", err, "request_id", requestID)
	}
}

// New makes a server. Configure it before it serves.
func New(parts Parts, reg prometheus.Registerer) *Server {
	var prefix [5]byte
	rand.Read(prefix[:]) // never fails: crypto/rand
	return &Server{
		Parts:  parts,
		orders: limit.New[string]("order", reg), reads: limit.New[string]("read", reg), ips: limit.New[[16]byte]("ip", reg),
		webhooks: limit.New[[16]byte]("webhook", reg),
		global:   limit.NewShared("global", reg),
		metrics:  newMetrics(reg),
		idPrefix: hex.EncodeToString(prefix[:]) + "-",
		warnings: rate.NewLimiter(2, 5),
	}
}

// Configure swaps the settings. Buckets keep their tokens, requests in flight end as they began.
func (s *Server) Configure(set Settings) {
	set.pagesMaxAge = "public, max-age=" + itoa(int(max(set.Pages.TTL/time.Second, 1)))
	set.cookieAttributes = "; Path=/; HttpOnly; SameSite=Strict"
	if !set.InsecureCookies {
		set.cookieAttributes += "; Secure"
	}
	s.settings.Store(&set)
}

// Drain makes requests that would wait for news answer at once.
func (s *Server) Drain() { s.draining.Store(true) }

// Limits are those of fasthttp's that cannot change while it serves.
type Limits struct {
	ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	MaxBody, MaxHeader, MaxConnections     int
}

// HTTP is the fasthttp server around s.
func (s *Server) HTTP(l Limits) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.protocolError,
		Logger:                       quiet{s.Log},
		ReadTimeout:                  l.ReadTimeout,
		WriteTimeout:                 l.WriteTimeout,
		IdleTimeout:                  l.IdleTimeout,
		MaxRequestBodySize:           l.MaxBody,
		ReadBufferSize:               l.MaxHeader,
		Concurrency:                  l.MaxConnections + 1024, // the Listener's bound is the one that counts
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		DisablePreParseMultipartForm: true,
		SecureErrorLogMessage:        true,
		CloseOnShutdown:              true,
	}
}

// quiet is fasthttp's log. Its arguments may hold parts of a request, tokens included, so only the format is kept.
type quiet struct{ log *slog.Logger }

func (q quiet) Printf(format string, _ ...any) { q.log.Debug("HTTP server", "message", format) }

// exchange is one request and its answer.
type exchange struct {
	s    *Server
	ctx  *fasthttp.RequestCtx
	set  *Settings
	now  time.Time // the one reading of the monotonic clock
	id   string    // X-Request-Id
	addr *conn

	route  route
	result result
	rule   timeline.Rule // what decided about a press, where it is not the result alone
}

func (s *Server) begin(ctx *fasthttp.RequestCtx) *exchange {
	x := &exchange{s: s, ctx: ctx, set: s.settings.Load(), now: time.Now(), result: resultOther}
	x.addr, _ = ctx.Conn().(*conn)
	return x
}

// finish puts on what every answer has, and counts it.
func (x *exchange) finish() {
	h := &x.ctx.Response.Header
	h.Set("X-Request-Id", x.id)
	h.Set("X-Content-Type-Options", "nosniff")
	x.s.metrics.requests[x.route][x.result].Inc()
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	x := s.begin(ctx)
	defer func() {
		if r := recover(); r != nil {
			s.metrics.panics.Inc()
			s.Log.Error("a request broke the handler", "route", routeNames[x.route], "request_id", x.id, "panic", r, "stack", string(debug.Stack()))
			ctx.Response.Reset()
			x.refuse(problem.New(problem.Internal, "the request broke something here; it may or may not have been done"))
			x.close()
		}
		x.finish()
	}()
	x.id = s.requestID(ctx)
	x.serve()
}

// requestID keeps an incoming id that is short and plain, so that a caller can follow its request; else it makes one.
func (s *Server) requestID(ctx *fasthttp.RequestCtx) string {
	given := ctx.Request.Header.Peek("X-Request-Id")
	if n := len(given); n >= 8 && n <= 64 {
		plain := true
		for _, c := range given {
			plain = plain && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
		}
		if plain {
			return string(given)
		}
	}
	return s.newID()
}

func (s *Server) newID() string {
	return s.idPrefix + strconv.FormatUint(s.idCount.Add(1), 36)
}

// protocolError answers what is not a request. fasthttp closes the connection after it.
func (s *Server) protocolError(ctx *fasthttp.RequestCtx, err error) {
	ctx.Response.Reset()
	x := s.begin(ctx)
	x.id, x.route = s.newID(), routeMalformed
	var small *fasthttp.ErrSmallBuffer
	var op net.Error
	var p *problem.Problem
	switch {
	case errors.As(err, &small):
		p = status(fasthttp.StatusRequestHeaderFieldsTooLarge, "the header is too large")
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = problem.New(problem.PayloadTooLarge, "the body is too large")
	case errors.As(err, &op) && op.Timeout():
		p = status(fasthttp.StatusRequestTimeout, "the request did not come in time")
	default:
		p = problem.New(problem.BadRequest, "this is not a request that could be read")
	}
	x.reject(ruleProtocol, p)
	x.close()
	x.finish()
}

// close ends the connection after this answer, gently.
func (x *exchange) close() {
	x.ctx.SetConnectionClose()
	if x.addr != nil {
		x.addr.linger.Store(true)
	}
}

// refuse answers with p.
func (x *exchange) refuse(p *problem.Problem) {
	if p.Code == problem.Overloaded && p.RetryAfter == 0 {
		p.RetryAfter = time.Second + jitter(2*time.Second)
	}
	p.WriteTo(x.ctx, x.id)
	x.result = resultOf(p.Code)
}

// reject is refuse by a rule of the gateway's own.
func (x *exchange) reject(by rule, p *problem.Problem) {
	x.s.metrics.refusals[by].Inc()
	x.refuse(p)
	x.rule = ruleRecords[by]
}

// jitter only adds.
func jitter(d time.Duration) time.Duration { return mathrand.N(d) }

// prepared answers with bytes made in advance.
func (x *exchange) prepared(r *salegate.Refusal) {
	x.s.metrics.refusals[ruleGate].Inc()
	x.result = resultOf(r.Code)
	resp := &x.ctx.Response
	resp.SetStatusCode(r.Status)
	resp.Header.SetContentType(problem.ContentType)
	resp.Header.Set("Cache-Control", "no-store")
	if r.RetryAfter > 0 {
		resp.Header.Set("Retry-After", itoa(int((r.RetryAfter+jitter(time.Second)+time.Second-1)/time.Second)))
	}
	resp.SetBodyRaw(r.AppendBody(make([]byte, 0, 512), x.id))
}

func (x *exchange) overloaded(detail string) { x.refuse(problem.New(problem.Overloaded, detail)) }

// json answers 200 with a body that nobody may keep.
func (x *exchange) json(code int, body []byte) {
	x.ctx.Response.SetStatusCode(code)
	x.ctx.Response.Header.SetContentType("application/json")
	x.ctx.Response.Header.Set("Cache-Control", "no-store")
	x.ctx.Response.SetBodyRaw(body)
	x.result = resultOK
}

func itoa(n int) string { return strconv.Itoa(n) }
