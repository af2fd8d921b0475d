// Package upstream is the way to the backends: a new, signed request from an allow-list, a bounded number at once, and an
// honest word about what is known when no answer came.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// What became of a request that got no answer.
var (
	// ErrBusy: the bound on requests in flight is reached. Nothing was sent.
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

	ejectAfter = 3 // failures in a row
	ejectFirst = time.Second
	ejectMax   = 10 * time.Second
)

// Request is all that a backend is told. Every field is validated by who fills it in; nothing else is sent.
type Request struct {
	Method         string // GET, POST or DELETE
	Target         string // path and query
	UID            string // the verified user, "" for nobody
	IdempotencyKey string
	RequestID      string
	// PaymentSignature is a webhook's own; this gateway's signature does not cover it, for it proves itself.
	PaymentSignature string
	Client           string // the network the user's address is in, "" for not told
	Body             []byte
	// Wait is how long the backend was asked to wait for news; the time-out is that much longer.
	Wait time.Duration
}

// Config is what can be changed by Configure.
type Config struct {
	Backends    []string // host:port
	Key         signing.Key
	Timeout     time.Duration
	MaxInFlight int // requests without Wait
	MaxWaiting  int // requests with Wait
}

// Pool is the backends. It is safe for concurrent use.
type Pool struct {
	clk     *clock.Clock
	set     atomic.Pointer[set]
	mu      sync.Mutex // one Configure at a time
	busy    atomic.Int64
	waiting atomic.Int64
	conns   *conns
	metrics metrics
}

type set struct {
	Config
	signer   *signing.Signer
	backends []*backend
}

// backend is one of them. Its counts survive a Configure that keeps its address.
type backend struct {
	addr     string
	client   *fasthttp.HostClient
	inFlight atomic.Int64
	failures atomic.Int64 // in a row
	ejected  atomic.Int64 // until, nanoseconds since the epoch of the pool's start
}

var epoch = time.Now()

// New makes a pool. Close it when nobody calls it any more.
func New(c Config, clk *clock.Clock, reg prometheus.Registerer) *Pool {
	p := &Pool{clk: clk, conns: &conns{open: map[*conn]struct{}{}}}
	p.metrics = newMetrics(p, reg)
	p.Configure(c)
	return p
}

// Configure changes where and how requests are sent from now on. Those in flight end as they began.
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

// Lost names the backends that do not answer now.
func (p *Pool) Lost() []string {
	var lost []string
	now := time.Since(epoch)
	for _, b := range p.set.Load().backends {
		if b.failures.Load() >= ejectAfter || time.Duration(b.ejected.Load()) > now {
			lost = append(lost, b.addr)
		}
	}
	return lost
}

// CanWait reports whether one more request with Wait may be sent, so that who asks too late asks without.
func (p *Pool) CanWait() bool { return p.waiting.Load() < int64(p.set.Load().MaxWaiting) }

// Do sends r and reads the answer into resp. A POST or a DELETE is sent once: another backend is tried only while
// not one byte of it was sent. A GET is tried on a second backend after any failure. The error is ErrBusy, ErrNotSent or ErrUnknown, wrapped.
func (p *Pool) Do(r *Request, resp *fasthttp.Response) error {
	s := p.set.Load()
	count, limit := &p.busy, s.MaxInFlight
	if r.Wait > 0 {
		count, limit = &p.waiting, s.MaxWaiting
	}
	defer count.Add(-1)
	if count.Add(1) > int64(limit) {
		p.metrics.busy.Inc()
		return fmt.Errorf("%w: %d", ErrBusy, limit)
	}
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

// pick chooses the backend with the least in flight, among those that answer if there are any.
func (s *set) pick(not []*backend) *backend {
	now := int64(time.Since(epoch))
	var best *backend
	var bestOut bool
	start := rand.IntN(len(s.backends))
next:
	for i := range s.backends {
		b := s.backends[(start+i)%len(s.backends)]
		for _, t := range not {
			if t == b {
				continue next
			}
		}
		out := b.ejected.Load() > now
		if best == nil || bestOut && !out || out == bestOut && b.inFlight.Load() < best.inFlight.Load() {
			best, bestOut = b, out
		}
	}
	return best
}

func (p *Pool) send(s *set, b *backend, r *Request, req *fasthttp.Request, resp *fasthttp.Response, timeout time.Duration) error {
	b.inFlight.Add(1)
	defer b.inFlight.Add(-1)
	var err error
	// A pooled connection that the backend has closed is found out before anything is written to it. There may be as
	// many of them as there were requests at once: after the first all idle ones are let go.
	for range 3 {
		s.fill(req, b, r, p.clk.Now())
		req.SetTimeout(max(timeout, time.Millisecond)) // 0 would be none
		err = b.client.Do(req, resp)
		if !errors.Is(err, errStale) {
			break
		}
		b.client.CloseIdleConnections()
	}
	if err == nil {
		b.failures.Store(0)
		b.ejected.Store(0)
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

// fill makes the request that the backend sees.
func (s *set) fill(req *fasthttp.Request, b *backend, r *Request, now time.Time) {
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
	if r.PaymentSignature != "" {
		req.Header.Set(wire.PaymentSignature, r.PaymentSignature)
	}
	if r.Client != "" {
		req.Header.Set(signing.HeaderClient, r.Client)
	}
	if len(r.Body) > 0 {
		req.Header.SetContentType("application/json")
		req.SetBodyRaw(r.Body)
	}
	req.Header.SetRequestURI(r.Target) // what is signed is what the backend reads
	s.signer.Sign(req, r.UID, now)
}

// failed counts a failure; after some in a row the backend is passed over for a while, longer each time.
func (b *backend) failed() {
	n := b.failures.Add(1)
	if n < ejectAfter {
		return
	}
	d := min(ejectFirst<<min(n-ejectAfter, 8), ejectMax)
	b.ejected.Store(int64(time.Since(epoch) + d/2 + rand.N(d/2)))
}

// Backends implements salegate.Source.
func (p *Pool) Backends() int { return len(p.set.Load().backends) }

// Feed implements salegate.Source: on a connection of its own, which is closed when ctx is done, and beyond the bound on
// requests in flight.
func (p *Pool) Feed(ctx context.Context, i int, target string, timeout time.Duration) ([]byte, error) {
	s := p.set.Load()
	b := s.backends[i%len(s.backends)]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := p.client(b.addr)
	client.MaxResponseBodySize = maxFeed
	client.DialTimeout = func(addr string, timeout time.Duration) (c netConn, err error) {
		if c, err = p.conns.dial(addr, timeout); err == nil {
			context.AfterFunc(ctx, func() { c.Close() })
		}
		return c, err
	}
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	now := p.clk.Now()
	for try := range 2 {
		s.fill(req, b, &Request{Method: fasthttp.MethodGet, Target: target}, now)
		req.SetTimeout(timeout)
		req.SetConnectionClose()
		if err := client.Do(req, resp); err != nil {
			b.failed()
			return nil, fmt.Errorf("the feed of %s: %w", b.addr, err)
		}
		theirs, ok := timeOf(resp)
		if resp.StatusCode() != fasthttp.StatusUnauthorized || try > 0 || !ok {
			break
		}
		// This process's clock may be far off before the first news, and it is the news that would set it. So the
		// question alone, which says and changes nothing, is signed by the time that the refusal names.
		now = theirs
	}
	b.failures.Store(0)
	b.ejected.Store(0)
	if code := resp.StatusCode(); code != 200 {
		return nil, fmt.Errorf("the feed of %s: status %d", b.addr, code)
	}
	return append([]byte(nil), resp.Body()...), nil
}

// timeOf is the time that a backend's answer names: the server's clock in Floodgate-Time, else its own in Date.
func timeOf(resp *fasthttp.Response) (time.Time, bool) {
	if ms, err := strconv.ParseInt(string(resp.Header.Peek(signing.HeaderTime)), 10, 64); err == nil {
		return time.UnixMilli(ms), true
	}
	t, err := fasthttp.ParseHTTPDate(resp.Header.Peek("Date"))
	return t, err == nil
}

// Close closes every connection: what is still in flight ends with ErrUnknown.
func (p *Pool) Close() { p.conns.close() }

type metrics struct {
	status                 [6]prometheus.Counter
	busy, notSent, unknown prometheus.Counter
}

func newMetrics(p *Pool, reg prometheus.Registerer) metrics {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_upstream_requests_total", Help: "Requests to the backends by what came of them."}, []string{"result"})
	reg.MustRegister(v,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_upstream_in_flight", Help: "Requests at the backends, without those that wait for news."},
			func() float64 { return float64(p.busy.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_upstream_waiting", Help: "Requests at the backends that wait for news."},
			func() float64 { return float64(p.waiting.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_upstream_backends_lost", Help: "Backends that do not answer."},
			func() float64 { return float64(len(p.Lost())) }),
	)
	m := metrics{busy: v.WithLabelValues("busy"), notSent: v.WithLabelValues("not_sent"), unknown: v.WithLabelValues("unknown")}
	for i := range m.status {
		m.status[i] = v.WithLabelValues(fmt.Sprintf("%dxx", i))
	}
	return m
}

func (m *metrics) answered(status int) {
	if i := status / 100; i > 0 && i < len(m.status) {
		m.status[i].Inc()
	}
}
