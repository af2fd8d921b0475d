package limit

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Shared is one bucket that everybody draws on. Where it is empty a request may wait for a token, for a bounded time, in a
// bounded number, and in the order of coming: the tokens that it will get are promised to who waits. So in any span
// of time no more are admitted than burst + rate*t. It is safe for concurrent use.
type Shared struct {
	mu      sync.Mutex // guards the rest
	bucket  bucket[struct{}]
	waiting int // who was promised a token that is not there yet

	waited, refused, crowded prometheus.Counter
}

// Patience bounds the waits for a Shared's tokens.
type Patience struct {
	Wait   time.Duration // of one request
	Places int           // requests that wait at once
}

// NewShared makes a full bucket. Its metrics carry the rule's name as a label.
func NewShared(rule string, reg prometheus.Registerer) *Shared {
	label := prometheus.Labels{"rule": rule}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: label})
	}
	s := &Shared{
		waited:  counter("gateway_limit_waits_total", "Requests that waited for a token, and got it."),
		refused: counter("gateway_limit_late_total", "Requests that were refused because a token would have come too late."),
		crowded: counter("gateway_limit_crowded_total", "Requests that were refused because too many waited for tokens."),
	}
	reg.MustRegister(s.waited, s.refused, s.crowded, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gateway_limit_waiting", Help: "Requests that wait for a token.", ConstLabels: label,
	}, func() float64 { s.mu.Lock(); defer s.mu.Unlock(); return float64(s.waiting) }))
	return s
}

// Take takes a token under the law, and waits for it as long as p allows. now is the request's one reading of the monotonic
// clock. A refusal comes at once, and names the time after which a token is there, if nobody else takes it. A law that a
// reload brings leaves the bucket as full, or as deep in promises, as it is.
func (s *Shared) Take(law *Law, p Patience, now time.Time) Decision {
	d, delay := s.promise(law, p, now)
	if delay > 0 {
		time.Sleep(delay)
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		s.waited.Inc()
	}
	return d
}

// promise takes a token that is there after delay. Where the delay is positive, the caller counts as waiting.
func (s *Shared) promise(law *Law, p Patience, now time.Time) (d Decision, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.bucket
	if k.law == nil {
		k.fill(law, now)
	}
	if now.Before(k.touched) { // its clock was read before another's that came first: that is no time to earn twice
		now = k.touched
	}
	k.follow(law, now)
	k.touched = now
	token := k.tokens.ReserveN(now, 1)
	delay = token.DelayFrom(now)
	switch {
	case delay > p.Wait:
		s.refused.Inc()
	case delay > 0 && s.waiting >= p.Places:
		s.crowded.Inc()
		d.Crowded = true
	default:
		if delay > 0 {
			s.waiting++
		}
		d.OK = true
		return d, delay
	}
	token.CancelAt(now)
	d.Wait = delay
	return d, 0
}
