//go:build servers

package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// process is a reconciler as another process has it: with connections of its own, on links that a test can disturb.
type process struct {
	*Reconciler
	redisLink, mysqlLink *netfault.Link
	conns                *sql.DB
}

// process makes one whose times are so many times shorter than those of production.
func (s *system) process(t *testing.T, fence Fence, shorter time.Duration) *process {
	t.Helper()
	c, err := mysql.ParseDSN(os.Getenv("MYSQL_DSN"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.QueryRowContext(t.Context(), `SELECT DATABASE()`).Scan(&c.DBName); err != nil {
		t.Fatal(err)
	}
	p := &process{redisLink: netfault.New(t, os.Getenv("REDIS_ADDR")), mysqlLink: netfault.New(t, c.Addr)}
	c.Addr = p.mysqlLink.Addr()
	p.conns = backendtest.OpenMySQL(t, c.FormatDSN(), 4)
	store, err := reserve.Open(redis.Config{Addrs: []string{p.redisLink.Addr()}, Prefix: s.redis.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	p.Reconciler = New(Config{DB: p.conns, Redis: store, Fence: fence, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	for _, d := range []*time.Duration{&p.drain, &p.patience, &p.takeover, &p.beat} {
		*d /= shorter
	}
	return p
}

func (p *process) slow(d time.Duration) {
	p.redisLink.Delay(d)
	p.mysqlLink.Delay(d)
}

// manyOrders writes that many live orders of a sale straight into MySQL, a multiple of 1,000, each of one unit, with an Idempotency-Key.
func (s *system) manyOrders(sale int64, n int) {
	s.t.Helper()
	const step = 1000 // a server's own bound of a recursion
	for from := 1; from < n; from += step {
		for _, statement := range []string{
			`INSERT INTO orders (id, sale_id, uid, quantity, amount, status, idem_key, created_at, decided_at, pay_before)
				WITH RECURSIVE seq (i) AS (SELECT %[2]d UNION ALL SELECT i + 1 FROM seq WHERE i < %[3]d)
				SELECT CONCAT('00000000-0000-7000-8000-', LPAD(i, 12, '0'), '-%[1]d'), %[1]d, CONCAT('m', i), 1, 100, 'pending_payment', CONCAT('k', i),
					NOW(3), NOW(3), NOW(3) + INTERVAL 1 DAY FROM seq`,
			`INSERT INTO order_slots (sale_id, uid, slot, order_id)
				WITH RECURSIVE seq (i) AS (SELECT %[2]d UNION ALL SELECT i + 1 FROM seq WHERE i < %[3]d)
				SELECT %[1]d, CONCAT('m', i), 1, CONCAT('00000000-0000-7000-8000-', LPAD(i, 12, '0'), '-%[1]d') FROM seq`,
		} {
			if _, err := s.db.ExecContext(s.t.Context(), fmt.Sprintf(statement, sale, from, from+step-1)); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	if _, err := s.db.ExecContext(s.t.Context(), `UPDATE sale_stock SET available = available - ?, locked = locked + ? WHERE sale_id = ?`, n, n, sale); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) token(sale int64) (token int64) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), `SELECT token FROM sale_stock WHERE sale_id = ?`, sale).Scan(&token); err != nil {
		s.t.Fatal(err)
	}
	return token
}

// A reconciliation that takes longer than everybody's patience comes to its end: whoever works is seen to, and is left to it.
func TestReconcilersLeaveEachOtherToTheirWork(t *testing.T) {
	const (
		orders  = 50_000
		shorter = 8
		delay   = 50 * time.Millisecond / shorter // of each link, each way
		most    = 8                               // tokens that may be taken until the gate is open; a busy machine may take an attempt for dead
	)
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: orders + 10})
	s.manyOrders(sale, orders)
	var all []*process
	for range 3 {
		p := s.process(t, nil, shorter)
		p.slow(delay)
		all = append(all, p)
	}
	// opens waits until the gate is open, and counts the tokens that were taken.
	opens := func(t *testing.T, before int64) {
		t.Helper()
		for {
			taken := s.token(sale) - before
			if taken > most {
				t.Fatalf("%d tokens are taken and the gate is %q: they take over from each other for ever", taken, s.state(sale).Gate)
			}
			if s.state(sale).Gate == lua.GateOpen && taken > 0 {
				t.Logf("%d tokens", taken)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, n := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d processes keep", n), func(t *testing.T) {
			s.empty(sale)
			before := s.token(sale)
			for _, p := range all[:n] {
				background(t, p.Keep)
			}
			opens(t, before)
			backendtest.RedisBalanced(t, s.db, s.redis, sale)
		})
	}
	t.Run("two operators rebuild while a process keeps", func(t *testing.T) {
		before := s.token(sale)
		background(t, all[2].Keep)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var both sync.WaitGroup
		for _, p := range all[:2] {
			both.Go(func() {
				if err := p.Sale(ctx, sale); err != nil {
					t.Error(err)
				}
			})
		}
		done := make(chan struct{})
		go func() { both.Wait(); close(done) }()
		for over := false; !over; {
			select {
			case <-done:
				over = true
			case <-time.After(20 * time.Millisecond):
				if taken := s.token(sale) - before; taken > most {
					cancel()
					<-done
					t.Fatalf("%d tokens are taken: they take over from each other for ever", taken)
				}
			}
		}
		opens(t, before)
		backendtest.RedisBalanced(t, s.db, s.redis, sale)
	})
}

// A reconciler whose process hangs shows nothing: another one takes over. Row A7: what it writes when it wakes, be it to MySQL or to
// Redis, carries the sale's token, which is no longer the newest, and is refused.
func TestAReconcilerThatHangsIsTakenOverFromAndWritesNothing(t *testing.T) {
	t.Attr("row", "A7")
	s := newSystem(t, false)
	sale, waiting := s.history()
	s.settle(waiting)
	p := s.process(t, nil, 8)
	hangs := make(chan struct{})
	p.mysqlLink.BeforeAnswerTo("FROM orders FORCE", sync.OnceFunc(func() {
		for _, l := range []*netfault.Link{p.redisLink, p.mysqlLink} {
			l.Hold(netfault.Up)
			l.Hold(netfault.Down)
		}
		close(hangs)
	}))
	done := make(chan error, 1)
	go func() { done <- p.Sale(t.Context(), sale) }()
	<-hangs
	stale := s.state(sale).Token
	background(t, s.process(t, nil, 8).Keep)
	eventually(t, "another one has taken over and opened the gate", func() bool { return s.state(sale).Gate == lua.GateOpen })
	after, state := s.content(sale), s.state(sale)
	if state.Token <= stale {
		t.Errorf("the gate is open under token %d, want one above %d", state.Token, stale)
	}
	p.redisLink.Heal()
	p.mysqlLink.Heal()
	t.Logf("the one that hung: %v", <-done)

	late := &attempt{r: s.rec, sale: sale, token: stale}
	late.load.Epoch = state.Epoch
	if _, err := s.db.ExecContext(t.Context(), `INSERT INTO intents (sale_id, kind, quantity, created_at) VALUES (?, 'adjust', 1, UTC_TIMESTAMP(3))`, sale); err != nil {
		t.Fatal(err)
	}
	var intent int64
	if err := s.db.QueryRowContext(t.Context(), `SELECT MAX(id) FROM intents`).Scan(&intent); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(context.Context) error{
		"raise the epoch":                    late.raise,
		"mark an intent done":                func(ctx context.Context) error { return late.done(ctx, []int64{intent}) },
		"close the gate":                     func(ctx context.Context) error { _, err := s.redis.Shut(ctx, sale, stale); return err },
		"beat":                               func(ctx context.Context) error { return s.redis.Beat(ctx, sale, stale) },
		"write the orders":                   func(ctx context.Context) error { return s.redis.Load(ctx, sale, stale, late.load) },
		"open the gate":                      late.open,
		"forget what is no archive any more": func(ctx context.Context) error { return s.redis.Forget(ctx, sale, stale) },
	} {
		if err := write(t.Context()); !errors.Is(err, reserve.ErrLost) {
			t.Errorf("%s under token %d of %d: got %v, want %v", name, stale, state.Token, err, reserve.ErrLost)
		}
	}
	sameContent(t, s.content(sale), after)
	if now := s.state(sale); now.Token != state.Token || now.Epoch != state.Epoch || now.Gate != lua.GateOpen {
		t.Errorf("the gate is %+v, want it as it was, %+v", now, state)
	}
	var epoch, open int64
	if err := s.db.QueryRowContext(t.Context(), `SELECT epoch, (SELECT COUNT(*) FROM intents WHERE id = ? AND done_at IS NULL) FROM sale_stock WHERE sale_id = ?`,
		intent, sale).Scan(&epoch, &open); err != nil || epoch != state.Epoch || open != 1 {
		t.Errorf("in MySQL the epoch is %d and %d intents are open, %v; want %d and 1", epoch, open, err, state.Epoch)
	}
}

// Whoever waits for the queue, before or after it has written, shows that it is at work. The beats alone are faster than in production:
// a machine that stands still for less than the patience of production takes nobody for dead.
func TestAReconcilerThatWaitsForTheQueueIsLeftToIt(t *testing.T) {
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 5})
	settled := make(chan struct{})
	process := func(fence Fence) *process {
		p := s.process(t, fence, 40)
		p.patience = patience
		return p
	}
	p := process(queues{sale: settled})
	before := s.token(sale)
	done := make(chan error, 1)
	go func() { done <- p.Sale(t.Context(), sale) }()
	eventually(t, "the gate adopts, and the queue is waited for", func() bool { return s.state(sale).Gate == lua.GateAdopt })
	for range 2 {
		background(t, process(nil).Keep)
	}
	operator := make(chan error, 1)
	go func() { operator <- process(nil).Sale(t.Context(), sale) }()
	beat := s.state(sale).Beat
	longest := 3 * patience / 2 // of anybody
	eventually(t, "it beats for longer than anybody's patience", func() bool {
		return s.state(sale).Beat > beat+int64(longest/p.beat)+1 || s.token(sale) != before+1
	})
	if got := s.token(sale); got != before+1 {
		t.Errorf("%d tokens are taken, want 1", got-before)
	}
	close(settled)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := <-operator; err != nil {
		t.Errorf("the rebuild that waited: %v", err)
	}
	if got := s.token(sale); got != before+1 {
		t.Errorf("%d tokens are taken, want 1: the rebuild that waited is done", got-before)
	}
}

// While all of a sale is read, its payments, cancellations and expiries go on; and what is read is of one moment, after which no
// message of an older epoch is inserted.
func TestASaleGoesOnWhileItIsRead(t *testing.T) {
	s := newSystem(t, false)
	const many = readPage + 500
	sale := s.sale(backendtest.SaleOptions{Stock: many + 10, Limit: 3})
	paid, cancelled, expired := s.press(sale, "ann", 2, "k"), s.press(sale, "bob", 1, "k"), s.press(sale, "cid", 3, "k")
	s.settle(paid, cancelled, expired)
	var batch []queued.Entry // more than a page; they need not be in Redis, which is emptied
	for i := range many {
		batch = append(batch, queued.Entry{ID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Sale: sale, UID: fmt.Sprint("m", i), Quantity: 1,
			Slots: "1", Epoch: 1, At: 1})
	}
	for part := range slices.Chunk(batch, 500) {
		if err := s.orders.Settle(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	late := s.press(sale, "dan", 1, "k") // the broker alone has it
	s.empty(sale)
	if _, err := s.db.ExecContext(t.Context(), `UPDATE orders SET pay_before = created_at WHERE id = ?`, expired.ID); err != nil {
		t.Fatal(err)
	}
	p := s.process(t, nil, 1)
	went := false
	p.mysqlLink.BeforeAnswerTo("FROM orders FORCE", sync.OnceFunc(func() {
		went = true
		if _, err := s.orders.Pay(t.Context(), "ann", paid.ID); err != nil {
			t.Errorf("pay while the sale is read: %v", err)
		}
		if _, err := s.orders.Cancel(t.Context(), "bob", cancelled.ID); err != nil {
			t.Errorf("cancel while the sale is read: %v", err)
		}
		if n, err := s.orders.Expire(t.Context()); n != 1 || err != nil {
			t.Errorf("expire while the sale is read: %d, %v", n, err)
		}
		if err := s.orders.Settle(t.Context(), []queued.Entry{late}); !errors.Is(err, reserve.ErrGateClosed) {
			t.Errorf("settle a message of the old epoch: got %v, want %v", err, reserve.ErrGateClosed)
		}
	}))
	if err := p.Sale(t.Context(), sale); err != nil || !went {
		t.Fatalf("got %v; the orders were read: %t", err, went)
	}
	if st := s.state(sale); st.Gate != lua.GateOpen || st.Stock != 4 { // as of the moment that was read
		t.Errorf("the gate is %q and the stock %d, want 4", st.Gate, st.Stock)
	}
	if n, err := s.intents.Run(t.Context()); n != 2 || err != nil {
		t.Errorf("%d intents done, %v; want 2", n, err)
	}
	s.settle(late)
	s.settleOutbox(sale)
	if got := s.status(late.ID); got != string(wire.PendingPayment) {
		t.Errorf("the order of the old epoch is %s", got)
	}
	if st := s.state(sale); st.Stock != 7 {
		t.Errorf("the stock is %d, want 7", st.Stock)
	}
	s.balanced(sale)
}

// What is read may be a cancellation that MySQL shows and has not synced: its unit must not be sold before it is.
func TestWhatARebuildRestsOnIsDurable(t *testing.T) {
	s := newSystem(t, false)
	sale, waiting := s.history()
	s.settle(waiting)
	a := &attempt{r: s.rec, sale: sale}
	for _, step := range []func(context.Context) error{a.begin, a.shut, a.raise} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	synced := backendtest.Unsynced(t, s.db, func() {
		if _, err := s.orders.Cancel(t.Context(), "", waiting.ID); err != nil {
			t.Fatal(err)
		}
	})
	commits := func() (n int64) {
		t.Helper()
		if err := s.db.QueryRowContext(t.Context(), `SELECT n FROM durable`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := commits()
	if err := a.readRows(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if n := commits() - before; !synced() || n != 1 {
		t.Errorf("what it rests on is synced: %t, by %d commits, want one", synced(), n)
	}
}
