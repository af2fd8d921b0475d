package limit

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"
)

var start = time.Now()

func at(d time.Duration) time.Time { return start.Add(d) }

func table() *Buckets[string] { return New[string]("test", prometheus.NewRegistry()) }

// Row D2: one order in five seconds, decided in memory.
func TestOnePerFiveSeconds(t *testing.T) {
	b, law := table(), NewLaw("order", 0.2, 1, 10, start)
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
	b, law := table(), NewLaw("x", 1, 1, 10, start)
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
	b, law := table(), NewLaw("x", 1, 2, 3, start)
	for i := range 3 {
		b.Take(fmt.Sprint(i), law, at(0))
	}
	admitted := 0
	for i := 3; i < 100; i++ { // none of the three is full again: nothing may be evicted
		d := b.Take(fmt.Sprint(i), law, at(0))
		if !d.Shared {
			t.Fatalf("key %d: got a bucket of its own in a full table", i)
		}
		if d.OK {
			admitted++
		}
	}
	if admitted != 2 || b.Len() != 3 {
		t.Errorf("got %d admitted by the shared bucket and %d buckets, want 2 and 3", admitted, b.Len())
	}
	if d := b.Take("0", law, at(0)); !d.OK || d.Shared {
		t.Errorf("a key that has a bucket: got %+v", d)
	}
	for i := 100; i < 2000 && b.Take(fmt.Sprint(i), law, at(2*time.Second)).Shared; i++ {
	}
	if b.Len() > 3 {
		t.Errorf("got %d buckets, want at most 3", b.Len())
	}
	if d := b.Take("late", law, at(4*time.Second)); d.Shared && b.Len() == 3 {
		// Other shards' full buckets are found by a few tries a request.
		for i := 0; i < 1000 && d.Shared; i++ {
			d = b.Take(fmt.Sprint("late", i), law, at(4*time.Second+time.Duration(i)))
		}
		if d.Shared {
			t.Error("buckets that are full again were not evicted")
		}
	}
}

func TestReloadKeepsTokens(t *testing.T) {
	b := table()
	old := NewLaw("x", 0.001, 5, 100, start)
	for range 5 {
		b.Take("7", old, at(0))
	}
	for i := range 10 { // a reload gives no token back
		law := NewLaw("x", 0.001, 5, 100, at(time.Duration(i)*time.Millisecond))
		if b.Take("7", law, at(time.Duration(i)*time.Millisecond)).OK {
			t.Fatalf("reload %d: a token out of nothing", i)
		}
	}
	bigger := NewLaw("x", 1, 10, 100, at(time.Second))
	if b.Take("7", bigger, at(time.Second)).OK {
		t.Error("a bigger burst filled the bucket")
	}
	// It earns by the new law only from the reload on, though it is touched later.
	faster := NewLaw("x", 100, 10, 100, at(10*time.Second))
	if d := b.Take("7", faster, at(10*time.Second+20*time.Millisecond)); !d.OK || d.Remaining != 9 {
		t.Errorf("got %+v, want 9 tokens left (9 s at 1/s, 20 ms at 100/s, one taken)", d)
	}
	smaller := NewLaw("x", 1, 2, 100, at(11*time.Second))
	if d := b.Take("7", smaller, at(11*time.Second)); d.Remaining != 1 {
		t.Errorf("got %+v, want one of the two tokens that a smaller bucket holds", d)
	}
}

// ledger is what a key may still take, kept outside of the code under test. A bucket that sleeps through several reloads
// may earn by any law that was in force meanwhile, and one that was full under one of them may have been evicted, which
// makes it a new one; nothing else is ever given.
type ledger struct {
	budget           float64
	touched          time.Time
	maxRate          float64
	maxBurst, minBur int
}

func (l *ledger) see(law *Law) {
	l.maxRate, l.maxBurst, l.minBur = max(l.maxRate, law.Rate), max(l.maxBurst, law.Burst), min(l.minBur, law.Burst)
}

func (l *ledger) touch(law *Law, now time.Time) {
	l.budget = min(l.budget+l.maxRate*now.Sub(l.touched).Seconds(), float64(l.maxBurst))
	if l.budget >= float64(l.minBur)-1e-6 {
		l.budget = max(l.budget, float64(law.Burst))
	}
	*l = ledger{l.budget, now, law.Rate, law.Burst, law.Burst}
}

// The law: a key is never admitted more than burst + rate*t times in any span, with evictions and reloads in the trace.
//
// Row D2: admitted <= burst + rate * t for each uid, whatever the trace.
func TestLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := table()
		maxKeys := rapid.IntRange(1, 6).Draw(t, "max_keys")
		draw := func(now time.Time) *Law {
			return NewLaw("x", rapid.SampledFrom([]float64{0.2, 1, 3, 50}).Draw(t, "rate"), rapid.IntRange(1, 5).Draw(t, "burst"), maxKeys, now)
		}
		now := start
		law := draw(now)
		own, shared := map[string]*ledger{}, (*ledger)(nil)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			if rapid.IntRange(0, 9).Draw(t, "reload") == 0 {
				law = draw(now)
				for _, l := range own {
					l.see(law)
				}
				if shared != nil {
					shared.see(law)
				}
				continue
			}
			key := fmt.Sprint(rapid.IntRange(0, 12).Draw(t, "key"))
			d := b.Take(key, law, now)
			l := own[key]
			if d.Shared {
				l = shared
			}
			if l == nil {
				l = &ledger{float64(law.Burst), now, law.Rate, law.Burst, law.Burst}
				if own[key] = l; d.Shared {
					delete(own, key)
					shared = l
				}
			}
			l.touch(law, now)
			if d.OK {
				if l.budget--; l.budget < -1e-6 {
					t.Fatalf("key %s (shared: %v) admitted beyond its law: %v tokens short", key, d.Shared, -l.budget)
				}
			}
			if b.Len() > maxKeys {
				t.Fatalf("%d buckets, at most %d allowed", b.Len(), maxKeys)
			}
		}
	})
}

func TestWaitingAsToldIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := table()
		law := NewLaw("x", rapid.Float64Range(0.01, 1000).Draw(t, "rate"), rapid.IntRange(1, 20).Draw(t, "burst"), 10, start)
		now := start
		for range 50 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "ns")))
			if d := b.Take("7", law, now); !d.OK {
				now = now.Add(time.Duration(d.Seconds()) * time.Second)
				if d := b.Take("7", law, now); !d.OK {
					t.Fatalf("refused after waiting as told: %+v", d)
				}
			}
		}
	})
}

func TestConcurrentTakesKeepTheLaw(t *testing.T) {
	b, law := table(), NewLaw("x", 0.001, 7, 50, start)
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
	t, law := table(), NewLaw("x", 1, 5, 1_000_000, start)
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprint("user-", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t.Take(keys[i%1024], law, time.Now())
	}
}

// What a key costs, and that ten times as many keys, one after the other, cost no more.
func TestMemoryIsBounded(t *testing.T) {
	const n = 20_000
	b, law := table(), NewLaw("x", 1, 1, n, start)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	now := start
	next := func(round int) {
		for i := range n {
			now = now.Add(50 * time.Microsecond) // a round takes a second: then its buckets are full again
			b.Take(fmt.Sprintf("u%07d", round*n+i), law, now)
		}
	}
	next(0)
	full := heap()
	each := (full - before) / uint64(b.Len())
	if b.Len() < n*9/10 || each > 256 {
		t.Errorf("got %d bytes a key, %d keys", each, b.Len())
	}
	for round := 1; round <= 10; round++ {
		next(round)
	}
	if after := heap(); b.Len() > n || after-before > (full-before)*12/10 {
		t.Errorf("got %d bytes after a rotation, %d before, %d keys", after-before, full-before, b.Len())
	}
	t.Logf("%d bytes a key", each)
	runtime.KeepAlive(b)
}
