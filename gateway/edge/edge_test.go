package edge

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

func TestPanicIsAnsweredCountedAndSurvived(t *testing.T) {
	reg := prometheus.NewRegistry()
	var log bytes.Buffer
	// Without a gate every request for a sale breaks the handler.
	s := New(Config{Clock: &clock.Clock{}, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now, HTTP: HTTPConfig{MaxBody: 1000, MaxHeader: 4096}},
		Settings{IP: limit.NewRule("ip", 1, time.Now(), limit.Law{Rate: 1, Burst: 1})}, reg)
	ln := fasthttputil.NewInmemoryListener()
	server := s.HTTPServer()
	done := make(chan error)
	go func() { done <- server.Serve(NewListener(ln, s, Bounds{Max: 10, PerAddress: 10}, reg)) }()
	client := &fasthttp.HostClient{Addr: "x", Dial: func(string) (net.Conn, error) { return ln.Dial() }}
	for range 3 {
		req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		req.SetRequestURI("http://x/v1/sales/1/orders")
		req.Header.SetMethod("POST")
		req.Header.Set("Authorization", "Bearer very-secret-token")
		if err := client.Do(req, resp); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode() != 500 || !strings.Contains(string(resp.Body()), `"INTERNAL"`) || len(resp.Header.Peek("X-Request-Id")) == 0 {
			t.Errorf("got %s", resp)
		}
		req.SetRequestURI("http://x/v1/time")
		req.Header.SetMethod("GET")
		if err := client.Do(req, resp); err != nil || resp.StatusCode() != 200 {
			t.Errorf("afterwards: got %s, %v", resp, err)
		}
	}
	metrics, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metrics {
		if m.GetName() == "gateway_panics_total" && m.Metric[0].GetCounter().GetValue() != 3 {
			t.Errorf("%v panics counted, want 3", m.Metric[0].GetCounter().GetValue())
		}
	}
	if strings.Contains(log.String(), "very-secret-token") || !strings.Contains(log.String(), "panic=") {
		t.Errorf("got log %s", &log)
	}
	client.CloseIdleConnections()
	if err := server.Shutdown(); err != nil {
		t.Error(err)
	}
	<-done
}

// A write by cookie comes from a page of this very site: not of another host, port or, where cookies are secure, scheme.
func TestSameOrigin(t *testing.T) {
	for _, c := range []struct {
		header           string
		secure, insecure bool
	}{
		{"Sec-Fetch-Site: same-origin", true, true}, {"Sec-Fetch-Site: same-site", false, false}, {"Sec-Fetch-Site: cross-site", false, false},
		{"Sec-Fetch-Site: none", false, false}, {"Sec-Fetch-Site: Same-Origin", false, false}, {"Sec-Fetch-Site: cross-site\r\nOrigin: https://shop.example", false, false},
		{"Origin: https://shop.example", true, true}, {"Origin: https://SHOP.example", true, true}, {"Origin: http://shop.example", false, true},
		{"Origin: https://shop.example:8443", false, false}, {"Origin: https://shop.example.evil.example", false, false}, {"Origin: https://evil.example", false, false},
		{"Origin: null", false, false}, {"Origin: https://", false, false}, {"Origin: shop.example", false, false}, {"Origin: //shop.example", false, false}, {"X: y", false, false},
	} {
		var ctx fasthttp.RequestCtx
		raw := "POST / HTTP/1.1\r\nHost: shop.example\r\n" + c.header + "\r\n\r\n"
		if err := ctx.Request.Read(bufio.NewReader(strings.NewReader(raw))); err != nil {
			t.Fatal(err)
		}
		for insecure, want := range map[bool]bool{false: c.secure, true: c.insecure} {
			x := exchange{ctx: &ctx, set: &Settings{InsecureCookies: insecure}}
			if got := x.sameOrigin(); got != want {
				t.Errorf("%s, insecure cookies %v: got %v, want %v", c.header, insecure, got, want)
			}
		}
	}
}

// What the shopper's page, its files and what is refused beside them tell a browser not to do.
func TestPageHeaders(t *testing.T) {
	s, _ := refusing(t)
	head := func(path string) *fasthttp.ResponseHeader {
		l := newLine("127.0.0.1:1")
		done := l.serve(t, s)
		l.asked <- "HEAD " + path + " HTTP/1.1\r\nHost: shop.example\r\n\r\n"
		<-l.answer
		var h fasthttp.ResponseHeader
		if err := h.Read(bufio.NewReader(bytes.NewReader(l.last))); err != nil {
			t.Fatal(err)
		}
		close(l.asked)
		<-done
		return &h
	}
	for _, path := range []string{"/", "/sales/1", "/assets/favicon.svg"} {
		h := head(path)
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Permissions-Policy": "camera=()", "Strict-Transport-Security": "max-age=31536000",
		} {
			if got := string(h.Peek(name)); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %s: %q, want %q", path, name, got, want)
			}
		}
		if policy := string(h.Peek("Content-Security-Policy")); strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("%s: got %s", path, policy)
		}
	}
	for _, path := range []string{"/nothing", "/v1/sales/99", "/v1/time"} {
		if h := head(path); string(h.Peek("X-Content-Type-Options")) != "nosniff" || len(h.Peek("Access-Control-Allow-Origin")) > 0 {
			t.Errorf("%s: got %s", path, h)
		}
	}
	set := *s.settings.Load()
	set.InsecureCookies = true
	s.SetSettings(set)
	if h := head("/"); len(h.Peek("Strict-Transport-Security")) > 0 {
		t.Errorf("a site for plain HTTP: got %s", h)
	}
}

// Connections are bounded in all and for each address; who is beyond a bound is told so, and a place is free again when one ends.
func TestConnectionsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(inner, nil, Bounds{Max: 3, PerAddress: 2}, prometheus.NewRegistry())
	accepted := make(chan net.Conn, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	refused := func(want string) {
		t.Helper()
		if b, err := io.ReadAll(dial()); err != nil || !strings.Contains(string(b), "503 Service") || !strings.Contains(string(b), want) {
			t.Errorf("got %q, %v; want %s", b, err, want)
		}
	}
	dial()
	dial()
	first := <-accepted
	second := <-accepted
	refused("too many connections from your address")
	l.SetBounds(Bounds{Max: 3, PerAddress: 2, Exempt: networks(t, "127.0.0.0/8")}) // from here on
	dial()
	<-accepted
	refused("too many connections; nothing was done")
	first.Close()
	second.Close()
	dial()
	<-accepted
	if all, one := testutil.ToFloat64(l.refusedAll), testutil.ToFloat64(l.refusedAddr); all != 1 || one != 1 || len(l.byAddr) != 0 || len(l.open) != 2 {
		t.Errorf("%v refused by the bound of all, %v by an address's; %d addresses counted, %d open", all, one, len(l.byAddr), len(l.open))
	}
	inner.Close()
	<-done
	l.CloseAll()
	if len(l.open) != 0 {
		t.Errorf("%d connections open at the end", len(l.open))
	}
}

// scarceListener has errors before its connections.
type scarceListener struct {
	net.Listener
	errs []error
}

func (l *scarceListener) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	return l.Listener.Accept()
}

// When the process has no file descriptor left, who comes waits in the system's queue: the gateway does not end.
func TestAcceptOutlivesScarcity(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := NewListener(&scarceListener{newLine("127.0.0.1:1"), []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}}, nil, Bounds{Max: 10, PerAddress: 10}, reg)
	if _, err := l.Accept(); err != nil {
		t.Errorf("got %v", err)
	}
	if n := testutil.ToFloat64(l.failed); n != 4 {
		t.Errorf("%v failures counted, want 4", n)
	}
	l = NewListener(&scarceListener{newLine("127.0.0.1:1"), []error{syscall.EBADF}}, nil, Bounds{Max: 10, PerAddress: 10}, prometheus.NewRegistry())
	if _, err := l.Accept(); err == nil {
		t.Error("a listener that is broken: no error")
	}
}

// A path that split takes is canonical, whatever it was made of.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{"/", "/v1/sales", "/v1/../x", "//", "/a/", "/a?b=%2f", "/.", "/..", "/a/.", "/%2e", "*", "http://x/", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, target []byte) {
		path, query, ok := split(target)
		if !ok {
			return
		}
		if p := string(path); p[0] != '/' || strings.Contains(p, "//") || strings.ContainsAny(p, "%\\?#;: ") ||
			strings.Contains(p+"/", "/./") || strings.Contains(p+"/", "/../") {
			t.Errorf("took %q", p)
		}
		if bytes.ContainsAny(query, "# \r\n\t\x00") {
			t.Errorf("took the query %q", query)
		}
		match(path) // panics on nothing
	})
}

// A cursor that an answer gives passes, and what passes means nothing else in a query.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "0190163d-8694-739b-aea5-966c26f8ad91-42", "0190163d-8694-739b-aea5-966c26f8ad91-42.1", "a&uid=8", "a%26", strings.Repeat("a", 201)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		passes := plainCursor(s)
		if !passes && (wire.ValidOrderID(s) || wire.ValidClaimID(s)) {
			t.Errorf("%q does not pass", s)
		}
		if values, err := url.ParseQuery("cursor=" + s); passes && (err != nil || len(values) != 1 || values.Get("cursor") != s) {
			t.Errorf("%q is %v, %v in a query", s, values, err)
		}
	})
}
