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
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
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

// varying is what two answers to the same request may differ in: the second, also that in which there is a token, and the jitter.
var varying = regexp.MustCompile(`((?:Date|Retry-After): |;t=)[^\r]*\r\n`)

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

// counted is what s has counted: its counters, and the requests of each user and address.
func counted(t *testing.T, s *Server, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if m.Counter != nil {
				n[fmt.Sprint(f.GetName(), m.Label)] = m.Counter.GetValue()
			}
		}
	}
	_, uids, addrs := s.Top(10)
	for _, c := range append(uids, addrs...) {
		n["requests of "+c.Name], n["refused of "+c.Name] = float64(c.Requests), float64(c.Refused)
	}
	return n
}

func withOrigins(set *Settings) { set.CORS = NewCORS([]string{"https://shop.example"}, time.Minute) }

// The fast path's answer is the slow path's, byte for byte, and it takes what it should and nothing else.
func TestTheFastPathAnswersAsTheSlowPath(t *testing.T) {
	reg := prometheus.NewRegistry()
	s, tokens := refusingIn(t, reg)
	now := time.Now()
	s.Now = func() time.Time { return now }
	for id := range int64(10) { // somebody's order has just probed each sale
		s.Gate.Probe(s.Gate.Order(id, now), now)
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
		{"user limited", order("6", auth, ""), 1, nil},
		{"user limited, with a key and a body", order("6", auth+"Idempotency-Key: k\r\nContent-Type: application/json; charset=utf-8\r\n", `{"quantity":2}`), 1, nil},
		{"user limited, a category", order("6", auth+"Content-Type: Application/JSON\r\n", ` {"category":"red"} `), 1, nil},
		{"user limited, another spelling", order("6", "authorization:  bEARER   "+tokens["7"]+"  \r\n", ""), 1, nil},
		{"user limited, a cookie of somebody else", order("6", auth+"Cookie: floodgate_session="+tokens["8"]+"\r\n", ""), 1, nil},
		{"user limited, an id of the client's", order("6", auth+"X-Request-Id: mine-1234\r\n", ""), 1, nil},
		{"user limited, three times", order("6", auth, "") + order("6", auth, "") + order("6", auth, ""), 3, nil},
		{"user limited, behind a proxy", order("6", auth+"X-Forwarded-For: 198.51.100.7\r\n", ""), 1, func(set *Settings) {
			set.Trusted = networks(t, "127.0.0.1/32")
			set.IPUsers = limit.NewRule("ip_users", 1000, time.Now(), limit.Law{Rate: 1, Burst: 1000})
		}},
		{"user limited, all for longer", order("6", auth, ""), 1, func(set *Settings) {
			set.Global = limit.NewRule("global", 0, time.Now(), limit.Law{Rate: 0.00001, Burst: 1})
		}},
		{"user limited, a page of the list", order("6", auth+"origin:https://shop.example \r\n", ""), 0, withOrigins},
		{"user limited, a page of another site", order("6", auth+"Origin: https://shop.example.\r\n", ""), 1, withOrigins},
		{"by cookie", order("6", "Sec-Fetch-Site: same-origin\r\nCookie: floodgate_session="+tokens["7"]+"\r\n", ""), 0, nil},
		{"no token, an open sale", order("6", "", ""), 0, nil},
		{"another scheme", order("6", strings.Replace(auth, "Bearer", "Basic", 1), ""), 0, nil},
		{"a wrong token", order("6", strings.Replace(auth, "\r\n", "x\r\n", 1), ""), 0, nil},
		{"two tokens", order("6", auth+auth, ""), 0, nil},
		{"an empty key", order("6", auth+"Idempotency-Key: \r\n", ""), 0, nil},
		{"a key with a space", order("6", auth+"Idempotency-Key: a b\r\n", ""), 0, nil},
		{"two keys", order("6", auth+"Idempotency-Key: a\r\nIdempotency-Key: b\r\n", ""), 0, nil},
		{"a body of no type", order("6", auth, "{}"), 0, nil},
		{"a form", order("6", auth+"Content-Type: application/x-www-form-urlencoded\r\n", "{}"), 0, nil},
		{"more than the sale's limit", order("6", auth+"Content-Type: application/json\r\n", `{"quantity":3}`), 0, nil},
		{"no JSON", order("6", auth+"Content-Type: application/json\r\n", `{`), 0, nil},
		{"a user with tokens", order("6", "Authorization: Bearer "+tokens["8"]+"\r\n", ""), 0, nil},
		{"a user in shadow", order("6", auth, ""), 0, func(set *Settings) {
			set.Order = limit.NewRule("order", 1000, time.Now(), limit.Law{Rate: 0.0001, Burst: 1, Shadow: true})
		}},
		{"a banned user", order("6", auth, ""), 0, func(set *Settings) { set.BannedUsers = map[string]struct{}{"7": {}} }},
		{"a user who is not eligible", order("6", auth, ""), 0, func(set *Settings) { set.EligibleUsers = map[string]struct{}{"8": {}} }},
		{"an exempt user", order("6", auth, ""), 0, func(set *Settings) { set.ExemptUsers = map[string]struct{}{"7": {}, "8": {}} }},
		{"an address without a token", order("6", auth+"X-Forwarded-For: 127.0.0.7\r\n", ""), 0, func(set *Settings) {
			set.Trusted = networks(t, "127.0.0.1/32")
		}},
		{"user limited, logged", order("6", auth, ""), 0, func(set *Settings) { set.Log = LogSettings{Every: 1, Max: 100} }},
		{"switched off", order("3", auth, ""), 0, func(set *Settings) { set.NoFastPath = true }},
		{"user limited, switched off", order("6", auth, ""), 0, func(set *Settings) { set.NoFastPath = true }},
		{"a page of the list", order("3", "Origin: https://shop.example\r\n", ""), 0, withOrigins},
		{"a page of another site", order("3", "Origin: https://other.example\r\n", ""), 1, withOrigins},
		{"no page, beside a list", order("3", "", ""), 1, withOrigins},
		{"a page without a list", order("3", "Origin: https://shop.example\r\n", ""), 1, nil},
		{"two origins", order("3", "Origin: https://shop.example\r\nOrigin: https://shop.example\r\n", ""), 0, withOrigins},
		{"two at once", order("3", "", "") + order("2", "", ""), 2, nil},
		{"a trailer that no request may have", order("3", "Trailer: Host\r\n", ""), 0, nil},
		{"a trailer", order("3", "trailer: x-other\r\n", ""), 0, nil},
		{"the last one, in capitals", order("3", "Connection: CLOSE\r\n", ""), 0, nil},
		{"the last one, among others", order("3", "Connection: x, Close\r\n", ""), 0, nil},
		{"an empty line before", "\r\n" + order("3", "", ""), 1, nil},
		{"logged", order("3", "", ""), 0, func(set *Settings) { set.Log = LogSettings{Every: 1, Max: 100} }},
		{"a refusal, logged", order("1", "", ""), 0, func(set *Settings) { set.Log = LogSettings{RefusedEvery: 1, Max: 100} }},
		{"user limited, logged as a refusal", order("6", auth, ""), 0, func(set *Settings) { set.Log = LogSettings{RefusedEvery: 1, Max: 100} }},
		{"sold out, among logged refusals", order("3", "", ""), 1, func(set *Settings) { set.Log = LogSettings{RefusedEvery: 1, Max: 100} }},
		{"a refusal, beyond the bound", order("1", "", ""), 1, func(set *Settings) { set.Log = LogSettings{RefusedEvery: 1} }},
		{"paused, logged", order("5", "", ""), 0, func(set *Settings) { set.Log = LogSettings{Max: 100} }},
		{"paused, beyond the bound", order("5", "", ""), 1, func(set *Settings) { set.Log = LogSettings{} }},
		{"a client's trace, and traces are off", order("3", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n", ""), 1, nil},
		{"banned", order("3", "", ""), 0, func(set *Settings) { set.BannedNetworks = networks(t, "127.0.0.1/32") }},
		{"behind a proxy", order("3", "X-Forwarded-For: 198.51.100.7\r\n", ""), 1, func(set *Settings) { set.Trusted = networks(t, "127.0.0.1/32") }},
		{"behind a proxy that speaks RFC 7239", order("3", "Forwarded: for=198.51.100.7;proto=https\r\n", ""), 1, func(set *Settings) { set.Trusted = networks(t, "127.0.0.1/32") }},
		{"behind a proxy, by both fields", order("3", "Forwarded: for=198.51.100.7\r\nX-Forwarded-For: 198.51.100.7\r\n", ""), 0, func(set *Settings) { set.Trusted = networks(t, "127.0.0.1/32") }},
		{"behind a proxy, by fields that differ", order("3", "Forwarded: for=198.51.100.8\r\nX-Forwarded-For: 198.51.100.7\r\n", ""), 0, func(set *Settings) { set.Trusted = networks(t, "127.0.0.1/32") }},
		{"a client that names an address", order("3", "Forwarded: for=198.51.100.8\r\nX-Forwarded-For: 198.51.100.7\r\n", ""), 1, nil},
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
		s.orders.Take("7", s.settings.Load().Order, now) // takes on the rule
		answers(t, s, bytesOf(c.bytes)...)               // remembers the token
		var counts [3]map[string]float64
		count := func(i int) {
			if c.short > 0 { // it takes long
				counts[i] = counted(t, s, reg)
			}
		}
		count(0)
		long, none := answers(t, s, bytesOf(c.bytes)...)
		count(1)
		short, taken := answers(t, s, []byte(c.bytes))
		count(2)
		if none != 0 || taken != c.short {
			t.Errorf("%s: the fast path took %d, and %d of those that came in pieces, want %d and 0", c.name, taken, none, c.short)
		}
		if short == "" || taken > 0 && short != long {
			t.Errorf("%s: got %q, the slow path %q", c.name, short, long)
		}
		for what, n := range counts[2] {
			if byLong, byShort := counts[1][what]-counts[0][what], n-counts[1][what]; byLong != byShort {
				t.Errorf("%s: %s: counted %v, by the slow path %v", c.name, what, byShort, byLong)
			}
		}
		s.SetSettings(before)
	}
	s.Drain()
	if _, taken := answers(t, s, []byte(order("3", "", ""))); taken != 0 {
		t.Error("the fast path takes requests while the gateway ends its connections")
	}
}

// A refusal by the user's buckets costs the address a token on the fast path, too, and the slow path refuses an address without one.
func TestTheFastPathDrawsOnTheAddress(t *testing.T) {
	s, tokens := refusing(t)
	set := *s.settings.Load()
	set.Exempt = network.Set{}
	set.IPUsers = limit.NewRule("ip_users", 1000, time.Now(), limit.Law{Rate: 0.0001, Burst: 2}) // the first request draws on ip
	s.SetSettings(set)
	request := "POST /v1/sales/6/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + tokens["7"] + "\r\n\r\n"
	for i, want := range []struct {
		taken int
		by    string
	}{{0, "one order at a time"}, {1, "one order at a time"}, {1, "one order at a time"}, {0, "too many requests of users at your address"}} {
		got, taken := answers(t, s, []byte(request))
		if taken != want.taken || !strings.Contains(got, want.by) {
			t.Errorf("request %d: the fast path took %d: %q, want %d and %q", i+1, taken, got, want.taken, want.by)
		}
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
	for _, idle := range []time.Duration{time.Millisecond, time.Hour} {
		s, _ := refusing(t)
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

// With the fast path and without it a request has the same answer. One that comes byte by byte never takes it.
func FuzzFastPath(f *testing.F) {
	s, tokens := refusing(f)
	set := *s.settings.Load()
	set.Trusted = networks(f, "127.0.0.1/32")
	set.IP = limit.NewRule("ip", 1, time.Now(), limit.Law{Rate: 1e9, Burst: 1e9})
	withOrigins(&set)
	set.IPUsers = set.IP
	without := set
	without.NoFastPath = true
	for _, token := range tokens {
		if _, err := set.Verifier.Verify([]byte(token)); err != nil { // it is remembered from here on
			f.Fatal(err)
		}
	}
	for _, c := range refusals(tokens) {
		f.Add([]byte(c.request))
	}
	for _, c := range streams {
		f.Add([]byte(c.bytes))
	}
	for _, origin := range []string{"https://shop.example", "https://other.example", "null"} {
		f.Add([]byte("POST /v1/sales/3/orders HTTP/1.1\r\nHost: x\r\nOrigin: " + origin + "\r\n\r\n"))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		for id := range int64(10) {
			s.Gate.Probe(s.Gate.Order(id, time.Now()), time.Now())
		}
		s.SetSettings(without)
		long, none := answers(t, s, request)
		if none != 0 {
			t.Fatalf("%q: the fast path took what it must leave while it is off", request)
		}
		s.SetSettings(set)
		if _, none := answers(t, s, bytesOf(string(request))...); none != 0 {
			t.Fatalf("%q: the fast path took what came byte by byte", request)
		}
		if short, taken := answers(t, s, request); taken > 0 && short != long {
			t.Fatalf("%q: the fast path answers %q, the slow path %q", request, short, long)
		}
	})
}
