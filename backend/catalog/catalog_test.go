package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// unread makes a catalog that has neither MySQL nor Redis: what they said is put in by the tests.
func unread() *Catalog {
	return New(Config{Clock: &clock.Clock{}, Log: slog.New(slog.DiscardHandler), Register: prometheus.NewRegistry()})
}

func testSale(id int64, starts time.Time, ends time.Time, tranches ...sale.Tranche) sale.Sale {
	return sale.Sale{ID: id, SKU: id, Kind: wire.Goods, Title: fmt.Sprint("sale ", id), Price: 4900, Currency: "EUR", StartsAt: starts, EndsAt: ends,
		PerUserLimit: 1, PayWithin: time.Minute, Version: 1, Tranches: tranches}
}

func (c *Catalog) said(id, left int64) {
	s := c.live.Load().item(id).stock
	s.left.Store(left)
	s.known.Store(true)
}

func TestStateFollowsTimeAndStock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unread()
		t0 := time.Now()
		c.install([]sale.Sale{testSale(1, t0.Add(time.Minute), t0.Add(time.Hour), sale.Tranche{At: t0.Add(10 * time.Minute), Quantity: 5})})
		state := func(want wire.SaleState, releases bool) {
			t.Helper()
			got, ok := c.Public(1)
			if !ok || got.State != want || (got.NextReleaseAt != nil) != releases {
				t.Errorf("at +%v: got %v, %s, next release %v; want %s, %v", time.Since(t0), ok, got.State, got.NextReleaseAt, want, releases)
			}
		}
		state(wire.Upcoming, true)
		c.said(1, 15)
		time.Sleep(time.Minute)
		state(wire.Open, true) // exactly at the start
		c.said(1, 6)
		state(wire.Open, true)
		c.said(1, 5) // what is left is still to be released
		state(wire.SoldOut, true)
		time.Sleep(9 * time.Minute)
		state(wire.Open, false)
		c.Observe(1, 0)
		state(wire.SoldOut, false)
		c.Observe(1, 3) // an older answer that came late
		state(wire.SoldOut, false)
		c.said(1, 3)
		state(wire.Open, false)
		time.Sleep(50*time.Minute - time.Millisecond)
		state(wire.Open, false)
		time.Sleep(time.Millisecond)
		state(wire.Ended, false) // exactly at the end
	})
}

func TestUnknownStockIsOpen(t *testing.T) {
	c := unread()
	now := time.Now()
	c.install([]sale.Sale{testSale(1, now.Add(-time.Hour), now.Add(time.Hour))})
	if got, _ := c.Public(1); got.State != wire.Open {
		t.Errorf("got %s, want open: Redis decides", got.State)
	}
	paused := testSale(1, now.Add(-time.Hour), now.Add(time.Hour))
	paused.Paused = true
	c.install([]sale.Sale{paused})
	if got, _ := c.Public(1); got.State != wire.Paused {
		t.Errorf("got %s, want paused", got.State)
	}
	paused.ClosedAt = &now
	c.install([]sale.Sale{paused})
	if got, _ := c.Public(1); got.State != wire.Ended {
		t.Errorf("got %s, want ended", got.State)
	}
}

// Row C1: the public is told nothing of a campaign that is not published: no list, no page, no feed; Redis takes no order.
func TestAHiddenSaleIsNobodysBusiness(t *testing.T) {
	t.Attr("row", "C1")
	c := unread()
	now := time.Now()
	open, hidden := testSale(1, now.Add(-time.Hour), now.Add(time.Hour)), testSale(2, now.Add(-time.Hour), now.Add(time.Hour))
	hidden.Hidden = true
	look := func(want ...int64) {
		t.Helper()
		var list []int64
		for _, s := range c.List() {
			list = append(list, s.ID)
		}
		_, public := c.Public(2)
		_, err := c.Get(t.Context(), 2)
		if shown := slices.Contains(want, 2); !slices.Equal(list, want) || public != shown || shown != (err == nil) || !shown && !errors.Is(err, ErrUnknown) {
			t.Errorf("got the list %v, page %v, sale %v; want %v", list, public, err, want)
		}
		if !slices.Equal(c.Live(), []int64{1, 2}) {
			t.Errorf("got %v live: its orders are to be settled all the same", c.Live())
		}
	}
	c.install([]sale.Sale{open, hidden})
	c.publish()
	look(1)
	first := c.Feed(t.Context(), "", 0, 0)
	if len(first.Sales) != 1 || first.Sales[0].ID != 1 || !hidden.Definition().Paused {
		t.Errorf("got %+v", first)
	}
	hidden.Hidden = false
	c.install([]sale.Sale{open, hidden})
	c.publish()
	look(1, 2)
	second := c.Feed(t.Context(), first.Instance, first.Version, 0)
	if second.Full || len(second.Sales) != 1 || second.Sales[0].ID != 2 || hidden.Definition().Paused {
		t.Errorf("published: got %+v", second)
	}
	hidden.Hidden = true
	c.install([]sale.Sale{open, hidden})
	c.publish()
	look(1)
	third := c.Feed(t.Context(), first.Instance, second.Version, 0)
	if third.Full || len(third.Sales) != 0 || !slices.Equal(third.Removed, []int64{2}) {
		t.Errorf("hidden again: got %+v", third)
	}
	if again := c.Feed(t.Context(), first.Instance, third.Version, 0); len(again.Sales)+len(again.Removed) != 0 || again.Version != third.Version {
		t.Errorf("nothing changed: got %+v", again)
	}
}

func TestFeedWaitsForTheFirstReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unread()
		if c.Ready() == nil {
			t.Error("ready before anything was read")
		}
		got := make(chan wire.Feed)
		go func() { got <- c.Feed(t.Context(), "", 0, time.Minute) }()
		synctest.Wait()
		c.install(nil)
		c.publish()
		f := <-got
		if !f.Full || f.Version != 1 || f.Instance == "" || f.Sales == nil || f.Removed == nil || c.Ready() != nil {
			t.Errorf("got %+v, want the full, empty list", f)
		}
	})
}

func TestFeedWakesAtOnceAndTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unread()
		began := time.Now()
		c.install([]sale.Sale{testSale(1, began, began.Add(time.Hour))})
		c.said(1, 1)
		c.publish()
		first := c.Feed(t.Context(), "somebody else", 77, time.Minute)
		if !first.Full || len(first.Sales) != 1 || time.Since(began) != 0 {
			t.Fatalf("got %+v after %v", first, time.Since(began))
		}
		idle := c.Feed(t.Context(), first.Instance, first.Version, 3*time.Second)
		if idle.Full || len(idle.Sales) != 0 || idle.Version != first.Version || time.Since(began) != 3*time.Second {
			t.Errorf("got %+v after %v, want nothing after 3s", idle, time.Since(began))
		}
		if !idle.Now.Equal(began.Add(3 * time.Second)) {
			t.Errorf("got now %v, want %v", idle.Now, began.Add(3*time.Second))
		}
		got := make(chan wire.Feed)
		go func() { got <- c.Feed(t.Context(), first.Instance, first.Version, time.Minute) }()
		synctest.Wait()
		c.Observe(1, 0)
		c.publish()
		f := <-got
		if len(f.Sales) != 1 || f.Sales[0].State != wire.SoldOut || f.Full || time.Since(began) != 3*time.Second {
			t.Errorf("got %+v after %v, want sold out at once", f, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { got <- c.Feed(ctx, f.Instance, f.Version, time.Minute) }()
		synctest.Wait()
		cancel()
		<-got
	})
}

func TestPublishSaysWhenTimeChangesSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unread()
		now := time.Now()
		c.install([]sale.Sale{testSale(1, now.Add(700*time.Millisecond), now.Add(time.Hour)), testSale(2, now.Add(-time.Hour), now)})
		if got := c.publish(); got != 700*time.Millisecond {
			t.Errorf("got %v, want 700ms", got)
		}
		time.Sleep(700 * time.Millisecond)
		c.publish()
		if f := c.Feed(t.Context(), c.feed.instance, 1, 0); len(f.Sales) != 1 || f.Sales[0].State != wire.Open {
			t.Errorf("got %+v, want sale 1 open", f)
		}
	})
}

// A gateway that applies the answers it gets, and misses none, knows what the catalog lists.
func TestFollowersSeeWhatIsListed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := unread()
		start := time.Now().Add(-time.Hour)
		have, version, instance := map[int64]wire.Sale{}, uint64(0), ""
		sales := map[int64]sale.Sale{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			for range rapid.IntRange(0, 5).Draw(t, "changes") {
				id := rapid.Int64Range(1, 6).Draw(t, "id")
				switch rapid.IntRange(0, 3).Draw(t, "what") {
				case 0:
					sales[id] = testSale(id, start, start.Add(100*time.Hour))
				case 1:
					delete(sales, id)
				case 2:
					if s, ok := sales[id]; ok {
						s.Paused = !s.Paused
						sales[id] = s
					}
				case 3:
					c.Observe(id, 0)
				}
				list := slices.SortedFunc(maps.Values(sales), func(a, b sale.Sale) int { return int(a.ID - b.ID) })
				c.install(list)
				c.publish()
			}
			if c.Ready() != nil {
				continue
			}
			f := c.Feed(context.Background(), instance, version, 0)
			if f.Full {
				have = map[int64]wire.Sale{}
			}
			for _, id := range f.Removed {
				delete(have, id)
			}
			for _, s := range f.Sales {
				s.Now = wire.Time{}
				have[s.ID] = s
			}
			version, instance = f.Version, f.Instance
			want := map[int64]wire.Sale{}
			for _, s := range c.List() {
				s.Now = wire.Time{}
				want[s.ID] = s
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Fatalf("the follower differs (-want +got):\n%s", diff)
			}
		}
	})
}

func TestFeedAfterTooManyRemovalsIsFull(t *testing.T) {
	c := unread()
	now := time.Now()
	c.install([]sale.Sale{testSale(1, now, now.Add(time.Hour))})
	c.publish()
	for i := range int64(goneMax) + 2 {
		c.install([]sale.Sale{testSale(1, now, now.Add(time.Hour)), testSale(i+2, now, now.Add(time.Hour))})
		c.publish()
	}
	if f := c.Feed(t.Context(), c.feed.instance, 1, 0); !f.Full || len(f.Sales) != 2 || len(f.Removed) != 0 {
		t.Errorf("got full %v, %d sales, %d removed; want everything", f.Full, len(f.Sales), len(f.Removed))
	}
	if f := c.Feed(t.Context(), c.feed.instance, c.feed.version-1, 0); f.Full || len(f.Sales) != 1 || len(f.Removed) != 1 {
		t.Errorf("got full %v, %d sales, %d removed; want the last change alone", f.Full, len(f.Sales), len(f.Removed))
	}
	if len(c.feed.gone) > goneMax {
		t.Errorf("got %d removals in memory, want at most %d", len(c.feed.gone), goneMax)
	}
}

func TestAbsentIsBoundedAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a absent
		a.add(1)
		time.Sleep(absentFor)
		if !a.has(1) {
			t.Error("forgotten too soon")
		}
		time.Sleep(absentFor)
		if a.has(1) {
			t.Error("still remembered")
		}
		for id := range int64(5 * absentMax) {
			a.add(id)
		}
		if n := len(a.young) + len(a.old); n > 2*absentMax {
			t.Errorf("got %d ids in memory, want at most %d", n, 2*absentMax)
		}
		if !a.has(5*absentMax - 1) {
			t.Error("the newest is forgotten")
		}
	})
}

// A sale that moves is read at each turn, a sold-out one at each fifth, any other at each hundredth.
func TestSalesTakeTurns(t *testing.T) {
	c := unread()
	now := time.Now()
	var sales []sale.Sale
	for id := range int64(1000) {
		sales = append(sales, testSale(1+id, now.Add(-time.Hour), now.Add(time.Hour)))
	}
	c.install(sales)
	for _, s := range sales {
		c.said(s.ID, s.ID%2) // every second one is sold out
	}
	due := func() (sold, rest int) {
		turn := c.turn.Add(1)
		for _, s := range c.live.Load().byID {
			if s.due(turn, now) {
				if s.stock.left.Load() == 0 {
					sold++
				} else {
					rest++
				}
			}
		}
		return sold, rest
	}
	for range movingTurns - 1 {
		if sold, rest := due(); sold+rest != len(sales) {
			t.Fatalf("got %d and %d that are due, want all: they are new", sold, rest)
		}
	}
	all := 0
	for range restingTurns {
		sold, rest := due()
		if sold != 500/soldOutTurns {
			t.Errorf("got %d sold out ones that are due, want a fifth", sold)
		}
		all += rest
	}
	if all != 500 {
		t.Errorf("got %d readings of the 500 others in %d turns, want one of each", all, restingTurns)
	}
	c.Observe(2, 1)
	for range movingTurns - 1 {
		if !c.live.Load().item(2).due(c.turn.Add(1), now) {
			t.Fatal("one that was asked for is not due")
		}
	}
}

func TestInstallKeepsWhatIsKnownOfTheStock(t *testing.T) {
	c := unread()
	now := time.Now()
	c.install([]sale.Sale{testSale(1, now, now.Add(time.Hour)), testSale(5, now, now.Add(time.Hour))})
	c.SetEpoch(1, 7)
	c.install(c.live.Load().with(testSale(3, now, now.Add(time.Hour))))
	if diff := cmp.Diff([]int64{1, 3, 5}, c.Live()); diff != "" || c.Epoch(1) != 7 || c.Epoch(3) != 0 || c.Epoch(99) != 0 {
		t.Errorf("got live %v, epochs %d %d %d", c.Live(), c.Epoch(1), c.Epoch(3), c.Epoch(99))
	}
	c.install(c.live.Load().with(testSale(9, now, now.Add(time.Hour))))
	if s, err := c.Get(t.Context(), 9); err != nil || s.ID != 9 {
		t.Errorf("got %v, %v", s, err)
	}
}

func BenchmarkObserveSoldOut(b *testing.B) {
	c := unread()
	now := time.Now()
	c.install([]sale.Sale{testSale(1, now.Add(-time.Hour), now.Add(time.Hour))})
	b.ReportAllocs()
	for b.Loop() {
		c.Observe(1, 0)
	}
}
