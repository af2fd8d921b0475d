package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// The environment variables with which this test's binary is a gateway, of the configuration file that it names, or the backend of
// BenchmarkOverload.
const (
	asGateway = "FLOODGATE_TEST_GATEWAY"
	asBackend = "FLOODGATE_TEST_BACKEND"
)

// The backend of BenchmarkOverload: so many requests at once, each of which takes so long, is its capacity.
const (
	overloadSlots    = 20
	overloadWork     = 50 * time.Millisecond
	overloadCapacity = overloadSlots * int(time.Second/overloadWork) // requests a second
)

// What a factor is measured by: so many times first the peak, then the overload.
const (
	overloadPairs = 3
	overloadPeak  = 3 * time.Second
	overloadFor   = 6 * time.Second
)

// slowBackend is the backend of BenchmarkOverload, in a process of its own: whatever comes, of whatever kind, takes a slot. It never
// returns.
func slowBackend() {
	p := peerOf(nil)
	p.set(1, nil)
	slots := make(chan struct{}, overloadSlots)
	work := func() {
		slots <- struct{}{}
		time.Sleep(overloadWork)
		<-slots
	}
	p.onPage = func(ctx *fastCtx) {
		work()
		p.page(ctx, string(ctx.Path()))
	}
	p.on(func(ctx *fastCtx, c call) {
		work()
		if accept(ctx); c.Method == "GET" || strings.HasSuffix(c.Target, "/payment") {
			ctx.SetStatusCode(200)
		}
	})
	p.start("127.0.0.1:0")
	fmt.Fprintf(os.Stderr, "backend=%s cores=%d\n", p.addr, runtime.GOMAXPROCS(0))
	select {}
}

// BenchmarkOverload offers the system, a gateway and a backend, up to ten times what the backend can do: of 100 requests 94 new
// orders, 2 payments, 2 order status polls and 2 pages, each at its own time whatever became of those before. The gateway, the
// backend and the load are a process each; on Linux the system has the first half of the cores, and the load the others. Run it with
//
//	go test -run '^$' -bench Overload -benchtime 1x -timeout 30m ./gateway
//
// goodput/peak is the median of as many pairs, each of which measures the peak just before: as many clients as keep the backend
// busy and are never too many, one request after the other. Goodput is what the backend did and the client was told in time:
// orders, payments and polls; pages come out of the cache. Then, over all pairs: what was offered in fact; of each kind the share
// that was answered, and how many of the pages were old ones, which stand in for those that got no place; how much later than due
// requests were sent, which is the load's fault, and how long acceptances and refusals took, from when the request was due; and
// the gateway's memory, most connections and CPU time. Where less is offered than was to be, lower overloadSlots.
func BenchmarkOverload(b *testing.B) {
	system, rest := halves()
	pinned := fmt.Sprintf("the system is pinned to cores %v, the load to %v", system, rest)
	start := func(cmd *exec.Cmd) error { return on(system, cmd.Start) }
	if system == nil {
		pinned, start = "nothing is pinned: there is one core, or this is not Linux", (*exec.Cmd).Start
	}
	backend := &logs{lines: make(chan struct{}, 1)}
	child(b, start, asBackend+"=yes", backend)
	at := backend.await(b, `backend=(\S+) cores=(\d+)\n`)
	g := launchAlone(b, start, configText([]string{at[1]}, with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"),
		with("read: {rate: 10, burst: 20", "payment: {rate: 1000, burst: 1000}\n  read: {rate: 1000, burst: 1000")))
	if cores := strconv.Itoa(len(system)); system != nil && (at[2] != cores || g.metric("go_sched_gomaxprocs_threads") != cores) {
		b.Fatalf("the backend runs on %s cores, the gateway on %s, want %s", at[2], g.metric("go_sched_gomaxprocs_threads"), cores)
	}
	var out bytes.Buffer
	if err := Run(context.Background(), []string{"token", "-config", g.file, "-uid", "1-1000"}, &out, io.Discard); err != nil {
		b.Fatal(err)
	}
	client := &fasthttp.HostClient{Addr: g.public, Dial: func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }, MaxConns: 4096}
	b.Cleanup(client.CloseIdleConnections)
	for _, times := range []int{1, 2, 5, 10} {
		b.Run(fmt.Sprintf("%dx", times), func(b *testing.B) {
			if system != nil {
				before := runtime.GOMAXPROCS(len(rest))
				must(b, bind(rest))
				defer func() {
					must(b, bind(append(slices.Clone(system), rest...)))
					runtime.GOMAXPROCS(before)
				}()
			}
			b.Log(pinned)
			g.t = b
			for b.Loop() {
				overload(b, g, &load{client: client, tokens: strings.Fields(out.String())}, times)
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// overload measures one factor.
func overload(b *testing.B, g *gw, l *load, times int) {
	var peaks, goodputs, ratios []float64
	var all []outcome
	offered := 0
	before, cpu := g.number("process_resident_memory_bytes"), 0.0
	var mu sync.Mutex // guards what follows
	half, most, connections := before, before, 0.0
	for pair := range overloadPairs {
		peak := good(l.closed(overloadPeak), overloadPeak)
		cpu -= g.number("process_cpu_seconds_total")
		outcomes := l.open(overloadFor, times*overloadCapacity, func() {
			now, open := g.number("process_resident_memory_bytes"), g.number("gateway_connections")
			mu.Lock()
			defer mu.Unlock()
			connections = max(connections, open)
			if most = max(most, now); pair < (overloadPairs+1)/2 {
				half = most
			}
		})
		cpu += g.number("process_cpu_seconds_total")
		for _, o := range outcomes {
			if o.sent <= overloadFor {
				offered++
			}
		}
		goodput := good(outcomes, overloadFor)
		peaks, goodputs, ratios = append(peaks, peak), append(goodputs, goodput), append(ratios, goodput/peak)
		all = append(all, outcomes...)
	}
	took := (overloadPairs * overloadFor).Seconds()
	var late, accepted, refused []time.Duration
	var asked, answered [kinds]int
	old, lost := 0, 0
	for _, o := range all {
		asked[o.kind]++
		late = append(late, o.sent-o.due)
		switch {
		case o.code == 0:
			lost++
		case o.code == 503:
			refused = append(refused, o.done-o.due)
		case o.code < 300:
			answered[o.kind]++
			if o.kind == order {
				accepted = append(accepted, o.done-o.due)
			}
			if o.stale {
				old++
			}
		}
	}
	b.ReportMetric(0, "ns/op") // says nothing here
	b.ReportMetric(median(peaks), "peak/s")
	b.ReportMetric(median(goodputs), "goodput/s")
	b.ReportMetric(median(ratios), "goodput/peak")
	b.ReportMetric(float64(offered)/took, "offered/s")
	for k, name := range kindNames {
		b.ReportMetric(float64(answered[k])/float64(asked[k]), name+"-answered")
	}
	b.ReportMetric(float64(old)/float64(max(1, answered[pageRead])), "pages-old")
	b.ReportMetric(float64(lost), "lost")
	for name, d := range map[string][]time.Duration{"late": late, "accepted": accepted, "refused": refused} {
		if slices.Sort(d); len(d) > 0 {
			b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, name+"-p50-ms")
			b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1000, name+"-p99-ms")
		}
	}
	b.ReportMetric(before/(1<<20), "MB-before")
	b.ReportMetric(half/(1<<20), "MB-most-at-half")
	b.ReportMetric(most/(1<<20), "MB-most")
	b.ReportMetric(connections, "connections")
	b.ReportMetric(cpu/took, "gateway-CPUs")
}

func median(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }

// good is what the backend did for clients who were told so before the window's end, a second.
func good(outcomes []outcome, window time.Duration) float64 {
	n := 0
	for _, o := range outcomes {
		if o.kind != pageRead && o.code/100 == 2 && o.done <= window {
			n++
		}
	}
	return float64(n) / window.Seconds()
}

// child starts this test's binary once more, as what the variable says; it is killed at the end.
func child(b testing.TB, start func(*exec.Cmd) error, variable string, log io.Writer) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable)
	cmd.Stderr = log
	if err := start(cmd); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// launchAlone starts a gateway in a process of its own.
func launchAlone(b testing.TB, start func(*exec.Cmd) error, config string) *gw {
	g := &gw{t: b, file: filepath.Join(b.TempDir(), "gateway.yaml"), log: &logs{lines: make(chan struct{}, 1)}}
	g.write(config)
	child(b, start, asGateway+"="+g.file, g.log)
	transport := &http.Transport{}
	g.client = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	b.Cleanup(transport.CloseIdleConnections)
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

// kind is what is asked for.
type kind int

const (
	order kind = iota
	payment
	poll
	pageRead
	kinds
)

var kindNames = [kinds]string{"orders", "payments", "polls", "pages"}

// kindOf is the kind of the i-th request.
func kindOf(i int) kind {
	switch i % 50 {
	case 10:
		return payment
	case 20:
		return poll
	case 30:
		return pageRead
	}
	return order
}

// outcome is one request and its answer. Times are since the window's begin.
type outcome struct {
	kind            kind
	code            int  // 0: no answer
	stale           bool // the page was an old one
	due, sent, done time.Duration
}

// load asks.
type load struct {
	client *fasthttp.HostClient
	tokens []string

	mu       sync.Mutex // guards what follows
	next     int        // whose turn it is
	outcomes []outcome
}

// closed is 30 clients, each of which asks again when it was answered: more than the backend has slots, and fewer than the gateway
// lets in of any kind.
func (l *load) closed(window time.Duration) []outcome {
	var all sync.WaitGroup
	began := time.Now()
	for range 30 {
		all.Go(func() {
			for time.Since(began) < window {
				l.ask(began, time.Since(began))
			}
		})
	}
	all.Wait()
	return l.take()
}

// open is a number of requests a second, each at its own time. Each second it looks.
func (l *load) open(window time.Duration, rate int, look func()) []outcome {
	var all sync.WaitGroup
	began := time.Now()
	for i := range int(window.Seconds() * float64(rate)) {
		due := time.Duration(i) * time.Second / time.Duration(rate)
		time.Sleep(time.Until(began.Add(due)))
		all.Go(func() { l.ask(began, due) })
		if i%rate == 0 {
			all.Go(look)
		}
	}
	all.Wait()
	return l.take()
}

func (l *load) take() []outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.outcomes
	l.outcomes = nil
	return all
}

// ask sends the next request, in the next user's name.
func (l *load) ask(began time.Time, due time.Duration) {
	l.mu.Lock()
	o := outcome{kind: kindOf(l.next), due: due}
	token := l.tokens[l.next%len(l.tokens)]
	l.next++
	l.mu.Unlock()
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	method, target := "GET", "/v1/sales"
	switch o.kind {
	case order:
		method, target = "POST", "/v1/sales/1/orders"
	case payment:
		method, target = "POST", "/v1/orders/"+orderID+"/payment"
	case poll:
		target = "/v1/orders/" + orderID
	}
	req.Header.SetMethod(method)
	req.SetRequestURI("http://" + l.client.Addr + target)
	req.Header.Set("Authorization", "Bearer "+token)
	o.sent = time.Since(began)
	if l.client.DoTimeout(req, resp, 30*time.Second) == nil {
		o.code, o.stale = resp.StatusCode(), string(resp.Header.Peek("X-Cache")) == "STALE"
	}
	o.done = time.Since(began)
	l.mu.Lock()
	l.outcomes = append(l.outcomes, o)
	l.mu.Unlock()
}
