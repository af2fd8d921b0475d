package upstream

import (
	"crypto/tls"
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

// dial connects to b, with TLS where b has it.
func (s *conns) dial(b *backend, timeout time.Duration) (net.Conn, error) {
	if timeout <= 0 || timeout > dialTimeout {
		timeout = dialTimeout
	}
	c, err := net.DialTimeout("tcp", b.addr, timeout)
	if err != nil {
		return nil, &notSentError{err}
	}
	own := &conn{Conn: c, all: s, tcp: c.(*net.TCPConn), backend: b, tls: b.tls.Load()}
	if own.tls != nil {
		if err := own.handshake(); err != nil {
			c.Close()
			return nil, &notSentError{err}
		}
	}
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
	net.Conn // of TLS, or tcp
	all      *conns
	tcp      *net.TCPConn
	backend  *backend
	tls      *tls.Config // with which it was made; nil: plain
	sent     bool        // something was written since the last read
	heard    bool        // something was read
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
	n, err := c.Conn.Read(b)
	if c.tls != nil && !c.heard {
		c.heard = true
		if answer := c.refusedLate(err); answer != nil {
			return copy(b, answer), nil // fasthttp reads 4096 bytes at once
		}
	}
	return n, err
}

// alive peeks without waiting. If there is nothing to read the connection is good. An end, an error, or an answer to no request
// is errStale. So is a connection of TLS settings that a reload has replaced. One of TLS that was just made is good, although
// session tickets may be there to read.
func (c *conn) alive() error {
	if c.tls != c.backend.tls.Load() {
		return errStale
	}
	if c.tls != nil && !c.heard {
		return nil
	}
	raw, err := c.tcp.SyscallConn()
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
