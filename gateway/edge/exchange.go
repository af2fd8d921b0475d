package edge

import (
	"errors"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/verdict"
)

// Header names and values of every answer, as fasthttp keeps them.
var (
	headerRequestID  = []byte("X-Request-Id")
	headerNoSniff    = []byte("X-Content-Type-Options")
	noSniff          = []byte("nosniff")
	headerCache      = []byte("Cache-Control")
	noStore          = []byte("no-store")
	headerRetryAfter = []byte("Retry-After")
)

// exchange is one request and its answer. It is a part of its conn, so that a refusal allocates nothing.
type exchange struct {
	s    *Server
	ctx  *fasthttp.RequestCtx
	set  *Settings
	now  time.Time // the monotonic clock, read once
	id   []byte    // X-Request-Id
	conn *conn
	addr netip.Addr // see client

	route *route
	op    *operation
	path  []byte // canonical
	param []byte // the part of path that the route leaves open; nil: none

	known    identity.User // of the header's token, where isKnown: it was found good before
	isKnown  bool
	disputed bool // see oneClient

	uid     string        // the verified user; "" before, or for nobody
	wait    time.Duration // until every bucket that was asked would admit the next request
	result  result
	rule    rule         // what refused it; rules: nothing
	verdict verdict.Rule // what decided about an order, where result does not say it

	trace   []byte // see traceparent
	sampled sampled
	traced  sampled
	span    *tracing.Span // see requestSpan
	asked   time.Duration // how long the backend took; 0: it was not asked
	tally   *tally        // of the user's side of a canary; nil: none runs, or the user's buckets were not asked

	idRoom    [32]byte // for an id of the gateway's own
	retryRoom [20]byte // for a Retry-After
	traceRoom [55]byte
	body      []byte // for prepared refusals; its memory is kept from request to request
}

// begin starts the exchange of a connection that a Listener accepted.
func (s *Server) begin(ctx *fasthttp.RequestCtx) *exchange {
	c := ctx.Conn().(*conn)
	x := &c.exchange
	*x = exchange{s: s, ctx: ctx, set: s.settings.Load(), now: s.Now(), conn: c, route: unknownPath, result: resultOther, rule: rules, body: x.body[:0]}
	return x
}

// finish sets the header fields that every answer has, and counts and logs the request.
func (x *exchange) finish() {
	h := &x.ctx.Response.Header
	h.SetCanonical(headerRequestID, x.id)
	h.SetCanonical(headerNoSniff, noSniff)
	if x.set.CORS != nil {
		x.allowOrigin()
	}
	if x.conn.heads.last.close { // fasthttp knows only one spelling of Connection: close
		x.ctx.SetConnectionClose()
	}
	if x.conn.last(x.set, x.now) {
		x.close()
	}
	x.s.metrics.requests[x.route.label][x.result].Inc()
	x.countClient()
	x.observe(x.route.label, x.ctx.Response.StatusCode())
	x.countCanary(x.ctx.Response.StatusCode())
	if x.isTraced() {
		x.endSpan()
	}
	if x.isLogged() {
		x.log()
	}
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	x := s.begin(ctx)
	defer func() {
		if r := recover(); r != nil {
			s.metrics.panics.Inc()
			s.Log.Error("a request broke the handler", "route", x.route.name(), "request_id", string(x.id), "panic", r, "stack", string(debug.Stack()))
			ctx.Response.Reset()
			x.refuse(problem.New(problem.Internal, "the request broke something here; it may or may not have been done"))
			x.close()
		}
		x.finish()
	}()
	x.setID(ctx.Request.Header.PeekCanonical(headerRequestID))
	if x.conn.heads.passed < ctx.ConnRequestNum() {
		panic("BUG: a request whose head was not checked")
	}
	x.dispatch()
}

// setID takes the client's request id if it is short and plain, and makes one otherwise.
func (x *exchange) setID(given []byte) {
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
	x.newID()
}

func (x *exchange) newID() {
	x.id = strconv.AppendUint(append(x.idRoom[:0], x.s.idPrefix...), x.s.idCount.Add(1), 36)
}

// protocolError answers what is not a request. fasthttp then closes the connection.
func (s *Server) protocolError(ctx *fasthttp.RequestCtx, err error) {
	ctx.Response.Reset()
	x := s.begin(ctx)
	x.newID()
	x.route = malformed
	var small *fasthttp.ErrSmallBuffer
	var op net.Error
	var p *problem.Problem
	switch {
	case errors.As(err, &p): // from headFilter
	case errors.As(err, &small):
		p = badRequest(fasthttp.StatusRequestHeaderFieldsTooLarge, "the header is too large")
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = tooLarge()
	case errors.As(err, &op) && op.Timeout():
		p = badRequest(fasthttp.StatusRequestTimeout, "the request did not come in time")
	default:
		p = problem.New(problem.BadRequest, "this is not a request that could be read")
	}
	if p.Code == problem.Overloaded {
		x.reject(ruleInFlight, p)
	} else {
		x.reject(ruleProtocol, p)
	}
	x.close()
	x.finish()
}

// close ends the connection after this answer, in a way that lets the client read the answer.
func (x *exchange) close() {
	x.ctx.SetConnectionClose()
	x.conn.linger.Store(true)
}
