// Package netfault is a TCP proxy for tests that makes a link go wrong: latency, a direction in which nothing arrives any
// more, half-open connections, cuts in the middle of a frame, refused connections, and lost answers.
//
// It works on the bytes of real connections over loopback, as far as that can be told from a bad network: what is held back is
// not forgotten but comes late, as TCP sends it again; of a stranded connection neither end ever hears again, not even that
// the other has closed it.
package netfault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Direction is one of the two of a link.
type Direction int

// The directions.
const (
	Up   Direction = iota // from the client to the server
	Down                  // from the server to the client
)

func (d Direction) String() string { return [...]string{"up", "down"}[d] }

const (
	chunk = 32 << 10 // bytes that are passed on at once, at most
	// backlog is how many chunks a connection keeps of each direction, while they are late or held back. Then it reads no more,
	// and whoever sends is held up by his own full buffer.
	backlog = 64
)

// Link is a proxy in front of one server. Its methods may be called at any time, by any goroutine; they act on the
// connections that are open and on those to come, as each says.
type Link struct {
	listener *net.TCPListener
	running  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	target  string
	wrap    func(io.Writer) io.Writer
	conns   map[*conn]bool
	closed  bool
	refuses bool
	strands bool // connections to come
	delay   time.Duration
	held    [2]bool
	most    [2]int        // bytes after which a connection to come is cut, at most; 0: it is not
	trap    *trap         // for the next request that holds a marker; nil for none
	between *interlude    // nil for none
	changed chan struct{} // closed, and made anew, when any of this changes
}

// interlude is what happens while an answer is on its way.
type interlude struct {
	marker []byte // of the request
	do     func()
}

// trap waits for one request.
type trap struct {
	marker []byte
	strand bool          // the connection; else its answer is swallowed, and it is closed
	sprung chan struct{} // closed when that was done
}

// New listens on a loopback port, in front of a server at host:port, until the test ends.
func New(t testing.TB, target string) *Link {
	t.Helper()
	l := &Link{listener: listen(t), target: target, conns: map[*conn]bool{}, changed: make(chan struct{})}
	l.running.Go(l.serve)
	t.Cleanup(l.close)
	return l
}

// listen takes a free port, by its number: one that the kernel had chosen would be given up by Refuse. The numbers lie above
// those from which Linux takes the ports of outgoing connections.
func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	const first, last = 61000, 65535
	var err error
	for range 100 {
		var ln *net.TCPListener
		ln, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: first + rand.IntN(last-first+1)})
		if err == nil {
			return ln
		}
	}
	t.Fatalf("no free port on 127.0.0.1 between %d and %d: %v", first, last, err)
	return nil
}

// Addr is where clients connect to, host:port. It stays the same.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Target is the server of connections to come.
func (l *Link) Target(addr string) { l.set(func() { l.target = addr }) }

// Wrap lets f see, and change, what the server sends: of each connection to come every byte for the client goes through the
// writer that f makes of the client's. A Write may hold any part of any number of messages.
func (l *Link) Wrap(f func(client io.Writer) io.Writer) { l.set(func() { l.wrap = f }) }

// Delay makes every byte late by d, in both directions, however many follow each other.
func (l *Link) Delay(d time.Duration) { l.set(func() { l.delay = d }) }

// Hold lets nothing through in a direction, not even the end of a connection, until Heal: then it all arrives.
func (l *Link) Hold(d Direction) { l.set(func() { l.held[d] = true }) }

// Strand makes every open connection half-open for good, and so each that is made until Heal, which reaches no server:
// nothing comes through in either direction any more, and neither end is told when the other closes. Heal does not change that.
func (l *Link) Strand() {
	l.set(func() {
		l.strands = true
		for c := range l.conns {
			c.stranded = true
		}
	})
}

// CutWithin resets each connection, those open and those made until Heal, in the middle of what is sent: when so many more
// bytes have gone in a direction, a number that is drawn for each between 1 and most.
func (l *Link) CutWithin(d Direction, most int) {
	l.set(func() {
		l.most[d] = most
		for c := range l.conns {
			c.left[d] = 1 + rand.IntN(most)
		}
	})
}

// Cut resets every open connection, but stranded ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if !c.stranded {
			c.reset()
		}
	}
}

// Refuse refuses connections, as a port on which nobody listens, until Heal. Those that are open stay.
func (l *Link) Refuse() {
	l.set(func() {
		if !l.refuses {
			l.refuses = true
			l.control(func(fd int) error { return syscall.Shutdown(fd, syscall.SHUT_RD) })
		}
	})
}

// Heal ends every fault. What was held back arrives; what was stranded stays so.
func (l *Link) Heal() {
	l.set(func() {
		l.strands, l.delay, l.held, l.most, l.trap = false, 0, [2]bool{}, [2]int{}, nil
		for c := range l.conns {
			c.left = [2]int{}
		}
		if l.refuses {
			l.refuses = false
			l.control(func(fd int) error { return syscall.Listen(fd, 128) })
		}
	})
}

// LoseAnswerTo lets the next request that holds the marker through, waits for the server's answer, and closes the connection
// instead of passing that on. Once; the channel is closed when it was done. The marker must come in one piece.
func (l *Link) LoseAnswerTo(marker string) <-chan struct{} { return l.lay(marker, false) }

// StrandAfter lets the next request that holds the marker through, and strands its connection. Once; the channel is closed
// when it was done. The marker must come in one piece.
func (l *Link) StrandAfter(marker string) <-chan struct{} { return l.lay(marker, true) }

// BeforeAnswerTo calls do whenever the server answers a request that holds the marker, before the answer is passed on; nil for
// nothing more. The marker must come in one piece.
func (l *Link) BeforeAnswerTo(marker string, do func()) {
	l.set(func() {
		l.between = nil
		if do != nil {
			l.between = &interlude{[]byte(marker), do}
		}
	})
}

func (l *Link) lay(marker string, strand bool) <-chan struct{} {
	t := &trap{marker: []byte(marker), strand: strand, sprung: make(chan struct{})}
	l.set(func() { l.trap = t })
	return t.sprung
}

// Open is how many connections there are, stranded ones included.
func (l *Link) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

func (l *Link) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// control makes a system call on the listening socket, which stays bound throughout: its port is given to nobody else.
func (l *Link) control(f func(fd int) error) {
	raw, err := l.listener.SyscallConn()
	if err == nil {
		var failed error
		if err = raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err == nil {
			err = failed
		}
	}
	if err != nil && !l.closed {
		panic(fmt.Sprintf("BUG: netfault: the listener on %s: %v", l.Addr(), err))
	}
}

func (l *Link) close() {
	l.listener.Close()
	l.set(func() {
		l.closed = true
		for c := range l.conns {
			c.reset()
		}
	})
	l.running.Wait()
}

func (l *Link) serve() {
	for {
		client, err := l.listener.AcceptTCP()
		if err == nil {
			l.take(client)
			continue
		}
		l.mu.Lock()
		refuses, closed, changed := l.refuses, l.closed, l.changed
		l.mu.Unlock()
		if closed || errors.Is(err, net.ErrClosed) {
			return
		}
		if refuses { // the socket does not listen: Accept has nothing to wait for
			<-changed
		}
	}
}

// take brings a new connection to the server.
func (l *Link) take(client *net.TCPConn) {
	l.mu.Lock()
	target, wrap := l.target, l.wrap
	c := &conn{link: l, ends: [2]*net.TCPConn{Up: client}, stranded: l.strands}
	for d, most := range l.most {
		if most > 0 {
			c.left[d] = 1 + rand.IntN(most)
		}
	}
	if l.closed {
		client.Close()
		l.mu.Unlock()
		return
	}
	l.conns[c] = true
	stranded := c.stranded
	l.mu.Unlock()
	if stranded {
		return // its client's bytes lie in the socket until the link is closed
	}
	l.running.Go(func() {
		server, err := net.Dial("tcp", target)
		l.mu.Lock()
		if err != nil || c.over {
			c.reset()
			l.mu.Unlock()
			if err == nil {
				server.Close()
			}
			return
		}
		c.ends[Down] = server.(*net.TCPConn)
		l.mu.Unlock()
		var down io.Writer = client
		if wrap != nil {
			down = wrap(client)
		}
		var both sync.WaitGroup
		both.Go(func() { c.pass(Up, server) })
		both.Go(func() { c.pass(Down, down) })
		both.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		c.close(false) // both have ended, and the sockets' buffers still go their way
	})
}

// conn is one proxied connection. The link's mu guards it.
type conn struct {
	link     *Link
	ends     [2]*net.TCPConn // by the direction in which it sends: the client, and the server, nil until it is reached
	stranded bool
	swallow  *trap      // the next of what the server sends, and close; nil: not
	over     bool       // the sockets are closed
	left     [2]int     // bytes until it is cut; 0: it is not
	between  *interlude // before the next answer; nil for nothing
}

// reset closes both sockets at once; what is under way is dropped, and both ends are told.
func (c *conn) reset() { c.close(true) }

func (c *conn) close(reset bool) {
	if c.over {
		return
	}
	c.over = true
	for _, end := range c.ends {
		if end != nil {
			if reset {
				_ = end.SetLinger(0) // it is closed either way
			}
			end.Close()
		}
	}
	delete(c.link.conns, c)
	close(c.link.changed) // wakes a writer that waits
	c.link.changed = make(chan struct{})
}

// piece is what was read at once, or how the reading ended.
type piece struct {
	bytes []byte
	due   time.Time // when it may arrive; zero: at once
	err   error
}

// pass carries one direction, until its sender ends it or the connection is over.
func (c *conn) pass(d Direction, to io.Writer) {
	read := make(chan piece, backlog)
	var reading sync.WaitGroup
	reading.Go(func() { c.read(d, read) })
	defer func() {
		for range read { // an ended connection's reader ends, too
		}
		reading.Wait()
	}()
	for p := range read {
		if wait := time.Until(p.due); !p.due.IsZero() && wait > 0 {
			time.Sleep(wait) // the latency itself
		}
		n, cut, ok := c.admit(d, p.bytes)
		if !ok {
			return
		}
		if d == Down && n > 0 {
			c.interlude()
		}
		if n > 0 {
			if _, err := to.Write(p.bytes[:n]); err != nil {
				c.end()
				return
			}
		}
		switch {
		case cut, p.err != nil && !errors.Is(p.err, io.EOF):
			c.end()
			return
		case p.err != nil:
			if c.ends[1-d].CloseWrite() != nil {
				c.end()
			}
			return
		case d == Up:
			c.spring(p.bytes)
		}
	}
}

func (c *conn) read(d Direction, into chan<- piece) {
	defer close(into)
	for {
		b := make([]byte, chunk)
		n, err := c.ends[d].Read(b)
		p := piece{bytes: b[:n], err: err}
		c.link.mu.Lock()
		if c.link.delay > 0 {
			p.due = time.Now().Add(c.link.delay)
		}
		c.link.mu.Unlock()
		into <- p
		if err != nil {
			return
		}
	}
}

// admit waits until b may go on, and says how much of it may; cut: and then the connection ends. It is not ok when that is
// over already.
func (c *conn) admit(d Direction, b []byte) (n int, cut, ok bool) {
	l := c.link
	for {
		l.mu.Lock()
		if c.over {
			l.mu.Unlock()
			return 0, false, false
		}
		if !c.stranded && !l.held[d] {
			break
		}
		changed := l.changed
		l.mu.Unlock()
		<-changed
	}
	defer l.mu.Unlock()
	if d == Up && l.trap != nil && !l.trap.strand && bytes.Contains(b, l.trap.marker) {
		c.swallow, l.trap = l.trap, nil // before it is sent: the answer may be quick
	}
	if d == Up && l.between != nil && bytes.Contains(b, l.between.marker) {
		c.between = l.between
	}
	if d == Down && c.swallow != nil && len(b) > 0 {
		close(c.swallow.sprung)
		return 0, true, true
	}
	if c.left[d] > 0 {
		if c.left[d] <= len(b) {
			return c.left[d], true, true
		}
		c.left[d] -= len(b)
	}
	return len(b), false, true
}

// interlude does what is to be done before the answer that has come goes on.
func (c *conn) interlude() {
	c.link.mu.Lock()
	i := c.between
	c.between = nil
	c.link.mu.Unlock()
	if i != nil {
		i.do()
	}
}

// spring strands the connection over which b was sent, if that is what it waits for.
func (c *conn) spring(b []byte) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trap != nil && l.trap.strand && bytes.Contains(b, l.trap.marker) {
		c.stranded = true
		close(l.trap.sprung)
		l.trap = nil
	}
}

func (c *conn) end() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.reset()
}
