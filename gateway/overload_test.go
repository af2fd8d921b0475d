package gateway

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// asGateway names the environment variable with which this test's binary is a gateway.
const asGateway = "FLOODGATE_TEST_GATEWAY"

// The backend of BenchmarkOverload: so many orders at once, each of which takes so long, is its capacity.
const (
	overloadSlots = 20
	overloadWork  = 50 * time.Millisecond
	overloadFor   = 10 * time.Second
	overloadTimes = 10
)

// BenchmarkOverload offers a gateway ten times what its backend can do, each order at its own time whatever became of those
// before, and status polls beside them. It reports the goodput against the peak, which the same gateway
// reaches just before under as many orders as it passes on at once; how fast refusals are, from the time at which the order
// was due; and the gateway's memory, which is a process of its own. Run it with -benchtime 1x.
func BenchmarkOverload(b *testing.B) {
	p := newPeer(b)
	p.set(1, nil)
	slots := make(chan struct{}, overloadSlots)
	p.on(func(ctx *fastCtx, c call) {
		if c.Method == "GET" {
			return
		}
		slots <- struct{}{}
		time.Sleep(overloadWork)
		<-slots
		accept(ctx)
	})
	g := launchAlone(b, configText([]string{p.addr}, with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"), with("read: {rate: 10, burst: 20", "read: {rate: 1000, burst: 1000")))
	capacity := overloadSlots * int(time.Second/overloadWork)
	var out bytes.Buffer
	if err := Run(context.Background(), []string{"token", "-config", g.file, "-uid", "1-1000"}, &out, io.Discard); err != nil {
		b.Fatal(err)
	}
	tokens := strings.Fields(out.String())

	for b.Loop() {
		l := &load{client: &fasthttp.HostClient{Addr: g.public, Dial: func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }, MaxConns: 4096}, tokens: tokens}
		l.reset()
		var all sync.WaitGroup
		began := time.Now()
		for range 40 { // fewer than may be at the backend at once
			all.Go(func() {
				for time.Since(began) < overloadFor/2 {
					l.order(time.Now())
				}
			})
		}
		all.Wait()
		peak := float64(l.count(202)) / time.Since(began).Seconds()
		l.reset()

		before := g.number("process_resident_memory_bytes")
		cpu := g.number("process_cpu_seconds_total")
		began = time.Now()
		half, most := before, before
		for i := 0; ; i++ {
			due := began.Add(time.Duration(i) * time.Second / time.Duration(overloadTimes*capacity))
			if due.Sub(began) >= overloadFor {
				break
			}
			time.Sleep(time.Until(due))
			all.Go(func() { l.order(due) })
			if i%(overloadTimes*capacity/20) == 0 {
				all.Go(func() { l.poll(due) })
				most = max(most, g.number("process_resident_memory_bytes"))
				if due.Sub(began) < overloadFor/2 {
					half = most
				}
			}
		}
		took := time.Since(began).Seconds()
		all.Wait()
		cpu = g.number("process_cpu_seconds_total") - cpu
		refused := l.took[503]
		slices.Sort(refused)
		if len(refused) == 0 {
			b.Fatal("nothing was refused")
		}
		b.ReportMetric(peak, "peak/s")
		b.ReportMetric(float64(l.count(202))/took, "goodput/s")
		b.ReportMetric(float64(l.count(202))/took/peak, "goodput/peak")
		b.ReportMetric(float64(len(refused))/took, "refused/s")
		b.ReportMetric(float64(refused[len(refused)/2].Microseconds())/1000, "refused-p50-ms")
		b.ReportMetric(float64(refused[len(refused)*99/100].Microseconds())/1000, "refused-p99-ms")
		b.ReportMetric(float64(l.count(0)+l.polls[false]), "lost")
		b.ReportMetric(float64(l.polls[true]), "polls-answered")
		b.ReportMetric(before/(1<<20), "MB-before")
		b.ReportMetric(half/(1<<20), "MB-most-at-half")
		b.ReportMetric(most/(1<<20), "MB-most")
		b.ReportMetric(cpu/took, "gateway-CPUs")
	}
}

// launchAlone starts a gateway in a process of its own.
func launchAlone(b *testing.B, config string) *gw {
	g := &gw{t: b, file: filepath.Join(b.TempDir(), "gateway.yaml"), log: &logs{lines: make(chan struct{}, 1)}}
	g.write(config)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asGateway+"="+g.file)
	cmd.Stderr = g.log
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	transport := &http.Transport{}
	g.client = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	b.Cleanup(func() {
		transport.CloseIdleConnections()
		cmd.Process.Kill()
		cmd.Wait()
	})
	m := g.log.await(b, `msg=listening public=(\S+) ops=(\S+)`)
	g.public, g.ops = m[1], m[2]
	g.awaitReady()
	return g
}

func (g *gw) number(metric string) float64 {
	f, err := strconv.ParseFloat(g.metric(metric), 64)
	if err != nil {
		g.t.Fatalf("%s: %v", metric, err)
	}
	return f
}

// load is what was asked and how it was answered.
type load struct {
	client *fasthttp.HostClient
	tokens []string

	mu    sync.Mutex // guards what follows
	next  int        // whose turn it is
	took  map[int][]time.Duration
	polls map[bool]int // by whether they were answered
}

func (l *load) reset() {
	l.mu.Lock()
	l.took, l.polls = map[int][]time.Duration{}, map[bool]int{}
	l.mu.Unlock()
}

func (l *load) count(code int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.took[code])
}

func (l *load) send(method, target string) int {
	l.mu.Lock()
	token := l.tokens[l.next%len(l.tokens)]
	l.next++
	l.mu.Unlock()
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod(method)
	req.SetRequestURI("http://" + l.client.Addr + target)
	req.Header.Set("Authorization", "Bearer "+token)
	if l.client.DoTimeout(req, resp, 30*time.Second) != nil {
		return 0
	}
	return resp.StatusCode()
}

// order presses for the next user; due is when it should have been.
func (l *load) order(due time.Time) {
	code := l.send("POST", "/v1/sales/1/orders")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took[code] = append(l.took[code], time.Since(due))
}

func (l *load) poll(time.Time) {
	code := l.send("GET", "/v1/orders/"+orderID)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.polls[code == 200]++
}
