//go:build servers

package event_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/store"
)

// Two processes deliver at once, and nothing twice, in the good case.
func TestTwoProcessesDeliverEachOnce(t *testing.T) {
	r := newReceiver(t, "shop", nil)
	s := newShop(t, r.Endpoint)
	s.sender(s.events)
	s.sender(s.events)
	ids := s.ordered(s.sale(backendtest.SaleOptions{Stock: 200}), 150)
	for _, id := range ids[:75] {
		s.cancel(id)
	}
	if by := s.settled("shop"); by[event.Delivered] != 225 {
		t.Errorf("got %v, want 225 delivered", by)
	}
	seen := map[string]bool{}
	for _, g := range r.taken() {
		if seen[g.id] {
			t.Errorf("%s came twice", g.id)
		}
		seen[g.id] = true
	}
	if len(seen) != 225 {
		t.Errorf("the endpoint took %d, want 225", len(seen))
	}
}

// An event waits for the earlier ones of its order, and holds back no other order.
func TestOneOrdersEventsKeepTheirOrder(t *testing.T) {
	var bad string
	var well atomic.Bool
	r := newReceiver(t, "shop", func(g got) int {
		if g.ref == bad && !well.Load() {
			if g.kind != "order.created" {
				t.Errorf("%s came before order.created was taken", g.kind)
			}
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	s := newShop(t, r.Endpoint)
	ids := s.ordered(s.sale(backendtest.SaleOptions{Stock: 50}), 40)
	bad = ids[0]
	for _, id := range ids {
		s.pay(id)
	}
	s.sender(s.events)
	r.wait(78) // all of the others
	s.until("shop", func(by map[event.State]int) bool { return by[event.Waiting] == 2 && by[event.Delivered] == 78 })
	well.Store(true)
	s.clk.Set(s.clk.Now().Add(time.Hour), time.Now())
	if by := s.settled("shop"); by[event.Delivered] != 80 {
		t.Errorf("got %v, want 80 delivered", by)
	}
	last := map[string]string{}
	for _, g := range r.taken() {
		if was := last[g.ref]; was == "order.paid" || was == "" && g.kind != "order.created" {
			t.Errorf("%s: %s after %q", g.ref, g.kind, was)
		}
		last[g.ref] = g.kind
	}
}

// An endpoint that does not answer is asked by a bounded number at once, and holds back no other endpoint. When the process ends, what
// it did not answer is due again at once, and has not used up a try.
func TestAnEndpointThatHangsHoldsBackNoOther(t *testing.T) {
	release, at, most := make(chan struct{}), 0, 0
	var mu sync.Mutex
	hangs := newReceiver(t, "hangs", func(got) int {
		mu.Lock()
		at++
		most = max(most, at)
		mu.Unlock()
		<-release
		return http.StatusInternalServerError
	})
	well := newReceiver(t, "well", nil)
	s := newShop(t, hangs.Endpoint, well.Endpoint)
	s.ordered(s.sale(backendtest.SaleOptions{Stock: 100}), 90)
	_, stop := s.sender(s.events)
	well.wait(90)
	stop()
	close(release)
	list, err := event.List(t.Context(), s.db, event.Filter{Endpoint: "hangs"}, 1<<62, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.State != event.Waiting || d.Attempts != 0 || d.NextAt.After(s.clk.Now()) {
			t.Errorf("got %+v, want it due, with no try used", d)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if most < 1 || most > event.AtOnce || len(list) != 90 {
		t.Errorf("%d at once, want at most %d; %d wait, want 90", most, event.AtOnce, len(list))
	}
}

// An endpoint that fails for days gets each try of the schedule, and then none. A replay tries anew, under the same id.
func TestTriesEndAndAReplayBeginsAnew(t *testing.T) {
	tried, well := make(chan string, 100), atomic.Bool{}
	r := newReceiver(t, "shop", func(g got) int {
		if well.Load() {
			return http.StatusOK
		}
		tried <- g.id
		return http.StatusInternalServerError
	})
	s := newShop(t, r.Endpoint)
	id := s.ordered(s.sale(backendtest.SaleOptions{}), 1)[0]
	s.sender(s.events)
	for n := range len(event.Pauses) + 1 {
		<-tried
		s.until("shop", func(by map[event.State]int) bool { return s.attempts() == n+1 && !s.claimed() })
		if n < len(event.Pauses) {
			s.clk.Set(s.clk.Now().Add(event.Pauses[n]*11/10+time.Second), time.Now())
		}
	}
	if by := s.settled("shop"); by[event.Failed] != 1 {
		t.Fatalf("got %v, want one failed", by)
	}
	list, err := event.List(t.Context(), s.db, event.Filter{State: event.Failed}, 1<<62, 10)
	if err != nil || len(list) != 1 || list[0].OrderID != id || list[0].LastError != "it answered 500" || list[0].DoneAt == nil || list[0].NextAt != nil {
		t.Fatalf("got %+v, %v", list, err)
	}
	well.Store(true)
	if err := store.InTx(t.Context(), s.db, func(tx *sql.Tx) error {
		before, after, err := event.Replay(t.Context(), tx, s.clk.Now().Truncate(time.Millisecond), list[0].ID)
		if before.State != event.Failed || after.State != event.Waiting || after.Attempts != 0 {
			t.Errorf("got %+v, %+v", before, after)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := r.wait(1)[0]; got.id != list[0].WebhookID {
		t.Errorf("it is replayed as %s, want %s", got.id, list[0].WebhookID)
	}
	s.settled("shop")
	var total time.Duration
	for _, p := range event.Pauses {
		total += p
	}
	if total < 70*time.Hour || total > 74*time.Hour {
		t.Errorf("the tries take %v, want about three days", total)
	}
}

func (s *shop) number(query string) (n int) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), query).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *shop) attempts() int { return s.number(`SELECT MAX(attempts) FROM events`) }
func (s *shop) claimed() bool { return s.number(`SELECT COUNT(*) FROM events WHERE claim <> ''`) > 0 }

// What a process claimed that is gone is delivered by another when its claim has ended.
func TestADeadProcessesClaimsAreTakenOver(t *testing.T) {
	r := newReceiver(t, "shop", nil)
	s := newShop(t, r.Endpoint)
	ids := s.ordered(s.sale(backendtest.SaleOptions{}), 2)
	s.pay(ids[0])
	s.exec(`UPDATE events SET claim = 'dead', attempts = 1, due_at = ? WHERE ref = ? AND type = 'order.created'`, s.clk.Now().Add(event.Lease), ids[0])
	s.sender(s.events)
	r.wait(1)
	s.until("shop", func(by map[event.State]int) bool { return by[event.Delivered] == 1 && by[event.Waiting] == 2 })
	s.clk.Set(s.clk.Now().Add(event.Lease+time.Second), time.Now())
	kinds := []string{}
	for _, g := range r.wait(3) {
		if g.ref == ids[0] {
			kinds = append(kinds, g.kind)
		}
	}
	if !slices.Equal(kinds, []string{"order.created", "order.paid"}) {
		t.Errorf("got %v", kinds)
	}
}

// What is configured changes while it runs: a new endpoint gets what happens from then on, and one that is gone is given up after days.
func TestEndpointsChangeWhileItRuns(t *testing.T) {
	one, two := newReceiver(t, "one", nil), newReceiver(t, "two", nil)
	s := newShop(t, one.Endpoint)
	sender, _ := s.sender(s.events)
	sale := s.sale(backendtest.SaleOptions{Stock: 20})
	s.ordered(sale, 1)
	one.wait(1)
	s.settled("one") // or its try ends with the endpoint, unnoted
	s.events.Configure([]event.Endpoint{two.Endpoint})
	s.ordered(sale, 1)
	two.wait(1)
	s.settled("two")
	s.exec(`UPDATE events SET state = 'waiting' WHERE endpoint = 'one'`)
	tend := func() {
		t.Helper()
		for n := 1; n > 0; {
			var err error
			if n, err = sender.Tend(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	tend()
	if by := s.until("one", func(map[event.State]int) bool { return true }); by[event.Waiting] != 1 {
		t.Errorf("got %v, want it to wait", by)
	}
	s.eventually(func() error { // a try is counted after it is noted
		return testutil.GatherAndCompare(s.reg, strings.NewReader(`# HELP backend_events_waiting Events that are not delivered yet, by endpoint, as the timer last counted them.
# TYPE backend_events_waiting gauge
backend_events_waiting{endpoint="one"} 1
backend_events_waiting{endpoint="two"} 0
# HELP backend_events_tries_total Tries to deliver an event, by endpoint and result: delivered, retried (it is tried again later), failed (it was the last one).
# TYPE backend_events_tries_total counter
backend_events_tries_total{endpoint="one",result="delivered"} 1
backend_events_tries_total{endpoint="two",result="delivered"} 1
`), "backend_events_waiting", "backend_events_tries_total")
	})
	s.clk.Set(s.clk.Now().Add(73*time.Hour), time.Now())
	tend()
	if by := s.until("one", func(map[event.State]int) bool { return true }); by[event.Failed] != 1 {
		t.Errorf("got %v, want it given up", by)
	}
	if n := s.number(`SELECT COUNT(*) FROM events WHERE endpoint = 'two'`); n != 0 {
		t.Errorf("%d that were delivered long ago are left, want none", n)
	}
	s.clk.Set(s.clk.Now().Add(2*time.Hour), time.Now())
	tend()
	if n := s.number(`SELECT COUNT(*) FROM events`); n != 0 {
		t.Errorf("%d are left, want none", n)
	}
}

// A batch of orders makes one statement, whatever its size.
func TestABatchsEventsAreOneStatement(t *testing.T) {
	s := newShop(t, anywhere)
	sale := s.sale(backendtest.SaleOptions{Stock: 1000})
	s.ordered(sale, 500)
	if n := s.number(`SELECT COUNT(*) FROM events`); n != 500 {
		t.Errorf("got %d events, want 500", n)
	}
	var q counter
	events := make([]event.Event, 500)
	for i := range events {
		events[i] = event.Event{Type: event.OrderCreated, Ref: fmt.Sprint(i), Data: event.Order{}}
	}
	if err := s.events.Write(t.Context(), &q, s.clk.Now(), events...); err != nil || q.n != 1 {
		t.Errorf("got %d statements, %v; want one", q.n, err)
	}
}

// counter counts statements.
type counter struct {
	store.Querier
	n int
}

func (c *counter) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	c.n++
	return nil, nil
}
