// Package api is the internal listener: the public API as gateways call it, in the name of the user they verified, and the
// feed of sale states that they follow. It takes signed requests only.
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/admission"
	"floodgate.internal/backend/cart"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/coupon"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/payment"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/timeline"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// Limits bound what one listener does at once.
type Limits struct {
	InFlight    int              // requests being answered; one more is OVERLOADED
	Waiting     int              // requests that wait for news (wait_ms, the feed); one more is OVERLOADED
	Connections int              // one more is closed
	Queued      int64            // orders in a sale's outbox; a new order past it is OVERLOADED
	Lag         time.Duration    // catalog.Lag; the same
	Line        admission.Limits // of the orders that wait to be decided
}

// The bounds of one request.
const (
	maxBody      = 64 << 10
	maxHeader    = 16 << 10
	readTimeout  = 10 * time.Second // of a whole request
	writeTimeout = 10 * time.Second // of a response
	idleTimeout  = 90 * time.Second // longer than a gateway keeps an idle connection, so that the gateway ends it
	workTimeout  = 5 * time.Second  // of what a request asks of Redis and MySQL
	loadTimeout  = 3 * time.Second  // of it, of waiting for a sale to be loaded into Redis
	loadAtMost   = 30 * time.Second // of loading it
)

// Config is what a Server listens with.
type Config struct {
	Keys     []signing.Key
	Limits   Limits
	Clock    *clock.Clock
	Log      *slog.Logger
	Register prometheus.Registerer
	Tracer   *tracing.Tracer // nil: nothing is traced
}

// Parts are what a Server answers from; but for the last five, all are needed.
type Parts struct {
	Catalog    *catalog.Catalog
	Redis      *reserve.Store
	Orders     *order.Store
	Reader     *order.Reader
	Claims     *coupon.Claims
	Carts      *cart.Carts
	Standby    *standby.Line
	SKUs       *sku.Cache
	Reconciler Reconciler
	Webhooks   *payment.Webhooks
	Timelines  *timeline.Store
	Gateways   *gateways.Store
	Payer      Payer              // nil: orders are paid by webhook alone
	Lists      *eligibility.Lists // nil: everybody may buy
	Origins    *origins.Report    // nil: nobody counts
	// Revocations is the list of revoked tokens; nil: gateways are told to come back.
	Revocations *revocation.List
	Confirmer   Confirmer     // nil: an order is accepted as soon as Redis has it on its disk
	Outage      func() string // names what has been away for too long to take orders, "" for nothing; nil: nothing ever is
}

// Payer takes the payment of an order at its owner's word, as order.Store.Pay does: that is the built-in test provider.
type Payer interface {
	Pay(ctx context.Context, uid, orderID string) (wire.Order, error)
}

// Confirmer is outbox.Confirmer or outbox.Replicas, as the API needs them.
type Confirmer interface {
	// Confirm returns nil once the broker has confirmed an order, or Redis's replicas have acknowledged it, and Redis still holds it.
	Confirm(ctx context.Context, e queued.Entry) error
	// Again is Confirm for an order that was made before.
	Again(ctx context.Context, sale int64, orderID string) error
}

// Reconciler is what the API needs of reconcile.Reconciler.
type Reconciler interface {
	// Load brings a sale that is not in Redis there, or waits for who does; reserve.ErrGateClosed: nobody does, and its gate
	// is closed for another reason.
	Load(ctx context.Context, sale int64) error
	// Wake says that Redis was started anew.
	Wake()
}

// Server answers the internal listener.
type Server struct {
	Config
	Parts    // set before ready
	ready    atomic.Bool
	verifier *signing.Verifier
	metrics  *metrics
	sparse   sparse
	line     *admission.Queue
	http     *fasthttp.Server
	inFlight atomic.Int64
	waiting  atomic.Int64
	loads    loads
	standing chan struct{}   // one for each request about a standby line that is being answered
	running  sync.WaitGroup  // the loads under way, and who follows the sales' states
	stopping context.Context // ends when Shutdown begins: nobody waits any longer
	stop     context.CancelFunc
}

// New makes a server that answers everything with OVERLOADED until Begin. It registers its metrics.
func New(c Config) *Server {
	s := &Server{Config: c, verifier: signing.NewVerifier(c.Keys...), sparse: sparse{log: c.Log}, standing: make(chan struct{}, standbyAtOnce)}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.metrics = newMetrics(c.Register, &s.inFlight, &s.waiting)
	s.line = admission.New(c.Limits.Line, c.Register)
	s.http = &fasthttp.Server{
		Handler:                      s.serve,
		ErrorHandler:                 s.malformed,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		Concurrency:                  c.Limits.Connections,
		ReadBufferSize:               maxHeader,
		MaxRequestBodySize:           maxBody,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		TCPKeepalive:                 true,
		TCPKeepalivePeriod:           30 * time.Second,
		DisablePreParseMultipartForm: true,
		CloseOnShutdown:              true,
		Logger:                       quiet{c.Log},
	}
	return s
}

// Begin makes the server answer from p. It must be called once at most.
func (s *Server) Begin(p Parts) {
	s.Parts = p
	s.running.Go(s.followStates)
	s.ready.Store(true)
}

// followStates tells those in line for a sale when another process has sold the last of it.
func (s *Server) followStates() {
	var instance string
	var since uint64
	for s.stopping.Err() == nil {
		news := s.Catalog.Feed(s.stopping, instance, since, wire.MaxWait)
		instance, since = news.Instance, news.Version
		for _, sale := range news.Sales {
			if sale.State == wire.SoldOut {
				s.line.SoldOut(sale.ID)
			}
		}
	}
}

// quiet drops the library's own messages but for their existence: they may hold a raw request.
type quiet struct{ log *slog.Logger }

func (q quiet) Printf(string, ...any) { q.log.Debug("api: a connection ended with an error") }

// Serve answers connections of ln until Shutdown.
func (s *Server) Serve(ln net.Listener) error {
	if err := s.http.Serve(ln); err != nil {
		return fmt.Errorf("internal listener %s: %w", ln.Addr(), err)
	}
	return nil
}

// Shutdown stops taking connections, answers whoever waits, and returns when every request in flight is answered or ctx
// ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	s.line.Close()
	defer s.running.Wait() // they end with stopping
	if err := s.http.ShutdownWithContext(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("drain the internal listener, %d requests in flight: %w", s.inFlight.Load(), err)
	}
	return nil
}

// request is one request that was verified.
type request struct {
	*fasthttp.RequestCtx
	id    string // X-Request-Id
	uid   string // "" for nobody
	route *route
	arg   string // what stands for {id} in the path
	query query
	span  *tracing.Span
	until time.Time // nobody waits for the answer any more, by the server's clock; zero: that is not known
}

// ids is what a log line names the request by, as the gateway's line does: request_id and, where the gateway sent one, trace_id.
func (r *request) ids() slog.Attr {
	ids := []any{slog.String("request_id", r.id)}
	if trace := wire.TraceID(r.Request.Header.Peek("traceparent")); trace != "" {
		ids = append(ids, slog.String("trace_id", trace))
	}
	return slog.Group("", ids...) // without a name its members stand in the line itself
}

// serve verifies, finds the route, answers, and counts.
func (s *Server) serve(ctx *fasthttp.RequestCtx) {
	began := time.Now()
	r := &request{RequestCtx: ctx, id: requestID(ctx), route: &unrouted}
	ctx.Response.Header.Set("X-Request-Id", r.id)
	ctx.Response.Header.SetBytesV(signing.HeaderNonce, ctx.Request.Header.Peek(signing.HeaderNonce)) // it is the answer to this
	if s.Tracer != nil {
		r.span = s.Tracer.Follow(string(ctx.Request.Header.Peek("traceparent")), "request", tracing.Server, began)
	}
	result := s.guarded(r)
	s.metrics.request(r.route, result, time.Since(began))
	r.endSpan(result)
}

// guarded turns a panic into a 500: one bad request never takes the process down.
func (s *Server) guarded(r *request) (result string) {
	defer func() {
		if v := recover(); v != nil {
			s.metrics.panics.Inc()
			s.Log.Error("api: panic", "panic", v, "route", r.route.name, r.ids(), "stack", stack())
			r.Response.ResetBody()
			result = r.refuse(problem.New(problem.Internal, "the request could not be answered; nothing is known of what it did"))
		}
	}()
	if !s.ready.Load() || !s.Clock.Synced() { // without the clock no signature can be judged
		return r.refuse(overloaded("the backend is starting"))
	}
	uid, err := s.verifier.Verify(&r.Request, s.Clock.Now())
	if err == nil && uid != "" && !validUID(uid) {
		err = signing.ErrMismatch // a gateway signs for valid users only
	}
	if err != nil {
		s.metrics.refusedSignature(err)
		// A gateway that has just been started may not know the time yet by which it is to sign.
		r.Response.Header.Set(signing.HeaderTime, strconv.FormatInt(s.Clock.NowMillis(), 10))
		return r.refuse(problem.New(problem.Unauthenticated, "this listener takes requests signed by a gateway: "+err.Error()))
	}
	r.uid = uid
	if p := r.find(); p != nil {
		return r.refuse(p)
	}
	if r.route.always {
		return r.route.handle(s, r)
	}
	if ms, err := strconv.ParseInt(string(r.Request.Header.Peek(signing.HeaderDeadline)), 10, 64); err == nil {
		r.until = time.UnixMilli(ms)
	}
	if s.late(r.until) {
		return r.refuse(nobodyWaits())
	}
	if p := s.enter(); p != nil {
		return r.refuse(p)
	}
	defer s.inFlight.Add(-1)
	return r.route.handle(s, r)
}

// late reports, and counts, that nobody waits any more for what has not begun. What is done is never taken back for it.
func (s *Server) late(until time.Time) bool {
	if until.IsZero() || s.Clock.Now().Before(until) {
		return false
	}
	s.metrics.shed[shedLate].Inc()
	return true
}

func nobodyWaits() *problem.Problem { return overloaded("the request came too late for its answer") }

// enter counts a request in, unless too many are in flight.
func (s *Server) enter() *problem.Problem {
	if s.inFlight.Add(1) > int64(s.Limits.InFlight) {
		s.inFlight.Add(-1)
		return overloaded("too many requests are in flight")
	}
	return nil
}

// park counts a request among those that wait, which are not in flight meanwhile; done must be called.
// false: too many wait.
func (s *Server) park() (done func(), ok bool) {
	if s.waiting.Add(1) > int64(s.Limits.Waiting) {
		s.waiting.Add(-1)
		return nil, false
	}
	s.inFlight.Add(-1)
	return func() { s.waiting.Add(-1); s.inFlight.Add(1) }, true
}

// malformed answers what the HTTP parser refused.
func (s *Server) malformed(ctx *fasthttp.RequestCtx, err error) {
	r := &request{RequestCtx: ctx, id: uuid.NewString(), route: &unrouted}
	ctx.Response.Header.Set("X-Request-Id", r.id)
	var small *fasthttp.ErrSmallBuffer
	var p *problem.Problem
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = problem.New(problem.PayloadTooLarge, fmt.Sprintf("at most %d bytes", maxBody))
	case errors.As(err, &small):
		p = problem.New(problem.BadRequest, fmt.Sprintf("the header is larger than %d bytes", maxHeader))
		p.Status = fasthttp.StatusRequestHeaderFieldsTooLarge
	default:
		p = problem.New(problem.BadRequest, "this is not a request that can be understood")
	}
	ctx.SetConnectionClose()
	s.metrics.request(r.route, r.refuse(p), 0)
}

// refuse makes p the answer and returns its code, for the metrics.
func (r *request) refuse(p *problem.Problem) string {
	p.WriteTo(r.RequestCtx, r.id)
	if p.Rule != "" {
		r.Response.Header.Set(verdict.HeaderRule, p.Rule)
	}
	return string(p.Code)
}

// retrySoon is the Retry-After of what passes by itself, with jitter upwards.
func retrySoon() time.Duration { return time.Second + rand.N(2*time.Second) }

func overloaded(detail string) *problem.Problem {
	p := problem.New(problem.Overloaded, detail+"; nothing was done, ask again")
	p.RetryAfter = retrySoon()
	return p
}

func unknownOutcome(detail string) *problem.Problem {
	p := problem.New(problem.OutcomeUnknown, detail)
	p.RetryAfter = retrySoon()
	return p
}

// requestID is the gateway's X-Request-Id, or a new one where there is none that is harmless.
func requestID(ctx *fasthttp.RequestCtx) string {
	if id := string(ctx.Request.Header.Peek("X-Request-Id")); validUID(id) { // the same alphabet
		return id
	}
	return uuid.NewString()
}
