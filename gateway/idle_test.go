package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/tlscert/certtest"
)

// askOn sends a request on a connection and returns the status of the answer, and whether it is the last one.
func askOn(c net.Conn, r *bufio.Reader, request string) (status int, last bool, err error) {
	if _, err := io.WriteString(c, request); err != nil {
		return 0, false, err
	}
	var resp fasthttp.Response
	if err := resp.Read(r); err != nil {
		return 0, false, err
	}
	return resp.StatusCode(), resp.ConnectionClose(), nil
}

const (
	timeRequest = "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n"
	goneOrder   = "POST /v1/sales/9/orders HTTP/1.1\r\nHost: x\r\n\r\n" // there is no sale 9
)

// BenchmarkIdleConnections measures what an idle keep-alive connection costs in resident memory, after a page and a refused order: the
// difference of a gateway's with one connection and with 20,000, or as many as the limit on open files allows, once it has settled.
func BenchmarkIdleConnections(b *testing.B) {
	for _, way := range []string{"plain", "TLS"} {
		b.Run(way, func(b *testing.B) { idleConnections(b, way == "TLS") })
	}
}

// manyFiles raises the limit on open files for n connections; it returns how many it allows.
func manyFiles(b *testing.B, n int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		b.Fatal(err)
	}
	if want := uint64(n + 2000); files.Cur < want && syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: want, Max: want}) != nil {
		n = int(files.Cur) - 2000
	}
	return n
}

func idleConnections(b *testing.B, secure bool) {
	n := manyFiles(b, 20_000)
	p := newPeer(b)
	p.set(1, nil)
	edits := []edit{with("server: {read_timeout: 2s, idle_timeout: 5s", fmt.Sprintf("server: {max_connections: %d, idle_timeout: 10m", n+100)),
		with("max_in_flight: 64", "max_in_flight: 64, max_waiting: 64")}
	cert := certtest.New(b, 24*time.Hour, "127.0.0.1")
	if secure {
		certificate, key := cert.Write(b, b.TempDir(), "shop")
		edits = append(edits, certificates("", certificate, key))
	}
	g := launchAlone(b, (*exec.Cmd).Start, configText([]string{p.addr}, edits...))
	if secure {
		g.trust(cert)
	}
	settled := func() float64 {
		last, same := 0.0, 0
		for range 60 {
			now := g.number("process_resident_memory_bytes")
			if same++; now < 0.99*last || now > 1.01*last {
				same = 0
			}
			if last = now; same == 5 {
				break
			}
			time.Sleep(2 * time.Second)
		}
		return last
	}
	for range b.N {
		var open []net.Conn
		r := bufio.NewReader(nil)
		var before float64
		for i := range n + 1 {
			c, err := net.Dial("tcp", g.public)
			if err != nil {
				b.Fatal(err)
			}
			if secure {
				c = tls.Client(c, g.secure)
			}
			open = append(open, c)
			r.Reset(c)
			for request, want := range map[string]int{"GET /v1/sales HTTP/1.1\r\nHost: x\r\n\r\n": 200, goneOrder: 404} {
				if status, _, err := askOn(c, r, request); err != nil || status != want {
					b.Fatalf("connection %d: got %d, %v", i, status, err)
				}
			}
			if i == 0 {
				before = settled()
			}
		}
		after := settled()
		if open := g.number("gateway_connections"); open < float64(n) {
			b.Fatalf("%v connections are open", open)
		}
		b.ReportMetric(float64(n), "connections")
		b.ReportMetric((after-before)/1024/float64(n), "KiB/connection")
		for _, line := range strings.Split(g.do("GET", "http://"+g.ops+"/metrics").body, "\n") {
			if strings.HasPrefix(line, "go_memstats_stack_inuse") || strings.HasPrefix(line, "go_memstats_heap_") || strings.HasPrefix(line, "go_goroutines") {
				fmt.Println(line)
			}
		}
		for _, c := range open {
			c.Close()
		}
	}
}

// BenchmarkHandshakeFlood makes 10,000 full TLS handshakes at once, and says what became of them, and how soon one connection that was
// there before and one that is new were answered meanwhile.
func BenchmarkHandshakeFlood(b *testing.B) {
	n := manyFiles(b, 10_000)
	p := newPeer(b)
	p.set(1, nil)
	cert := certtest.New(b, 24*time.Hour, "127.0.0.1")
	certificate, key := cert.Write(b, b.TempDir(), "shop")
	g := launchAlone(b, (*exec.Cmd).Start, configText([]string{p.addr}, with("server: {read_timeout: 2s, idle_timeout: 5s", fmt.Sprintf("server: {max_connections: %d, read_timeout: 5s, idle_timeout: 10m", n+100)),
		with("max_in_flight: 64", "max_in_flight: 64, max_waiting: 64"),
		certificates("", certificate, key)))
	g.trust(cert)
	old, err := tls.Dial("tcp", g.public, g.secure)
	if err != nil {
		b.Fatal(err)
	}
	defer old.Close()
	for range b.N {
		var made, failed atomic.Int64
		var flood sync.WaitGroup
		begin, over := make(chan struct{}), make(chan struct{})
		for range n {
			flood.Go(func() {
				<-begin
				c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", g.public, g.secure)
				if err != nil {
					failed.Add(1)
					return
				}
				made.Add(1)
				c.Close()
			})
		}
		began := time.Now()
		close(begin)
		go func() { flood.Wait(); close(over) }()
		var known, fresh time.Duration
		asked := 0
		for running := true; running; asked++ {
			at := time.Now()
			if code, err := ask(old, askTime); err != nil || code != 200 {
				b.Fatalf("on the connection there was, after %d answers and %v: %d, %v", asked, time.Since(began), code, err)
			}
			known = max(known, time.Since(at))
			at = time.Now()
			if _, err := g.hello(func(*tls.Config) {}); err != nil {
				b.Errorf("on a new connection: %v", err)
			}
			fresh = max(fresh, time.Since(at))
			select {
			case <-over:
				running = false
			default:
			}
		}
		b.ReportMetric(time.Since(began).Seconds(), "s")
		b.ReportMetric(float64(made.Load()), "made")
		b.ReportMetric(float64(failed.Load()), "failed")
		b.ReportMetric(float64(asked), "asked")
		b.ReportMetric(float64(known.Milliseconds()), "slowest-known-ms")
		b.ReportMetric(float64(fresh.Milliseconds()), "slowest-new-ms")
		b.ReportMetric(0, "ns/op")
	}
}
