package edge

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/shared/clock"
)

func TestPanicIsAnsweredCountedAndSurvived(t *testing.T) {
	reg := prometheus.NewRegistry()
	var log bytes.Buffer
	// Without a gate every request for a sale breaks the handler.
	s := New(Parts{Clock: &clock.Clock{}, Log: slog.New(slog.NewTextHandler(&log, nil))}, reg)
	s.Configure(Settings{IP: limit.NewLaw("ip", 1, 1, 1, time.Now())})
	ln := fasthttputil.NewInmemoryListener()
	server := s.HTTP(Limits{MaxBody: 1000, MaxHeader: 4096, MaxConnections: 10})
	done := make(chan error)
	go func() { done <- server.Serve(NewListener(ln, 10, 10, reg)) }()
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

func TestBucketKey(t *testing.T) {
	key := func(s string) [16]byte { return bucketKey(netip.MustParseAddr(s)) }
	if key("2001:db8::1") != key("2001:db8::ffff:1") || key("2001:db8::1") == key("2001:db8:0:1::1") {
		t.Error("IPv6 goes by its /64")
	}
	if key("1.2.3.4") == key("1.2.3.5") {
		t.Error("IPv4 goes by the whole address")
	}
	if exempted([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, netip.MustParseAddr("11.0.0.1")) || !exempted([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, netip.MustParseAddr("10.9.9.9")) {
		t.Error("exempt networks")
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
