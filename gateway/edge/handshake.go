package edge

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/problem"
)

// Transport is what a connection begins with before HTTP: a PROXY header, then TLS.
type Transport struct {
	TLS *tls.Config // nil: none
	// MaxHandshakes is how many TLS handshakes are computed at once. One more waits for its turn, as long as a request may take
	// to be read. A handshake that waits for its client holds no turn.
	MaxHandshakes int
	// ProxyProtocol: each connection begins with a PROXY header of a trusted proxy. Others are closed.
	ProxyProtocol bool
}

// SetTransport changes what new connections begin with.
func (l *Listener) SetTransport(t Transport) {
	next := &transport{Transport: t}
	if now := l.transport.Load(); now != nil && now.MaxHandshakes == t.MaxHandshakes {
		next.turns = now.turns
	} else {
		next.turns = make(chan struct{}, max(1, t.MaxHandshakes))
	}
	l.transport.Store(next)
}

// transport is a Transport in force. Each element of turns is a handshake that is being computed.
type transport struct {
	Transport
	turns chan struct{}
}

// handshake is a connection below TLS, or that with a PROXY header. It belongs to one conn. The conn's own goroutine takes what
// comes before HTTP at its first Read, so that Accept never waits for it.
type handshake struct {
	net.Conn
	tls      *tls.Conn     // nil: none
	proxied  bool          // a PROXY header comes first
	done     bool          // HTTP may be read
	early    []byte        // came behind the PROXY header
	turns    chan struct{} // while TLS begins: a turn is taken while the client is not waited for
	holding  bool          // a turn
	deadline time.Time
	closing  atomic.Bool // see Write
	metrics  *handshakeMetrics
}

// expect puts what t says below c, before HTTP.
func (t *transport) expect(c *conn) {
	if t == nil || t.TLS == nil && !t.ProxyProtocol {
		return
	}
	h := &handshake{Conn: c.Conn, proxied: t.ProxyProtocol, metrics: &c.listener.handshakes}
	c.Conn, c.handshake = h, h
	if t.TLS != nil {
		h.turns = t.turns
		h.tls = tls.Server(h, t.TLS)
		c.Conn = h.tls
	}
}

// Read implements net.Conn.
func (h *handshake) Read(b []byte) (int, error) {
	if len(h.early) > 0 {
		n := copy(b, h.early)
		if h.early = h.early[n:]; len(h.early) == 0 {
			h.early = nil
		}
		return n, nil
	}
	if h.turns == nil {
		return h.Conn.Read(b)
	}
	h.release()
	n, err := h.Conn.Read(b)
	if err == nil {
		err = h.takeTurn()
	}
	return n, err
}

// Write implements net.Conn. Once the connection is being closed it takes what the system takes at once: TLS says good-bye to
// clients that do not read, and nothing waits for those.
func (h *handshake) Write(b []byte) (int, error) {
	if h.closing.Load() {
		return writeNow(h.Conn, b)
	}
	return h.Conn.Write(b)
}

func (h *handshake) takeTurn() error {
	select {
	case h.turns <- struct{}{}:
		h.holding = true
		return nil
	default:
	}
	h.metrics.waiting.Add(1)
	defer h.metrics.waiting.Add(-1)
	late := time.NewTimer(time.Until(h.deadline))
	defer late.Stop()
	select {
	case h.turns <- struct{}{}:
		h.holding = true
		return nil
	case <-late.C:
		return os.ErrDeadlineExceeded
	}
}

func (h *handshake) release() {
	if h.holding {
		h.holding = false
		<-h.turns
	}
}

// secure makes the TLS handshake.
func (h *handshake) secure() error {
	err := h.tls.Handshake()
	h.release()
	h.turns = nil
	switch {
	case err != nil:
		h.metrics.failed.Inc()
	case h.tls.ConnectionState().DidResume:
		h.metrics.resumed.Inc()
	default:
		h.metrics.full.Inc()
	}
	return err
}

// begin takes what the connection begins with before HTTP, within the time for one request. io.EOF ends the connection without
// another word.
func (c *conn) begin() error {
	h, within := c.handshake, c.listener.readTimeout()
	h.done = true
	h.deadline = time.Now().Add(within)
	h.Conn.SetDeadline(h.deadline)
	var over []byte // the answer of a client that is over a bound
	if h.proxied {
		source, rest, err := network.ReadProxyHeader(h.Conn)
		if err != nil {
			h.metrics.countHeader(err)
			return io.EOF
		}
		h.early = rest
		if source.IsValid() && !c.listener.place(c, source) {
			over = tooManyAddr
		}
	}
	if h.tls != nil {
		if err := h.secure(); err != nil {
			c.answerPlain(err)
			return io.EOF
		}
	}
	h.Conn.SetDeadline(time.Time{})
	if over != nil {
		c.SetWriteDeadline(time.Now().Add(refuseFor))
		c.Write(over)
		c.linger.Store(true)
		return io.EOF
	}
	c.read.want = time.Now().Add(within) // for the first request
	return nil
}

var needsTLS = wholeResponse(problem.New(problem.BadRequest, "this port speaks https only"))

// answerPlain tells a client that sent HTTP where a TLS handshake was awaited.
func (c *conn) answerPlain(err error) {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) || record.Conn == nil {
		return
	}
	for _, method := range []string{"GET ", "HEAD ", "POST ", "OPTIONS "} {
		if bytes.HasPrefix([]byte(method), record.RecordHeader[:min(len(method), len(record.RecordHeader))]) {
			c.handshake.Conn.SetDeadline(time.Now().Add(refuseFor))
			c.handshake.Conn.Write(needsTLS)
			c.linger.Store(true)
		}
	}
}

// place counts a connection for the address that the PROXY header names, and reports whether that is within the bound.
func (l *Listener) place(c *conn, source netip.Addr) bool {
	b := l.bounds.Load()
	c.addr = source
	if b.Exempt.Contains(source) || b.Trusted.Contains(source) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.open[c]; !open { // it was closed meanwhile
		return true
	}
	key := l.key(source)
	if l.byAddr[key] >= b.PerAddress {
		l.refusedAddr.Inc()
		return false
	}
	c.key, c.counted = key, true
	l.byAddr[key]++
	return true
}

// MaxRefusing is the bound on the connections over a bound whose handshake is made only to tell them so. One more is closed at once.
const MaxRefusing = 64

// refuseSecurely tells a connection that is over a bound so, after its handshake, if there are few of them.
func (l *Listener) refuseSecurely(c *conn, response []byte) {
	l.mu.Lock()
	few := l.refusing < MaxRefusing
	if few {
		l.refusing++
		l.closing[c.Conn] = struct{}{}
	}
	l.mu.Unlock()
	if !few {
		c.handshake.Conn.Close()
		return
	}
	l.closers.Go(func() {
		if c.begin() == nil {
			c.SetWriteDeadline(time.Now().Add(refuseFor))
			c.Write(response)
			c.linger.Store(true)
		}
		c.handshake.closing.Store(true)
		if c.linger.Load() {
			lingerClose(c.Conn)
		}
		l.mu.Lock()
		delete(l.closing, c.Conn)
		l.refusing--
		l.mu.Unlock()
		c.Conn.Close()
	})
}

// key is what an address is counted by.
func (l *Listener) key(a netip.Addr) [16]byte {
	if l.server == nil {
		return network.Key(a, network.DefaultPrefix)
	}
	return l.server.key(a)
}

// readTimeout is the time that one request has to arrive, and so what comes before HTTP.
func (l *Listener) readTimeout() time.Duration {
	if l.server == nil {
		return time.Minute
	}
	return cmp.Or(l.server.HTTP.ReadTimeout, time.Minute)
}

// handshakeMetrics counts what connections begin with.
type handshakeMetrics struct {
	full, resumed, failed            prometheus.Counter
	badHeader, lateHeader, untrusted prometheus.Counter
	waiting                          atomic.Int64
}

func newHandshakeMetrics(m *handshakeMetrics, reg prometheus.Registerer) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_tls_handshakes_total", Help: "TLS handshakes by result."}, []string{"result"})
	m.full, m.resumed, m.failed = v.WithLabelValues("full"), v.WithLabelValues("resumed"), v.WithLabelValues("failed")
	p := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_proxy_headers_refused_total", Help: "Connections closed for want of a PROXY header of a trusted proxy, by reason."}, []string{"reason"})
	m.badHeader, m.lateHeader, m.untrusted = p.WithLabelValues("malformed"), p.WithLabelValues("incomplete"), p.WithLabelValues("untrusted")
	reg.MustRegister(v, p, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_tls_handshakes_waiting", Help: "TLS handshakes that wait for their turn."},
		func() float64 { return float64(m.waiting.Load()) }))
}

func (m *handshakeMetrics) countHeader(err error) {
	if errors.Is(err, network.ErrProxyHeader) {
		m.badHeader.Inc()
	} else {
		m.lateHeader.Inc()
	}
}
