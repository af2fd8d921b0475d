//go:build servers

// Package sizes measures what operations on a whole sale cost by the size of the sale.
package sizes

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sku"
	"floodgate.internal/e2e/made"
	"floodgate.internal/e2e/stack"
)

// most is the largest size. SIZES_MOST in the environment lowers it.
const most, mostSKUs = 1_000_000, 100_000

var operations = []string{"reconcile, cold", "reconcile, again", "audit", "take out of Redis", "sweep of SKUs"}

// cost is what one operation took.
type cost struct {
	took  time.Duration
	cpu   float64 // seconds of this process's
	redis float64 // and of Redis's
	heap  uint64  // bytes more than before, at most
	calls calls
}

// calls are those of the command on which Redis worked longest in sum.
type calls struct {
	name            string
	n               int
	median, longest time.Duration
}

// BenchmarkSizes writes build/sizes.md: what operations on a whole sale, and the sweep over all SKUs, cost by the number of orders or
// SKUs.
//
//	build/stack exec -- go test -tags servers -timeout 30m -run '^$' -bench Sizes -benchtime 1x ./e2e/sizes
func BenchmarkSizes(b *testing.B) {
	by := made.By("go test -tags servers -timeout 30m -run '^$' -bench Sizes -benchtime 1x ./e2e/sizes")
	began, end := load(), most
	if text := os.Getenv("SIZES_MOST"); text != "" {
		var err error
		if end, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for range b.N {
		var sizes []int
		costs := map[string][]cost{}
		for n := 1000; n <= end; n *= 10 {
			sizes = append(sizes, n)
			ofSale(b, n, costs)
			if n <= mostSKUs {
				ofSKUs(b, n, costs)
			}
			for _, name := range operations {
				b.Logf("%d: %s: %+v", n, name, costs[name][len(costs[name])-1])
			}
		}
		write(b, by, began, sizes, costs)
	}
}

// ofSale measures what is done with one sale of n orders.
func ofSale(b *testing.B, n int, costs map[string][]cost) {
	db, redis := backendtest.MySQL(b), backendtest.Redis(b)
	sale := orders(b, db, n, n+n/10)
	measure := func(name string, f func(context.Context) error) {
		costs[name] = append(costs[name], of(b, redis, f))
	}
	rec := reconcile.New(reconcile.Config{DB: db, Redis: redis, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Register: prometheus.NewRegistry()})
	measure("reconcile, cold", func(ctx context.Context) error { return rec.Sale(ctx, sale) })
	measure("reconcile, again", func(ctx context.Context) error { return rec.Sale(ctx, sale) })
	auditor := audit.New(audit.Config{DB: db, Redis: redis, QueuedBound: time.Minute})
	measure("audit", func(ctx context.Context) error {
		r, err := auditor.Sale(ctx, sale)
		if err == nil && (!r.Balanced || r.Redis.Reservations != n) {
			err = fmt.Errorf("%d reservations, findings %v", r.Redis.Reservations, r.Findings)
		}
		return err
	})
	measure("take out of Redis", func(ctx context.Context) error { return redis.Forget(ctx, sale, 1<<40) })
}

// ofSKUs measures a sweep over n SKUs, without the rest between two of its passes.
func ofSKUs(b *testing.B, n int, costs map[string][]cost) {
	db, redis := backendtest.MySQL(b), backendtest.Redis(b)
	run(b, db, `INSERT INTO skus (title, price, currency, own, total, available, allotted, created_at)
		SELECT 'sku', 100, 'EUR', FALSE, 10, 10, 0, NOW(3) FROM seq_1_to_`+strconv.Itoa(n))
	cache := sku.NewCache(sku.Config{DB: db, Redis: redis.Client(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Register: prometheus.NewRegistry()})
	costs["sweep of SKUs"] = append(costs["sweep of SKUs"], of(b, redis, func(ctx context.Context) error {
		const page, holds = 500, 100 // as a pass of cart.Carts.Sweep
		for last, more := int64(0), true; more; {
			ids, err := cache.After(ctx, last, page)
			if err != nil {
				return err
			}
			if err := cache.Heal(ctx, ids, time.Now()); err != nil {
				return err
			}
			if _, err := cache.Due(ctx, ids, time.Now(), holds); err != nil {
				return err
			}
			if more = len(ids) == page; more {
				last = ids[len(ids)-1]
			}
		}
		return nil
	}))
}

// orders makes a sale of total units with n orders of one unit, as MySQL has them when they are settled and unpaid.
func orders(b testing.TB, db *sql.DB, n, total int) int64 {
	sale := backendtest.Sale(b, db, backendtest.SaleOptions{Stock: int64(total)})
	const step = 50_000 // rows in one statement
	id := fmt.Sprintf(`CONCAT('01930000-0000-7000-8000-', LPAD(HEX(seq), 12, '0'), '-%d')`, sale)
	for first := 1; first <= n; first += step {
		from := fmt.Sprintf(` FROM seq_%d_to_%d ORDER BY seq`, first, min(first+step-1, n))
		run(b, db, `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at, pay_before)
			SELECT `+id+`, ?, CONCAT('shopper', seq), 1, 100, 'pending_payment', NOW(3), NOW(3), NOW(3) + INTERVAL 1 HOUR`+from, sale)
		run(b, db, `INSERT INTO order_slots (sale_id, uid, slot, order_id) SELECT ?, CONCAT('shopper', seq), 1, `+id+from, sale)
		run(b, db, `INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
			SELECT ?, 'order', `+id+`, ? - seq + 1, -1, ? - seq, seq - 1, 1, seq, NOW(3)`+from, sale, total, total)
	}
	run(b, db, `UPDATE sale_stock SET available = total - ?, locked = ? WHERE sale_id = ?`, n, n, sale)
	return sale
}

func run(b testing.TB, db *sql.DB, statement string, args ...any) {
	b.Helper()
	if _, err := db.ExecContext(b.Context(), statement, args...); err != nil {
		b.Fatalf("%s: %v", statement, err)
	}
}

// of runs an operation and measures it.
func of(b *testing.B, redis *reserve.Store, f func(context.Context) error) cost {
	b.Helper()
	c := redis.Client()
	ask := func(words ...string) []rueidis.RedisMessage {
		r := c.Do(b.Context(), c.B().Arbitrary(words...).Build())
		if err := r.Error(); err != nil {
			b.Fatalf("%s: %v", words, err)
		}
		list, _ := r.ToArray() // CONFIG SET and SLOWLOG RESET answer OK
		return list
	}
	ask("CONFIG", "SET", "slowlog-max-len", "100000")
	ask("CONFIG", "SET", "slowlog-log-slower-than", "0")
	defer ask("CONFIG", "SET", "slowlog-log-slower-than", "10000")
	ask("SLOWLOG", "RESET")
	heap := heapGrowth()
	cpu, ofRedis := cpuOf(b, redis)
	began := time.Now()
	if err := f(b.Context()); err != nil {
		b.Fatal(err)
	}
	x := cost{took: time.Since(began)}
	x.cpu, x.redis = cpuOf(b, redis)
	x.cpu, x.redis, x.heap = x.cpu-cpu, x.redis-ofRedis, heap()
	took, sum := map[string][]time.Duration{}, map[string]time.Duration{}
	for _, m := range ask("SLOWLOG", "GET", "-1") {
		entry, err := m.ToArray() // id, time, microseconds, arguments, ...
		if err != nil {
			b.Fatal(err)
		}
		us, err1 := entry[2].AsInt64()
		call, err2 := entry[3].AsStrSlice()
		if err := errors.Join(err1, err2); err != nil {
			b.Fatal(err)
		}
		d := time.Duration(us) * time.Microsecond
		took[call[0]], sum[call[0]] = append(took[call[0]], d), sum[call[0]]+d
	}
	for name, all := range took {
		if name != "SLOWLOG" && name != "CONFIG" && (x.calls.n == 0 || sum[name] > sum[x.calls.name]) {
			slices.Sort(all)
			x.calls = calls{name, len(all), all[len(all)/2], all[len(all)-1]}
		}
	}
	return x
}

// cpuOf returns the seconds of processor that this process and Redis have used.
func cpuOf(b *testing.B, redis *reserve.Store) (own, ofRedis float64) {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	info, err := redis.Client().Do(b.Context(), redis.Client().B().Info().Section("cpu").Build()).ToString()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			ofRedis += seconds
		}
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds(), ofRedis
}

// heapGrowth watches the heap until what it returns is called, which says by how much it grew at most.
func heapGrowth() func() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	read := func() uint64 { metrics.Read(sample); return sample[0].Value.Uint64() }
	runtime.GC()
	before := read()
	peak, stop := before, make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			peak = max(peak, read())
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	return func() uint64 { close(stop); watch.Wait(); return peak - before }
}

// load is the machine's load average of a minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

func write(b *testing.B, by, load0 string, sizes []int, costs map[string][]cost) {
	var doc strings.Builder
	fmt.Fprintf(&doc, `# What does an operation cost at a million orders?

Time and memory grow with the size of the sale. What Redis does in one call does not: it reads or
writes a page.

%s

%s
`, by, fmt.Sprintf(about, load0, load()))
	doc.WriteString("\n| operation | size | seconds | slope | its processor | Redis's | calls of Redis | median | longest | heap |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, name := range operations {
		for i, x := range costs[name] {
			slope := ""
			if i > 0 {
				slope = fmt.Sprintf("%.2f", math.Log10(x.took.Seconds()/costs[name][i-1].took.Seconds()))
			}
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			fmt.Fprintf(&doc, "| %s | %d | %.3f | %s | %.2f s | %.2f s | %d %s | %.2f ms | %.1f ms | %.1f MB |\n", name, sizes[i], x.took.Seconds(), slope, x.cpu, x.redis,
				x.calls.n, x.calls.name, ms(x.calls.median), ms(x.calls.longest), float64(x.heap)/1e6)
		}
	}
	root, err := stack.Root()
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "build", "sizes.md"), []byte(doc.String()), 0o644); err != nil {
		b.Fatal(err)
	}
}

const about = `Each order is one unit of one buyer, settled and unpaid, and the outbox is empty. The servers do
nothing else. Where the machine does, the seconds and the calls hold the time of that, too; the
processor's time, of the process and of Redis, does not, nor does it hold MySQL's. The load of the
machine was %s when this began and %s when it ended (1 minute's average, of runnable processes).

The slope is the power of the size by which the seconds grew since the line before: 1 is in
proportion. The calls are those of the command on which Redis worked longest in sum, by its slow log.
The heap is what the process had more than before, at most, garbage included.

- *reconcile*: the gate is closed for as long. Cold: Redis has nothing of the sale. There is no
  broker here, whose queue would be waited for.
- *audit*: of a quiet sale. A snapshot of Redis is read by pages, while the sale goes on, and is still
  of one moment: see ` + "`backend/reserve/snapshot.go`" + `. Orders of Redis and of MySQL are compared
  in memory, so a process audits one sale at a time.
- *take out of Redis*: the last step of an archive, which audits the sale first. Redis frees the memory
  in a thread of its own.
- *sweep of SKUs*: one look at each SKU, without rest. The timer looks at 500 SKUs a second, so
  100,000 take 200 s.`
