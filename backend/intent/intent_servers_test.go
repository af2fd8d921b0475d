//go:build servers

package intent

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// world is a Runner on the real stores.
type world struct {
	*Runner
	t     *testing.T
	cache *sku.Cache

	mu   sync.Mutex // guards told
	told []int64    // sales that may have units to give
}

// reader is sale.Reader for sales without tranches: package sale imports this one.
type reader struct{ db *sql.DB }

func (r reader) Definition(ctx context.Context, id int64) (d reserve.Definition, err error) {
	var starts, ends time.Time
	err = r.db.QueryRowContext(ctx, `SELECT version, starts_at, ends_at, per_user_limit, paused OR NOT published, closed_at IS NOT NULL FROM sales WHERE id = ?`, id).
		Scan(&d.Version, &starts, &ends, &d.Limit, &d.Paused, &d.Closed)
	d.Starts, d.Ends = starts.UnixMilli(), ends.UnixMilli()
	return d, err
}

func (r reader) ArchiveToken(ctx context.Context, id int64) (token int64, archived bool, err error) {
	err = r.db.QueryRowContext(ctx, `SELECT k.token, s.archived_at IS NOT NULL FROM sales s JOIN sale_stock k ON k.sale_id = s.id WHERE s.id = ?`, id).Scan(&token, &archived)
	return token, archived, err
}

func (r reader) Archived(ctx context.Context, ids []int64) (archived []int64, err error) {
	for _, id := range ids {
		if _, over, err := r.ArchiveToken(ctx, id); err != nil {
			return nil, err
		} else if over {
			archived = append(archived, id)
		}
	}
	return archived, nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db, redis, reg := backendtest.MySQL(t), backendtest.Redis(t), prometheus.NewRegistry()
	w := &world{t: t, cache: sku.NewCache(sku.Config{DB: db, Redis: redis.Client(), Log: backendtest.Log(t), Register: reg})}
	w.Runner = New(Config{DB: db, Sales: reader{db}, Redis: redis, Clock: new(clock.Clock), Log: backendtest.Log(t), Register: reg, Returned: func(sale int64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, sale)
	}})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.db.ExecContext(w.t.Context(), query, args...)
	w.must(err)
}

func (w *world) count(query string, args ...any) (n int64) {
	w.t.Helper()
	w.must(w.db.QueryRowContext(w.t.Context(), query, args...).Scan(&n))
	return n
}

// written is an intent that a transaction has written and committed.
func (w *world) written(f func(tx *sql.Tx) (Intent, error)) (i Intent) {
	w.t.Helper()
	w.must(store.InTx(w.t.Context(), w.db, func(tx *sql.Tx) (err error) {
		i, err = f(tx)
		return err
	}))
	return i
}

func (w *world) adjust(sale, units int64) Intent {
	w.t.Helper()
	return w.written(func(tx *sql.Tx) (Intent, error) { return Adjust(w.t.Context(), tx, w.now(), sale, units) })
}

func (w *world) define(sale int64) Intent {
	w.t.Helper()
	return w.written(func(tx *sql.Tx) (Intent, error) { return Define(w.t.Context(), tx, w.now(), sale) })
}

// restock is what an operator's restock of a SKU does to MySQL.
func (w *world) restock(skuID, units int64) Intent {
	w.t.Helper()
	return w.written(func(tx *sql.Tx) (Intent, error) {
		rows, err := sku.Lock(w.t.Context(), tx, []int64{skuID})
		if err != nil {
			return Intent{}, err
		}
		if _, err := tx.ExecContext(w.t.Context(), `UPDATE skus SET available = available + ?, total = total + ? WHERE id = ?`, units, units, skuID); err != nil {
			return Intent{}, err
		}
		i, err := AdjustSKU(w.t.Context(), tx, w.now(), skuID, units)
		if err != nil {
			return Intent{}, err
		}
		return i, ledger.OfSKUs(w.t.Context(), tx, w.now(), ledger.Row{Of: skuID, Kind: ledger.Restock, Ref: i.Ref(), Before: rows[skuID].Units, Change: ledger.Units{Available: units}})
	})
}

// runs makes one pass, which must do this many.
func (w *world) runs(pass func(context.Context) (int, error), want int) {
	w.t.Helper()
	if n, err := pass(w.t.Context()); n != want || err != nil {
		w.t.Errorf("got %d, %v; want %d done", n, err, want)
	}
}

func (w *world) sale() int64 {
	w.t.Helper()
	id := backendtest.Sale(w.t, w.db, backendtest.SaleOptions{})
	backendtest.Load(w.t, w.db, w.redis, id)
	return id
}

func (w *world) state(sale int64) reserve.State {
	w.t.Helper()
	states, err := w.redis.States(w.t.Context(), []int64{sale})
	w.must(err)
	return states[0]
}

// queued is an order in a sale's outbox.
func (w *world) queued(sale int64, uid string) string {
	w.t.Helper()
	id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)
	v, err := w.redis.Reserve(w.t.Context(), reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: id, Epoch: 1})
	if err != nil || v.Answer != lua.Reserved {
		w.t.Fatalf("got %+v, %v", v, err)
	}
	return id
}

// A change is in Redis at once, in the order in which it was written, and once; the sale's standby line hears of it.
func TestAtOnceAfterTheCommit(t *testing.T) {
	w := newWorld(t)
	sale := w.sale()
	w.exec(`UPDATE sales SET paused = TRUE, version = version + 1 WHERE id = ?`, sale)
	changes := []Intent{w.adjust(sale, 5), w.define(sale)}
	for range 2 {
		w.must(w.Now(t.Context(), changes...))
	}
	if s := w.state(sale); s.Stock != 15 || s.Total != 15 || !s.Paused {
		t.Errorf("got %+v, want 15 of 15 units, paused", s)
	}
	if got := testutil.ToFloat64(w.tried.WithLabelValues(adjust, "done")); got != 2 {
		t.Errorf("%v adjusts were counted, want 2", got)
	}
	if want := []int64{sale, sale, sale, sale}; !slices.Equal(w.told, want) {
		t.Errorf("the standby lines of %v heard of it, want %v", w.told, want)
	}
	w.runs(w.Run, 0)
	w.must(w.Now(t.Context()))
}

// What Redis does not take at once is named, and left to the timer.
func TestWhatRedisDoesNotTakeNowIsLeftToTheTimer(t *testing.T) {
	w := newWorld(t)
	shut, open, away := w.sale(), w.sale(), backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	_, err := w.redis.Shut(t.Context(), shut, 2)
	w.must(err)
	for what, changes := range map[string][]Intent{
		"closed":     {w.adjust(shut, 5), w.define(shut)},
		"too few":    {w.adjust(open, -1000)},
		"not loaded": {w.define(away)},
	} {
		if err := w.Now(t.Context(), changes...); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d of %d changes", len(changes), len(changes))) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if got := testutil.ToFloat64(w.tried.WithLabelValues(define, "kept")); got != 1 {
		t.Errorf("%v definitions were tried in vain, want that of the sale that is not loaded: the closed one's waits with its adjust", got)
	}
	w.runs(w.Run, 0)
	w.must(w.redis.Load(t.Context(), shut, 2, reserve.Loaded{Definition: w.state(open).Definition, Epoch: 2, Stock: 10, Total: 10}))
	w.must(w.redis.Unlock(t.Context(), shut, 2))
	w.runs(w.Run, 2)
	w.exec(`UPDATE sales SET archived_at = UTC_TIMESTAMP(3) WHERE id = ?`, away) // there is nothing left to do
	w.runs(w.Run, 1)
	if n := w.count(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); n != 1 {
		t.Errorf("%d intents are open, want one: to take more units than there are", n)
	}
}

// A Redis that came back from an older copy has outbox entries of an archived sale. Whoever takes the sale out retires those whose
// orders MySQL has, and leaves the sale where there are others.
func TestAnArchiveRetiresWhatIsSettled(t *testing.T) {
	w := newWorld(t)
	for _, timer := range []bool{true, false} {
		sale := w.sale()
		settled, lost := w.queued(sale, "ann"), w.queued(sale, "ben")
		archived := w.written(func(tx *sql.Tx) (Intent, error) {
			if _, err := tx.ExecContext(t.Context(), `UPDATE sales SET archived_at = UTC_TIMESTAMP(3) WHERE id = ?`, sale); err != nil {
				return Intent{}, err
			}
			return Archive(t.Context(), tx, w.now(), sale)
		})
		has := func(order string) {
			w.exec(`INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at) VALUES (?, ?, ?, 1, 100, 'paid', UTC_TIMESTAMP(3), UTC_TIMESTAMP(3))`, order, sale, order)
		}
		forget := func() (done bool) {
			if timer {
				n, err := w.Run(t.Context())
				w.must(err)
				return n == 1
			}
			return w.Now(t.Context(), archived) == nil
		}
		has(settled)
		if forget() {
			t.Errorf("timer %v: a sale left Redis with order %s in its outbox, which MySQL does not have", timer, lost)
		}
		if entries, _, err := w.redis.Outbox(t.Context(), sale); err != nil || len(entries) != 1 || entries[0].ID != lost {
			t.Errorf("timer %v: the outbox has %v, %v; want the order that MySQL does not have", timer, entries, err)
		}
		has(lost)
		if !forget() {
			t.Errorf("timer %v: the sale did not leave Redis", timer)
		}
		if snap, err := w.redis.Snapshot(t.Context(), sale); err != nil || snap.Keys != 0 {
			t.Errorf("timer %v: %d keys are in Redis, %v", timer, snap.Keys, err)
		}
		w.exec(`UPDATE sales SET archived_at = NULL WHERE id = ?`, sale)
		w.exec(`UPDATE intents SET done_at = NULL WHERE id = ?`, archived.ID)
		w.runs(w.Run, 1) // it is not archived any more: it stays
	}
}

// Row E10, and that an intent has its effect once, whatever Redis does meanwhile.
func TestIntents(t *testing.T) {
	t.Attr("row", "E10")
	w := newWorld(t)
	first := backendtest.SKU(t, w.db, 10, 100, "EUR")
	state := func(id int64) sku.State {
		t.Helper()
		snap, err := sku.Read(t.Context(), w.redis.Client(), id)
		w.must(err)
		return snap.State
	}
	w.restock(first, 1)
	w.runs(w.RunSKUs, 1) // it is not in Redis, and will be loaded with it
	w.must(w.cache.Load(t.Context(), first))
	w.restock(first, 2)
	w.must(w.OfSKU(t.Context(), first))
	w.runs(w.RunSKUs, 0)
	if got := state(first); got.Available != 13 || got.Total != 13 {
		t.Errorf("got %+v", got)
	}

	// While it is being loaded, they wait; another SKU's do not.
	other := backendtest.SKU(t, w.db, 10, 100, "EUR")
	w.must(w.cache.Load(t.Context(), other))
	base := fmt.Sprintf("%s{sku:%d}:", w.redis.Client().Prefix(), first)
	_, err := w.redis.Client().Call(t.Context(), lua.SKULoad, []string{base + "state", base + "orders", base + "open", base + "applied"}, "slow", lua.StepClaim, "60000", "1")
	w.must(err)
	w.restock(first, 4)
	w.restock(other, 4)
	w.must(w.OfSKU(t.Context(), first))
	w.runs(w.RunSKUs, 1)
	w.must(w.cache.Rebuild(t.Context(), first))
	w.runs(w.RunSKUs, 1)
	w.runs(w.RunSKUs, 0)
	for _, id := range []int64{first, other} {
		backendtest.SKUBalanced(t, w.db, w.redis.Client(), id)
	}
	if a, b := state(first).Available, state(other).Available; a != 17 || b != 14 {
		t.Errorf("available %d and %d, want 17 and 14", a, b)
	}

	// Carried out again, by one who slept since before the SKU was loaded anew.
	slept := w.restock(first, 8)
	w.must(w.OfSKU(t.Context(), first))
	w.must(w.cache.Rebuild(t.Context(), first))
	w.must(sku.Adjust(t.Context(), w.redis.Client(), first, slept.ID, 8))
	if got := backendtest.SKUBalanced(t, w.db, w.redis.Client(), first).Available; got != 25 {
		t.Errorf("available %d, want 25", got)
	}
	if got := testutil.ToFloat64(w.tried.WithLabelValues(adjust, "kept")); got == 0 {
		t.Error("what waited for a SKU was not counted")
	}
	w.exec(`INSERT INTO sku_intents (sku_id, kind, created_at) VALUES (?, 'nonsense', ?)`, first, time.Now())
	w.exec(`INSERT INTO intents (sale_id, kind, created_at) VALUES (1, 'nonsense', ?)`, time.Now())
	for _, pass := range []func(context.Context) (int, error){w.Run, w.RunSKUs} {
		if _, err := pass(t.Context()); err == nil || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("an unknown kind: got %v", err)
		}
	}
}

// Intents that were done long ago are forgotten, by the index, a bounded number at a time; never one that is open, nor an
// operator's adjust, which a reconciler or a load must know of.
func TestDoneIntentsAreForgotten(t *testing.T) {
	dsn := backendtest.MySQLDSN(t)
	w := &world{t: t, Runner: New(Config{DB: backendtest.OpenMySQL(t, dsn, 4), Redis: backendtest.Redis(t), Clock: new(clock.Clock), Log: backendtest.Log(t), Register: prometheus.NewRegistry()})}
	_, err := store.Migrate(t.Context(), w.db)
	w.must(err)
	session := backendtest.OpenMySQL(t, dsn, 1)
	alone := New(Config{DB: session, Sales: reader{session}, Redis: w.redis, Clock: w.clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	for _, c := range []struct {
		t     *table
		ended string
		prune func(context.Context) (int, error)
	}{{ofSales, release, alone.Prune}, {ofSKUs, lua.ToSold, alone.PruneSKUs}} {
		write := func(n int, kind string, done any) {
			t.Helper()
			var args []any
			for range n {
				args = append(args, 1, kind, done)
			}
			for part := range slices.Chunk(args, 3*500) {
				w.exec(`INSERT INTO `+c.t.name+` (`+c.t.of+`, kind, created_at, done_at) VALUES `+strings.ReplaceAll(store.Tuples(len(part)/3, 3), "?, ?, ?", "?, ?, '2020-01-01', ?"), part...)
			}
		}
		old := w.now().Add(-kept - time.Second)
		write(1500, c.ended, old)
		write(700, define, old)
		write(3, adjust, old)
		write(2500, c.ended, w.now().Add(-kept+time.Hour))
		write(2000, c.ended, nil)
		for _, want := range []int{1000, 1000, 200, 0} {
			reads, changes := backendtest.Rows(t, session, func() {
				if n, err := c.prune(t.Context()); n != want || err != nil {
					t.Errorf("%s: got %d, %v; want %d", c.t.name, n, err, want)
				}
			})
			if reads > int64(2*want+30) || changes > int64(want) {
				t.Errorf("%s: forgetting %d intents read %d rows and changed %d", c.t.name, want, reads, changes)
			}
		}
		for what, want := range map[string]int64{"done_at IS NULL": 2000, "done_at IS NOT NULL AND kind = '" + c.ended + "'": 2500, "kind = 'adjust'": 3, "kind = 'define'": 0} {
			if n := w.count(`SELECT COUNT(*) FROM ` + c.t.name + ` WHERE ` + what); n != want {
				t.Errorf("%s: %d intents are left with %s, want %d", c.t.name, n, what, want)
			}
		}
	}
}
