// Package limit holds token buckets: for each key of a rule one for each of the rule's laws, in this process's own memory.
//
// For any trace a key is admitted at most burst + rate*t times under each law, whatever is evicted or reloaded meanwhile: a
// key is forgotten only when all of its buckets are full again, and where there is none such and the table is at its cap, new
// keys share one set of buckets of the same laws, and begin with what is in those when there is room for them. What a bucket holds is decided by golang.org/x/time/rate; between two
// requests of a key only its tokens and the time of the last touch are kept, which is a quarter of a rate.Limiter.
package limit

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Decision is what a key's buckets said.
type Decision struct {
	OK bool
	// Rule is what decided: the rule that was asked for, or a newer one that the key has met already.
	Rule *Rule
	// Law is the place in Rule of the law that Wait is for.
	Law int
	// Wait is the time until a token of every law is there, after a refusal or for the next request, a part of a nanosecond less;
	// 0 if they are there now.
	Wait time.Duration
	// Remaining is how many more would be admitted at once.
	Remaining int
	// Shared says that the key had to use the buckets that all keys beyond the cap share.
	Shared bool
	// Crowded says that a token would have come in time, but that too many wait for theirs.
	Crowded bool
	// Shadow says that a law in shadow would have refused.
	Shadow bool
}

// Seconds is Wait in whole seconds, rounded up: whoever waits that long is admitted.
func (d Decision) Seconds() int { return wholeSeconds(d.Wait.Seconds()) }

const shards = 256

// Buckets is a table of buckets. It is safe for concurrent use. Keys are kept as they are given: a string must not
// belong to a request's buffer.
type Buckets[K comparable] struct {
	seed   maphash.Seed
	epoch  time.Time // times inside are nanoseconds since then
	size   atomic.Int64
	hand   atomic.Uint32 // the shard from which the next key without room tries to evict
	shards [shards]shard[K]
	shared sharedBucket
	drawn  atomic.Bool // the shared buckets may not be full; changed under their lock

	evictions, overflow, shadow prometheus.Counter
}

// shard is one part of the table. mu guards the rest. Its keys are found by their hashes, and stand in a ring in the order of
// their last touch.
type shard[K comparable] struct {
	mu      sync.Mutex
	index   []*bucket[K] // the first of each chain; twice as long when there are as many keys; never shorter
	size    int
	oldest  bucket[K] // the ring's head: next is the least, prev the most recently touched
	last    int64     // the latest time seen: time never goes back inside a shard
	scratch rate.Limiter
}

// bucket is all that is kept of a key, but for 8 to 16 bytes of the index: 96 bytes for a string, and the string.
type bucket[K comparable] struct {
	state
	next, prev *bucket[K]
	chain      *bucket[K]
	key        K
}

// sharedBucket is where keys go that found no room. mu guards the rest; it is taken last.
type sharedBucket struct {
	mu      sync.Mutex
	state   state
	scratch rate.Limiter
}

// New makes an empty table. Its metrics carry the rule's name as a label.
func New[K comparable](rule string, reg prometheus.Registerer) *Buckets[K] {
	b := &Buckets[K]{seed: maphash.MakeSeed(), epoch: time.Now()}
	for i := range b.shards {
		s := &b.shards[i]
		s.index = make([]*bucket[K], 8)
		s.last = math.MinInt64
		s.oldest.next, s.oldest.prev = &s.oldest, &s.oldest
	}
	counter := counters(rule)
	b.evictions = counter("gateway_limit_evictions_total", "Keys whose buckets were full again and that were forgotten.")
	b.overflow = counter("gateway_limit_overflow_total", "Requests of keys that found the table full and drew on the shared buckets.")
	b.shadow = shadowCounter(rule)
	reg.MustRegister(b.evictions, b.overflow, b.shadow, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gateway_limit_buckets", Help: "Keys in memory.", ConstLabels: prometheus.Labels{"rule": rule},
	}, func() float64 { return float64(b.size.Load()) }))
	return b
}

// counters makes counters that carry the rule's name.
func counters(rule string) func(name, help string) prometheus.Counter {
	return func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"rule": rule}})
	}
}

func shadowCounter(rule string) prometheus.Counter {
	return counters(rule)("gateway_shadow_refusals_total", "Requests that went on though a law in shadow would have refused them.")
}

// Len is the number of keys in memory.
func (b *Buckets[K]) Len() int { return int(b.size.Load()) }

// Take takes one token of each of key's buckets under the rule, or none. now is the request's one reading of the monotonic
// clock.
func (b *Buckets[K]) Take(key K, rule *Rule, now time.Time) Decision {
	hash := b.hash(key)
	s := &b.shards[hash%shards]
	s.mu.Lock()
	at := s.monotone(int64(now.Sub(b.epoch)))
	k := *s.chain(hash)
	for k != nil && k.key != key {
		k = k.chain
	}
	if k == nil {
		k = b.insert(s, key, hash, rule, at)
	}
	var d Decision
	if k == nil {
		d = b.takeShared(rule, at)
	} else {
		k.unlink()
		s.oldest.pushBack(k)
		b.follow(&k.state, &s.scratch, rule, at)
		d = k.take(&s.scratch, at)
	}
	s.mu.Unlock()
	if d.Shadow {
		b.shadow.Inc()
	}
	return d
}

func (b *Buckets[K]) hash(key K) uint64 { return maphash.Comparable(b.seed, key) }

// chain is the first of the keys whose hashes are alike.
func (s *shard[K]) chain(hash uint64) **bucket[K] {
	return &s.index[hash/shards%uint64(len(s.index))]
}

// follow puts the buckets under the rule, where they are not.
func (b *Buckets[K]) follow(s *state, lim *rate.Limiter, rule *Rule, at int64) {
	if s.rule != rule {
		s.follow(lim, rule, int64(rule.since.Sub(b.epoch)), at)
	}
}

// monotone keeps a request that read its clock before another one, but came later, from turning time back: to a bucket
// that would be time to earn twice.
func (s *shard[K]) monotone(at int64) int64 {
	s.last = max(s.last, at)
	return s.last
}

// insert makes room for key and its buckets, or returns nil where there is none. The caller holds s.mu.
func (b *Buckets[K]) insert(s *shard[K], key K, hash uint64, rule *Rule, at int64) *bucket[K] {
	// Two out for one in, where two are full again: so the table follows the keys that are in use.
	b.evict(s, 2, rule, at)
	for range 4 {
		if b.size.Load() < int64(rule.MaxKeys) {
			break
		}
		other := &b.shards[b.hand.Add(1)%shards]
		if other == s || !other.mu.TryLock() { // never waits for a second lock
			continue
		}
		b.evict(other, 2, rule, other.monotone(at))
		other.mu.Unlock()
	}
	if b.size.Add(1) > int64(rule.MaxKeys) {
		b.size.Add(-1)
		return nil
	}
	k := &bucket[K]{key: key}
	b.begin(&k.state, rule, at)
	if s.size++; s.size > len(s.index) {
		old := s.index
		s.index = make([]*bucket[K], 2*len(old))
		for _, o := range old {
			for o != nil {
				rest := o.chain
				s.link(o, b.hash(o.key))
				o = rest
			}
		}
	}
	s.link(k, hash)
	return k
}

func (s *shard[K]) link(k *bucket[K], hash uint64) {
	first := s.chain(hash)
	k.chain, *first = *first, k
}

// begin makes a new key's buckets: full ones, or, while the key may have drawn on the shared ones, as full as those are.
func (b *Buckets[K]) begin(s *state, rule *Rule, at int64) {
	s.fill(rule, at)
	if !b.drawn.Load() {
		return
	}
	b.shared.mu.Lock()
	defer b.shared.mu.Unlock()
	shared := &b.shared.state
	b.follow(shared, &b.shared.scratch, rule, at)
	if shared.full(&b.shared.scratch, at) {
		b.drawn.Store(false)
		return
	}
	*s = *shared
}

// evict forgets up to n of the least recently touched keys whose buckets are full. The caller holds s.mu.
func (b *Buckets[K]) evict(s *shard[K], n int, rule *Rule, at int64) {
	for range n {
		k := s.oldest.next
		if k == &s.oldest {
			return
		}
		b.follow(&k.state, &s.scratch, rule, at)
		if !k.full(&s.scratch, at) {
			return
		}
		k.unlink()
		link := s.chain(b.hash(k.key))
		for *link != k {
			link = &(*link).chain
		}
		*link = k.chain
		s.size--
		b.size.Add(-1)
		b.evictions.Inc()
	}
}

// takeShared takes from the shared buckets. The caller holds the key's shard, so that nobody makes buckets for the key meanwhile.
func (b *Buckets[K]) takeShared(rule *Rule, at int64) Decision {
	b.overflow.Inc()
	b.shared.mu.Lock()
	defer b.shared.mu.Unlock()
	s := &b.shared.state
	if s.rule == nil {
		s.fill(rule, at)
	}
	b.follow(s, &b.shared.scratch, rule, at)
	d := s.take(&b.shared.scratch, at)
	b.drawn.Store(true)
	d.Shared = true
	return d
}

func (k *bucket[K]) unlink() {
	if k.next != nil {
		k.next.prev, k.prev.next = k.prev, k.next
		k.next, k.prev = nil, nil
	}
}

func (k *bucket[K]) pushBack(n *bucket[K]) {
	n.prev, n.next = k.prev, k
	k.prev.next, k.prev = n, n
}
