package upstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// A backend is passed over for a while after ejectAfter failures in a row, longer each time; it comes back with one
// request at a time until one is answered. It is passed over, too, while checks get no good answer.
const (
	ejectAfter = 3
	ejectFirst = time.Second
	ejectMax   = 10 * time.Second

	checkEvery = time.Second // between a half and one and a half of it
	checkTime  = time.Second // for the answer
	deadAfter  = 2           // checks in a row
)

// backend is one of them. Its state survives a Configure that keeps its address.
type backend struct {
	addr      string
	client    *fasthttp.HostClient
	inFlight  atomic.Int64
	failures  atomic.Int64 // in a row
	ejected   atomic.Int64 // until, nanoseconds since the epoch of the pool's start
	ejections atomic.Int64
	checking  atomic.Bool
	unchecked atomic.Int64 // checks in a row that failed
}

var epoch = time.Now()

// out reports whether b is to be passed over while there is another.
func (b *backend) out(now int64) bool {
	return b.ejected.Load() > now || b.unchecked.Load() >= deadAfter || b.failures.Load() >= ejectAfter && b.inFlight.Load() > 0
}

// lost reports whether b does not answer now.
func (b *backend) lost(now int64) bool {
	return b.ejected.Load() > now || b.unchecked.Load() >= deadAfter || b.failures.Load() >= ejectAfter
}

func (b *backend) answered() {
	b.failures.Store(0)
	b.ejected.Store(0)
}

func (b *backend) failed() {
	n := b.failures.Add(1)
	if n < ejectAfter {
		return
	}
	d := min(ejectFirst<<min(n-ejectAfter, 8), ejectMax)
	b.ejected.Store(int64(time.Since(epoch) + d/2 + rand.N(d/2)))
	b.ejections.Add(1)
}

// pick chooses the backend with the least in flight, among those that answer if there are any.
func (s *set) pick(not []*backend) *backend {
	now := int64(time.Since(epoch))
	var best *backend
	var bestOut bool
	start := rand.IntN(len(s.backends))
	for i := range s.backends {
		b := s.backends[(start+i)%len(s.backends)]
		if slices.Contains(not, b) {
			continue
		}
		out := b.out(now)
		if best == nil || bestOut && !out || out == bestOut && b.inFlight.Load() < best.inFlight.Load() {
			best, bestOut = b, out
		}
	}
	return best
}

// Lost names the backends that do not answer now.
func (p *Pool) Lost() []string {
	var lost []string
	now := int64(time.Since(epoch))
	for _, b := range p.set.Load().backends {
		if b.lost(now) {
			lost = append(lost, b.addr)
		}
	}
	return lost
}

// Watch asks every backend about once a second whether it serves, until ctx is done: so one that hangs or drains is known
// before a shopper finds out, and one that is back takes its share without a shopper's request being risked.
func (p *Pool) Watch(ctx context.Context) {
	var checks sync.WaitGroup
	defer checks.Wait()
	for ctx.Err() == nil {
		s := p.set.Load()
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

func (p *Pool) check(ctx context.Context, s *set, b *backend) {
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	if err := p.ask(ctx, s, b, wire.HealthPath, checkTime, resp); err != nil || resp.StatusCode() != fasthttp.StatusOK {
		b.unchecked.Add(1)
	} else if b.unchecked.Swap(0) >= deadAfter { // it was away, and what failed meanwhile says nothing of it now
		b.answered()
	}
}

// Backends implements salegate.Source.
func (p *Pool) Backends() int { return len(p.set.Load().backends) }

// Feed implements salegate.Source.
func (p *Pool) Feed(ctx context.Context, i int, target string, timeout time.Duration) ([]byte, error) {
	s := p.set.Load()
	b := s.backends[i%len(s.backends)]
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	if err := p.ask(ctx, s, b, target, timeout, resp); err != nil {
		b.failed()
		return nil, fmt.Errorf("the feed of %s: %w", b.addr, err)
	}
	if code := resp.StatusCode(); code != fasthttp.StatusOK { // the last word of one that ends may come when it has ended
		return nil, fmt.Errorf("the feed of %s: status %d", b.addr, code)
	}
	b.answered()
	return append([]byte(nil), resp.Body()...), nil
}

// ask is a question of the gateway's own: on a connection of its own, which is closed when ctx is done, and beyond the bounds on
// requests in flight. The status is for the caller to judge.
func (p *Pool) ask(ctx context.Context, s *set, b *backend, target string, timeout time.Duration, resp *fasthttp.Response) error {
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
			return errForeign
		}
		theirs, ok := timeOf(resp)
		if resp.StatusCode() != fasthttp.StatusUnauthorized || try > 0 || !ok {
			break
		}
		// This process's clock may be far off before the first news, and it is the news that would set it. So the
		// question alone, which says and changes nothing, is signed by the time that the refusal names.
		now = theirs
	}
	return nil
}

// timeOf is the time that a backend's answer names: the server's clock in Floodgate-Time, else its own in Date.
func timeOf(resp *fasthttp.Response) (time.Time, bool) {
	if ms, err := strconv.ParseInt(string(resp.Header.Peek(signing.HeaderTime)), 10, 64); err == nil {
		return time.UnixMilli(ms), true
	}
	t, err := fasthttp.ParseHTTPDate(resp.Header.Peek("Date"))
	return t, err == nil
}
