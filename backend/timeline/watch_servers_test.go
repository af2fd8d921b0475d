//go:build servers

package timeline

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// told is a sale's history, as "state seconds-after-base", with a ? where it is not sure.
func (d *desk) told(sale int64, base time.Time) (list []string) {
	d.t.Helper()
	if err := store.Each(d.t.Context(), d.db, func(rows *sql.Rows) error {
		var at time.Time
		var state string
		var sure bool
		err := rows.Scan(&at, &state, &sure)
		mark := map[bool]string{false: "?"}[sure]
		list = append(list, fmt.Sprintf("%s %.1f%s", state, at.Sub(base).Seconds(), mark))
		return err
	}, `SELECT at, state, sure FROM sale_states WHERE sale_id = ? ORDER BY n`, sale); err != nil {
		d.t.Fatal(err)
	}
	return list
}

// A sale's history is written once, by one of those who watch; starts and ends have the window's times; what happened while
// nobody watched is marked.
func TestHistoriesOfSales(t *testing.T) {
	d := newDesk(t, 100)
	base := time.Now().UTC().Truncate(time.Second)
	after := func(seconds float64) time.Time {
		return base.Add(time.Duration(seconds * float64(time.Second)))
	}
	sale := backendtest.Sale(t, d.db, backendtest.SaleOptions{StartsAt: after(10), EndsAt: after(100)})
	old := backendtest.Sale(t, d.db, backendtest.SaleOptions{StartsAt: after(-1000), EndsAt: after(-500)})
	open := backendtest.Sale(t, d.db, backendtest.SaleOptions{StartsAt: after(-1000), EndsAt: after(500)})
	a, b := &watch{Store: d.Store, holder: "a"}, &watch{Store: d.another(d.db, 100), holder: "b"}
	is := func(state wire.SaleState) map[int64]wire.Sale {
		return map[int64]wire.Sale{
			sale: {ID: sale, State: state, StartsAt: wire.At(after(10)), EndsAt: wire.At(after(100))},
			old:  {ID: old, State: wire.Ended, StartsAt: wire.At(after(-1000)), EndsAt: wire.At(after(-500))},
			open: {ID: open, State: wire.Open, StartsAt: wire.At(after(-1000)), EndsAt: wire.At(after(500))},
		}
	}
	write := func(w *watch, state wire.SaleState, seconds float64) {
		t.Helper()
		if err := w.write(t.Context(), is(state), after(seconds)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.write(t.Context(), map[int64]wire.Sale{}, after(-1)); err != nil || !a.leads {
		t.Fatalf("the first to come does not lead: %v", err)
	}
	write(a, wire.Upcoming, 0)
	write(b, wire.Upcoming, 0.1)
	if b.leads {
		t.Error("two lead")
	}
	for _, s := range []struct {
		state wire.SaleState
		at    float64
	}{{wire.Upcoming, 2}, {wire.Open, 10.2}, {wire.SoldOut, 11.5}, {wire.SoldOut, 11.6}, {wire.Open, 12}, {wire.SoldOut, 13}} {
		write(a, s.state, s.at)
		write(b, s.state, s.at+0.05)
	}
	// a stops without a word; meanwhile the sale goes on.
	write(b, wire.Open, 16)
	write(b, wire.Paused, 20)
	if !b.leads {
		t.Error("nobody took over")
	}
	write(a, wire.Paused, 20.1) // and comes back
	write(a, wire.Open, 21)
	write(b, wire.Open, 21.2)
	if err := b.end(); err != nil {
		t.Error(err)
	}
	write(a, wire.SoldOut, 23.5)
	if !a.leads {
		t.Error("nobody took over from who has ended")
	}
	write(a, wire.Ended, 100.1)
	want := []string{"upcoming 0.0", "open 10.0", "sold_out 11.5", "open 12.0", "sold_out 13.0", "paused 20.0?", "open 21.2", "sold_out 23.5", "ended 100.0"}
	if got := d.told(sale, base); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := d.told(old, base); !slices.Equal(got, []string{"ended -500.0"}) {
		t.Errorf("a sale that was over before: got %q", got)
	}
	if got := d.told(open, base); !slices.Equal(got, []string{"open 0.0"}) {
		t.Errorf("a sale that was open from the beginning: got %q", got)
	}

	tl := d.of("ann", sale)
	if n := len(want); len(tl.Events) != n || tl.Events[n-1].Until != nil || !tl.Events[1].Until.Equal(tl.Events[2].At.Time) || tl.Events[1].Rule != "open" || tl.Complete ||
		!strings.Contains(tl.Missing[0], "nobody watched just before 1 of those") || !strings.Contains(tl.Events[5].Detail, "may have begun earlier") {
		t.Errorf("as it is told: got %+v", tl)
	}
	backendtest.Load(t, d.db, d.redis, open) // else queued orders might be missing
	if tl := d.of("ann", open); !tl.Complete {
		t.Errorf("an open sale that was watched: got %+v", tl)
	}
}

// A sale that changes without end keeps its first changes and its end, and how many there were between; after its time all
// of it is deleted.
func TestAHistoryIsBounded(t *testing.T) {
	d := newDesk(t, 100)
	now := d.now()
	sale := backendtest.Sale(t, d.db, backendtest.SaleOptions{StartsAt: now.Add(-26 * time.Hour), EndsAt: now.Add(-25 * time.Hour)})
	w := &watch{Store: d.Store, holder: "a"}
	at := now.Add(-26 * time.Hour)
	write := func(state wire.SaleState) {
		t.Helper()
		at = at.Add(time.Second)
		if err := w.write(t.Context(), map[int64]wire.Sale{sale: {ID: sale, State: state, StartsAt: wire.At(now.Add(-26 * time.Hour)), EndsAt: wire.At(now.Add(-25 * time.Hour))}}, at); err != nil {
			t.Fatal(err)
		}
	}
	write(wire.Open)
	if _, err := d.db.ExecContext(t.Context(), `UPDATE timeline_sales SET changes = ? WHERE sale_id = ?`, maxChanges-1, sale); err != nil {
		t.Fatal(err)
	}
	w = &watch{Store: d.Store, holder: "a"} // it reads anew
	for range 5 {
		write(wire.SoldOut)
		write(wire.Open)
	}
	at = now.Add(-25 * time.Hour)
	write(wire.Ended)
	if n := d.number(`SELECT COUNT(*) FROM sale_states WHERE sale_id = ?`, sale); n != 3 {
		t.Errorf("%d changes are listed, want the first, one more, and the end", n)
	}
	tl := d.of("ann", sale)
	if tl.Complete || !strings.Contains(strings.Join(tl.Missing, "; "), "changed 9 more times") || tl.Events[len(tl.Events)-1].Rule != "ended" {
		t.Errorf("got %+v", tl)
	}
	for _, want := range []int{1, 0} {
		if n, err := d.Prune(t.Context()); n != want || err != nil {
			t.Errorf("got %d, %v; want %d", n, err, want)
		}
	}
	if tl = d.of("ann", sale); len(tl.Events) != 0 || tl.Complete || !strings.Contains(tl.Missing[0], "its own history is not kept any more") {
		t.Errorf("after its time: got %+v", tl)
	}
	write(wire.Ended) // it is still told of as ended, and stays forgotten
	w = &watch{Store: d.Store, holder: "b"}
	at = at.Add(time.Hour)
	write(wire.Ended)
	if n := d.number(`SELECT COUNT(*) FROM sale_states WHERE sale_id = ?`, sale); n != 0 {
		t.Errorf("%d changes came back", n)
	}
}

// Two processes watch a sale that changes all the time, one of them ends half way: no change is written twice, and none is
// written over a later one.
func TestTwoWatch(t *testing.T) {
	d := newDesk(t, 100)
	sale := backendtest.Sale(t, d.db, backendtest.SaleOptions{})
	var mu sync.Mutex // guards what follows
	state, version, news := wire.Open, uint64(1), make(chan struct{})
	feed := func(ctx context.Context, _ string, since uint64, _ time.Duration) wire.Feed {
		mu.Lock()
		wait := news
		fresh := version > since
		mu.Unlock()
		if !fresh {
			select {
			case <-wait:
			case <-ctx.Done():
			case <-time.After(watchEvery / 4):
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return wire.Feed{Instance: "one", Version: version, Now: wire.At(time.Now()), Sales: []wire.Sale{{ID: sale, State: state, EndsAt: wire.At(time.Now().Add(time.Hour))}}}
	}
	var wg sync.WaitGroup
	watcher := func() context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		s := d.another(d.db, 100)
		wg.Go(func() {
			if err := s.Watch(feed)(ctx); err != nil {
				t.Error(err)
			}
		})
		return cancel
	}
	defer wg.Wait()
	endFirst := watcher()
	defer endFirst()
	last := func() (s string) {
		list := d.told(sale, time.Now())
		if len(list) > 0 {
			s, _, _ = strings.Cut(list[len(list)-1], " ")
		}
		return s
	}
	await := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); last() != string(state); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not written: %q", state, d.told(sale, time.Now()))
			}
		}
	}
	await() // so it is the first one that leads
	defer watcher()()
	changes := 1
	for i := range 20 {
		mu.Lock()
		state = []wire.SaleState{wire.SoldOut, wire.Open}[i%2]
		version++
		changes++
		close(news)
		news = make(chan struct{})
		mu.Unlock()
		await()
		if i == 10 {
			endFirst()
		}
	}
	if got := d.told(sale, time.Now()); len(got) != changes {
		t.Errorf("%d changes are written as %d: %q", changes, len(got), got)
	}
}
