package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
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
	n := 20_000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		b.Fatal(err)
	}
	if want := uint64(n + 2000); files.Cur < want && syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: want, Max: want}) != nil {
		n = int(files.Cur) - 2000
	}
	p := newPeer(b)
	p.set(1, nil)
	g := launchAlone(b, (*exec.Cmd).Start, configText([]string{p.addr}, with("server: {read_timeout: 2s, idle_timeout: 5s", fmt.Sprintf("server: {max_connections: %d, idle_timeout: 10m", n+100)),
		with("max_in_flight: 64", "max_in_flight: 64, max_waiting: 64")))
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
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}
}
