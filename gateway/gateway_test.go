package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(asGateway); file != "" { // of a test that wants a gateway in a process of its own
		fewFiles()
		if err := Run(context.Background(), []string{"-config", file}, io.Discard, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(asBackend) != "" {
		slowBackend()
	}
	goleak.VerifyTestMain(m,
		// fasthttp's own, which end by themselves some seconds after their work, or never.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}

// logs is the gateway's log, which tells where it listens.
type logs struct {
	mu    sync.Mutex
	b     bytes.Buffer
	lines chan struct{} // one element at most: there is something new
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.lines <- struct{}{}:
	default:
	}
	return l.b.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// await waits until the log matches.
func (l *logs) await(t testing.TB, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(patience)
	for {
		if m := re.FindStringSubmatch(l.String()); m != nil {
			return m
		}
		select {
		case <-l.lines:
		case <-timeout:
			t.Fatalf("the log never said %s:\n%s", pattern, l)
		}
	}
}

// patience bounds every wait: a slow machine is no fault.
const patience = 2 * time.Minute

// gw is a gateway at work.
type gw struct {
	t           testing.TB
	public, ops string
	file        string
	log         *logs
	cancel      context.CancelFunc
	done        chan error
	client      *http.Client
	secure      *tls.Config // of listen.tls: what clients trust; nil: plain HTTP
	proxied     string      // the PROXY header with which each connection begins
}

type edit func(string) string

// with replaces a line's value, "  burst: 1" style patterns included.
func with(old, new string) edit {
	return func(s string) string {
		if !strings.Contains(s, old) {
			panic("the configuration has no " + old)
		}
		return strings.Replace(s, old, new, 1)
	}
}

func configText(backends []string, edits ...edit) string {
	for i, b := range backends {
		backends[i] = fmt.Sprintf("%q", "http://"+b)
	}
	s := fmt.Sprintf(`development: true
listen: {public: "127.0.0.1:0", ops: "127.0.0.1:0"}
ops_token: ""
backends: [%s]
signing_key: {id: %s, secret: %s}
identity:
  max_lifetime: 8760h # the peer's clock is an hour behind the one that mints
  keys:
    - {kid: dev-login, alg: HS256, secret: dev-login-secret-for-tests-only-000001, sign: true}
limits:
  order: {rate: 0.2, burst: 1, max_keys: 1000}
  read: {rate: 10, burst: 20, max_keys: 1000}
  ip: {rate: 50, burst: 100, max_keys: 1000}
  ip_exempt: ["127.0.0.0/8"]
server: {read_timeout: 2s, idle_timeout: 5s, drain: 5s}
upstream: {timeout: 3s, max_in_flight: 64}
feed: {stale_after: 2s}
cache: {ttl: 1s, stale: 30s}
`, strings.Join(backends, ", "), testKeyID, testSecret)
	for _, e := range edits {
		s = e(s)
	}
	return s
}

// run starts a gateway that is ready.
func run(t *testing.T, backends []string, edits ...edit) *gw {
	t.Helper()
	g := launch(t, backends, edits...)
	g.awaitReady()
	return g
}

func launch(t *testing.T, backends []string, edits ...edit) *gw {
	t.Helper()
	return launchBy(t, func(ctx context.Context, g *gw) error {
		return Run(ctx, []string{"-config", g.file}, io.Discard, g.log)
	}, backends, edits...)
}

func launchBy(t *testing.T, serve func(context.Context, *gw) error, backends []string, edits ...edit) *gw {
	t.Helper()
	g := &gw{t: t, file: filepath.Join(t.TempDir(), "gateway.yaml"), log: &logs{lines: make(chan struct{}, 1)}, done: make(chan error, 1)}
	g.write(configText(backends, edits...))
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go func() { g.done <- serve(ctx, g) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DialContext: g.dial}
	g.client = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-g.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		g.done <- nil
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", g.log)
		}
	})
	m := g.log.await(t, `msg"?[=:]"?listening"? ?,?"?public"?[=:]"?([0-9.:]+)"? ?,?"?ops"?[=:]"?([0-9.:]+)`)
	g.public, g.ops = m[1], m[2]
	return g
}

func (g *gw) write(config string) {
	g.t.Helper()
	if err := os.WriteFile(g.file+".new", []byte(config), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(g.file+".new", g.file); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gw) awaitReady() {
	g.t.Helper()
	g.until("ready", func() bool { return g.do("GET", "http://"+g.ops+"/-/ready").code == 200 })
}

// until asks again and again: what is awaited comes by the network.
func (g *gw) until(what string, ok func() bool) {
	g.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			g.t.Fatalf("not in %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type answer struct {
	code   int
	header http.Header
	body   string
	err    error
}

// problem is the code of a problem, "" if it is none.
func (a answer) problem() string {
	var p struct{ Code string }
	if a.header.Get("Content-Type") == "application/problem+json" {
		json.Unmarshal([]byte(a.body), &p)
	}
	return p.Code
}

func (a answer) String() string {
	return fmt.Sprintf("%d %s %.300s (%v)", a.code, a.problem(), a.body, a.err)
}

// do sends a request: headers are "Name: value", a body is what starts with anything else than a name.
func (g *gw) do(method, target string, extra ...string) answer {
	var body io.Reader
	header := http.Header{}
	for _, e := range extra {
		if name, value, ok := strings.Cut(e, ": "); ok && !strings.HasPrefix(e, "{") {
			header.Add(name, value)
			continue
		}
		body = strings.NewReader(e)
		if header.Get("Content-Type") == "" {
			header.Set("Content-Type", "application/json")
		}
	}
	if strings.HasPrefix(target, "/") {
		target = g.scheme() + g.public + target
	}
	req, err := http.NewRequest(method, target, body)
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header = header
	resp, err := g.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// as is the header that names a user.
func (g *gw) as(uid string) string {
	g.t.Helper()
	var out bytes.Buffer
	if err := Run(context.Background(), []string{"token", "-config", g.file, "-uid", uid}, &out, io.Discard); err != nil {
		g.t.Fatal(err)
	}
	return "Authorization: Bearer " + strings.TrimSpace(out.String())
}

func (g *gw) metric(name string) string {
	g.t.Helper()
	s := bufio.NewScanner(strings.NewReader(g.do("GET", "http://"+g.ops+"/metrics").body))
	for s.Scan() {
		if value, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			return value
		}
	}
	return ""
}

// raw opens a connection to the public listener.
func (g *gw) raw() net.Conn {
	g.t.Helper()
	c, err := g.dial(g.t.Context(), "tcp", g.public)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	if g.secure != nil {
		c = tls.Client(c, g.secure)
	}
	return c
}

const orderID = "0190163d-8694-739b-aea5-966c26f8ad91-1"

func TestOrderGoesThrough(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	a := g.do("POST", "/v1/sales/1/orders", g.as("7"), "Idempotency-Key: k-1", "X-User-Id: 8", "X_User_Id: 8", "Floodgate-Uid: 8",
		"X-Forwarded-For: 1.2.3.4", "Floodgate-Client: 9.9.9.0/24", "Connection: x-user-id", "X-Request-Id: my-request-1", `{"quantity": 2}`)
	if a.code != 202 || a.header.Get("Location") != "/v1/orders/x" || !strings.Contains(a.body, `"queued"`) {
		t.Fatalf("got %v", a)
	}
	if a.header.Get("X-Secret") != "" || a.header.Get("Set-Cookie") != "" || a.header.Get("Server") != "" {
		t.Errorf("headers that are not for the client: %v", a.header)
	}
	if a.header.Get("X-Request-Id") != "my-request-1" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got headers %v", a.header)
	}
	calls := p.got("/v1/sales/1/orders")
	if len(calls) != 1 {
		t.Fatalf("got %d calls, want 1", len(calls))
	}
	c := calls[0]
	if c.UID != "7" || c.Key != "k-1" || c.Body != `{"quantity":2}` || c.RequestID != "my-request-1" {
		t.Errorf("the backend got %+v", c)
	}
	if !strings.Contains(c.Header, "Floodgate-Client: 127.0.0.0/24\r\n") || strings.Contains(c.Header, "9.9.9") { // Row D13
		t.Errorf("the client's network is not the connection's:\n%s", c.Header)
	}
	for _, no := range []string{"X-User", "X_user", "X_User", "Forwarded", "Authorization", "Cookie", "User-Agent", "Go-http"} {
		if strings.Contains(c.Header, no) {
			t.Errorf("forwarded %s:\n%s", no, c.Header)
		}
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("9")); a.code != 202 || p.got("/v1/sales/1/orders")[1].Body != `{"quantity":1}` {
		t.Errorf("an order without a body: got %v, %+v", a, p.got("/v1/sales/1/orders")[1])
	}
}

func TestStatusesAndChanges(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.on(echo)
	g := run(t, []string{p.addr})
	me := g.as("7")
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/v1/orders/" + orderID, "GET /v1/orders/" + orderID + " 7"},
		{"GET", "/v1/orders/" + orderID + "?wait_ms=0", "GET /v1/orders/" + orderID + " 7"},
		{"GET", "/v1/orders/" + orderID + "?wait_ms=20000&uid=8", "GET /v1/orders/" + orderID + "?wait_ms=20000 7"},
		{"GET", "/v1/orders", "GET /v1/orders 7"},
		{"GET", "/v1/orders?sale_id=1", "GET /v1/orders?sale_id=1 7"},
		{"GET", "/v1/orders?cursor=abc-1&sale_id=1&user=8", "GET /v1/orders?sale_id=1&cursor=abc-1 7"},
		{"POST", "/v1/orders/" + orderID + "/payment", "POST /v1/orders/" + orderID + "/payment 7"},
		{"POST", "/v1/orders/" + orderID + "/cancellation", "POST /v1/orders/" + orderID + "/cancellation 7"},
		{"GET", "/v1/coupons", "GET /v1/coupons 7"},
		{"GET", "/v1/coupons?cursor=" + orderID + ".1&uid=8", "GET /v1/coupons?cursor=" + orderID + ".1 7"},
		{"POST", "/v1/coupons/" + orderID + ".1/use", "POST /v1/coupons/" + orderID + ".1/use 7"},
	} {
		if a := g.do(c.method, c.path, me); a.code != 200 || a.body != c.want {
			t.Errorf("%s %s: got %v, want %s", c.method, c.path, a, c.want)
		}
	}
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/v1/orders/nonsense", "ORDER_NOT_FOUND"},
		{"GET", "/v1/orders/" + orderID + "?wait_ms=20001", "BAD_REQUEST"},
		{"GET", "/v1/orders/" + orderID + "?wait_ms=-1", "BAD_REQUEST"},
		{"GET", "/v1/orders/" + orderID + "?wait_ms=1&wait_ms=2", "BAD_REQUEST"},
		{"GET", "/v1/orders?sale_id=0", "BAD_REQUEST"},
		{"GET", "/v1/orders?cursor=a%26b", "BAD_REQUEST"},
		{"POST", "/v1/orders/" + orderID, "METHOD_NOT_ALLOWED"},
		{"GET", "/v1/orders/" + orderID + "/payment", "METHOD_NOT_ALLOWED"},
		{"GET", "/v1/orders/" + orderID + "/other", "NOT_FOUND"},
		{"GET", "/v1/coupons?cursor=a%26b", "BAD_REQUEST"},
		{"GET", "/v1/coupons?cursor=a&cursor=b", "BAD_REQUEST"},
		{"GET", "/v1/coupons/" + orderID + ".1/use", "METHOD_NOT_ALLOWED"},
		{"POST", "/v1/coupons", "METHOD_NOT_ALLOWED"},
		{"POST", "/v1/coupons/" + orderID + "/use", "NOT_FOUND"},
		{"POST", "/v1/coupons/" + orderID + ".1", "NOT_FOUND"},
		{"POST", "/v1/coupons/" + orderID + ".1/give", "NOT_FOUND"},
		{"GET", "/v1/nothing", "NOT_FOUND"},
		{"OPTIONS", "/v1/sales", "METHOD_NOT_ALLOWED"},
	} {
		a := g.do(c.method, c.path, me)
		if a.problem() != c.want || a.header.Get("X-Request-Id") == "" || !strings.Contains(a.body, a.header.Get("X-Request-Id")) {
			t.Errorf("%s %s: got %v, want %s", c.method, c.path, a, c.want)
		}
		if (a.code == 405) != (a.header.Get("Allow") != "") {
			t.Errorf("%s %s: got Allow %q", c.method, c.path, a.header.Get("Allow"))
		}
	}
}

func TestBadBodiesStayHere(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("order: {rate: 0.2", "order: {rate: 1000"))
	me := g.as("7")
	for _, c := range []struct {
		body, kind string
		code       int
	}{
		{`{"quantity":3}`, "application/json", 400}, {`{"quantity":0}`, "application/json", 400}, {`{"quantity":-1}`, "application/json", 400},
		{`{"quantity":1.5}`, "application/json", 400}, {`{"quantity":1,"quantity":1}`, "application/json", 400}, {`{"uid":"8"}`, "application/json", 400},
		{`{"quantity":` + strings.Repeat("9", 400) + `}`, "application/json", 400}, {strings.Repeat(`{"a":`, 10000), "application/json", 400},
		{`{}{}`, "application/json", 400}, {`{`, "application/json; charset=utf-8", 400},
		{`{"quantity":1}`, "text/plain", 415}, {`{"quantity":1}`, "application/x-www-form-urlencoded", 415}, {`{"quantity":1}`, "application/jsonp", 415},
		{`{"quantity":"` + strings.Repeat("a", 70000) + `"}`, "application/json", 413},
	} {
		a := g.do("POST", "/v1/sales/1/orders", me, "Content-Type: "+c.kind, c.body)
		if a.code != c.code || a.problem() == "" {
			t.Errorf("%.60s as %s: got %v, want %d", c.body, c.kind, a, c.code)
		}
	}
	for _, key := range []string{"Idempotency-Key: with space", "Idempotency-Key: " + strings.Repeat("a", 129), "Idempotency-Key: ключ"} {
		if a := g.do("POST", "/v1/sales/1/orders", me, key); a.code != 400 {
			t.Errorf("%.40s: got %v", key, a)
		}
	}
	if n := len(p.got("/v1/sales/1/orders")); n != 0 {
		t.Errorf("%d bad bodies reached the backend", n)
	}
}

func TestGateAnswersBeforeIdentity(t *testing.T) {
	p := newPeer(t)
	next := wire.At(p.now().Add(time.Hour))
	p.set(1, func(s *wire.Sale) { s.StartsAt = wire.At(p.now().Add(10 * time.Minute)); s.State = wire.Upcoming })
	p.set(2, func(s *wire.Sale) { s.EndsAt = wire.At(p.now().Add(-time.Second)) })
	p.set(3, func(s *wire.Sale) { s.State = wire.Ended })
	p.set(4, func(s *wire.Sale) { s.State = wire.SoldOut })
	p.set(5, func(s *wire.Sale) { s.State = wire.SoldOut; s.NextReleaseAt = &next })
	p.set(6, func(s *wire.Sale) { s.State = wire.Paused })
	p.set(7, nil)
	g := run(t, []string{p.addr})
	for path, want := range map[string]string{
		"1": "SALE_NOT_STARTED", "2": "SALE_ENDED", "3": "SALE_ENDED", "4": "SOLD_OUT", "5": "SOLD_OUT", "6": "OVERLOADED",
		"99": "SALE_NOT_FOUND", "0": "SALE_NOT_FOUND", "x": "SALE_NOT_FOUND", "7": "UNAUTHENTICATED",
	} {
		a := g.do("POST", "/v1/sales/"+path+"/orders", "Authorization: Bearer rubbish", `{"quantity": "many"}`)
		if a.problem() != want || a.header.Get("Cache-Control") != "no-store" || !strings.Contains(a.body, a.header.Get("X-Request-Id")) {
			t.Errorf("sale %s: got %v, want %s", path, a, want)
		}
		switch path {
		case "1":
			var body struct {
				StartsAt wire.Time `json:"starts_at"`
			}
			json.Unmarshal([]byte(a.body), &body)
			if n := a.header.Get("Retry-After"); n < "599" || n > "602" || !body.StartsAt.Equal(p.sales[1].StartsAt.Time) {
				t.Errorf("got Retry-After %s, starts_at %v", n, body.StartsAt)
			}
		case "5":
			if !strings.Contains(a.body, next.Format(wire.TimeFormat)) {
				t.Errorf("the next release is not told: %v", a)
			}
		case "6":
			if a.code != 503 || a.header.Get("Retry-After") == "" {
				t.Errorf("paused: got %v", a)
			}
		case "7":
			if a.header.Get("WWW-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
		}
	}
	if n := len(p.got("/v1")); n != 0 {
		t.Errorf("%d requests reached the backend", n)
	}
}

func TestGateReopens(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"))
	me := g.as("7")
	press := func() string {
		a := g.do("POST", "/v1/sales/1/orders", me)
		if a.code == 202 {
			return "accepted"
		}
		return a.problem()
	}
	soldOut := func(ctx *fastCtx, _ call) { problemAnswer(ctx, 409, "SOLD_OUT") }
	p.on(soldOut)
	if got := press(); got != "SOLD_OUT" {
		t.Fatalf("got %s", got)
	}
	before := len(p.got("/v1/sales/1/orders"))
	if got := press(); got != "SOLD_OUT" || len(p.got("/v1/sales/1/orders")) != before {
		t.Errorf("got %s, %d calls: a sold-out answer was not remembered", got, len(p.got("/v1/sales/1/orders"))-before)
	}
	// The feed never said sold out, and says nothing now: the mark ends by itself.
	p.on(nil)
	g.until("the mark of a lost message ends", func() bool { return press() == "accepted" })
	p.set(1, func(s *wire.Sale) { s.State = wire.SoldOut })
	g.until("the feed closes the gate", func() bool { return press() == "SOLD_OUT" })
	p.set(1, func(s *wire.Sale) { s.State = wire.Open })
	g.until("the feed opens the gate", func() bool { return press() == "accepted" })
	p.remove(1)
	g.until("the sale is gone", func() bool { return press() == "SALE_NOT_FOUND" })
	p.mu.Lock() // another life of the backend
	p.instance, p.version = "two", 0
	p.mu.Unlock()
	p.set(1, nil)
	g.until("the new instance's feed opens the gate", func() bool { return press() == "accepted" })
}

func TestStaleFeedAsksTheBackend(t *testing.T) {
	p := newPeer(t)
	p.set(1, func(s *wire.Sale) { s.State = wire.SoldOut })
	g := run(t, []string{p.addr}, with("stale_after: 2s", "stale_after: 200ms"), with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"))
	me := g.as("7")
	if a := g.do("POST", "/v1/sales/1/orders", me); a.problem() != "SOLD_OUT" {
		t.Fatalf("got %v", a)
	}
	p.mu.Lock()
	p.silent = true
	p.mu.Unlock()
	// The stock came back, and the feed cannot tell.
	g.until("the gate asks", func() bool { return g.do("POST", "/v1/sales/1/orders", me).code == 202 })
	if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
		t.Errorf("after an accepted order: got %v", a)
	}
	g.until("readiness names it", func() bool {
		a := g.do("GET", "http://"+g.ops+"/-/ready")
		return a.code == 200 && strings.Contains(a.body, "silent")
	})
	refused, asked := 0, len(p.got("/v1/sales/77/orders"))
	for range 200 { // unknown sales: at a bounded rate only
		if g.do("POST", "/v1/sales/77/orders", me).problem() == "OVERLOADED" {
			refused++
		}
	}
	if asked = len(p.got("/v1/sales/77/orders")) - asked; refused == 0 || asked > 100 {
		t.Errorf("got %d of 200 refused, %d asked", refused, asked)
	}
}
