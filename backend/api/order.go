package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"floodgate.internal/backend/admission"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// refusals maps each of the script's refusals to what the shopper is told.
var refusals = map[lua.Answer]struct {
	code   problem.Code
	detail string
	soon   bool // passes by itself: Retry-After
}{
	lua.KeyReused:      {problem.IdempotencyKeyReused, "this Idempotency-Key was accepted with another quantity; use a new key for another order", false},
	lua.AlreadyOrdered: {problem.AlreadyOrdered, "your orders in this sale leave no room for this one within its limit for each user", false},
	lua.TooMany: {problem.TooManyOrders, "too many of your orders in this sale have ended without being paid, so no other is taken from this account; an order that you hold stays yours: " +
		"see GET /v1/orders?sale_id=", false},
	lua.SoldOut:    {problem.SoldOut, "nothing is available now", false},
	lua.NotEnough:  {problem.InsufficientStock, "less is available than you asked for", false},
	lua.NotStarted: {problem.SaleNotStarted, "the sale has not started", false},
	lua.Ended:      {problem.SaleEnded, "the sale has ended", false},
	lua.Paused:     {problem.Overloaded, "the sale is paused; nothing was done, ask again", true},
	lua.StaleEpoch: {problem.Overloaded, "the sale's stock is being checked; nothing was done, ask again", true},
}

// postOrder makes an order: the one request that the whole system is for.
func (s *Server) postOrder(r *request) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	id, p := r.saleID()
	if p != nil {
		return r.refuse(p)
	}
	key, p := r.idempotencyKey()
	if p != nil {
		return r.refuse(p)
	}
	body, p := r.jsonBody()
	if p != nil {
		return r.refuse(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	sale, p := s.sale(ctx, id)
	if p != nil {
		if p.Code == problem.SaleEnded {
			return s.tooLate(ctx, r, id, key, body)
		}
		return r.refuse(p)
	}
	quantity, category, err := wire.ParseOrderRequest(body, sale.PerUserLimit)
	if err != nil {
		return r.refuse(badBody(err))
	}
	if category != nil && (sale.Kind != wire.Coupon || *category != sale.Category) {
		return s.refuseUnlessRepeated(ctx, r, id, key, quantity, problem.Invalid("category", otherCategory(sale)), s.Redis.Accepted)
	}
	if p := s.mayBuy(id, uid); p != nil {
		return s.refuseUnlessRepeated(ctx, r, id, key, quantity, p, s.Redis.Accepted)
	}
	if p := s.pressure(id); p != nil {
		return r.refuse(p)
	}
	req := reserve.Request{
		Sale: id, UID: uid, Quantity: quantity, Key: key,
		Trace: r.trace(),
	}
	return s.place(ctx, r, req, body)
}

// place has Redis decide an order, and answers with its verdict. body is the request's, for a sale that turns out archived.
func (s *Server) place(ctx context.Context, r *request, req reserve.Request, body []byte) string {
	failpoint.Hit("api.before-script")
	var err error
	if req.OrderID, err = newOrderID(req.Sale); err != nil {
		return r.refuse(problem.New(problem.Internal, "no order id could be made; nothing was done"))
	}
	verdict, err := s.reserve(ctx, &req, r.until)
	if errors.Is(err, catalog.ErrArchived) { // and this process had not heard of it
		return s.tooLate(ctx, r, req.Sale, req.Key, body)
	}
	if err != nil {
		return r.refuse(s.undecided(err, r, req.Sale))
	}
	switch verdict.Answer {
	case lua.Reserved:
		if s.Origins != nil {
			s.Origins.Count(req.Sale, string(r.Request.Header.Peek(signing.HeaderClient)))
		}
		if p := s.confirmed(ctx, r, req.Entry(verdict)); p != nil {
			return r.refuse(p)
		}
		failpoint.Hit("api.before-202")
		return r.accept(verdict.OrderID, resultAccepted)
	case lua.Repeated:
		if p := s.confirmedBefore(ctx, r, req.Sale, verdict.OrderID); p != nil {
			return r.refuse(p)
		}
		return r.accept(verdict.OrderID, resultRepeated)
	case lua.AlreadyOrdered:
		if p := s.confirmedBefore(ctx, r, req.Sale, verdict.OrderID); p != nil {
			return r.refuse(p)
		}
	}
	return r.refuse(s.refusal(req.Sale, verdict))
}

// otherCategory says which category a sale is of, to who named another.
func otherCategory(s sale.Sale) string {
	if s.Kind != wire.Coupon {
		return "this sale is no coupon campaign and has none"
	}
	return fmt.Sprintf("this campaign is of category %q", s.Category)
}

// sale finds a sale in the catalog.
func (s *Server) sale(ctx context.Context, id int64) (sale.Sale, *problem.Problem) {
	sale, err := s.Catalog.Get(ctx, id)
	switch {
	case err == nil:
		return sale, nil
	case errors.Is(err, catalog.ErrUnknown):
		return sale, noSuchSale()
	case errors.Is(err, catalog.ErrArchived):
		return sale, problem.New(problem.SaleEnded, refusals[lua.Ended].detail)
	default:
		s.sparse.warn("api: a sale could not be looked up", "sale", id, "error", err)
		return sale, overloaded("the sale cannot be looked up")
	}
}

// reserve asks Redis to decide, and once more where Redis says what to do first: with the epoch that it named, or after
// loading the sale. The epoch that it asked with is in req then. Nobody waits for the verdict after until.
func (s *Server) reserve(ctx context.Context, req *reserve.Request, until time.Time) (reserve.Verdict, error) {
	corrected, loaded := false, false
	for {
		req.Epoch = s.Catalog.Epoch(req.Sale)
		finished := s.loads.finished.Load()
		verdict, err := s.decide(ctx, req, until)
		switch {
		case err == nil && verdict.Answer == lua.StaleEpoch && !corrected:
			corrected = true
			s.Catalog.SetEpoch(req.Sale, verdict.Epoch)
			if s.Catalog.Epoch(req.Sale) != verdict.Epoch {
				return verdict, nil // the sale has just left the catalog
			}
		case (errors.Is(err, reserve.ErrNotLoaded) || errors.Is(err, reserve.ErrGateClosed)) && !loaded:
			// Behind a closed gate the sale may be being loaded, here or by another process: that is waited for.
			if l := s.load(req.Sale, finished); l != nil {
				loaded = true
				if err := s.await(ctx, l); err != nil {
					return verdict, err
				}
			}
		default:
			return verdict, err
		}
	}
}

// decide asks Redis once, when it is the order's turn. Those in line behind the last unit are told that it is gone before
// anybody else's turn comes. An order whose shopper has gone is not begun; one that was begun is finished, for it may be
// promised. An error may be the line's.
func (s *Server) decide(ctx context.Context, req *reserve.Request, until time.Time) (reserve.Verdict, error) {
	if err := s.line.Enter(req.Sale, func() (int64, bool) { return s.Catalog.Left(req.Sale) }); err != nil {
		return reserve.Verdict{}, err
	}
	defer s.line.Leave()
	if ctx.Err() != nil || s.late(until) { // in line, or while the sale was loaded
		return reserve.Verdict{}, admission.ErrLate
	}
	began := time.Now()
	asked := *req
	span := s.Tracer.Follow(req.Trace, "reserve", tracing.Client, began)
	if span != nil {
		asked.Trace = span.Traceparent() // what goes on with the order is below the reservation
	}
	verdict, err := s.Redis.Reserve(ctx, asked)
	s.metrics.reserve.Observe(time.Since(began).Seconds())
	endReserve(span, req.Sale, verdict, err)
	if verdict.Answer == lua.Reserved {
		req.Trace = asked.Trace
	}
	switch {
	case err != nil:
	case verdict.Answer == lua.SoldOut || verdict.Answer == lua.Reserved && verdict.Available <= 0:
		s.Catalog.Observe(req.Sale, 0)
		s.line.SoldOut(req.Sale)
	case verdict.Answer == lua.Reserved:
		s.Catalog.Observe(req.Sale, verdict.Available)
	}
	return verdict, err
}

// errLoad: the sale could not be brought into Redis, so nothing was reserved.
var errLoad = errors.New("the sale could not be loaded")

// load brings a sale into Redis; of those who ask at the same time one does it for all. Nil: a load has ended since finished
// was read, so that Redis's answer is old.
func (s *Server) load(id int64, finished uint64) *load {
	l, mine := s.loads.begin(id, finished)
	if mine {
		s.running.Go(func() {
			ctx, cancel := context.WithTimeout(s.stopping, loadAtMost)
			defer cancel()
			s.loads.end(id, l, s.Reconciler.Load(ctx, id))
		})
	}
	return l
}

// await waits for a load, for a while.
func (s *Server) await(ctx context.Context, l *load) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	select {
	case <-l.done:
		if l.err != nil {
			return fmt.Errorf("%w: %w", errLoad, l.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: it takes long: %w", errLoad, ctx.Err())
	}
}

// loads are the sales that this process is bringing into Redis: at most as many as are live.
type loads struct {
	mu       sync.Mutex // guards bySale
	bySale   map[int64]*load
	finished atomic.Uint64 // counts the loads that ended
}

// load is one of them. err is set before done is closed.
type load struct {
	done chan struct{}
	err  error
}

// begin returns the load of a sale, and whether the caller is to do it; nil if none runs and one has ended since finished
// was read.
func (l *loads) begin(id int64, finished uint64) (_ *load, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if running := l.bySale[id]; running != nil {
		return running, false
	}
	if l.finished.Load() != finished {
		return nil, false
	}
	if l.bySale == nil {
		l.bySale = map[int64]*load{}
	}
	n := &load{done: make(chan struct{})}
	l.bySale[id] = n
	return n, true
}

func (l *loads) end(id int64, ended *load, err error) {
	ended.err = err
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bySale, id)
	l.finished.Add(1)
	close(ended.done)
}

// undecided is what is told when the script gave no verdict.
func (s *Server) undecided(err error, r *request, sale int64) *problem.Problem {
	switch {
	case errors.Is(err, admission.ErrSoldOut):
		return s.refusal(sale, reserve.Verdict{Answer: lua.SoldOut})
	case errors.Is(err, admission.ErrFull), errors.Is(err, admission.ErrLong), errors.Is(err, admission.ErrLate), errors.Is(err, admission.ErrClosed):
		return by(lineRule(err), overloaded(err.Error()))
	case errors.Is(err, reserve.ErrGateClosed):
		return by(verdict.Checking, overloaded("the sale's stock is being checked"))
	case errors.Is(err, reserve.ErrNotLoaded):
		return by(verdict.Checking, overloaded("the sale is being loaded"))
	case errors.Is(err, redis.ErrRestarted):
		s.Reconciler.Wake()
		return by(verdict.Checking, overloaded("the sale's stock is being checked after a restart"))
	case errors.Is(err, errLoad):
		s.sparse.warn("api: a sale could not be loaded", "sale", sale, "error", err)
		return by(verdict.Checking, overloaded("the sale is being loaded"))
	case neverRan(err):
		s.sparse.warn("api: redis does not take orders", "sale", sale, "error", err)
		return by(verdict.Outage, overloaded("orders cannot be taken at the moment"))
	default:
		s.sparse.warn("api: the outcome of an order is unknown", "sale", sale, r.ids(), "error", err)
		return maybeAccepted(sale)
	}
}

func maybeAccepted(sale int64) *problem.Problem {
	return unknownOutcome("your order may have been accepted: ask again with the same Idempotency-Key, or see GET /v1/orders?sale_id=" +
		strconv.FormatInt(sale, 10))
}

// neverRan reports whether a script was certainly not run: no connection could be made, or Redis refused the call before it
// began.
func neverRan(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	var refused *rueidis.RedisError
	if errors.As(err, &refused) {
		word, _, _ := strings.Cut(refused.Error(), " ")
		switch word {
		case "LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "MISCONF", "NOREPLICAS", "NOAUTH", "NOPERM", "OOM":
			return true // OOM is decided when a script begins, and the first thing this one writes is refused
		}
	}
	return false
}

// refusal is what is told of a verdict that is no acceptance.
func (s *Server) refusal(sale int64, v reserve.Verdict) *problem.Problem {
	row, ok := refusals[v.Answer]
	if !ok {
		panic("BUG: no refusal for " + string(v.Answer))
	}
	p := by(answerRules[v.Answer], problem.New(row.code, row.detail))
	if row.soon {
		p.RetryAfter = retrySoon()
	}
	if v.Answer == lua.SoldOut {
		if now, ok := s.Catalog.Public(sale); ok {
			p.NextReleaseAt = now.NextReleaseAt
		}
	}
	if v.OrderID != "" {
		p.OrderID = v.OrderID
	}
	if v.Answer == lua.NotStarted {
		starts := wire.Millis(v.StartsAt)
		p.StartsAt = &starts
		p.RetryAfter = max(time.Second, starts.Sub(s.Clock.Now()))
	}
	return p
}

// accept writes the 202.
func (r *request) accept(orderID, result string) string {
	url := wire.OrderPath(orderID)
	r.Response.SetStatusCode(202)
	r.Response.Header.Set("Location", url)
	r.Response.Header.Set("Cache-Control", "no-store")
	if result == resultRepeated {
		r.Response.Header.Set(verdict.HeaderRule, string(verdict.Repeated))
	}
	r.json(wire.Accepted{OrderID: orderID, Status: wire.Queued, StatusURL: url})
	if failpoint.Enabled {
		failpoint.Halfway("api.halfway-through-202", r.Conn(), []byte(r.Response.String()))
	}
	return result
}

// newOrderID makes an id that no process anywhere makes again; one process's are in the order of their making (RFC 9562,
// UUIDv7).
func newOrderID(sale int64) (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	return wire.NewOrderID(id.String(), sale), nil
}
