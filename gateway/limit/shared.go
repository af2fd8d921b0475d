package limit

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Shared is one bucket that everybody draws on. Where it is empty a request may wait for a token, for a bounded time, in a
// bounded number, and in the order of coming: the tokens that it will get are promised to who waits. So in any span
// of time no more are admitted than burst + rate*t. It is safe for concurrent use.
type Shared struct {
	mu      sync.Mutex // guards the rest
	tokens  rate.Limiter
	rule    *Rule
	touched time.Time
	waiting int // who was promised a token that is not there yet

	waited, refused, crowded, shadow prometheus.Counter
}

// Patience bounds the waits for a Shared's tokens.
type Patience struct {
	Wait   time.Duration // of one request
	Places int           // requests that wait at once
}

// NewShared makes a full bucket. Its metrics carry the rule's name as a label.
func NewShared(rule string, reg prometheus.Registerer) *Shared {
	counter := counters(rule)
	s := &Shared{
		waited:  counter("gateway_limit_waits_total", "Requests that waited for a token, and got it."),
		refused: counter("gateway_limit_late_total", "Requests that were refused because a token would have come too late."),
		crowded: counter("gateway_limit_crowded_total", "Requests that were refused because too many waited for tokens."),
		shadow:  shadowCounter(rule),
	}
	reg.MustRegister(s.waited, s.refused, s.crowded, s.shadow, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gateway_limit_waiting", Help: "Requests that wait for a token.", ConstLabels: prometheus.Labels{"rule": rule},
	}, func() float64 { s.mu.Lock(); defer s.mu.Unlock(); return float64(s.waiting) }))
	return s
}

// Take takes a token under the rule's one law, and waits for it as long as p allows. now is the request's one reading of the
// monotonic clock. A refusal comes at once, and names the time after which a token is there, if nobody else takes it. A rule
// that a reload brings leaves the bucket as full, or as deep in promises, as it is. In shadow nobody waits or is refused, and
// whoever would have waited takes the token that is promised.
//
// A Decision's Wait is what Wait returns, after this request.
func (s *Shared) Take(rule *Rule, p Patience, now time.Time) Decision {
	d, delay := s.promise(rule, p, now)
	switch {
	case d.Rule.laws[0].Shadow:
		if !d.OK {
			s.shadow.Inc()
		}
		return Decision{OK: true, Rule: d.Rule, Shadow: !d.OK}
	case d.Crowded:
		s.crowded.Inc()
	case !d.OK:
		s.refused.Inc()
	case delay > 0:
		time.Sleep(delay)
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		s.waited.Inc()
		d.Wait = max(0, d.Wait-delay)
	}
	return d
}

// Wait is how long a request that came now would be told to wait, if nobody else takes a token; 0 if it would not be refused. It
// takes nothing.
func (s *Shared) Wait(rule *Rule, p Patience, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wait(p, s.turn(rule, now))
}

// wait is Wait. The caller holds mu.
func (s *Shared) wait(p Patience, now time.Time) time.Duration {
	law := s.rule.laws[0]
	delay := time.Duration((1 - s.tokens.TokensAt(now)) / law.Rate * float64(time.Second))
	if law.Shadow || delay <= 0 || delay <= p.Wait && s.waiting < p.Places {
		return 0
	}
	return delay
}

// turn puts the bucket under the rule and returns the time that counts: where the clock was read before another's that came
// first, that is no time to earn twice. The caller holds mu.
func (s *Shared) turn(rule *Rule, now time.Time) time.Time {
	if now.Before(s.touched) {
		now = s.touched
	}
	s.follow(rule, now)
	s.touched = now
	return now
}

// promise takes a token that is there after delay. Where the delay is positive, the caller counts as waiting, but in shadow.
func (s *Shared) promise(rule *Rule, p Patience, now time.Time) (d Decision, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.turn(rule, now)
	d.Rule = s.rule
	shadow := s.rule.laws[0].Shadow
	waiting := s.waiting
	if shadow { // as many as the tokens that are promised
		waiting = int(math.Ceil(max(0, -s.tokens.TokensAt(now))))
	}
	token := s.tokens.ReserveN(now, 1)
	delay = token.DelayFrom(now)
	switch {
	case delay > p.Wait:
	case delay > 0 && waiting >= p.Places:
		d.Crowded = true
	default:
		if delay > 0 && !shadow {
			s.waiting++
		}
		d.OK, d.Wait = true, s.wait(p, now)
		return d, delay
	}
	token.CancelAt(now)
	d.Wait = delay
	return d, 0
}

// follow puts the bucket under the rule: a new one begins full; another earned by its old law until the new one came into
// force, and keeps its tokens up to the new burst.
func (s *Shared) follow(rule *Rule, now time.Time) {
	law := rule.laws[0]
	switch {
	case s.rule == nil: // as if it had been empty for longer than it takes to fill
		empty := now.Add(-time.Duration(float64(law.Burst)/law.Rate*float64(time.Second)) - time.Second)
		s.tokens.SetBurstAt(empty, law.Burst)
		s.tokens.SetLimitAt(empty, rate.Limit(law.Rate))
	case s.rule == rule || rule.since.Before(s.rule.since): // a request that began under an older rule changes nothing
		return
	default:
		at := rule.since
		if at.After(now) {
			at = now
		}
		if at.Before(s.touched) {
			at = s.touched
		}
		s.tokens.SetLimitAt(at, rate.Limit(law.Rate))
		s.tokens.SetBurstAt(at, law.Burst)
	}
	s.rule = rule
}
