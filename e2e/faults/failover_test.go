//go:build servers

package faults

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// pair is a MySQL and its replica, which swap places with each promotion.
type pair struct {
	primary, replica *stack.Servers
	user, password   string // of the backends, on both
	started          int
	semiSync         bool // a COMMIT of the primary returns when the replica has it
}

const (
	forgets   = 100 // commits that a replica of MySQL is behind, at least, when it takes over
	failovers = 3
)

// newPair starts both, below directories of that name.
func newPair(t *testing.T, g *ground, name string, semiSync bool) *pair {
	t.Helper()
	p := &pair{semiSync: semiSync, primary: world.OpenServers(t, filepath.Join(g.Dir, name+"-1")), replica: world.OpenServers(t, filepath.Join(g.Dir, name+"-2"))}
	for _, v := range []*stack.Servers{p.primary, p.replica} {
		v.MySQL.With(nil, []string{"--log-bin=binlog", "--sync-binlog=1", "--log-slave-updates=1"}, nil)
		if semiSync {
			v.MySQL.With(nil, []string{"--rpl-semi-sync-slave-enabled=ON", "--rpl-semi-sync-master-wait-point=AFTER_SYNC", "--rpl-semi-sync-master-timeout=600000"}, nil)
		}
		p.start(t, t.Context(), v)
	}
	c, err := mysql.ParseDSN(p.primary.MySQLDSN())
	world.Must(t, err)
	p.user, p.password = c.User, c.Passwd
	on(t, t.Context(), p.primary.MySQLDSN(), "RESET MASTER")
	p.follow(t, t.Context())
	return p
}

// mysqlFailovers are failovers of MySQL to a replica that lags. Each order is a commit of its own.
func mysqlFailovers(t *testing.T, g *ground) {
	p := newPair(t, g, "mysql", false)
	w := g.system(t, options{linked: true, mysql: p.primary, batch: 1})
	w.group(t, partMySQL,
		disorder{
			what: "mysql: fails over to a replica that lags", injected: fmt.Sprintf("SIGKILL; a replica takes over that stopped %d commits ago or more", forgets), keep: true, twice: true, times: failovers,
			strike: func(s *trial) {
				for range failovers {
					p.failOver(s, forgets)
					p.followAnew(s)
				}
			},
			heal: func(*trial) {},
		},
		disorder{
			what: "mysql: fails over to a replica that is not behind", injected: "SIGKILL; a replica takes over that has every commit", keep: true, twice: true,
			strike: func(s *trial) { p.failOver(s, 0) },
			heal:   func(s *trial) { p.followAnew(s) },
		},
	)
	w.drained(t)
}

// mysqlSemiSynchronous are failovers of MySQL to a semi-synchronous replica, which has received each commit that returned.
func mysqlSemiSynchronous(t *testing.T, g *ground) {
	p := newPair(t, g, "mysql-semisync", true)
	w := g.system(t, options{linked: true, mysql: p.primary, batch: 1})
	w.group(t, partMySQL, disorder{
		what: "mysql: fails over to a semi-synchronous replica", keep: true, twice: true, times: failovers,
		injected: fmt.Sprintf("SIGKILL; a replica takes over that has received all, and had not made the last %d commits or more", forgets),
		strike: func(s *trial) {
			for range failovers {
				p.failOver(s, forgets)
				p.followAnew(s)
			}
			s.nothingForgotten()
		},
		heal: func(*trial) {},
	})
	w.drained(t)
}

// takeovers are the failpoints of a backend that compares a MySQL that took over with Redis.
var takeovers = []string{"takeover.after-token", "takeover.after-shut", "takeover.before-compared", "takeover.after-compared"}

// takeoverFailpoints kills the backend at each of them, while it compares a replica that lags.
func takeoverFailpoints(t *testing.T, g *ground) {
	p := newPair(t, g, "mysql-takeover", false)
	w := g.system(t, options{linked: true, mysql: p.primary, batch: 1})
	for _, point := range takeovers {
		w.group(t, partFailpoints, disorder{
			what: "timer: compares a mysql that forgot, " + point, injected: "SIGKILL at `" + point + "`", keep: true, twice: true,
			strike: func(s *trial) {
				world.Must(s.T, w.Backend.Stop(s.ctx))
				logged := size(s.T, w.Backend)
				armed := w.process(w.Backend.Name(), point)
				world.Must(s.T, armed.Start(s.ctx))
				var died errgroup.Group
				died.Go(func() error {
					if err := armed.Wait(s.ctx); err != nil {
						return fmt.Errorf("it never came to %s: %w", point, err)
					}
					return w.Backend.Start(s.ctx)
				})
				p.failOver(s, forgets)
				world.Must(s.T, died.Wait())
				if text := "failpoint: killed at " + point + "\n"; !bytes.Contains(since(s.T, w.Backend, logged), []byte(text)) {
					s.Fatalf("the backend ended, but not at %s", point)
				}
			},
			heal: func(s *trial) { p.followAnew(s) },
		})
	}
	w.drained(t)
}

// start starts a server without data. It gets an id that none had: a replica leaves out what its own id committed.
func (p *pair) start(t *testing.T, ctx context.Context, v *stack.Servers) {
	t.Helper()
	p.started++
	v.MySQL.With(nil, []string{fmt.Sprint("--server-id=", p.started)}, nil)
	world.Must(t, v.MySQL.Start(ctx))
}

// dsn leads to a schema of a server, past the world's link.
func (p *pair) dsn(t *testing.T, v *stack.Servers, schema string) string {
	t.Helper()
	c, err := mysql.ParseDSN(v.MySQLDSN())
	world.Must(t, err)
	c.User, c.Passwd, c.DBName = p.user, p.password, schema
	return c.FormatDSN()
}

// ask runs a query of one row.
func ask(ctx context.Context, dsn, query string, args []any, into ...any) error {
	db, err := world.OpenMySQL(dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.QueryRowContext(ctx, query, args...).Scan(into...)
}

// on runs statements.
func on(t *testing.T, ctx context.Context, dsn string, statements ...string) {
	t.Helper()
	db, err := world.OpenMySQL(dsn)
	world.Must(t, err)
	defer db.Close()
	for _, statement := range statements {
		_, err := db.ExecContext(ctx, statement)
		world.Must(t, err)
	}
}

// follow makes the replica, which is new, follow the primary from its first commit on. Its user gets the password of the pair's.
func (p *pair) follow(t *testing.T, ctx context.Context) {
	t.Helper()
	_, port, err := net.SplitHostPort(address(t, p.primary))
	world.Must(t, err)
	on(t, ctx, p.replica.MySQLDSN(), fmt.Sprintf("ALTER USER '%s'@'127.0.0.1' IDENTIFIED BY '%s'", p.user, p.password))
	if p.semiSync {
		on(t, ctx, p.dsn(t, p.primary, ""), "SET GLOBAL rpl_semi_sync_master_enabled = ON")
	}
	on(t, ctx, p.dsn(t, p.replica, ""), "RESET MASTER", "SET GLOBAL gtid_slave_pos = ''",
		fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = '%s', MASTER_PASSWORD = '%s', MASTER_USE_GTID = slave_pos", port, p.user, p.password),
		"START SLAVE")
}

// followAnew starts the former primary without its data, as the replica of the one that took over.
func (p *pair) followAnew(s *trial) {
	s.Helper()
	world.Must(s.T, p.replica.MySQL.Wipe())
	p.start(s.T, s.ctx, p.replica)
	p.follow(s.T, s.ctx)
}

// lacks is how many orders of the sale the replica does not have.
func (p *pair) lacks(ctx context.Context, s *trial) (n int, err error) {
	const query = "SELECT COUNT(*) FROM orders WHERE sale_id = ?"
	var all, has int
	if err = ask(ctx, p.dsn(s.T, p.primary, s.w.Name), query, []any{s.sale}, &all); err == nil {
		err = ask(ctx, p.dsn(s.T, p.replica, s.w.Name), query, []any{s.sale}, &has)
	}
	return all - has, err
}

// catchUp waits until the replica has what the primary has now.
func (p *pair) catchUp(s *trial) {
	s.Helper()
	var at string
	world.Must(s.T, ask(s.ctx, p.dsn(s.T, p.primary, ""), "SELECT @@GLOBAL.gtid_binlog_pos", nil, &at))
	p.replay(s, at)
}

// replay waits until the replica has made all transactions up to that position.
func (p *pair) replay(s *trial, at string) {
	s.Helper()
	var late int
	world.Must(s.T, ask(s.ctx, p.dsn(s.T, p.replica, ""), "SELECT MASTER_GTID_WAIT(?, 300)", []any{at}, &late))
	if late != 0 {
		s.Fatalf("the replica does not come to %s", at)
	}
}

// received is the position up to which the replica has transactions, made or not.
func (p *pair) received(s *trial) string {
	s.Helper()
	db, err := world.OpenMySQL(p.dsn(s.T, p.replica, ""))
	world.Must(s.T, err)
	defer db.Close()
	rows, err := db.QueryContext(s.ctx, "SHOW SLAVE STATUS")
	world.Must(s.T, err)
	defer rows.Close()
	columns, err := rows.Columns()
	world.Must(s.T, err)
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	if !rows.Next() {
		s.Fatalf("the replica follows nobody: %v", rows.Err())
	}
	world.Must(s.T, rows.Scan(into...))
	return values[slices.Index(columns, "Gtid_IO_Pos")].String
}

// failOver waits until the replica has everything, stops it, and kills the primary when that has so many orders more. Then the replica
// has its place. One that is semi-synchronous has received them, and makes them first.
func (p *pair) failOver(s *trial, behind int) {
	s.Helper()
	if behind == 0 {
		s.w.Links.MySQL.Refuse() // nobody commits any more
	}
	p.catchUp(s)
	if p.semiSync {
		s.until("each commit waits for the replica", func(ctx context.Context) error {
			var state string
			err := ask(ctx, p.dsn(s.T, p.primary, ""), "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_status'", nil, new(string), &state)
			if err == nil && state != "ON" {
				err = fmt.Errorf("semi-synchronous replication is %s", state)
			}
			return err
		})
	}
	if behind > 0 {
		on(s.T, s.ctx, p.dsn(s.T, p.replica, ""), "STOP SLAVE SQL_THREAD")
		s.until("the primary is ahead", func(ctx context.Context) error {
			n, err := p.lacks(ctx, s)
			if err == nil && n < behind {
				err = fmt.Errorf("by %d of %d orders", n, behind)
			}
			return err
		})
	}
	lacks, err := p.lacks(s.ctx, s)
	world.Must(s.T, err)
	world.Must(s.T, p.primary.MySQL.Kill(s.ctx))
	if p.semiSync {
		on(s.T, s.ctx, p.dsn(s.T, p.replica, ""), "START SLAVE SQL_THREAD")
		p.replay(s, p.received(s))
	}
	on(s.T, s.ctx, p.dsn(s.T, p.replica, ""), "STOP SLAVE", "RESET SLAVE ALL")
	p.primary, p.replica = p.replica, p.primary
	s.Logf("the replica had not made %d orders", lacks)
	s.moved(address(s.T, p.primary), p.dsn(s.T, p.primary, s.w.Name))
}

// moved leads the backends to another MySQL, and returns when they are served.
func (s *trial) moved(address, dsn string) {
	s.Helper()
	s.w.Links.MySQL.Target(address)
	s.w.Links.MySQL.Heal()
	began := time.Now()
	db, err := world.OpenMySQL(dsn)
	world.Must(s.T, err)
	s.w.judge(db)
	s.until("the new primary serves", func(ctx context.Context) error {
		var known string
		return ask(ctx, dsn, "SELECT address FROM compared_server WHERE address LIKE CONCAT(@@server_id, ' %')", nil, &known)
	})
	served := time.Since(began)
	s.more(20)
	s.Logf("it served after %v; %v orders were forgotten and queued again so far", served.Round(time.Millisecond), s.forgotten())
}

// forgotten is how many orders this backend has queued again because MySQL had forgotten them.
func (s *trial) forgotten() float64 {
	s.Helper()
	return s.w.Metric(s.T, s.w.Ports.AdminURL(), "backend_orders_forgotten_total")
}

// nothingForgotten fails where MySQL has forgotten an order.
func (s *trial) nothingForgotten() {
	s.Helper()
	if n := s.forgotten(); n != 0 {
		s.Errorf("%v orders were forgotten", n)
	}
}

func address(t *testing.T, v *stack.Servers) string {
	t.Helper()
	c, err := mysql.ParseDSN(v.MySQLDSN())
	world.Must(t, err)
	return c.Addr
}
