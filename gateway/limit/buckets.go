// Package limit decides by token buckets in this process's memory. Buckets is a table: each key has one bucket for each of
// a rule's laws. Global is one bucket for everybody. golang.org/x/time/rate does the arithmetic.
//
// Under each law a key is admitted at most burst + rate*t times in any time t, whatever is evicted or reloaded meanwhile.
// A key is evicted only when all its buckets are full. When the table is full of others, new keys share one set of
// overflow buckets; a key that gets its own later begins with what is in those. See docs/limits.md.
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

// Decision says whether a request is admitted.
type Decision struct {
	OK bool
	// Rule is what decided: the rule of the call, or a newer one that the key was asked under before.
	Rule *Rule
	// Law is the place in Rule of the law that Wait is for.
	Law int
	// Wait is the time until every law has a token for this request, or for the next one if this one is admitted; 0 if
	// they have one now. It may be less than a nanosecond too short.
	Wait time.Duration
	// Remaining is how many more requests would be admitted now.
	Remaining int
	// Overflow says that the key had no buckets of its own and drew on the overflow buckets.
	Overflow bool
	// TooManyWaiting says that a token would have come in time, but too many requests wait for theirs.
	TooManyWaiting bool
	// Shadow says that a law in shadow would have refused the request.
	Shadow bool
}

// Seconds is Wait in whole seconds, rounded up, so that waiting that long is enough.
func (d Decision) Seconds() int { return wholeSeconds(d.Wait.Seconds()) }

// AtLeastASecond is Seconds, as a time, or one second where that is more.
func (d Decision) AtLeastASecond() time.Duration {
	return time.Duration(max(1, d.Seconds())) * time.Second
}

const shards = 256

// Buckets is a table of buckets. It is safe for concurrent use. A key that is a string must not belong to a request's
// buffer.
type Buckets[K comparable] struct {
	seed   maphash.Seed
	epoch  time.Time // times inside are nanoseconds since then
	size   atomic.Int64
	victim atomic.Uint32 // the shard from which the next key without room tries to evict
	shards [shards]shard[K]

	overflow     overflowBuckets
	overflowUsed atomic.Bool // the overflow buckets may not be full; changed under their lock

	evictions, overflows, shadow prometheus.Counter
}

// shard is one part of the table. mu guards the rest. It is a hash table whose keys are also in a ring, in the order of their
// last use.
type shard[K comparable] struct {
	mu      sync.Mutex
	index   []*bucket[K] // the first of each chain; doubled when there are as many keys; never shorter
	size    int
	oldest  bucket[K] // the ring's head: next is the least, prev the most recently used
	last    int64     // the latest time seen: time never goes back inside a shard
	scratch rate.Limiter

	elsewhere Elsewhere // decides instead; nil: the shard was not handed over
}

// bucket is a key and its buckets: 96 bytes for a string, without the string and 8 to 16 bytes of the index.
type bucket[K comparable] struct {
	state
	next, prev *bucket[K]
	chain      *bucket[K]
	key        K
}

// overflowBuckets are for keys that find no room in the table. mu guards the rest; it is taken after a shard's.
type overflowBuckets struct {
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
	b.overflows = counter("gateway_limit_overflow_total", "Requests of keys that found the table full and drew on the shared buckets.")
	b.shadow = shadowCounter(rule)
	reg.MustRegister(b.evictions, b.overflows, b.shadow, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
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
	return counters(rule)("gateway_shadow_refusals_total", "Requests that went on though a rule in shadow would have refused them.")
}

// Len is the number of keys in memory.
func (b *Buckets[K]) Len() int { return int(b.size.Load()) }

// Take takes one token from each of key's buckets under the rule, or none. now is the monotonic clock, as the request read
// it.
func (b *Buckets[K]) Take(key K, rule *Rule, now time.Time) Decision {
	hash := b.hash(key)
	s := &b.shards[hash%shards]
	s.mu.Lock()
	if to := s.elsewhere; to != nil {
		s.mu.Unlock()
		return b.takeElsewhere(to, key, rule, now)
	}
	at := s.monotone(int64(now.Sub(b.epoch)))
	k := s.find(hash, key)
	if k == nil {
		k = b.insert(s, key, hash, rule, at)
	}
	var d Decision
	if k == nil {
		d = b.takeOverflow(rule, at)
	} else {
		k.unlink()
		s.oldest.pushBack(k)
		b.setRule(&k.state, &s.scratch, rule, at)
		d = k.take(&s.scratch, at)
	}
	s.mu.Unlock()
	if d.Shadow {
		b.shadow.Inc()
	}
	return d
}

// Refuses reports whether Take would refuse the key now, and what it would decide. It changes nothing. It also reports false where
// only Take can tell: of a key without buckets of its own, and of one that was last asked under another rule.
func (b *Buckets[K]) Refuses(key K, rule *Rule, now time.Time) (Decision, bool) {
	hash := b.hash(key)
	s := &b.shards[hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.find(hash, key)
	if k == nil || k.rule != rule || s.elsewhere != nil {
		return Decision{}, false
	}
	return k.refused(max(s.last, int64(now.Sub(b.epoch))))
}

// Wait is the time until Take would admit the key's next request, 0 if it would now. It changes nothing.
func (b *Buckets[K]) Wait(key K, rule *Rule, now time.Time) time.Duration {
	hash := b.hash(key)
	s := &b.shards[hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	var copied state
	switch k := s.find(hash, key); {
	case s.elsewhere != nil:
		return 0 // another process has the buckets from now on, and says so
	case k != nil:
		copied = k.state
	case !b.overflowUsed.Load():
		return 0
	default: // it would begin with these, or draw on them
		b.overflow.mu.Lock()
		copied = b.overflow.state
		b.overflow.mu.Unlock()
	}
	at := max(s.last, int64(now.Sub(b.epoch)))
	b.setRule(&copied, &s.scratch, rule, at)
	if d := copied.take(&s.scratch, at); !d.OK {
		return d.Wait
	}
	return 0
}

func (b *Buckets[K]) hash(key K) uint64 { return maphash.Comparable(b.seed, key) }

// chain is where the chain of a hash begins.
func (s *shard[K]) chain(hash uint64) **bucket[K] {
	return &s.index[hash/shards%uint64(len(s.index))]
}

// find is the key's buckets; nil: it has none. The caller holds s.mu.
func (s *shard[K]) find(hash uint64, key K) *bucket[K] {
	k := *s.chain(hash)
	for k != nil && k.key != key {
		k = k.chain
	}
	return k
}

// setRule puts a key's buckets under the rule, if they are under another one.
func (b *Buckets[K]) setRule(s *state, lim *rate.Limiter, rule *Rule, at int64) {
	if s.rule != rule {
		s.setRule(lim, rule, int64(rule.since.Sub(b.epoch)), at)
	}
}

// monotone returns at, or the latest time seen if that is later. A request may read the clock before another one and come
// after it. If time went back, a bucket would earn for the same time twice.
func (s *shard[K]) monotone(at int64) int64 {
	s.last = max(s.last, at)
	return s.last
}

// insert adds key, and evicts others for it where it must. It returns nil when there is no room. The caller holds s.mu.
func (b *Buckets[K]) insert(s *shard[K], key K, hash uint64, rule *Rule, at int64) *bucket[K] {
	// Two are evicted for one, if they are full, so that the table shrinks to the keys in use.
	b.evict(s, 2, rule, at)
	for range 4 {
		if b.size.Load() < int64(rule.MaxKeys) {
			break
		}
		other := &b.shards[b.victim.Add(1)%shards]
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
	b.initialize(&k.state, rule, at)
	b.add(s, k, hash)
	return k
}

// add puts a key into the index. The caller holds s.mu.
func (b *Buckets[K]) add(s *shard[K], k *bucket[K], hash uint64) {
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
}

func (s *shard[K]) link(k *bucket[K], hash uint64) {
	first := s.chain(hash)
	k.chain, *first = *first, k
}

// initialize makes a new key's buckets: full, or as full as the overflow buckets, while the key may have drawn on those.
func (b *Buckets[K]) initialize(s *state, rule *Rule, at int64) {
	s.fill(rule, at)
	if !b.overflowUsed.Load() {
		return
	}
	b.overflow.mu.Lock()
	defer b.overflow.mu.Unlock()
	overflow := &b.overflow.state
	b.setRule(overflow, &b.overflow.scratch, rule.ofOverflow(), at)
	if overflow.full(&b.overflow.scratch, at) {
		b.overflowUsed.Store(false)
		return
	}
	*s = *overflow
}

// evict removes up to n of the least recently used keys, as long as their buckets are full. The caller holds s.mu.
func (b *Buckets[K]) evict(s *shard[K], n int, rule *Rule, at int64) {
	for range n {
		k := s.oldest.next
		if k == &s.oldest {
			return
		}
		if !b.fullUnder(k.state, &s.scratch, rule, at) {
			return
		}
		if rule.peer != nil && !b.fullUnder(k.state, &s.scratch, rule.peer, at) {
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

// fullUnder reports whether a key's buckets are full, after they were put under the rule if theirs is not a newer one. s is a copy: the
// key may belong under another rule.
func (b *Buckets[K]) fullUnder(s state, lim *rate.Limiter, rule *Rule, at int64) bool {
	b.setRule(&s, lim, rule, at)
	return s.full(lim, at)
}

// takeOverflow takes from the overflow buckets. The caller holds the lock of the key's shard, so that the key gets no buckets
// of its own meanwhile.
func (b *Buckets[K]) takeOverflow(rule *Rule, at int64) Decision {
	b.overflows.Inc()
	b.overflow.mu.Lock()
	defer b.overflow.mu.Unlock()
	rule = rule.ofOverflow()
	s := &b.overflow.state
	if s.rule == nil {
		s.fill(rule, at)
	}
	b.setRule(s, &b.overflow.scratch, rule, at)
	d := s.take(&b.overflow.scratch, at)
	b.overflowUsed.Store(true)
	d.Overflow = true
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
