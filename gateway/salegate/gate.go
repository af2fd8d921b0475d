// Package salegate refuses orders for sales that cannot sell now, before any token is verified. It knows every live sale
// from the backends' feed.
//
// It is advisory: the backend decides what the gate lets through. No refusal lasts for ever, because the feed may be
// stale or the backend behind it wrong: at a bounded rate an order probes the backend. See docs/gateway.md.
package salegate

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

const (
	// markFor is how long a backend's answer to an order counts more than the feed, which confirms it within that time.
	// After that one order probes whether it still holds.
	markFor = time.Second
	// probeEvery is how long a sold-out or paused sale of the feed is refused before one order probes it.
	probeEvery = 10 * time.Second
	// While the feed is stale, so many orders a second that the gate would refuse probe the backend.
	staleRate, staleBurst = 20, 20
	// Retry-After where the gate does not know better.
	unknownRetry, pausedRetry = time.Second, 2 * time.Second
)

// Sale is what the gate knows of one sale since its last change. It is safe for concurrent use.
type Sale struct {
	wire.Sale
	starts, ends, nextRelease int64 // milliseconds; nextRelease 0: none

	epoch  time.Time    // the gate's
	mark   atomic.Int64 // a backend's last answer: nanoseconds since epoch, shifted left by one, plus 1 for sold out
	probed atomic.Int64 // the last probe, or the feed's last news of the sale: nanoseconds since epoch

	notStarted, ended, soldOut, paused *problem.Prepared
	soldOutUntil                       *problem.Prepared // names the next release; nil: there is none
}

// Verdict is what the gate says to an order.
type Verdict struct {
	// Refusal is nil where the backend is to decide.
	Refusal *problem.Prepared
	// RetryAfter is when the verdict may be another one; 0: not known.
	RetryAfter time.Duration
	// Sale is nil where the gate does not know it.
	Sale *Sale

	probe  probe
	before int64 // the mark or the time of the last probe, which the next probe replaces
}

// probe is why an order may be sent although the gate would refuse it.
type probe int

const (
	noProbe    probe = iota
	probeStale       // the feed is stale
	probeMark        // a backend said sold out, and the feed has not confirmed it
	probeFeed        // the feed says so, and nobody has probed it for long
	probes
)

var probeNames = [probes]string{"", "stale", "mark", "probe"}

// MayProbe reports whether the order may be sent in spite of the Refusal, if Probe then allows it.
func (v Verdict) MayProbe() bool { return v.probe != noProbe }

// Gate holds the state of the sales. Make it with New, keep it fresh with Follow.
type Gate struct {
	clk      *clock.Clock
	epoch    time.Time // on the monotonic clock
	snapshot atomic.Pointer[snapshot]
	news     atomic.Int64 // the feed's last answer: nanoseconds since epoch; 0: never
	stale    atomic.Int64 // stale_after
	probes   *rate.Limiter
	unknown  *problem.Prepared
	notFresh *problem.Prepared
	metrics  metrics
}

// snapshot is never changed once it is published.
type snapshot struct {
	instance string
	version  uint64
	sales    map[int64]*Sale
}

// New makes a gate that knows nothing yet.
func New(clk *clock.Clock, staleAfter time.Duration, reg prometheus.Registerer) *Gate {
	g := &Gate{
		clk: clk, epoch: time.Now(), probes: rate.NewLimiter(staleRate, staleBurst),
		unknown:  problem.Prepare(problem.New(problem.SaleNotFound, "there is no such sale")),
		notFresh: problem.Prepare(problem.New(problem.Overloaded, "the state of the sales is not known at the moment; nothing was done")),
	}
	g.stale.Store(int64(staleAfter))
	g.snapshot.Store(&snapshot{})
	g.metrics = newMetrics(g, reg)
	return g
}

// SetStaleAfter changes after which time without an answer the feed is stale.
func (g *Gate) SetStaleAfter(d time.Duration) { g.stale.Store(int64(d)) }

// StaleAfter is the time without an answer after which the feed is stale.
func (g *Gate) StaleAfter() time.Duration { return time.Duration(g.stale.Load()) }

// Ready reports whether the feed was ever received.
func (g *Gate) Ready() bool { return g.news.Load() != 0 }

// Age is the time since the feed's last answer; before the first, since the gate was made.
func (g *Gate) Age(now time.Time) time.Duration {
	return now.Sub(g.epoch) - time.Duration(g.news.Load())
}

// Fresh reports whether the feed was received and is not stale.
func (g *Gate) Fresh(now time.Time) bool {
	return g.Ready() && g.Age(now) <= g.StaleAfter()
}

// Get returns a sale that the gate knows.
func (g *Gate) Get(id int64) (*Sale, bool) {
	s, ok := g.snapshot.Load().sales[id]
	return s, ok
}

// Known returns how many sales the gate knows.
func (g *Gate) Known() int { return len(g.snapshot.Load().sales) }

// Unknown is the refusal for a sale that does not exist; false where that is not certain. No sale has the id 0.
func (g *Gate) Unknown(id int64, now time.Time) (*problem.Prepared, bool) {
	if _, ok := g.Get(id); ok || id != 0 && !g.Fresh(now) {
		return nil, false
	}
	return g.unknown, true
}

// Order decides about an order for a sale. now is the monotonic clock, as the request read it.
func (g *Gate) Order(id int64, now time.Time) Verdict {
	s, ok := g.Get(id)
	if !ok {
		if r, certain := g.Unknown(id, now); certain {
			return Verdict{Refusal: r}
		}
		return Verdict{Refusal: g.notFresh, RetryAfter: unknownRetry, probe: probeStale}
	}
	ms := g.clk.At(now).UnixMilli()
	switch {
	case s.State == wire.Ended || ms >= s.ends:
		return g.refuse(s, s.ended, 0, now)
	case ms < s.starts:
		return g.refuse(s, s.notStarted, time.Duration(s.starts-ms)*time.Millisecond, now)
	}
	soldOut := s.State == wire.SoldOut && (s.nextRelease == 0 || ms < s.nextRelease)
	oldMark := int64(0) // a mark that one order probes, while the others are refused
	if mark := s.mark.Load(); mark != 0 {
		age := now.Sub(g.epoch) - time.Duration(mark>>1)
		switch {
		case s.nextRelease > 0 && ms >= s.nextRelease && age.Milliseconds() > ms-s.nextRelease: // older than the release
		case age < markFor:
			soldOut = mark&1 == 1
		case mark&1 == 1 && !soldOut:
			soldOut, oldMark = true, mark
		}
	}
	switch {
	case soldOut:
		r, after := s.soldOut, time.Duration(0)
		if s.nextRelease > ms {
			r, after = s.soldOutUntil, time.Duration(s.nextRelease-ms)*time.Millisecond
		}
		if oldMark != 0 {
			return Verdict{r, after, s, probeMark, oldMark}
		}
		return g.refuse(s, r, after, now)
	case s.State == wire.Paused:
		return g.refuse(s, s.paused, pausedRetry, now)
	}
	return Verdict{Sale: s}
}

// refuse is a verdict with the refusal r. It says whether an order may probe.
func (g *Gate) refuse(s *Sale, r *problem.Prepared, after time.Duration, now time.Time) Verdict {
	v := Verdict{Refusal: r, RetryAfter: after, Sale: s}
	if !g.Fresh(now) {
		v.probe = probeStale
		return v
	}
	if r != s.ended && r != s.notStarted { // those follow from the clock
		if probed := s.probed.Load(); now.Sub(g.epoch)-time.Duration(probed) >= probeEvery {
			v.probe, v.before = probeFeed, probed
		}
	}
	return v
}

// Probe reports whether an order with a verdict that MayProbe is sent to the backend. It is called just before the order is
// sent: an order that cannot succeed must not use up the one probe.
func (g *Gate) Probe(v Verdict, now time.Time) bool {
	since := int64(now.Sub(g.epoch))
	ok := false
	switch v.probe {
	case probeStale:
		ok = g.probes.AllowN(now, 1)
	case probeMark:
		ok = v.Sale.mark.CompareAndSwap(v.before, since<<1|1)
	case probeFeed:
		ok = v.Sale.probed.CompareAndSwap(v.before, since)
	}
	if ok {
		g.metrics.probes[v.probe].Inc()
	}
	return ok
}

// SoldOut notes that a backend answered SOLD_OUT to an order whose Verdict has this Sale. If the sale has changed meanwhile,
// the gate has another Sale, which an old answer does not touch.
func (s *Sale) SoldOut(now time.Time) { s.mark.Store(int64(now.Sub(s.epoch))<<1 | 1) }

// Sold notes that a backend accepted an order, which matters where the feed says sold out.
func (s *Sale) Sold(now time.Time) {
	if s.State == wire.SoldOut || s.mark.Load()&1 == 1 {
		s.mark.Store(int64(now.Sub(s.epoch)) << 1)
	}
}

// apply makes f the present state and returns the ids of the sales that changed, sorted; false: f does not follow from the
// present state.
func (g *Gate) apply(f *wire.Feed) (changed []int64, ok bool) {
	old := g.snapshot.Load()
	if !f.Full && (f.Instance != old.instance || f.Version < old.version) {
		return nil, false
	}
	next := &snapshot{instance: f.Instance, version: f.Version, sales: make(map[int64]*Sale, len(f.Sales)+len(old.sales))}
	if !f.Full {
		for id, s := range old.sales {
			next.sales[id] = s
		}
	}
	for _, sale := range f.Sales {
		if o := old.sales[sale.ID]; o != nil && f.Full && same(&o.Sale, &sale) {
			next.sales[sale.ID] = o // keeps its mark
			continue
		}
		next.sales[sale.ID] = newSale(sale, g.epoch)
		changed = append(changed, sale.ID)
	}
	for _, id := range f.Removed {
		delete(next.sales, id)
		changed = append(changed, id)
	}
	if f.Full {
		for id := range old.sales {
			if next.sales[id] == nil {
				changed = append(changed, id)
			}
		}
	}
	g.snapshot.Store(next)
	slices.SortFunc(changed, cmp.Compare)
	return slices.Compact(changed), true
}

// Snapshot is what the gate knows, for another process: nil before the feed was received.
func (g *Gate) Snapshot() *wire.Feed {
	s := g.snapshot.Load()
	if !g.Ready() {
		return nil
	}
	f := &wire.Feed{Instance: s.instance, Version: s.version, Full: true, Now: wire.At(g.clk.Now())}
	for _, sale := range s.sales {
		f.Sales = append(f.Sales, sale.Sale)
	}
	return f
}

// Adopt takes over a Snapshot of another process that is of that age, unless this gate has received the feed itself. The feed
// goes on from there.
func (g *Gate) Adopt(f *wire.Feed, age time.Duration) {
	if f == nil || f.Instance == "" || f.Now.IsZero() || g.Ready() {
		return
	}
	g.clk.Set(f.Now.Time, time.Now())
	g.apply(f)
	g.news.CompareAndSwap(0, max(1, int64(time.Since(g.epoch)-age)))
}

// same reports whether two states of a sale differ in nothing but the time they were read.
func same(a, b *wire.Sale) bool {
	next := func(s *wire.Sale) int64 {
		if s.NextReleaseAt == nil {
			return 0
		}
		return s.NextReleaseAt.UnixMilli()
	}
	return a.ID == b.ID && a.Kind == b.Kind && a.Title == b.Title && a.Price == b.Price && a.Currency == b.Currency &&
		a.StartsAt.Equal(b.StartsAt.Time) && a.EndsAt.Equal(b.EndsAt.Time) && a.State == b.State &&
		a.PerUserLimit == b.PerUserLimit && a.Category == b.Category && a.Picture == b.Picture && next(a) == next(b)
}

func newSale(w wire.Sale, epoch time.Time) *Sale {
	s := &Sale{Sale: w, epoch: epoch, starts: w.StartsAt.UnixMilli(), ends: w.EndsAt.UnixMilli()}
	s.probed.Store(int64(time.Since(epoch)))
	early := problem.New(problem.SaleNotStarted, "the sale starts at "+w.StartsAt.Format(wire.TimeFormat))
	early.StartsAt = &w.StartsAt
	s.notStarted = problem.Prepare(early)
	s.ended = problem.Prepare(problem.New(problem.SaleEnded, "the sale is over"))
	s.soldOut = problem.Prepare(problem.New(problem.SoldOut, "nothing is available now; units come back when somebody cancels or does not pay"))
	if w.NextReleaseAt != nil {
		s.nextRelease = w.NextReleaseAt.UnixMilli()
		more := problem.New(problem.SoldOut, "nothing is available now; more is released at "+w.NextReleaseAt.Format(wire.TimeFormat))
		more.NextReleaseAt = w.NextReleaseAt
		s.soldOutUntil = problem.Prepare(more)
	}
	s.paused = problem.Prepare(problem.New(problem.Overloaded, "the sale is paused; nothing was done"))
	return s
}
