package upstream

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"floodgate.internal/shared/failpoint"
)

// notSentError says that a request failed before one byte of it was sent.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// errStale is a pooled connection that the backend has closed.
var errStale = errors.New("the idle connection was closed by the backend")

// conns is every open connection, so that Close can close them. mu guards the rest.
type conns struct {
	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
}

var errClosed = errors.New("the gateway is shutting down")

func (s *conns) dial(addr string, timeout time.Duration) (net.Conn, error) {
	if timeout <= 0 || timeout > dialTimeout {
		timeout = dialTimeout
	}
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return nil, &notSentError{err}
	}
	own := &conn{Conn: c, all: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return nil, &notSentError{errClosed}
	}
	s.open[own] = struct{}{}
	return own, nil
}

const dialTimeout = time.Second

func (s *conns) close() {
	s.mu.Lock()
	s.closed = true
	var all []*conn
	for c := range s.open {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// conn knows whether a byte of the present request was sent. Its user writes a request, then reads the answer, then writes the
// next one.
type conn struct {
	net.Conn
	all  *conns
	sent bool // something was written since the last read
}

// Write checks, before a request's first byte, whether the backend has closed the connection: it closes idle ones when it is
// restarted. A request written to such a connection would be lost, and nobody would know whether it was done.
func (c *conn) Write(b []byte) (int, error) {
	if !c.sent {
		if err := c.alive(); err != nil {
			return 0, &notSentError{err}
		}
	}
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.sent = true
		failpoint.Wrote("gateway.request-sent", b, "POST ")
	}
	if err != nil && !c.sent {
		err = &notSentError{err}
	}
	return n, err
}

func (c *conn) Read(b []byte) (int, error) {
	c.sent = false
	return c.Conn.Read(b)
}

// alive peeks without waiting. If there is nothing to read the connection is good. An end, an error, or an answer to no request
// is errStale.
func (c *conn) alive() error {
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return errStale
	}
	state := error(nil)
	err = raw.Control(func(fd uintptr) { // not raw.Read: the read deadline of the last request may have passed
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if err != syscall.EAGAIN && err != syscall.EWOULDBLOCK {
			state = errStale
		}
	})
	if err != nil {
		return errStale
	}
	return state
}

func (c *conn) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}
