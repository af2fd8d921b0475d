package limit

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// state is a key's buckets, one for each law of its rule, as they were when a token was last taken. Times are nanoseconds, in
// the time of whoever has it.
type state struct {
	tokens  [MaxLaws]float64
	touched int64
	rule    *Rule
	ready   int64 // until then x/time/rate has refused already, by the law at
	scarce  uint8 // this place
}

// fill makes new buckets full ones.
func (s *state) fill(rule *Rule, at int64) {
	s.rule, s.touched, s.ready = rule, at, math.MinInt64
	for i, law := range rule.laws {
		s.tokens[i] = float64(law.Burst)
	}
}

// load makes lim the bucket of the i-th law. A rate.Limiter cannot be told how many tokens it begins with, so it is filled at
// a rate of that many a second, for a second. Where it owes a part of one, for it gives a token that is less than a
// nanosecond away, it is filled with one more, which is taken.
func (s *state) load(lim *rate.Limiter, i int) {
	law, tokens, owed := &s.rule.laws[i], s.tokens[i], 0
	if tokens < 0 {
		owed = 1
	}
	begin, touched := instant(s.touched-int64(time.Second)), instant(s.touched)
	*lim = rate.Limiter{}
	lim.SetBurstAt(begin, law.Burst+owed)
	lim.SetLimitAt(begin, rate.Limit(tokens+float64(owed)))
	lim.SetLimitAt(touched, rate.Limit(law.Rate))
	if owed > 0 {
		lim.ReserveN(touched, owed)
		lim.SetBurstAt(touched, law.Burst)
	}
}

func instant(ns int64) time.Time { return time.Unix(0, ns) }

// follow puts the buckets under the rule, in force since then: they earned by their old laws until it was, and keep their
// tokens up to the new bursts. A request that began under an older rule than the key has met changes nothing.
func (s *state) follow(lim *rate.Limiter, rule *Rule, since, at int64) {
	if rule.since.Before(s.rule.since) {
		return
	}
	from := max(s.touched, min(since, at))
	for i, law := range rule.laws {
		if i >= len(s.rule.laws) {
			s.tokens[i] = float64(law.Burst)
			continue
		}
		s.load(lim, i)
		s.tokens[i] = min(lim.TokensAt(instant(from)), float64(law.Burst))
	}
	s.rule, s.touched, s.ready = rule, from, math.MinInt64
}

// full says whether nothing is lost if the key is forgotten.
func (s *state) full(lim *rate.Limiter, at int64) bool {
	for i, law := range s.rule.laws {
		s.load(lim, i)
		if lim.TokensAt(instant(at)) < float64(law.Burst) {
			return false
		}
	}
	return true
}

// take takes a token of each law that is enforced, or of none; and where it does, of each law in shadow, or of none.
func (s *state) take(lim *rate.Limiter, at int64) Decision {
	if at < s.ready {
		return Decision{Rule: s.rule, Law: int(s.scarce), Wait: time.Duration(s.ready - at)}
	}
	at = max(at, s.touched)
	d := Decision{OK: true, Rule: s.rule, Remaining: math.MaxInt}
	var has [MaxLaws]bool
	var left [MaxLaws]float64 // after this request, if it is admitted
	for i, law := range s.rule.laws {
		s.load(lim, i)
		has[i] = lim.AllowN(instant(at), 1)
		left[i] = lim.TokensAt(instant(at))
		switch {
		case has[i]:
		case law.Shadow:
			d.Shadow = true
		default:
			d.OK = false
		}
	}
	for i, law := range s.rule.laws {
		if law.Shadow || has[i] && !d.OK {
			continue
		}
		d.Remaining = min(d.Remaining, max(0, int(left[i])))
		if wait := time.Duration((1 - left[i]) / law.Rate * float64(time.Second)); wait > d.Wait {
			d.Wait, d.Law = wait, i
		}
	}
	s.ready, s.scarce = at+int64(d.Wait), uint8(d.Law)
	if !d.OK {
		d.Remaining, d.Shadow = 0, false // it goes nowhere
		return d
	}
	for i, law := range s.rule.laws {
		if law.Shadow && d.Shadow && has[i] {
			left[i]++
		}
	}
	s.tokens, s.touched = left, at
	return d
}
