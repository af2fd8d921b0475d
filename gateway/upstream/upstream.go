// Package upstream sends requests to the backends: new requests of an allow-list, signed, a bounded number at once. It says
// what is known of a request that got no answer.
package upstream

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
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
	// ErrBusy: a bound on requests in flight was reached. Nothing was sent.
	ErrBusy = errors.New("too many requests are in flight")
	// ErrNotSent: no backend could be reached. Nothing was sent.
	ErrNotSent = errors.New("no backend was reached")
	// ErrUnknown: something was sent and no answer came. It may have been done.
	ErrUnknown = errors.New("sent, but no answer came")
)

const (
	maxResponse = 4 << 20
	maxFeed     = 64 << 20
	// idleTime is how long an idle connection is kept. A backend must keep it longer.
	idleTime = 10 * time.Second
)

// errNonce is an answer without the request's nonce: a late one, one to another request, or garbage.
var errNonce = errors.New("the answer is not one to this request")

// Request is all that a backend is sent. The caller has validated every field.
type Request struct {
	Method         string // GET, POST or DELETE
	Target         string // path and query
	UID            string // the verified user, "" for nobody
	IdempotencyKey string
	RequestID      string
	Trace          []byte // traceparent, or none
	// PaymentSignature is a webhook's signature, by the payment provider. The gateway's own signature does not cover it.
	PaymentSignature string
	Client           string // the network of the user's address; "": not sent
	Body             []byte
	// Wait is how long the backend was asked to wait for news. The time-out is that much longer.
	Wait  time.Duration
	Class Class
	Sale  int64 // of an order; 0: none

	Backend string // set by Do: who was asked last, host:port
}

// Config is what SetConfig changes.
type Config struct {
	Backends    []string    // https://host:port, http://host:port, or host:port for the same
	TLS         *tls.Config // for https; connections that were made with another one are not used again
	Key         signing.Key
	Timeout     time.Duration
	MaxInFlight int // requests without Wait
	MaxPerSale  int // orders of one sale
	MaxWaiting  int // requests with Wait
}

// Pool is the backends. It is safe for concurrent use.
type Pool struct {
	clk     *clock.Clock
	current atomic.Pointer[configured]
	mu      sync.Mutex // one SetConfig at a time
	busy    atomic.Int64
	waiting atomic.Int64
	sales   sales
	conns   *conns
	metrics metrics
}

// configured is a Config and what is made of it.
type configured struct {
	Config
	signer   *signing.Signer
	backends []*backend
}

// New makes a pool. Close it when nobody uses it any more.
func New(c Config, clk *clock.Clock, reg prometheus.Registerer) *Pool {
	p := &Pool{clk: clk, conns: &conns{open: map[*conn]struct{}{}}, sales: sales{orders: map[int64]int{}}}
	p.metrics = newMetrics(p, reg)
	p.SetConfig(c)
	return p
}

// SetConfig changes where and how requests are sent from now on. Those in flight end as they began; a backend that was removed
// gets no new ones.
func (p *Pool) SetConfig(c Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := map[string]*backend{}
	if s := p.current.Load(); s != nil {
		for _, b := range s.backends {
			old[b.url] = b
		}
	}
	s := &configured{Config: c, signer: signing.NewSigner(c.Key)}
	for _, url := range c.Backends {
		b := old[url]
		if b == nil {
			b = newBackend(url)
			b.client, b.latency = p.client(b), p.metrics.latency.of(b.addr)
		}
		delete(old, url)
		b.setTLS(c.TLS)
		b.client.SetMaxConns(c.MaxInFlight + c.MaxWaiting + 16)
		s.backends = append(s.backends, b)
	}
	p.current.Store(s)
	for _, b := range old {
		b.client.CloseIdleConnections()
		if !slices.ContainsFunc(s.backends, func(kept *backend) bool { return kept.addr == b.addr }) { // with another scheme
			p.metrics.latency.forget(b.addr)
		}
	}
}

// client makes a client of b. It knows nothing of TLS: the pool's own connections do that.
func (p *Pool) client(b *backend) *fasthttp.HostClient {
	return &fasthttp.HostClient{
		Addr:                      b.addr,
		DialTimeout:               func(_ string, timeout time.Duration) (net.Conn, error) { return p.conns.dial(b, timeout) },
		MaxIdleConnDuration:       idleTime,
		MaxIdemponentCallAttempts: 1, // Pool.do decides what is tried again
		MaxResponseBodySize:       maxResponse,
		NoDefaultUserAgentHeader:  true,
		DisablePathNormalizing:    true,
		SecureErrorLogMessage:     true,
		ConnPoolStrategy:          fasthttp.LIFO,
	}
}

// Timeout is how long a request without Wait may take.
func (p *Pool) Timeout() time.Duration { return p.current.Load().Timeout }

// InFlight is how many requests are at the backends now.
func (p *Pool) InFlight() int { return int(p.busy.Load() + p.waiting.Load()) }

// CanWait reports whether one more request with Wait may be sent.
func (p *Pool) CanWait() bool { return p.waiting.Load() < int64(p.current.Load().MaxWaiting) }

// Full reports whether a request of this class without Wait, and for this sale (0: none), would be ErrBusy now, and counts it
// as refused. So the caller can refuse it before it makes the Request.
func (p *Pool) Full(class Class, sale int64) bool {
	s := p.current.Load()
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

// Do sends r and reads the answer into resp. A POST or a DELETE is sent once: another backend is tried only while no byte of
// it was sent. A GET is tried on a second backend after any failure. The error wraps ErrBusy, ErrNotSent or ErrUnknown.
func (p *Pool) Do(r *Request, resp *fasthttp.Response) error {
	s := p.current.Load()
	if err := p.acquire(s, r); err != nil {
		return err
	}
	defer p.release(r)
	return p.do(s, r, resp)
}

// do is Do without the bounds.
func (p *Pool) do(s *configured, r *Request, resp *fasthttp.Response) error {
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
		tried[i], r.Backend = b, b.addr
		timeout := time.Until(deadline)
		if r.Method == fasthttp.MethodGet && r.Wait == 0 && i == 0 && len(s.backends) > 1 {
			timeout /= 2 // leaves time for the other backend
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

func (p *Pool) send(s *configured, b *backend, r *Request, req *fasthttp.Request, resp *fasthttp.Response, timeout time.Duration) error {
	b.inFlight.Add(1)
	defer b.inFlight.Add(-1)
	began := time.Now()
	var err error
	// conn.Write notices an idle connection that the backend has closed before it writes to it. There may be as many of
	// them as there were requests at once, so all idle ones are closed after the first.
	for range 3 {
		timeout = max(timeout, time.Millisecond) // 0 would be none
		now, until := p.clk.Now(), time.Time{}
		if p.clk.Synced() { // else the deadline would be by this machine's clock
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
		// What follows on that connection must not be taken for the answer to another request.
		b.client.CloseIdleConnections()
		if err = b.wasRefused(resp); err == nil {
			err = errNonce
		}
		resp.Reset()
	}
	if err == nil {
		b.answered()
		p.metrics.answered(resp.StatusCode())
		b.observe(r, ofStatus(resp.StatusCode()), time.Since(began))
		return nil
	}
	b.failed()
	var notSent *notSentError
	if errors.As(err, &notSent) || errors.Is(err, fasthttp.ErrNoFreeConns) || errors.Is(err, fasthttp.ErrDialTimeout) {
		p.metrics.notSent.Inc()
		b.observe(r, outcomeNotSent, time.Since(began))
		return fmt.Errorf("%w: %s %s to %s: %w", ErrNotSent, r.Method, pathOf(r.Target), b.addr, err)
	}
	p.metrics.unknown.Inc()
	b.observe(r, outcomeUnknown, time.Since(began))
	return fmt.Errorf("%w: %s %s to %s: %w", ErrUnknown, r.Method, pathOf(r.Target), b.addr, err)
}

func pathOf(target string) string {
	path, _, _ := strings.Cut(target, "?")
	return path
}

// answers reports whether resp is the answer to req: a backend sends the nonce back, which no other request has.
func answers(resp *fasthttp.Response, req *fasthttp.Request) bool {
	return bytes.Equal(resp.Header.Peek(signing.HeaderNonce), req.Header.Peek(signing.HeaderNonce))
}

// fill makes the signed HTTP request. until is its deadline; zero: none.
func (s *configured) fill(req *fasthttp.Request, b *backend, r *Request, now, until time.Time) {
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
	req.Header.SetRequestURI(r.Target) // the signature covers what the backend reads
	s.signer.Sign(req, r.UID, now)
}

// Close closes every connection. What is still in flight ends with ErrUnknown.
func (p *Pool) Close() { p.conns.close() }

// PostRecords posts a batch of timeline records, outside the bounds on requests in flight. It returns the status of the
// answer. The error wraps ErrNotSent or ErrUnknown.
func (p *Pool) PostRecords(body []byte) (status int, err error) {
	return p.post(verdict.Path, body)
}

// PostReport posts the gateway's report, as PostRecords posts records.
func (p *Pool) PostReport(body []byte) (status int, err error) { return p.post(wire.ReportPath, body) }

func (p *Pool) post(target string, body []byte) (status int, err error) {
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	if err := p.do(p.current.Load(), &Request{Method: fasthttp.MethodPost, Target: target, Body: body}, resp); err != nil {
		return 0, err
	}
	return resp.StatusCode(), nil
}
