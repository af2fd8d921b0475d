package netfault

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// peer is a server that keeps what it is told, and what it is told of each connection's end.
type peer struct {
	net.Listener
	conns chan *net.TCPConn
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{Listener: ln, conns: make(chan *net.TCPConn, 100)}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.conns <- c.(*net.TCPConn)
		}
	})
	t.Cleanup(func() { ln.Close(); serving.Wait() })
	return p
}

func link(t *testing.T) (*Link, *peer) {
	p := newPeer(t)
	return New(t, p.Addr().String()), p
}

const bound = 30 * time.Second // of every wait: a slow machine is no fault

func dial(t *testing.T, l *Link) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	must(t, c.SetDeadline(time.Now().Add(bound)))
	return c.(*net.TCPConn)
}

// accept is the server's end of the next connection.
func (p *peer) accept(t *testing.T) *net.TCPConn {
	t.Helper()
	select {
	case c := <-p.conns:
		t.Cleanup(func() { c.Close() })
		must(t, c.SetDeadline(time.Now().Add(bound)))
		return c
	case <-time.After(bound):
		t.Fatal("no connection reached the server")
		return nil
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	must(t, err)
}

func want(t *testing.T, c net.Conn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
		t.Fatalf("got %q, %v; want %q", b, err, text)
	}
}

// closed reads to the end, which must be one and no time-out, and returns what came before.
func closed(t *testing.T, c net.Conn) string {
	t.Helper()
	b, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("it was never closed; got %q", b)
	}
	return string(b)
}

func TestItPassesEverythingOn(t *testing.T) {
	l, p := link(t)
	c := dial(t, l)
	s := p.accept(t)
	up, down := bytes.Repeat([]byte("request "), 1<<17), bytes.Repeat([]byte("answer  "), 1<<18)
	var sending sync.WaitGroup
	sending.Go(func() { c.Write(up); c.CloseWrite() })
	sending.Go(func() { s.Write(down); s.CloseWrite() })
	if got := closed(t, s); got != string(up) {
		t.Errorf("the server got %d bytes, want the %d that were sent", len(got), len(up))
	}
	if got := closed(t, c); got != string(down) {
		t.Errorf("the client got %d bytes, want the %d that were sent", len(got), len(down))
	}
	sending.Wait()
}

func TestAnEndIsPassedOn(t *testing.T) {
	l, p := link(t)
	c := dial(t, l)
	s := p.accept(t)
	c.Close()
	if got := closed(t, s); got != "" {
		t.Errorf("got %q", got)
	}
	c = dial(t, l)
	s = p.accept(t)
	must(t, s.SetLinger(0))
	s.Close()
	if got := closed(t, c); got != "" {
		t.Errorf("got %q", got)
	}
	p.Close()
	for range 10 {
		if c, err := net.Dial("tcp", l.Addr()); err == nil { // else it was reset as quickly as that
			must(t, c.SetDeadline(time.Now().Add(bound)))
			if got := closed(t, c); got != "" {
				t.Errorf("without a server: got %q", got)
			}
			c.Close()
		}
	}
}

func TestLatency(t *testing.T) {
	const late = 30 * time.Millisecond
	l, p := link(t)
	c := dial(t, l)
	s := p.accept(t)
	l.Delay(late)
	began := time.Now()
	send(t, c, "ping")
	want(t, s, "ping")
	if took := time.Since(began); took < late {
		t.Errorf("up took %v, want at least %v", took, late)
	}
	send(t, s, "pong")
	want(t, c, "pong")
	if took := time.Since(began); took < 2*late {
		t.Errorf("both ways took %v, want at least %v", took, 2*late)
	}
}

func TestWhatIsHeldBackArrivesLater(t *testing.T) {
	for _, d := range []Direction{Up, Down} {
		t.Run(d.String(), func(t *testing.T) {
			l, p := link(t)
			c := dial(t, l)
			s := p.accept(t)
			from, to := c, s
			if d == Down {
				from, to = s, c
			}
			l.Hold(d)
			send(t, from, "first ")
			must(t, from.CloseWrite())
			var healed atomic.Bool
			came := make(chan string, 1)
			go func() {
				b := make([]byte, 6)
				if n, err := io.ReadFull(to, b); !healed.Load() {
					came <- "too early: " + string(b[:n])
				} else if err != nil {
					came <- err.Error()
				} else {
					came <- string(b)
				}
			}()
			send(t, to, "the other way") // which goes on
			want(t, from, "the other way")
			healed.Store(true)
			l.Heal()
			if got := <-came; got != "first " {
				t.Errorf("got %q", got)
			}
			if got := closed(t, to); got != "" {
				t.Errorf("then got %q", got)
			}
		})
	}
}

func TestStrandedConnections(t *testing.T) {
	l, p := link(t)
	before := dial(t, l)
	s := p.accept(t)
	l.Strand()
	during := dial(t, l)
	send(t, before, "lost")
	send(t, during, "lost")
	for l.Open() < 2 {
		runtime.Gosched() // until it is taken
	}
	l.Heal()
	after := dial(t, l) // the next that the server sees: the one before never reached it
	s2 := p.accept(t)
	send(t, after, "ping")
	want(t, s2, "ping")
	send(t, s2, "pong")
	want(t, after, "pong")
	l.Cut() // a stranded one does not hear of that either
	if got := closed(t, after); got != "" {
		t.Errorf("got %q", got)
	}
	before.Close()
	past := time.Now().Add(50 * time.Millisecond)
	for who, c := range map[string]net.Conn{"the server": s, "the client": during} {
		must(t, c.SetDeadline(past))
		if b, err := io.ReadAll(c); !errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
			t.Errorf("%s heard %q, %v; want silence", who, b, err)
		}
	}
	if n := l.Open(); n != 2 {
		t.Errorf("%d connections are open, want the two that are stranded", n)
	}
}

func TestStrandAfterARequest(t *testing.T) {
	l, p := link(t)
	done := l.StrandAfter("COMMIT")
	c := dial(t, l)
	s := p.accept(t)
	send(t, c, "BEGIN")
	want(t, s, "BEGIN")
	send(t, s, "OK")
	want(t, c, "OK")
	send(t, c, "COMMIT")
	want(t, s, "COMMIT")
	<-done
	send(t, s, "OK")
	must(t, s.CloseWrite())
	other := dial(t, l)
	so := p.accept(t)
	send(t, other, "COMMIT") // once
	want(t, so, "COMMIT")
	send(t, so, "OK")
	want(t, other, "OK")
	must(t, c.SetDeadline(time.Now()))
	if b, err := io.ReadAll(c); !errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
		t.Errorf("got %q, %v; want silence", b, err)
	}
}

func TestLostAnswer(t *testing.T) {
	l, p := link(t)
	lost := l.LoseAnswerTo("COMMIT")
	c := dial(t, l)
	s := p.accept(t)
	send(t, c, "BEGIN")
	want(t, s, "BEGIN")
	send(t, s, "OK")
	want(t, c, "OK")
	send(t, c, "COMMIT")
	want(t, s, "COMMIT") // it got there
	send(t, s, "OK")
	<-lost
	if got := closed(t, c); got != "" {
		t.Errorf("got %q, want no answer", got)
	}
}

func TestCutInTheMiddle(t *testing.T) {
	const most = 1000
	long := string(bytes.Repeat([]byte("x"), 2*most))
	for _, d := range []Direction{Up, Down} {
		t.Run(d.String(), func(t *testing.T) {
			l, p := link(t)
			open := dial(t, l)
			ends := [][2]*net.TCPConn{{open, p.accept(t)}}
			l.CutWithin(d, most)
			fresh := dial(t, l)
			ends = append(ends, [2]*net.TCPConn{fresh, p.accept(t)})
			for _, e := range ends {
				from, to := e[0], e[1]
				if d == Down {
					from, to = to, from
				}
				send(t, to, long) // the other way is not counted
				want(t, from, long)
				_, _ = io.WriteString(from, long) // may be told of the cut
				if got := closed(t, to); len(got) < 1 || len(got) > most {
					t.Errorf("got %d bytes, want between 1 and %d", len(got), most)
				}
				closed(t, from)
			}
			l.Heal()
			c := dial(t, l)
			s := p.accept(t)
			send(t, c, long)
			want(t, s, long)
			send(t, s, long)
			want(t, c, long)
		})
	}
}

func TestRefuse(t *testing.T) {
	l, p := link(t)
	open := dial(t, l)
	s := p.accept(t)
	for range 3 {
		l.Refuse()
		if _, err := net.Dial("tcp", l.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("got %v, want it to be refused", err)
		}
		send(t, open, "ping")
		want(t, s, "ping")
		l.Heal()
		c := dial(t, l)
		send(t, c, "ping")
		want(t, p.accept(t), "ping")
	}
	l.Cut()
	closed(t, open)
}

func TestAnotherTarget(t *testing.T) {
	l, p := link(t)
	q := newPeer(t)
	open := dial(t, l)
	s := p.accept(t)
	l.Target(q.Addr().String())
	c := dial(t, l)
	send(t, c, "ping")
	want(t, q.accept(t), "ping")
	send(t, open, "ping")
	want(t, s, "ping")
}

func TestWrap(t *testing.T) {
	l, p := link(t)
	l.Wrap(func(client io.Writer) io.Writer { return upper{client} })
	c := dial(t, l)
	s := p.accept(t)
	send(t, c, "ping")
	want(t, s, "ping")
	send(t, s, "pong")
	want(t, c, "PONG")
}

type upper struct{ to io.Writer }

func (u upper) Write(b []byte) (int, error) {
	_, err := u.to.Write(bytes.ToUpper(b))
	return len(b), err
}

// TestItEndsWithTheTest: whatever state the connections are in, nothing of a link is left.
func TestItEndsWithTheTest(t *testing.T) {
	p := newPeer(t)
	var client, refused *Link
	t.Run("a test", func(t *testing.T) {
		client, refused = New(t, p.Addr().String()), New(t, p.Addr().String())
		refused.Refuse()
		client.Hold(Up)
		held := dial(t, client)
		send(t, held, "never heard")
		p.accept(t)
		client.Strand()
		dial(t, client)
	})
	for _, l := range []*Link{client, refused} {
		if n := l.Open(); n != 0 {
			t.Errorf("%d connections are open", n)
		}
		if _, err := net.Dial("tcp", l.Addr()); err == nil {
			t.Error("it still listens")
		}
	}
}
