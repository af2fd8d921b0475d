package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Server names a run of a MySQL server: a restart and a failover make it another.
type Server struct {
	Address string // server_id, hostname and port, as the server says; "" for one that has no hostname: the stand-in
	Started int64  // in seconds by its own clock
	late    int64  // seconds by which it may have started earlier: the answers took as long
}

func (s Server) String() string {
	return s.Address + ", started at " + time.Unix(s.Started, 0).UTC().Format(time.RFC3339)
}

// Named reports whether the server can be told from others.
func (s Server) Named() bool { return s.Address != "" }

// Same reports whether s, which has answered just now, may be the server that was named.
func (s Server) Same(named Server) bool {
	const seconds = 2 // that rounding makes, at most
	return s.Address == named.Address && named.Started >= s.Started-s.late-seconds && named.Started <= s.Started+seconds
}

// ErrNotCompared: MySQL was started anew, or another server took over. It may have forgotten what was committed, and serves nobody
// until a reconciler has compared it with Redis.
var ErrNotCompared = errors.New("mysql was started anew, or another server took over: it serves when a backend has compared it with Redis")

// compared gives only connections to the server that was compared with Redis. A connection leads to one run of one server for as
// long as it lasts, so it is asked once. Where no server was ever compared it gives any.
type compared struct{ driver.Connector }

func (c compared) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	this, last, err := ask(ctx, conn)
	if err == nil && last != (Server{}) && this.Named() && !this.Same(last) {
		err = fmt.Errorf("%w; it is %v, and %v was compared", ErrNotCompared, this, last)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// ask asks a server who it is, and which server was compared last; the zero value for none.
func ask(ctx context.Context, conn driver.Conn) (this, last Server, err error) {
	began := time.Now()
	up, err := ask1(ctx, conn, `SHOW GLOBAL STATUS LIKE 'Uptime'`, 2)
	if err == nil && up == nil {
		err = errors.New("it has no Uptime")
	}
	if err != nil {
		return this, last, fmt.Errorf("ask mysql since when it runs: %w", err)
	}
	row, err := ask1(ctx, conn, `SELECT CONCAT(@@server_id, ' ', @@hostname, ':', @@port), UNIX_TIMESTAMP(),
		(SELECT address FROM compared_server WHERE only_row = 1), (SELECT started FROM compared_server WHERE only_row = 1)`, 4)
	if number(err, 1146) { // the schema is older: nothing was compared
		row, err = ask1(ctx, conn, `SELECT CONCAT(@@server_id, ' ', @@hostname, ':', @@port), UNIX_TIMESTAMP(), NULL, NULL`, 4)
	}
	if err == nil && row == nil {
		err = errors.New("no row")
	}
	if err != nil {
		return this, last, fmt.Errorf("ask mysql who it is: %w", err)
	}
	uptime, err1 := whole(up[1])
	now, err2 := whole(row[1])
	this = Server{text(row[0]), now - uptime, int64(time.Since(began) / time.Second)}
	if strings.Contains(this.Address, " :") {
		this.Address = ""
	}
	if row[2] == nil {
		return this, last, errors.Join(err1, err2)
	}
	last.Address = text(row[2])
	last.Started, err = whole(row[3])
	return this, last, errors.Join(err1, err2, err)
}

// ask1 returns the only row of a query; nil where there is none.
func ask1(ctx context.Context, conn driver.Conn, query string, columns int) ([]driver.Value, error) {
	q, ok := conn.(driver.QueryerContext)
	if !ok {
		panic("BUG: the driver's connections take no query")
	}
	rows, err := q.QueryContext(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	row := make([]driver.Value, columns)
	switch err := rows.Next(row); {
	case err == io.EOF:
		return nil, rows.Close()
	case err != nil:
		return nil, errors.Join(err, rows.Close())
	}
	for i, v := range row {
		if b, ok := v.([]byte); ok {
			row[i] = string(b) // the driver uses its buffer again
		}
	}
	return row, rows.Close()
}

func text(v driver.Value) string { return fmt.Sprint(v) }

func whole(v driver.Value) (int64, error) { return strconv.ParseInt(text(v), 10, 64) }

// Who asks a server who it is, and which server was compared with Redis last; the zero value for none.
func Who(ctx context.Context, conn *sql.Conn) (this, last Server, err error) {
	err = conn.Raw(func(c any) error {
		d, ok := c.(driver.Conn)
		if !ok {
			panic("BUG: a connection that is none of the driver's")
		}
		this, last, err = ask(ctx, d)
		return err
	})
	return this, last, err
}

// Compared lets a server serve, if last still is the one that was compared last: what a slow reconciler has found out is of no use
// once another has done the same.
func Compared(ctx context.Context, conn *sql.Conn, at time.Time, this, last Server) error {
	if this.late > 0 {
		return fmt.Errorf("mysql took %d s to say since when it runs: it is asked again", this.late)
	}
	var n int64
	var err error
	if last == (Server{}) {
		n, err = Changed(conn.ExecContext(ctx, `INSERT IGNORE INTO compared_server (only_row, address, started, compared_at) VALUES (1, ?, ?, ?)`,
			this.Address, this.Started, at))
	} else {
		n, err = Changed(conn.ExecContext(ctx, `UPDATE compared_server SET address = ?, started = ?, compared_at = ? WHERE only_row = 1 AND address = ? AND started = ?`,
			this.Address, this.Started, at, last.Address, last.Started))
	}
	if err == nil && n != 1 {
		err = errors.New("another process has compared it meanwhile")
	}
	if err != nil {
		return fmt.Errorf("note which mysql was compared: %w", err)
	}
	return nil
}

// OpenAny is Open for whoever compares a server with Redis: also connections to one that serves nobody yet. None is kept, so each leads
// to the server that has the address now.
func OpenAny(dsn string, maxOpen int) (*sql.DB, error) {
	db, err := open(dsn, maxOpen, statementTime, false)
	if err == nil {
		db.SetMaxIdleConns(-1)
	}
	return db, err
}
