package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/gateway/timeline"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv("FLOODGATE_PRESS") != "" {
		press()
		return
	}
	os.Exit(m.Run())
}

// feed is a backend's feed with one answer.
type feed struct{ sales []wire.Sale }

func (feed) Backends() int { return 1 }

func (f feed) Feed(ctx context.Context, _ int, target string, _ time.Duration) ([]byte, error) {
	if !strings.Contains(target, "since=") {
		return json.Marshal(wire.Feed{Instance: "a", Version: 1, Full: true, Now: wire.At(time.Now()), Sales: f.sales})
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func networks(t testing.TB, all ...string) network.Set {
	t.Helper()
	set, err := network.Parse(all)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// follow makes a gate that knows the sales.
func follow(t testing.TB, clk *clock.Clock, reg prometheus.Registerer, staleAfter time.Duration, sales ...wire.Sale) *salegate.Gate {
	gate := salegate.New(clk, staleAfter, reg)
	known := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		gate.Follow(ctx, feed{sales}, slog.New(slog.DiscardHandler), func([]int64) { close(known) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	<-known
	return gate
}

// signed is a verifier, and the token of each uid.
func signed(t testing.TB, clk *clock.Clock, uids ...string) (*identity.Verifier, map[string]string) {
	key := identity.Key{KID: "k", Alg: "HS256", Secret: "0123456789abcdef0123456789abcdef", Sign: true}
	verifier, err := identity.NewVerifier([]identity.Key{key}, 0, clk.Now)
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{}
	for _, uid := range uids {
		if tokens[uid], _, err = identity.Mint(key, uid, time.Now(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	return verifier, tokens
}

// refusing makes a server of which every refusal is asked below: its news count for an hour, uid 7 has no order left to make.
// exempt is the address that has no bucket of its own; every other one has nothing left either.
func refusing(t testing.TB, exempt string) (s *Server, token string) {
	now := time.Now()
	next := wire.At(now.Add(3 * time.Hour))
	sale := func(id int64, state wire.SaleState) wire.Sale {
		return wire.Sale{ID: id, Kind: wire.Goods, Title: "T", Price: 1, Currency: "EUR", State: state, PerUserLimit: 2,
			StartsAt: wire.At(now.Add(-time.Hour)), EndsAt: wire.At(now.Add(4 * time.Hour))}
	}
	sales := []wire.Sale{sale(1, wire.Upcoming), sale(2, wire.Ended), sale(3, wire.SoldOut), sale(4, wire.SoldOut), sale(5, wire.Paused), sale(6, wire.Open)}
	sales[0].StartsAt, sales[3].NextReleaseAt = next, &next

	reg := prometheus.NewRegistry()
	clk := &clock.Clock{}
	log := slog.New(slog.DiscardHandler)
	gate := follow(t, clk, reg, time.Hour, sales...)
	verifier, tokens := signed(t, clk, "7")
	token = tokens["7"]
	rule := func(name string) *limit.Rule {
		return limit.NewRule(name, 1000, now, limit.Law{Rate: 0.0001, Burst: 1})
	}
	set := Settings{Verifier: verifier, Order: rule("order"), Payment: rule("payment"), Read: rule("read"), IP: rule("ip"), Webhook: rule("webhook"), Global: rule("global"),
		Exempt: networks(t, exempt)}
	s = New(Parts{Clock: clk, Gate: gate, Records: timeline.NewRecorder(100, reg), Log: log, Now: time.Now}, reg)
	s.Configure(set)
	s.orders.Take("7", set.Order, now)
	s.ips.Take(network.Key(netip.MustParseAddr("203.0.113.7")), set.IP, now)
	return s, token
}

// refusals is requests, and what each is answered.
func refusals(token string) []struct{ name, request, code string } {
	order := func(sale int, more string) string {
		return fmt.Sprintf("POST /v1/sales/%d/orders HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\nContent-Type: application/json\r\n"+
			"Authorization: Bearer %s\r\nIdempotency-Key: 0190163d-8694-739b-aea5-966c26f8ad91\r\n%sContent-Length: 14\r\n\r\n{\"quantity\":1}", sale, token, more)
	}
	return []struct{ name, request, code string }{
		{"unknown", order(99, ""), "SALE_NOT_FOUND"},
		{"unknown page", "GET /v1/sales/99 HTTP/1.1\r\nHost: shop.example\r\n\r\n", "SALE_NOT_FOUND"},
		{"no id", strings.Replace(order(99, ""), "/99/", "/x/", 1), "SALE_NOT_FOUND"},
		{"upcoming", order(1, ""), "SALE_NOT_STARTED"},
		{"ended", order(2, ""), "SALE_ENDED"},
		{"sold out", order(3, ""), "SOLD_OUT"},
		{"sold out, more to come", order(4, ""), "SOLD_OUT"},
		{"sold out, id given", order(3, "X-Request-Id: a-request-of-mine\r\n"), "SOLD_OUT"},
		{"paused", order(5, ""), "OVERLOADED"},
		{"user limited", order(6, ""), "RATE_LIMITED"},
	}
}

// line is a network with one connection at a time, in memory: the server reads what is asked and finds nobody slow.
type line struct {
	net.Conn
	from   netip.AddrPort
	asked  chan string   // closed at the end
	answer chan struct{} // something was written
	last   []byte        // what was written; for whoever has received from answer
	rest   string
}

func newLine(from string) *line {
	return &line{from: netip.MustParseAddrPort(from), asked: make(chan string), answer: make(chan struct{})}
}

func (l *line) Accept() (net.Conn, error) { return l, nil }
func (l *line) Addr() net.Addr            { return net.TCPAddrFromAddrPort(l.from) }
func (l *line) RemoteAddr() net.Addr      { return l.Addr() }
func (l *line) LocalAddr() net.Addr       { return l.Addr() }
func (l *line) Close() error              { return nil }

func (l *line) SetDeadline(time.Time) error      { return nil }
func (l *line) SetReadDeadline(time.Time) error  { return nil }
func (l *line) SetWriteDeadline(time.Time) error { return nil }

func (l *line) Read(b []byte) (int, error) {
	if l.rest == "" {
		var ok bool
		if l.rest, ok = <-l.asked; !ok {
			return 0, io.EOF
		}
	}
	n := copy(b, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

func (l *line) Write(b []byte) (int, error) {
	l.last = append(l.last[:0], b...)
	l.answer <- struct{}{}
	return len(b), nil
}

// serve has s serve the line until asked is closed.
func (l *line) serve(t testing.TB, s *Server) (done chan struct{}) {
	c, err := NewListener(l, Bounds{Max: 10, PerAddress: 10}, prometheus.NewRegistry()).Accept()
	if err != nil {
		t.Fatal(err)
	}
	done = make(chan struct{})
	server := s.HTTP(Limits{MaxBody: 1000, MaxHeader: 4096, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute})
	go func() {
		defer close(done)
		server.ServeConn(c)
	}()
	return done
}

// Everything that the gate and the limits refuse is answered without allocating: from the first byte read to the last written,
// request id, Retry-After and metrics included.
func TestRefusalsDoNotAllocate(t *testing.T) {
	s, token := refusing(t, "127.0.0.0/8")
	all := refusals(token)
	for _, c := range all {
		refusalAllocates(t, s, c.name, "127.0.0.1:1", c.request, c.code)
	}
	refusalAllocates(t, s, "address limited", "203.0.113.7:1", all[len(all)-1].request, "RATE_LIMITED")
}

func refusalAllocates(t *testing.T, s *Server, name, from, request, code string) {
	l := newLine(from)
	done := l.serve(t, s)
	ask := func() { l.asked <- request; <-l.answer }
	ask()
	var resp fasthttp.Response
	var p problem.Problem
	if err := resp.Read(bufio.NewReader(bytes.NewReader(l.last))); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(resp.Body(), &p); err != nil || string(p.Code) != code || p.RequestID == "" || p.RequestID != string(resp.Header.Peek("X-Request-Id")) || p.Status != resp.StatusCode() {
		t.Errorf("%s: got %v of %s", name, err, l.last)
	}
	if n := testing.AllocsPerRun(500, ask); n != 0 {
		t.Errorf("%s: %v allocations for each request, want none", name, n)
	}
	close(l.asked)
	<-done
}

// BenchmarkRefusals compares what a refusal costs with a bare fasthttp server that answers the same bytes to the same requests,
// over loopback, a short round of one and a short round of the other in turn: "x-bare" is the median of the rounds' ratios of
// this process's CPU time, "-ns" each side's median for a request. The client is another process. Beside them, where it is
// installed, nginx refuses what it can: "x-nginx" is the gateway's CPU time as a multiple of nginx's.
func BenchmarkRefusals(b *testing.B) {
	s, token := refusing(b, "127.0.0.0/8")
	limits := Limits{MaxBody: 65536, MaxHeader: 8192, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute}
	for _, c := range refusals(token) {
		b.Run(strings.ReplaceAll(c.name, " ", "-"), func(b *testing.B) {
			gateway := s.HTTP(limits)
			bare := s.HTTP(limits)
			bare.Handler = sameAs(b, s, c.request)
			var addrs [2]string
			for i, server := range []*fasthttp.Server{gateway, bare} {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				addrs[i] = ln.Addr().String()
				if server == gateway {
					ln = NewListener(ln, Bounds{Max: 1000, PerAddress: 1000}, prometheus.NewRegistry())
				}
				done := make(chan error, 1)
				go func() { done <- server.Serve(ln) }()
				defer func() { server.Shutdown(); <-done }()
			}
			client := presser(b, c.request)
			round := func(i, n int) float64 {
				before := cpu(b)
				client(addrs[i], n)
				return float64(cpu(b)-before) / float64(n)
			}
			const n = 4000
			round(0, n)
			round(1, n)
			nginx := func() float64 { return 0 }
			if c.name == "sold out" || c.name == "user limited" {
				body := answered(b, s, c.request).Body()
				if addr, cpu, ok := startNginx(b, body, body); ok {
					nginx = func() float64 {
						before := cpu()
						client(addr, n)
						return float64(cpu()-before) / n
					}
					nginx()
				}
			}
			var ratios, ours, theirs, peers, peer []float64
			for b.Loop() {
				g, f := round(0, n), round(1, n)
				ratios, ours, theirs = append(ratios, g/f), append(ours, g), append(theirs, f)
				if x := nginx(); x > 0 {
					peers, peer = append(peers, g/x), append(peer, x)
				}
			}
			median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ratios), "x-bare")
			b.ReportMetric(median(ours), "gateway-ns")
			b.ReportMetric(median(theirs), "bare-ns")
			if len(peers) > 0 {
				b.ReportMetric(median(peers), "x-nginx")
				b.ReportMetric(median(peer), "nginx-ns")
			}
		})
	}
}

// answered is what s answers to request.
func answered(t testing.TB, s *Server, request string) *fasthttp.Response {
	l := newLine("127.0.0.1:1")
	done := l.serve(t, s)
	l.asked <- request
	<-l.answer
	var resp fasthttp.Response
	if err := resp.Read(bufio.NewReader(strings.NewReader(string(l.last)))); err != nil {
		t.Fatal(err)
	}
	close(l.asked)
	<-done
	return &resp
}

// sameAs is a handler that answers what s answers to request, byte for byte.
func sameAs(t testing.TB, s *Server, request string) fasthttp.RequestHandler {
	resp := answered(t, s, request)
	body, status := slices.Clone(resp.Body()), resp.StatusCode()
	type field struct{ name, value string }
	var fields []field
	for name, value := range resp.Header.All() {
		if n := string(name); n != "Content-Type" && n != "Content-Length" && n != "Date" {
			fields = append(fields, field{n, string(value)})
		}
	}
	contentType := string(resp.Header.ContentType())
	return func(ctx *fasthttp.RequestCtx) {
		ctx.Response.SetStatusCode(status)
		ctx.Response.Header.SetContentType(contentType)
		for _, f := range fields {
			ctx.Response.Header.Set(f.name, f.value)
		}
		ctx.Response.SetBodyRaw(body)
	}
}

// cpu is what this process has used, in nanoseconds.
func cpu(t testing.TB) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// presser starts another process that sends request; the function has it sent n times to an address, and waits for the answers.
func presser(b *testing.B, request string) func(addr string, n int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FLOODGATE_PRESS="+request)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	answers := bufio.NewScanner(out)
	return func(addr string, n int) {
		fmt.Fprintln(in, addr, n)
		if !answers.Scan() || answers.Text() != strconv.Itoa(n) {
			b.Fatalf("%d presses: got %q", n, answers.Text())
		}
	}
}

// press is the process that presser starts: 16 connections, a request at a time on each.
func press() {
	request := os.Getenv("FLOODGATE_PRESS")
	conns := map[string][]net.Conn{}
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		addr, count, _ := strings.Cut(orders.Text(), " ")
		n, _ := strconv.Atoi(count)
		for len(conns[addr]) < 16 {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				fmt.Println(err)
				return
			}
			conns[addr] = append(conns[addr], c)
		}
		var wg sync.WaitGroup
		for i, c := range conns[addr] {
			wg.Go(func() {
				r := bufio.NewReader(c)
				var resp fasthttp.Response
				for range n / 16 {
					io.WriteString(c, request)
					if err := resp.Read(r); err != nil {
						panic(fmt.Sprint("connection ", i, ": ", err))
					}
				}
			})
		}
		wg.Wait()
		fmt.Println(n)
	}
}
