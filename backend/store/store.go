// Package store is the MySQL side: connections, migrations, transactions that are retried, and what an error means.
package store

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"floodgate.internal/shared/failpoint"
)

// How long anything may take that the other side does not see to. A process, or the way to it, can go without a word: then the
// server ends its session, with the transaction and the locks of it, and what waited goes on, all well within the time in which
// an order must leave the queue.
const (
	connectTime   = 5 * time.Second
	statementTime = 10 * time.Second // for the server to answer, after which the connection is given up
	lockTime      = 5 * time.Second  // for a row lock, shorter: so that it ends with 1205 and leaves no statement behind
	sessionTime   = 20 * time.Second // without a statement, also within a transaction, after which the server ends the session
	idleTime      = 10 * time.Second // of a connection in the pool, shorter
)

// Open connects to MySQL or MariaDB, with at most maxOpen connections. It does not wait for the server: see Ping. Sessions
// begin with an innodb_lock_wait_timeout of 5 s and a wait_timeout of 20 s, where the DSN does not name others (nothing: the
// server's own). A statement is given up after 10 s, or the DSN's readTimeout. A server that was not compared with Redis since it was
// started, or took over, gives no connection: ErrNotCompared.
func Open(dsn string, maxOpen int) (*sql.DB, error) { return open(dsn, maxOpen, statementTime, true) }

// OpenToMigrate is Open for whoever changes the schema: a statement may take as long as it takes.
func OpenToMigrate(dsn string) (*sql.DB, error) { return open(dsn, 1, 0, false) }

func open(dsn string, maxOpen int, statementTime time.Duration, served bool) (*sql.DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("mysql.dsn: %w: the form is user:password@tcp(host:3306)/database", err)
	}
	if c.DBName == "" {
		return nil, errors.New("mysql.dsn: it names no database: the form is user:password@tcp(host:3306)/database")
	}
	c.ParseTime = true
	c.Loc = time.UTC
	c.ClientFoundRows = false  // the count of changed rows is the decision
	c.InterpolateParams = true // one round trip a statement
	c.RejectReadOnly = true    // after a failover, find the new primary
	c.Timeout = connectTime
	if c.ReadTimeout == 0 || statementTime == 0 {
		c.ReadTimeout = statementTime
	}
	c.WriteTimeout = 10 * time.Second
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	for name, d := range map[string]time.Duration{"innodb_lock_wait_timeout": lockTime, "wait_timeout": sessionTime} {
		switch value, named := c.Params[name]; {
		case !named:
			c.Params[name] = strconv.Itoa(int(d.Seconds()))
		case value == "":
			delete(c.Params, name)
		}
	}
	c.Logger = quiet{} // every error is returned as well
	if failpoint.Enabled {
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: c.Timeout}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			conn = failpoint.Sent("migrate.statement-sent", conn, func(b []byte) bool { return bytes.Contains(b, []byte("CREATE TABLE")) })
			return failpoint.Sent("consumer.commit-sent", conn, ordersCommit()), nil
		}
	}
	plain, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("mysql.dsn: %w", err)
	}
	var connections driver.Connector = connector{plain}
	if served {
		connections = compared{connections}
	}
	db := sql.OpenDB(connections)
	db.SetMaxOpenConns(maxOpen)
	db.SetMaxIdleConns(maxOpen)
	db.SetConnMaxLifetime(3 * time.Minute)
	db.SetConnMaxIdleTime(idleTime)
	return db, nil
}

// ordersCommit returns what tells, of all that is written to one connection, the COMMITs of transactions that changed orders.
func ordersCommit() func([]byte) bool {
	changed := false
	return func(b []byte) bool {
		switch {
		case bytes.Contains(b, []byte("INSERT INTO orders")), bytes.Contains(b, []byte("UPDATE orders SET status")):
			changed = true
		case bytes.Contains(b, []byte("ROLLBACK")):
			changed = false
		case bytes.Contains(b, []byte("COMMIT")):
			defer func() { changed = false }()
			return changed
		}
		return false
	}
}

type quiet struct{}

func (quiet) Print(...any) {}

// maxAttempts bounds how often a transaction is begun anew.
const maxAttempts = 10

// InTx runs f in a READ COMMITTED transaction and commits it. A deadlock (1213), a lock wait (1205) or a changed snapshot
// (1020) rolls back and runs f anew, a bounded number of times with jittered pauses, so f must have no other effect. An
// error of the COMMIT itself is ErrUnknown: read back what happened.
func InTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := once(ctx, db, f)
		if err == nil || attempt == maxAttempts || !Retryable(err) {
			return err
		}
		pause := time.Duration(rand.Int64N(int64(attempt) * int64(5*time.Millisecond)))
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func once(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() // where f panics: nothing is left open; else it is over by then
	if err := f(tx); err != nil {
		return errors.Join(err, rolledBack(tx.Rollback()))
	}
	if err := tx.Commit(); err != nil {
		if Retryable(err) {
			return fmt.Errorf("commit: %w", err) // the server said that it did not
		}
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}

func rolledBack(err error) error {
	if err == nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) {
		return nil // nothing is left open: a lost connection rolls back
	}
	return fmt.Errorf("rollback: %w", err)
}

// ErrUnknown: the COMMIT was sent and its answer lost. The transaction may or may not have happened.
var ErrUnknown = errors.New("the outcome of the commit is unknown")

// Retryable reports whether err is a deadlock, a lock wait or a changed snapshot: the same transaction may succeed anew.
func Retryable(err error) bool { return number(err, 1213, 1205, 1020) }

// Duplicate reports whether err is a violated unique key.
func Duplicate(err error) bool { return number(err, 1062) }

// CheckViolated reports whether err is a violated CHECK (3819 on MySQL, 4025 on MariaDB, 1105 on the embedded server).
func CheckViolated(err error) bool { return number(err, 3819, 4025, 1105) }

// Refused reports whether err is the server's judgement of the values themselves (too long, out of range, a violated
// constraint): the same statement would fail again, whenever it is sent.
func Refused(err error) bool {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return false
	}
	class := string(e.SQLState[:2])
	return class == "22" || class == "23" || Duplicate(err) || CheckViolated(err) || number(err, 1264, 1366, 1406)
}

func number(err error, numbers ...uint16) bool {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return false
	}
	for _, n := range numbers {
		if e.Number == n {
			return true
		}
	}
	return false
}
