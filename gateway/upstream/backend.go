package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// A backend is ejected after ejectAfter failures in a row, for a longer time after each. It comes back with one request at a
// time until one is answered. It is also passed over while its health checks fail.
const (
	ejectAfter = 3
	ejectFirst = time.Second
	ejectMax   = 10 * time.Second

	checkEvery = time.Second // 0.5 to 1.5 of it
	checkTime  = time.Second // for the answer
	downAfter  = 2           // failed checks in a row
)

// backend is one of them. Its state survives a SetConfig that keeps its URL.
type backend struct {
	url          string                     // as it is configured
	addr         string                     // host:port
	tls          atomic.Pointer[tls.Config] // nil: plain HTTP
	trouble      atomic.Pointer[string]     // why its connections fail, where TLS is to blame; nil: it is not
	client       *fasthttp.HostClient
	inFlight     atomic.Int64
	failures     atomic.Int64 // in a row
	ejectedUntil atomic.Int64 // nanoseconds since epoch
	ejections    atomic.Int64
	checking     atomic.Bool
	failedChecks atomic.Int64 // in a row
	latency      *latencies
}

var epoch = time.Now()

// avoided reports whether b is used only if there is no other: it is down and cannot take one request to see if it is back.
func (b *backend) avoided(now int64) bool {
	return b.ejectedUntil.Load() > now || b.failedChecks.Load() >= downAfter || b.failures.Load() >= ejectAfter && b.inFlight.Load() > 0
}

// down reports whether b does not answer.
func (b *backend) down(now int64) bool {
	return b.ejectedUntil.Load() > now || b.failedChecks.Load() >= downAfter || b.failures.Load() >= ejectAfter
}

func (b *backend) answered() {
	b.noTrouble()
	b.failures.Store(0)
	b.ejectedUntil.Store(0)
}

func (b *backend) failed() {
	n := b.failures.Add(1)
	if n < ejectAfter {
		return
	}
	d := min(ejectFirst<<min(n-ejectAfter, 8), ejectMax)
	b.ejectedUntil.Store(int64(time.Since(epoch) + d/2 + rand.N(d/2)))
	b.ejections.Add(1)
}

// pick chooses the backend with the fewest requests in flight, not one of tried, and an avoided one only if there is no other.
// It returns nil if all were tried.
func (s *configured) pick(tried []*backend) *backend {
	now := int64(time.Since(epoch))
	var best *backend
	var bestAvoided bool
	start := rand.IntN(len(s.backends))
	for i := range s.backends {
		b := s.backends[(start+i)%len(s.backends)]
		if slices.Contains(tried, b) {
			continue
		}
		avoided := b.avoided(now)
		if best == nil || bestAvoided && !avoided || avoided == bestAvoided && b.inFlight.Load() < best.inFlight.Load() {
			best, bestAvoided = b, avoided
		}
	}
	return best
}

// Down names the backends that do not answer.
func (p *Pool) Down() []string {
	var down []string
	now := int64(time.Since(epoch))
	for _, b := range p.current.Load().backends {
		if b.down(now) {
			down = append(down, b.addr)
		}
	}
	return down
}

// Watch checks the health of every backend about once a second, until ctx is done. So a backend that hangs or drains, or one
// that is back, is known before a shopper's request finds out.
func (p *Pool) Watch(ctx context.Context) {
	var checks sync.WaitGroup
	defer checks.Wait()
	for ctx.Err() == nil {
		s := p.current.Load()
		for _, b := range s.backends {
			if b.checking.CompareAndSwap(false, true) {
				checks.Go(func() {
					defer b.checking.Store(false)
					p.check(ctx, s, b)
				})
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkEvery/2 + rand.N(checkEvery)):
		}
	}
}

func (p *Pool) check(ctx context.Context, s *configured, b *backend) {
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	if err := p.ask(ctx, s, b, wire.HealthPath, checkTime, resp); err != nil || resp.StatusCode() != fasthttp.StatusOK {
		b.failedChecks.Add(1)
	} else if b.failedChecks.Swap(0) >= downAfter { // it is back: earlier failures do not count
		b.answered()
	}
}

// Backends implements salegate.Source.
func (p *Pool) Backends() int { return len(p.current.Load().backends) }

// Feed implements salegate.Source.
func (p *Pool) Feed(ctx context.Context, i int, target string, timeout time.Duration) ([]byte, error) {
	s := p.current.Load()
	b := s.backends[i%len(s.backends)]
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	if err := p.ask(ctx, s, b, target, timeout, resp); err != nil {
		b.failed()
		return nil, fmt.Errorf("the feed of %s: %w", b.addr, err)
	}
	if code := resp.StatusCode(); code != fasthttp.StatusOK {
		return nil, fmt.Errorf("the feed of %s: status %d", b.addr, code)
	}
	b.answered()
	return append([]byte(nil), resp.Body()...), nil
}

// ask sends a GET of the gateway's own, outside the bounds on requests in flight, on a new connection that is closed when ctx
// is done. It takes an answer of any status.
func (p *Pool) ask(ctx context.Context, s *configured, b *backend, target string, timeout time.Duration, resp *fasthttp.Response) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := p.client(b)
	client.MaxResponseBodySize = maxFeed
	client.DialTimeout = func(_ string, timeout time.Duration) (c net.Conn, err error) {
		if c, err = p.conns.dial(b, timeout); err == nil {
			context.AfterFunc(ctx, func() { c.Close() })
		}
		return c, err
	}
	req := fasthttp.AcquireRequest()
	defer fasthttp.ReleaseRequest(req)
	now := p.clk.Now()
	for try := range 2 {
		s.fill(req, b, &Request{Method: fasthttp.MethodGet, Target: target}, now, time.Time{})
		req.SetTimeout(timeout)
		req.SetConnectionClose()
		if err := client.Do(req, resp); err != nil {
			return err
		}
		if !answers(resp, req) {
			return cmp.Or(b.wasRefused(resp), errNonce)
		}
		b.noTrouble()
		theirs, ok := timeOf(resp)
		if resp.StatusCode() != fasthttp.StatusUnauthorized || try > 0 || !ok {
			break
		}
		// Before the first answer of the feed this process's clock may be wrong, and the backend refuses the signature. So
		// this request, which changes nothing, is signed again by the time that the refusal names.
		now = theirs
	}
	return nil
}

// timeOf is the time that a backend's answer names: the server's clock in Floodgate-Time, else the backend's in Date.
func timeOf(resp *fasthttp.Response) (time.Time, bool) {
	if ms, err := strconv.ParseInt(string(resp.Header.Peek(signing.HeaderTime)), 10, 64); err == nil {
		return time.UnixMilli(ms), true
	}
	t, err := fasthttp.ParseHTTPDate(resp.Header.Peek("Date"))
	return t, err == nil
}
