// Package upstream is the way to the backends: a new, signed request from an allow-list, a bounded number at once, and an
// honest word about what is known when no answer came.
package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// What became of a request that got no answer.
var (
	// ErrBusy: a bound on requests in flight is reached. Nothing was sent.
	ErrBusy = errors.New("too many requests are in flight")
	// ErrNotSent: no backend could be reached. Nothing was sent.
	ErrNotSent = errors.New("no backend was reached")
	// ErrUnknown: something was sent and no answer came. It may have been done.
	ErrUnknown = errors.New("sent, but no answer came")
)

const (
	maxResponse = 4 << 20
	maxFeed     = 64 << 20
	// idle connections are closed after this; a backend must keep them longer.
	idle = 10 * time.Second
)

// errForeign is an answer that does not name the request's nonce: it is a late one, somebody else's, or rubbish.
var errForeign = errors.New("the answer is not one to this request")

// Request is all that a backend is told. Every field is validated by who fills it in; nothing else is sent.
type Request struct {
	Method         string // GET, POST or DELETE
	Target         string // path and query
	UID            string // the verified user, "" for nobody
	IdempotencyKey string
	RequestID      string
	Trace          []byte // traceparent, or none
	// PaymentSignature is a webhook's own; this gateway's signature does not cover it, for it proves itself.
	PaymentSignature string
	Client           string // the network the user's address is in, "" for not told
	Body             []byte
	// Wait is how long the backend was asked to wait for news; the time-out is that much longer.
	Wait  time.Duration
	Class Class
	Sale  int64 // that an order is for, 0 for none
}

// Config is what can be changed by Configure.
type Config struct {
	Backends    []string // host:port
	Key         signing.Key
	Timeout     time.Duration
	MaxInFlight int // requests without Wait
	MaxPerSale  int // of them, orders of one sale
	MaxWaiting  int // requests with Wait
}

// Pool is the backends. It is safe for concurrent use.
type Pool struct {
	clk     *clock.Clock
	set     atomic.Pointer[set]
	mu      sync.Mutex // one Configure at a time
	busy    atomic.Int64
	waiting atomic.Int64
	sales   sales
	conns   *conns
	metrics metrics
}

type set struct {
	Config
	signer   *signing.Signer
	backends []*backend
}

// New makes a pool. Close it when nobody calls it any more.
func New(c Config, clk *clock.Clock, reg prometheus.Registerer) *Pool {
	p := &Pool{clk: clk, conns: &conns{open: map[*conn]struct{}{}}, sales: sales{orders: map[int64]int{}}}
	p.Configure(c)
	p.metrics = newMetrics(p, reg)
	return p
}

// Configure changes where and how requests are sent from now on. Those in flight end as they began, also at a backend that
// is not among c's any more: it gets no new ones.
func (p *Pool) Configure(c Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := map[string]*backend{}
	if s := p.set.Load(); s != nil {
		for _, b := range s.backends {
			old[b.addr] = b
		}
	}
	s := &set{Config: c, signer: signing.NewSigner(c.Key)}
	for _, addr := range c.Backends {
		b := old[addr]
		if b == nil {
			b = &backend{addr: addr, client: p.client(addr)}
		}
		delete(old, addr)
		b.client.SetMaxConns(c.MaxInFlight + c.MaxWaiting + 16)
		s.backends = append(s.backends, b)
	}
	p.set.Store(s)
	for _, b := range old {
		b.client.CloseIdleConnections()
	}
}

func (p *Pool) client(addr string) *fasthttp.HostClient {
	return &fasthttp.HostClient{
		Addr:                      addr,
		DialTimeout:               p.conns.dial,
		MaxIdleConnDuration:       idle,
		MaxIdemponentCallAttempts: 1, // what may be tried again is decided here, not there
		MaxResponseBodySize:       maxResponse,
		NoDefaultUserAgentHeader:  true,
		DisablePathNormalizing:    true,
		SecureErrorLogMessage:     true,
		ConnPoolStrategy:          fasthttp.LIFO,
	}
}

// Timeout is how long a request without Wait may take.
func (p *Pool) Timeout() time.Duration { return p.set.Load().Timeout }

// InFlight is how many requests are at the backends now.
func (p *Pool) InFlight() int { return int(p.busy.Load() + p.waiting.Load()) }

// CanWait reports whether one more request with Wait may be sent, so that who asks too late asks without.
func (p *Pool) CanWait() bool { return p.waiting.Load() < int64(p.set.Load().MaxWaiting) }

// Full reports whether a request of this class without Wait, and for this sale, 0 for none, would be ErrBusy now, and counts it as
// that: so it can be refused before anything is made for it.
func (p *Pool) Full(class Class, sale int64) bool {
	s := p.set.Load()
	switch {
	case p.sales.full(sale, s.MaxPerSale):
		p.metrics.refused[boundSale].Inc()
	case p.busy.Load() >= class.share(s.MaxInFlight):
		p.metrics.refused[class].Inc()
	default:
		return false
	}
	return true
}

// Do sends r and reads the answer into resp. A POST or a DELETE is sent once: another backend is tried only while
// not one byte of it was sent. A GET is tried on a second backend after any failure. The error is ErrBusy, ErrNotSent or ErrUnknown, wrapped.
func (p *Pool) Do(r *Request, resp *fasthttp.Response) error {
	s := p.set.Load()
	if err := p.enter(s, r); err != nil {
		return err
	}
	defer p.leave(r)
	return p.try(s, r, resp)
}

// try is Do without its bound.
func (p *Pool) try(s *set, r *Request, resp *fasthttp.Response) error {
	req := fasthttp.AcquireRequest()
	defer fasthttp.ReleaseRequest(req)
	deadline := time.Now().Add(s.Timeout + r.Wait)
	var tried [2]*backend
	var err error
	for i := range tried {
		b := s.pick(tried[:i])
		if b == nil {
			break
		}
		tried[i] = b
		timeout := time.Until(deadline)
		if r.Method == fasthttp.MethodGet && r.Wait == 0 && i == 0 && len(s.backends) > 1 {
			timeout /= 2 // leaves time for the other
		}
		if err = p.send(s, b, r, req, resp, timeout); err == nil {
			return nil
		}
		if errors.Is(err, ErrUnknown) && r.Method != fasthttp.MethodGet || time.Until(deadline) <= 0 {
			break
		}
	}
	return err
}

func (p *Pool) send(s *set, b *backend, r *Request, req *fasthttp.Request, resp *fasthttp.Response, timeout time.Duration) error {
	b.inFlight.Add(1)
	defer b.inFlight.Add(-1)
	var err error
	// A pooled connection that the backend has closed is found out before anything is written to it. There may be as
	// many of them as there were requests at once: after the first all idle ones are let go.
	for range 3 {
		timeout = max(timeout, time.Millisecond) // 0 would be none
		now, until := p.clk.Now(), time.Time{}
		if p.clk.Synced() { // else this machine's clock would say when the backend is to give up
			until = now.Add(timeout)
		}
		s.fill(req, b, r, now, until)
		req.SetTimeout(timeout)
		err = b.client.Do(req, resp)
		if !errors.Is(err, errStale) {
			break
		}
		b.client.CloseIdleConnections()
	}
	if err == nil && !answers(resp, req) {
		// Whatever is out of step on that connection, nobody else is to read it.
		b.client.CloseIdleConnections()
		resp.Reset()
		err = errForeign
	}
	if err == nil {
		b.answered()
		p.metrics.answered(resp.StatusCode())
		return nil
	}
	b.failed()
	var notSent *notSentError
	if errors.As(err, &notSent) || errors.Is(err, fasthttp.ErrNoFreeConns) || errors.Is(err, fasthttp.ErrDialTimeout) {
		p.metrics.notSent.Inc()
		return fmt.Errorf("%w: %s %s to %s: %w", ErrNotSent, r.Method, pathOf(r.Target), b.addr, err)
	}
	p.metrics.unknown.Inc()
	return fmt.Errorf("%w: %s %s to %s: %w", ErrUnknown, r.Method, pathOf(r.Target), b.addr, err)
}

func pathOf(target string) string {
	for i := range len(target) {
		if target[i] == '?' {
			return target[:i]
		}
	}
	return target
}

// answers reports whether resp is the answer to req: a backend gives back the nonce, which no other request has.
func answers(resp *fasthttp.Response, req *fasthttp.Request) bool {
	return bytes.Equal(resp.Header.Peek(signing.HeaderNonce), req.Header.Peek(signing.HeaderNonce))
}

// fill makes the request that the backend sees. Nobody waits for its answer after until, if that is not zero.
func (s *set) fill(req *fasthttp.Request, b *backend, r *Request, now, until time.Time) {
	req.Reset()
	req.Header.SetMethod(r.Method)
	req.SetRequestURI("http://" + b.addr + r.Target)
	req.URI().DisablePathNormalizing = true
	if r.IdempotencyKey != "" {
		req.Header.Set("Idempotency-Key", r.IdempotencyKey)
	}
	if r.RequestID != "" {
		req.Header.Set("X-Request-Id", r.RequestID)
	}
	if len(r.Trace) > 0 {
		req.Header.SetBytesV("traceparent", r.Trace)
	}
	if r.PaymentSignature != "" {
		req.Header.Set(wire.PaymentSignature, r.PaymentSignature)
	}
	if r.Client != "" {
		req.Header.Set(signing.HeaderClient, r.Client)
	}
	if !until.IsZero() {
		var ms [20]byte
		req.Header.SetBytesV(signing.HeaderDeadline, strconv.AppendInt(ms[:0], until.UnixMilli(), 10))
	}
	if len(r.Body) > 0 {
		req.Header.SetContentType("application/json")
		req.SetBodyRaw(r.Body)
	}
	req.Header.SetRequestURI(r.Target) // what is signed is what the backend reads
	s.signer.Sign(req, r.UID, now)
}

// Close closes every connection: what is still in flight ends with ErrUnknown.
func (p *Pool) Close() { p.conns.close() }

// Records posts what is handed over for timelines, one call at a time, beyond the bound on requests in flight. It returns the
// status of the answer; the error is ErrNotSent or ErrUnknown, wrapped.
func (p *Pool) Records(body []byte) (status int, err error) {
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	if err := p.try(p.set.Load(), &Request{Method: fasthttp.MethodPost, Target: verdict.Path, Body: body}, resp); err != nil {
		return 0, err
	}
	return resp.StatusCode(), nil
}
