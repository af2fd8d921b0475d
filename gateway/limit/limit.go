// Package limit holds token buckets: one for each key of a rule, in this process's own memory.
//
// For any trace a key is admitted at most burst + rate*t times, whatever is evicted or reloaded meanwhile: a bucket is
// forgotten only when it is full again, and where none is and the table is at its cap, new keys share one bucket of the
// same law. The buckets themselves are golang.org/x/time/rate.
package limit

import (
	"hash/maphash"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Law is what a rule says: Rate tokens a second into a bucket of Burst tokens. Make one with NewLaw; buckets compare
// laws by pointer and take a new one on their next touch, keeping their tokens.
type Law struct {
	Rate    float64
	Burst   int
	MaxKeys int

	since  time.Time
	policy string
}

// NewLaw makes a law that is in force from since on. A bucket must fill within MaxFill.
func NewLaw(name string, ratePerSecond float64, burst, maxKeys int, since time.Time) *Law {
	l := &Law{Rate: ratePerSecond, Burst: burst, MaxKeys: maxKeys, since: since}
	l.policy = `"` + name + `";q=` + strconv.Itoa(burst) + `;w=` + strconv.Itoa(wholeSeconds(float64(burst)/ratePerSecond))
	return l
}

// Policy is the RateLimit-Policy field of the law (draft-ietf-httpapi-ratelimit-headers): its quota is the burst, its
// window the time in which an empty bucket fills.
func (l *Law) Policy() string { return l.policy }

// MaxFill is the longest time in which an empty bucket may fill.
const MaxFill = 30 * 24 * time.Hour

// Decision is what a bucket said.
type Decision struct {
	OK bool
	// Wait is the time until a token is there, after a refusal or for the next request; 0 if one is there now.
	Wait time.Duration
	// Remaining is how many tokens are left.
	Remaining int
	// Shared says that the key had to use the bucket that all keys beyond the cap share.
	Shared bool
	// Crowded says that a token would have come in time, but that too many wait for theirs.
	Crowded bool
}

// Seconds is Wait in whole seconds, rounded up: whoever waits that long is admitted.
func (d Decision) Seconds() int { return wholeSeconds(d.Wait.Seconds()) }

func wholeSeconds(s float64) int { return int(math.Ceil(min(s, 1<<31))) }

const shards = 256

// Buckets is a table of buckets. It is safe for concurrent use. Keys are kept as they are given: a string must not
// belong to a request's buffer.
type Buckets[K comparable] struct {
	seed   maphash.Seed
	size   atomic.Int64
	hand   atomic.Uint32 // the shard from which the next key without room tries to evict
	shards [shards]shard[K]
	shared sharedBucket

	evictions, overflow prometheus.Counter
}

// shard is one part of the table. mu guards the rest. Its buckets stand in a ring in the order of their last touch.
type shard[K comparable] struct {
	mu      sync.Mutex
	buckets map[K]*bucket[K]
	oldest  bucket[K] // the ring's head: next is the least, prev the most recently touched
	last    time.Time // the latest time seen: time never goes back inside a shard
	_       [32]byte
}

type bucket[K comparable] struct {
	tokens     rate.Limiter // by value: it is most of what a key costs
	law        *Law
	touched    time.Time
	next, prev *bucket[K]
	key        K
}

// sharedBucket is where keys go that found no room. mu guards the rest.
type sharedBucket struct {
	mu     sync.Mutex
	bucket bucket[struct{}]
}

// New makes an empty table. Its metrics carry the rule's name as a label.
func New[K comparable](rule string, reg prometheus.Registerer) *Buckets[K] {
	b := &Buckets[K]{seed: maphash.MakeSeed()}
	for i := range b.shards {
		s := &b.shards[i]
		s.buckets = map[K]*bucket[K]{}
		s.oldest.next, s.oldest.prev = &s.oldest, &s.oldest
	}
	label := prometheus.Labels{"rule": rule}
	b.evictions = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_limit_evictions_total", Help: "Buckets that were full again and forgotten.", ConstLabels: label})
	b.overflow = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_limit_overflow_total", Help: "Requests of keys that found the table full and drew on the shared bucket.", ConstLabels: label})
	reg.MustRegister(b.evictions, b.overflow, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gateway_limit_buckets", Help: "Buckets in memory.", ConstLabels: label,
	}, func() float64 { return float64(b.size.Load()) }))
	return b
}

// Len is the number of buckets in memory.
func (b *Buckets[K]) Len() int { return int(b.size.Load()) }

// Take takes one token of key's bucket under the law. now is the request's one reading of the monotonic clock.
func (b *Buckets[K]) Take(key K, law *Law, now time.Time) Decision {
	s := &b.shards[maphash.Comparable(b.seed, key)%shards]
	s.mu.Lock()
	now = s.monotone(now)
	k := s.buckets[key]
	if k == nil {
		if k = b.insert(s, key, law, now); k == nil {
			s.mu.Unlock()
			return b.takeShared(law, now)
		}
	}
	k.unlink()
	s.oldest.pushBack(k)
	d := k.take(law, now)
	s.mu.Unlock()
	return d
}

// monotone keeps a request that read its clock before another one, but came later, from turning time back: to a bucket
// that would be time to earn twice.
func (s *shard[K]) monotone(now time.Time) time.Time {
	if now.Before(s.last) {
		return s.last
	}
	s.last = now
	return now
}

// insert makes room for key and its bucket, or returns nil where there is none. The caller holds s.mu.
func (b *Buckets[K]) insert(s *shard[K], key K, law *Law, now time.Time) *bucket[K] {
	// Two out for one in, where two are full again: so the table follows the keys that are in use.
	b.evict(s, 2, law, now)
	for range 4 {
		if b.size.Load() < int64(law.MaxKeys) {
			break
		}
		other := &b.shards[b.hand.Add(1)%shards]
		if other == s || !other.mu.TryLock() { // never waits for a second lock
			continue
		}
		b.evict(other, 2, law, other.monotone(now))
		other.mu.Unlock()
	}
	if b.size.Add(1) > int64(law.MaxKeys) {
		b.size.Add(-1)
		return nil
	}
	k := &bucket[K]{key: key}
	k.fill(law, now)
	s.buckets[key] = k
	return k
}

// evict forgets up to n of the least recently touched buckets that are full. The caller holds s.mu.
func (b *Buckets[K]) evict(s *shard[K], n int, law *Law, now time.Time) {
	for range n {
		k := s.oldest.next
		if k == &s.oldest {
			return
		}
		k.follow(law, now)
		if k.tokens.TokensAt(now) < float64(law.Burst) {
			return
		}
		k.unlink()
		delete(s.buckets, k.key)
		b.size.Add(-1)
		b.evictions.Inc()
	}
}

func (b *Buckets[K]) takeShared(law *Law, now time.Time) Decision {
	b.overflow.Inc()
	b.shared.mu.Lock()
	defer b.shared.mu.Unlock()
	k := &b.shared.bucket
	if k.law == nil {
		k.fill(law, now)
	}
	if now.Before(k.touched) {
		now = k.touched
	}
	d := k.take(law, now)
	d.Shared = true
	return d
}

// fill makes a new bucket a full one: as if it had been empty for longer than it takes to fill.
func (k *bucket[K]) fill(law *Law, now time.Time) {
	empty := now.Add(-time.Duration(float64(law.Burst)/law.Rate*float64(time.Second)) - time.Second)
	k.tokens.SetBurstAt(empty, law.Burst)
	k.tokens.SetLimitAt(empty, rate.Limit(law.Rate))
	k.law = law
}

// follow puts the bucket under the law: it earned by its old law until the new one came into force, and keeps its tokens
// up to the new burst.
func (k *bucket[K]) follow(law *Law, now time.Time) {
	if k.law == law {
		return
	}
	at := law.since
	if at.Before(k.touched) {
		at = k.touched
	}
	if at.After(now) {
		at = now
	}
	k.tokens.SetLimitAt(at, rate.Limit(law.Rate))
	k.tokens.SetBurstAt(at, law.Burst)
	k.law, k.touched = law, at
}

func (k *bucket[K]) take(law *Law, now time.Time) Decision {
	k.follow(law, now)
	k.touched = now
	ok := k.tokens.AllowN(now, 1)
	left := k.tokens.TokensAt(now)
	d := Decision{OK: ok}
	if left < 1 {
		d.Wait = time.Duration((1 - left) / law.Rate * float64(time.Second))
	}
	if ok {
		d.Remaining = max(0, int(left))
	}
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
