//go:build servers

package sku

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// room is a Cache on the real stores.
type room struct {
	*Cache
	t *testing.T
}

func newRoom(t *testing.T) *room {
	t.Helper()
	return &room{NewCache(Config{DB: backendtest.MySQL(t), Redis: backendtest.Redis(t).Client(), Log: backendtest.Log(t), Register: prometheus.NewRegistry()}), t}
}

func (r *room) state(sku int64) State {
	r.t.Helper()
	s, err := r.states(r.t.Context(), []int64{sku})
	if err != nil {
		r.t.Fatal(err)
	}
	return s[0]
}

func (r *room) reduce(order string, sku, units int64) Verdict {
	r.t.Helper()
	v, err := r.Lock(r.t.Context(), order, []Line{{sku, units}})
	if err != nil {
		r.t.Fatal(err)
	}
	return v[0]
}

func (r *room) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *room) exec(query string, args ...any) {
	r.t.Helper()
	_, err := r.db.ExecContext(r.t.Context(), query, args...)
	r.must(err)
}

func (r *room) count(query string, args ...any) (n int64) {
	r.t.Helper()
	r.must(r.db.QueryRowContext(r.t.Context(), query, args...).Scan(&n))
	return n
}

func (r *room) loads(result string) float64 {
	return testutil.ToFloat64(r.results.WithLabelValues(result))
}

// restock is what an operator's restock does to MySQL.
func (r *room) restock(sku, units int64) (intent int64) {
	r.t.Helper()
	r.must(store.InTx(r.t.Context(), r.db, func(tx *sql.Tx) error {
		rows, err := Lock(r.t.Context(), tx, []int64{sku})
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(r.t.Context(), `UPDATE skus SET available = available + ?, total = total + ? WHERE id = ?`, units, units, sku); err != nil {
			return err
		}
		written, err := tx.ExecContext(r.t.Context(), `INSERT INTO sku_intents (sku_id, kind, quantity, created_at) VALUES (?, 'adjust', ?, ?)`, sku, units, time.Now())
		if err != nil {
			return err
		}
		if intent, err = written.LastInsertId(); err != nil {
			return err
		}
		return ledger.OfSKUs(r.t.Context(), tx, time.Now(), ledger.Row{Of: sku, Kind: ledger.Restock, Ref: fmt.Sprint("intent:", intent), Before: rows[sku].Units, Change: ledger.Units{Available: units}})
	}))
	return intent
}

// Row E1, Row E5: what is loaded is what MySQL has, its unpaid orders and its changes included.
func TestLoadBringsWhatMySQLHas(t *testing.T) {
	t.Attr("row", "E1 E5")
	r := newRoom(t)
	sku := backendtest.SKU(t, r.db, 20, 100, "EUR")
	intent := r.restock(sku, 5)
	order := wire.NewCartOrderID("0190163d-8694-739b-aea5-966c26f8ad91")
	r.exec(`UPDATE skus SET available = available - 7, locked = 4, sold = 3 WHERE id = ?`, sku)
	r.exec(`INSERT INTO cart_lines (order_id, sku_id, quantity, price, currency, held, lock_id) VALUES (?, ?, 4, 1, 'EUR', TRUE, '0.9'), ('ended', ?, 3, 1, 'EUR', FALSE, '0.8')`, order, sku, sku)
	r.must(r.Load(t.Context(), sku))
	if got, want := r.state(sku), (State{Gate: lua.GateOpen, Epoch: 1, Available: 18, Locked: 4, Sold: 3, Total: 25, Floor: intent}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if v := r.reduce(order, sku, 4); v.Answer != lua.AlreadyApplied || v.Lock != "0.9" {
		t.Errorf("its order: got %+v", v)
	}
	r.must(Adjust(t.Context(), r.redis, sku, intent, 5))
	if got := r.state(sku).Available; got != 18 {
		t.Errorf("the restock came twice: available %d", got)
	}
	r.must(r.Load(t.Context(), sku)) // it is there
	r.must(r.Rebuild(t.Context(), sku))
	if got := r.state(sku); got.Epoch != 2 || got.Available != 18 {
		t.Errorf("rebuilt: got %+v", got)
	}
	if r.loads("loaded") != 2 || r.loads("present") != 1 {
		t.Errorf("loaded %v, present %v", r.loads("loaded"), r.loads("present"))
	}
}

func TestLoadOfManyOrders(t *testing.T) {
	r := newRoom(t)
	const orders = 2*loadStep + 7
	sku := backendtest.SKU(t, r.db, orders+1, 100, "EUR")
	var args []any
	for i := range orders {
		args = append(args, fmt.Sprintf("0190163d-8694-739b-aea5-%012d-0", i), sku, 1, 1, "EUR", fmt.Sprint("0.", i))
	}
	r.exec(`INSERT INTO cart_lines (order_id, sku_id, quantity, price, currency, lock_id) VALUES `+store.Tuples(orders, 6), args...)
	r.exec(`UPDATE skus SET available = 1, locked = ? WHERE id = ?`, orders, sku)
	r.must(r.Load(t.Context(), sku))
	snap, err := Read(t.Context(), r.redis, sku)
	r.must(err)
	if len(snap.Orders) != orders || len(snap.Open) != 0 || snap.State.Locked != orders || snap.State.Available != 1 {
		t.Errorf("%d orders, %d open, %+v", len(snap.Orders), len(snap.Open), snap.State)
	}
}

// Row B6, for SKUs: what is none costs MySQL one look a second, and Redis nothing.
func TestUnknownSKU(t *testing.T) {
	t.Attr("row", "B6")
	r := newRoom(t)
	own := backendtest.Sale(t, r.db, backendtest.SaleOptions{})
	var sku int64
	r.must(r.db.QueryRowContext(t.Context(), `SELECT sku_id FROM sales WHERE id = ?`, own).Scan(&sku))
	for _, id := range []int64{sku, 999} {
		for range 100 {
			if err := r.Load(t.Context(), id); !errors.Is(err, ErrUnknown) {
				t.Fatalf("SKU %d: got %v", id, err)
			}
		}
		if err := r.Rebuild(t.Context(), id); !errors.Is(err, ErrUnknown) {
			t.Errorf("rebuild of SKU %d: got %v", id, err)
		}
		if s := r.state(id); s != (State{}) {
			t.Errorf("SKU %d is in Redis: %+v", id, s)
		}
	}
	unknown, err := r.LoadAll(t.Context(), []int64{sku, 999, backendtest.SKU(t, r.db, 1, 1, "EUR")})
	if err != nil || len(unknown) != 2 || !unknown[sku] || !unknown[999] {
		t.Errorf("got %v, %v", unknown, err)
	}
	if n := r.loads("unknown"); n > 20 { // 100 loads each; a machine that hangs for a second looks again
		t.Errorf("MySQL was asked %v times", n)
	}
	for i := range absentMost + 10 {
		r.setAbsent(int64(i + 1000))
	}
	if n := len(r.absent); n > absentMost {
		t.Errorf("%d SKUs are remembered, the most is %d", n, absentMost)
	}
}

// herd has each of n callers lock one unit of a SKU that is not in Redis, all at once, and counts those that did.
func herd(ctx context.Context, s *Cache, sku int64, name string, n int) (locked int, err error) {
	var mu sync.Mutex // guards locked and err
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			e := s.Load(ctx, sku) // reading
			var v []Verdict
			if e == nil {
				v, e = s.Lock(ctx, fmt.Sprint(name, "-", i), []Line{{sku, 1}})
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil: // the first is enough
			case e != nil:
				err = e
			case v[0].Answer == lua.Reduced && Epoch(v[0].Lock) == 1:
				locked++
			case v[0].Answer != lua.NotEnough:
				err = fmt.Errorf("caller %d got %+v", i, v[0])
			}
		})
	}
	close(begin)
	wg.Wait()
	return locked, err
}

// herdProcess is one process of the herd: it waits for a line, so that all begin at once, and says how many it locked.
func herdProcess() int {
	f := strings.Fields(os.Getenv("FLOODGATE_HERD"))
	db, err := store.Open(f[0], 8)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	redis, err := redis.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: f[1]})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if err := redis.Begin(context.Background()); err != nil {
		fmt.Println(err)
		return 1
	}
	sku, _ := strconv.ParseInt(f[2], 10, 64)
	s := NewCache(Config{DB: db, Redis: redis, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Register: prometheus.NewRegistry()})
	fmt.Println("ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		fmt.Println(err)
		return 1
	}
	n, err := herd(context.Background(), s, sku, f[3], 250)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("locked", n)
	return 0
}

// Row E2: a thousand first readers in four processes, and MySQL is read once: its epoch counts that. It cannot be read before every
// process has asked Redis who loads the SKU.
func TestHerdLoadsOnce(t *testing.T) {
	t.Attr("row", "E2")
	dsn := backendtest.MySQLDSN(t)
	db := backendtest.OpenMySQL(t, dsn, 8)
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	r := &room{NewCache(Config{DB: db, Redis: backendtest.Redis(t).Client(), Log: backendtest.Log(t), Register: prometheus.NewRegistry()}), t}
	sku := backendtest.SKU(t, db, 600, 100, "EUR")
	type process struct {
		cmd *exec.Cmd
		in  io.Writer
		out io.Reader
	}
	held, err := db.Begin()
	r.must(err)
	defer held.Rollback()
	_, err = held.Exec(`UPDATE skus SET epoch = epoch WHERE id = ?`, sku)
	r.must(err)
	var all []process
	asked := make(chan struct{}, 4)
	for i := range 4 {
		link := netfault.New(t, os.Getenv("REDIS_ADDR"))
		link.BeforeAnswerTo("\r\n"+lua.StepClaim+"\r\n", sync.OnceFunc(func() { asked <- struct{}{} }))
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("FLOODGATE_HERD=%s %s %d p%d", dsn, r.redis.Prefix(), sku, i), "REDIS_ADDR="+link.Addr())
		in, err := cmd.StdinPipe()
		r.must(err)
		out, err := cmd.StdoutPipe()
		r.must(err)
		r.must(cmd.Start())
		ready := make([]byte, len("ready\n"))
		if _, err := io.ReadFull(out, ready); err != nil || string(ready) != "ready\n" {
			t.Fatalf("process %d says %q, %v", i, ready, err)
		}
		all = append(all, process{cmd, in, out})
	}
	for _, p := range all {
		if _, err := p.in.Write([]byte("go\n")); err != nil {
			t.Error(err)
		}
	}
	for range all {
		<-asked
	}
	r.must(held.Rollback())
	locked := 0
	for i, p := range all {
		said, err := io.ReadAll(p.out)
		r.must(err)
		n := 0
		if _, err := fmt.Sscanf(string(said), "locked %d", &n); err != nil {
			t.Errorf("process %d says %q", i, said)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
		locked += n
	}
	if s := r.state(sku); locked != 600 || s.Available != 0 || s.Locked != 600 {
		t.Errorf("locked %d of 600, Redis has %+v", locked, s)
	}
	if n := r.count(`SELECT epoch FROM skus WHERE id = ?`, sku); n != 1 {
		t.Errorf("the SKU was read from MySQL %d times", n)
	}
}

// Row E2: the same in one process, with a claim that another one's death left behind.
func TestHerdAfterADeadLoader(t *testing.T) {
	t.Attr("row", "E2")
	r := newRoom(t)
	sku := backendtest.SKU(t, r.db, 1000, 100, "EUR")
	if _, err := r.step(t.Context(), sku, "dead", lua.StepClaim, "60000", "0"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Load(short, sku); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the lease lasts: got %v", err)
	}
	if err := r.Load(t.Context(), sku); !errors.Is(err, ErrSlow) {
		t.Errorf("while the lease lasts: got %v, want ErrSlow", err)
	}
	c := r.redis
	r.must(c.Do(t.Context(), c.B().Hset().Key(keysOf(r.redis, sku).state).FieldValue().FieldValue("until", "1").Build()).Error())
	if n, err := herd(t.Context(), r.Cache, sku, "one", 1000); n != 1000 || err != nil {
		t.Errorf("locked %d, %v", n, err)
	}
	if n := r.count(`SELECT epoch FROM skus WHERE id = ?`, sku); n != 1 {
		t.Errorf("the SKU was read from MySQL %d times", n)
	}
}

// Row E6: a Redis that was started anew, and may have lost anything, has every SKU forgotten before it locks units again.
func TestRestartedRedisForgetsEverySKU(t *testing.T) {
	t.Attr("row", "E6")
	r := newRoom(t)
	var skus []int64
	for range 3 {
		skus = append(skus, backendtest.SKU(t, r.db, 10, 100, "EUR"))
	}
	if _, err := r.LoadAll(t.Context(), skus); err != nil {
		t.Fatal(err)
	}
	if v := r.reduce("lost", skus[0], 4); v.Answer != lua.Reduced {
		t.Fatalf("got %+v", v)
	}
	c := r.redis
	r.must(c.Do(t.Context(), c.B().ScriptFlush().Build()).Error())
	if _, err := r.Lock(t.Context(), "o", []Line{{skus[0], 1}}); !errors.Is(err, redis.ErrRestarted) {
		t.Fatalf("got %v, want ErrRestarted", err)
	}
	if armed, err := r.Ready(t.Context()); armed || err != nil {
		t.Errorf("armed: %v, %v", armed, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- r.Keep(ctx) }()
	bound, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	for armed := false; !armed; {
		var err error
		if armed, err = r.Ready(bound); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	r.must(<-kept)
	for _, sku := range skus {
		if s := r.state(sku); s != (State{}) {
			t.Errorf("SKU %d is still there: %+v", sku, s)
		}
		if v := r.reduce("again", sku, 1); v.Answer != lua.NotLoaded {
			t.Errorf("SKU %d: got %+v", sku, v)
		}
		r.must(r.Load(t.Context(), sku))
		backendtest.SKUBalanced(t, r.db, r.redis, sku)
	}
	if n := testutil.ToFloat64(r.restarts); n != 1 {
		t.Errorf("%v restarts", n)
	}
}

// Row E6: Redis was taken over by another node, which may be an older copy: its life has another name, and what it has of SKUs is
// forgotten, though it knows the script of the life before.
func TestAnotherLifeOfRedisForgetsEverySKU(t *testing.T) {
	t.Attr("row", "E6")
	r := newRoom(t)
	sku := backendtest.SKU(t, r.db, 10, 100, "EUR")
	r.must(r.Load(t.Context(), sku))
	r.reduce("o", sku, 1)
	r.redis.Use("another life")
	if _, err := r.Lock(t.Context(), "p", []Line{{sku, 1}}); !errors.Is(err, redis.ErrRestarted) {
		t.Errorf("got %v, want ErrRestarted", err)
	}
	r.must(r.look(t.Context()))
	if s := r.state(sku); s != (State{}) {
		t.Errorf("the SKU is still there: %+v", s)
	}
	r.must(r.Load(t.Context(), sku))
	if v := r.reduce("p", sku, 1); v.Answer != lua.Reduced || Epoch(v.Lock) != 2 {
		t.Errorf("got %+v", v)
	}
	r.redis.Use("") // no reconciler was there yet
	if armed, err := r.Ready(t.Context()); armed || err != nil {
		t.Errorf("without a life: armed %v, %v", armed, err)
	}
	if _, err := r.Lock(t.Context(), "q", []Line{{sku, 1}}); !errors.Is(err, redis.ErrRestarted) {
		t.Errorf("without a life: got %v, want ErrRestarted", err)
	}
}

// Row D7: a list says available or sold out, and loads what Redis does not have.
func TestList(t *testing.T) {
	t.Attr("row", "D7")
	r := newRoom(t)
	full, empty := backendtest.SKU(t, r.db, 1, 250, "EUR"), backendtest.SKU(t, r.db, 0, 100, "USD")
	backendtest.Sale(t, r.db, backendtest.SaleOptions{}) // its SKU is not for carts
	want := []wire.SKU{{ID: empty, Title: "test sku", Price: 100, Currency: "USD", State: wire.SKUSoldOut},
		{ID: full, Title: "test sku", Price: 250, Currency: "EUR", State: wire.SKUAvailable}}
	got, err := r.List(t.Context())
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if s := r.state(full); s.Gate != lua.GateOpen {
		t.Errorf("reading did not load it: %+v", s)
	}
	r.reduce("o", full, 1)
	want[1].State = wire.SKUSoldOut
	if got, err := r.List(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("with its unit locked in Redis: got %+v, %v", got, err)
	}
	if _, err := r.step(t.Context(), full, "x", lua.StepClaim, "60000", "1"); err != nil {
		t.Fatal(err)
	}
	want[1].State = wire.SKUAvailable // MySQL's number, while it is being loaded
	if got, err := r.List(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("while it is being loaded: got %+v, %v", got, err)
	}

	// Redis does not answer.
	far, err := redis.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: r.redis.Prefix()})
	r.must(err)
	far.Close()
	if got, err := NewCache(Config{DB: r.db, Redis: far, Log: r.log, Register: prometheus.NewRegistry()}).List(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("without Redis: got %+v, %v", got, err)
	}
}

// Row A3: the row refuses what there is not.
func TestMoveRefuses(t *testing.T) {
	t.Attr("row", "A3")
	r := newRoom(t)
	sku := backendtest.SKU(t, r.db, 5, 100, "EUR")
	for _, c := range []Change{{SKU: sku, Available: -6, Locked: 6}, {SKU: sku, Locked: -1, Sold: 1}, {SKU: 999, Available: 1}} {
		c.Kind, c.Ref = ledger.Lock, "o"
		err := store.InTx(t.Context(), r.db, func(tx *sql.Tx) error {
			rows, err := Lock(t.Context(), tx, []int64{sku})
			if err != nil {
				return err
			}
			return rows.Move(t.Context(), tx, time.Now(), []Change{c})
		})
		if !errors.Is(err, ErrUnits) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	if u := backendtest.SKUBalanced(t, r.db, r.redis, sku); u.Available != 5 {
		t.Errorf("got %+v", u)
	}
}

// Row E9: pessimistic. Who reads a SKU's row to decide keeps the others out until the decision is committed: the ledger's before,
// and a cart's price, are what the row says then.
func TestWhoReadsToDecideKeepsOthersOut(t *testing.T) {
	t.Attr("row", "E9")
	r := newRoom(t)
	sku := backendtest.SKU(t, r.db, 10, 100, "EUR")
	first, err := r.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	r.must(err)
	defer first.Rollback()
	rows, err := Lock(t.Context(), first, []int64{sku})
	r.must(err)
	second, err := r.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	r.must(err)
	defer second.Rollback()
	var session int64
	r.must(second.QueryRowContext(t.Context(), `SELECT CONNECTION_ID()`).Scan(&session))
	type read struct {
		rows Rows
		err  error
	}
	reads := make(chan read, 1)
	go func() {
		rows, err := Lock(t.Context(), second, []int64{sku})
		reads <- read{rows, err}
	}()
	for waiting := int64(0); waiting == 0; { // MySQL says so, or it did not wait
		select {
		case got := <-reads:
			t.Fatalf("a second one read the row (%+v, %v) while the first was deciding", got.rows[sku], got.err)
		case <-time.After(150 * time.Millisecond): // InnoDB does not look again for who asks within 100 ms of the last time
		}
		waiting = r.count(`SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = ?`, session)
	}
	r.must(rows.Move(t.Context(), first, time.Now(), []Change{{SKU: sku, Kind: ledger.Lock, Ref: "o1", Available: -4, Locked: 4}}))
	r.must(first.Commit())
	got := <-reads
	r.must(got.err)
	if a := got.rows[sku].Available; a != 6 {
		t.Errorf("the second one decides by %d available units, want the 6 that the first one left", a)
	}
	r.must(got.rows.Move(t.Context(), second, time.Now(), []Change{{SKU: sku, Kind: ledger.Lock, Ref: "o2", Available: -6, Locked: 6}}))
	r.must(second.Commit())
	if n := r.count(`SELECT available_before FROM sku_ledger WHERE sku_id = ? AND ref = 'o2'`, sku); n != 6 {
		t.Errorf("the ledger says that %d were available before the second, want 6", n)
	}
}
