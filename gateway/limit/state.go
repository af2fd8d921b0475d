package limit

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// state is a key's buckets, one for each law of its rule, as they were when a token was last taken. It takes a quarter of the
// memory of a rate.Limiter, which is made again from it for each decision. Times are nanoseconds since the epoch of the table.
type state struct {
	tokens  [MaxLaws]float64
	touched int64
	rule    *Rule
	retryAt int64 // requests before that time are refused
	refuser uint8 // by the law at this place
}

// fill makes new buckets full.
func (s *state) fill(rule *Rule, at int64) {
	s.rule, s.touched, s.retryAt = rule, at, math.MinInt64
	for i, law := range rule.laws {
		s.tokens[i] = float64(law.Burst)
	}
}

// load makes lim the bucket of the i-th law. A rate.Limiter cannot be told how many tokens it begins with, so it is filled for
// one second at that rate. A bucket may have slightly less than 0 tokens, because x/time/rate gives a token that is less
// than a nanosecond away. Then lim is filled with one more, which is taken.
func (s *state) load(lim *rate.Limiter, i int) {
	law, tokens, owed := &s.rule.laws[i], s.tokens[i], 0
	if tokens < 0 {
		owed = 1
	}
	begin, touched := asTime(s.touched-int64(time.Second)), asTime(s.touched)
	*lim = rate.Limiter{}
	lim.SetBurstAt(begin, law.Burst+owed)
	lim.SetLimitAt(begin, rate.Limit(tokens+float64(owed)))
	lim.SetLimitAt(touched, rate.Limit(law.Rate))
	if owed > 0 {
		lim.ReserveN(touched, owed)
		lim.SetBurstAt(touched, law.Burst)
	}
}

func asTime(ns int64) time.Time { return time.Unix(0, ns) }

// setRule puts the buckets under a rule that holds since then. They earn by their old laws until then, and keep their tokens
// up to the new bursts. A rule that is older than theirs changes nothing.
func (s *state) setRule(lim *rate.Limiter, rule *Rule, since, at int64) {
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
		s.tokens[i] = min(lim.TokensAt(asTime(from)), float64(law.Burst))
	}
	s.rule, s.touched, s.retryAt = rule, from, math.MinInt64
}

// full says whether every bucket is full, so that the key can be evicted.
func (s *state) full(lim *rate.Limiter, at int64) bool {
	for i, law := range s.rule.laws {
		s.load(lim, i)
		if lim.TokensAt(asTime(at)) < float64(law.Burst) {
			return false
		}
	}
	return true
}

// refused is the decision about a request that comes before every law has a token again.
func (s *state) refused(at int64) (Decision, bool) {
	return Decision{Rule: s.rule, Law: int(s.refuser), Wait: time.Duration(s.retryAt - at)}, at < s.retryAt
}

// take takes a token of each enforced law, or of none. If it does, it also takes one of each law in shadow, or of none of them.
func (s *state) take(lim *rate.Limiter, at int64) Decision {
	if d, refused := s.refused(at); refused {
		return d
	}
	at = max(at, s.touched)
	d := Decision{OK: true, Rule: s.rule, Remaining: math.MaxInt}
	var has [MaxLaws]bool
	var left [MaxLaws]float64 // after this request, if it is admitted
	for i, law := range s.rule.laws {
		s.load(lim, i)
		has[i] = lim.AllowN(asTime(at), 1)
		left[i] = lim.TokensAt(asTime(at))
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
	s.retryAt, s.refuser = at+int64(d.Wait), uint8(d.Law)
	if !d.OK {
		d.Remaining, d.Shadow = 0, false // the law in shadow did not matter
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
