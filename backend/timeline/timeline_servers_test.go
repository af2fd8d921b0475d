//go:build servers

package timeline

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// desk is a Store on servers of its own. Its clock is the machine's.
type desk struct {
	*Store
	t     *testing.T
	db    *sql.DB
	redis *reserve.Store
	dsn   string
}

func newDesk(t *testing.T, rows int64) *desk {
	t.Helper()
	dsn := backendtest.MySQLDSN(t)
	d := &desk{t: t, dsn: dsn, db: backendtest.OpenMySQL(t, dsn, 16), redis: backendtest.Redis(t)}
	if _, err := store.Migrate(t.Context(), d.db); err != nil {
		t.Fatal(err)
	}
	d.Store = d.another(d.db, rows)
	return d
}

// another is another process's.
func (d *desk) another(db *sql.DB, rows int64) *Store {
	clk := &clock.Clock{}
	log, reg := backendtest.Log(d.t), prometheus.NewRegistry()
	orders := order.NewStore(order.Config{Intents: intent.New(intent.Config{DB: db, Sales: sale.Reader{DB: db}, Redis: d.redis, Clock: clk, Log: log, Register: reg}),
		DB: db, Redis: d.redis, Clock: clk, Log: log, Register: reg})
	return New(Config{DB: db, Orders: orders, Clock: clk, Keep: 24 * time.Hour, MaxRows: rows, Log: log, Register: reg})
}

func (d *desk) number(query string, args ...any) (n int64) {
	d.t.Helper()
	if err := d.db.QueryRowContext(d.t.Context(), query, args...).Scan(&n); err != nil {
		d.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (d *desk) take(b *verdict.Batch) {
	d.t.Helper()
	if err := b.Check(); err != nil {
		d.t.Fatal(err)
	}
	if err := d.Take(d.t.Context(), b); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) of(uid string, sale int64) verdict.Timeline {
	d.t.Helper()
	tl, err := d.Of(d.t.Context(), uid, sale)
	if err != nil {
		d.t.Fatal(err)
	}
	return tl
}

// events are a timeline's, as "what rule count".
func events(tl verdict.Timeline) (list []string) {
	for _, e := range tl.Events {
		list = append(list, fmt.Sprintf("%s %s %d", e.What, e.Rule, e.Count))
	}
	return list
}

func record(sale int64, uid string, rule verdict.Rule, first, last time.Time, n int64) verdict.Record {
	return verdict.Record{Sale: sale, UID: uid, Rule: rule, First: wire.At(first), Last: wire.At(last), Count: n}
}

// Several gateways hand over at once, to several processes, and send what was not answered again: every press counts once.
func TestEachBatchIsTakenOnce(t *testing.T) {
	const gateways, batches, records = 4, 12, 40
	d := newDesk(t, 1000)
	stores := []*Store{d.Store, d.another(d.db, 1000)}
	sales := []int64{backendtest.Sale(t, d.db, backendtest.SaleOptions{}), backendtest.Sale(t, d.db, backendtest.SaleOptions{})}
	rules := []verdict.Rule{verdict.Accepted, verdict.OrderLimit, verdict.SoldOut}
	base := time.Now().UTC().Truncate(time.Millisecond).Add(-time.Minute)
	var mu sync.Mutex // guards want
	want := map[string]int64{}
	var wg sync.WaitGroup
	for g := range gateways {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 3))
			for seq := range batches {
				b := &verdict.Batch{Gateway: fmt.Sprint("gateway-", g), Seq: int64(seq + 1)}
				seen := map[string]bool{}
				for range records {
					at := base.Add(time.Duration(rnd.IntN(10_000)) * time.Millisecond)
					r := record(sales[rnd.IntN(2)], fmt.Sprint("u", rnd.IntN(10)), rules[rnd.IntN(3)], at, at.Add(time.Second), 1+rnd.Int64N(5))
					k := fmt.Sprint(r.Sale, r.UID, r.Rule)
					if seen[k] {
						continue
					}
					seen[k] = true
					b.Records = append(b.Records, r)
					mu.Lock()
					want[k] += r.Count
					mu.Unlock()
				}
				for again := 0; again < 1+rnd.IntN(3); again++ { // the answer got lost
					for {
						err := stores[rnd.IntN(2)].Take(t.Context(), b)
						if err == nil {
							break
						}
						if err != ErrBusy {
							t.Error(err)
							return
						}
					}
				}
			}
		})
	}
	wg.Wait()
	got := map[string]int64{}
	if err := store.Each(t.Context(), d.db, func(rows *sql.Rows) error {
		var sale, n int64
		var uid, rule string
		var first, last time.Time
		err := rows.Scan(&sale, &uid, &rule, &n, &first, &last)
		got[fmt.Sprint(sale, uid, rule)] = n
		if first.Before(base) || last.After(base.Add(11*time.Second)) || !last.After(first) {
			t.Errorf("%d %s %s: from %v to %v", sale, uid, rule, first, last)
		}
		return err
	}, `SELECT sale_id, uid, rule, times, first_at, last_at FROM timeline`); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, sale := range sales {
		if held, rows := d.number(`SELECT held FROM timeline_sales WHERE sale_id = ?`, sale), d.number(`SELECT COUNT(*) FROM timeline WHERE sale_id = ?`, sale); held != rows {
			t.Errorf("sale %d: %d rows are said to be held, and %d are", sale, held, rows)
		}
	}
}

// A sale keeps so many records: what is new beyond that is dropped and counted, what is there goes on, and a timeline says
// so. Another sale has room of its own.
func TestASalesRecordsAreBounded(t *testing.T) {
	d := newDesk(t, 3)
	one, two := backendtest.Sale(t, d.db, backendtest.SaleOptions{}), backendtest.Sale(t, d.db, backendtest.SaleOptions{})
	now := d.now()
	d.take(&verdict.Batch{Gateway: "g", Seq: 1, Records: []verdict.Record{record(one, "ann", verdict.OrderLimit, now, now, 2), record(one, "bob", verdict.OrderLimit, now, now, 1)}})
	d.take(&verdict.Batch{Gateway: "g", Seq: 2, Records: []verdict.Record{
		record(one, "cyd", verdict.OrderLimit, now, now, 1), record(one, "dan", verdict.OrderLimit, now, now, 4), record(one, "ann", verdict.OrderLimit, now, now.Add(time.Second), 5),
		record(two, "dan", verdict.OrderLimit, now, now, 1)}})
	d.take(&verdict.Batch{Gateway: "g", Seq: 3, Dropped: []verdict.Dropped{{Sale: one, Count: 10}, {Sale: 0, Count: 7}}})
	if n := d.number(`SELECT COUNT(*) FROM timeline WHERE sale_id = ?`, one); n != 3 {
		t.Errorf("%d records are kept, want 3", n)
	}
	if got := events(d.of("ann", one)); !slices.Equal(got, []string{"arrived  7", "limited order_limit 7"}) {
		t.Errorf("who was there before goes on being counted: got %v", got)
	}
	tl := d.of("dan", one)
	if len(tl.Events) != 0 || tl.Complete || !strings.Contains(strings.Join(tl.Missing, "; "), "14 presses in this sale were not kept") {
		t.Errorf("who came too late: got %+v", tl)
	}
	if got := d.of("dan", two); len(got.Events) != 2 || strings.Contains(strings.Join(got.Missing, "; "), "were not kept") {
		t.Errorf("another sale: got %+v", got)
	}
	if got := testutil.ToFloat64(d.dropped); got != 21 {
		t.Errorf("%v presses are counted as dropped, want 21", got)
	}
	if got := testutil.ToFloat64(d.taken); got != 10 {
		t.Errorf("%v presses are counted as kept, want 10", got)
	}
}

// What is old is deleted, a bounded number of rows at a time and by an index; what was added to lately stays, and the timeline
// says that it is not all.
func TestOldRecordsAreDeleted(t *testing.T) {
	d := newDesk(t, 100_000)
	session := backendtest.OpenMySQL(t, d.dsn, 1)
	own := d.another(session, 100_000)
	old, young := backendtest.Sale(t, d.db, backendtest.SaleOptions{}), backendtest.Sale(t, d.db, backendtest.SaleOptions{})
	now := d.now()
	long := now.Add(-25 * time.Hour)
	seq := int64(0)
	fill := func(sale int64, n int, uid string, at time.Time) {
		for part := range slices.Chunk(make([]struct{}, n), verdict.MaxBatch) {
			seq++
			b := &verdict.Batch{Gateway: "g", Seq: seq}
			for range part {
				b.Records = append(b.Records, record(sale, fmt.Sprint(uid, "-", seq, "-", len(b.Records)), verdict.OrderLimit, long, at, 1))
			}
			d.take(b)
		}
	}
	fill(old, 1100, "old", long)
	fill(old, 6000, "new", now)
	fill(young, 600, "new", now)
	if _, err := d.db.ExecContext(t.Context(), `INSERT INTO timeline_gateways (id, seq, at, ended) VALUES ('gone', 5, ?, TRUE)`, long); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1001, 100, 0} { // and the gateway
		reads, changes := backendtest.Rows(t, session, func() {
			if n, err := own.Prune(t.Context()); n != want || err != nil {
				t.Errorf("got %d, %v; want %d", n, err, want)
			}
		})
		if reads > int64(4*want+100) || changes > int64(2*want+10) {
			t.Errorf("deleting %d records read %d rows and changed %d", want, reads, changes)
		}
	}
	if n := d.number(`SELECT COUNT(*) FROM timeline WHERE sale_id = ?`, old); n != 6000 || d.number(`SELECT held FROM timeline_sales WHERE sale_id = ?`, old) != 6000 {
		t.Errorf("%d records are left, want 6000, and as many said to be held", n)
	}
	if n := d.number(`SELECT COUNT(*) FROM timeline WHERE sale_id = ?`, young); n != 600 {
		t.Errorf("of another sale %d records are left, want 600", n)
	}
	if got := d.of("ann", old); got.Complete || !strings.Contains(strings.Join(got.Missing, "; "), "are not kept any more") {
		t.Errorf("got %+v", got)
	}
	if got := testutil.ToFloat64(own.pruned); got != 1100 {
		t.Errorf("%v records are counted as deleted, want 1100", got)
	}
}

// A gateway that says nothing any more leaves a timeline incomplete, unless it said goodbye, or the sale was over by then.
func TestAGatewayThatWentSilent(t *testing.T) {
	d := newDesk(t, 100)
	now := d.now()
	sale := backendtest.Sale(t, d.db, backendtest.SaleOptions{StartsAt: now.Add(-time.Hour), EndsAt: now.Add(time.Hour)})
	before := backendtest.Sale(t, d.db, backendtest.SaleOptions{StartsAt: now.Add(-3 * time.Hour), EndsAt: now.Add(-2 * time.Hour)})
	later := backendtest.Sale(t, d.db, backendtest.SaleOptions{StartsAt: now.Add(-time.Second), EndsAt: now.Add(time.Hour)})
	silent := func(sale int64) bool {
		return strings.Contains(strings.Join(d.of("ann", sale).Missing, "; "), "have not reported since")
	}
	d.take(&verdict.Batch{Gateway: "dead", Seq: 1})
	if silent(sale) {
		t.Error("a gateway that has just reported is said to be silent")
	}
	set := func(at time.Time) {
		t.Helper()
		if _, err := d.db.ExecContext(t.Context(), `UPDATE timeline_gateways SET at = ? WHERE id = 'dead'`, at); err != nil {
			t.Fatal(err)
		}
	}
	set(now.Add(-30 * time.Minute))
	if !silent(sale) || silent(before) || silent(later) {
		t.Errorf("silent for half an hour: told in a sale that runs %v, that was over %v, that began later %v", silent(sale), silent(before), silent(later))
	}
	d.take(&verdict.Batch{Gateway: "dead", Seq: 2, Last: true})
	set(now.Add(-30 * time.Minute))
	if silent(sale) {
		t.Error("a gateway that said goodbye is said to be silent")
	}
}

// Reads are bounded, so that they leave MySQL's connections to orders.
func TestTimelinesAreReadAFewAtATime(t *testing.T) {
	d := newDesk(t, 100)
	sale := backendtest.Sale(t, d.db, backendtest.SaleOptions{})
	if err := d.reads.Acquire(t.Context(), maxReads); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range maxWaiting {
		wg.Go(func() {
			if _, err := d.Of(ctx, "ann", sale); err == nil {
				t.Error("it was read while as many were being read as may be")
			}
		})
	}
	for d.waiting.Load() < maxWaiting {
		time.Sleep(time.Millisecond)
	}
	if _, err := d.Of(ctx, "ann", sale); err != ErrBusy {
		t.Errorf("one more: got %v, want %v", err, ErrBusy)
	}
	cancel()
	wg.Wait()
	d.reads.Release(maxReads)
	d.of("ann", sale)
}
