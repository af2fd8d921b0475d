package limit

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Law is one token bucket for a key: Rate tokens a second into a bucket of Burst tokens.
type Law struct {
	Rate  float64
	Burst int
	// Shadow makes the law count what it would refuse, and refuse nothing. Its bucket is drawn on as if it did.
	Shadow bool
}

// MaxLaws is how many laws a rule may have.
const MaxLaws = 3

// MaxFill is the longest time that an empty bucket may take to fill.
const MaxFill = 30 * 24 * time.Hour

// Rule is the laws for each key of a table, and the bound on keys that have buckets. Make one with NewRule. Buckets compare
// rules by pointer. They take on a newer rule on their next use and keep their tokens: a law is identified by its place. A
// law that a reload adds begins with full buckets.
type Rule struct {
	MaxKeys int

	laws   []Law
	since  time.Time
	peer   *Rule // which holds at the same time, for other keys; see Together
	tried  bool  // of the two it is the one that is tried
	policy string
	level  []string // for each law the RateLimit field, up to the time
}

// NewRule makes a rule of 1 to MaxLaws laws that holds from since on. Each law's bucket must fill within MaxFill.
func NewRule(name string, maxKeys int, since time.Time, laws ...Law) *Rule {
	r := &Rule{MaxKeys: maxKeys, laws: laws, since: since}
	var policies []string
	for i, l := range laws {
		quoted := `"` + name + `"`
		if i > 0 {
			quoted = `"` + name + "-" + strconv.Itoa(i+1) + `"`
		}
		r.level = append(r.level, quoted+";r=0;t=")
		if !l.Shadow {
			policies = append(policies, quoted+";q="+strconv.Itoa(l.Burst)+";w="+strconv.Itoa(wholeSeconds(float64(l.Burst)/l.Rate)))
		}
	}
	r.policy = strings.Join(policies, ", ")
	return r
}

// Together makes two new rules, which hold from the same time on, hold at once in one table: each key must be asked under one of them
// alone. A key is evicted only when its buckets are full under both. Keys that find no room in the table are decided under held.
func Together(held, tried *Rule) {
	if !held.since.Equal(tried.since) {
		panic("BUG: rules that hold from different times on")
	}
	held.peer, tried.peer, tried.tried = tried, held, true
}

// ofOverflow is the rule of the overflow buckets.
func (r *Rule) ofOverflow() *Rule {
	if r.tried {
		return r.peer
	}
	return r
}

// Policy is the RateLimit-Policy field (draft-ietf-httpapi-ratelimit-headers), with an item for each law that is enforced: its
// quota is the burst, its window the time in which an empty bucket fills.
func (r *Rule) Policy() string { return r.policy }

// AppendExhausted appends the RateLimit field of a refusal: the law at that place has a token again after so many seconds.
func (r *Rule) AppendExhausted(b []byte, law, seconds int) []byte {
	return strconv.AppendInt(append(b, r.level[law]...), int64(seconds), 10)
}

func wholeSeconds(s float64) int { return int(math.Ceil(min(s, 1<<31))) }
