package edge

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/problem"
)

// Listener bounds the connections, in all and for each address. A connection beyond a bound is answered 503 and closed.
type Listener struct {
	net.Listener
	server    *Server // whose fast path its connections take; nil: none
	bounds    atomic.Pointer[Bounds]
	transport atomic.Pointer[transport]

	mu       sync.Mutex // guards what follows
	open     map[*conn]struct{}
	byAddr   map[[16]byte]int      // open connections by network.Key, of addresses that are not exempt
	closing  map[net.Conn]struct{} // refused connections whose clients still read the answer, at most MaxClosing
	refusing int                   // of closing, those that are refused after a handshake, at most MaxRefusing

	closers sync.WaitGroup // one for each of closing, and for each parked connection

	epoch  time.Time    // conn.idle and conn.ends are nanoseconds since then
	bodies atomic.Int64 // bytes of the bodies in flight
	idlest idlest

	refusedAll, refusedAddr, failed prometheus.Counter
	handshakes                      handshakeMetrics
}

// Connections is how many are open.
func (l *Listener) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Bounds are how many connections may be open, in all and from one address. Exempt and Trusted are free of the second
// bound: a trusted proxy's address stands for many clients. Closing is how many refused ones may be left to read their answer,
// BodyMemory how many bytes bodies in flight may have; 0: MaxClosing, and any number of bytes.
type Bounds struct {
	Max, PerAddress int
	Closing         int
	BodyMemory      int64
	Exempt, Trusted network.Set
}

// With is b with the networks of the settings.
func (b Bounds) With(s Settings) Bounds {
	b.Exempt, b.Trusted = s.Exempt, s.Trusted
	return b
}

// NewListener wraps inner. Connections take the fast path of s, none if s is nil.
func NewListener(inner net.Listener, s *Server, b Bounds, reg prometheus.Registerer) *Listener {
	l := &Listener{Listener: inner, server: s, open: map[*conn]struct{}{}, byAddr: map[[16]byte]int{}, closing: map[net.Conn]struct{}{}, epoch: time.Now()}
	l.SetBounds(b)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_connections_refused_total", Help: "Connections refused by bound."}, []string{"bound"})
	l.refusedAll, l.refusedAddr = v.WithLabelValues("all"), v.WithLabelValues("address")
	l.failed = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_accept_failures_total", Help: "Connections that could not be accepted for want of file descriptors or memory, and were left in the system's queue."})
	newHandshakeMetrics(&l.handshakes, reg)
	l.registerBounds(reg)
	reg.MustRegister(v, l.failed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_connections", Help: "Open connections."}, func() float64 {
		return float64(l.Connections())
	}))
	return l
}

// SetBounds changes the bounds for new connections. Open ones stay, and are counted as they were.
func (l *Listener) SetBounds(b Bounds) { l.bounds.Store(&b) }

// acceptPause is the pause after an accept that failed for want of resources. Connections wait in the system's queue.
const acceptPause = 20 * time.Millisecond

// outOfResources reports whether the system has no file descriptor or memory left. That passes, but an error of Accept
// would end fasthttp's server.
func outOfResources(err error) bool {
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
		if outOfResources(err) {
			l.failed.Inc()
			time.Sleep(acceptPause)
			continue
		}
		if err != nil {
			return nil, err
		}
		if c := l.admit(inner); c != nil {
			return c, nil
		}
	}
}

// admit counts a new connection, or refuses it and returns nil.
func (l *Listener) admit(inner net.Conn) *conn { return l.admitBy(inner, l.transport.Load()) }

// admitBy is admit of a connection that begins as t says.
func (l *Listener) admitBy(inner net.Conn, t *transport) *conn {
	var addr netip.Addr
	if t, ok := inner.RemoteAddr().(*net.TCPAddr); ok {
		addr = network.Unmap(t.AddrPort().Addr())
	}
	c := &conn{Conn: inner, listener: l, addr: addr, key: l.key(addr)}
	b := l.bounds.Load()
	if t != nil && t.ProxyProtocol && !b.Trusted.Contains(addr) {
		l.handshakes.untrusted.Inc()
		inner.Close()
		return nil
	}
	t.expect(c)
	if l.server != nil {
		c.heads.maxBody = int64(l.server.HTTP.MaxBody)
	}
	c.counted = !b.Exempt.Contains(addr) && !b.Trusted.Contains(addr)
	l.start(c, inner)
	l.mu.Lock()
	if len(l.open) >= b.Max {
		l.mu.Unlock()
		l.giveWay()
		l.mu.Lock()
	}
	switch {
	case len(l.open) >= b.Max:
		l.mu.Unlock()
		l.refusedAll.Inc()
		l.refuse(c, tooManyAll)
		return nil
	case c.counted && l.byAddr[c.key] >= b.PerAddress:
		l.mu.Unlock()
		l.refusedAddr.Inc()
		l.refuse(c, tooManyAddr)
		return nil
	}
	l.open[c] = struct{}{}
	if c.counted {
		l.byAddr[c.key]++
	}
	l.mu.Unlock()
	return c
}

// remove ends the count of a connection that is being closed.
func (l *Listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
	if c.counted {
		if l.byAddr[c.key]--; l.byAddr[c.key] <= 0 {
			delete(l.byAddr, c.key)
		}
	}
}

func (l *Listener) all() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.open))
}

// CloseIdle closes the connections that wait for another request. It is called once, after Server.Drain.
func (l *Listener) CloseIdle() {
	for _, c := range l.all() {
		c.endIdle(c.idle.Load())
	}
}

// CloseAll closes every connection and waits for what the listener has started. The listener accepts no more.
func (l *Listener) CloseAll() {
	for _, c := range l.all() {
		c.linger.Store(false)
		c.end()
	}
	l.mu.Lock()
	for c := range l.closing {
		c.Close()
	}
	l.mu.Unlock()
	l.closers.Wait()
}

var (
	tooManyAll  = wholeResponse(problem.New(problem.Overloaded, "too many connections; nothing was done"))
	tooManyAddr = wholeResponse(problem.New(problem.Overloaded, "too many connections from your address; nothing was done"))
)

func wholeResponse(p *problem.Problem) []byte {
	body, after := p.JSON("-"), ""
	if p.Code == problem.Overloaded {
		after = "\r\nRetry-After: 2"
	}
	head := "HTTP/1.1 " + itoa(p.Status) + " " + fasthttp.StatusMessage(p.Status) + "\r\nContent-Type: " + problem.ContentType +
		"\r\nCache-Control: no-store" + after + "\r\nX-Request-Id: -\r\nConnection: close\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n"
	return append([]byte(head), body...)
}

// refuseFor is how long the answer to a connection over a bound may take to write.
const refuseFor = 50 * time.Millisecond

// MaxClosing is the bound on the refused connections that are closed by lingerClose, unless Bounds has a lower one. One more is closed at once.
const MaxClosing = 1024

// refuse answers a new connection and closes it. It does not delay the next Accept: the send buffer of a new connection
// is empty, and lingerClose runs beside it.
func (l *Listener) refuse(refused *conn, response []byte) {
	c := refused.Conn
	if refused.handshake != nil {
		l.refuseSecurely(refused, response)
		return
	}
	c.SetWriteDeadline(time.Now().Add(refuseFor))
	c.Write(response)
	l.mu.Lock()
	linger := len(l.closing) < cmp.Or(l.bounds.Load().Closing, MaxClosing)
	if linger {
		l.closing[c] = struct{}{}
	}
	l.mu.Unlock()
	if !linger {
		c.Close()
		return
	}
	l.closers.Go(func() {
		lingerClose(c)
		l.mu.Lock()
		delete(l.closing, c)
		l.mu.Unlock()
		c.Close()
	})
}

// What lingerClose still reads, at most.
const (
	lingerFor   = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// lingerClose ends what is sent to c and reads for a while what still comes. Closing at once would reset the connection,
// and the client might never see the answer. The caller closes c.
func lingerClose(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		t.CloseWrite()
		c = t.NetConn()
	}
	if h, ok := c.(*handshake); ok {
		c = h.Conn
	}
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil && t.SetReadDeadline(time.Now().Add(lingerFor)) == nil {
		io.CopyN(io.Discard, struct{ io.Reader }{t}, lingerBytes)
	}
}
