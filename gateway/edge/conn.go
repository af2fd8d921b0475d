package edge

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
)

// conn is a client's connection. It gives fasthttp one request at a time, whose head was checked, and answers itself what
// the fast path takes.
type conn struct {
	net.Conn
	listener  *Listener
	handshake *handshake // what comes before HTTP; nil: nothing
	addr      netip.Addr
	key       [16]byte // network.Key of addr
	counted   bool     // in Listener.byAddr
	linger    atomic.Bool
	closed    atomic.Bool
	heads     headFilter
	pending   []byte       // bytes behind the present request
	exchange  exchange     // the present one: a connection has one at a time
	line      lineKind     // the present request is to be logged for this
	traced    bool         // the present request was drawn to be traced
	idle      atomic.Int64 // since when it waits for another request, and may be closed: see Listener.since; 0: it does not
	parking   atomic.Bool  // the next Close parks it instead
	woken     bool         // it was parked, and has something to read
	ends      int64        // when it is too old for another request, as idle
	held      atomic.Int64 // bytes of its body in Listener.bodies
	tcp       *net.TCPConn // under Conn; nil: it is never parked
	read      deadline
	write     deadline
}

// deadline is passed to the system only where something may wait for it, and then up to deadlineSlack late. Most requests
// have arrived when they are read, and most deadlines are moved before they come: so this saves system calls.
type deadline struct{ want, set time.Time }

const deadlineSlack = time.Second

// apply calls set, where the system's deadline is not within the slack.
func (d *deadline) apply(slack time.Duration, set func(time.Time) error) error {
	switch {
	case d.want.IsZero():
		if d.set.IsZero() {
			return nil
		}
		d.set = time.Time{}
	case d.set.Before(d.want) || d.set.After(d.want.Add(slack)):
		d.set = d.want.Add(slack)
	default:
		return nil
	}
	return set(d.set)
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { c.read.want, c.write.want = t, t; return nil }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { c.read.want = t; return nil }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { c.write.want = t; return nil }

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.write.apply(deadlineSlack, c.Conn.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn. It gives at most one request: fasthttp holds an answer back while it has bytes of another
// request. It ends with the *problem.Problem of a head that is refused. What the fast path answers is not given, so
// fasthttp may wait for a connection's first request for ever.
func (c *conn) Read(b []byte) (int, error) {
	if c.handshake != nil && !c.handshake.done {
		if err := c.begin(); err != nil {
			return 0, err
		}
	}
	for {
		if c.heads.refused != nil {
			return 0, c.heads.refused
		}
		between, passed := !c.heads.inRequest, c.heads.passed
		if between {
			c.listener.releaseBody(c)
		}
		n, err := c.next(b, between && passed > 0)
		if c.heads.refused != nil {
			return n, nil
		}
		server := c.listener.server
		if server == nil || err != nil || !between {
			return n, err
		}
		if c.heads.inRequest {
			// The rest of the request gets no more time, whether or not fasthttp saw the requests before.
			if t := server.HTTP.ReadTimeout; t > 0 && passed > 0 {
				c.read.want = time.Now().Add(t)
			}
			return n, nil
		}
		if c.heads.passed != passed+1 {
			return n, nil
		}
		answer := server.fastPath(c, b[:n])
		if answer == nil {
			return n, nil
		}
		if _, err := c.Write(answer); err != nil {
			return 0, err
		}
	}
}

// next gives what heads passes on of the pending bytes, or of those that come next.
func (c *conn) next(b []byte, another bool) (n int, err error) {
	if held := c.pending[:min(len(c.pending), len(b))]; len(held) > 0 {
		n = copy(b, held[:c.heads.pass(held)])
		if c.pending = c.pending[n:]; len(c.pending) == 0 {
			c.pending = nil
		}
		return n, nil
	}
	if !another {
		if err := c.read.apply(deadlineSlack, c.Conn.SetReadDeadline); err != nil {
			return 0, err
		}
	}
	n, err = c.wait(b, another)
	passed := c.heads.pass(b[:n])
	if passed < n && c.heads.refused == nil {
		c.pending, err = bytes.Clone(b[passed:n]), nil // an error comes again
	}
	return passed, err
}

// wait reads. Between two requests (another) it ends with io.EOF when the connection was idle for too long or the gateway
// drains.
func (c *conn) wait(b []byte, another bool) (int, error) {
	if !another {
		return c.Conn.Read(b)
	}
	c.idle.Store(c.listener.since(c.read.want))
	if s := c.listener.server; s != nil && s.draining.Load() { // CloseIdle may have been called before
		return 0, io.EOF
	}
	n, err := c.readOrPark(b)
	if c.parking.Load() {
		return 0, io.EOF
	}
	if !c.wake() || errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, io.EOF
	}
	return n, err
}

// Close implements net.Conn. A connection that is to be parked stays open.
func (c *conn) Close() error {
	if c.parking.CompareAndSwap(true, false) && c.park() {
		return nil
	}
	return c.end()
}

// end closes the connection.
func (c *conn) end() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	if c.handshake != nil {
		c.handshake.closing.Store(true)
	}
	if c.linger.Load() {
		lingerClose(c.Conn)
	}
	c.listener.releaseBody(c)
	c.listener.remove(c)
	return c.Conn.Close()
}
