package salegate

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feeds is some backends' feeds, each a list of states to come, behind a network that can fail.
type feeds struct {
	mu    sync.Mutex // guards what follows
	count int
	down  map[int]bool
	next  []wire.Feed // answered in turn, whoever is asked; when there is none, polls wait
	skew  time.Duration
	asked []string
	by    []int
	woken chan struct{}
}

func (f *feeds) Backends() int { return f.count }

func (f *feeds) Feed(ctx context.Context, backend int, target string, _ time.Duration) ([]byte, error) {
	f.mu.Lock()
	f.asked, f.by = append(f.asked, target), append(f.by, backend)
	f.mu.Unlock()
	return f.answer(ctx, backend, target)
}

func (f *feeds) answer(ctx context.Context, backend int, target string) ([]byte, error) {
	f.mu.Lock()
	woken := f.woken
	if f.down[backend] {
		f.mu.Unlock()
		return nil, errors.New("down")
	}
	if len(f.next) == 0 {
		u, _ := url.Parse(target)
		ms, _ := strconv.Atoi(u.Query().Get("wait_ms"))
		if u.RawQuery == "" { // there is no whole yet
			ms = 1000
		}
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-woken:
			return f.answer(ctx, backend, target)
		case <-time.After(time.Duration(ms) * time.Millisecond):
		}
		if u.RawQuery == "" {
			return nil, errors.New("not yet")
		}
		version, _ := strconv.ParseUint(u.Query().Get("since"), 10, 64)
		return f.encode(wire.Feed{Instance: u.Query().Get("instance"), Version: version}), nil
	}
	one := f.next[0]
	f.next = f.next[1:]
	f.mu.Unlock()
	return f.encode(one), nil
}

func (f *feeds) encode(one wire.Feed) []byte {
	f.mu.Lock()
	one.Now = wire.At(time.Now().Add(f.skew))
	f.mu.Unlock()
	b, _ := json.Marshal(one)
	return b
}

// log is what was asked so far, and whom.
func (f *feeds) log() (asked []string, by []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked), slices.Clone(f.by)
}

func (f *feeds) say(all ...wire.Feed) {
	f.mu.Lock()
	f.next = append(f.next, all...)
	close(f.woken)
	f.woken = make(chan struct{})
	f.mu.Unlock()
}

func (f *feeds) set(backend int, down bool) {
	f.mu.Lock()
	f.down[backend] = down
	f.mu.Unlock()
}

func sale(id int64, state wire.SaleState) wire.Sale {
	return wire.Sale{ID: id, State: state, PerUserLimit: 1, StartsAt: wire.At(time.Now().Add(-time.Hour)), EndsAt: wire.At(time.Now().Add(100 * time.Hour))}
}

// follow runs test against a gate that follows f, in a bubble of fake time.
func follow(t *testing.T, backends int, test func(g *Gate, f *feeds, changed func() []int64)) {
	synctest.Test(t, func(t *testing.T) {
		f := &feeds{count: backends, down: map[int]bool{}, woken: make(chan struct{})}
		g := New(&clock.Clock{}, 5*time.Second, prometheus.NewRegistry())
		var mu sync.Mutex
		var ids []int64
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.Follow(ctx, f, slog.New(slog.DiscardHandler), func(some []int64) {
				mu.Lock()
				ids = append(ids, some...)
				mu.Unlock()
			})
		}()
		test(g, f, func() []int64 {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := ids
			ids = nil
			return out
		})
		cancel()
		<-done
	})
}

func code(v Verdict) problem.Code {
	if v.Refusal == nil {
		return ""
	}
	return v.Refusal.Code
}

func equal(a []int64, b ...int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestFollowsSnapshotAndDeltas(t *testing.T) {
	follow(t, 1, func(g *Gate, f *feeds, changed func() []int64) {
		f.say(wire.Feed{Instance: "a", Version: 7, Full: true, Sales: []wire.Sale{sale(1, wire.Open), sale(2, wire.SoldOut)}})
		if got := changed(); !equal(got, 1, 2) || !g.Ready() {
			t.Fatalf("got changes %v, ready %v", got, g.Ready())
		}
		f.say(wire.Feed{Instance: "a", Version: 8, Sales: []wire.Sale{sale(2, wire.Open)}})
		if got := changed(); !equal(got, 2) || code(g.Order(2, time.Now())) != "" {
			t.Errorf("got changes %v, sale 2 %v", got, g.Order(2, time.Now()))
		}
		f.say(wire.Feed{Instance: "a", Version: 9, Removed: []int64{1}})
		if got := changed(); !equal(got, 1) || code(g.Order(1, time.Now())) != problem.SaleNotFound {
			t.Errorf("got changes %v, sale 1 %v", got, g.Order(1, time.Now()))
		}
		asked, _ := f.log()
		last := asked[len(asked)-1]
		if !strings.Contains(last, "instance=a") || !strings.Contains(last, "since=9") || !strings.Contains(last, "wait_ms=2500") {
			t.Errorf("asks %s", last)
		}
		time.Sleep(time.Minute) // of fake time: silence is no staleness, polls come back empty
		if !g.Fresh(time.Now()) {
			t.Errorf("stale after %v", g.Age(time.Now()))
		}
	})
}

func TestResyncsAfterAGapOrAnotherLife(t *testing.T) {
	follow(t, 1, func(g *Gate, f *feeds, changed func() []int64) {
		f.say(wire.Feed{Instance: "a", Version: 7, Full: true, Sales: []wire.Sale{sale(1, wire.Open), sale(2, wire.Open)}})
		changed()
		// A part of another life's feed does not fit; the whole of it does, and only what differs has changed.
		again := g.snapshot.Load().sales[1].Sale
		f.say(wire.Feed{Instance: "b", Version: 3, Sales: []wire.Sale{sale(2, wire.SoldOut)}},
			wire.Feed{Instance: "b", Version: 3, Full: true, Sales: []wire.Sale{again, sale(3, wire.Open)}})
		if got := changed(); !equal(got, 2, 3) {
			t.Errorf("got changes %v, want 2 (gone) and 3 (new)", got)
		}
		whole := 0
		asked, _ := f.log()
		for _, target := range asked {
			if target == wire.FeedPath {
				whole++
			}
		}
		if whole != 2 {
			t.Errorf("asked for the whole %d times, want 2: %v", whole, asked)
		}
		f.say(wire.Feed{Instance: "b", Version: 1}, wire.Feed{Instance: "b", Version: 1, Full: true}) // backwards
		if got := changed(); !equal(got, 1, 3) || g.Known() != 0 {
			t.Errorf("got changes %v, %d known", got, g.Known())
		}
	})
}

func TestGoesOnWithAnotherBackend(t *testing.T) {
	follow(t, 3, func(g *Gate, f *feeds, changed func() []int64) {
		f.say(wire.Feed{Instance: "a", Version: 1, Full: true, Sales: []wire.Sale{sale(1, wire.Open)}})
		changed()
		_, by := f.log()
		first := by[len(by)-1]
		f.set(first, true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		_, by = f.log()
		if now := by[len(by)-1]; now == first || !g.Fresh(time.Now()) {
			t.Errorf("asks %d, fresh %v", now, g.Fresh(time.Now()))
		}
		for i := range 3 {
			f.set(i, true)
		}
		_, by = f.log()
		before := len(by)
		time.Sleep(time.Minute)
		synctest.Wait()
		_, by = f.log()
		if n := len(by) - before; n < 30 || n > 300 || g.Fresh(time.Now()) {
			t.Errorf("asked %d times in a minute without any backend, fresh %v", n, g.Fresh(time.Now()))
		}
		f.set(1, false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !g.Fresh(time.Now()) {
			t.Error("did not come back")
		}
	})
}

// Row D9: the local mark spares everything behind it.
func TestVerdicts(t *testing.T) {
	follow(t, 1, func(g *Gate, f *feeds, changed func() []int64) {
		f.mu.Lock()
		f.skew = -30 * time.Minute // the server's clock decides
		f.mu.Unlock()
		at := func(d time.Duration) wire.Time { return wire.At(time.Now().Add(f.skew + d)) }
		timed := func(id int64, starts, ends time.Duration, state wire.SaleState) wire.Sale {
			return wire.Sale{ID: id, State: state, StartsAt: at(starts), EndsAt: at(ends)}
		}
		tranche := timed(5, -time.Minute, time.Hour, wire.SoldOut)
		next := at(10 * time.Second)
		tranche.NextReleaseAt = &next
		f.say(wire.Feed{Instance: "a", Version: 1, Full: true, Sales: []wire.Sale{
			timed(1, 10*time.Second, time.Hour, wire.Upcoming), timed(2, -time.Minute, 10*time.Second, wire.Open), timed(3, -time.Minute, time.Hour, wire.Paused),
			timed(4, -time.Minute, time.Hour, wire.SoldOut), tranche, timed(6, -time.Minute, time.Hour, wire.Ended), timed(7, 10*time.Second, time.Hour, wire.Paused),
		}})
		changed()
		check := func(when string, want ...problem.Code) {
			t.Helper()
			for i, w := range want {
				if got := code(g.Order(int64(i+1), time.Now())); got != w {
					t.Errorf("%s, sale %d: got %q, want %q", when, i+1, got, w)
				}
			}
		}
		check("at first", problem.SaleNotStarted, "", problem.Overloaded, problem.SoldOut, problem.SoldOut, problem.SaleEnded, problem.SaleNotStarted, problem.SaleNotFound)
		if v := g.Order(1, time.Now()); v.Refusal.RetryAfter != 10*time.Second {
			t.Errorf("starts in %v", v.Refusal.RetryAfter)
		}
		// Row D6: between two tranches it is sold out until the next, and says so.
		named := `"next_release_at":"` + next.Format(wire.TimeFormat) + `"`
		if r := g.Order(5, time.Now()).Refusal; r.RetryAfter != 10*time.Second || !strings.Contains(string(r.AppendBody(nil, "id")), named) {
			t.Errorf("between tranches: got %s, Retry-After %v; want %s in it", r.AppendBody(nil, "id"), r.RetryAfter, named)
		}
		if r := g.Order(4, time.Now()).Refusal; r.RetryAfter != 0 || strings.Contains(string(r.AppendBody(nil, "id")), "next_release_at") {
			t.Errorf("without a tranche to come: got %s, Retry-After %v", r.AppendBody(nil, "id"), r.RetryAfter)
		}
		time.Sleep(10 * time.Second) // no message comes: the clock opens, closes and releases
		synctest.Wait()
		g.Order(5, time.Now()).Sale.SoldOut(time.Now()) // all of the tranche goes at once
		if r := g.Order(5, time.Now()).Refusal; r == nil || r.RetryAfter != 0 || strings.Contains(string(r.AppendBody(nil, "id")), "next_release_at") {
			t.Errorf("after the last release: got %v, want sold out without a release to come", r)
		}
		time.Sleep(markFor)
		synctest.Wait()
		check("10 s later", "", problem.SaleEnded, problem.Overloaded, problem.SoldOut, "", problem.SaleEnded, problem.Overloaded)
		if r := g.unknown.AppendBody(nil, "id-1"); !strings.Contains(string(r), `"request_id":"id-1"`) || !strings.Contains(string(r), `"status":404`) {
			t.Errorf("got %s", r)
		}
	})
}

// Row D6: what a backend answered before a release does not keep the gate closed after it.
func TestAReleaseOutdatesTheMarksBefore(t *testing.T) {
	follow(t, 1, func(g *Gate, f *feeds, changed func() []int64) {
		s := sale(1, wire.Open)
		next := wire.At(time.Now().Add(2 * time.Second))
		s.NextReleaseAt = &next
		f.say(wire.Feed{Instance: "a", Version: 1, Full: true, Sales: []wire.Sale{s}})
		changed()
		time.Sleep(1900 * time.Millisecond)
		g.Order(1, time.Now()).Sale.SoldOut(time.Now())
		if got := code(g.Order(1, time.Now())); got != problem.SoldOut {
			t.Errorf("before the release: got %q", got)
		}
		time.Sleep(100 * time.Millisecond)
		for range 3 {
			if got := code(g.Order(1, time.Now())); got != "" {
				t.Errorf("at the release: got %q", got)
			}
		}
		time.Sleep(10 * time.Millisecond)
		g.Order(1, time.Now()).Sale.SoldOut(time.Now())
		if got := code(g.Order(1, time.Now())); got != problem.SoldOut {
			t.Errorf("sold out again after it: got %q", got)
		}
	})
}

func TestMarkOfABackendsAnswer(t *testing.T) {
	follow(t, 1, func(g *Gate, f *feeds, changed func() []int64) {
		f.say(wire.Feed{Instance: "a", Version: 1, Full: true, Sales: []wire.Sale{sale(1, wire.Open)}})
		changed()
		old := g.Order(1, time.Now()).Sale
		old.SoldOut(time.Now())
		if got := code(g.Order(1, time.Now())); got != problem.SoldOut {
			t.Fatalf("got %q", got)
		}
		// Without a word of the feed one request a second looks again.
		time.Sleep(markFor)
		passed := 0
		for range 100 {
			if code(g.Order(1, time.Now())) == "" {
				passed++
			}
		}
		if passed != 1 {
			t.Errorf("%d passed when the mark was old, want 1", passed)
		}
		old.Sold(time.Now()) // and what it hears opens the gate
		if got := code(g.Order(1, time.Now())); got != "" {
			t.Errorf("after an acceptance: got %q", got)
		}
		old.SoldOut(time.Now())
		f.say(wire.Feed{Instance: "a", Version: 2, Sales: []wire.Sale{sale(1, wire.Open)}})
		changed()
		if got := code(g.Order(1, time.Now())); got != "" {
			t.Errorf("the feed says open: got %q", got)
		}
		old.SoldOut(time.Now()) // an answer to who asked before the stock returned
		if got := code(g.Order(1, time.Now())); got != "" {
			t.Errorf("an old answer closed the gate: got %q", got)
		}
	})
}

func TestStaleNewsAsksAtABoundedRate(t *testing.T) {
	follow(t, 1, func(g *Gate, f *feeds, changed func() []int64) {
		count := func(id int64) (asked int) {
			for range 1000 {
				if code(g.Order(id, time.Now())) == "" {
					asked++
				}
			}
			return asked
		}
		if n := count(1); n != staleBurst { // before any news
			t.Errorf("%d asked before the first news, want %d", n, staleBurst)
		}
		f.say(wire.Feed{Instance: "a", Version: 1, Full: true, Sales: []wire.Sale{sale(1, wire.SoldOut)}})
		changed()
		if n := count(1); n != 0 {
			t.Errorf("%d asked with fresh news", n)
		}
		f.set(0, true)
		time.Sleep(10 * time.Second)
		if n := count(1); n != staleBurst {
			t.Errorf("%d asked with stale news, want %d", n, staleBurst)
		}
		time.Sleep(time.Second)
		if n := count(99); n != staleRate {
			t.Errorf("%d asked a second later, want %d", n, staleRate)
		}
		if r, sure := g.Unknown(99, time.Now()); sure {
			t.Errorf("sure that a sale is unknown, with stale news: %v", r)
		}
	})
}

func TestAnAnswerThatLayAboutDoesNotSetTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(&clock.Clock{}, 5*time.Second, prometheus.NewRegistry())
		src := slow{now: wire.At(time.Now()), for_: time.Minute}
		if _, err := g.poll(t.Context(), src, 0, true, false); err != nil || g.clk.Synced() {
			t.Errorf("got %v, clock set %v", err, g.clk.Synced())
		}
	})
}

type slow struct {
	now  wire.Time
	for_ time.Duration
}

func (slow) Backends() int { return 1 }
func (s slow) Feed(context.Context, int, string, time.Duration) ([]byte, error) {
	time.Sleep(s.for_)
	b, err := json.Marshal(wire.Feed{Instance: "a", Full: true, Now: s.now})
	return b, err
}

func BenchmarkRefusal(b *testing.B) {
	g := New(&clock.Clock{}, time.Hour, prometheus.NewRegistry())
	g.apply(&wire.Feed{Instance: "a", Full: true, Sales: []wire.Sale{sale(1, wire.SoldOut)}})
	g.news.Store(1)
	b.ReportAllocs()
	buf := make([]byte, 0, 512)
	for b.Loop() {
		buf = g.Order(1, time.Now()).Refusal.AppendBody(buf[:0], "0123456789")
	}
}
