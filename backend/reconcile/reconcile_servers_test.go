//go:build servers

package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2")) // it closes connections to nodes that went, 5 s later
}

// system is a backend without its API: real servers, an order store and, where a test wants one, a broker.
type system struct {
	t       testing.TB
	dsn     string
	db      *sql.DB
	redis   *reserve.Store
	orders  *order.Store
	intents *intent.Runner
	broker  *broker.Broker // nil: the outbox is the queue
	rec     *Reconciler
}

func newSystem(t testing.TB, withBroker bool) *system {
	t.Helper()
	return newSystemOn(t, backendtest.Redis(t), withBroker)
}

// newSystemOn is newSystem on a Redis that no other test uses, or under a prefix of its own.
func newSystemOn(t testing.TB, redis *reserve.Store, withBroker bool) *system {
	t.Helper()
	s := &system{t: t, dsn: backendtest.MySQLDSN(t), redis: redis}
	s.db = backendtest.OpenMySQL(t, s.dsn, 16)
	backendtest.Migrate(t, s.db)
	var clk clock.Clock
	asked := time.Now()
	now, err := s.redis.Client().Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	clk.Set(now, asked)
	s.intents = intent.New(intent.Config{DB: s.db, Sales: sale.Reader{DB: s.db}, Redis: s.redis, Clock: &clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	s.orders = order.NewStore(order.Config{Intents: s.intents, DB: s.db, Redis: s.redis, Clock: &clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	var fence Fence
	if withBroker {
		s.broker, err = broker.Open(broker.Config{URL: backendtest.AMQP(t), Partitions: 2, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.broker.Close(); err != nil {
				t.Error(err)
			}
		})
		fence = s.broker
	}
	s.rec = s.reconciler(fence)
	s.redis.Client().Use("")
	nodes := s.redis.Client().Hold(t.Context())
	defer nodes.Release()
	lost, err := nodes.Lost(t.Context())
	if lost == nil || err != nil {
		t.Fatal(lost, err)
	}
	name, err := lost.Begin(t.Context())
	if err == nil {
		err = s.rec.follow(t.Context(), "", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.redis.Client().Use(name)
	return s
}

// reconciler makes another one, as another process would.
func (s *system) reconciler(fence Fence) *Reconciler {
	return New(Config{DB: s.db, Redis: s.redis, Fence: fence, Log: backendtest.Log(s.t), Register: prometheus.NewRegistry()})
}

func (s *system) sale(o backendtest.SaleOptions) int64 {
	s.t.Helper()
	id := backendtest.Sale(s.t, s.db, o)
	s.reconcile(id)
	return id
}

func (s *system) reconcile(sale int64) {
	s.t.Helper()
	if err := s.rec.Sale(s.t.Context(), sale); err != nil {
		s.t.Fatal(err)
	}
}

// takeOver reconciles a sale without a wait for whoever may be at it.
func (s *system) takeOver(sale int64) {
	s.t.Helper()
	if err := s.rec.finish(s.t.Context(), &attempt{r: s.rec, sale: sale}, s.rec.closed(s.state(sale))); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) state(sale int64) reserve.State {
	s.t.Helper()
	states, err := s.redis.States(s.t.Context(), []int64{sale})
	if err != nil {
		s.t.Fatal(err)
	}
	return states[0]
}

func request(sale, epoch int64, uid string, quantity int, key string) reserve.Request {
	return reserve.Request{Sale: sale, UID: uid, Quantity: quantity, Key: key, Epoch: epoch,
		OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)}
}

// press makes an order and returns its entry.
func (s *system) press(sale int64, uid string, quantity int, key string) queued.Entry {
	s.t.Helper()
	v, err := s.redis.Reserve(s.t.Context(), request(sale, s.state(sale).Epoch, uid, quantity, key))
	if err != nil || v.Answer != lua.Reserved {
		s.t.Fatalf("reserve for %s: %+v, %v", uid, v, err)
	}
	return s.entry(sale, v.OrderID)
}

// entry reads an order's entry from the outbox.
func (s *system) entry(sale int64, id string) queued.Entry {
	s.t.Helper()
	all, bad, err := s.redis.Outbox(s.t.Context(), sale)
	if err != nil || len(bad) > 0 {
		s.t.Fatal(err, bad)
	}
	for _, e := range all {
		if e.ID == id {
			return e
		}
	}
	s.t.Fatalf("order %s is not in the outbox", id)
	return queued.Entry{}
}

// settle does what the consumer does with entries.
func (s *system) settle(es ...queued.Entry) {
	s.t.Helper()
	if err := s.orders.Settle(s.t.Context(), es); err != nil {
		s.t.Fatal(err)
	}
	if err := s.orders.Retire(s.t.Context(), es); err != nil {
		s.t.Fatal(err)
	}
}

// settleOutbox settles all that the outbox holds. What is of an older epoch is adopted first, by a new entry. Like the consumer it
// tries again what a gate holds back that another reconciler has closed.
func (s *system) settleOutbox(sale int64) {
	s.t.Helper()
	for settled := 0; settled < 3; {
		es, bad, err := s.redis.Outbox(s.t.Context(), sale)
		if err != nil || len(bad) > 0 {
			s.t.Fatal(err, bad)
		}
		if len(es) == 0 {
			return
		}
		if held := new(queued.ClosedError); errors.As(s.orders.Settle(s.t.Context(), es), &held) {
			eventually(s.t, "the gate is open", func() bool { return s.state(sale).Gate == lua.GateOpen })
			continue
		}
		s.settle(es...)
		settled++
	}
	s.t.Fatal("the outbox does not become empty")
}

// empty takes a sale out of Redis, as a Redis that lost its disk would have.
func (s *system) empty(sale int64) {
	s.t.Helper()
	backendtest.Wipe(s.t, s.redis, sale)
}

func (s *system) status(id string) string {
	s.t.Helper()
	var status string
	if err := s.db.QueryRowContext(s.t.Context(), `SELECT status FROM orders WHERE id = ?`, id).Scan(&status); err != nil {
		s.t.Fatalf("order %s: %v", id, err)
	}
	return status
}

// content is all of a sale in Redis but what every reconciliation changes.
func (s *system) content(sale int64) reserve.Snapshot {
	s.t.Helper()
	snap, err := s.redis.Snapshot(s.t.Context(), sale)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(snap.Bad) > 0 {
		s.t.Errorf("unreadable in Redis: %v", snap.Bad)
	}
	snap.State.Token, snap.State.Epoch, snap.State.Beat, snap.Keys = 0, 0, 0, 0
	return snap
}

// balanced asserts that all is settled and that Redis and MySQL agree.
func (s *system) balanced(sale int64) {
	s.t.Helper()
	var epoch int64
	if err := s.db.QueryRowContext(s.t.Context(), `SELECT epoch FROM sale_stock WHERE sale_id = ?`, sale).Scan(&epoch); err != nil {
		s.t.Fatal(err)
	}
	if st := s.state(sale); st.Gate != lua.GateOpen || st.Epoch != epoch {
		s.t.Errorf("sale %d: the gate is %q in epoch %d, want open in MySQL's, %d", sale, st.Gate, st.Epoch, epoch)
	}
	backendtest.Balanced(s.t, s.db, sale)
	backendtest.RedisBalanced(s.t, s.db, s.redis, sale)
}

func sameContent(t *testing.T, got, want reserve.Snapshot) {
	t.Helper()
	byID := cmp.Transformer("byID", func(hs []reserve.Held) map[string]reserve.Held {
		m := map[string]reserve.Held{}
		for _, h := range hs {
			m[h.ID] = h
		}
		return m
	})
	if diff := cmp.Diff(want, got, byID); diff != "" {
		t.Errorf("in Redis (-want +got):\n%s", diff)
	}
}

func TestANewSaleIsLoaded(t *testing.T) {
	s := newSystem(t, true) // no consumer runs: nothing may be waited for
	now := time.Now().UTC().Truncate(time.Millisecond)
	soon := now.Add(time.Hour)
	id := s.sale(backendtest.SaleOptions{Stock: 10, Limit: 2, Tranches: []backendtest.Tranche{{At: now.Add(-time.Hour), Quantity: 4}, {At: soon, Quantity: 6}}, StartsAt: now.Add(-time.Hour)})
	st := s.state(id)
	if st.Gate != lua.GateOpen || st.Epoch != 1 || st.Token != 1 || st.Stock != 10 || st.Total != 10 || st.Limit != 2 || st.Available(now.UnixMilli()) != 4 ||
		st.Available(soon.UnixMilli()) != 10 {
		t.Errorf("got %+v", st)
	}
	s.press(id, "ann", 2, "")
	if err := s.rec.Sale(t.Context(), id+1000); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown sale: got %v, want %v", err, ErrUnknown)
	}
	if _, err := s.db.ExecContext(t.Context(), `UPDATE sales SET archived_at = ? WHERE id = ?`, now, id); err != nil {
		t.Fatal(err)
	}
	if err := s.rec.Sale(t.Context(), id); !errors.Is(err, ErrArchived) {
		t.Errorf("an archived sale: got %v, want %v", err, ErrArchived)
	}
}

// history makes a sale in which something of everything happened, and lets one order wait in the outbox.
func (s *system) history() (sale int64, waiting queued.Entry) {
	s.t.Helper()
	sale = s.sale(backendtest.SaleOptions{Stock: 20, Limit: 3})
	pending, paid := s.press(sale, "ann", 2, "k1"), s.press(sale, "bob", 1, "k1")
	cancelled, second := s.press(sale, "cid", 3, "k3"), s.press(sale, "ann", 1, "k2")
	s.settle(pending, paid, cancelled, second)
	if _, err := s.orders.Pay(s.t.Context(), "bob", paid.ID); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.orders.Cancel(s.t.Context(), "cid", cancelled.ID); err != nil {
		s.t.Fatal(err)
	}
	return sale, s.press(sale, "dan", 2, "k4")
}

func TestARebuildWritesWhatWasThere(t *testing.T) {
	s := newSystem(t, false)
	sale, _ := s.history()
	// an entry of an order that is settled and not retired
	late := s.press(sale, "eve", 1, "")
	if err := s.orders.Settle(t.Context(), []queued.Entry{late}); err != nil {
		t.Fatal(err)
	}
	// and one of an order that ended, and is not retired
	over := s.press(sale, "fay", 1, "")
	if err := s.orders.Settle(t.Context(), []queued.Entry{over}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.orders.Cancel(t.Context(), "fay", over.ID); err != nil {
		t.Fatal(err)
	}
	before, epoch := s.content(sale), s.state(sale).Epoch
	s.reconcile(sale)
	after := s.content(sale)
	// what MySQL has keeps no entry, unless the outbox still has it
	for i, h := range before.Orders {
		if h.ID != late.ID && h.UID != "dan" {
			before.Orders[i].Entry = "-"
		}
	}
	sameContent(t, after, before)
	if got := s.state(sale).Epoch; got != epoch+1 {
		t.Errorf("epoch: got %d, want %d", got, epoch+1)
	}
	for uid, key := range map[string]string{"ann": "k2", "bob": "k1", "cid": "k3", "dan": "k4"} {
		quantity := map[string]int{"ann": 1, "bob": 1, "cid": 3, "dan": 2}[uid]
		v, err := s.redis.Reserve(t.Context(), request(sale, epoch+1, uid, quantity, key))
		if err != nil || v.Answer != lua.Repeated {
			t.Errorf("uid %s repeats %s: got %+v, %v; want repeated", uid, key, v, err)
		}
	}
	v, err := s.redis.Reserve(t.Context(), request(sale, epoch, "gil", 1, ""))
	if err != nil || v.Answer != lua.StaleEpoch || v.Epoch != epoch+1 {
		t.Errorf("a call of the old epoch: got %+v, %v; want stale_epoch %d", v, err, epoch+1)
	}
	s.settleOutbox(sale)
	s.balanced(sale)
}

func TestAnEmptiedRedisIsLoadedFromMySQL(t *testing.T) {
	s := newSystem(t, false)
	sale, waiting := s.history()
	s.settle(waiting)
	before := s.content(sale)
	s.empty(sale)
	s.reconcile(sale)
	for i := range before.Orders {
		before.Orders[i].Entry = "-"
	}
	sameContent(t, s.content(sale), before)
	s.balanced(sale)
}

func TestOrdersThatMySQLNeverSawAreAdopted(t *testing.T) {
	s := newSystem(t, false)
	sale, waiting := s.history()
	rest := s.content(sale).State.Stock
	s.empty(sale)
	s.reconcile(sale)
	if got := s.content(sale).State.Stock; got != rest+2 {
		t.Fatalf("stock: got %d, want %d", got, rest+2)
	}
	s.settle(waiting) // it was in the broker: it is adopted, by a new entry
	if got := s.content(sale).State.Stock; got != rest {
		t.Errorf("stock after the adoption: got %d, want %d", got, rest)
	}
	s.settle(waiting) // delivered again
	adopted := s.entry(sale, waiting.ID)
	if adopted.Epoch != s.state(sale).Epoch || adopted.Entry == waiting.Entry || adopted.Key != "k4" || adopted.At != waiting.At {
		t.Errorf("the new entry is %+v", adopted)
	}
	s.settle(adopted)
	if got := s.status(waiting.ID); got != "pending_payment" {
		t.Errorf("the adopted order is %s, want pending_payment", got)
	}
	s.settle(waiting, adopted)
	s.balanced(sale)
}

func TestConcurrentReconcilersAgree(t *testing.T) {
	s := newSystem(t, false)
	sale, _ := s.history()
	var wg sync.WaitGroup
	for range 6 {
		rec := s.reconciler(nil)
		wg.Go(func() {
			if err := rec.Sale(t.Context(), sale); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	st := s.state(sale)
	var epoch, token int64
	if err := s.db.QueryRowContext(t.Context(), `SELECT epoch, token FROM sale_stock WHERE sale_id = ?`, sale).Scan(&epoch, &token); err != nil {
		t.Fatal(err)
	}
	if st.Epoch != epoch || st.Token != token {
		t.Errorf("Redis has epoch %d and token %d, MySQL %d and %d", st.Epoch, st.Token, epoch, token)
	}
	s.settleOutbox(sale)
	s.balanced(sale)
}

// TestAReconcilerMayStopAnywhereAndWakeAnywhere lets one stop after each step, another one do everything (or stop as well,
// before a third), and then wakes the first.
func TestAReconcilerMayStopAnywhereAndWakeAnywhere(t *testing.T) {
	s := newSystem(t, false)
	steps := []struct {
		name string
		do   func(*attempt, context.Context) error
	}{
		{"begin", (*attempt).begin}, {"shut", (*attempt).shut}, {"drain", (*attempt).drain}, {"read", (*attempt).read},
		{"write", (*attempt).write}, {"adopted", (*attempt).adopted}, {"open", (*attempt).open},
	}
	walk := func(a *attempt, from, to int) error {
		for _, step := range steps[from:to] {
			if err := step.do(a, t.Context()); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		return nil
	}
	for first := range len(steps) {
		for second := range len(steps) {
			for _, emptied := range []bool{false, true} {
				if emptied && first != second {
					continue // enough
				}
				t.Run(fmt.Sprintf("%s,%s,emptied=%v", steps[first].name, steps[second].name, emptied), func(t *testing.T) {
					sale := s.sale(backendtest.SaleOptions{Stock: 5, Limit: 3})
					promised := s.press(sale, "ann", 2, "k")
					a, b := &attempt{r: s.rec, sale: sale}, &attempt{r: s.rec, sale: sale}
					if err := walk(a, 0, first+1); err != nil {
						t.Fatal(err)
					}
					if err := walk(b, 0, second+1); err != nil {
						t.Fatal(err)
					}
					if emptied {
						s.empty(sale)
					}
					s.takeOver(sale)
					if !emptied {
						s.settleOutbox(sale)
					}
					s.settle(promised) // as the broker has it
					s.settleOutbox(sale)
					epoch := s.state(sale).Epoch
					for name, late := range map[string]error{"first": walk(a, first+1, len(steps)), "second": walk(b, second+1, len(steps))} {
						n := map[string]int{"first": first, "second": second}[name]
						if want := n < len(steps)-1; errors.Is(late, reserve.ErrLost) != want {
							t.Errorf("the %s, woken, got %v; lost is %v", name, late, want)
						}
					}
					if got := s.state(sale).Epoch; got != epoch {
						t.Errorf("epoch: got %d, want %d as the last reconciler left it", got, epoch)
					}
					if got := s.status(promised.ID); got != "pending_payment" {
						t.Errorf("the order is %s, want pending_payment", got)
					}
					s.balanced(sale)
				})
			}
		}
	}
}

func TestReleasesWaitForTheGateAndHappenOnce(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 5, Limit: 3})
	one, two, three := s.press(sale, "ann", 1, ""), s.press(sale, "bob", 1, ""), s.press(sale, "cid", 1, "")
	s.settle(one, two, three)
	cancel := func(e queued.Entry) {
		t.Helper()
		if _, err := s.orders.Cancel(t.Context(), e.UID, e.ID); err != nil {
			t.Fatal(err)
		}
	}
	a := &attempt{r: s.rec, sale: sale}
	for _, step := range []func(context.Context) error{a.begin, a.shut} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel(one) // before M is read: no longer live
	if err := a.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel(two) // after: its intent is done when the gate is open
	for _, step := range []func(context.Context) error{a.write, a.adopted} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.intents.Run(t.Context()); n != 0 || err != nil {
		t.Errorf("before the gate is open: %d intents done, %v; want none", n, err)
	}
	if got := s.state(sale).Stock; got != 3 {
		t.Errorf("stock before the releases: got %d, want 3", got)
	}
	if err := a.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.intents.Run(t.Context()); n != 2 || err != nil {
		t.Errorf("%d intents done, %v; want 2", n, err)
	}
	if got := s.state(sale).Stock; got != 4 {
		t.Errorf("stock: got %d, want 4", got)
	}
	cancel(three)
	s.balanced(sale)
}

func TestChangesOfTheStockAreIncludedOnce(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 5})
	var intents []int64
	for range 3 { // decided in MySQL, not applied to Redis
		if _, err := s.db.ExecContext(t.Context(), `UPDATE sale_stock SET total = total + 10, available = available + 10 WHERE sale_id = ?`, sale); err != nil {
			t.Fatal(err)
		}
		r, err := s.db.ExecContext(t.Context(), `INSERT INTO intents (sale_id, kind, quantity, created_at) VALUES (?, 'adjust', 10, ?)`, sale, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		id, err := r.LastInsertId()
		if err != nil {
			t.Fatal(err)
		}
		intents = append(intents, id)
	}
	if err := s.redis.Adjust(t.Context(), sale, intents[0], 10); err != nil { // of one the answer was lost
		t.Fatal(err)
	}
	s.empty(sale)
	s.reconcile(sale)
	for _, id := range intents {
		if err := s.redis.Adjust(t.Context(), sale, id, 10); err != nil {
			t.Error(err)
		}
	}
	if st := s.state(sale); st.Stock != 35 || st.Total != 35 {
		t.Errorf("got stock %d of %d, want 35 of 35", st.Stock, st.Total)
	}
	var open int
	if err := s.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM intents WHERE done_at IS NULL`).Scan(&open); err != nil || open != 0 {
		t.Errorf("%d intents are open, %v; want none", open, err)
	}
	s.reconcile(sale)
	if st := s.state(sale); st.Stock != 35 {
		t.Errorf("reconciled again: got stock %d, want 35", st.Stock)
	}
}

func TestOneConnectionIsEnough(t *testing.T) { // as the embedded profile has it
	s := newSystem(t, false)
	sale, _ := s.history()
	s.db.SetMaxOpenConns(1)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := s.rec.Sale(t.Context(), sale); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.settleOutbox(sale)
	s.balanced(sale)
}

// orphan puts an order into the outbox that Redis does not hold, as one that was started again after it had died in the middle of
// writing it down does.
func (s *system) orphan(sale, epoch int64, uid, key string) queued.Entry {
	s.t.Helper()
	id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)
	c := s.redis.Client()
	cmd := c.B().Xadd().Key(s.redis.OutboxKey(sale)).Id("*").FieldValue()
	for _, f := range [][2]string{{"id", id}, {"uid", uid}, {"quantity", "1"}, {"slots", "1"}, {"key", key}, {"epoch", fmt.Sprint(epoch)}, {"at", "1700000000000"}, {"trace", ""}} {
		cmd = cmd.FieldValue(f[0], f[1])
	}
	if err := c.Do(s.t.Context(), cmd.Build()).Error(); err != nil {
		s.t.Fatal(err)
	}
	return s.entry(sale, id)
}

// What Redis brings back of an order that it had lost in the middle of writing it down takes no unit, no slot and no key that was promised
// since, though it comes first; what nobody else has it gets.
func TestAGhostGetsWhatIsLeft(t *testing.T) {
	for _, c := range []struct {
		what, uid, key string
		stock          int64
		want           wire.OrderStatus
	}{
		{"no unit is left", "ann", "", 1, wire.Rejected},
		{"its buyer has another order", "bob", "", 2, wire.Rejected},
		{"its buyer has another order under its key", "bob", "k", 2, wire.Rejected},
		{"a unit is left", "ann", "k", 2, wire.PendingPayment},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newSystem(t, false)
			sale := s.sale(backendtest.SaleOptions{Stock: c.stock, Limit: 1})
			promised := s.press(sale, "bob", 1, "k")
			orphan := s.orphan(sale, s.state(sale).Epoch-1, c.uid, c.key)
			s.reconcile(sale)
			if st := s.state(sale); st.Stock != c.stock-1 {
				t.Errorf("the stock is %d, want %d", st.Stock, c.stock-1)
			}
			s.settle(orphan)
			s.settle(promised)
			s.settleOutbox(sale)
			if got := s.status(promised.ID); got != string(wire.PendingPayment) {
				t.Errorf("the promised order is %s", got)
			}
			if got := s.status(orphan.ID); got != string(c.want) {
				t.Errorf("the orphan is %s, want %s", got, c.want)
			}
			if _, err := s.intents.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.balanced(sale)
			v, err := s.redis.Reserve(t.Context(), request(sale, s.state(sale).Epoch, "bob", 1, "k"))
			if err != nil || v.Answer != lua.Repeated || v.OrderID != promised.ID {
				t.Errorf("the promised order's buyer asks again: got %+v, %v", v, err)
			}
		})
	}
}

// Where a load was under way when Redis died its reservations are not whole: what they lack may be promised.
func TestWhatAHalfLoadLacksIsNoGhost(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 1})
	e := s.press(sale, "ann", 1, "k")
	a := &attempt{r: s.rec, sale: sale}
	for _, step := range []func(context.Context) error{a.begin, a.shut} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.loadStep(sale, a.token, lua.StepBegin)
	s.takeOver(sale)
	if st := s.state(sale); st.Stock != 0 {
		t.Errorf("the stock is %d, want 0", st.Stock)
	}
	s.settle(e)
	s.settleOutbox(sale)
	if got := s.status(e.ID); got != string(wire.PendingPayment) {
		t.Errorf("the order is %s", got)
	}
	s.balanced(sale)
}

// An order that ended is in the outbox until its entry is retired, and reserved until its intent is done: it is not reserved anew.
func TestARebuildLeavesOutWhatHasEnded(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 1})
	e := s.press(sale, "ann", 1, "k")
	if err := s.orders.Settle(t.Context(), []queued.Entry{e}); err != nil {
		t.Fatal(err)
	}
	a := &attempt{r: s.rec, sale: sale}
	for _, step := range []func(context.Context) error{a.begin, a.shut} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.orders.Cancel(t.Context(), "ann", e.ID); err != nil {
		t.Fatal(err)
	}
	s.takeOver(sale)
	if st := s.state(sale); st.Stock != 1 {
		t.Errorf("the stock is %d, want 1", st.Stock)
	}
	s.settleOutbox(sale)
	if _, err := s.intents.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.balanced(sale)
}

// Somebody deletes what Redis holds, but for the outbox: many orders at once are no orphans.
func TestDeletedReservationsAreMadeAnew(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: mostOrphans + 1})
	for i := range mostOrphans + 1 {
		s.press(sale, fmt.Sprint("u", i), 1, "k")
	}
	want := s.content(sale)
	c := s.redis.Client()
	if err := c.Do(t.Context(), c.B().Del().Key(strings.TrimSuffix(s.redis.OutboxKey(sale), "outbox")+"orders").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	s.reconcile(sale)
	sameContent(t, s.content(sale), want)
	s.settleOutbox(sale)
	s.balanced(sale)
}

// loadStep is one step of a load that goes no further.
func (s *system) loadStep(sale, token int64, step string) {
	s.t.Helper()
	prefix := strings.TrimSuffix(s.redis.OutboxKey(sale), "outbox")
	var keys []string
	for _, name := range []string{"state", "orders", "buyers", "idem", "applied", "gone"} {
		keys = append(keys, prefix+name)
	}
	if answer, err := s.redis.Client().Call(s.t.Context(), lua.SaleLoad, keys, fmt.Sprint(token), step); err != nil || answer.Answer() != lua.OK {
		s.t.Fatalf("got %v, %v", answer, err)
	}
}
