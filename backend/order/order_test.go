package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/wire"
)

func orderID(n int) string {
	return wire.NewOrderID(fmt.Sprintf("0190163d-8694-739b-aea5-%012x", n), 7)
}

func good() queued.Entry {
	return queued.Entry{ID: orderID(1), Sale: 7, UID: "u", Quantity: 2, Slots: "1,2", Key: "k", Epoch: 1, At: 1700000000000, Entry: "1-1"}
}

func TestCheckNamesWhatContradictsItself(t *testing.T) {
	if problem, row := check(good()); problem != nil || !row {
		t.Fatalf("a good entry: got %v, %v", problem, row)
	}
	for name, c := range map[string]struct {
		spoil func(*queued.Entry)
		row   bool
	}{
		"no order id":       {func(e *queued.Entry) { e.ID = "x" }, false},
		"of another sale":   {func(e *queued.Entry) { e.Sale = 8 }, false},
		"no uid":            {func(e *queued.Entry) { e.UID = "" }, false},
		"a long uid":        {func(e *queued.Entry) { e.UID = strings.Repeat("u", 65) }, false},
		"no quantity":       {func(e *queued.Entry) { e.Quantity, e.Slots = 0, "" }, true},
		"negative quantity": {func(e *queued.Entry) { e.Quantity = -1 }, true},
		"much":              {func(e *queued.Entry) { e.Quantity = maxUnits + 1 }, true},
		"too few slots":     {func(e *queued.Entry) { e.Slots = "1" }, true},
		"a slot twice":      {func(e *queued.Entry) { e.Slots = "1,1" }, true},
		"slot 0":            {func(e *queued.Entry) { e.Slots = "0,1" }, true},
		"no slot":           {func(e *queued.Entry) { e.Slots = "a,b" }, true},
		"a long key":        {func(e *queued.Entry) { e.Key = strings.Repeat("k", 129) }, true},
		"before 1970":       {func(e *queued.Entry) { e.At = -1 }, true},
		"after 9999":        {func(e *queued.Entry) { e.At = maxMillis + 1 }, true},
	} {
		e := good()
		c.spoil(&e)
		if problem, row := check(e); problem == nil || row != c.row {
			t.Errorf("%s: got %v, can have a row %v; want a problem, %v", name, problem, row, c.row)
		}
	}
}

func TestNewestKeepsOneEntryAnOrderOfTheHighestEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch := rapid.SliceOf(rapid.Custom(func(t *rapid.T) queued.Entry {
			return queued.Entry{ID: orderID(rapid.IntRange(0, 9).Draw(t, "order")), Epoch: rapid.Int64Range(1, 4).Draw(t, "epoch")}
		})).Draw(t, "batch")
		want := map[string]int64{}
		for _, e := range batch {
			want[e.ID] = max(want[e.ID], e.Epoch)
		}
		got := newest(batch)
		if len(got) != len(want) || !slices.IsSortedFunc(got, func(x, y queued.Entry) int { return strings.Compare(x.ID, y.ID) }) {
			t.Fatalf("got %v, want one each of %v, sorted", got, want)
		}
		for _, e := range got {
			if e.Epoch != want[e.ID] {
				t.Errorf("order %s: got epoch %d, want %d", e.ID, e.Epoch, want[e.ID])
			}
		}
	})
}

func TestStateErrorIsErrState(t *testing.T) {
	err := fmt.Errorf("pay: %w", &StateError{wire.Order{OrderID: "o", Status: wire.Cancelled}, "it cannot become paid"})
	var s *StateError
	if !errors.Is(err, ErrState) || errors.Is(err, ErrNotFound) || !errors.As(err, &s) || s.Order.Status != wire.Cancelled {
		t.Errorf("got %v, %v", err, s)
	}
}

func TestNoticedReadsWhatNotifyWrites(t *testing.T) {
	got := slices.Collect(noticed(orderID(1) + " pending_payment\n" + "garbage\n\n" + orderID(2) + " rejected\n" + "half"))
	if want := []string{orderID(1), orderID(2)}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWaitersAreBoundedAndWokenOnlyWhenWaitedFor(t *testing.T) {
	w := newWaiters(3)
	a1, a2, b := w.add("a"), w.add("a"), w.add("b")
	if w.add("c") != nil {
		t.Error("a fourth of three may wait")
	}
	w.settled("c")
	if got := w.takeWoken(); len(got) != 0 || len(w.wake) != 0 {
		t.Errorf("nobody waits for c: got %v", got)
	}
	w.settled("a")
	w.settled("a")
	if got := w.takeWoken(); !slices.Equal(got, []string{"a"}) || len(w.wake) != 1 {
		t.Errorf("got %v woken, %d tokens; want a, 1", got, len(w.wake))
	}
	w.deliver(row{id: "a", quantity: 1})
	w.deliver(row{id: "a", quantity: 2}) // nobody took the first one yet: it stays
	for _, x := range []*waiter{a1, a2} {
		if got := <-x.c; got.quantity != 1 {
			t.Errorf("got %+v, want what was delivered first", got)
		}
	}
	w.settled("b")
	w.remove(b)
	w.remove(a1)
	if got, ids := w.takeWoken(), w.ids(); len(got) != 0 || !slices.Equal(ids, []string{"a"}) || w.waiting() != 1 {
		t.Errorf("after they left: woken %v, waited for %v, %d waiters; want none, a, 1", got, ids, w.waiting())
	}
	w.remove(a2)
	if w.add("c") == nil || len(w.all) != 1 {
		t.Errorf("places are not free again: %v", w.all)
	}
}

func TestLookupsOfManyAreFewQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var queries [][]string
		l := newLookups(func(_ context.Context, ids []string) (map[string]row, error) {
			mu.Lock()
			queries = append(queries, slices.Clone(ids))
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			found := map[string]row{}
			for _, id := range ids {
				if id != "none" {
					found[id] = row{id: id}
				}
			}
			return found, nil
		}, prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x"}))
		ask := func(id string) {
			r, ok, err := l.get(t.Context(), id)
			if err != nil || ok != (id != "none") || ok && r.id != id {
				t.Errorf("%s: got %+v, %v, %v", id, r, ok, err)
			}
		}
		var all sync.WaitGroup
		for i := range lookupQueries { // as many queries as may be under way
			all.Go(func() { ask(fmt.Sprint("first", i)) })
			synctest.Wait()
		}
		for i := range 3 * lookupOnce {
			all.Go(func() { ask(fmt.Sprint(i % (2 * lookupOnce))) })
		}
		all.Go(func() { ask("none") })
		synctest.Wait()
		if len(queries) != lookupQueries {
			t.Errorf("got %d queries under way, want %d", len(queries), lookupQueries)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // who leaves keeps nobody else from the answer
		all.Go(func() {
			if _, _, err := l.get(ctx, "left"); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		all.Wait()
		if got, most := len(queries)-lookupQueries, 4; got < 2 || got > most {
			t.Errorf("got %d queries for the rest, want 2 to %d", got, most)
		}
		for _, q := range queries {
			slices.Sort(q)
			if len(q) > lookupOnce || len(slices.Compact(q)) != len(q) {
				t.Errorf("a query of %d orders, with repetitions or too many", len(q))
			}
		}
	})
}

func TestLookupsReportTheErrorToEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broke := errors.New("broke")
		l := newLookups(func(ctx context.Context, _ []string) (map[string]row, error) {
			if d, ok := ctx.Deadline(); !ok || time.Until(d) > lookupTimeout {
				t.Errorf("a query without a deadline: %v", d)
			}
			time.Sleep(time.Millisecond)
			return nil, broke
		}, prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x"}))
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				if _, ok, err := l.get(t.Context(), fmt.Sprint(i)); ok || !errors.Is(err, broke) {
					t.Errorf("got %v, %v", ok, err)
				}
			})
		}
		all.Wait()
	})
}
