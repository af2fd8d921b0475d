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
	// Shadow is for a law that counts what it would have refused, and refuses nothing. Its bucket is the same as if it did.
	Shadow bool
}

// MaxLaws is how many laws a rule may have.
const MaxLaws = 3

// MaxFill is the longest time in which an empty bucket may fill.
const MaxFill = 30 * 24 * time.Hour

// Rule is what holds for each key of a table: its laws, and for how many keys at most there are buckets. Make one with
// NewRule. Buckets compare rules by pointer and take a newer one on their next touch, keeping their tokens: a law is
// known by its place. One that a reload adds begins with full buckets, one that it takes away is forgotten.
type Rule struct {
	MaxKeys int

	laws   []Law
	since  time.Time
	policy string
	level  []string // RateLimit, up to the time, of each law
}

// NewRule makes a rule of 1 to MaxLaws laws that is in force from since on. A bucket must fill within MaxFill.
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

// Policy is the RateLimit-Policy field of the rule (draft-ietf-httpapi-ratelimit-headers), an item for each law that is
// enforced: its quota is the burst, its window the time in which an empty bucket fills.
func (r *Rule) Policy() string { return r.policy }

// AppendExhausted appends the RateLimit field of a refusal by the law at that place, after which a token is there in so many
// seconds.
func (r *Rule) AppendExhausted(b []byte, law, seconds int) []byte {
	return strconv.AppendInt(append(b, r.level[law]...), int64(seconds), 10)
}

func wholeSeconds(s float64) int { return int(math.Ceil(min(s, 1<<31))) }
