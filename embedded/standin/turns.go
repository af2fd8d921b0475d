package standin

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dolthub/go-mysql-server/server"
	"github.com/dolthub/vitess/go/mysql"
	"github.com/dolthub/vitess/go/sqltypes"
	querypb "github.com/dolthub/vitess/go/vt/proto/query"
)

// turnTimeout is how long a statement waits for another connection's transaction to end: MySQL's innodb_lock_wait_timeout,
// but shorter, since nothing here has business with a transaction that long.
const turnTimeout = 10 * time.Second

// turns lets one transaction run at a time. The in-memory engine keeps a copy of each table that a transaction touched,
// if only to read it, and puts it back at COMMIT: of two that overlap, the later would undo the earlier. So a connection
// takes the turn with its first statement and gives it back as soon as it has no open transaction. One that waits too long
// gets MySQL's lock wait time-out (1205).
type turns struct {
	mysql.Handler
	sessions *server.SessionManager
	turn     chan struct{} // of one: full while somebody has the turn
	timeout  time.Duration
	holder   atomic.Pointer[mysql.Conn] // whose turn it is; written only by the connection that takes or gives the turn
}

func newTurns(h mysql.Handler, sessions *server.SessionManager) *turns {
	return &turns{Handler: h, sessions: sessions, turn: make(chan struct{}, 1), timeout: turnTimeout}
}

// take waits for the connection's turn; a connection's commands come one at a time.
func (t *turns) take(ctx context.Context, c *mysql.Conn) error {
	if t.holder.Load() == c {
		return nil
	}
	timer := time.NewTimer(t.timeout)
	defer timer.Stop()
	select {
	case t.turn <- struct{}{}:
		t.holder.Store(c)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return mysql.NewSQLError(mysql.ERLockWaitTimeout, "HY000", "Lock wait timeout exceeded; try restarting transaction")
	}
}

// pass gives the turn back unless the connection is in a transaction that it began itself.
func (t *turns) pass(c *mysql.Conn) {
	ctx, err := t.sessions.NewContextWithQuery(context.Background(), c, "")
	if err == nil && ctx.GetIgnoreAutoCommit() && ctx.GetTransaction() != nil {
		return
	}
	t.give(c)
}

func (t *turns) give(c *mysql.Conn) {
	if t.holder.CompareAndSwap(c, nil) {
		<-t.turn
	}
}

func (t *turns) ComQuery(ctx context.Context, c *mysql.Conn, query string, callback mysql.ResultSpoolFn) error {
	if err := t.take(ctx, c); err != nil {
		return err
	}
	defer t.pass(c)
	return named(t.Handler.ComQuery(ctx, c, query, callback))
}

func (t *turns) ComMultiQuery(ctx context.Context, c *mysql.Conn, query string, callback mysql.ResultSpoolFn) (string, error) {
	if err := t.take(ctx, c); err != nil {
		return "", err
	}
	defer t.pass(c)
	rest, err := t.Handler.ComMultiQuery(ctx, c, query, callback)
	return rest, named(err)
}

func (t *turns) ComPrepare(ctx context.Context, c *mysql.Conn, query string, prepare *mysql.PrepareData) ([]*querypb.Field, error) {
	if err := t.take(ctx, c); err != nil {
		return nil, err
	}
	defer t.pass(c)
	return t.Handler.ComPrepare(ctx, c, query, prepare)
}

func (t *turns) ComStmtExecute(ctx context.Context, c *mysql.Conn, prepare *mysql.PrepareData, callback func(*sqltypes.Result) error) error {
	if err := t.take(ctx, c); err != nil {
		return err
	}
	defer t.pass(c)
	return named(t.Handler.ComStmtExecute(ctx, c, prepare, callback))
}

func (t *turns) ComResetConnection(c *mysql.Conn) error {
	defer t.give(c) // its transaction ends with the session
	return t.Handler.ComResetConnection(c)
}

func (t *turns) ConnectionClosed(c *mysql.Conn) {
	defer t.give(c)
	t.Handler.ConnectionClosed(c)
}
