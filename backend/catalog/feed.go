package catalog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"floodgate.internal/shared/wire"
)

// public is what the public is told of the sale at now, but for Now.
func (s *item) public(now time.Time) wire.Sale {
	p := wire.Sale{
		ID: s.ID, Kind: s.Kind, Title: s.Title, Price: s.Price, Currency: s.Currency, Category: s.Category, Picture: s.Picture,
		StartsAt: wire.At(s.StartsAt), EndsAt: wire.At(s.EndsAt), PerUserLimit: s.PerUserLimit,
	}
	switch {
	case s.Ended(now):
		p.State = wire.Ended
		return p
	case now.Before(s.StartsAt):
		p.State = wire.Upcoming
	case s.Paused:
		p.State = wire.Paused
	case s.stock.known.Load() && (s.stock.waited.Load() || s.stock.left.Load() <= s.Unreleased(now)):
		p.State = wire.SoldOut
	default:
		p.State = wire.Open
	}
	p.NextReleaseAt = s.NextRelease(now)
	return p
}

// Public is what the public is told of a sale, live or of the newest archived; false if it is not in memory, or hidden.
func (c *Catalog) Public(id int64) (wire.Sale, bool) {
	s := c.live.Load().item(id)
	if s == nil || s.Hidden {
		return wire.Sale{}, false
	}
	now := c.clk.Now()
	p := s.public(now)
	p.Now = wire.At(now)
	return p, true
}

// List is what the public is told of every live sale that is not hidden, by ascending id.
func (c *Catalog) List() []wire.Sale {
	now := c.clk.Now()
	list := []wire.Sale{}
	if v := c.live.Load(); v != nil {
		for _, id := range v.ids {
			s := v.byID[id]
			if s.Hidden {
				continue
			}
			p := s.public(now)
			p.Now = wire.At(now)
			list = append(list, p)
		}
	}
	return list
}

// feed is what was published, with the version at which each sale last changed.
type feed struct {
	instance string

	mu      sync.Mutex // guards all below
	version uint64
	sales   map[int64]published
	gone    []removal     // ascending by version, at most goneMax
	floor   uint64        // changes up to this version are no longer all known: who is older gets everything
	news    chan struct{} // closed, and replaced, when version rises
}

type published struct {
	sale    wire.Sale
	version uint64
}

type removal struct {
	id      int64
	version uint64
}

// goneMax is how many removals are remembered; a gateway that slept through more gets the full list.
const goneMax = 1024

func newFeed() feed {
	return feed{instance: uuid.NewString(), sales: map[int64]published{}, news: make(chan struct{})}
}

// publish compares every sale with what was last published, wakes whoever waits for news, and returns how long until time
// alone changes something (at most a minute: the clock may be set meanwhile).
func (c *Catalog) publish() (next time.Duration) {
	next = time.Minute
	f := &c.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	v := c.live.Load() // under the lock: so that of two publishers the later does not publish the older view
	if v == nil {
		return next
	}
	now := c.clk.Now()
	version := f.version + 1
	shown := 0
	news := f.version == 0 // also an empty list is news, once
	for id, s := range v.byID {
		if s.Hidden {
			continue
		}
		shown++
		p := s.public(now)
		if before, ok := f.sales[id]; !ok || !samePublic(before.sale, p) {
			f.sales[id] = published{p, version}
			news = true
		}
		if at := s.NextChange(now); !at.IsZero() {
			next = min(next, at.Sub(now))
		}
	}
	if len(f.sales) > shown {
		for id := range f.sales {
			if s := v.byID[id]; s == nil || s.Hidden {
				delete(f.sales, id)
				f.gone = append(f.gone, removal{id, version})
				news = true
			}
		}
		if drop := len(f.gone) - goneMax; drop > 0 {
			f.floor = f.gone[drop-1].version
			f.gone = slices.Delete(f.gone, 0, drop)
		}
	}
	if news {
		f.version = version
		close(f.news)
		f.news = make(chan struct{})
	}
	return next
}

func samePublic(a, b wire.Sale) bool {
	if (a.NextReleaseAt == nil) != (b.NextReleaseAt == nil) || a.NextReleaseAt != nil && !a.NextReleaseAt.Equal(b.NextReleaseAt.Time) ||
		!a.StartsAt.Equal(b.StartsAt.Time) || !a.EndsAt.Equal(b.EndsAt.Time) {
		return false
	}
	a.NextReleaseAt, b.NextReleaseAt = nil, nil
	a.StartsAt, b.StartsAt, a.EndsAt, b.EndsAt = wire.Time{}, wire.Time{}, wire.Time{}, wire.Time{}
	return a == b
}

// Feed answers a gateway that has version since of this instance: at once when there is news, or when it knows another
// instance (then with everything); else when there is news, or after wait with nothing but the time. Before the catalog
// was first read it waits for that; see Ready.
func (c *Catalog) Feed(ctx context.Context, instance string, since uint64, wait time.Duration) wire.Feed {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		answer, some, news := c.feed.after(instance, since)
		if !some {
			select {
			case <-news:
				continue
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		answer.Now = wire.At(c.clk.Now())
		for i := range answer.Sales {
			answer.Sales[i].Now = answer.Now
		}
		return answer
	}
}

// after is what changed since, whether that is anything, and what to wait for if not.
func (f *feed) after(instance string, since uint64) (answer wire.Feed, some bool, news <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer = wire.Feed{Instance: f.instance, Version: f.version, Sales: []wire.Sale{}, Removed: []int64{}}
	if f.version == 0 {
		return answer, false, f.news
	}
	answer.Full = instance != f.instance || since < f.floor || since > f.version || since == 0
	for _, p := range f.sales {
		if answer.Full || p.version > since {
			answer.Sales = append(answer.Sales, p.sale)
		}
	}
	slices.SortFunc(answer.Sales, func(a, b wire.Sale) int { return cmp.Compare(a.ID, b.ID) })
	if !answer.Full {
		for _, g := range f.gone {
			if _, back := f.sales[g.id]; g.version > since && !back {
				answer.Removed = append(answer.Removed, g.id)
			}
		}
	}
	return answer, answer.Full || since < f.version, f.news
}
