//go:build servers

package faults

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"floodgate.internal/e2e/world"
)

// mysqlFaults are a MySQL that does not answer, or not as it should.
func mysqlFaults(t *testing.T, g *ground) {
	own := world.OpenServers(t, filepath.Join(g.Dir, "mysql"))
	world.Must(t, own.MySQL.Start(t.Context()))
	w := g.system(t, options{linked: true, mysql: own})
	admin := adminOf(t, w)
	w.group(t, partMySQL,
		disorder{
			what: "mysql: paused", injected: "SIGSTOP for longer than any statement may take", // 12 s: see store.Open
			strike: func(s *trial) { world.Must(s.T, own.MySQL.Signal(syscall.SIGSTOP)); world.Pause(s.ctx, 12*time.Second) },
			heal:   func(s *trial) { world.Must(s.T, own.MySQL.Signal(syscall.SIGCONT)) },
		},
		disorder{
			what: "mysql: restarted", injected: "SIGTERM, and started again",
			strike: func(s *trial) { world.Must(s.T, own.MySQL.Stop(s.ctx)) },
			heal:   func(s *trial) { world.Must(s.T, own.MySQL.Start(s.ctx)) },
		},
		fullHouse(w),
		disorder{
			what: "mysql: deadlocks", injected: "another transaction takes the locks in the other order", times: 10,
			strike: func(s *trial) { deadlocks(s, admin) },
			heal:   func(*trial) {},
		},
		disorder{
			what: "mysql: locks time out", injected: "another transaction holds the stock row until two transactions were told 1205", times: 2,
			strike: func(s *trial) { lockTimeouts(s, admin) },
			heal:   func(*trial) {},
		},
		disorder{
			what: "mysql: the reply of a COMMIT is lost", injected: "the connection reset instead of the answer", times: 10,
			strike: func(s *trial) {
				for range 10 {
					lost := w.Links.MySQL.LoseAnswerTo("\x03COMMIT")
					select {
					case <-lost:
					case <-s.ctx.Done():
						s.Fatal("no COMMIT was sent")
					}
				}
			},
			heal: func(*trial) {},
		},
		disorder{
			what: "mysql: a transaction that never ends", injected: "the connection half-open for good after the slots' INSERT",
			strike: func(s *trial) {
				select {
				case <-w.Links.MySQL.StrandAfter("INSERT INTO order_slots"):
				case <-s.ctx.Done():
					s.Fatal("no slots were inserted")
				}
			},
			heal: func(*trial) {},
		},
	)
	w.drained(t)
}

// adminOf are connections to the world's MySQL past its link.
func adminOf(t *testing.T, w *system) *sql.DB {
	t.Helper()
	dsn, err := world.DSN(w.Stores.MySQL, w.Name)
	world.Must(t, err)
	db, err := world.OpenMySQL(dsn)
	world.Must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// status is one of the server's counters.
func status(ctx context.Context, db *sql.DB, name string) (n int64, err error) {
	err = db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(new(string), &n)
	return n, err
}

// fullHouse takes every connection that the server allows, and ends those that others have.
func fullHouse(w *system) disorder {
	const few = 10 // the least that the server allows
	var taken []*sql.Conn
	return disorder{
		what: "mysql: refuses connections", injected: "all of max_connections taken by others",
		strike: func(s *trial) {
			db := adminOf(s.T, w)
			ours := map[int64]bool{}
			take := func() error {
				c, err := db.Conn(s.ctx)
				if err != nil {
					return err
				}
				taken = append(taken, c)
				var id int64
				err = c.QueryRowContext(s.ctx, "SELECT CONNECTION_ID()").Scan(&id)
				ours[id] = true
				return err
			}
			world.Must(s.T, take())
			_, err := taken[0].ExecContext(s.ctx, fmt.Sprint("SET GLOBAL max_connections = ", few))
			world.Must(s.T, err)
			s.until("all connections are ours", func(ctx context.Context) error {
				others := 0
				ids, err := connections(ctx, taken[0], w.Name)
				if err != nil {
					return err
				}
				for _, id := range ids {
					if !ours[id] {
						others++
						_, _ = taken[0].ExecContext(ctx, fmt.Sprint("KILL ", id)) // it may have gone by itself
					}
				}
				var full *mysql.MySQLError
				for err == nil {
					err = take()
				}
				if !errors.As(err, &full) || full.Number != 1040 {
					return err
				}
				if others > 0 {
					return fmt.Errorf("%d were others'", others)
				}
				return nil
			})
			s.lasts()
		},
		heal: func(s *trial) {
			_, err := taken[0].ExecContext(s.ctx, "SET GLOBAL max_connections = 500")
			world.Must(s.T, err)
			for _, c := range taken {
				world.Must(s.T, c.Close())
			}
		},
	}
}

// connections are the ids of a schema's connections.
func connections(ctx context.Context, c *sql.Conn, schema string) (ids []int64, err error) {
	rows, err := c.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE db = ?", schema)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// deadlocks holds a sale's stock row until a transaction waits for it, and then wants the rows which that one has.
func deadlocks(s *trial, db *sql.DB) {
	const ballast = 2000 // rows: of two transactions the server ends the lighter one
	_, err := db.ExecContext(s.ctx, "CREATE TABLE IF NOT EXISTS ballast (n INT NOT NULL PRIMARY KEY)")
	world.Must(s.T, err)
	before, err := status(s.ctx, db, "Innodb_deadlocks")
	world.Must(s.T, err)
	for n := int64(1); n <= 10; {
		tx, err := db.BeginTx(s.ctx, nil)
		world.Must(s.T, err)
		var mine int64
		world.Must(s.T, tx.QueryRowContext(s.ctx, "SELECT CONNECTION_ID()").Scan(&mine))
		_, err = tx.ExecContext(s.ctx, fmt.Sprintf("INSERT INTO ballast SELECT seq FROM seq_1_to_%d", ballast))
		world.Must(s.T, err)
		_, err = tx.ExecContext(s.ctx, "SELECT available FROM sale_stock WHERE sale_id = ? FOR UPDATE", s.sale)
		world.Must(s.T, err)
		s.until("somebody waits for the stock row", func(ctx context.Context) error {
			waiting, err := status(ctx, db, "Innodb_row_lock_current_waits")
			if err == nil && waiting == 0 {
				err = errors.New("nobody does")
			}
			return err
		})
		_, err = tx.ExecContext(s.ctx, "SELECT COUNT(*) FROM order_slots WHERE sale_id = ? FOR UPDATE", s.sale)
		world.Must(s.T, errors.Join(err, tx.Rollback())) // the other one was ended, not this one
		now, err := status(s.ctx, db, "Innodb_deadlocks")
		world.Must(s.T, err)
		n = now - before + 1
	}
}

// lockTimeouts holds a sale's stock row for longer than anybody waits for it.
func lockTimeouts(s *trial, db *sql.DB) {
	_, err := db.ExecContext(s.ctx, "SET GLOBAL innodb_monitor_enable = 'lock_timeouts'")
	world.Must(s.T, err)
	count := func(ctx context.Context) (n int64, err error) {
		err = db.QueryRowContext(ctx, "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_timeouts'").Scan(&n)
		return n, err
	}
	before, err := count(s.ctx)
	world.Must(s.T, err)
	tx, err := db.BeginTx(s.ctx, nil)
	world.Must(s.T, err)
	_, err = tx.ExecContext(s.ctx, "SELECT available FROM sale_stock WHERE sale_id = ? FOR UPDATE", s.sale)
	world.Must(s.T, err)
	s.until("two transactions have waited for too long", func(ctx context.Context) error {
		n, err := count(ctx)
		if err == nil && n < before+2 {
			err = fmt.Errorf("%d have", n-before)
		}
		return err
	})
	world.Must(s.T, tx.Rollback())
}

// mysqlDisk is a MySQL whose disk is full.
func mysqlDisk(t *testing.T, g *ground) {
	own := world.OpenServers(t, filepath.Join(g.Dir, "mysql-disk"))
	disk := own.MySQL.DataDir()
	world.Must(t, os.MkdirAll(disk, 0o755))
	if err := syscall.Mount("floodgate-test", disk, "tmpfs", 0, "size=400m"); err != nil {
		t.Fatalf("mount a small file system on %s, for a disk that can be full: %v: this test must be run as root", disk, err)
	}
	t.Cleanup(func() {
		world.Must(t, own.MySQL.Kill(context.Background()))
		world.Must(t, syscall.Unmount(disk, 0))
	})
	world.Must(t, own.MySQL.Start(t.Context()))
	w := g.system(t, options{mysql: own})
	filler := filepath.Join(disk, "filler")
	w.group(t, partMySQL, disorder{
		what: "mysql: out of disk", injected: "no byte is left on its file system, until it has refused orders with 1114 or ended",
		strike: func(s *trial) {
			fill(s.T, filler)
			logged := size(s.T, w.Backend)
			s.until("it cannot go on", func(context.Context) error {
				if own.MySQL.Running() && !bytes.Contains(since(s.T, w.Backend, logged), []byte("Error 1114")) {
					return errors.New("it takes orders still")
				}
				return nil
			})
			s.lasts()
		},
		heal: func(s *trial) {
			world.Must(s.T, os.Remove(filler))
			world.Must(s.T, own.MySQL.Start(s.ctx)) // if it has ended
		},
	})
	w.drained(t)
}

// fill writes a file until nothing is left for it.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	world.Must(t, err)
	defer f.Close()
	for b := make([]byte, 1<<20); ; {
		_, err := f.Write(b)
		if errors.Is(err, syscall.ENOSPC) && len(b) == 1 {
			return
		}
		if errors.Is(err, syscall.ENOSPC) {
			b = b[:1]
			continue
		}
		world.Must(t, err)
	}
}
