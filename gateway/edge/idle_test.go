package edge

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"
)

const refusedOrder = "POST /v1/sales/2/orders HTTP/1.1\r\nHost: x\r\n\r\n" // refused: the sale has not begun

// visitor is a client's connection.
type visitor struct {
	net.Conn
	in *bufio.Reader
}

func visit(t *testing.T, l *Listener) visitor {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return visitor{c, bufio.NewReader(c)}
}

// ask sends a request and returns the answer.
func (v visitor) ask(t *testing.T, request string) *fasthttp.Response {
	t.Helper()
	if _, err := io.WriteString(v, request); err != nil {
		t.Fatal(err)
	}
	var resp fasthttp.Response
	if err := resp.Read(v.in); err != nil {
		t.Fatal(err)
	}
	return &resp
}

// ends waits for the end of the connection, before which nothing may come.
func (v visitor) ends(t *testing.T) {
	t.Helper()
	if rest, err := io.ReadAll(v.in); err != nil || len(rest) > 0 {
		t.Errorf("got %q and %v, want the end of the connection", rest, err)
	}
}

// until looks again and again: what it waits for has no event that a test sees.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}

func (l *Listener) waiting() (n int) {
	for _, c := range l.all() {
		if c.idle.Load() != 0 {
			n++
		}
	}
	return n
}

// A newcomer takes the place of the connection that has been idle for longest; when none is idle, it is refused.
func TestTheLongestIdleConnectionGivesWay(t *testing.T) {
	s, _ := refusing(t)
	s.HTTP.ReadTimeout, s.HTTP.IdleTimeout = time.Hour, time.Hour
	l, c, r := connect(t, s, s.HTTPServer())
	visitors := []visitor{{c, r}}
	for len(visitors) < 3 {
		until(t, "idle", func() bool { return l.waiting() == len(visitors) })
		v := visit(t, l)
		v.ask(t, refusedOrder)
		visitors = append(visitors, v)
	}
	until(t, "idle", func() bool { return l.waiting() == 3 })
	visitors[0].ask(t, refusedOrder) // the second is the oldest now
	until(t, "idle", func() bool { return l.waiting() == 3 })
	l.SetBounds(Bounds{Max: 3, PerAddress: 10})
	busy := visit(t, l)
	io.WriteString(busy, refusedOrder[:10]) // it has begun a request, and does not give way
	visitors[1].ends(t)
	io.WriteString(busy, refusedOrder[10:]+refusedOrder[:10])
	var resp fasthttp.Response
	if err := resp.Read(busy.in); err != nil || resp.StatusCode() != 403 {
		t.Fatalf("the newcomer: got %v, %v", resp.StatusCode(), err)
	}
	for _, v := range []visitor{visitors[2], visitors[0]} {
		io.WriteString(visit(t, l), refusedOrder[:10])
		v.ends(t)
	}
	until(t, "none is idle", func() bool { return l.waiting() == 0 })
	if b, err := io.ReadAll(visit(t, l)); err != nil || !strings.Contains(string(b), "too many connections; nothing was done") {
		t.Errorf("nobody is idle: got %q, %v", b, err)
	}
	if n, refused := testutil.ToFloat64(l.idlest.evicted), testutil.ToFloat64(l.refusedAll); n != 3 || refused != 1 {
		t.Errorf("%v gave way and %v were refused, want 3 and 1", n, refused)
	}
}

// A connection that waits for long has no buffers meanwhile, and goes on all the same: it is answered by either path, ends when it
// was idle for too long, and when the gateway drains.
func TestAParkedConnectionGoesOn(t *testing.T) {
	s, _ := refusing(t)
	s.HTTP.ReadTimeout, s.HTTP.IdleTimeout = time.Hour, time.Hour
	server := s.HTTPServer()
	l, c, r := connect(t, s, server)
	v := visitor{c, r}
	for _, request := range []string{refusedOrder, "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n", refusedOrder + refusedOrder} {
		until(t, "parked", func() bool { return server.GetOpenConnectionsCount() == 0 && l.waiting() == 1 })
		if got := v.ask(t, request).StatusCode(); got != 403 && got != 200 {
			t.Errorf("%q: got %d", request, got)
		}
	}
	var resp fasthttp.Response
	if err := resp.Read(v.in); err != nil || resp.StatusCode() != 403 {
		t.Errorf("the second of two requests at once: got %d, %v", resp.StatusCode(), err)
	}
	until(t, "parked", func() bool { return server.GetOpenConnectionsCount() == 0 && l.waiting() == 1 })
	s.Drain()
	l.CloseIdle()
	v.ends(t)

	s, _ = refusing(t)
	s.HTTP.ReadTimeout, s.HTTP.IdleTimeout = time.Hour, 3*parkAfter
	_, c, r = connect(t, s, s.HTTPServer())
	visitor{c, r}.ends(t)
}

// Bodies that are to come are counted until they are answered; one more than fits is refused before it is read.
func TestBodiesInFlightAreBounded(t *testing.T) {
	s, _ := refusing(t)
	s.HTTP = HTTPConfig{ReadTimeout: time.Hour, IdleTimeout: time.Hour, MaxBody: 3000, MaxHeader: 4096}
	l, c, r := connect(t, s, s.HTTPServer())
	l.SetBounds(Bounds{Max: 10, PerAddress: 10, BodyMemory: 5000})
	first, head := visitor{c, r}, "POST /v1/cart/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n"
	io.WriteString(first, head+"\r\n")
	until(t, "counted", func() bool { return l.bodies.Load() == 3000 })
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		v := visit(t, l)
		if resp := v.ask(t, head+expect+"\r\n"); resp.StatusCode() != 503 || !strings.Contains(string(resp.Body()), `"OVERLOADED"`) || len(resp.Header.Peek("Retry-After")) == 0 {
			t.Errorf("one too many: got %s", resp)
		}
		v.ends(t)
	}
	if got := visit(t, l).ask(t, strings.Replace(head, "3000", "1000", 1)+"\r\n"+strings.Repeat("x", 1000)).StatusCode(); got == 503 {
		t.Error("a small body was refused")
	}
	if got := first.ask(t, strings.Repeat("x", 3000)).StatusCode(); got == 503 {
		t.Error("the first body was refused")
	}
	until(t, "given back", func() bool { return l.bodies.Load() == 0 })
	io.WriteString(first, head+"\r\n")
	until(t, "counted", func() bool { return l.bodies.Load() == 3000 })
	first.Close()
	until(t, "given back by a connection that ended", func() bool { return l.bodies.Load() == 0 })
}

// A connection's last answer says so, by either path, and the connection ends after it; what was asked before is answered.
func TestConnectionsEndByAgeAndRequests(t *testing.T) {
	slow := "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, request := range []string{refusedOrder, slow} {
		s, _ := refusing(t)
		s.HTTP.ReadTimeout, s.HTTP.IdleTimeout = time.Hour, time.Hour
		set := *s.settings.Load()
		set.MaxRequests = 3
		s.SetSettings(set)
		l, c, r := connect(t, s, s.HTTPServer()) // the first
		v := visitor{c, r}
		if v.ask(t, request).ConnectionClose() {
			t.Errorf("%q: the second of 3 is the last", request)
		}
		if !v.ask(t, request).ConnectionClose() {
			t.Errorf("%q: the third of 3 is not the last", request)
		}
		v.ends(t)

		set.MaxRequests, set.MaxAge = 0, time.Hour
		s.SetSettings(set)
		v = visit(t, l)
		if v.ask(t, request).ConnectionClose() {
			t.Errorf("%q: a young connection ends", request)
		}
		now := s.Now
		s.Now = func() time.Time { return now().Add(50 * time.Minute) }
		if v.ask(t, request).ConnectionClose() {
			t.Errorf("%q: a connection ends more than a tenth too soon", request)
		}
		s.Now = func() time.Time { return now().Add(time.Hour) }
		if !v.ask(t, request).ConnectionClose() {
			t.Errorf("%q: an old connection goes on", request)
		}
		v.ends(t)
	}
}
