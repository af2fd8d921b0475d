package admission

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLine(limits Limits) *Queue { return New(limits, prometheus.NewRegistry()) }

// units is a sale of which so many are left.
func units(n int64) func() (int64, bool) { return func() (int64, bool) { return n, true } }

func unknown() (int64, bool) { return 0, false }

// enter must be let in at once.
func enter(t *testing.T, l *Queue, sale int64) {
	t.Helper()
	if err := l.Enter(sale, unknown); err != nil {
		t.Fatal(err)
	}
}

// wait joins the queue of a sale, in a bubble; what comes of it is sent to the channel.
func wait(l *Queue, sale, left int64) <-chan error {
	c := make(chan error, 1)
	go func() { c <- l.Enter(sale, units(left)) }()
	synctest.Wait()
	return c
}

func pending(t *testing.T, c <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		t.Errorf("got %v from who should wait", err)
	default:
	}
}

// got is what came of an Enter, which must have ended in this instant.
func got(t *testing.T, c <-chan error, want error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		if !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("got %v, want %v", err, want)
		}
	default:
		t.Errorf("still waits; want %v", want)
	}
}

// Row D12: first come, first served, whichever sale it is for.
func TestTheLineIsServedInItsOrder(t *testing.T) {
	t.Attr("row", "D12")
	synctest.Test(t, func(t *testing.T) {
		l := newLine(Limits{Slots: 2, Waiting: 100, PerUnit: 1, Wait: time.Hour})
		enter(t, l, 1)
		enter(t, l, 1)
		var order []<-chan error
		for i := range 50 {
			order = append(order, wait(l, int64(1+i%3), 100))
		}
		for i, c := range order {
			pending(t, c)
			l.Leave()
			got(t, c, nil)
			if want := 49 - i; l.Waiting() != want {
				t.Fatalf("%d wait, want %d", l.Waiting(), want)
			}
		}
		l.Leave()
		l.Leave()
		if len(l.sales) != 0 {
			t.Errorf("%d sales are kept", len(l.sales))
		}
	})
}

// Rows D4 and D12: when the stock goes, everybody who waits for that sale is told at once, and nobody else.
func TestAllAreToldAtOnceThatItSoldOut(t *testing.T) {
	t.Attr("row", "D4 D12")
	synctest.Test(t, func(t *testing.T) {
		l := newLine(Limits{Slots: 1, Waiting: 1000, PerUnit: 1000, Wait: time.Hour})
		enter(t, l, 1)
		var line []<-chan error
		other := wait(l, 2, 1)
		for range 500 {
			line = append(line, wait(l, 1, 1))
		}
		l.SoldOut(3) // for which nobody waits
		pending(t, line[0])
		l.SoldOut(1)
		for _, c := range line {
			got(t, c, ErrSoldOut)
		}
		pending(t, other)
		got(t, wait(l, 1, 0), ErrSoldOut) // nor does anybody join
		got(t, wait(l, 1, -1), ErrSoldOut)
		back := wait(l, 1, 1) // until stock comes back
		pending(t, back)
		l.Leave()
		got(t, other, nil)
		l.Leave()
		got(t, back, nil)
		l.Leave()
		if n := testutil.ToFloat64(l.refused[ErrSoldOut]); n != 502 {
			t.Errorf("counted %v, want 502", n)
		}
	})
}

// Rows A9 and D12: who comes to a full queue is refused at once; a queue is not longer than what is left is worth.
func TestAFullLinePushesBack(t *testing.T) {
	t.Attr("row", "A9 D12")
	synctest.Test(t, func(t *testing.T) {
		l := newLine(Limits{Slots: 1, Waiting: 10, PerUnit: 3, Wait: time.Hour})
		enter(t, l, 1)
		var line []<-chan error
		for range 6 {
			line = append(line, wait(l, 1, 2))
		}
		got(t, wait(l, 1, 2), ErrLong) // six for two
		line = append(line, wait(l, 1, 3))
		got(t, wait(l, 1, 2), ErrLong)
		got(t, wait(l, 1, 0), ErrSoldOut) // true, and more than that the line is long
		for range 3 {
			c := make(chan error, 1)
			go func() { c <- l.Enter(2, unknown) }()
			synctest.Wait()
			line = append(line, c)
		}
		got(t, wait(l, 3, 1000), ErrFull) // ten of all sales
		for _, c := range line {
			l.Leave()
			got(t, c, nil)
		}
		l.Leave()
		if full, long := testutil.ToFloat64(l.refused[ErrFull]), testutil.ToFloat64(l.refused[ErrLong]); full != 1 || long != 2 {
			t.Errorf("counted %v and %v, want 1 and 2", full, long)
		}
		enter(t, l, 1) // with nobody before, nothing else counts
		l.Leave()
	})
}

// Row A9: who takes from an empty queue waits until somebody comes.
func TestSlotsWaitWhileTheLineIsEmpty(t *testing.T) {
	t.Attr("row", "A9")
	synctest.Test(t, func(t *testing.T) {
		l := newLine(Limits{Slots: 3, Waiting: 0, PerUnit: 1, Wait: time.Hour})
		for range 10 {
			for range 3 {
				enter(t, l, 1)
			}
			got(t, wait(l, 1, 1), ErrFull)
			for range 3 {
				l.Leave()
			}
			time.Sleep(time.Minute) // in which nobody comes
		}
	})
}

// Row D12: one that gives up leaves no hole, wherever it stood.
func TestWhoGivesUpLeavesNoHole(t *testing.T) {
	t.Attr("row", "D12")
	synctest.Test(t, func(t *testing.T) {
		l := newLine(Limits{Slots: 1, Waiting: 3, PerUnit: 10, Wait: time.Second})
		enter(t, l, 1)
		first := wait(l, 1, 1)
		time.Sleep(500 * time.Millisecond)
		second, third := wait(l, 1, 1), wait(l, 1, 1)
		got(t, wait(l, 1, 1), ErrFull)
		time.Sleep(500 * time.Millisecond)
		got(t, first, ErrLate)
		fourth := wait(l, 1, 1) // there is room again
		pending(t, fourth)
		l.Leave()
		got(t, second, nil)
		time.Sleep(500 * time.Millisecond)
		got(t, third, ErrLate)
		l.Leave()
		got(t, fourth, nil)
		l.Leave()
		enter(t, l, 1)
		l.Leave()
	})
}

func TestACloseSendsEverybodyAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(Limits{Slots: 1, Waiting: 3, PerUnit: 10, Wait: time.Hour})
		enter(t, l, 1)
		a, b := wait(l, 1, 1), wait(l, 2, 1)
		l.Close()
		got(t, a, ErrClosed)
		got(t, b, ErrClosed)
		got(t, wait(l, 1, 1), ErrClosed)
		l.Leave()
		if l.Waiting() != 0 || len(l.sales) != 0 {
			t.Errorf("%d wait, for %d sales", l.Waiting(), len(l.sales))
		}
	})
}

// standing is how many wait for a sale, and for all.
func (l *Queue) standing(sale int64) (waiting, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.sales[sale]; q != nil {
		waiting = q.waiting
	}
	return waiting, l.waiting
}

// Row D12: whatever happens, no bound is passed, nobody who is let in was overtaken by a later one, and nothing is left over.
func TestTheLawsOfTheLine(t *testing.T) {
	t.Attr("row", "D12")
	rapid.Check(t, func(rt *rapid.T) {
		limits := Limits{
			Slots: rapid.IntRange(1, 4).Draw(rt, "slots"), Waiting: rapid.IntRange(0, 8).Draw(rt, "waiting"),
			PerUnit: rapid.IntRange(1, 3).Draw(rt, "perUnit"), Wait: time.Duration(rapid.IntRange(1, 20).Draw(rt, "wait")) * time.Millisecond,
		}
		type arrival struct {
			sale    int64
			after   time.Duration // the one before it
			hold    time.Duration
			left    int64
			soldOut bool // SoldOut is called first
		}
		n := rapid.IntRange(1, 60).Draw(rt, "n")
		arrivals := make([]arrival, n)
		for i := range arrivals {
			arrivals[i] = arrival{
				sale:  rapid.Int64Range(1, 2).Draw(rt, "sale"),
				after: time.Duration(rapid.IntRange(0, 3).Draw(rt, "after")) * time.Millisecond,
				hold:  time.Duration(rapid.IntRange(0, 15).Draw(rt, "hold")) * time.Millisecond,
				left:  rapid.Int64Range(0, 4).Draw(rt, "left"), soldOut: rapid.IntRange(0, 9).Draw(rt, "soldOut") == 0,
			}
		}
		synctest.Test(t, func(*testing.T) {
			l := newLine(limits)
			inside, most := 0, 0
			let := map[int]time.Time{} // when who was let in
			var wg sync.WaitGroup
			var mu sync.Mutex // guards the three above
			for i, a := range arrivals {
				time.Sleep(a.after)
				synctest.Wait()
				if a.soldOut {
					l.SoldOut(a.sale)
					synctest.Wait()
				}
				waiting, all := l.standing(a.sale)
				mu.Lock()
				free := inside < limits.Slots
				mu.Unlock()
				wg.Go(func() {
					err := l.Enter(a.sale, units(a.left))
					mu.Lock()
					switch {
					case free && err != nil:
						rt.Errorf("refused with %v though %d of %d slots were taken", err, inside, limits.Slots)
					case !free && a.left <= 0 && err != ErrSoldOut:
						rt.Errorf("got %v where nothing is left", err)
					case !free && a.left > 0 && int64(waiting) >= a.left*int64(limits.PerUnit) && err != ErrLong:
						rt.Errorf("got %v with %d waiting for %d units", err, waiting, a.left)
					case !free && a.left > 0 && int64(waiting) < a.left*int64(limits.PerUnit) && all >= limits.Waiting && err != ErrFull:
						rt.Errorf("got %v with %d in all queues", err, all)
					}
					if err != nil {
						mu.Unlock()
						return
					}
					inside++
					most = max(most, inside)
					let[i] = time.Now()
					mu.Unlock()
					time.Sleep(a.hold)
					mu.Lock()
					inside--
					l.Leave()
					mu.Unlock()
				})
				synctest.Wait()
				if got := l.Waiting(); got > limits.Waiting {
					rt.Errorf("%d wait, at most %d may", got, limits.Waiting)
				}
			}
			wg.Wait()
			if most > limits.Slots {
				rt.Errorf("%d were inside, at most %d may be", most, limits.Slots)
			}
			var last time.Time
			for i := range arrivals {
				if at, ok := let[i]; ok {
					if at.Before(last) {
						rt.Errorf("number %d was let in %v before one that came earlier", i, last.Sub(at))
					}
					last = at
				}
			}
			if l.waiting != 0 || len(l.sales) != 0 || !l.slots.TryAcquire(int64(limits.Slots)) {
				rt.Errorf("left over: %d waiting, %d sales, or a slot that is still taken", l.waiting, len(l.sales))
			}
		})
	})
}

// Row D12: the bounds hold for real threads, too.
func TestTheBoundsUnderContention(t *testing.T) {
	t.Attr("row", "D12")
	const slots, waiting = 4, 16
	l := newLine(Limits{Slots: slots, Waiting: waiting, PerUnit: 5, Wait: time.Millisecond})
	var inside, most atomic.Int64
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 300 {
				sale := int64(r.IntN(3))
				if r.IntN(20) == 0 {
					l.SoldOut(sale)
				}
				if l.Enter(sale, units(int64(r.IntN(5)))) != nil {
					continue
				}
				n := inside.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				if got := l.Waiting(); got > waiting {
					t.Errorf("%d wait, at most %d may", got, waiting)
				}
				if r.IntN(4) == 0 {
					time.Sleep(time.Duration(r.IntN(500)) * time.Microsecond)
				}
				inside.Add(-1)
				l.Leave()
			}
		})
	}
	wg.Wait()
	if got := most.Load(); got > slots {
		t.Errorf("%d were inside, at most %d may be", got, slots)
	}
	if l.waiting != 0 || len(l.sales) != 0 || !l.slots.TryAcquire(slots) {
		t.Errorf("left over: %d waiting, %d sales, or a slot that is still taken", l.waiting, len(l.sales))
	}
}

// BenchmarkEnter is what the queue costs an order that nobody stands before.
func BenchmarkEnter(b *testing.B) {
	l := newLine(Limits{Slots: 1 << 20, Waiting: 1, PerUnit: 1, Wait: time.Second})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := l.Enter(1, unknown); err != nil {
				b.Error(err)
			}
			l.Leave()
		}
	})
}

// BenchmarkWait is what it costs one that has to wait.
func BenchmarkWait(b *testing.B) {
	l := newLine(Limits{Slots: 1, Waiting: 1 << 20, PerUnit: 1 << 20, Wait: time.Minute})
	b.ReportAllocs()
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := l.Enter(1, units(1)); err != nil {
				b.Error(err)
			}
			l.Leave()
		}
	})
}

// BenchmarkRefuse is what it costs one that is pushed back.
func BenchmarkRefuse(b *testing.B) {
	l := newLine(Limits{Slots: 1, Waiting: 0, PerUnit: 1, Wait: time.Minute})
	if err := l.Enter(1, unknown); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := l.Enter(1, units(1)); err != ErrFull {
				b.Error(err)
			}
		}
	})
}
