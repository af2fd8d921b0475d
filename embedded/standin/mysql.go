package standin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	sqle "github.com/dolthub/go-mysql-server"
	"github.com/dolthub/go-mysql-server/memory"
	"github.com/dolthub/go-mysql-server/server"
	"github.com/dolthub/go-mysql-server/sql"
	"github.com/dolthub/vitess/go/mysql"
	"github.com/sirupsen/logrus"
)

// database is the name of the one schema.
const database = "floodgate"

// MySQL is an in-memory server of MySQL's protocol on a loopback port of its own. It takes any user and has one empty
// schema. Its transactions run one after the other (see turns), so it is serializable, and slow.
type MySQL struct {
	listener *listener
	server   *server.Server
	turns    *turns
	done     chan struct{} // closed by the accept loop when it ends
}

// silence turns off the log of the server's library, which is global and prints every failed statement.
var silence = sync.OnceFunc(func() {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.PanicLevel)
})

// StartMySQL starts one on a free port.
func StartMySQL() (*MySQL, error) {
	silence()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("stand-in for mysql: %w", err)
	}
	db := memory.NewDatabase(database)
	dbs := memory.NewDBProvider(db)
	engine := sqle.NewDefault(provider{dbs})
	m := &MySQL{listener: &listener{Listener: tcp, open: map[net.Conn]struct{}{}}, done: make(chan struct{})}
	config := server.Config{
		Listener: m.listener,
		Version:  "8.0.33-floodgate-embedded",
		Options: []server.Option{func(e *sqle.Engine, sessions *server.SessionManager, h mysql.Handler) (*sqle.Engine, *server.SessionManager, mysql.Handler) {
			m.turns = newTurns(h, sessions)
			return e, sessions, m.turns
		}},
	}
	m.server, err = server.NewServer(config, engine, sql.NewContext, memory.NewSessionBuilder(dbs), nil)
	if err != nil {
		tcp.Close()
		return nil, fmt.Errorf("stand-in for mysql: %w", err)
	}
	go func() {
		defer close(m.done)
		m.server.Listener.Accept()
	}()
	return m, nil
}

// Addr is its host:port.
func (m *MySQL) Addr() string { return m.listener.Addr().String() }

// DSN is its data source name in go-sql-driver's form. The stand-in has no innodb_lock_wait_timeout that a session could set, and
// on its only connection nobody waits for a lock. A statement may take a minute: it waits for its turn.
func (m *MySQL) DSN() string {
	return "root@tcp(" + m.Addr() + ")/" + database + "?innodb_lock_wait_timeout=&readTimeout=1m"
}

// Close ends it and every connection to it, and forgets everything.
func (m *MySQL) Close() error {
	err := m.server.Close()
	m.listener.refuse()
	m.listener.cut()
	<-m.done
	m.server.SessionManager().WaitForClosedConnections()
	if e := m.server.Engine.Close(); !errors.Is(e, context.Canceled) { // that is how its background threads end
		err = errors.Join(err, e)
	}
	return err
}

// listener remembers the connections that are open, for Close. What it accepts is not known as TCP to the server, which
// would otherwise search /proc for the socket with each SELECT.
type listener struct {
	net.Listener

	mu     sync.Mutex
	open   map[net.Conn]struct{} // guarded by mu
	closed bool                  // guarded by mu
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &conn{Conn: c, in: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	l.open[tracked] = struct{}{}
	return tracked, nil
}

// refuse makes the listener drop whatever it still accepts.
func (l *listener) refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// cut ends every open connection.
func (l *listener) cut() {
	l.mu.Lock()
	var all []net.Conn
	for c := range l.open {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

type conn struct {
	net.Conn
	in *listener
}

func (c *conn) Close() error {
	c.in.mu.Lock()
	delete(c.in.open, c)
	c.in.mu.Unlock()
	return c.Conn.Close()
}
