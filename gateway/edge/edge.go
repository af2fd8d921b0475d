// Package edge is the gateway's public side: what a request must look like, in which order it is judged, and what it is
// answered. The cheapest check comes first: method, path and size, a ban of the network, then the sale gate, the page cache,
// the address's buckets, identity, the user's buckets, for an order everybody's bucket, and only then a backend.
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
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/presslog"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/topk"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// Settings is what a reload changes at the edge, swapped as one pointer.
type Settings struct {
	Verifier         *identity.Verifier
	Order            *limit.Rule // of a user: orders and carts
	Payment          *limit.Rule // of a user: what changes what they hold
	Read             *limit.Rule // of a user: all else
	IP               *limit.Rule // of an address
	Webhook          *limit.Rule // of an address that delivers webhooks
	Global           *limit.Rule // of all orders
	Patience         limit.Patience
	Trusted          network.Set // proxies whose word on the client's address is taken
	Exempt           network.Set // from the rules of addresses
	BannedNetworks   network.Set
	ExemptUsers      map[string]struct{} // from the rules of users
	BannedUsers      map[string]struct{} // who order nothing
	EligibleUsers    map[string]struct{} // the only ones who order; empty for everybody
	Pages            pagecache.Rule
	Sign             *identity.Signer // mints test tokens; nil outside development
	InsecureCookies  bool             // without Secure, for plain HTTP in development
	LogEvery         int              // one request in so many is logged; 0 for none
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
	Records  *presslog.Recorder
	Handover *presslog.Handover
	Log      *slog.Logger
	Now      func() time.Time // the monotonic clock of buckets, caches and the gate; time.Now but in tests
}

// Server answers requests. Make it with New.
type Server struct {
	Parts
	settings atomic.Pointer[Settings]
	draining atomic.Bool

	delivering atomic.Int64 // webhooks at the backends

	orders, payments, reads *limit.Buckets[string]
	ips, webhooks           *limit.Buckets[[16]byte]
	global                  *limit.Shared
	metrics                 *metrics
	uids                    *topk.Table[string]
	addrs                   *topk.Table[[16]byte]
	accesses                *rate.Limiter

	limits   Limits
	date     atomic.Pointer[date]
	idPrefix string
	idCount  atomic.Uint64
	warnings *rate.Limiter
}

var errSignature = errors.New("the backend refuses this gateway's signature")

// warn logs what would otherwise be logged for every request of an outage: a few lines a second.
func (s *Server) warn(message string, err error, r *upstream.Request) {
	if s.warnings.Allow() {
		s.Log.Warn(message, "error", err, "request_id", r.RequestID, "trace_id", wire.TraceID(r.Trace))
	}
}

// New makes a server. Configure it before it serves.
func New(parts Parts, reg prometheus.Registerer) *Server {
	var prefix [5]byte
	rand.Read(prefix[:]) // never fails: crypto/rand
	return &Server{
		Parts:  parts,
		orders: limit.New[string]("order", reg), payments: limit.New[string]("payment", reg), reads: limit.New[string]("read", reg),
		ips: limit.New[[16]byte]("ip", reg), webhooks: limit.New[[16]byte]("webhook", reg),
		global:  limit.NewShared("global", reg),
		metrics: newMetrics(reg),
		uids:    topk.NewTable[string](), addrs: topk.NewTable[[16]byte](),
		accesses: rate.NewLimiter(maxLogged, maxLogged),
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
	MaxBody, MaxHeader                     int
}

// MostConnections is the highest bound that a Listener may have.
const MostConnections = 1 << 20

// HTTP is the fasthttp server around s.
func (s *Server) HTTP(l Limits) *fasthttp.Server {
	s.limits = l
	return &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.protocolError,
		Logger:                       quiet{s.Log},
		ReadTimeout:                  l.ReadTimeout,
		WriteTimeout:                 l.WriteTimeout,
		IdleTimeout:                  l.IdleTimeout,
		MaxRequestBodySize:           l.MaxBody,
		ReadBufferSize:               l.MaxHeader,
		Concurrency:                  MostConnections + 1024, // the Listener's bound is the one that counts
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

// The fields of every answer, and of refusals, as fasthttp keeps them.
var (
	headerRequestID = []byte("X-Request-Id")
	headerSniff     = []byte("X-Content-Type-Options")
	noSniff         = []byte("nosniff")
	headerCache     = []byte("Cache-Control")
	noStore         = []byte("no-store")
	headerRetry     = []byte("Retry-After")
)

// exchange is one request and its answer. It lives in its connection, so that a refusal allocates nothing.
type exchange struct {
	s    *Server
	ctx  *fasthttp.RequestCtx
	set  *Settings
	now  time.Time // the one reading of the monotonic clock
	id   []byte    // X-Request-Id
	addr *conn
	from netip.Addr // see client

	uid    string        // whose request it is, once that is known
	wait   time.Duration // until the buckets that were asked would let the next request through
	route  route
	result result
	by     rule         // what refused it; rules for none
	rule   verdict.Rule // what decided about a press, where it is not the result alone

	trace  []byte // see traceparent
	access access // see logged

	made      [32]byte // room for an id of our own
	number    [20]byte // for a Retry-After
	traceRoom [55]byte
	body      []byte // for what is made of prepared bytes; kept from request to request
}

// begin starts the exchange of a connection that came through a Listener.
func (s *Server) begin(ctx *fasthttp.RequestCtx) *exchange {
	c := ctx.Conn().(*conn)
	x := &c.exchange
	*x = exchange{s: s, ctx: ctx, set: s.settings.Load(), now: s.Now(), addr: c, result: resultOther, by: rules, body: x.body[:0]}
	return x
}

// finish puts on what every answer has, counts it, and notes whose it is.
func (x *exchange) finish() {
	h := &x.ctx.Response.Header
	h.SetCanonical(headerRequestID, x.id)
	h.SetCanonical(headerSniff, noSniff)
	if x.addr.screen.last.close { // the parser knows one spelling of it alone
		x.ctx.SetConnectionClose()
	}
	x.s.metrics.requests[x.route][x.result].Inc()
	x.note()
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	x := s.begin(ctx)
	defer func() {
		if r := recover(); r != nil {
			s.metrics.panics.Inc()
			s.Log.Error("a request broke the handler", "route", routeNames[x.route], "request_id", string(x.id), "panic", r, "stack", string(debug.Stack()))
			ctx.Response.Reset()
			x.refuse(problem.New(problem.Internal, "the request broke something here; it may or may not have been done"))
			x.close()
		}
		x.finish()
	}()
	x.name(ctx.Request.Header.PeekCanonical(headerRequestID))
	if x.addr.screen.heads < ctx.ConnRequestNum() {
		panic("BUG: a request that guard has not seen")
	}
	x.serve()
}

// name keeps an incoming id that is short and plain, so that a caller can follow its request; else it makes one.
func (x *exchange) name(given []byte) {
	if n := len(given); n >= 8 && n <= 64 {
		plain := true
		for _, c := range given {
			plain = plain && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
		}
		if plain {
			x.id = given
			return
		}
	}
	x.nameAnew()
}

func (x *exchange) nameAnew() {
	x.id = strconv.AppendUint(append(x.made[:0], x.s.idPrefix...), x.s.idCount.Add(1), 36)
}

// protocolError answers what is not a request. fasthttp closes the connection after it.
func (s *Server) protocolError(ctx *fasthttp.RequestCtx, err error) {
	ctx.Response.Reset()
	x := s.begin(ctx)
	x.nameAnew()
	x.route = routeMalformed
	var small *fasthttp.ErrSmallBuffer
	var op net.Error
	var p *problem.Problem
	switch {
	case errors.As(err, &p): // the screen's
	case errors.As(err, &small):
		p = status(fasthttp.StatusRequestHeaderFieldsTooLarge, "the header is too large")
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = tooLarge()
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
	x.addr.linger.Store(true)
}

// refuse answers with p.
func (x *exchange) refuse(p *problem.Problem) {
	if p.Code == problem.Overloaded && p.RetryAfter == 0 {
		p.RetryAfter = time.Second + jitter(2*time.Second)
	}
	if p.RetryAfter > 0 {
		p.RetryAfter = max(p.RetryAfter, x.wait+jitter(time.Second))
	}
	p.WriteTo(x.ctx, string(x.id))
	x.result = resultOf(p.Code)
}

// reject is refuse by a rule of the gateway's own.
func (x *exchange) reject(by rule, p *problem.Problem) {
	x.s.metrics.refusals[by].Inc()
	x.by = by
	x.refuse(p)
	x.rule = ruleRecords[by]
}

// jitter only adds.
func jitter(d time.Duration) time.Duration { return mathrand.N(d) }

// prepared refuses with bytes made in advance; after, or x.wait where that is longer, goes into Retry-After, with jitter, unless after is 0.
func (x *exchange) prepared(by rule, r *salegate.Refusal, after time.Duration) {
	x.s.metrics.refusals[by].Inc()
	x.by, x.rule = by, ruleRecords[by]
	x.result = resultOf(r.Code)
	resp := &x.ctx.Response
	resp.SetStatusCode(r.Status)
	resp.Header.SetContentType(problem.ContentType)
	resp.Header.SetCanonical(headerCache, noStore)
	if after > 0 {
		resp.Header.SetCanonical(headerRetry, x.retry(max(after, x.wait)))
	}
	x.body = r.AppendBody(x.body[:0], x.id)
	resp.SetBodyRaw(x.body)
}

// retry is a Retry-After with jitter.
func (x *exchange) retry(after time.Duration) []byte {
	seconds := (after + jitter(time.Second) + time.Second - 1) / time.Second
	return strconv.AppendInt(x.number[:0], int64(seconds), 10)
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
