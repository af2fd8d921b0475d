package upstream

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"floodgate.internal/shared/failpoint"
)

type netConn = net.Conn

// notSentError says that a request failed before one byte of it was sent.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// errStale is a pooled connection that the other side has closed.
var errStale = errors.New("the idle connection was closed by the backend")

// conns is every open connection, so that they can be closed when the time for draining is over. mu guards the rest.
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
	mine := &conn{Conn: c, set: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return nil, &notSentError{errClosed}
	}
	s.open[mine] = struct{}{}
	return mine, nil
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

// conn knows whether anything of the present request was sent. Its user writes a request, then reads the answer, then
// writes the next.
type conn struct {
	net.Conn
	set  *conns
	sent bool // something was written since the last read
}

// Write looks, before a request's first byte, whether the other side is still there: a backend that was restarted has
// closed its idle connections, and a request sent into one of them would be lost without anybody knowing.
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
	n, err := c.Conn.Read(b)
	return n, err
}

// alive peeks without waiting: nothing there is good; an end, an error or an answer that nobody asked for is not.
func (c *conn) alive() error {
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return errStale
	}
	state := error(nil)
	err = raw.Control(func(fd uintptr) { // not raw.Read: the last request's read deadline may have passed
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
	c.set.mu.Lock()
	delete(c.set.open, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}
