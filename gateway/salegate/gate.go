// Package salegate knows every live sale from the backends' feed and answers for those that cannot sell now, before
// anybody's token is looked at.
//
// It is advisory. Whatever it lets through the backend judges, and nothing is refused for ever: after stale_after without
// news the backend is asked again, at a bounded rate; and with news, too, a sale that is refused as sold out or paused is
// probed, by one order in ten seconds, should the backend that is followed be wrong.
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
	// markFor is how long a backend's own answer about a sale counts beside the feed. The feed confirms it within that
	// time; should its message be lost, the sale is asked for again.
	markFor = time.Second
	// probeEvery is how long the feed's own word counts that a sale is sold out or paused, until one order looks.
	probeEvery = 10 * time.Second
	// Stale news: this many requests a second may ask the backend what the gate would refuse.
	staleRate, staleBurst = 20, 20
	// When to come again, where the gate does not know.
	notFreshFor, pausedFor = time.Second, 2 * time.Second
)

// Sale is what the gate knows of one sale since its last change. It is safe for concurrent use.
type Sale struct {
	wire.Sale
	starts, ends, nextRelease int64 // milliseconds; nextRelease 0: none

	epoch time.Time    // the gate's
	mark  atomic.Int64 // what a backend answered: nanoseconds since epoch, shifted left by one, and 1 for sold out
	asked atomic.Int64 // when an order was last let through in spite of the feed, or the feed told of the sale: nanoseconds since epoch

	notStarted, ended, soldOut, gone, paused *Refusal // gone: sold out, and the release that soldOut names is past
}

// Verdict is what the gate says to an order.
type Verdict struct {
	// Refusal is nil where the backend is to judge.
	Refusal *Refusal
	// RetryAfter is when that may be otherwise, 0 where nobody knows.
	RetryAfter time.Duration
	// Sale is nil where the gate does not know it.
	Sale *Sale

	doubt doubt
	of    int64 // the mark or the time that is doubted
}

// doubt is why a refusal may be wrong.
type doubt int

const (
	certain    doubt = iota
	staleNews        // there is no news
	oldMark          // a backend said sold out, the feed has not confirmed it
	oldRefusal       // the feed says so, and nobody has asked for long
	doubts
)

var doubtNames = [doubts]string{"", "stale", "mark", "probe"}

// Doubtful reports whether the backend may be asked in spite of the Refusal, where Ask allows it.
func (v Verdict) Doubtful() bool { return v.doubt != certain }

// Gate holds what is known. Make it with New, keep it fresh with Follow.
type Gate struct {
	clk      *clock.Clock
	epoch    time.Time // where news and marks count from, on the monotonic clock
	snapshot atomic.Pointer[snapshot]
	news     atomic.Int64 // when the last news came, nanoseconds since epoch; 0: never
	stale    atomic.Int64 // stale_after
	asks     *rate.Limiter
	unknown  *Refusal
	notFresh *Refusal
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
		clk: clk, epoch: time.Now(), asks: rate.NewLimiter(staleRate, staleBurst),
		unknown:  Prepare(problem.New(problem.SaleNotFound, "there is no such sale")),
		notFresh: Prepare(problem.New(problem.Overloaded, "the state of the sales is not known at the moment; nothing was done")),
	}
	g.stale.Store(int64(staleAfter))
	g.snapshot.Store(&snapshot{})
	g.metrics = newMetrics(g, reg)
	return g
}

// SetStaleAfter changes how long old news counts.
func (g *Gate) SetStaleAfter(d time.Duration) { g.stale.Store(int64(d)) }

// StaleAfter is how long old news counts.
func (g *Gate) StaleAfter() time.Duration { return time.Duration(g.stale.Load()) }

// Ready reports whether the feed was ever received.
func (g *Gate) Ready() bool { return g.news.Load() != 0 }

// Age is the time since the last news; before the first, since the process started.
func (g *Gate) Age(now time.Time) time.Duration {
	return now.Sub(g.epoch) - time.Duration(g.news.Load())
}

// Fresh reports whether there is news that counts.
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

// Unknown is the answer about a sale that does not exist; false where that is not certain. No sale has the id 0.
func (g *Gate) Unknown(id int64, now time.Time) (*Refusal, bool) {
	if _, ok := g.Get(id); ok || id != 0 && !g.Fresh(now) {
		return nil, false
	}
	return g.unknown, true
}

// Order judges an order for a sale. now is the request's reading of the monotonic clock.
func (g *Gate) Order(id int64, now time.Time) Verdict {
	s, ok := g.Get(id)
	if !ok {
		if r, sure := g.Unknown(id, now); sure {
			return Verdict{Refusal: r}
		}
		return Verdict{Refusal: g.notFresh, RetryAfter: notFreshFor, doubt: staleNews}
	}
	ms := g.clk.At(now).UnixMilli()
	switch {
	case s.State == wire.Ended || ms >= s.ends:
		return g.refuse(s, s.ended, 0, now)
	case ms < s.starts:
		return g.refuse(s, s.notStarted, time.Duration(s.starts-ms)*time.Millisecond, now)
	}
	soldOut := s.State == wire.SoldOut && (s.nextRelease == 0 || ms < s.nextRelease)
	looked := int64(0) // a mark after which one order looks again, and the others wait for what it hears
	if mark := s.mark.Load(); mark != 0 {
		age := now.Sub(g.epoch) - time.Duration(mark>>1)
		switch {
		case s.nextRelease > 0 && ms >= s.nextRelease && age.Milliseconds() > ms-s.nextRelease: // of before the release
		case age < markFor:
			soldOut = mark&1 == 1
		case mark&1 == 1 && !soldOut:
			soldOut, looked = true, mark
		}
	}
	switch {
	case soldOut:
		r, after := s.gone, time.Duration(0)
		if s.nextRelease > ms {
			r, after = s.soldOut, time.Duration(s.nextRelease-ms)*time.Millisecond
		}
		if looked != 0 {
			return Verdict{r, after, s, oldMark, looked}
		}
		return g.refuse(s, r, after, now)
	case s.State == wire.Paused:
		return g.refuse(s, s.paused, pausedFor, now)
	}
	return Verdict{Sale: s}
}

// refuse answers with r, and says how certain it is.
func (g *Gate) refuse(s *Sale, r *Refusal, after time.Duration, now time.Time) Verdict {
	v := Verdict{Refusal: r, RetryAfter: after, Sale: s}
	if !g.Fresh(now) {
		v.doubt = staleNews
		return v
	}
	if r != s.ended && r.Code != problem.SaleNotStarted { // whose time is known
		if asked := s.asked.Load(); now.Sub(g.epoch)-time.Duration(asked) >= probeEvery {
			v.doubt, v.of = oldRefusal, asked
		}
	}
	return v
}

// Ask reports whether the order that got this doubtful verdict is one that asks the backend. It is called just before the
// order is sent, so that nobody who cannot order takes the place of who can.
func (g *Gate) Ask(v Verdict, now time.Time) bool {
	since := int64(now.Sub(g.epoch))
	ok := false
	switch v.doubt {
	case staleNews:
		ok = g.asks.AllowN(now, 1)
	case oldMark:
		ok = v.Sale.mark.CompareAndSwap(v.of, since<<1|1)
	case oldRefusal:
		ok = v.Sale.asked.CompareAndSwap(v.of, since)
	}
	if ok {
		g.metrics.asked[v.doubt].Inc()
	}
	return ok
}

// SoldOut notes that a backend answered SOLD_OUT to a request which had got this Sale: a sale that has changed
// meanwhile is another Sale, which an old answer does not touch.
func (s *Sale) SoldOut(now time.Time) { s.mark.Store(int64(now.Sub(s.epoch))<<1 | 1) }

// Sold notes that a backend accepted an order. It matters where the news is old and says sold out.
func (s *Sale) Sold(now time.Time) {
	if s.State == wire.SoldOut || s.mark.Load()&1 == 1 {
		s.mark.Store(int64(now.Sub(s.epoch)) << 1)
	}
}

// apply makes f the present state and returns the ids that changed, sorted; false: f does not follow from what is known.
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
			next.sales[sale.ID] = o // with its mark
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

// same reports whether nothing but the time has changed.
func same(a, b *wire.Sale) bool {
	next := func(s *wire.Sale) int64 {
		if s.NextReleaseAt == nil {
			return 0
		}
		return s.NextReleaseAt.UnixMilli()
	}
	return a.ID == b.ID && a.Kind == b.Kind && a.Title == b.Title && a.Price == b.Price && a.Currency == b.Currency &&
		a.StartsAt.Equal(b.StartsAt.Time) && a.EndsAt.Equal(b.EndsAt.Time) && a.State == b.State &&
		a.PerUserLimit == b.PerUserLimit && next(a) == next(b)
}

func newSale(w wire.Sale, epoch time.Time) *Sale {
	s := &Sale{Sale: w, epoch: epoch, starts: w.StartsAt.UnixMilli(), ends: w.EndsAt.UnixMilli()}
	s.asked.Store(int64(time.Since(epoch)))
	early := problem.New(problem.SaleNotStarted, "the sale starts at "+w.StartsAt.Format(wire.TimeFormat))
	early.StartsAt = &w.StartsAt
	s.notStarted = Prepare(early)
	s.ended = Prepare(problem.New(problem.SaleEnded, "the sale is over"))
	s.gone = Prepare(problem.New(problem.SoldOut, "nothing is available now; units come back when somebody cancels or does not pay"))
	if w.NextReleaseAt != nil {
		s.nextRelease = w.NextReleaseAt.UnixMilli()
		more := problem.New(problem.SoldOut, "nothing is available now; more is released at "+w.NextReleaseAt.Format(wire.TimeFormat))
		more.NextReleaseAt = w.NextReleaseAt
		s.soldOut = Prepare(more)
	}
	s.paused = Prepare(problem.New(problem.Overloaded, "the sale is paused; nothing was done"))
	return s
}
