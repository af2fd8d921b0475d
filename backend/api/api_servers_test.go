//go:build servers

package api

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/cart"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/coupon"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/payment"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/timeline"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// working is a server on the real stores. Nothing settles its orders.
type working struct {
	*Server
	*caller
	t     testing.TB
	db    *sql.DB
	redis *reserve.Store // the stores themselves, whatever the server's way to them is like
	reg   *prometheus.Registry
}

// work starts a server; it reaches Redis at addr.
func work(t testing.TB, limits Limits, addr string) *working {
	return workOn(t, limits, addr, backendtest.Redis(t), backendtest.MySQL(t))
}

// workOn starts a server on stores that may have others.
func workOn(t testing.TB, limits Limits, addr string, direct *reserve.Store, db *sql.DB) *working {
	s, c := start(t, limits)
	s.Log, s.sparse.log = backendtest.Log(t), backendtest.Log(t)
	redis, err := reserve.Open(redis.Config{Addrs: []string{addr}, Prefix: direct.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	if err := redis.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	log, reg := backendtest.Log(t), prometheus.NewRegistry()
	known := catalog.New(catalog.Config{DB: db, Redis: redis, Clock: s.Clock, Log: log, Register: reg})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- known.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	skus := sku.NewCache(sku.Config{DB: db, Redis: redis.Client(), Log: log, Register: reg})
	carts := cart.New(cart.Config{PayWithin: time.Minute, MaxInFlight: 2, DB: db, SKUs: skus, Clock: s.Clock, Log: log, Register: reg})
	line := standby.New(standby.Config{MaxLine: 2, DB: db, Redis: redis, Catalog: known, Clock: s.Clock, Log: log, Register: reg})
	book := order.NewStore(order.Config{Intents: intent.New(intent.Config{DB: db, Sales: sale.Reader{DB: db}, Redis: redis, Clock: s.Clock, Log: log, Register: reg, Returned: line.Wake}),
		DB: db, Redis: redis, Clock: s.Clock, Log: log, Register: reg, AcceptWithin: time.Minute, Returned: line.Wake})
	s.Begin(Parts{
		Catalog: known, Redis: redis, Orders: book, Carts: carts, SKUs: skus, Standby: line, Payer: book,
		Reader:     order.NewReader(order.ReaderConfig{DB: db, Redis: redis, Log: log, Register: reg}),
		Claims:     coupon.New(coupon.Config{DB: db, Clock: s.Clock, Register: reg}),
		Webhooks:   payment.New(payment.Config{DB: db, Orders: book, Clock: s.Clock, Log: log, Register: reg, Providers: []payment.Provider{testProvider}}),
		Timelines:  timeline.New(timeline.Config{DB: db, Orders: book, Clock: s.Clock, Log: log, Register: reg, Keep: time.Hour, MaxRows: 1000}),
		Gateways:   gateways.New(redis.Client(), s.Clock),
		Reconciler: reconcile.New(reconcile.Config{DB: db, Redis: redis, Log: log, Register: reg}),
	})
	w := &working{s, c, t, db, direct, reg}
	return w
}

func (w *working) press(uid string, sale int64, key, body string) *fasthttp.Response {
	w.t.Helper()
	req := w.request("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), body)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return w.signed(req, uid)
}

func accepted(t testing.TB, res *fasthttp.Response) string {
	t.Helper()
	var a wire.Accepted
	if err := json.Unmarshal(res.Body(), &a); res.StatusCode() != 202 || err != nil || a.Status != wire.Queued {
		t.Fatalf("got %d %s, want 202", res.StatusCode(), res.Body())
	}
	return a.OrderID
}

// A sale that is in MySQL alone is loaded by the first press, once for all that press at the same time.
func TestAColdSaleIsLoadedOnce(t *testing.T) {
	w := work(t, Limits{InFlight: 100, Waiting: 1, Connections: 100, Queued: 100, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 30})
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if res := w.press(fmt.Sprint("u", i), sale, "", ""); res.StatusCode() != 202 {
				t.Errorf("got %d %s, want 202", res.StatusCode(), res.Body())
			}
		})
	}
	wg.Wait()
	var epoch int64
	if err := w.db.QueryRow(`SELECT epoch FROM sale_stock WHERE sale_id = ?`, sale).Scan(&epoch); err != nil || epoch != 1 {
		t.Errorf("got epoch %d, %v; want it loaded once", epoch, err)
	}
	wantProblem(t, w.press("late", sale, "", ""), problem.SoldOut, "")
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil || len(snap.Orders) != 30 || len(snap.Outbox) != 30 {
		t.Errorf("got %d reservations, %d entries, %v; want 30 of each", len(snap.Orders), len(snap.Outbox), err)
	}
}

// counted is the sum of a counter over the processes.
func counted(t *testing.T, name string, processes []*working) (n int64) {
	t.Helper()
	for _, w := range processes {
		families, err := w.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == name {
				for _, m := range f.Metric {
					n += int64(m.GetCounter().GetValue())
				}
			}
		}
	}
	return n
}

// Row E2: hundreds come to a cold sale at once, by four processes: all are served from one load. Only a process that was held
// up for longer than its lock, or than the others wait for it, may cost one more.
func TestHundredsComeToAColdSale(t *testing.T) {
	t.Attr("row", "E2")
	const processes, each, presses = 4, 75, 25
	redis, db := backendtest.Redis(t), backendtest.MySQL(t)
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{Stock: processes * presses})
	var wg sync.WaitGroup
	begin := make(chan struct{})
	var all []*working
	for p := range processes {
		w := workOn(t, Limits{InFlight: each, Waiting: 1, Connections: each, Queued: 1000, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"), redis, db)
		until(t, "the sales are read", func() bool { return w.Catalog.Ready() == nil })
		all = append(all, w)
		for i := range each {
			wg.Go(func() {
				<-begin
				if i < presses {
					w.insist(fmt.Sprint("u", p, "-", i), sale)
				} else if res := w.signed(w.request("GET", fmt.Sprintf("/v1/sales/%d", sale), ""), ""); res.StatusCode() != 200 {
					t.Errorf("got %d %s, want the sale", res.StatusCode(), res.Body())
				}
			})
		}
	}
	close(begin)
	wg.Wait()
	var epoch, token int64
	if err := db.QueryRow(`SELECT epoch, token FROM sale_stock WHERE sale_id = ?`, sale).Scan(&epoch, &token); err != nil {
		t.Fatal(err)
	}
	without := counted(t, "backend_lock_lost_total", all) + counted(t, "backend_lock_refusals_total", all)
	if epoch < 1 || epoch > token || token > 1+without {
		t.Errorf("loaded %d times by %d reconcilers, %d of which did without the lock; want one load, and at most one more for each of those", epoch, token, without)
	}
	snap, err := redis.Snapshot(t.Context(), sale)
	if err != nil || len(snap.Orders) != processes*presses || snap.State.Stock != 0 {
		t.Errorf("got %d reservations, stock %d, %v; want %d and 0", len(snap.Orders), snap.State.Stock, err, processes*presses)
	}
}

// insist presses with one Idempotency-Key until there is an order. Where it is told to ask again, it does when whoever loads the
// sale is done.
func (w *working) insist(uid string, sale int64) {
	for end := time.Now().Add(time.Minute); ; {
		res := w.press(uid, sale, "key", "")
		if res.StatusCode() == 202 {
			return
		}
		if res.StatusCode() != 503 || time.Now().After(end) {
			w.t.Errorf("uid %s: got %d %s, want 202", uid, res.StatusCode(), res.Body())
			return
		}
		if err := w.Reconciler.Load(w.t.Context(), sale); err != nil {
			w.t.Logf("uid %s: %v", uid, err) // it is closed for another reason, or Redis is slow: the press tells
		}
	}
}

func TestAnswersOfARealSale(t *testing.T) {
	w := work(t, Limits{InFlight: 100, Waiting: 1, Connections: 100, Queued: 3, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"))
	now := time.Now().UTC().Truncate(time.Millisecond)
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 5, Limit: 3})
	first := accepted(t, w.press("alice", sale, "key", `{"quantity":2}`))
	if again := accepted(t, w.press("alice", sale, "key", `{"quantity":2}`)); again != first {
		t.Errorf("got %s, want the first order %s", again, first)
	}
	wantProblem(t, w.press("alice", sale, "key", `{"quantity":1}`), problem.IdempotencyKeyReused, "")
	wantProblem(t, w.press("alice", sale, "", `{"quantity":2}`), problem.AlreadyOrdered, "")
	wantProblem(t, w.press("alice", sale, "", `{"quantity":4}`), problem.BadRequest, "quantity: 4")
	wantProblem(t, w.press("alice", sale, "", `{"quantity":1,"uid":"bob"}`), problem.BadRequest, "uid: unknown member")
	wantProblem(t, w.press("alice", 999, "", ""), problem.SaleNotFound, "")

	// Another process reconciles the sale: its next epoch is learned on the way.
	if err := w.Reconciler.(*reconcile.Reconciler).Sale(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	accepted(t, w.press("bob", sale, "", ""))
	if got := w.Catalog.Epoch(sale); got != 2 {
		t.Errorf("got epoch %d, want 2", got)
	}
	wantProblem(t, w.press("carol", sale, "", `{"quantity":3}`), problem.InsufficientStock, "")
	accepted(t, w.press("carol", sale, "", ""))
	accepted(t, w.press("dave", sale, "", ""))
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, w.press("erin", sale, "", ""), problem.Overloaded, "queued") // before Redis is asked

	later := backendtest.Sale(t, w.db, backendtest.SaleOptions{StartsAt: now.Add(time.Hour), EndsAt: now.Add(2 * time.Hour)})
	res := w.press("alice", later, "", "")
	wantProblem(t, res, problem.SaleNotStarted, "")
	var p problem.Problem
	if err := json.Unmarshal(res.Body(), &p); err != nil || p.StartsAt == nil || !p.StartsAt.Equal(now.Add(time.Hour)) || string(res.Header.Peek("Retry-After")) < "35" {
		t.Errorf("got %s, Retry-After %s", res.Body(), res.Header.Peek("Retry-After"))
	}
	over := backendtest.Sale(t, w.db, backendtest.SaleOptions{EndsAt: now.Add(-time.Second)})
	wantProblem(t, w.press("alice", over, "", ""), problem.SaleEnded, "")
	paused := backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	if _, err := w.db.Exec(`UPDATE sales SET paused = TRUE WHERE id = ?`, paused); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, w.press("alice", paused, "", ""), problem.Overloaded, "paused")

	// While somebody reconciles, nothing is decided.
	if _, err := w.redis.Shut(t.Context(), paused, 1_000_000); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, w.press("alice", paused, "", ""), problem.Overloaded, "being checked")
}

func TestReadsCarryATag(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/v1/sales", fmt.Sprintf("/v1/sales/%d", sale)} {
		res := w.signed(w.request("GET", target, ""), "")
		tag := string(res.Header.Peek("ETag"))
		if res.StatusCode() != 200 || tag == "" || string(res.Header.Peek("Cache-Control")) != "public, max-age=1" {
			t.Fatalf("%s: got %s", target, res)
		}
		req := w.request("GET", target, "")
		req.Header.Set("If-None-Match", tag)
		if res := w.signed(req, ""); res.StatusCode() != 304 || len(res.Body()) != 0 || string(res.Header.Peek("ETag")) != tag {
			t.Errorf("%s: got %s, want 304: only the time has changed", target, res)
		}
		if _, err := w.db.Exec(`UPDATE sales SET title = CONCAT(title, '!'), version = version + 1 WHERE id = ?`, sale); err != nil {
			t.Fatal(err)
		}
		if err := w.Catalog.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if res := w.signed(req, ""); res.StatusCode() != 200 || string(res.Header.Peek("ETag")) == tag {
			t.Errorf("%s: got %s, want the changed sale", target, res)
		}
	}
}

// A sale that MySQL has is never said not to be there, also before the sales were first read.
func TestASaleIsThereBeforeTheSalesAreRead(t *testing.T) {
	s, c := start(t, roomy)
	db := backendtest.MySQL(t)
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{})
	s.Begin(Parts{Catalog: catalog.New(catalog.Config{DB: db, Redis: backendtest.Redis(t), Clock: s.Clock, Log: s.Log, Register: prometheus.NewRegistry()})}) // which does not run
	wantProblem(t, c.signed(c.request("GET", fmt.Sprintf("/v1/sales/%d", sale), ""), ""), problem.Overloaded, "being read")
	wantProblem(t, c.signed(c.request("GET", fmt.Sprintf("/v1/sales/%d", sale+1), ""), ""), problem.SaleNotFound, "")
	if err := s.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if res := c.signed(c.request("GET", fmt.Sprintf("/v1/sales/%d", sale), ""), ""); res.StatusCode() != 200 {
		t.Errorf("got %d %s", res.StatusCode(), res.Body())
	}
}

// link is a way to a server that can be cut, in one direction or in both.
type link struct {
	net.Listener
	to string

	mu    sync.Mutex // guards what follows
	deaf  bool       // what the server answers is lost
	conns map[net.Conn]bool
}

func newLink(t *testing.T, to string) *link {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{Listener: ln, to: to, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			l.mu.Lock()
			l.conns[c], l.conns[s] = true, true
			l.mu.Unlock()
			wg.Go(func() { defer s.Close(); io.Copy(s, c) })
			wg.Go(func() { defer c.Close(); io.Copy(answers{l, c}, s) })
		}
	})
	t.Cleanup(func() { l.cut(); wg.Wait() })
	return l
}

type answers struct {
	l *link
	c net.Conn
}

func (a answers) Write(b []byte) (int, error) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.l.deaf {
		return len(b), nil
	}
	return a.c.Write(b)
}

// setDeaf loses every answer from now on, or no longer; then the connections that have lost some end.
func (l *link) setDeaf(deaf bool) {
	l.mu.Lock()
	l.deaf = deaf
	l.mu.Unlock()
	if !deaf {
		l.drop()
	}
}

// drop ends every connection.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
}

// cut ends every connection and takes no new ones.
func (l *link) cut() {
	l.Close()
	l.drop()
}

// The answer of Redis is lost: the shopper is told that the outcome is not known, and finds the order by asking again.
func TestALostAnswerIsNotALostOrder(t *testing.T) {
	l := newLink(t, os.Getenv("REDIS_ADDR"))
	w := work(t, roomy, l.Addr().String())
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 5})
	accepted(t, w.press("first", sale, "", "")) // the sale is loaded, its epoch is known
	var held map[int64][]string
	for range 100 { // a press may wait behind another call that hears nothing, and never reach Redis
		l.setDeaf(true)
		res := w.press("alice", sale, "key", "")
		l.setDeaf(false)
		var err error
		if held, _, err = w.redis.OrdersOf(t.Context(), []int64{sale}, "alice"); err != nil {
			t.Fatal(err)
		}
		if len(held[sale]) > 0 {
			wantProblem(t, res, problem.OutcomeUnknown, "Idempotency-Key")
			break
		}
	}
	if len(held[sale]) != 1 {
		t.Fatalf("got %v, want the order that was made", held)
	}
	var again *fasthttp.Response
	for range 100 { // the first calls may meet the connection that is being given up
		if again = w.press("alice", sale, "key", ""); again.StatusCode() == 202 {
			break
		}
		wantProblem(t, again, problem.OutcomeUnknown, "")
	}
	if id := accepted(t, again); id != held[sale][0] {
		t.Errorf("got %s, want %s", id, held[sale][0])
	}
	res := w.signed(w.request("GET", fmt.Sprintf("/v1/orders?sale_id=%d", sale), ""), "alice")
	var list wire.OrderList
	if err := json.Unmarshal(res.Body(), &list); err != nil || len(list.Orders) != 1 || list.Orders[0].OrderID != held[sale][0] || list.Orders[0].Status != wire.Queued {
		t.Errorf("got %s, %v", res.Body(), err)
	}
}

// Redis cannot be reached at all: nothing was done, and that is what is said.
func TestWithoutRedisNothingIsPromised(t *testing.T) {
	l := newLink(t, os.Getenv("REDIS_ADDR"))
	w := work(t, roomy, l.Addr().String())
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 5})
	accepted(t, w.press("first", sale, "", ""))
	l.cut()
	var res *fasthttp.Response
	for range 100 { // until the lost connection was noticed
		res = w.press("alice", sale, "", "")
		if res.StatusCode() == 202 {
			t.Fatalf("got %s without Redis", res.Body())
		}
		var p problem.Problem
		if err := json.Unmarshal(res.Body(), &p); err == nil && p.Code == problem.Overloaded {
			break
		}
	}
	wantProblem(t, res, problem.Overloaded, "nothing was done")
}

// Only what Redis refused before it began, or what never reached it, is told as "nothing was done".
func TestWhatNeverRan(t *testing.T) {
	c := backendtest.Redis(t).Client()
	says := func(message string) error {
		err := c.Do(t.Context(), c.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(message).Build()).Error()
		return fmt.Errorf("reserve: %w", err)
	}
	for message, want := range map[string]bool{
		"LOADING Redis is loading the dataset in memory": true, "OOM command not allowed": true, "READONLY You can't write": true,
		"CLUSTERDOWN": true, "WRONGTYPE Operation against a key": false, "ERR user_script:3: attempt": false, "NOSCRIPT": false,
	} {
		if err := says(message); neverRan(err) != want {
			t.Errorf("%v: got %v, want %v", err, !want, want)
		}
	}
	if _, err := net.Dial("tcp", "127.0.0.1:1"); !neverRan(fmt.Errorf("reserve: %w", err)) {
		t.Errorf("%v: it never left", err)
	}
	if neverRan(context.DeadlineExceeded) || neverRan(io.EOF) {
		t.Error("a lost answer is unknown")
	}
}
