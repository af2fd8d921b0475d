package limit

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Global is one bucket for everybody. When it is empty, a bounded number of requests may wait a bounded time for a token.
// They get the tokens to come in the order in which they came, so that in any time t at most burst + rate*t are admitted.
// It is safe for concurrent use.
type Global struct {
	mu      sync.Mutex // guards the rest
	tokens  rate.Limiter
	rule    *Rule
	touched time.Time
	waiting int // requests whose token is still to come

	elsewhere Elsewhere // decides instead; nil: it was not handed over

	waited, late, crowded, shadow prometheus.Counter
}

// WaitBounds bounds the waits for a Global's tokens.
type WaitBounds struct {
	MaxWait    time.Duration // of one request
	MaxWaiting int           // requests that wait at once
}

// NewGlobal makes a full bucket. Its metrics carry the rule's name as a label.
func NewGlobal(rule string, reg prometheus.Registerer) *Global {
	counter := counters(rule)
	g := &Global{
		waited:  counter("gateway_limit_waits_total", "Requests that waited for a token, and got it."),
		late:    counter("gateway_limit_late_total", "Requests that were refused because a token would have come too late."),
		crowded: counter("gateway_limit_crowded_total", "Requests that were refused because too many waited for tokens."),
		shadow:  shadowCounter(rule),
	}
	reg.MustRegister(g.waited, g.late, g.crowded, g.shadow, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gateway_limit_waiting", Help: "Requests that wait for a token.", ConstLabels: prometheus.Labels{"rule": rule},
	}, func() float64 { g.mu.Lock(); defer g.mu.Unlock(); return float64(g.waiting) }))
	return g
}

// Take takes a token under the rule's one law, and waits for it as long as bounds allows. now is the monotonic clock, as the
// request read it. A refusal comes at once; its Wait is the time after which a token is there, if nobody else takes it. A
// new rule changes neither the tokens nor those promised to waiting requests. In shadow nobody waits or is refused, and a
// request that would wait takes the token that is to come.
//
// The Wait of an admission is what the method Wait returns afterwards.
func (g *Global) Take(rule *Rule, bounds WaitBounds, now time.Time) Decision {
	d, delay, to := g.reserve(rule, bounds, now, true)
	if to != nil {
		if d, ok := to(""); ok {
			return d.under(rule)
		}
		return g.Take(rule, bounds, now)
	}
	switch {
	case d.Rule.laws[0].Shadow:
		if !d.OK {
			g.shadow.Inc()
		}
		return Decision{OK: true, Rule: d.Rule, Shadow: !d.OK}
	case d.TooManyWaiting:
		g.crowded.Inc()
	case !d.OK:
		g.late.Inc()
	case delay > 0:
		time.Sleep(delay)
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
		g.waited.Inc()
		d.Wait = max(0, d.Wait-delay)
	}
	return d
}

// Replay is Take for a request of the past: it decides as Take did at that time, and does not wait. It must not be mixed with Take.
func (g *Global) Replay(rule *Rule, bounds WaitBounds, at time.Time) Decision {
	d, _, _ := g.reserve(rule, bounds, at, false)
	if d.Rule.laws[0].Shadow {
		return Decision{OK: true, Rule: d.Rule, Shadow: !d.OK}
	}
	return d
}

// Wait is the Decision.Wait of a request that would be refused now; 0 if it would be admitted. It takes no token.
func (g *Global) Wait(rule *Rule, bounds WaitBounds, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wait(bounds, g.advance(rule, now))
}

// wait is Wait. The caller holds mu.
func (g *Global) wait(bounds WaitBounds, now time.Time) time.Duration {
	law := g.rule.laws[0]
	delay := time.Duration((1 - g.tokens.TokensAt(now)) / law.Rate * float64(time.Second))
	if law.Shadow || delay <= 0 || delay <= bounds.MaxWait && g.waiting < bounds.MaxWaiting {
		return 0
	}
	return delay
}

// advance puts the bucket under the rule, and returns now, or the latest time seen if that is later: time never goes back,
// so that the bucket does not earn for it twice. The caller holds mu.
func (g *Global) advance(rule *Rule, now time.Time) time.Time {
	if now.Before(g.touched) {
		now = g.touched
	}
	g.setRule(rule, now)
	g.touched = now
	return now
}

// reserve takes a token that is there after delay. If delay is positive and the law not in shadow, the caller, who waits then, is
// counted as waiting. For one who does not wait, those whose tokens are still to come are.
func (g *Global) reserve(rule *Rule, bounds WaitBounds, now time.Time, waits bool) (d Decision, delay time.Duration, to Elsewhere) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.elsewhere != nil {
		return Decision{}, 0, g.elsewhere
	}
	now = g.advance(rule, now)
	d.Rule = g.rule
	waits = waits && !g.rule.laws[0].Shadow
	waiting := g.waiting
	if !waits { // as many as the tokens that were taken before they came
		waiting = int(math.Ceil(max(0, -g.tokens.TokensAt(now))))
	}
	token := g.tokens.ReserveN(now, 1)
	delay = token.DelayFrom(now)
	switch {
	case delay > bounds.MaxWait:
	case delay > 0 && waiting >= bounds.MaxWaiting:
		d.TooManyWaiting = true
	default:
		if delay > 0 && waits {
			g.waiting++
		}
		d.OK, d.Wait = true, g.wait(bounds, now)
		return d, delay, nil
	}
	token.CancelAt(now)
	d.Wait = delay
	return d, 0, nil
}

// setRule puts the bucket under the rule. A new bucket begins full. Another one earns by its old law until the new one holds,
// and keeps its tokens up to the new burst.
func (g *Global) setRule(rule *Rule, now time.Time) {
	law := rule.laws[0]
	switch {
	case g.rule == nil: // it was empty for longer than it takes to fill
		empty := now.Add(-time.Duration(float64(law.Burst)/law.Rate*float64(time.Second)) - time.Second)
		g.tokens.SetBurstAt(empty, law.Burst)
		g.tokens.SetLimitAt(empty, rate.Limit(law.Rate))
	case g.rule == rule || rule.since.Before(g.rule.since): // the request began under an older rule
		return
	default:
		at := rule.since
		if at.After(now) {
			at = now
		}
		if at.Before(g.touched) {
			at = g.touched
		}
		g.tokens.SetLimitAt(at, rate.Limit(law.Rate))
		g.tokens.SetBurstAt(at, law.Burst)
	}
	g.rule = rule
}
