package limit

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"
)

func shared() *Global { return NewGlobal("test", prometheus.NewRegistry()) }

// waits is a shared bucket and those who wait for its tokens, in a time that the test makes.
type waits struct {
	*Global
	until []time.Time // each one's token
}

// leave lets those go who waited until now.
func (w *waits) leave(now time.Time) {
	for len(w.until) > 0 && !w.until[0].After(now) { // they come in order
		w.until = w.until[1:]
		w.waiting--
	}
}

// take is Take without the sleep: it returns when the token is there.
func (w *waits) take(law *Rule, p WaitBounds, now time.Time) (Decision, time.Time) {
	w.leave(now)
	d, delay, _ := w.reserve(law, p, now, true)
	if delay > 0 {
		w.until = append(w.until, now.Add(delay))
	}
	return d, now.Add(delay)
}

// Row D10: a token may be waited for; one that comes too late is refused at once.
func TestAWaitForATokenIsBounded(t *testing.T) {
	t.Attr("row", "D10")
	w, law := &waits{Global: shared()}, one("global", 10, 2, 1, start) // a token each 100 ms
	p := WaitBounds{MaxWait: 250 * time.Millisecond, MaxWaiting: 10}
	for i, c := range []struct {
		at, delay, wait time.Duration
	}{
		{0, 0, 0}, {0, 0, 0}, {0, 100 * time.Millisecond, 0}, {0, 200 * time.Millisecond, 0}, // the burst, and two promises
		{0, 0, 300 * time.Millisecond}, {0, 0, 300 * time.Millisecond}, // a refusal takes nothing
		{50 * time.Millisecond, 250 * time.Millisecond, 0},
		{50 * time.Millisecond, 0, 350 * time.Millisecond},
		{400 * time.Millisecond, 0, 0}, // just there: those before had theirs at 300
		{400 * time.Millisecond, 100 * time.Millisecond, 0},
	} {
		d, ready := w.take(law, p, at(c.at))
		if delay := ready.Sub(at(c.at)); d.OK != (c.wait == 0) || d.TooManyWaiting || (delay-c.delay).Abs() > time.Microsecond || !d.OK && (d.Wait-c.wait).Abs() > time.Microsecond {
			t.Errorf("step %d at %v: got %+v after %v; want a token after %v, or a refusal for %v", i, c.at, d, delay, c.delay, c.wait)
		}
	}
}

// Row D10: however requests come, and wait, no more are admitted in any span of time than burst + rate*t; no more wait than
// may; nobody waits longer than they may; and Wait says before each what it will be told.
func TestLawOfTheSharedBucket(t *testing.T) {
	t.Attr("row", "D10")
	rapid.Check(t, func(t *rapid.T) {
		w := &waits{Global: shared()}
		law := one("x", rapid.SampledFrom([]float64{0.5, 3, 50, 1000}).Draw(t, "rate"), rapid.IntRange(1, 5).Draw(t, "burst"), 1, start)
		p := WaitBounds{time.Duration(rapid.IntRange(0, 3000).Draw(t, "wait")) * time.Millisecond, rapid.IntRange(0, 5).Draw(t, "places")}
		now, latest := start, time.Time{} // clocks are read out of order, too: the latest counts
		var admitted []time.Time
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-5, 300).Draw(t, "ms")) * time.Millisecond)
			if now.After(latest) {
				latest = now
			}
			w.leave(now)
			told := w.Wait(law, p, now)
			d, ready := w.take(law, p, now)
			if d.OK != (told == 0) || !d.OK && d.Wait != told || d.OK && d.Wait != w.Wait(law, p, now) {
				t.Fatalf("Wait said %v before, and %v after %+v", told, w.Wait(law, p, now), d)
			}
			if !d.OK {
				continue
			}
			if len(w.until) > p.MaxWaiting || ready.Sub(now) > p.MaxWait {
				t.Fatalf("%d wait, at most %d may; one waits %v, at most %v", len(w.until), p.MaxWaiting, ready.Sub(now), p.MaxWait)
			}
			admitted = append(admitted, latest.Add(ready.Sub(now)))
		}
		for i := range admitted {
			for j := i; j < len(admitted); j++ {
				span := admitted[j].Sub(admitted[i])
				if most := float64(law.laws[0].Burst) + law.laws[0].Rate*span.Seconds(); float64(j-i+1) > most+1e-6 {
					t.Fatalf("%d admitted in %v, at most %v", j-i+1, span, most)
				}
			}
		}
	})
}

// Row D10: who waits exactly as long as told is admitted, and at once, where nobody else comes.
func TestWaitingAsTheSharedBucketToldIsEnough(t *testing.T) {
	t.Attr("row", "D10")
	rapid.Check(t, func(t *rapid.T) {
		w := &waits{Global: shared()}
		law := one("x", rapid.Float64Range(0.01, 1000).Draw(t, "rate"), rapid.IntRange(1, 20).Draw(t, "burst"), 1, start)
		p := WaitBounds{time.Duration(rapid.IntRange(0, 2000).Draw(t, "wait")) * time.Millisecond, rapid.IntRange(0, 3).Draw(t, "places")}
		now := start
		for range 60 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(100*time.Millisecond)).Draw(t, "ns")))
			if d, _ := w.take(law, p, now); !d.OK {
				now = now.Add(time.Duration(d.Seconds()) * time.Second)
				if d, ready := w.take(law, p, now); !d.OK || ready.After(now) {
					t.Fatalf("after waiting as told: %+v, a token %v later", d, ready.Sub(now))
				}
			}
		}
	})
}

// Row D10: a reload gives no token back, and no promise; what is earned from then on is earned by the new law.
func TestReloadKeepsTheLevel(t *testing.T) {
	t.Attr("row", "D10")
	w, p := &waits{Global: shared()}, WaitBounds{MaxWait: 10 * time.Second, MaxWaiting: 10}
	old := one("x", 1, 3, 1, start)
	for range 5 { // two of them wait
		w.take(old, p, at(0))
	}
	for i := range 10 {
		law := one("x", 1, 3+i, 1, at(time.Duration(i)*time.Millisecond))
		if d, _ := w.take(law, WaitBounds{}, at(time.Duration(i)*time.Millisecond)); d.OK || (d.Wait-3*time.Second).Abs() > 20*time.Millisecond {
			t.Fatalf("reload %d: got %+v, want 3 s: two are promised", i, d)
		}
	}
	faster := one("x", 10, 100, 1, at(time.Second))
	if d, ready := w.take(faster, p, at(time.Second)); !d.OK || (ready.Sub(at(time.Second))-200*time.Millisecond).Abs() > time.Millisecond {
		t.Errorf("got %+v after %v, want a token after 200 ms: one is promised, and one more at 10 a second", d, ready.Sub(at(time.Second)))
	}
	smaller := one("x", 10, 1, 1, at(time.Minute))
	first, _ := w.take(smaller, WaitBounds{}, at(time.Minute))
	if second, _ := w.take(smaller, WaitBounds{}, at(time.Minute)); !first.OK || second.OK {
		t.Errorf("got %v and %v of a bucket that holds one", first, second)
	}
}

// Row D10: in shadow nobody waits and nobody is refused; who would have been is counted, and the bucket is as full, or as
// deep in promises, as if they had been.
func TestTheSharedBucketInShadow(t *testing.T) {
	t.Attr("row", "D10")
	synctest.Test(t, func(t *testing.T) {
		s, p := shared(), WaitBounds{MaxWait: 2500 * time.Millisecond, MaxWaiting: 2}
		law := Law{Rate: 1, Burst: 2, Shadow: true}
		rule, begun := NewRule("x", 1, time.Now(), law), time.Now()
		for i := range 7 { // two tokens, two promises, and three too many
			if d := s.Take(rule, p, time.Now()); !d.OK || d.Shadow != (i >= 4) || d.TooManyWaiting {
				t.Errorf("request %d: got %+v", i, d)
			}
		}
		if d := s.Take(rule, WaitBounds{MaxWait: 2500 * time.Millisecond, MaxWaiting: 100}, time.Now()); !d.OK || !d.Shadow { // it would come too late
			t.Errorf("got %+v", d)
		}
		if time.Since(begun) != 0 || testutil.ToFloat64(s.shadow) != 4 || testutil.ToFloat64(s.waited) != 0 || s.waiting != 0 {
			t.Errorf("after %v: %v counted, %v waited, %d wait", time.Since(begun), testutil.ToFloat64(s.shadow), testutil.ToFloat64(s.waited), s.waiting)
		}
		law.Shadow = false
		if d := s.Take(NewRule("x", 1, time.Now(), law), WaitBounds{}, time.Now()); d.OK || (d.Wait-3*time.Second).Abs() > time.Microsecond {
			t.Errorf("enforced: got %+v, want 3 s: two are promised", d)
		}
	})
}

// Row D10: those who wait go in the order in which they came, as many at once as may, and the next one is told at once.
func TestWaitersAreServedInTurn(t *testing.T) {
	t.Attr("row", "D10")
	synctest.Test(t, func(t *testing.T) {
		s, law := shared(), one("x", 10, 1, 1, time.Now())
		p := WaitBounds{MaxWait: time.Minute, MaxWaiting: 20}
		begun := time.Now()
		if d := s.Take(law, p, begun); !d.OK || time.Since(begun) != 0 {
			t.Fatalf("got %+v after %v", d, time.Since(begun))
		}
		var wg sync.WaitGroup
		var served atomic.Int64
		for i := range p.MaxWaiting {
			wg.Go(func() {
				d := s.Take(law, p, time.Now())
				took, want := time.Since(begun), time.Duration(i+1)*100*time.Millisecond
				if n := served.Add(1); !d.OK || n != int64(i+1) || (took-want).Abs() > time.Microsecond {
					t.Errorf("number %d: got %+v as number %d after %v, want it after %v", i+1, d, n, took, want)
				}
			})
			synctest.Wait()
		}
		if d := s.Take(law, p, time.Now()); d.OK || !d.TooManyWaiting || d.Wait < 2*time.Second || time.Since(begun) != 0 {
			t.Errorf("got %+v after %v, want it refused at once: too many wait", d, time.Since(begun))
		}
		if d := s.Take(law, WaitBounds{MaxWait: time.Second, MaxWaiting: 100}, time.Now()); d.OK || d.TooManyWaiting || time.Since(begun) != 0 {
			t.Errorf("got %+v after %v, want it refused at once: it would come too late", d, time.Since(begun))
		}
		wg.Wait()
		if d := s.Take(law, p, time.Now()); !d.OK { // there is room again
			t.Errorf("got %+v", d)
		}
		if waited, late, crowded := testutil.ToFloat64(s.waited), testutil.ToFloat64(s.late), testutil.ToFloat64(s.crowded); waited != 21 || late != 1 || crowded != 1 || s.waiting != 0 {
			t.Errorf("counted %v that waited, %v late, %v crowded, %d still wait", waited, late, crowded, s.waiting)
		}
	})
}

// Row D10: under threads the law holds as well.
func TestConcurrentTakesOfTheSharedBucket(t *testing.T) {
	t.Attr("row", "D10")
	s, law := shared(), one("x", 0.001, 70, 1, start)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if s.Take(law, WaitBounds{MaxWait: time.Millisecond, MaxWaiting: 5}, time.Now()).OK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != 70 {
		t.Errorf("got %d admitted, want the burst of 70", got)
	}
}

func BenchmarkTakeShared(b *testing.B) {
	s, law := shared(), one("x", 1e6, 1_000_000, 1, start)
	p := WaitBounds{MaxWait: time.Second, MaxWaiting: 1000}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Take(law, p, time.Now())
		}
	})
}
