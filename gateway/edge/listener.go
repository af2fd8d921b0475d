package edge

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/problem"
)

// Listener bounds the connections, in all and for each address, and keeps them, so that they can be closed when the time
// for draining is over. A connection beyond a bound is told so and closed. CloseAll ends what it has begun.
type Listener struct {
	net.Listener
	server *Server // answers what it can before the HTTP parser; nil for none
	bounds atomic.Pointer[Bounds]

	mu    sync.Mutex // guards what follows
	open  map[*conn]struct{}
	count map[[16]byte]int      // by network.Key, of addresses that are not exempt
	told  map[net.Conn]struct{} // those beyond a bound, at most maxTold, until they have read so

	telling sync.WaitGroup

	refusedAll, refusedAddr, failed prometheus.Counter
}

// Bounds are how many connections may be open, in all and from one address. A trusted proxy's address stands for many, so it
// is exempt from the second, too.
type Bounds struct {
	Max, PerAddress int
	Exempt, Trusted network.Set
}

// NewListener wraps inner, for a server that answers what it can before the HTTP parser; nil for none.
func NewListener(inner net.Listener, s *Server, b Bounds, reg prometheus.Registerer) *Listener {
	l := &Listener{Listener: inner, server: s, open: map[*conn]struct{}{}, count: map[[16]byte]int{}, told: map[net.Conn]struct{}{}}
	l.SetBounds(b)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_connections_refused_total", Help: "Connections refused by bound."}, []string{"bound"})
	l.refusedAll, l.refusedAddr = v.WithLabelValues("all"), v.WithLabelValues("address")
	l.failed = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_accept_failures_total", Help: "Connections that could not be accepted for want of file descriptors or memory, and were left in the system's queue."})
	reg.MustRegister(v, l.failed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_connections", Help: "Open connections."}, func() float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(len(l.open))
	}))
	return l
}

// SetBounds changes what holds for connections to come. Those that are open stay, and count as they did.
func (l *Listener) SetBounds(b Bounds) { l.bounds.Store(&b) }

// acceptPause is how long the listener rests when the system has nothing left to accept a connection with: those that wait
// stay in the system's queue.
const acceptPause = 20 * time.Millisecond

// scarce reports whether the system ran out of what a connection needs. It passes; to fasthttp it would be the end.
func scarce(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if scarce(err) {
			l.failed.Inc()
			time.Sleep(acceptPause)
			continue
		}
		if err != nil {
			return nil, err
		}
		var addr netip.Addr
		if t, ok := inner.RemoteAddr().(*net.TCPAddr); ok {
			addr = network.Plain(t.AddrPort().Addr())
		}
		c := &conn{Conn: inner, listener: l, addr: addr, key: network.Key(addr)}
		b := l.bounds.Load()
		if l.server != nil {
			c.screen.most = int64(l.server.limits.MaxBody)
		}
		c.counted = !b.Exempt.Contains(addr) && !b.Trusted.Contains(addr)
		l.mu.Lock()
		switch {
		case len(l.open) >= b.Max:
			l.mu.Unlock()
			l.refusedAll.Inc()
			l.refuse(inner, tooManyAll)
			continue
		case c.counted && l.count[c.key] >= b.PerAddress:
			l.mu.Unlock()
			l.refusedAddr.Inc()
			l.refuse(inner, tooManyAddr)
			continue
		}
		l.open[c] = struct{}{}
		if c.counted {
			l.count[c.key]++
		}
		l.mu.Unlock()
		return c, nil
	}
}

func (l *Listener) all() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.open))
}

// CloseAll closes every open connection. The listener accepts no more.
func (l *Listener) CloseAll() {
	for _, c := range l.all() {
		c.linger.Store(false)
		c.Close()
	}
	l.mu.Lock()
	for c := range l.told {
		c.Close()
	}
	l.mu.Unlock()
	l.telling.Wait()
}

var (
	tooManyAll  = wholeResponse(problem.New(problem.Overloaded, "too many connections; nothing was done"))
	tooManyAddr = wholeResponse(problem.New(problem.Overloaded, "too many connections from your address; nothing was done"))
)

func wholeResponse(p *problem.Problem) []byte {
	body := p.JSON("-")
	head := "HTTP/1.1 503 Service Unavailable\r\nContent-Type: " + problem.ContentType +
		"\r\nCache-Control: no-store\r\nRetry-After: 2\r\nX-Request-Id: -\r\nConnection: close\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n"
	return append([]byte(head), body...)
}

// maxTold bounds the connections beyond a bound that are closed gently; one more is closed at once.
const maxTold = 1024

// refuse answers a new connection and closes it. It does not hold up the next Accept: the send buffer of a new connection is
// empty, and what the client sends is read behind it.
func (l *Listener) refuse(c net.Conn, response []byte) {
	c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	c.Write(response)
	l.mu.Lock()
	gently := len(l.told) < maxTold
	if gently {
		l.told[c] = struct{}{}
	}
	l.mu.Unlock()
	if !gently {
		c.Close()
		return
	}
	l.telling.Go(func() {
		hangUp(c)
		l.mu.Lock()
		delete(l.told, c)
		l.mu.Unlock()
		c.Close()
	})
}

// hangUp ends what is sent to c, and reads for a while what still comes: closing at once would reset the connection, and the
// client might never see the answer.
func hangUp(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil && t.SetReadDeadline(time.Now().Add(lingerFor)) == nil {
		io.CopyN(io.Discard, struct{ io.Reader }{t}, lingerBytes)
	}
}

// conn is a client's connection.
type conn struct {
	net.Conn
	listener *Listener
	addr     netip.Addr
	key      [16]byte
	counted  bool
	linger   atomic.Bool
	closed   atomic.Bool
	screen   screen
	rest     []byte      // what came behind the present request
	exchange exchange    // the present one: a connection has one at a time
	chosen   bool        // the present request is to be logged
	idle     atomic.Bool // it waits for another request, and may be closed
	read     deadline
	write    deadline
}

// deadline is one that is known to the system only where something may wait for it, and then up to putOff later than it
// should: most requests are there when they are read, and most deadlines are put off before they come.
type deadline struct{ want, set time.Time }

const putOff = time.Second

// apply has set tell the system, where that is needed.
func (d *deadline) apply(set func(time.Time) error) error {
	switch {
	case d.want.IsZero():
		if d.set.IsZero() {
			return nil
		}
		d.set = time.Time{}
	case d.set.Before(d.want) || d.set.After(d.want.Add(putOff)):
		d.set = d.want.Add(putOff)
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
	if err := c.write.apply(c.Conn.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn. It gives at most one request: fasthttp keeps an answer back while it holds anything of another one.
// It ends with the *problem.Problem of a head that is refused. What a shortcut answers is not read. fasthttp does not know of
// that: to it a connection may wait for its first request for ever.
func (c *conn) Read(b []byte) (int, error) {
	for {
		if c.screen.refused != nil {
			return 0, c.screen.refused
		}
		between, heads := !c.screen.within, c.screen.heads
		n, err := c.next(b, between && heads > 0)
		if c.screen.refused != nil {
			return n, nil
		}
		server := c.listener.server
		if server == nil || err != nil || !between {
			return n, err
		}
		if c.screen.within {
			if t := server.limits.ReadTimeout; t > 0 && heads > 0 { // the rest of it has no more time, whether or not fasthttp saw the requests before
				c.read.want = time.Now().Add(t)
			}
			return n, nil
		}
		if c.screen.heads != heads+1 {
			return n, nil
		}
		answer := server.shortcut(c, b[:n])
		if answer == nil {
			return n, nil
		}
		if _, err := c.Write(answer); err != nil {
			return 0, err
		}
	}
}

// next gives what the screen lets through of what is there already, or comes next.
func (c *conn) next(b []byte, another bool) (n int, err error) {
	if held := c.rest[:min(len(c.rest), len(b))]; len(held) > 0 {
		n = copy(b, held[:c.screen.pass(held)])
		if c.rest = c.rest[n:]; len(c.rest) == 0 {
			c.rest = nil
		}
		return n, nil
	}
	if err := c.read.apply(c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	n, err = c.wait(b, another)
	passed := c.screen.pass(b[:n])
	if passed < n && c.screen.refused == nil {
		c.rest, err = bytes.Clone(b[passed:n]), nil // an error comes again
	}
	return passed, err
}

// wait reads. Where that begins another request it ends with io.EOF for want of one: in time, or before the gateway ends.
func (c *conn) wait(b []byte, another bool) (int, error) {
	if !another {
		return c.Conn.Read(b)
	}
	c.idle.Store(true)
	if s := c.listener.server; s != nil && s.draining.Load() { // CloseIdle may have been there before
		return 0, io.EOF
	}
	n, err := c.Conn.Read(b)
	if !c.idle.CompareAndSwap(true, false) || errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, io.EOF
	}
	return n, err
}

// CloseIdle closes the connections that wait for another request. It is called once, when the server drains.
func (l *Listener) CloseIdle() {
	for _, c := range l.all() {
		if c.idle.CompareAndSwap(true, false) {
			c.Close()
		}
	}
}

// lingerFor and lingerBytes bound what is still read from a client that was refused in the middle of sending.
const (
	lingerFor   = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	if c.linger.Load() {
		hangUp(c.Conn)
	}
	l := c.listener
	l.mu.Lock()
	delete(l.open, c)
	if c.counted {
		if l.count[c.key]--; l.count[c.key] <= 0 {
			delete(l.count, c.key)
		}
	}
	l.mu.Unlock()
	return c.Conn.Close()
}
