package edge

import (
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Canary is settings whose rules for users hold for a share of the users, while those around it hold for the rest. Of Settings only
// Order, Payment, Read and ExemptUsers count. Both were made before; a request picks one by its user, without a lock or an allocation.
type Canary struct {
	Settings *Settings
	seed     uint64
	below    uint64 // users whose hash is less are in it

	tried, rest tally
}

// NewCanary makes a canary for a share (0 to 1) of the users. The same salt picks the same users, in every gateway; with another one they
// are others.
func NewCanary(s Settings, salt string, share float64) *Canary {
	return &Canary{Settings: &s, seed: xxhash.Sum64String(salt), below: uint64(min(share, 1) * (1<<64 - 1<<11))}
}

// Has reports whether a user is in the canary.
func (c *Canary) Has(uid string) bool {
	var d xxhash.Digest
	d.ResetWithSeed(c.seed)
	d.WriteString(uid) // never fails
	return d.Sum64() < c.below
}

// Tally is what became of the requests that came to the buckets of a user.
type Tally struct {
	Requests int64
	Refused  int64 // by those buckets
	Failed   int64 // answered 5xx
}

// Tallies are those of the users in the canary, and of all others, since it was made.
func (c *Canary) Tallies() (tried, rest Tally) { return c.tried.read(), c.rest.read() }

type tally struct{ requests, refused, failed atomic.Int64 }

// read reads the requests last, so that they are never fewer than those that ended in one way.
func (t *tally) read() Tally {
	r := Tally{Refused: t.refused.Load(), Failed: t.failed.Load()}
	r.Requests = t.requests.Load()
	return r
}

// userSettings are the settings whose rules for users hold for this one.
func (x *exchange) userSettings(uid string) *Settings {
	c := x.set.Canary
	switch {
	case c == nil:
		return x.set
	case c.Has(uid):
		x.tally = &c.tried
		return c.Settings
	default:
		x.tally = &c.rest
		return x.set
	}
}

// countCanary counts an answered request for the canary.
func (x *exchange) countCanary(status int) {
	t := x.tally
	if t == nil {
		return
	}
	t.requests.Add(1)
	switch {
	case x.rule == ruleOrder || x.rule == rulePayment || x.rule == ruleRead:
		t.refused.Add(1)
	case status >= 500:
		t.failed.Add(1)
	}
}
