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
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/presslog"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
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

var testKey = identity.Key{KID: "k", Alg: "HS256", Secret: "0123456789abcdef0123456789abcdef", Sign: true}

// signed is a verifier, and the token of each uid.
func signed(t testing.TB, clk *clock.Clock, uids ...string) (*identity.Verifier, map[string]string) {
	verifier, err := identity.NewVerifier([]identity.Key{testKey}, identity.Rules{}, clk.Now)
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{}
	for _, uid := range uids {
		if tokens[uid], _, err = (identity.Signer{Key: testKey}).Mint(uid, time.Now(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	return verifier, tokens
}

// refusing makes a server of which every refusal is asked below: its news count for an hour, no bucket of uid 7, none of 127.0.0.7
// and not that of all orders has a token left, nothing has a place at the backends. 127.0.0.1 and uid 8 have no buckets of their own.
func refusing(t testing.TB) (s *Server, tokens map[string]string) {
	return refusingIn(t, prometheus.NewRegistry())
}

func refusingIn(t testing.TB, reg *prometheus.Registry) (s *Server, tokens map[string]string) {
	now := time.Now()
	next := wire.At(now.Add(3 * time.Hour))
	sale := func(id int64, state wire.SaleState) wire.Sale {
		return wire.Sale{ID: id, Kind: wire.Goods, Title: "T", Price: 1, Currency: "EUR", State: state, PerUserLimit: 2,
			StartsAt: wire.At(now.Add(-time.Hour)), EndsAt: wire.At(now.Add(4 * time.Hour))}
	}
	sales := []wire.Sale{sale(1, wire.Upcoming), sale(2, wire.Ended), sale(3, wire.SoldOut), sale(4, wire.SoldOut), sale(5, wire.Paused), sale(6, wire.Open)}
	sales[0].StartsAt, sales[3].NextReleaseAt = next, &next

	clk := &clock.Clock{}
	gate := follow(t, clk, reg, time.Hour, sales...)
	verifier, tokens := signed(t, clk, "7", "8")
	pool := upstream.New(upstream.Config{Backends: []string{"127.0.0.1:1"}, Key: signing.Key{ID: "k", Secret: "s"}}, clk, reg)
	t.Cleanup(pool.Close)
	rule := func(name string) *limit.Rule {
		return limit.NewRule(name, 1000, now, limit.Law{Rate: 0.0001, Burst: 1})
	}
	set := Settings{Verifier: verifier, Order: rule("order"), Payment: rule("payment"), Read: rule("read"), IP: rule("ip"), IPUsers: rule("ip_users"), Webhook: rule("webhook"), Global: rule("global"),
		Exempt: networks(t, "127.0.0.1/32"), ExemptUsers: map[string]struct{}{"8": {}}}
	s = New(Config{Clock: clk, Gate: gate, Cache: pagecache.New(1<<20, reg), Backends: pool, Presses: presslog.NewRecorder(100, reg), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		HTTP: HTTPConfig{MaxBody: 1000, MaxHeader: 4096, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute}}, set, reg)
	s.orders.Take("7", set.Order, now)
	s.payments.Take("7", set.Payment, now)
	s.reads.Take("7", set.Read, now)
	limited := s.key(netip.MustParseAddr("127.0.0.7"))
	s.ips.Take(limited, set.IP, now)
	s.ipUsers.Take(limited, set.IPUsers, now)
	s.webhooks.Take(limited, set.Webhook, now)
	s.global.Take(set.Global, limit.WaitBounds{}, now)
	return s, tokens
}

// refusal is a request, and what it is answered.
type refusal struct {
	name, request, code string
	from                string          // whose connection it comes on
	set                 func(*Settings) // what is changed in refusing's, or nil
}

// refusals is what the gate and the limits refuse.
func refusals(tokens map[string]string) []refusal {
	const here, limited = "127.0.0.1", "127.0.0.7"
	head := func(uid string) string {
		return "Host: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\nAuthorization: Bearer " + tokens[uid] + "\r\n"
	}
	order := func(sale int, uid, more string) string {
		return fmt.Sprintf("POST /v1/sales/%d/orders HTTP/1.1\r\n%sContent-Type: application/json\r\nIdempotency-Key: 0190163d-8694-739b-aea5-966c26f8ad91\r\n%sContent-Length: 14\r\n\r\n{\"quantity\":1}",
			sale, head(uid), more)
	}
	ask := func(what, uid string) string {
		more := ""
		if strings.HasPrefix(what, "POST") {
			more = "Content-Length: 0\r\n"
		}
		return what + " HTTP/1.1\r\n" + head(uid) + more + "\r\n"
	}
	delivery := "POST " + wire.WebhookPath + "bank HTTP/1.1\r\nHost: shop.example\r\nContent-Type: application/json\r\n" + wire.PaymentSignature + ": t=1,v1=00\r\nContent-Length: 2\r\n\r\n{}"
	const id = "/v1/orders/0190163d-8694-739b-aea5-966c26f8ad91-6"
	uids := func(all ...string) map[string]struct{} {
		set := map[string]struct{}{}
		for _, uid := range all {
			set[uid] = struct{}{}
		}
		return set
	}
	slow := func(s *Settings) {
		s.Global = limit.NewRule("global", 0, time.Now(), limit.Law{Rate: 0.00001, Burst: 1})
	}
	open := func(s *Settings) {
		s.Global = limit.NewRule("global", 0, time.Now(), limit.Law{Rate: 1e6, Burst: 1e6, Shadow: true})
	}
	banned, err := network.Parse([]string{limited + "/32"})
	if err != nil {
		panic(err)
	}
	return []refusal{
		{"unknown", order(99, "7", ""), "SALE_NOT_FOUND", here, nil},
		{"unknown page", "GET /v1/sales/99 HTTP/1.1\r\nHost: shop.example\r\n\r\n", "SALE_NOT_FOUND", here, nil},
		{"no id", strings.Replace(order(99, "7", ""), "/99/", "/x/", 1), "SALE_NOT_FOUND", here, nil},
		{"upcoming", order(1, "7", ""), "SALE_NOT_STARTED", here, nil},
		{"ended", order(2, "7", ""), "SALE_ENDED", here, nil},
		{"sold out", order(3, "7", ""), "SOLD_OUT", here, nil},
		{"sold out, more to come", order(4, "7", ""), "SOLD_OUT", here, nil},
		{"sold out, id given", order(3, "7", "X-Request-Id: a-request-of-mine\r\n"), "SOLD_OUT", here, nil},
		{"paused", order(5, "7", ""), "OVERLOADED", here, nil},
		{"network banned", order(6, "8", ""), "FORBIDDEN", limited, func(s *Settings) { s.BannedNetworks = banned }},
		{"address limited", order(6, "8", ""), "RATE_LIMITED", limited, nil},
		{"page limited", ask("GET /v1/sales/6", "8"), "RATE_LIMITED", limited, nil},
		{"page limited by user", ask("GET /v1/sales/6", "7"), "RATE_LIMITED", here, nil},
		{"user banned", order(6, "7", ""), "FORBIDDEN", here, func(s *Settings) { s.BannedUsers = uids("7", "9") }},
		{"not eligible", order(6, "7", ""), "FORBIDDEN", here, func(s *Settings) { s.EligibleUsers = uids("8", "9") }},
		{"user limited", order(6, "7", ""), "RATE_LIMITED", here, nil},
		{"user limited, all for longer", order(6, "7", ""), "RATE_LIMITED", here, slow},
		{"all limited", order(6, "8", ""), "RATE_LIMITED", here, nil},
		{"line full", order(6, "8", ""), "OVERLOADED", here, func(s *Settings) { s.GlobalWait = limit.WaitBounds{MaxWait: 100 * time.Hour} }},
		{"no place", order(6, "8", ""), "OVERLOADED", here, open},
		{"status limited", ask("GET "+id, "7"), "RATE_LIMITED", here, nil},
		{"status with wait_ms limited", ask("GET "+id+"?wait_ms=20000", "7"), "RATE_LIMITED", here, nil},
		{"status, no place", ask("GET "+id, "8"), "OVERLOADED", here, nil},
		{"list limited", ask("GET /v1/orders", "7"), "RATE_LIMITED", here, nil},
		{"list of a sale limited", ask("GET /v1/orders?sale_id=6&cursor=abc", "7"), "RATE_LIMITED", here, nil},
		{"payment limited", ask("POST "+id+"/payment", "7"), "RATE_LIMITED", here, nil},
		{"cancellation, no place", ask("POST "+id+"/cancellation", "8"), "OVERLOADED", here, nil},
		{"coupons limited", ask("GET "+wire.CouponsPath, "7"), "RATE_LIMITED", here, nil},
		{"coupon limited", ask("POST "+wire.UsePath("0190163d-8694-739b-aea5-966c26f8ad91-6.1"), "7"), "RATE_LIMITED", here, nil},
		{"standby limited", ask("POST "+wire.StandbyPath(6), "7"), "RATE_LIMITED", here, nil},
		{"timeline limited", ask("GET /v1/sales/6/timeline", "7"), "RATE_LIMITED", here, nil},
		{"session limited", ask("GET /v1/session", "7"), "RATE_LIMITED", here, nil},
		{"webhook limited", delivery, "RATE_LIMITED", limited, nil},
		{"webhook, no place", delivery, "OVERLOADED", here, nil},
	}
}

// apply puts the case's settings in force; the function it returns puts back what was.
func (c refusal) apply(s *Server) (undo func()) {
	was := *s.settings.Load()
	set := was
	if c.set != nil {
		c.set(&set)
	}
	s.SetSettings(set)
	return func() { s.SetSettings(was) }
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
	c, err := NewListener(l, s, Bounds{Max: 10, PerAddress: 10}, prometheus.NewRegistry()).Accept()
	if err != nil {
		t.Fatal(err)
	}
	done = make(chan struct{})
	server := s.HTTPServer()
	go func() {
		defer close(done)
		server.ServeConn(c)
	}()
	return done
}

// Everything that the gate, the lists and the limits refuse is answered without allocating: from the first byte read to the last
// written, request id, Retry-After and metrics included. What allocates all the same is said at BenchmarkRefusals.
func TestRefusalsDoNotAllocate(t *testing.T) {
	s, tokens := refusing(t)
	most := 0.0
	for _, c := range refusals(tokens) {
		undo := c.apply(s)
		most = max(most, refusalAllocates(t, s, c))
		undo()
	}
	t.Logf("at most %v allocations a request", most) // make bench reads it
}

func refusalAllocates(t *testing.T, s *Server, c refusal) float64 {
	l := newLine(c.from + ":1")
	done := l.serve(t, s)
	ask := func() { l.asked <- c.request; <-l.answer }
	ask()
	var resp fasthttp.Response
	var p problem.Problem
	if err := resp.Read(bufio.NewReader(bytes.NewReader(l.last))); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(resp.Body(), &p); err != nil || string(p.Code) != c.code || p.RequestID == "" || p.RequestID != string(resp.Header.Peek("X-Request-Id")) || p.Status != resp.StatusCode() {
		t.Errorf("%s: got %v of %s", c.name, err, l.last)
	}
	n := testing.AllocsPerRun(200, ask)
	if n != 0 {
		t.Errorf("%s: %v allocations for each request, want none", c.name, n)
	}
	close(l.asked)
	<-done
	return n
}

// BenchmarkRefusals compares what a refusal costs with a bare fasthttp server that answers the same bytes to the same requests,
// over loopback, a short round of one and a short round of the other in turn: "x-bare" is the median of the rounds' ratios of
// this process's CPU time, "-ns" each side's median for a request. The client is another process. `make bench` compares whole
// processes, with nginx, too.
//
// Refusals that are not here allocate: of a cart, whose items are parsed before it draws on a limit, so that a wrong one costs the
// user no token; of a payment, a place in the standby line or a session that comes with a JSON body, which is decoded before, for the
// same reason; of a page for want of a place at the backends, for all who wait for it are answered by one that asks; and whatever is
// no limit's: a bad request, a token that is not valid, a backend that is away.
func BenchmarkRefusals(b *testing.B) {
	s, tokens := refusing(b)
	// Somebody's order has just asked the backend whether what is sold out still is; that is so but for a moment in probeEvery.
	asked := func() {
		for id := range int64(10) {
			s.Gate.Probe(s.Gate.Order(id, time.Now()), time.Now())
		}
	}
	s.HTTP.MaxBody, s.HTTP.MaxHeader = 65536, 8192
	for _, c := range refusals(tokens) {
		b.Run(strings.ReplaceAll(c.name, " ", "-"), func(b *testing.B) {
			defer c.apply(s)()
			gateway := s.HTTPServer()
			bare := s.HTTPServer()
			bare.Handler = sameAs(b, s, c)
			var addrs [2]string
			for i, server := range []*fasthttp.Server{gateway, bare} {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				addrs[i] = ln.Addr().String()
				hangUp := func() {}
				if server == gateway {
					l := NewListener(ln, s, Bounds{Max: 1000, PerAddress: 1000}, prometheus.NewRegistry())
					ln, hangUp = l, l.CloseAll
				}
				done := make(chan error, 1)
				go func() { done <- server.Serve(ln) }()
				defer func() { hangUp(); server.Shutdown(); <-done }()
			}
			client := presser(b, c)
			round := func(i, n int) float64 {
				before := cpu(b)
				client(addrs[i], n)
				return float64(cpu(b)-before) / float64(n)
			}
			const n = 4000
			round(0, n)
			round(1, n)
			var ratios, ours, theirs []float64
			for b.Loop() {
				asked()
				g, f := round(0, n), round(1, n)
				ratios, ours, theirs = append(ratios, g/f), append(ours, g), append(theirs, f)
			}
			median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ratios), "x-bare")
			b.ReportMetric(median(ours), "gateway-ns")
			b.ReportMetric(median(theirs), "bare-ns")
		})
	}
}

// answered is what s answers to the request.
func answered(t testing.TB, s *Server, c refusal) *fasthttp.Response {
	l := newLine(c.from + ":1")
	done := l.serve(t, s)
	l.asked <- c.request
	<-l.answer
	var resp fasthttp.Response
	if err := resp.Read(bufio.NewReader(strings.NewReader(string(l.last)))); err != nil {
		t.Fatal(err)
	}
	close(l.asked)
	<-done
	return &resp
}

// sameAs is a handler that answers what s answers to the request, byte for byte.
func sameAs(t testing.TB, s *Server, c refusal) fasthttp.RequestHandler {
	resp := answered(t, s, c)
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

// presser starts another process that sends the request; the function has it sent n times to an address, and waits for the answers.
func presser(b *testing.B, c refusal) func(addr string, n int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FLOODGATE_PRESS="+c.request, "FLOODGATE_PRESS_FROM="+c.from)
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
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(os.Getenv("FLOODGATE_PRESS_FROM"))}}
	conns := map[string][]net.Conn{}
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		addr, count, _ := strings.Cut(orders.Text(), " ")
		n, _ := strconv.Atoi(count)
		for len(conns[addr]) < 16 {
			c, err := from.Dial("tcp", addr)
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
