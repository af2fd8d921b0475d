//go:build servers

package e2e

import (
	"bytes"
	"crypto/sha1"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/wire"
)

// loss is a sale under load during which Redis is lost in some way: a first wave of buyers presses until some are promised
// an order, the fault strikes while a second one goes on, and a third comes when Redis is back.
type loss struct {
	*world
	sale    int64
	stock   int
	journal *journal
	tokens  []string
	waves   sync.WaitGroup
	stop    func() // of the watch
}

func newLoss(t *testing.T, o options, stock, buyers int) *loss {
	o.orders = freely
	w := newWorld(t, o)
	l := &loss{world: w, stock: stock, journal: newJournal(), tokens: w.tokens(1, buyers)}
	l.sale = w.newSale("Lost and found", stock, time.Now().Add(-time.Minute), 600)
	w.state(l.sale, wire.Open)
	l.stop = w.watchThrough(l.sale, int64(stock))
	t.Cleanup(l.waves.Wait) // also where the test has failed
	return l
}

func (l *loss) press(from, to int) {
	c := &crowd{w: l.world, sale: l.sale, journal: l.journal, tokens: l.tokens[from:to], first: from + 1, presses: 2, at: make(chan struct{}, 16)}
	l.waves.Go(c.run)
}

// rows are the orders that MySQL has.
func (l *loss) rows() (map[string]bool, error) {
	rows, err := l.db.QueryContext(l.ctx, "SELECT id FROM orders WHERE sale_id = ?", l.sale)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	ids := map[string]bool{}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids[id] = true
	}
	return ids, rows.Err()
}

// absent counts the ids that are not in the set.
func absent(set map[string]bool, ids []string) (n int) {
	for _, id := range ids {
		if !set[id] {
			n++
		}
	}
	return n
}

// back waits until Redis's sales are reconciled and the gate is open, and then until every order that was promised before is
// in MySQL, and reports both times; since is when Redis was back.
func (l *loss) back(since time.Time) {
	l.t.Helper()
	promised := l.journal.Promises()
	l.until("the gate opens", patience, func() (bool, string) {
		a := l.admin("GET", "/-/ready", "")
		if a.status != 200 {
			return false, a.String()
		}
		o, err := l.look(l.sale)
		return err == nil && o.Gate == "open", fmt.Sprintf("gate %q, %v", o.Gate, err)
	})
	opened := time.Since(since)
	l.until("every promised order is in MySQL", patience, func() (bool, string) {
		settled, err := l.rows()
		if err != nil {
			return false, err.Error()
		}
		missing := absent(settled, promised)
		return missing == 0, fmt.Sprintf("%d of %d are missing", missing, len(promised))
	})
	l.t.Logf("%d orders were promised when Redis was back; the gate was open after %v, all were in MySQL after %v", len(promised),
		opened.Round(time.Millisecond), time.Since(since).Round(time.Millisecond))
}

// end waits for the buyers and for every equation; all is sold.
func (l *loss) end() {
	l.t.Helper()
	l.waves.Wait()
	l.t.Logf("answers: %s", l.journal.Summary())
	o := l.settle(l.sale, int64(l.stock), l.journal)
	l.stop()
	if len(o.Orders) != l.stock || o.Row.Locked != int64(l.stock) || o.Stock != 0 {
		l.t.Errorf("got %d orders, %d units locked, stock %d; want all of %d sold", len(o.Orders), o.Row.Locked, o.Stock, l.stock)
	}
	l.drained()
}

// aof is Redis's append-only file of what was written since it started.
func (l *loss) aof() string {
	l.t.Helper()
	found, err := filepath.Glob(filepath.Join(l.servers.Redis.DataDir(), "appendonlydir", "*.incr.aof"))
	if err != nil || len(found) != 1 {
		l.t.Fatalf("append-only files: %v, %v; want one", found, err)
	}
	return found[0]
}

func (l *loss) size(path string) int64 {
	l.t.Helper()
	info, err := os.Stat(path)
	l.must(err)
	return info.Size()
}

func (l *loss) config(name, value string) {
	l.t.Helper()
	l.must(l.redis.Do(l.ctx, l.redis.B().ConfigSet().ParameterValue().ParameterValue(name, value).Build()).Error())
}

const lossStock, lossBuyers, lossWave = 900, 1800, 500

func TestRedisIsKilledAndRestartedWithItsData(t *testing.T) {
	for _, after := range []string{"fsync", "confirm"} {
		t.Run(after, func(t *testing.T) {
			l := newLoss(t, options{after: after}, lossStock, lossBuyers)
			l.press(0, lossWave)
			l.must(l.journal.Await(l.ctx, lossWave/2))
			l.must(l.servers.Redis.Kill(l.ctx))
			l.press(lossWave, 2*lossWave)
			l.must(l.servers.Redis.Start(l.ctx))
			since := time.Now()
			l.press(2*lossWave, lossBuyers)
			l.back(since)
			l.end()
		})
	}
}

// TestRedisIsRestartedEmpty destroys Redis's data while more than a thousand orders are in the broker and nowhere else.
func TestRedisIsRestartedEmpty(t *testing.T) {
	const queued, stock, buyers = 1100, 1400, 1800
	l := newLoss(t, options{ownConsumer: true, maxLag: "1h"}, stock, buyers)
	l.must(l.consumer.Kill(l.ctx))
	l.press(0, queued)
	l.must(l.journal.Await(l.ctx, queued))
	l.waves.Wait()
	l.published(queued)
	l.must(l.servers.Redis.Kill(l.ctx))
	l.must(l.servers.Redis.Wipe())
	l.press(queued, queued+100)
	l.must(l.servers.Redis.Start(l.ctx))
	since := time.Now()
	l.must(l.consumer.Start(l.ctx))
	l.press(queued+100, buyers)
	l.back(since)
	l.end()
}

// published waits until the relay has marked n entries of the sale's outbox as confirmed by the broker.
func (l *loss) published(n int64) {
	l.t.Helper()
	b := l.redis.B()
	l.until("the broker has every order", patience, func() (bool, string) {
		list, err := l.redis.Do(l.ctx, b.XinfoConsumers().Key(l.redisKey(l.sale, "outbox")).Group("orders").Build()).ToArray()
		if err != nil {
			return false, err.Error()
		}
		for _, m := range list {
			info, err := m.AsMap()
			l.must(err)
			who, pending := info["name"], info["pending"]
			if name, _ := who.ToString(); name == "published" {
				got, err := pending.AsInt64()
				l.must(err)
				return got >= n, fmt.Sprintf("%d of %d", got, n)
			}
		}
		return false, "none is"
	})
}

// TestRedisIsRestartedWithItsFileCutBack brings Redis back as a power cut leaves it.
func TestRedisIsRestartedWithItsFileCutBack(t *testing.T) {
	// With always, all that was acknowledged is synced: what lies behind the last promised order may be gone.
	t.Run("always", func(t *testing.T) {
		l := newLoss(t, options{}, lossStock, lossBuyers)
		l.press(0, lossWave)
		l.must(l.journal.Await(l.ctx, lossWave/2))
		l.must(l.servers.Redis.Kill(l.ctx))
		path := l.aof()
		text, err := os.ReadFile(path)
		l.must(err)
		last := 0
		for _, id := range l.journal.Promises() {
			at := bytes.LastIndex(text, []byte(id))
			if at < 0 {
				t.Errorf("order %s was promised and is not in the file", id)
			}
			last = max(last, at)
		}
		if end := bytes.Index(text[last:], []byte("EXEC\r\n")); end >= 0 {
			last += end + len("EXEC\r\n")
		}
		l.must(os.Truncate(path, int64(last)))
		t.Logf("%d of %d bytes are left", last, len(text))
		l.press(lossWave, 2*lossWave)
		l.must(l.servers.Redis.Start(l.ctx))
		since := time.Now()
		l.press(2*lossWave, lossBuyers)
		l.back(since)
		l.end()
	})
	// With everysec what was acknowledged may be gone; with accept.after: confirm the broker has it. No consumer runs, so that
	// the broker is where it is.
	t.Run("everysec, confirm", func(t *testing.T) {
		l := newLoss(t, options{after: "confirm", ownConsumer: true, maxLag: "1h"}, lossStock, lossBuyers)
		l.must(l.consumer.Kill(l.ctx))
		l.config("appendfsync", "everysec")
		l.press(0, lossWave)
		l.must(l.journal.Await(l.ctx, lossWave/3))
		synced := l.size(l.aof())
		at := l.journal.Promised()
		l.must(l.journal.Await(l.ctx, at+lossWave/3))
		l.must(l.servers.Redis.Kill(l.ctx))
		written := l.size(l.aof())
		promised := l.journal.Promised()
		l.must(os.Truncate(l.aof(), synced))
		t.Logf("%d of %d bytes are left: %d orders were promised by then, %d are now", synced, written, at, promised)
		if synced >= written {
			t.Error("nothing is cut off")
		}
		l.press(lossWave, 2*lossWave)
		l.must(l.servers.Redis.Start(l.ctx))
		since := time.Now()
		l.must(l.consumer.Start(l.ctx))
		l.press(2*lossWave, lossBuyers)
		l.back(since)
		l.end()
	})
}

// TestRedisIsPaused stops Redis for longer than every time-out and every idle bound: scripts that were given up are run when it
// goes on.
func TestRedisIsPaused(t *testing.T) {
	const pause = 13 * time.Second // claim_idle is 10 s, every other bound is shorter
	for _, after := range []string{"fsync", "confirm"} {
		t.Run(after, func(t *testing.T) {
			l := newLoss(t, options{after: after}, lossStock, lossBuyers)
			l.press(0, lossWave)
			l.must(l.journal.Await(l.ctx, lossWave/2))
			l.must(l.servers.Redis.Signal(syscall.SIGSTOP))
			over := time.After(pause)
			l.press(lossWave, 2*lossWave)
			select {
			case <-over:
			case <-l.ctx.Done():
			}
			l.must(l.servers.Redis.Signal(syscall.SIGCONT))
			since := time.Now()
			l.press(2*lossWave, lossBuyers)
			l.back(since)
			l.end()
		})
	}
}

// TestRedisIsOutOfMemory: a script that cannot write has written nothing, and that is what buyers are told; what was promised
// before is finished meanwhile.
func TestRedisIsOutOfMemory(t *testing.T) {
	l := newLoss(t, options{}, lossStock, lossBuyers)
	l.press(0, lossWave)
	l.must(l.journal.Await(l.ctx, lossWave/2))
	l.config("maxmemory", "1")
	t.Cleanup(func() { l.config("maxmemory", "0") })
	before := l.journal.Promises()
	probe := func() answer {
		a := l.do(l.ctx, call{method: "POST", url: fmt.Sprintf("%s/v1/sales/%d/orders", l.ports.PublicURL(), l.sale), token: l.tokens[lossBuyers-1], quiet: true})
		l.journal.add(entry{fmt.Sprint(lossBuyers), "", a})
		return a
	}
	for range 20 {
		if a := probe(); a.code != "OVERLOADED" && a.status != 429 {
			t.Errorf("out of memory: got %s, want OVERLOADED", a)
		}
	}
	l.press(lossWave, 2*lossWave)
	l.until("what was promised before is in MySQL, and out of the outbox", patience, func() (bool, string) {
		settled, err := l.rows()
		if err != nil {
			return false, err.Error()
		}
		left, err := l.redis.Do(l.ctx, l.redis.B().Xlen().Key(l.redisKey(l.sale, "outbox")).Build()).AsInt64()
		if err != nil {
			return false, err.Error()
		}
		missing := absent(settled, before)
		return missing == 0 && left == 0, fmt.Sprintf("%d of %d are missing, the outbox holds %d", missing, len(before), left)
	})
	l.config("maxmemory", "0")
	since := time.Now()
	l.press(2*lossWave, lossBuyers)
	l.back(since)
	l.end()
	if s := l.journal.Summary(); strings.Contains(s, "OUTCOME_UNKNOWN") {
		t.Errorf("nothing was done, and some were told that nobody knows: %s", s)
	}
}

// TestTheBrokerIsWipedWithTenThousandOrders deletes every queue of the broker while ten thousand orders are in them: the
// outbox has them all.
func TestTheBrokerIsWipedWithTenThousandOrders(t *testing.T) {
	const stock = 10_000
	w := newWorld(t, options{ownConsumer: true, maxLag: "1h"})
	w.must(w.consumer.Kill(w.ctx))
	l := &loss{world: w, stock: stock, journal: newJournal(), sale: w.newSale("Ten thousand", stock, time.Now().Add(-time.Minute), 600)}
	w.state(l.sale, wire.Open)
	l.stop = w.watchThrough(l.sale, stock)
	l.reserve(stock)
	l.published(stock)
	var queues []struct {
		Name string `json:"name"`
	}
	w.management("GET", "/api/queues/"+w.vhost, "", &queues)
	if len(queues) < 4 {
		t.Fatalf("got queues %v", queues)
	}
	for _, q := range queues {
		w.management("DELETE", "/api/queues/"+w.vhost+"/"+q.Name, "", nil)
	}
	since := time.Now()
	w.must(w.consumer.Start(w.ctx))
	l.until("every order is in MySQL", 2*patience, func() (bool, string) {
		rows, err := l.rows()
		return err == nil && len(rows) == stock, fmt.Sprintf("%d of %d, %v", len(rows), stock, err)
	})
	t.Logf("%d orders were in the queues when they were deleted; all were in MySQL %v later", stock, time.Since(since).Round(time.Millisecond))
	l.end()
}

// reserve makes n orders with the script itself, each for a buyer of its own.
func (l *loss) reserve(n int) {
	l.t.Helper()
	root, err := stack.Root()
	l.must(err)
	script, err := os.ReadFile(filepath.Join(root, "lua", "reserve.lua"))
	l.must(err)
	sha := fmt.Sprintf("%x", sha1.Sum(script))
	b := l.redis.B()
	epoch, err := l.redis.Do(l.ctx, b.Hget().Key(l.redisKey(l.sale, "state")).Field("epoch").Build()).ToString()
	l.must(err)
	keys := []string{l.redisKey(l.sale, "state"), l.redisKey(l.sale, "orders"), l.redisKey(l.sale, "buyers"), l.redisKey(l.sale, "idem"), l.redisKey(l.sale, "outbox")}
	for from := 0; from < n; from += 500 {
		var cmds rueidis.Commands
		for i := from; i < min(from+500, n); i++ {
			id := wire.NewOrderID(fmt.Sprintf("0190163d-8694-739b-aea5-%012d", i), l.sale)
			cmds = append(cmds, b.Evalsha().Sha1(sha).Numkeys(int64(len(keys))).Key(keys...).
				Arg(epoch, fmt.Sprint("b", i), "1", id, "", "").Build())
		}
		for i, r := range l.redis.DoMulti(l.ctx, cmds...) {
			words, err := r.ToArray()
			l.must(err)
			verdict, err := words[0].ToString()
			l.must(err)
			id, err := words[1].ToString()
			l.must(err)
			if verdict != "reserved" {
				l.t.Fatalf("reserve: got %s", verdict)
			}
			l.journal.add(entry{fmt.Sprint("b", from+i), "", answer{status: 202, orderID: id}})
		}
	}
}

// redisKey is the name of one of a sale's keys.
func (w *world) redisKey(sale int64, name string) string {
	return fmt.Sprintf("%s{sale:%d}:%s", w.prefix, sale, name)
}
