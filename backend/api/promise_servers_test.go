//go:build servers

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// confirming makes the server wait for the confirm of a broker that it reaches over a link.
func confirming(t *testing.T, w *working) (b *broker.Broker, l *link) {
	t.Helper()
	u, err := url.Parse(backendtest.AMQP(t))
	if err != nil {
		t.Fatal(err)
	}
	direct, err := broker.Open(broker.Config{URL: u.String(), Partitions: 1, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	l = newLink(t, u.Host)
	u.Host = l.Addr().String()
	far, err := broker.Open(broker.Config{URL: u.String(), Partitions: 1, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, b := range []*broker.Broker{direct, far} {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	w.Confirmer = outbox.NewConfirmer(outbox.ConfirmerConfig{Redis: w.redis, Broker: far, Within: 500 * time.Millisecond, Register: prometheus.NewRegistry()})
	return direct, l
}

// drain settles what is in the queue, and returns how often each order was there.
func drain(t *testing.T, w *working, b *broker.Broker, sale int64) map[string]int {
	t.Helper()
	times := map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.Consume(ctx, 100, time.Millisecond, broker.Handler{Settle: func(ctx context.Context, batch []queued.Entry) error {
			for _, e := range batch {
				times[e.ID]++
			}
			return w.Orders.Settle(ctx, batch)
		}, Settled: func(ctx context.Context, batch []queued.Entry) {
			if err := w.Orders.Retire(ctx, batch); err != nil {
				t.Error(err)
			}
		}})
	}()
	fenced, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	if err := b.Fence(fenced, sale); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return times
}

// eventually presses until the answer is a 202: the connection that was given up may be met first.
func (w *working) eventually(uid string, sale int64, key string, not problem.Code) string {
	w.t.Helper()
	var res *fasthttp.Response
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		if res = w.press(uid, sale, key, ""); res.StatusCode() == 202 {
			return accepted(w.t, res)
		}
		wantProblem(w.t, res, not, "")
	}
	w.t.Fatalf("never accepted: %s", res)
	return ""
}

// With accept.after: confirm a 202 follows the broker's confirm, for the first press and for each that repeats it.
func TestA202FollowsTheConfirm(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	b, l := confirming(t, w)
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 5, Limit: 1})
	alice := w.eventually("alice", sale, "key", problem.OutcomeUnknown) // the broker may not be connected yet
	if again := accepted(t, w.press("alice", sale, "key", "")); again != alice {
		t.Errorf("got %s, want %s", again, alice)
	}

	l.setDeaf(true) // confirms are lost
	wantProblem(t, w.press("bob", sale, "key", ""), problem.OutcomeUnknown, "Idempotency-Key")
	wantProblem(t, w.press("bob", sale, "key", ""), problem.OutcomeUnknown, "Idempotency-Key")
	wantProblem(t, w.press("bob", sale, "", ""), problem.OutcomeUnknown, "") // nor is its order named as one that stands
	held, _, err := w.redis.OrdersOf(t.Context(), []int64{sale}, "bob")
	if err != nil || len(held[sale]) != 1 {
		t.Fatalf("got %v, %v; want the order that was made", held, err)
	}
	l.setDeaf(false)
	if bob := w.eventually("bob", sale, "key", problem.OutcomeUnknown); bob != held[sale][0] {
		t.Errorf("got %s, want %s", bob, held[sale][0])
	}
	var p problem.Problem
	if res := w.press("bob", sale, "", ""); json.Unmarshal(res.Body(), &p) != nil || p.Code != problem.AlreadyOrdered || p.OrderID != held[sale][0] {
		t.Errorf("got %s, want ALREADY_ORDERED with %s", res, held[sale][0])
	}

	// Both were in the broker, however often; settled, they are answered from MySQL alone.
	times := drain(t, w, b, sale)
	if times[alice] < 1 || times[held[sale][0]] < 1 || len(times) != 2 {
		t.Errorf("in the queue: %v; want both orders", times)
	}
	l.cut()
	if again := accepted(t, w.press("bob", sale, "key", "")); again != held[sale][0] {
		t.Errorf("got %s, want %s", again, held[sale][0])
	}
	wantProblem(t, w.press("carol", sale, "key", ""), problem.OutcomeUnknown, "")
}

// With accept.after: replicas:1 a 202 follows the replica's acknowledgement, for the first press and for each that repeats it. The
// order of one that is not acknowledged stands, and polls find it. A primary that wants a replica to write makes none.
func TestA202FollowsTheReplicas(t *testing.T) {
	pair := backendtest.RedisPair(t)
	w := workOn(t, roomy, pair.Primary.Addr, pair.Store(), backendtest.MySQL(t))
	replicas := outbox.NewReplicas(outbox.ReplicasConfig{Redis: w.redis, Count: 1, Within: 500 * time.Millisecond, Register: prometheus.NewRegistry()})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- replicas.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	w.Confirmer = replicas
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 5, Limit: 1})
	alice := w.eventually("alice", sale, "key", problem.OutcomeUnknown) // the acknowledgement may be late
	if again := w.eventually("alice", sale, "key", problem.OutcomeUnknown); again != alice {
		t.Errorf("got %s, want %s", again, alice)
	}

	pair.Replica.Detach()
	wantProblem(t, w.press("bob", sale, "key", ""), problem.OutcomeUnknown, "Idempotency-Key")
	wantProblem(t, w.press("bob", sale, "key", ""), problem.OutcomeUnknown, "Idempotency-Key")
	wantProblem(t, w.press("bob", sale, "", ""), problem.OutcomeUnknown, "")
	held, _, err := w.redis.OrdersOf(t.Context(), []int64{sale}, "bob")
	if err != nil || len(held[sale]) != 1 {
		t.Fatalf("got %v, %v; want the order that was made", held, err)
	}
	var o wire.Order
	if res := w.signed(w.request("GET", wire.OrderPath(held[sale][0]), ""), "bob"); json.Unmarshal(res.Body(), &o) != nil || o.Status != wire.Queued {
		t.Errorf("got %s, want the order, queued", res)
	}
	pair.Primary.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	wantProblem(t, w.press("carol", sale, "key", ""), problem.Overloaded, "nothing was done")
	if held, _, err := w.redis.OrdersOf(t.Context(), []int64{sale}, "carol"); err != nil || len(held[sale]) != 0 {
		t.Errorf("got %v, %v; want no order of who was refused", held, err)
	}
	wantProblem(t, w.press("bob", sale, "key", ""), problem.OutcomeUnknown, "Idempotency-Key")

	pair.Replica.Do("CONFIG", "SET", "masterauth", "")
	pair.Replica.Until("it follows again", pair.Replica.Follows)
	if bob := w.eventually("bob", sale, "key", problem.OutcomeUnknown); bob != held[sale][0] {
		t.Errorf("got %s, want %s", bob, held[sale][0])
	}
	var p problem.Problem
	if res := w.press("bob", sale, "", ""); json.Unmarshal(res.Body(), &p) != nil || p.Code != problem.AlreadyOrdered || p.OrderID != held[sale][0] {
		t.Errorf("got %s, want ALREADY_ORDERED with %s", res, held[sale][0])
	}
	w.eventually("carol", sale, "key", problem.OutcomeUnknown)
}

// An order that was rejected before anybody was told of it is not promised.
func TestARejectedOrderIsNotConfirmed(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	b, l := confirming(t, w)
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 5, Limit: 1})
	w.eventually("alice", sale, "key", problem.OutcomeUnknown)
	drain(t, w, b, sale)
	l.setDeaf(true)
	wantProblem(t, w.press("bob", sale, "key", ""), problem.OutcomeUnknown, "")
	if _, err := w.db.Exec(`UPDATE sale_stock SET total = 1, available = 0 WHERE sale_id = ?`, sale); err != nil { // MySQL has no unit left
		t.Fatal(err)
	}
	l.setDeaf(false)
	if n := len(drain(t, w, b, sale)); n != 1 {
		t.Fatalf("%d orders in the queue, want bob's", n)
	}
	wantProblem(t, w.press("bob", sale, "key", ""), problem.OrderStateConflict, "out_of_stock")
}

// What cannot be finished soon is not begun: past the bound of age, and while something is away.
func TestNewOrdersAreShed(t *testing.T) {
	limits := roomy
	limits.Lag = time.Millisecond
	w := work(t, limits, os.Getenv("REDIS_ADDR"))
	away := ""
	w.Outage = func() string { return away }
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 20})
	const many = 8
	for i := range many {
		if err := w.Catalog.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i == many-1 && (w.Catalog.Oldest() == 0 || w.Catalog.Lag(sale) != 0) {
			t.Errorf("with %d queued: got the oldest for %v, a lag of %v; want no lag", i, w.Catalog.Oldest(), w.Catalog.Lag(sale))
		}
		accepted(t, w.press(fmt.Sprint("u", i), sale, "", ""))
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for w.Catalog.Lag(sale) <= limits.Lag { // a millisecond
	}
	wantProblem(t, w.press("bob", sale, "", ""), problem.Overloaded, "for too long")
	if got := w.Catalog.Oldest(); got <= limits.Lag {
		t.Errorf("got the oldest for %v, want more than %v", got, limits.Lag)
	}
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil || len(snap.Orders) != many || len(snap.Outbox) != many {
		t.Fatalf("got %+v, %v; want only those that were accepted", snap, err)
	}

	// What is no order does not count, and what was accepted is finished.
	c := w.redis.Client()
	if err := w.Orders.Settle(t.Context(), snap.Outbox); err != nil {
		t.Fatal(err)
	}
	if err := w.Orders.Retire(t.Context(), snap.Outbox); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), c.B().Xadd().Key(w.redis.OutboxKey(sale)).Id("*").FieldValue().FieldValue("not", "an order").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.Catalog.Lag(sale) + w.Catalog.Oldest(); got != 0 {
		t.Errorf("got a lag of %v, want none", got)
	}
	away = "mysql"
	wantProblem(t, w.press("bob", sale, "", ""), problem.Overloaded, "cannot be finished")
	away = ""
	bob := accepted(t, w.press("bob", sale, "", ""))
	for reason, want := range map[string]float64{shedLag: 1, shedOutage: 1, shedQueued: 0} {
		if got := testutil.ToFloat64(w.metrics.shed[reason]); got != want {
			t.Errorf("shed for %s: got %v, want %v", reason, got, want)
		}
	}
	var o wire.Order
	res := w.signed(w.request("GET", fmt.Sprintf("/v1/orders/%s", bob), ""), "bob")
	if err := json.Unmarshal(res.Body(), &o); err != nil || o.Status != wire.Queued {
		t.Errorf("got %s, %v", res.Body(), err)
	}
}
