package limit

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/time/rate"
	"pgregory.net/rapid"
)

var start = time.Now()

func at(d time.Duration) time.Time { return start.Add(d) }

// one is a rule of one law.
func one(name string, rate float64, burst, maxKeys int, since time.Time) *Rule {
	return NewRule(name, maxKeys, since, Law{Rate: rate, Burst: burst})
}

func table() *Buckets[string] { return New[string]("test", prometheus.NewRegistry()) }

// Row D2: one order in five seconds, decided in memory.
func TestOnePerFiveSeconds(t *testing.T) {
	t.Attr("row", "D2")
	b, law := table(), one("order", 0.2, 1, 10, start)
	for _, c := range []struct {
		at   time.Duration
		ok   bool
		secs int
	}{
		{0, true, 5}, {0, false, 5}, {time.Second, false, 4}, {1500 * time.Millisecond, false, 4}, {4999 * time.Millisecond, false, 1},
		{5 * time.Second, true, 5}, {5 * time.Second, false, 5},
	} {
		if d := b.Take("7", law, at(c.at)); d.OK != c.ok || d.Seconds() != c.secs {
			t.Errorf("at %v: got %v, %d s; want %v, %d s", c.at, d.OK, d.Seconds(), c.ok, c.secs)
		}
	}
	if got := law.Policy(); got != `"order";q=1;w=5` {
		t.Errorf("got policy %s", got)
	}
}

func TestTimeNeverGoesBack(t *testing.T) {
	b, law := table(), one("x", 1, 1, 10, start)
	admitted := 0
	for range 100 { // two requests whose clocks were read in the other order than they came
		for _, d := range []time.Duration{time.Second, 0} {
			if b.Take("7", law, at(d)).OK {
				admitted++
			}
		}
	}
	if admitted != 1 {
		t.Errorf("got %d admitted in no time, want 1", admitted)
	}
}

func TestFullTableSharesOneBucket(t *testing.T) {
	b, law := table(), one("x", 1, 2, 3, start)
	for i := range 3 {
		b.Take(fmt.Sprint(i), law, at(0))
	}
	admitted := 0
	for i := 3; i < 100; i++ { // none of the three is full again: nothing may be evicted
		d := b.Take(fmt.Sprint(i), law, at(0))
		if !d.Overflow {
			t.Fatalf("key %d: got a bucket of its own in a full table", i)
		}
		if d.OK {
			admitted++
		}
	}
	if admitted != 2 || b.Len() != 3 {
		t.Errorf("got %d admitted by the shared bucket and %d buckets, want 2 and 3", admitted, b.Len())
	}
	if d := b.Take("0", law, at(0)); !d.OK || d.Overflow {
		t.Errorf("a key that has a bucket: got %+v", d)
	}
	for i := 100; i < 2000 && b.Take(fmt.Sprint(i), law, at(2*time.Second)).Overflow; i++ {
	}
	if b.Len() > 3 {
		t.Errorf("got %d buckets, want at most 3", b.Len())
	}
	if d := b.Take("late", law, at(4*time.Second)); d.Overflow && b.Len() == 3 {
		// Other shards' full buckets are found by a few tries a request.
		for i := 0; i < 1000 && d.Overflow; i++ {
			d = b.Take(fmt.Sprint("late", i), law, at(4*time.Second+time.Duration(i)))
		}
		if d.Overflow {
			t.Error("buckets that are full again were not evicted")
		}
	}
}

// Who drew on the shared buckets, and then finds room, has no more tokens than are left in those.
func TestRoomIsNoRefill(t *testing.T) {
	b, law := table(), one("x", 1, 2, 1, start)
	first, other := "0", 1
	for b.hash(fmt.Sprint(other))%shards != b.hash(first)%shards { // where room is made for it
		other++
	}
	key := fmt.Sprint(other)
	b.Take(first, law, at(0))
	for range 2 {
		if d := b.Take(key, law, at(0)); !d.OK || !d.Overflow {
			t.Fatalf("in a full table: got %+v", d)
		}
	}
	if d := b.Take(key, law, at(time.Second)); !d.OK || d.Overflow { // the first one's buckets are full again
		t.Fatalf("with room: got %+v", d)
	}
	if d := b.Take(key, law, at(time.Second)); d.OK {
		t.Error("a fourth token in a second, of a burst of 2 and 1 a second")
	}
}

func TestReloadKeepsTokens(t *testing.T) {
	b := table()
	old := one("x", 0.001, 5, 100, start)
	for range 5 {
		b.Take("7", old, at(0))
	}
	for i := range 10 { // a reload gives no token back
		law := one("x", 0.001, 5, 100, at(time.Duration(i)*time.Millisecond))
		if b.Take("7", law, at(time.Duration(i)*time.Millisecond)).OK {
			t.Fatalf("reload %d: a token out of nothing", i)
		}
	}
	bigger := one("x", 1, 10, 100, at(time.Second))
	if b.Take("7", bigger, at(time.Second)).OK {
		t.Error("a bigger burst filled the bucket")
	}
	// It earns by the new law only from the reload on, though it is touched later.
	faster := one("x", 100, 10, 100, at(10*time.Second))
	if d := b.Take("7", faster, at(10*time.Second+20*time.Millisecond)); !d.OK || d.Remaining != 9 {
		t.Errorf("got %+v, want 9 tokens left (9 s at 1/s, 20 ms at 100/s, one taken)", d)
	}
	smaller := one("x", 1, 2, 100, at(11*time.Second))
	if d := b.Take("7", smaller, at(11*time.Second)); d.Remaining != 1 {
		t.Errorf("got %+v, want one of the two tokens that a smaller bucket holds", d)
	}
}

// Row D2: several laws hold at once, and a request that one of them refuses takes no token of another.
func TestSeveralLawsAllOrNone(t *testing.T) {
	t.Attr("row", "D2")
	b, rule := table(), NewRule("order", 10, start, Law{Rate: 0.2, Burst: 1}, Law{Rate: 0.01, Burst: 3})
	for i, c := range []struct {
		at   time.Duration
		ok   bool
		law  int
		secs int
	}{
		{0, true, 0, 5}, {time.Second, false, 0, 4}, // refused by the first: two of the second's are left
		{5 * time.Second, true, 0, 5}, {10 * time.Second, true, 1, 90}, // the second is empty: 0.1 came in 10 s
		{15 * time.Second, false, 1, 85}, // of the first's one is there, and stays
		{100 * time.Second, true, 1, 100}, {105 * time.Second, false, 1, 95},
	} {
		d := b.Take("7", rule, at(c.at))
		if d.OK != c.ok || d.Law != c.law || d.Seconds() != c.secs {
			t.Errorf("step %d at %v: got %+v, %d s; want %v, law %d, %d s", i, c.at, d, d.Seconds(), c.ok, c.law, c.secs)
		}
	}
	if got := rule.Policy(); got != `"order";q=1;w=5, "order-2";q=3;w=300` {
		t.Errorf("got policy %s", got)
	}
	if got := string(rule.AppendExhausted(nil, 1, 85)); got != `"order-2";r=0;t=85` {
		t.Errorf("got %s", got)
	}
}

// A law in shadow counts what it would have refused and refuses nothing; when it is enforced its buckets are as full as they
// would be if it had been all along.
func TestShadow(t *testing.T) {
	b := table()
	strict, wide := Law{Rate: 0.1, Burst: 1}, Law{Rate: 100, Burst: 100}
	shadow := strict
	shadow.Shadow = true
	rule := NewRule("x", 10, start, wide, shadow)
	for i := range 5 {
		if d := b.Take("7", rule, at(time.Duration(i)*time.Second)); !d.OK || d.Shadow != (i > 0) || d.Wait != 0 {
			t.Errorf("request %d: got %+v", i, d)
		}
	}
	if rule.Policy() != `"x";q=100;w=1` {
		t.Errorf("got policy %s, want nothing of what is in shadow", rule.Policy())
	}
	if got := testutil.ToFloat64(b.shadow); got != 4 {
		t.Errorf("got %v shadow refusals counted, want 4", got)
	}
	rule = NewRule("x", 10, at(9*time.Second), wide, strict)
	if d := b.Take("7", rule, at(9*time.Second)); d.OK || d.Law != 1 || d.Seconds() != 1 {
		t.Errorf("enforced: got %+v, want it refused for one more second", d)
	}
	if d := b.Take("7", rule, at(10*time.Second)); !d.OK {
		t.Errorf("enforced: got %+v, want the token of 10 s", d)
	}
	rule = NewRule("x", 10, at(11*time.Second), strict, shadow) // what is refused anyway counts for no shadow
	if d := b.Take("8", rule, at(11*time.Second)); !d.OK || d.Shadow {
		t.Errorf("got %+v", d)
	}
	if d := b.Take("8", rule, at(12*time.Second)); d.OK || d.Shadow {
		t.Errorf("got %+v, want a refusal", d)
	}
	if got := testutil.ToFloat64(b.shadow); got != 4 {
		t.Errorf("got %v shadow refusals counted, want 4", got)
	}
	// Of two in shadow, what one would refuse takes no token of the other.
	slow := Law{Rate: 0.001, Burst: 3, Shadow: true}
	rule = NewRule("x", 10, at(20*time.Second), wide, shadow, slow)
	for i, want := range []bool{false, true, false, true, false, true} {
		if d := b.Take("9", rule, at(20*time.Second+time.Duration(i)*5*time.Second)); !d.OK || d.Shadow != want {
			t.Errorf("request %d: got %+v, want shadow %v", i, d, want)
		}
	}
	slow.Shadow = false
	if d := b.Take("9", NewRule("x", 10, at(50*time.Second), wide, shadow, slow), at(50*time.Second)); d.OK || d.Law != 2 {
		t.Errorf("got %+v, want it refused: all three were taken", d)
	}
}

// A request that read the configuration before a reload and comes after one that read it later changes no law back.
func TestALateRequestBringsNoOldRuleBack(t *testing.T) {
	b := table()
	old, now := one("x", 100, 10, 10, start), one("x", 0.1, 1, 10, at(time.Second))
	b.Take("7", now, at(time.Second))
	for i := range 100 {
		if d := b.Take("7", old, at(time.Second+time.Duration(i)*10*time.Millisecond)); d.OK || d.Rule != now {
			t.Fatalf("request %d: got %+v, want it refused by the new rule", i, d)
		}
	}
}

// ledger is what a key may still take by the law at one place, kept outside of the code under test. A bucket that sleeps through
// several reloads may earn by any law that was in force meanwhile, and one that was full under one of them may have been
// evicted, which makes it a new one, as a law does that comes where there was none; nothing else is ever given.
type ledger struct {
	budget           float64
	touched          time.Time
	maxRate          float64
	maxBurst, minBur int
	missing          bool // at some time since
}

func (l *ledger) see(rule *Rule, place int) {
	if place >= len(rule.laws) {
		l.missing = true
		return
	}
	law := rule.laws[place]
	l.maxRate, l.maxBurst, l.minBur = max(l.maxRate, law.Rate), max(l.maxBurst, law.Burst), min(l.minBur, law.Burst)
}

func (l *ledger) touch(rule *Rule, place int, now time.Time) {
	if place >= len(rule.laws) {
		return
	}
	law := rule.laws[place]
	l.budget = min(l.budget+l.maxRate*now.Sub(l.touched).Seconds(), float64(l.maxBurst))
	if l.missing || l.budget >= float64(l.minBur)-1e-6 {
		l.budget = max(l.budget, float64(law.Burst))
	}
	*l = ledger{l.budget, now, law.Rate, law.Burst, law.Burst, false}
}

type ledgers [MaxLaws]ledger

func newLedgers(now time.Time) *ledgers {
	l := &ledgers{}
	for i := range l {
		l[i].touched, l[i].missing = now, true
	}
	return l
}

// take notes what was decided, and says where it was too much.
func (l *ledgers) take(rule *Rule, d Decision, now time.Time) (law int, short bool) {
	for i := range l {
		l[i].touch(rule, i, now)
	}
	for i, law := range rule.laws {
		if d.OK && (!law.Shadow || !d.Shadow) {
			if l[i].budget--; l[i].budget < -1e-6 {
				return i, true
			}
		}
	}
	return 0, false
}

// together is n keys of two of the table's shards, so that they evict each other.
func together(b *Buckets[string], n int) []string {
	var keys []string
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint(i); b.hash(key)%shards < 2 {
			keys = append(keys, key)
		}
	}
	return keys
}

// The law: a key is never admitted more than burst + rate*t times in any span, with evictions and reloads in the trace, by any
// of its rule's laws; with laws that come, go, and step out of the shadow.
//
// Row D2: admitted <= burst + rate * t for each uid, whatever the trace.
func TestLaw(t *testing.T) {
	t.Attr("row", "D2")
	admitted, refused, overflow, reloads, evictions := 0, 0, 0, 0, 0.
	rapid.Check(t, func(t *rapid.T) {
		b := table()
		maxKeys := rapid.IntRange(1, 6).Draw(t, "max_keys")
		draw := func(now time.Time) *Rule {
			var laws []Law
			for range rapid.IntRange(1, MaxLaws).Draw(t, "laws") {
				laws = append(laws, Law{
					Rate: rapid.SampledFrom([]float64{0.2, 1, 3, 50}).Draw(t, "rate"), Burst: rapid.IntRange(1, 5).Draw(t, "burst"),
					Shadow: rapid.IntRange(0, 4).Draw(t, "shadow") == 0,
				})
			}
			return NewRule("x", maxKeys, now, laws...)
		}
		now := start
		rule := draw(now)
		own, shared := map[string]*ledgers{}, (*ledgers)(nil)
		keys := together(b, 13)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			if rapid.IntRange(0, 9).Draw(t, "reload") == 0 {
				rule = draw(now)
				reloads++
				for _, l := range append(slices.Collect(maps.Values(own)), shared) {
					for i := range MaxLaws {
						if l != nil {
							l[i].see(rule, i)
						}
					}
				}
				continue
			}
			key := keys[rapid.IntRange(0, len(keys)-1).Draw(t, "key")]
			d := b.Take(key, rule, now)
			if own[key] == nil {
				own[key] = newLedgers(now)
			}
			if law, short := own[key].take(rule, d, now); short {
				t.Fatalf("key %s (shared: %v) admitted beyond law %d, %+v: %v tokens short", key, d.Overflow, law, rule.laws[law], -own[key][law].budget)
			}
			if d.Overflow {
				overflow++
				if shared == nil {
					shared = newLedgers(now)
				}
				if law, short := shared.take(rule, d, now); short {
					t.Fatalf("keys without room admitted beyond law %d, %+v: %v tokens short", law, rule.laws[law], -shared[law].budget)
				}
			}
			if d.OK {
				admitted++
			} else {
				refused++
			}
			if b.Len() > maxKeys {
				t.Fatalf("%d buckets, at most %d allowed", b.Len(), maxKeys)
			}
		}
		evictions += testutil.ToFloat64(b.evictions)
	})
	t.Logf("%d admitted, %d refused, %d by shared buckets, %v evictions, %d reloads", admitted, refused, overflow, evictions, reloads)
	if admitted == 0 || refused == 0 || overflow == 0 || reloads == 0 || evictions == 0 {
		t.Error("the traces do not show what they should")
	}
}

// What is kept of a bucket is all of it: the table decides as rate.Limiters do that are kept whole, to the last nanosecond.
func TestDecidesAsWholeLimitersDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := table()
		var laws []Law
		var whole []*rate.Limiter
		for range rapid.IntRange(1, MaxLaws).Draw(t, "laws") {
			law := Law{Rate: rapid.Float64Range(1e-4, 1e6).Draw(t, "rate"), Burst: rapid.IntRange(1, 100).Draw(t, "burst")}
			laws = append(laws, law)
			whole = append(whole, rate.NewLimiter(rate.Limit(law.Rate), law.Burst))
		}
		rule := NewRule("x", 10, start, laws...)
		now := start
		for range 200 {
			d := b.Take("7", rule, now)
			ok := true
			for i, l := range whole { // AllowN refuses what would have to wait for a nanosecond
				wait := (1 - l.TokensAt(now)) / laws[i].Rate * float64(time.Second)
				if wait > 0.999 && wait < 1.001 {
					return // rounding decides
				}
				ok = ok && wait < 1
			}
			for _, l := range whole {
				if ok && !l.AllowN(now, 1) {
					t.Fatal("the oracle contradicts itself")
				}
			}
			if d.OK != ok {
				t.Fatalf("got %+v, %d whole limiters say %v", d, len(whole), ok)
			}
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				now = now.Add(d.Wait) // to the nanosecond
			case 1:
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "ns")))
			}
		}
	})
}

func TestWaitingAsToldIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := table()
		var laws []Law
		for range rapid.IntRange(1, MaxLaws).Draw(t, "laws") {
			laws = append(laws, Law{Rate: rapid.Float64Range(0.01, 1000).Draw(t, "rate"), Burst: rapid.IntRange(1, 20).Draw(t, "burst")})
		}
		law := NewRule("x", 10, start, laws...)
		now := start
		for range 50 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "ns")))
			if d := b.Take("7", law, now); !d.OK || rapid.Bool().Draw(t, "after an admission, too") {
				wait := time.Duration(d.Seconds()) * time.Second
				if rapid.Bool().Draw(t, "to the nanosecond") {
					wait = d.Wait + 1
				}
				now = now.Add(wait)
				if d := b.Take("7", law, now); !d.OK {
					t.Fatalf("refused after waiting as told: %+v", d)
				}
			}
		}
	})
}

func TestConcurrentTakesKeepTheLaw(t *testing.T) {
	b, law := table(), one("x", 0.001, 7, 50, start)
	var admitted [20]atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				if b.Take(fmt.Sprint(i%20), law, time.Now()).OK {
					admitted[i%20].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range admitted {
		if got := admitted[i].Load(); got != 7 {
			t.Errorf("key %d: got %d admitted, want the burst of 7", i, got)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprint("user-", i)
	}
	slow, fast := Law{Rate: 1, Burst: 5}, Law{Rate: 1e6, Burst: 1_000_000}
	for _, c := range []struct {
		name string
		laws []Law
	}{{"refused", []Law{slow}}, {"refused by two", []Law{fast, slow}}, {"admitted", []Law{fast}}, {"admitted by two", []Law{fast, fast}}} {
		b.Run(c.name, func(b *testing.B) {
			t, rule := table(), NewRule("x", 1_000_000, start, c.laws...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				t.Take(keys[i%1024], rule, time.Now())
			}
		})
	}
}

// rotate has n new keys each ask twice, one key after the other; it counts who was admitted twice, by a burst of 1.
func rotate(b *Buckets[string], rule *Rule, round, n int, now *time.Time) (beyond int) {
	for i := range n {
		*now = now.Add(time.Second / time.Duration(n)) // a round takes a second: then its buckets are full again
		uid := "u" + strconv.Itoa(10_000_000+round*n+i)
		first := b.Take(uid, rule, *now)
		second := b.Take(uid, rule, *now)
		if first.OK && second.OK {
			beyond++
		}
	}
	return beyond
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A key costs less than 140 bytes, its uid's included (BenchmarkMemory has a million). Ten times as many keys as there is room
// for, one after the other, cost no more, and none of them gets more than its law gives.
func TestMemoryIsBounded(t *testing.T) {
	const n = 50_000
	b, rule := table(), one("x", 1, 1, n, start)
	before, now := heap(), start
	for i := range n {
		b.Take("u"+strconv.Itoa(10_000_000+i), rule, start)
	}
	each := float64(heap()-before) / float64(b.Len())
	if b.Len() != n || each > 140 {
		t.Errorf("got %.0f bytes a key, %d keys", each, b.Len())
	}
	t.Logf("%.0f bytes a key at %d keys", each, b.Len())
	runtime.KeepAlive(b)

	const few = 2_000
	b, rule = table(), one("x", 1, 1, few, start)
	before = heap()
	beyond := rotate(b, rule, 0, few, &now)
	full := heap() - before
	for round := 1; round <= 10; round++ {
		beyond += rotate(b, rule, round, few, &now)
	}
	if after := heap() - before; b.Len() > few || after > full*11/10 || beyond > 0 {
		t.Errorf("got %d bytes after ten rotations, %d before, %d keys, %d beyond their law", after, full, b.Len(), beyond)
	}
	runtime.KeepAlive(b)
}

// BenchmarkMemory measures what a key costs at a million keys, and after ten rotations of all of them.
func BenchmarkMemory(bench *testing.B) {
	const n = 1_000_000
	for bench.Loop() {
		b, rule := table(), one("x", 1, 1, n, start)
		before, now := heap(), start
		beyond := rotate(b, rule, 0, n, &now)
		bench.ReportMetric(float64(heap()-before)/n, "B/key")
		for round := 1; round <= 10; round++ {
			beyond += rotate(b, rule, round, n, &now)
		}
		bench.ReportMetric(float64(heap()-before)/n, "B/key-rotated")
		bench.ReportMetric(float64(beyond), "beyond-law")
		runtime.KeepAlive(b)
	}
}
