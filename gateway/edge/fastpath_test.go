package edge

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/limit"
)

// pipe is a connection over which pieces come, one a Read, and then its end; it keeps what is written.
type pipe struct {
	net.Conn
	pieces  [][]byte
	written bytes.Buffer
}

func (p *pipe) Read(b []byte) (int, error) {
	if len(p.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.pieces[0])
	if p.pieces[0] = p.pieces[0][n:]; len(p.pieces[0]) == 0 {
		p.pieces = p.pieces[1:]
	}
	return n, nil
}

func (p *pipe) Write(b []byte) (int, error)      { return p.written.Write(b) }
func (p *pipe) Close() error                     { return nil }
func (p *pipe) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (p *pipe) LocalAddr() net.Addr              { return p.RemoteAddr() }
func (p *pipe) SetDeadline(time.Time) error      { return nil }
func (p *pipe) SetReadDeadline(time.Time) error  { return nil }
func (p *pipe) SetWriteDeadline(time.Time) error { return nil }

type onePipe struct{ c net.Conn }

func (l onePipe) Accept() (net.Conn, error) { return l.c, nil }
func (l onePipe) Addr() net.Addr            { return l.c.LocalAddr() }
func (l onePipe) Close() error              { return nil }

// varying is what two answers to the same request may differ in: the second, and the jitter.
var varying = regexp.MustCompile(`(Date|Retry-After): [^\r]*\r\n`)

// answers is what s writes to pieces, and how many of its heads the fast path took.
func answers(t testing.TB, s *Server, pieces ...[]byte) (written string, short int) {
	t.Helper()
	s.idCount.Store(0)
	p := &pipe{pieces: pieces}
	c, err := NewListener(onePipe{p}, s, Bounds{Max: 1, PerAddress: 1}, prometheus.NewRegistry()).Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.HTTP = HTTPConfig{MaxBody: 1000, MaxHeader: 4096}
	server := s.HTTPServer()
	handle, refuse := server.Handler, server.ErrorHandler
	long := 0
	server.Handler = func(ctx *fasthttp.RequestCtx) { long++; handle(ctx) }
	server.ErrorHandler = func(ctx *fasthttp.RequestCtx, err error) { long++; refuse(ctx, err) }
	_ = server.ServeConn(c) // the end of the connection, or why it was ended: the answer says it
	written = p.written.String()
	return varying.ReplaceAllString(written, "$1\r\n"), strings.Count(written, "\r\nX-Request-Id: ") - long
}

func bytesOf(s string) [][]byte {
	var all [][]byte
	for i := range len(s) {
		all = append(all, []byte{s[i]})
	}
	return all
}

// The fast path's answer is the slow path's, byte for byte, and it takes what it should and nothing else.
func TestTheFastPathAnswersAsTheSlowPath(t *testing.T) {
	s, tokens := refusing(t)
	for id := range int64(10) {
		s.Gate.Probe(s.Gate.Order(id, time.Now()), time.Now())
	}
	order := func(sale, fields, body string) string {
		return "POST /v1/sales/" + sale + "/orders HTTP/1.1\r\nHost: shop.example\r\n" + fields + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	auth := "Authorization: Bearer " + tokens["7"] + "\r\n"
	for _, c := range []struct {
		name   string
		bytes  string
		short  int
		before func(set *Settings)
	}{
		{"unknown", order("99", auth, ""), 1, nil},
		{"no id", order("x", auth, ""), 1, nil},
		{"upcoming", order("1", auth, ""), 1, nil},
		{"ended", order("2", auth, "{}"), 1, nil},
		{"sold out", order("3", auth, `{"quantity":1}`), 1, nil},
		{"sold out, more to come", order("4", auth, ""), 1, nil},
		{"paused", order("5", auth, ""), 1, nil},
		{"no token", order("3", "", ""), 1, nil},
		{"an id of the client's", order("3", "X-Request-Id: mine-1234\r\n", ""), 1, nil},
		{"two ids of the client's", order("3", "X-Request-Id: mine-1234\r\nX-Request-Id: mine-5678\r\n", ""), 1, nil},
		{"a long id of the client's", order("3", "X-Request-Id: "+strings.Repeat("a", 65)+"\r\n", ""), 1, nil},
		{"a query", strings.Replace(order("3", "", ""), "orders ", "orders?a=b ", 1), 1, nil},
		{"keep-alive said", order("3", "Connection: keep-alive\r\n", ""), 1, nil},
		{"the last one", order("3", "Connection: close\r\n", ""), 0, nil},
		{"an old client", strings.Replace(order("3", "", ""), "1.1", "1.0", 1), 0, nil},
		{"expecting", order("3", "Expect: 100-continue\r\n", "{}"), 0, nil},
		{"a tab", order("3", "A: b\tc\r\n", ""), 0, nil},
		{"a control character", order("3", "A: b\x01c\r\n", ""), 0, nil},
		{"a carriage return", order("3", "A: b\rc\r\n", ""), 0, nil},
		{"no host", strings.Replace(order("3", "", ""), "Host: shop.example\r\n", "", 1), 0, nil},
		{"another method", strings.Replace(order("3", "", ""), "POST", "PUT", 1), 0, nil},
		{"a body too large", order("3", "", strings.Repeat(" ", 1001)), 0, nil},
		{"an encoded path", strings.Replace(order("3", "", ""), "/orders", "/%6frders", 1), 0, nil},
		{"a whole target", strings.Replace(order("3", "", ""), "/v1", "http://shop.example/v1", 1), 0, nil},
		{"an open sale, user limited", order("6", auth, ""), 0, nil},
		{"two at once", order("3", "", "") + order("2", "", ""), 2, nil},
		{"a trailer that no request may have", order("3", "Trailer: Host\r\n", ""), 0, nil},
		{"a trailer", order("3", "trailer: x-other\r\n", ""), 0, nil},
		{"the last one, in capitals", order("3", "Connection: CLOSE\r\n", ""), 0, nil},
		{"the last one, among others", order("3", "Connection: x, Close\r\n", ""), 0, nil},
		{"an empty line before", "\r\n" + order("3", "", ""), 1, nil},
		{"logged", order("3", "", ""), 0, func(set *Settings) { set.LogEvery = 1 }},
		{"banned", order("3", "", ""), 0, func(set *Settings) { set.BannedNetworks = networks(t, "127.0.0.1/32") }},
		{"behind a proxy", order("3", "X-Forwarded-For: 198.51.100.7\r\n", ""), 1, func(set *Settings) { set.Trusted = networks(t, "127.0.0.1/32") }},
		{"banned behind a proxy", order("3", "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 198.51.100.7\r\n", ""), 0, func(set *Settings) {
			set.Trusted, set.BannedNetworks = networks(t, "127.0.0.1/32"), networks(t, "198.51.100.0/24")
		}},
	} {
		before := *s.settings.Load()
		if c.before != nil {
			set := before
			c.before(&set)
			s.SetSettings(set)
		}
		long, none := answers(t, s, bytesOf(c.bytes)...)
		refused, asked := testutil.ToFloat64(s.metrics.refusals[ruleGate]), testutil.ToFloat64(s.metrics.requests[orderRoute.label][resultOf("SOLD_OUT")])
		short, taken := answers(t, s, []byte(c.bytes))
		if none != 0 || taken != c.short {
			t.Errorf("%s: the fast path took %d, and %d of those that came in pieces, want %d and 0", c.name, taken, none, c.short)
		}
		if short == "" || taken > 0 && short != long {
			t.Errorf("%s: got %q, the slow path %q", c.name, short, long)
		}
		if strings.Contains(short, "SOLD_OUT") && (testutil.ToFloat64(s.metrics.refusals[ruleGate]) == refused || testutil.ToFloat64(s.metrics.requests[orderRoute.label][resultOf("SOLD_OUT")]) == asked) {
			t.Errorf("%s: it was not counted", c.name)
		}
		s.SetSettings(before)
	}
	s.Drain()
	if _, taken := answers(t, s, []byte(order("3", "", ""))); taken != 0 {
		t.Error("the fast path takes requests while the gateway ends its connections")
	}
}

// One connection after the other, by the fast path and by the slow path, in every order.
func TestTheFastPathKeepsTheOrderOfAnswers(t *testing.T) {
	s, _ := refusing(t)
	short := "POST /v1/sales/2/orders HTTP/1.1\r\nHost: x\r\nX-Request-Id: shorter-%d\r\n\r\n"
	long := "GET /v1/sales/99 HTTP/1.1\r\nHost: x\r\nX-Request-Id: longer-%d\r\n\r\n"
	for _, c := range [][]string{{short, long, short}, {long, short, long}, {short + long, short}, {long + "\r\n", short}, {long + short[:20], short[20:], short}} {
		var pieces [][]byte
		n, all := 0, ""
		for _, piece := range c {
			for strings.Contains(piece, "%d") {
				n++
				piece = strings.Replace(piece, "%d", fmt.Sprint(n), 1)
			}
			pieces = append(pieces, []byte(piece))
			all += piece
		}
		written, _ := answers(t, s, pieces...)
		ids := regexp.MustCompile(`X-Request-Id: (shorter|longer)-(\d+)`)
		asked, answered := fmt.Sprint(ids.FindAllString(all, -1)), fmt.Sprint(ids.FindAllString(written, -1))
		if asked != answered {
			t.Errorf("%q: answers to %s", c, answered)
		}
	}
}

// connect serves over TCP, until the test ends, and returns a connection on which the fast path has answered.
func connect(t *testing.T, s *Server, server *fasthttp.Server) (*Listener, net.Conn, *bufio.Reader) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(inner, s, Bounds{Max: 10, PerAddress: 10}, prometheus.NewRegistry())
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		l.CloseAll()
		if err := errors.Join(server.Shutdown(), <-done); err != nil {
			t.Error(err)
		}
	})
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, "POST /v1/sales/2/orders HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	var resp fasthttp.Response
	if err := resp.Read(r); err != nil || resp.StatusCode() != 403 {
		t.Fatalf("got %v, %v", resp.StatusCode(), err)
	}
	return l, c, r
}

// Connections on which only the fast path answered end as others do: without a word when they are idle for too long, and at
// once when the gateway ends.
func TestAnIdleConnectionEnds(t *testing.T) {
	s, _ := refusing(t)
	for _, idle := range []time.Duration{time.Millisecond, time.Hour} {
		s.HTTP.ReadTimeout, s.HTTP.IdleTimeout = time.Hour, idle
		l, _, r := connect(t, s, s.HTTPServer())
		if idle == time.Hour {
			s.Drain()
			l.CloseIdle()
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("idle for %v: got %q and %v, want the end of the connection", idle, rest, err)
		}
	}
}

// Who sends slowly has the time of a read for a request, also after one that the fast path answered.
func TestASlowRequestAfterAFastOneEnds(t *testing.T) {
	s, _ := refusing(t)
	s.HTTP.ReadTimeout, s.HTTP.IdleTimeout = time.Hour, time.Hour
	server := s.HTTPServer()
	s.HTTP.ReadTimeout = time.Millisecond // so that the first request, for which fasthttp sets the time, has enough
	_, c, r := connect(t, s, server)
	if _, err := io.WriteString(c, "POST /v1"); err != nil {
		t.Fatal(err)
	}
	var resp fasthttp.Response
	if err := resp.Read(r); err != nil || resp.StatusCode() != 408 {
		t.Errorf("got %v, %v, want 408", resp.StatusCode(), err)
	}
}

// A request in one piece, which the fast path may take, is answered as one that comes byte by byte, which it never takes.
func FuzzFastPath(f *testing.F) {
	s, tokens := refusing(f)
	set := *s.settings.Load()
	set.Trusted = networks(f, "127.0.0.1/32")
	set.IP = limit.NewRule("ip", 1, time.Now(), limit.Law{Rate: 1e9, Burst: 1e9})
	s.SetSettings(set)
	for _, c := range refusals(tokens) {
		f.Add([]byte(c.request))
	}
	for _, c := range streams {
		f.Add([]byte(c.bytes))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		for id := range int64(10) {
			s.Gate.Probe(s.Gate.Order(id, time.Now()), time.Now())
		}
		long, none := answers(t, s, bytesOf(string(request))...)
		if none != 0 {
			t.Fatalf("%q: the fast path took what came byte by byte", request)
		}
		if short, taken := answers(t, s, request); taken > 0 && short != long {
			t.Fatalf("%q: the fast path answers %q, the slow path %q", request, short, long)
		}
	})
}
