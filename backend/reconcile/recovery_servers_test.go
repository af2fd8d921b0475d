//go:build servers

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// background runs f until the test ends, or the returned function is called, which waits for its end.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// consume runs the order consumer; before each batch it waits for ready, if there is one.
func (s *system) consume(t *testing.T, ready <-chan struct{}) (stop func()) {
	background(t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			if _, err := s.orders.SettleDeferred(ctx, func(context.Context, queued.Entry, int64, error) error { return errors.New("no dead letters here") }); err != nil && ctx.Err() == nil {
				t.Logf("deferred orders: %v", err)
			}
			_ = sleep(ctx, 20*time.Millisecond) // its end is ctx's
		}
		return nil
	})
	return background(t, func(ctx context.Context) error {
		return s.broker.Consume(ctx, 100, time.Millisecond, broker.Handler{Settle: func(ctx context.Context, es []queued.Entry) error {
			if ready != nil {
				select {
				case <-ready:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return s.orders.SettleOrDefer(ctx, es)
		}, Settled: func(ctx context.Context, es []queued.Entry) {
			if err := s.orders.Retire(ctx, es); err != nil {
				t.Logf("retire: %v", err)
			}
		}})
	})
}

// eventually waits until f is true; it asks the stores themselves.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *system) publish(es ...queued.Entry) {
	s.t.Helper()
	if err := s.broker.Publish(s.t.Context(), es); err != nil {
		s.t.Fatal(err)
	}
}

func TestQueuedOrdersAreInMySQLBeforeItIsRead(t *testing.T) {
	s := newSystem(t, true)
	sale := s.sale(backendtest.SaleOptions{Stock: 10})
	var es []queued.Entry
	for i := range 5 {
		es = append(es, s.press(sale, fmt.Sprint("u", i), 1, ""))
	}
	s.publish(es...)
	ready := make(chan struct{})
	s.consume(t, ready)
	s.rec.drain = time.Minute
	done := make(chan error, 1)
	go func() { done <- s.rec.Sale(t.Context(), sale) }()
	eventually(t, "the gate is closed", func() bool { return s.state(sale).Gate == lua.GateShut })
	select {
	case err := <-done:
		t.Fatalf("it did not wait for the queue: %v", err)
	default:
	}
	s.empty(sale) // even so, nothing is lost
	close(ready)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if got := s.status(e.ID); got != "pending_payment" {
			t.Errorf("order %s is %s", e.ID, got)
		}
	}
	s.balanced(sale)
}

func TestAQueueThatWaitsForADeadReconcilerIsAdopted(t *testing.T) {
	s := newSystem(t, true)
	sale := s.sale(backendtest.SaleOptions{Stock: 5})
	var es []queued.Entry
	for i := range 5 {
		es = append(es, s.press(sale, fmt.Sprint("u", i), 1, ""))
	}
	s.empty(sale)
	dead := &attempt{r: s.rec, sale: sale}
	for _, step := range []func(context.Context) error{dead.begin, dead.shut, dead.read} { // and it stops, the epoch raised
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.publish(es...)
	s.consume(t, nil) // it defers them: they are of an older epoch, and the gate is closed
	s.rec.drain = 500 * time.Millisecond
	s.reconcile(sale)
	background(t, outbox.NewRelay(outbox.RelayConfig{ReaderConfig: outbox.ReaderConfig{Redis: s.redis, Live: func() []int64 { return []int64{sale} },
		Name: "relay", ClaimIdle: time.Minute, Log: backendtest.Log(t), Register: prometheus.NewRegistry()}, Broker: s.broker}).Run)
	v, err := s.redis.Reserve(t.Context(), request(sale, s.state(sale).Epoch, "late", 1, ""))
	if err != nil || v.Answer != lua.SoldOut {
		t.Errorf("as soon as the gate is open, a late buyer got %+v, %v; want sold out: every unit was adopted", v, err)
	}
	eventually(t, "all are settled", func() bool { return len(s.content(sale).Outbox) == 0 })
	for _, e := range es {
		if got := s.status(e.ID); got != "pending_payment" {
			t.Errorf("order %s is %s", e.ID, got)
		}
	}
	s.balanced(sale)
}

func TestWithoutAConsumerTheGateStaysClosedToReserve(t *testing.T) {
	s := newSystem(t, true)
	sale := s.sale(backendtest.SaleOptions{Stock: 5})
	s.rec.drain = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.rec.Sale(ctx, sale); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if got := s.state(sale).Gate; got != lua.GateAdopt {
		t.Errorf("the gate is %s, want %s", got, lua.GateAdopt)
	}
	if _, err := s.redis.Reserve(t.Context(), request(sale, s.state(sale).Epoch, "ann", 1, "")); !errors.Is(err, reserve.ErrGateClosed) {
		t.Errorf("reserve: got %v, want %v", err, reserve.ErrGateClosed)
	}
	s.consume(t, nil)
	s.rec.patience = 100 * time.Millisecond
	background(t, s.rec.Keep)
	eventually(t, "Keep opens it", func() bool { return s.state(sale).Gate == lua.GateOpen })
	s.balanced(sale)
}

// A fence that passed says that what was ahead of it is settled or deferred.
func TestTheGateStaysClosedWhileOrdersAreDeferred(t *testing.T) {
	s := newSystem(t, true)
	sale := s.sale(backendtest.SaleOptions{Stock: 1})
	e := s.press(sale, "ann", 1, "")
	s.empty(sale)
	if _, err := s.db.ExecContext(t.Context(), `UPDATE sale_stock SET epoch = epoch + 1 WHERE sale_id = ?`, sale); err != nil {
		t.Fatal(err)
	}
	var deferred *queued.KeptError
	if err := s.orders.SettleOrDefer(t.Context(), []queued.Entry{e}); !errors.As(err, &deferred) {
		t.Fatalf("got %v, want it deferred", err)
	}
	stop := background(t, func(ctx context.Context) error {
		return s.broker.Consume(ctx, 100, time.Millisecond, broker.Handler{Settle: s.orders.SettleOrDefer, Settled: func(context.Context, []queued.Entry) {}})
	})
	if err := s.broker.Fence(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.rec.Sale(ctx, sale); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if got := s.state(sale).Gate; got != lua.GateAdopt {
		t.Errorf("the gate is %s, want %s", got, lua.GateAdopt)
	}
	stop()
	s.consume(t, nil)
	s.reconcile(sale)
	if v, err := s.redis.Reserve(t.Context(), request(sale, s.state(sale).Epoch, "bob", 1, "")); err != nil || v.Answer != lua.SoldOut {
		t.Errorf("as soon as the gate is open: got %+v, %v; want sold out: the unit was promised", v, err)
	}
	s.settleOutbox(sale)
	if got := s.status(e.ID); got != "pending_payment" {
		t.Errorf("the deferred order is %s", got)
	}
	s.balanced(sale)
}

// flush makes Redis forget its scripts, as a restart does; with sales, their data as well.
func (s *system) flush(sales ...int64) {
	s.t.Helper()
	var keys []string
	for _, sale := range sales {
		base := s.redis.Client().Prefix() + fmt.Sprintf("{sale:%d}:", sale)
		for _, name := range []string{"state", "orders", "buyers", "idem", "applied", "gone", "outbox"} {
			keys = append(keys, base+name)
		}
	}
	c, end := s.redis.Client().Dedicate()
	defer end()
	cmds := []func() error{
		func() error { return c.Do(s.t.Context(), c.B().Multi().Build()).Error() },
		func() error { return c.Do(s.t.Context(), c.B().ScriptFlush().Build()).Error() },
		func() error {
			if len(keys) == 0 {
				return nil
			}
			return c.Do(s.t.Context(), c.B().Del().Key(keys...).Build()).Error()
		},
		func() error { return c.Do(s.t.Context(), c.B().Exec().Build()).Error() },
	}
	for _, cmd := range cmds {
		if err := cmd(); err != nil {
			s.t.Error(err)
		}
	}
}

// reserves waits until Redis reserves again, in whichever sales are open.
func (s *system) reserves() {
	s.t.Helper()
	eventually(s.t, "Redis reserves again", func() bool {
		armed, err := s.redis.Client().AllReserve(s.t.Context())
		return armed && err == nil
	})
}

// opens waits until the gates of sales are open, in whichever life of Redis.
func (s *system) opens(sales ...int64) {
	s.t.Helper()
	for _, sale := range sales {
		eventually(s.t, fmt.Sprintf("sale %d is open", sale), func() bool { return s.state(sale).Gate == lua.GateOpen })
	}
}

func TestARestartedRedisReservesOnlyInReconciledSales(t *testing.T) {
	s := newSystem(t, false)
	var sales []int64
	var held []queued.Entry
	for range 5 {
		sale := s.sale(backendtest.SaleOptions{Stock: 5})
		sales = append(sales, sale)
		held = append(held, s.press(sale, "ann", 1, "k"))
	}
	s.flush() // restarted with its data
	for _, sale := range sales {
		if _, err := s.redis.Reserve(t.Context(), request(sale, 1, "bob", 1, "")); !errors.Is(err, redis.ErrRestarted) {
			t.Errorf("sale %d: got %v, want %v", sale, err, redis.ErrRestarted)
		}
	}
	s.reconcile(sales[0]) // one by itself does not let the others be reserved
	if armed, err := s.redis.Client().AllReserve(t.Context()); armed || err != nil {
		t.Errorf("after one sale was reconciled, armed: got %v, %v; want false", armed, err)
	}
	stop := background(t, s.rec.Keep)
	s.rec.Wake()
	s.reserves()
	s.opens(sales...)
	stop()
	for i, sale := range sales {
		if got, least := s.state(sale).Epoch, int64(2); got < least {
			t.Errorf("sale %d: epoch %d, want at least %d", sale, got, least)
		}
		v, err := s.redis.Reserve(t.Context(), request(sale, s.state(sale).Epoch, "ann", 1, "k"))
		if err != nil || v.Answer != lua.Repeated || v.OrderID != held[i].ID {
			t.Errorf("sale %d: got %+v, %v; want %s again", sale, v, err, held[i].ID)
		}
		s.press(sale, "bob", 1, "")
		s.settleOutbox(sale)
		s.balanced(sale)
	}
}

// queues is a Fence whose sales have each a queue that is settled when it is closed.
type queues map[int64]chan struct{}

func (q queues) Fence(ctx context.Context, sale int64) error {
	select {
	case <-q[sale]:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Of the sales that a restarted Redis has each is open as soon as it is reconciled itself, and those that are over come last.
func TestASaleThatIsOnWaitsForNoOtherAfterARestart(t *testing.T) {
	s := newSystem(t, false)
	quick, slow := s.sale(backendtest.SaleOptions{Stock: 5}), s.sale(backendtest.SaleOptions{Stock: 5})
	over := []int64{
		s.sale(backendtest.SaleOptions{Stock: 5, EndsAt: time.Now().Add(-time.Minute)}),
		s.sale(backendtest.SaleOptions{Stock: 5, EndsAt: time.Now().Add(-time.Minute)}),
	}
	s.press(quick, "ann", 1, "k")
	q := queues{}
	for _, sale := range append(over, quick, slow) {
		q[sale] = make(chan struct{})
	}
	rec := s.reconciler(q)
	rec.drain, rec.patience = time.Hour, time.Hour
	s.flush()
	background(t, rec.Keep)
	s.reserves()
	for _, sale := range append(over, quick, slow) {
		if st := s.state(sale); st.Gate != lua.GateShut {
			t.Errorf("redis reserves, and the gate of sale %d is %s", sale, st.Gate)
		}
	}
	for _, sale := range append(over, quick) { // over: their queues do not matter yet
		close(q[sale])
	}
	s.opens(quick)
	s.press(quick, "bob", 1, "")
	for _, sale := range append(over, slow) {
		if st := s.state(sale); st.Gate != lua.GateShut {
			t.Errorf("the gate of sale %d, which waits, is %s", sale, st.Gate)
		}
	}
	close(q[slow])
	s.opens(append(over, slow)...)
	s.settleOutbox(quick)
	s.balanced(quick)
}

// A second restart finds the work of the first one's recovery half done.
func TestARestartDuringTheReconciliationIsRecovered(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 5})
	s.press(sale, "ann", 1, "k")
	q := queues{sale: make(chan struct{})}
	rec := s.reconciler(q)
	rec.drain, rec.patience = time.Hour, time.Hour
	background(t, rec.Keep)
	token := s.state(sale).Token
	for range 3 {
		s.flush()
		rec.Wake()
		eventually(t, "it is closed by a newer reconciler", func() bool { st := s.state(sale); return st.Gate == lua.GateShut && st.Token > token })
		token = s.state(sale).Token
		s.reserves()
	}
	close(q[sale])
	s.opens(sale)
	s.settleOutbox(sale)
	s.balanced(sale)
}

// A Redis that came back older than it was may hold what was released since, and lack what was promised: it decides about no
// order of an older epoch before it is reconciled.
func TestARestartedRedisAdoptsNothing(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 1})
	e := s.press(sale, "ann", 1, "k")
	dead := &attempt{r: s.rec, sale: sale}
	for _, step := range []func(context.Context) error{dead.begin, dead.shut, dead.read, dead.write} { // it adopts
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c, base := s.redis.Client(), s.redis.Client().Prefix()+fmt.Sprintf("{sale:%d}:", sale)
	released := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale) // since: it has ended
	if _, err := s.db.ExecContext(t.Context(), `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at, ended_at)
		VALUES (?, ?, 'bob', 1, 1, 'cancelled', NOW(), NOW(), NOW())`, released, sale); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []rueidis.Completed{
		c.B().Hset().Key(base+"state").FieldValue().FieldValue("stock", "0").Build(),
		c.B().Del().Key(base+"orders", base+"buyers", base+"outbox", base+"idem").Build(),
		c.B().Hset().Key(base+"orders").FieldValue().FieldValue(released, "bob 1 1 - 1 ").Build(),
	} {
		if err := c.Do(t.Context(), cmd).Error(); err != nil {
			t.Fatal(err)
		}
	}
	s.flush()
	if err := s.orders.Settle(t.Context(), []queued.Entry{e}); !errors.Is(err, redis.ErrRestarted) {
		t.Errorf("got %v, want it held for %v", err, redis.ErrRestarted)
	}
	background(t, s.rec.Keep)
	s.reserves()
	s.opens(sale)
	s.settle(e) // adopted
	s.settleOutbox(sale)
	if got := s.status(e.ID); got != string(wire.PendingPayment) {
		t.Errorf("the order that was promised is %s", got)
	}
	s.balanced(sale)
}

// TestANodeOfAnEarlierLifeIsReconciled: Redis has failed over to another node, which was reconciled, and back. The first one
// knows its own sale_reserve.lua still, and its data may be older than what was done since.
func TestANodeOfAnEarlierLifeIsReconciled(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 5})
	epoch := s.state(sale).Epoch
	here, err := s.rec.newestIncarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.rec.follow(t.Context(), here, "elsewhere"); err != nil {
		t.Fatal(err)
	}
	if err := s.rec.follow(t.Context(), here, "here again"); err == nil { // by one that slept meanwhile
		t.Error("a life followed one that was not the newest")
	}
	if err := s.rec.follow(t.Context(), "", "the first"); err == nil {
		t.Error("a life was the first after others")
	}
	s.redis.Client().Use("elsewhere")
	if _, err := s.redis.Reserve(t.Context(), request(sale, epoch, "ann", 1, "")); !errors.Is(err, redis.ErrRestarted) {
		t.Errorf("got %v, want %v", err, redis.ErrRestarted)
	}
	s.redis.Client().Use(here) // as a process does that has not noticed anything
	background(t, s.rec.Keep)
	eventually(t, "the sale is reconciled in a new life", func() bool {
		newest, err := s.rec.newestIncarnation(t.Context())
		return err == nil && newest != here && newest != "elsewhere" && s.state(sale).Epoch > epoch
	})
	s.reserves()
	s.opens(sale)
	s.press(sale, "ann", 1, "")
	s.settleOutbox(sale)
	s.balanced(sale)
}

func TestARestartDuringTheRecoveryIsNoticed(t *testing.T) {
	s := newSystem(t, false)
	s.redis.Client().Use("no life that Redis knows")
	nodes := s.redis.Client().Hold(t.Context())
	defer nodes.Release()
	lost, err := nodes.Lost(t.Context())
	if lost == nil || err != nil {
		t.Fatal(lost, err)
	}
	c, end := s.redis.Client().Dedicate()
	defer end()
	if err := c.Do(t.Context(), c.B().ClientKill().TypeNormal().SkipmeYes().Build()).Error(); err != nil { // what a restart does to it
		t.Fatal(err)
	}
	if _, err := s.redis.On(lost).Shut(t.Context(), 1, 1); err == nil {
		t.Error("a gate was closed in another life of Redis")
	}
	if _, err := lost.Begin(t.Context()); err == nil {
		t.Error("the script was loaded into another life of Redis")
	}
}

func TestAGateThatLostItsReconcilerIsOpened(t *testing.T) {
	s := newSystem(t, false)
	sale, never := s.sale(backendtest.SaleOptions{Stock: 5}), backendtest.Sale(t, s.db, backendtest.SaleOptions{Stock: 5})
	s.press(sale, "ann", 1, "")
	dead := &attempt{r: s.rec, sale: sale}
	for _, step := range []func(context.Context) error{dead.begin, dead.shut} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // two processes keep
		rec := s.reconciler(nil)
		rec.patience = 200 * time.Millisecond
		background(t, rec.Keep)
	}
	for _, id := range []int64{sale, never} { // the other was created, and its process died before it was loaded
		eventually(t, "the gate is open", func() bool { return s.state(id).Gate == lua.GateOpen })
	}
	s.settleOutbox(sale)
	s.balanced(sale)
}

// TestNothingPromisedIsLostWhileRedisIsEmptiedAgainAndAgain is accept.after: confirm under load: a promise is an order that
// the broker confirmed while Redis still had it.
func TestNothingPromisedIsLostWhileRedisIsEmptiedAgainAndAgain(t *testing.T) {
	const stock, buyers, workers = 300, 600, 8
	s := newSystem(t, true)
	sales := []int64{s.sale(backendtest.SaleOptions{Stock: stock, Limit: 2}), s.sale(backendtest.SaleOptions{Stock: stock, Limit: 2})}
	live := func() []int64 { return sales }
	for _, name := range []string{"r1", "r2"} {
		background(t, outbox.NewRelay(outbox.RelayConfig{ReaderConfig: outbox.ReaderConfig{Redis: s.redis, Live: live,
			Name: name, ClaimIdle: time.Second, Log: backendtest.Log(t), Register: prometheus.NewRegistry()}, Broker: s.broker}).Run)
	}
	s.consume(t, nil)
	for range 2 {
		rec := s.reconciler(s.broker)
		rec.patience = time.Second
		background(t, rec.Keep)
	}
	background(t, func(ctx context.Context) error { // the timer
		for ctx.Err() == nil {
			if _, err := s.intents.Run(ctx); err != nil && ctx.Err() == nil {
				t.Logf("intents: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	})

	var mu sync.Mutex // guards promised
	promised := map[string]bool{}
	var count, next, cancelled atomic.Int64
	over := make(chan struct{}) // closed: everything is sold
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			epochs := map[int64]int64{}
			for {
				select {
				case <-over:
					return
				default:
				}
				sale := sales[w%2]
				// One uid after the other, and round again: a buyer whose order Redis lost may press anew.
				r := request(sale, epochs[sale], fmt.Sprint("u", next.Add(1)%buyers), 1+w%2, "")
				v, err := s.redis.Reserve(t.Context(), r)
				switch {
				case err != nil:
					time.Sleep(5 * time.Millisecond)
				case v.Answer == lua.StaleEpoch:
					epochs[sale] = v.Epoch
				case v.Answer == lua.Reserved:
					h, ok, err := s.redis.Lookup(t.Context(), sale, v.OrderID)
					if err != nil || !ok {
						continue // emptied meanwhile: no promise
					}
					e := queued.Entry{ID: h.ID, Sale: sale, UID: h.UID, Quantity: h.Quantity, Slots: h.Slots, Epoch: epochs[sale], At: h.At, Entry: h.Entry}
					if err := s.broker.Publish(t.Context(), []queued.Entry{e}); err != nil {
						t.Errorf("publish: %v", err)
						continue
					}
					if _, ok, err := s.redis.Lookup(t.Context(), sale, v.OrderID); err != nil || !ok {
						continue
					}
					mu.Lock()
					promised[v.OrderID] = true
					mu.Unlock()
					if n := count.Add(1); n%20 == 0 && cancelled.Load() < 20 {
						if _, err := s.orders.Cancel(t.Context(), h.UID, h.ID); err == nil {
							cancelled.Add(1)
						}
					}
				default:
					time.Sleep(2 * time.Millisecond) // sold out, for now, or the buyer's limit
				}
			}
		})
	}
	for _, n := range []int64{40, 120, 200} {
		eventually(t, fmt.Sprint(n, " promises"), func() bool { return count.Load() >= n })
		s.flush(sales...)
	}
	for _, sale := range sales {
		eventually(t, "everything is sold", func() bool {
			var left int64
			err := s.db.QueryRowContext(t.Context(), `SELECT available FROM sale_stock WHERE sale_id = ?`, sale).Scan(&left)
			return err == nil && left == 0
		})
	}
	close(over)
	wg.Wait()
	for _, sale := range sales {
		eventually(t, "everything is settled", func() bool {
			snap := s.content(sale)
			return snap.State.Gate == lua.GateOpen && len(snap.Outbox) == 0
		})
	}
	eventually(t, "every release is done", func() bool {
		var open int
		err := s.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM intents WHERE done_at IS NULL`).Scan(&open)
		return err == nil && open == 0
	})
	for id := range promised {
		if got := s.status(id); got != "pending_payment" && got != "cancelled" {
			t.Errorf("promised order %s is %s", id, got)
		}
	}
	for _, sale := range sales {
		s.balanced(sale)
		var rejected int
		if err := s.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM orders WHERE sale_id = ? AND status = 'rejected'`, sale).Scan(&rejected); err != nil {
			t.Fatal(err)
		}
		t.Logf("sale %d: epoch %d, %d rejected that were not promised", sale, s.state(sale).Epoch, rejected)
	}
	t.Logf("%d promised, %d cancelled", len(promised), cancelled.Load())
}

// TestALargeSaleIsLoadedInSmallSteps loads orders that MySQL and the outbox hold.
func TestALargeSaleIsLoadedInSmallSteps(t *testing.T) {
	const inMySQL, inRedis = 20_000, 2_000
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: inMySQL + inRedis, Limit: 1})
	var batch []queued.Entry
	for i := range inMySQL {
		batch = append(batch, queued.Entry{ID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Sale: sale, UID: fmt.Sprint("m", i),
			Quantity: 1, Slots: "1", Key: fmt.Sprint("k", i), Epoch: 1, At: 1})
		if len(batch) == 500 {
			if err := s.orders.Settle(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			batch = batch[:0]
		}
	}
	s.reconcile(sale)
	var wg sync.WaitGroup
	epoch := s.state(sale).Epoch
	for w := range 20 {
		wg.Go(func() {
			for i := range inRedis / 20 {
				v, err := s.redis.Reserve(t.Context(), request(sale, epoch, fmt.Sprintf("q%d-%d", w, i), 1, "key"))
				if err != nil || v.Answer != lua.Reserved {
					t.Errorf("%+v, %v", v, err)
				}
			}
		})
	}
	wg.Wait()
	s.reconcile(sale)
	snap := s.content(sale)
	if len(snap.Orders) != inMySQL+inRedis || snap.State.Stock != 0 || len(snap.Buyers) != inMySQL+inRedis || len(snap.Outbox) != inRedis {
		t.Errorf("got %d reservations of %d buyers, stock %d, %d queued", len(snap.Orders), len(snap.Buyers), snap.State.Stock, len(snap.Outbox))
	}
	v, err := s.redis.Reserve(t.Context(), request(sale, epoch+1, "m17", 1, "k17"))
	if err != nil || v.Answer != lua.Repeated {
		t.Errorf("a repeat got %+v, %v", v, err)
	}
}
