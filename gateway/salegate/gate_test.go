package salegate

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
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
	whole *wire.Feed  // the last of them that was full, and what followed: for who asks for all of it once more
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
		if u.RawQuery == "" {
			if whole := f.whole; whole != nil {
				f.mu.Unlock()
				return f.encode(*whole), nil
			}
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
	f.keep(one)
	f.mu.Unlock()
	return f.encode(one), nil
}

// keep makes one part of the whole. The caller holds mu.
func (f *feeds) keep(one wire.Feed) {
	all := map[int64]wire.Sale{}
	if f.whole != nil && !one.Full {
		for _, s := range f.whole.Sales {
			all[s.ID] = s
		}
	}
	for _, s := range one.Sales {
		all[s.ID] = s
	}
	for _, id := range one.Removed {
		delete(all, id)
	}
	f.whole = &wire.Feed{Instance: one.Instance, Version: one.Version, Full: true, Sales: slices.Collect(maps.Values(all))}
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

func body(v Verdict) string { return string(v.Refusal.AppendBody(nil, []byte("id"))) }

func code(v Verdict) problem.Code {
	if v.Refusal == nil {
		return ""
	}
	return v.Refusal.Code
}

// passes does what the edge does with an order: it is refused, or sent.
func passes(g *Gate, id int64) bool {
	now := time.Now()
	v := g.Order(id, now)
	return v.Refusal == nil || v.MayProbe() && g.Probe(v, now)
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
		if _, ok := g.apply(&wire.Feed{Instance: "c", Version: 1000, Sales: []wire.Sale{sale(2, wire.SoldOut)}}); ok {
			t.Error("a part of another life fits, because its version is higher")
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
	t.Attr("row", "D9")
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
		if v := g.Order(1, time.Now()); v.RetryAfter != 10*time.Second {
			t.Errorf("starts in %v", v.RetryAfter)
		}
		// Row D6: between two tranches it is sold out until the next, and says so.
		named := `"next_release_at":"` + next.Format(wire.TimeFormat) + `"`
		if v := g.Order(5, time.Now()); v.RetryAfter != 10*time.Second || !strings.Contains(body(v), named) {
			t.Errorf("between tranches: got %s, Retry-After %v; want %s in it", body(v), v.RetryAfter, named)
		}
		if v := g.Order(4, time.Now()); v.RetryAfter != 0 || strings.Contains(body(v), "next_release_at") {
			t.Errorf("without a tranche to come: got %s, Retry-After %v", body(v), v.RetryAfter)
		}
		time.Sleep(10 * time.Second) // no message comes: the clock opens, closes and releases
		synctest.Wait()
		g.Order(5, time.Now()).Sale.SoldOut(time.Now()) // all of the tranche goes at once
		if v := g.Order(5, time.Now()); v.Refusal == nil || v.RetryAfter != 0 || strings.Contains(body(v), "next_release_at") {
			t.Errorf("after the last release: got %v, want sold out without a release to come", v)
		}
		time.Sleep(markFor)
		synctest.Wait()
		if !passes(g, 5) {
			t.Error("nobody looks whether the tranche is really gone")
		}
		check("10 s later", "", problem.SaleEnded, problem.Overloaded, problem.SoldOut, problem.SoldOut, problem.SaleEnded, problem.Overloaded)
		if r := g.unknown.AppendBody(nil, []byte("id-1")); !strings.Contains(string(r), `"request_id":"id-1"`) || !strings.Contains(string(r), `"status":404`) {
			t.Errorf("got %s", r)
		}
	})
}

// Row D6: what a backend answered before a release does not keep the gate closed after it.
func TestAReleaseOutdatesTheMarksBefore(t *testing.T) {
	t.Attr("row", "D6")
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
			if passes(g, 1) {
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
				if passes(g, id) {
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

// Whoever is followed says sold out, or paused, and is wrong: one order in ten seconds finds out, whatever does not come
// by the feed; and somebody who cannot order does not take its place.
func TestARefusalIsProbed(t *testing.T) {
	follow(t, 1, func(g *Gate, f *feeds, changed func() []int64) {
		ended := sale(3, wire.Ended)
		f.say(wire.Feed{Instance: "a", Version: 1, Full: true, Sales: []wire.Sale{sale(1, wire.SoldOut), sale(2, wire.Paused), ended}})
		changed()
		for round := range 3 {
			time.Sleep(probeEvery)
			synctest.Wait()
			if !g.Fresh(time.Now()) {
				t.Fatal("the news is stale")
			}
			for range 1000 { // orders without a user, and the like: judged, and never sent
				if v := g.Order(1, time.Now()); !v.MayProbe() || code(v) != problem.SoldOut {
					t.Fatalf("round %d: got %v, doubtful %v", round, v.Refusal, v.MayProbe())
				}
			}
			for id, want := range map[int64]int{1: 1, 2: 1, 3: 0, 4: 0} {
				sent := 0
				for range 1000 {
					if passes(g, id) {
						sent++
					}
				}
				if sent != want {
					t.Errorf("round %d, sale %d: %d were sent, want %d", round, id, sent, want)
				}
			}
		}
		// It was wrong: as long as orders are accepted, all of them are sent.
		time.Sleep(probeEvery)
		v := g.Order(1, time.Now())
		if !g.Probe(v, time.Now()) {
			t.Fatal("no probe")
		}
		v.Sale.Sold(time.Now())
		for range 10 {
			time.Sleep(markFor / 2)
			if !passes(g, 1) {
				t.Fatal("refused, though a backend accepts")
			}
			v.Sale.Sold(time.Now())
		}
		v.Sale.SoldOut(time.Now())
		if passes(g, 1) {
			t.Error("sent after the backend said sold out")
		}
	})
}

// backends is some backends whose feeds are as real ones': each counts its own versions in its own life, and a poll is
// answered with what is new since.
type backends struct {
	mu    sync.Mutex // guards what follows
	all   []*life
	asked []int
	woken chan struct{}
}

// life is one backend's: what it says, and when it changed last.
type life struct {
	down     bool
	instance string
	version  uint64
	sales    map[int64]wire.Sale
	changed  map[int64]uint64
	lose     bool // the next change is never told, as by a bug
}

func newBackends(instances ...string) *backends {
	b := &backends{woken: make(chan struct{})}
	for _, name := range instances {
		b.all = append(b.all, &life{instance: name, sales: map[int64]wire.Sale{}, changed: map[int64]uint64{}})
	}
	return b
}

func (b *backends) Backends() int { return len(b.all) }

// with changes backend i, or all for -1, and wakes whoever polls.
func (b *backends) with(i int, change func(l *life)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, l := range b.all {
		if i < 0 || n == i {
			change(l)
		}
	}
	close(b.woken)
	b.woken = make(chan struct{})
}

func (l *life) set(s wire.Sale) {
	l.sales[s.ID] = s
	l.version++
	if !l.lose {
		l.changed[s.ID] = l.version
	}
	l.lose = false
}

func (b *backends) Feed(ctx context.Context, i int, target string, timeout time.Duration) ([]byte, error) {
	u, _ := url.Parse(target)
	since, _ := strconv.ParseUint(u.Query().Get("since"), 10, 64)
	ms, _ := strconv.Atoi(u.Query().Get("wait_ms"))
	wait := time.After(time.Duration(ms) * time.Millisecond)
	b.mu.Lock()
	b.asked = append(b.asked, i)
	b.mu.Unlock()
	for last := false; ; {
		b.mu.Lock()
		l, woken := b.all[i], b.woken
		if l.down {
			b.mu.Unlock()
			return nil, errors.New("down")
		}
		f := wire.Feed{Instance: l.instance, Version: l.version, Now: wire.At(time.Now())}
		f.Full = u.Query().Get("instance") != l.instance || since > l.version
		for id, s := range l.sales {
			if f.Full || l.changed[id] > since {
				f.Sales = append(f.Sales, s)
			}
		}
		b.mu.Unlock()
		if f.Full || f.Version > since || last {
			return json.Marshal(f)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-woken:
		case <-wait:
			last = true
		}
	}
}

// followed is the backend that was asked last.
func (b *backends) followed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[len(b.asked)-1]
}

// bubble runs test against a gate that follows b.
func bubble(t *testing.T, b *backends, test func(g *Gate, reg *prometheus.Registry)) {
	synctest.Test(t, func(t *testing.T) {
		b.woken = make(chan struct{}) // of this bubble
		reg := prometheus.NewRegistry()
		g := New(&clock.Clock{}, 5*time.Second, reg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { g.Follow(ctx, b, slog.New(slog.DiscardHandler), func([]int64) {}); close(done) }()
		synctest.Wait()
		test(g, reg)
		cancel()
		<-done
	})
}

func value(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// A backend that is restarted counts from 1 again, below what the gate has; it is another life, so its whole is taken.
func TestARestartedBackendCountsFromOne(t *testing.T) {
	b := newBackends("first")
	bubble(t, b, func(g *Gate, _ *prometheus.Registry) {
		for range 100 {
			b.with(0, func(l *life) { l.set(sale(1, wire.SoldOut)) })
		}
		synctest.Wait()
		if code(g.Order(1, time.Now())) != problem.SoldOut {
			t.Fatalf("got %v", g.Order(1, time.Now()))
		}
		b.with(0, func(l *life) { l.down = true })
		time.Sleep(time.Second)
		b.with(0, func(l *life) {
			*l = life{instance: "second", sales: map[int64]wire.Sale{}, changed: map[int64]uint64{}}
			l.set(sale(1, wire.Open))
			l.set(sale(2, wire.Open))
		})
		time.Sleep(maxPause)
		synctest.Wait()
		if !passes(g, 1) || !passes(g, 2) || g.snapshot.Load().version != 2 {
			t.Errorf("got %v, %v at version %d", g.Order(1, time.Now()), g.Order(2, time.Now()), g.snapshot.Load().version)
		}
		// The same, by one that keeps its name, as one that went back to an older state would.
		b.with(0, func(l *life) { l.version = 1; l.sales[1], l.changed[1] = sale(1, wire.Paused), 1 })
		synctest.Wait()
		if code(g.Order(1, time.Now())) != problem.Overloaded {
			t.Errorf("went back: got %v", g.Order(1, time.Now()))
		}
	})
}

// A change that was never told is known within a minute: the whole is asked for that often.
func TestALostMessageIsMadeUpFor(t *testing.T) {
	b := newBackends("a")
	bubble(t, b, func(g *Gate, reg *prometheus.Registry) {
		b.with(0, func(l *life) { l.set(sale(1, wire.SoldOut)) })
		synctest.Wait()
		b.with(0, func(l *life) { l.lose = true; l.set(sale(1, wire.Open)) })
		synctest.Wait()
		if code(g.Order(1, time.Now())) != problem.SoldOut {
			t.Fatalf("it was told: %v", g.Order(1, time.Now()))
		}
		time.Sleep(wholeEvery + 10*time.Second)
		synctest.Wait()
		if v := g.Order(1, time.Now()); v.Refusal != nil || value(t, reg, "gateway_feed_resyncs_total") != 0 {
			t.Errorf("got %v, %v gaps seen", v.Refusal, value(t, reg, "gateway_feed_resyncs_total"))
		}
	})
}

// Of two backends one is behind, for a moment or for ever. Whichever is followed, the gate ends with what is true; while
// it follows the wrong one a probe finds out.
func TestABackendThatIsBehind(t *testing.T) {
	b := newBackends("a", "b")
	bubble(t, b, func(g *Gate, _ *prometheus.Registry) {
		b.with(-1, func(l *life) { l.set(sale(1, wire.SoldOut)) })
		synctest.Wait()
		ahead := b.followed()
		behind := 1 - ahead
		b.with(ahead, func(l *life) { l.set(sale(1, wire.Open)) })
		synctest.Wait()
		if !passes(g, 1) {
			t.Fatalf("open: got %v", g.Order(1, time.Now()))
		}
		b.with(ahead, func(l *life) { l.down = true })
		time.Sleep(maxPause)
		synctest.Wait()
		if b.followed() != behind || code(g.Order(1, time.Now())) != problem.SoldOut {
			t.Fatalf("follows %d: got %v", b.followed(), g.Order(1, time.Now()))
		}
		b.with(behind, func(l *life) { l.set(sale(1, wire.Open)) }) // it catches up
		synctest.Wait()
		if !passes(g, 1) {
			t.Errorf("caught up: got %v", g.Order(1, time.Now()))
		}
		// For ever: one order a while is sent, and the minute ends it.
		b.with(behind, func(l *life) { l.set(sale(1, wire.SoldOut)) })
		b.with(ahead, func(l *life) { l.down = false })
		synctest.Wait()
		probes := 0
		for range 2 * int(wholeEvery/time.Second) {
			time.Sleep(time.Second)
			synctest.Wait()
			if b.followed() == ahead {
				break
			}
			if passes(g, 1) {
				probes++
			}
		}
		if !passes(g, 1) || probes < 3 || probes > 12 {
			t.Errorf("follows %d, got %v after %d probes", b.followed(), g.Order(1, time.Now()), probes)
		}
	})
}

// The feed is lost, and then a sale reopens. The gate says so, asks at a bounded rate, hears, and sells as long as orders are
// accepted.
func TestASaleReopensWhileTheFeedIsLost(t *testing.T) {
	b := newBackends("a")
	bubble(t, b, func(g *Gate, reg *prometheus.Registry) {
		b.with(0, func(l *life) { l.set(sale(1, wire.SoldOut)) })
		synctest.Wait()
		if value(t, reg, "gateway_feed_fresh") != 1 {
			t.Fatal("not fresh")
		}
		b.with(0, func(l *life) { l.down = true; l.set(sale(1, wire.Open)) })
		time.Sleep(g.StaleAfter() + time.Millisecond)
		if value(t, reg, "gateway_feed_fresh") != 0 || value(t, reg, "gateway_feed_age_seconds") < 5 || value(t, reg, "gateway_feed_errors_total") == 0 {
			t.Error("the metrics do not say that the feed is lost")
		}
		sent := 0
		for range 1000 {
			if passes(g, 1) {
				sent++
			}
		}
		if sent != staleBurst {
			t.Errorf("%d asked, want %d", sent, staleBurst)
		}
		for range 100 { // what they hear opens it, for as long as it is heard
			g.Order(1, time.Now()).Sale.Sold(time.Now())
			if v := g.Order(1, time.Now()); v.Refusal != nil {
				t.Fatalf("got %v", v.Refusal)
			}
			time.Sleep(markFor / 2)
		}
		b.with(0, func(l *life) { l.down = false })
		time.Sleep(maxPause)
		synctest.Wait()
		if !g.Fresh(time.Now()) || g.Order(1, time.Now()).Refusal != nil {
			t.Errorf("the feed is back: fresh %v, got %v", g.Fresh(time.Now()), g.Order(1, time.Now()).Refusal)
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
		buf = g.Order(1, time.Now()).Refusal.AppendBody(buf[:0], []byte("0123456789"))
	}
}
