package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/ports"
	"floodgate.internal/shared/signing"
)

// script is a backend that does with each connection what it is told: it reads one request and answers or does not.
type script struct {
	net.Listener
	mu    sync.Mutex // guards what follows
	reads int        // requests that were read
	wg    sync.WaitGroup
}

// side is a backend's side of a connection, and the request that was read from it.
type side struct {
	net.Conn
	head *fasthttp.RequestHeader
}

func (c *side) nonce() string { return string(c.head.Peek(signing.HeaderNonce)) }

// say answers the request.
func (c *side) say(body string) { io.WriteString(c, answer(c.nonce(), body)) }

func answer(nonce, body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nFloodgate-Nonce: %s\r\nContent-Length: %d\r\n\r\n%s", nonce, len(body), body)
}

// serve handles connections by act, which is given the number of the request and the connection, and says whether to go on.
func serve(t *testing.T, act func(n int, c *side) bool) *script {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{Listener: ln}
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					c.SetReadDeadline(time.Now().Add(time.Minute))
					head := &fasthttp.RequestHeader{}
					if head.Read(r) != nil {
						return
					}
					s.mu.Lock()
					s.reads++
					n := s.reads
					s.mu.Unlock()
					if !act(n, &side{c, head}) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); s.wg.Wait() })
	return s
}

func (s *script) read() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func pool(t *testing.T, timeout time.Duration, backends ...string) *Pool {
	p := New(Config{Backends: backends, Key: signing.Key{ID: "k", Secret: "0123456789abcdef0123456789abcdef"}, Timeout: timeout, MaxInFlight: 8, MaxPerSale: 8, MaxWaiting: 8},
		&clock.Clock{}, prometheus.NewRegistry())
	t.Cleanup(p.Close)
	return p
}

func do(p *Pool, method string) (string, error) {
	var resp fasthttp.Response
	err := p.Do(&Request{Method: method, Target: "/x", UID: "7"}, &resp)
	return string(resp.Body()), err
}

// deadAddr is an address where nobody listens.
func deadAddr(t *testing.T) string {
	nobody, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", nobody[0])
}

func TestWhatIsKnownOfALostRequest(t *testing.T) {
	hang := make(chan struct{})
	for _, c := range []struct {
		name  string
		act   func(n int, c *side) bool
		want  error
		reads map[string]int // by method: a POST is sent once
	}{
		{"cut before the answer", func(int, *side) bool { return false }, ErrUnknown, map[string]int{"POST": 1, "GET": 1}},
		{"cut in the status line", func(_ int, c *side) bool { io.WriteString(c, "HTTP/1."); return false }, ErrUnknown, map[string]int{"POST": 1, "GET": 1}},
		{"cut in the body", func(_ int, c *side) bool {
			io.WriteString(c, "HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\nhalf")
			return false
		}, ErrUnknown, map[string]int{"POST": 1, "GET": 1}},
		{"no answer", func(int, *side) bool { <-hang; return false }, ErrUnknown, map[string]int{"POST": 1, "GET": 1}},
		{"rubbish", func(_ int, c *side) bool { io.WriteString(c, "rubbish\r\n\r\n"); return false }, ErrUnknown, map[string]int{"POST": 1, "GET": 1}},
		{"an answer without end", func(_ int, c *side) bool {
			io.WriteString(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", maxResponse+1))
			return false
		}, ErrUnknown, map[string]int{"POST": 1, "GET": 1}},
	} {
		for method, reads := range c.reads {
			s := serve(t, c.act)
			_, err := do(pool(t, 200*time.Millisecond, s.Addr().String()), method)
			if !errors.Is(err, c.want) || s.read() != reads {
				t.Errorf("%s, %s: got %v after %d sent, want %v after %d", c.name, method, err, s.read(), c.want, reads)
			}
		}
	}
	close(hang)
	if _, err := do(pool(t, time.Second, deadAddr(t)), "POST"); !errors.Is(err, ErrNotSent) {
		t.Errorf("nobody listens: got %v", err)
	}
}

func TestASecondBackend(t *testing.T) {
	good := func() *script {
		return serve(t, func(_ int, c *side) bool { c.say("ok"); return true })
	}
	cut := serve(t, func(int, *side) bool { return false })
	// Nothing was sent to the one that is not there, so even a POST goes to the other.
	g := good()
	p := pool(t, time.Second, deadAddr(t), g.Addr().String())
	for range 20 {
		if body, err := do(p, "POST"); err != nil || body != "ok" {
			t.Fatalf("got %q, %v", body, err)
		}
	}
	if lost := p.Down(); len(lost) != 1 {
		t.Errorf("got %v lost, want the one that is not there", lost)
	}
	// A GET may be asked twice, a POST that was sent may not.
	g = good()
	p = pool(t, time.Second, cut.Addr().String(), g.Addr().String())
	for range 20 {
		if body, err := do(p, "GET"); err != nil || body != "ok" {
			t.Fatalf("GET: got %q, %v", body, err)
		}
	}
	before := cut.read()
	p = pool(t, time.Second, cut.Addr().String(), good().Addr().String())
	unknown := 0
	for range 40 {
		if _, err := do(p, "POST"); errors.Is(err, ErrUnknown) {
			unknown++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if unknown != cut.read()-before || unknown < ejectAfter || unknown > ejectAfter+2 {
		t.Errorf("%d unknown for %d sent: want each told, and the backend passed over after %d", unknown, cut.read()-before, ejectAfter)
	}
}

func TestIdleConnectionThatTheBackendClosed(t *testing.T) {
	closed := make(chan struct{}, 100)
	s := serve(t, func(n int, c *side) bool { // answers once a connection, and closes it without a word
		c.say("ok")
		c.Close()
		closed <- struct{}{}
		return false
	})
	p := pool(t, time.Second, s.Addr().String())
	for i := range 10 {
		if body, err := do(p, "POST"); err != nil || body != "ok" {
			t.Errorf("request %d: got %q, %v", i, body, err)
		}
		<-closed // the end has been sent before the next request is
	}
	if s.read() != 10 {
		t.Errorf("%d were read, want 10", s.read())
	}
}

func TestBounds(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 100)
	s := serve(t, func(_ int, c *side) bool {
		entered <- struct{}{}
		<-release
		c.say("ok")
		return true
	})
	p := pool(t, 5*time.Second, s.Addr().String())
	var wg sync.WaitGroup
	ask := func(wait time.Duration) {
		wg.Go(func() {
			var resp fasthttp.Response
			if err := p.Do(&Request{Method: "GET", Target: "/x", Wait: wait}, &resp); err != nil {
				t.Error(err)
			}
		})
		<-entered
	}
	for range 8 {
		ask(0)
		ask(time.Second)
	}
	if _, err := do(p, "POST"); !errors.Is(err, ErrBusy) {
		t.Errorf("a ninth: got %v", err)
	}
	if p.CanWait() || p.InFlight() != 16 {
		t.Errorf("can wait %v, %d in flight", p.CanWait(), p.InFlight())
	}
	p.SetConfig(Config{Backends: []string{s.Addr().String()}, Key: signing.Key{ID: "k", Secret: "0123456789abcdef0123456789abcdef"}, Timeout: time.Second, MaxInFlight: 4, MaxPerSale: 4, MaxWaiting: 4})
	if p.InFlight() != 16 {
		t.Errorf("a reload lost the count: %d", p.InFlight())
	}
	close(release)
	wg.Wait()
	if p.InFlight() != 0 {
		t.Errorf("%d in flight afterwards", p.InFlight())
	}
}

func TestCloseEndsWhatIsInFlight(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{})
	s := serve(t, func(_ int, c *side) bool { close(entered); <-release; return false })
	p := pool(t, time.Minute, s.Addr().String())
	got := make(chan error)
	go func() { _, err := do(p, "POST"); got <- err }()
	<-entered
	p.Close()
	if err := <-got; !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	if _, err := do(p, "POST"); !errors.Is(err, ErrNotSent) {
		t.Errorf("after Close: got %v", err)
	}
	close(release)
}
