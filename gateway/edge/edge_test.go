package edge

import (
	"bufio"
	"bytes"
	"log/slog"
	"net"
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
	s := New(Parts{Clock: &clock.Clock{}, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now}, reg)
	s.Configure(Settings{IP: limit.NewRule("ip", 1, time.Now(), limit.Law{Rate: 1, Burst: 1})})
	ln := fasthttputil.NewInmemoryListener()
	server := s.HTTP(Limits{MaxBody: 1000, MaxHeader: 4096})
	done := make(chan error)
	go func() { done <- server.Serve(ln) }()
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

// What guard takes has one meaning: one Host, one length, no transfer coding, no line that another reader would see elsewhere.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{"Host: x\r\n", "Host: x\r\nContent-Length: 0\r\n", "Host: x\r\nTransfer-Encoding: chunked\r\n", "Host: x\r\nA: b\r\n c\r\n", "Host: x\nA: b\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, block []byte) {
		raw := append([]byte("GET / HTTP/1.1\r\n"), block...)
		raw = append(raw, "\r\n"...)
		var h fasthttp.RequestHeader
		if h.Read(bufio.NewReaderSize(bytes.NewReader(raw), 64<<10)) != nil || guard(&h) != nil {
			return
		}
		seen := string(h.RawHeaders())
		lower := "\r\n" + strings.ToLower(seen)
		if strings.Count(lower, "\r\nhost:") > 1 || strings.Count(lower, "\r\ncontent-length:") > 1 || strings.Contains(lower, "\r\ntransfer-encoding") ||
			strings.Contains(lower, "\r\n ") || strings.Contains(lower, "\r\n\t") || strings.Count(seen, "\r") != strings.Count(seen, "\n") {
			t.Errorf("took %q", seen)
		}
	})
}
