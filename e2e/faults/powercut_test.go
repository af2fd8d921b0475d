//go:build servers

package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/powercut"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// cutLine is a row of the table of power cuts.
type cutLine struct {
	store, settings, after, others string
	loses                          bool
	cuts                           int
	tally                          oracle.Tally
	unsynced                       int64
}

func reportCut(l cutLine) {
	results.mu.Lock()
	defer results.mu.Unlock()
	results.cuts = append(results.cuts, l)
}

func cutTable(by string) string {
	if len(results.cuts) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# What a power cut leaves of the promises

%s

Each store runs with a library that notes what it syncs (`+"`e2e/powercut`"+`). It is
killed (SIGKILL) under load, its files are cut back to exactly what it had synced, and it is started again. Promised: different orders that were answered 202. Lost: of them, those
that MySQL does not have in the end, or rejected. Where promises are expected to be lost, the power is cut again until one is, at most %d times: so the test is able to see it. Unsynced: bytes that the
cut took off the ends of files; what it restored within files is not counted.

Of MariaDB the redo log alone is cut, the tables keep what was written: InnoDB writes no page before it has synced the log of it. A cut of all its files is not in the
table: two of about fifteen left tables that did not recover. InnoDB 10.11.19 was seen to sync a checkpoint before pages that it covers. It runs with
`+"`%s`"+`, for the library does not see native asynchronous writes. The binary log is off.

| store | its settings | accept.after | who else has the orders | power cuts | promised | lost | expected | unsynced bytes |
|---|---|---|---|---:|---:|---:|---|---:|
`, by, mostCuts, strings.Join(mariadbSeen, " "))
	slices.SortStableFunc(results.cuts, func(x, y cutLine) int { return cmp.Compare(x.store, y.store) })
	for _, l := range results.cuts {
		expected := "none"
		if l.loses {
			expected = "some"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %d | %d | %s | %d |\n", l.store, l.settings, l.after, l.others, l.cuts, l.tally.Promised, l.tally.Lost, expected, l.unsynced)
	}
	return b.String()
}

// mariadbSeen makes MariaDB write by calls that the library sees.
var mariadbSeen = []string{"--skip-innodb-use-native-aio", "--skip-innodb-log-file-mmap", "--innodb-flush-method=fsync"}

// cuttable puts a server that never ran on a disk that can be cut.
func (g *ground) cuttable(t *testing.T, p *stack.Process, d powercut.Disk, args ...string) *powercut.Disk {
	t.Helper()
	library, err := powercut.Build(filepath.Join(g.Dir, "powercut"))
	world.Must(t, err)
	dir, err := filepath.EvalSymlinks(g.Dir)
	world.Must(t, err)
	rel, err := filepath.Rel(g.Dir, p.DataDir())
	world.Must(t, err)
	d.Library, d.Dir, d.Shadow = library, filepath.Join(dir, rel), filepath.Join(dir, rel+".synced")
	p.With(d.Env(), args, d.Begin)
	return &d
}

// outage is a power cut that is tried.
type outage struct {
	cutLine
	// before puts the settings in place, and takes away whoever else would have the orders.
	before func(*trial)
	// ripe waits until there is something to lose; nil: until 300 more orders are promised.
	ripe func(*trial)
	// cut kills, cuts, and starts again, and puts back what before took away.
	cut func(*trial) powercut.Loss
}

const (
	// mostCuts bounds how often the power is cut until a promise is lost, where one must be.
	mostCuts = 10
	// fewestCuts is how often it is cut where none may be.
	fewestCuts = 3
	// atOnce is how many orders are promised before the cut.
	atOnce = 300
)

// suffer cuts the power until it is known what that does to the promises.
func (w *system) suffer(t *testing.T, o outage) {
	l := o.cutLine
	for !l.loses && l.cuts < fewestCuts || l.loses && l.tally.Lost == 0 && l.cuts < mostCuts {
		tally, loss := w.blackout(t, o)
		l.cuts++
		l.tally = l.tally.Plus(tally)
		l.unsynced += loss.Bytes
		t.Logf("%s, %s: %+v; %v", o.store, o.settings, tally, loss)
		if t.Failed() {
			break
		}
	}
	if l.loses && l.tally.Lost == 0 {
		t.Errorf("%s with %s lost no promise in %d power cuts: then this test cannot see one lost", o.store, o.settings, l.cuts)
	}
	reportCut(l)
}

// blackout sells while the power is cut once, and counts what became of the promises.
func (w *system) blackout(t *testing.T, o outage) (tally oracle.Tally, loss powercut.Loss) {
	t.Helper()
	const units = 1000000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := w.newLoad(w.newSale(t, o.store+", "+o.settings, units, payWithin), 0, nil)
	l.ends = false
	s := &trial{T: t, w: w, ctx: ctx, sale: l.sale, log: l.log, loads: []*load{l}, places: lanes, pace: everySoInSoak}
	s.press()
	defer func() {
		if t.Failed() {
			cancel() // nobody is told anything any more
		}
		s.rest()
	}()
	s.more(20)
	o.before(s)
	if o.ripe != nil {
		o.ripe(s)
	} else {
		s.more(atOnce)
	}
	loss = o.cut(s)
	l.fell()
	s.until("orders are promised again", func(context.Context) error {
		select {
		case <-l.decided:
			return nil
		default:
			return errors.New("none is")
		}
	})
	s.rest()
	if !o.loses {
		tally = w.rest(t, l.sale, units, l.log)
	} else { // the stores do not agree any more; but nothing is on its way
		s.until("the outbox is empty behind an open gate", func(ctx context.Context) error {
			v, err := w.look(ctx, l.sale)
			if err == nil && (len(v.Outbox) > 0 || v.Gate != "open") {
				err = fmt.Errorf("%d orders, the gate is %s", len(v.Outbox), v.Gate)
			}
			tally = v.Count(units, l.log)
			return err
		})
	}
	w.closeSale(t, l.sale)
	return tally, loss
}

// reconciled waits until the gate of every sale is open: until then a fence of a sale that is over may be on its way.
func (w *system) reconciled(t *testing.T) {
	t.Helper()
	if t.Failed() {
		return
	}
	rows, err := w.Books.DB.QueryContext(t.Context(), "SELECT id FROM sales")
	world.Must(t, err)
	defer rows.Close()
	for rows.Next() {
		var sale int64
		world.Must(t, rows.Scan(&sale))
		until(t, fmt.Sprintf("the gate of sale %d is open", sale), func(ctx context.Context) error {
			g, err := w.Books.Gate(ctx, sale)
			if err == nil && !g.Open {
				err = errors.New("it is not")
			}
			return err
		})
	}
	world.Must(t, rows.Err())
}

// powerless kills a server and cuts its disk.
func powerless(s *trial, p *stack.Process, d *powercut.Disk) powercut.Loss {
	s.Helper()
	world.Must(s.T, p.Kill(s.ctx))
	loss, err := d.Cut()
	world.Must(s.T, err)
	s.Logf("%s: %v", p.Name(), loss)
	return loss
}

// TestPowerCut cuts the power of each store under load. With the settings that keep a promise none is lost; the same test loses
// some with those that do not.
//
// Row B3: what is promised survives a power cut.
func TestPowerCut(t *testing.T) {
	t.Attr("row", "B3")
	sideBySide(t)
	g := newGround(t)
	for name, cuts := range map[string]func(*testing.T, *ground){"redis": redisCuts, "mysql": mysqlCuts, "rabbitmq": rabbitmqCuts} {
		t.Run(name, func(t *testing.T) {
			sideBySide(t)
			cuts(t, g)
		})
	}
}

func redisCuts(t *testing.T, g *ground) {
	own := world.OpenServers(t, filepath.Join(g.Dir, "redis"))
	disk := g.cuttable(t, own.Redis, powercut.Disk{})
	world.Must(t, own.Redis.Start(t.Context()))
	w := g.system(t, options{linked: true, redis: own, maxLag: "1h", maxOutage: "1h"})
	// The broker cannot be reached: so Redis alone has the orders.
	alone := func(settings string, loses bool, set ...string) outage {
		return outage{
			cutLine: cutLine{store: "Redis", settings: settings, after: "fsync", others: "nobody: the broker is away", loses: loses},
			before: func(s *trial) {
				for i := 0; i < len(set); i += 2 {
					w.config(s.T, set[i], set[i+1])
				}
				w.Links.RabbitMQ.Refuse()
				w.Links.RabbitMQ.Cut()
			},
			cut: func(s *trial) powercut.Loss {
				loss := powerless(s, own.Redis, disk)
				w.Links.RabbitMQ.Heal()
				world.Must(s.T, own.Redis.Start(s.ctx))
				return loss
			},
		}
	}
	rewritten := alone("appendfsync always, a rewrite of the file just before", false)
	rewritten.ripe = func(s *trial) {
		s.more(atOnce)
		c := w.Books.Redis
		before := rewrites(s)
		world.Must(s.T, c.Do(s.ctx, c.B().Bgrewriteaof().Build()).Error())
		s.until("the file was rewritten", func(context.Context) error {
			if rewrites(s) == before {
				return errors.New("it was not")
			}
			return nil
		})
		s.more(20)
	}
	unsynced := alone("appendfsync always, no-appendfsync-on-rewrite yes, during a rewrite", true, "no-appendfsync-on-rewrite", "yes", "rdb-key-save-delay", "10000000")
	unsynced.ripe = func(s *trial) { // the delay makes the rewrite last
		c := w.Books.Redis
		world.Must(s.T, c.Do(s.ctx, c.B().Bgrewriteaof().Build()).Error())
		s.more(atOnce)
	}
	for _, o := range []outage{
		alone("appendfsync always", false),
		rewritten,
		alone("appendfsync everysec", true, "appendfsync", "everysec"),
		alone("appendfsync no", true, "appendfsync", "no"),
		unsynced,
	} {
		t.Run(o.settings, func(t *testing.T) { w.suffer(t, o) })
	}
	w.reconciled(t)
	w.drained(t)

	confirmed := g.system(t, options{linked: true, redis: own, after: "confirm", ownConsumer: true, maxLag: "1h", maxOutage: "1h"})
	o := outage{
		cutLine: cutLine{store: "Redis", settings: "appendfsync everysec", after: "confirm", others: "the broker; no consumer runs"},
		before: func(s *trial) {
			world.Must(s.T, confirmed.Consumer.Kill(s.ctx))
			confirmed.config(s.T, "appendfsync", "everysec")
		},
		cut: func(s *trial) powercut.Loss {
			loss := powerless(s, own.Redis, disk)
			world.Must(s.T, own.Redis.Start(s.ctx))
			world.Must(s.T, confirmed.Consumer.Start(s.ctx))
			return loss
		},
	}
	t.Run("confirm", func(t *testing.T) { confirmed.suffer(t, o) })
	confirmed.reconciled(t)
	confirmed.drained(t)
}

// rewrites is how often Redis has rewritten its append-only file since it started.
func rewrites(s *trial) string {
	s.Helper()
	c := s.w.Books.Redis
	info, err := c.Do(s.ctx, c.B().Info().Section("persistence").Build()).ToString()
	world.Must(s.T, err)
	for line := range strings.Lines(info) {
		if n, ok := strings.CutPrefix(line, "aof_rewrites:"); ok {
			return n + info[strings.Index(info, "aof_rewrite_in_progress"):][:len("aof_rewrite_in_progress:0")]
		}
	}
	s.Fatalf("no aof_rewrites in %s", info)
	return ""
}

// mysqlCuts tries a MySQL that has the orders beside Redis, and one that alone has them. What the first forgets is queued again.
func mysqlCuts(t *testing.T, g *ground) {
	redis := world.OpenServers(t, filepath.Join(g.Dir, "redis-of-mysql"))
	world.Must(t, redis.Redis.Start(t.Context()))
	own := world.OpenServers(t, filepath.Join(g.Dir, "mysql"))
	disk := g.cuttable(t, own.MySQL, powercut.Disk{Only: "tables/ib_logfile0"}, mariadbSeen...)
	world.Must(t, own.MySQL.Start(t.Context()))
	for _, c := range []struct {
		after, others string
		alone         bool
	}{{"fsync", "Redis: its reservations", false}, {"confirm", "nobody: Redis's disk is destroyed at the same time", true}} {
		o := options{mysql: own, after: c.after, maxLag: "1h", maxOutage: "1h"}
		if c.alone {
			o.redis = redis
		}
		w := g.system(t, o)
		admin := adminOf(t, w)
		for _, flush := range []string{"1", "2", "0"} {
			settings := "innodb_flush_log_at_trx_commit " + flush
			o := outage{
				cutLine: cutLine{store: "MariaDB", settings: settings, after: c.after, others: c.others, loses: c.alone && flush != "1"},
				before: func(s *trial) {
					_, err := admin.ExecContext(s.ctx, "SET GLOBAL innodb_flush_log_at_trx_commit = "+flush)
					world.Must(s.T, err)
				},
				ripe: func(s *trial) { s.settling(atOnce) },
				cut: func(s *trial) powercut.Loss {
					if c.alone {
						world.Must(s.T, redis.Redis.Kill(s.ctx))
						world.Must(s.T, redis.Redis.Wipe())
						defer func() { world.Must(s.T, redis.Redis.Start(s.ctx)) }()
					}
					loss := powerless(s, own.MySQL, disk)
					world.Must(s.T, own.MySQL.Start(s.ctx))
					return loss
				},
			}
			t.Run(c.after+", "+settings, func(t *testing.T) { w.suffer(t, o) })
		}
		w.reconciled(t)
		w.drained(t)
	}
}

// rabbitmqCuts tries a broker that alone has the orders. No setting of a quorum queue gives up its sync, so a disk that lies is
// what shows that the test would see it.
func rabbitmqCuts(t *testing.T, g *ground) {
	redis := world.OpenServers(t, filepath.Join(g.Dir, "redis-lost"))
	world.Must(t, redis.Redis.Start(t.Context()))
	for _, lies := range []bool{false, true} {
		settings := map[bool]string{false: "quorum queue of one node", true: "the same, on a disk that ignores every sync"}[lies]
		t.Run(settings, func(t *testing.T) {
			own := world.OpenServers(t, filepath.Join(g.Dir, fmt.Sprint("rabbitmq-", lies)))
			disk := g.cuttable(t, own.RabbitMQ, powercut.Disk{Journal: true, Lies: lies})
			world.Must(t, own.StartRabbitMQ(t.Context()))
			w := g.system(t, options{rabbitmq: own, redis: redis, after: "confirm", ownConsumer: true, maxLag: "1h", maxOutage: "1h"})
			w.suffer(t, outage{
				cutLine: cutLine{store: "RabbitMQ", settings: settings, after: "confirm", others: "nobody: Redis's disk is destroyed at the same time, no consumer runs", loses: lies},
				before: func(s *trial) {
					s.rest() // so that the broker is idle: what it wrote when it started, and never syncs, is on the disk half a minute later
					world.Must(s.T, disk.Settle())
					world.Must(s.T, w.Consumer.Kill(s.ctx))
					s.press()
				},
				cut: func(s *trial) powercut.Loss {
					world.Must(s.T, redis.Redis.Kill(s.ctx))
					world.Must(s.T, redis.Redis.Wipe())
					loss := powerless(s, own.RabbitMQ, disk)
					world.Must(s.T, redis.Redis.Start(s.ctx))
					world.Must(s.T, own.StartRabbitMQ(s.ctx))
					world.Must(s.T, w.Consumer.Start(s.ctx))
					return loss
				},
			})
			w.reconciled(t)
			w.drained(t)
		})
	}
}
