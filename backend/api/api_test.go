package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"floodgate.internal/backend/admission"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

var testKey = signing.Key{ID: "gw", Secret: strings.Repeat("s", signing.MinSecret)}

// caller signs requests to a server, as a gateway does.
type caller struct {
	t      testing.TB
	client *fasthttp.HostClient
	signer *signing.Signer
	clock  *clock.Clock
}

func start(t testing.TB, limits Limits) (*Server, *caller) {
	clk := &clock.Clock{}
	clk.Set(time.Now(), time.Now())
	s := New(Config{Keys: []signing.Key{testKey}, Limits: limits, Clock: clk, Log: slog.New(slog.DiscardHandler), Register: prometheus.NewRegistry()})
	ln := fasthttputil.NewInmemoryListener()
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	c := &caller{t, &fasthttp.HostClient{Addr: "backend", Dial: func(string) (net.Conn, error) { return ln.Dial() }, DisablePathNormalizing: true}, signing.NewSigner(testKey), clk}
	t.Cleanup(func() {
		c.client.CloseIdleConnections()
		if err := errors.Join(s.Shutdown(t.Context()), ln.Close(), <-done); err != nil && !errors.Is(err, fasthttputil.ErrInmemoryListenerClosed) {
			t.Error(err)
		}
	})
	return s, c
}

// longLine keeps nobody waiting whom the other limits let in.
var longLine = admission.Limits{Slots: 1000, Waiting: 1000, PerUnit: 1000, Wait: time.Minute}

var roomy = Limits{InFlight: 10, Waiting: 10, Connections: 100, Queued: 100, Lag: time.Hour, Line: longLine}

// begin gives the server a catalog that has not been read: enough for what is refused before any sale is looked up.
func (s *Server) begin() {
	s.Begin(Parts{Catalog: catalog.New(catalog.Config{Clock: s.Clock, Log: s.Log, Register: prometheus.NewRegistry()})})
}

func (c *caller) request(method, target, body string) *fasthttp.Request {
	req := fasthttp.AcquireRequest()
	req.Header.SetMethod(method)
	req.SetRequestURI(target)
	req.Header.SetHost("backend")
	if body != "" {
		req.SetBodyString(body)
		req.Header.SetContentType("application/json")
	}
	return req
}

func (c *caller) do(req *fasthttp.Request) *fasthttp.Response {
	c.t.Helper()
	res := fasthttp.AcquireResponse()
	if err := c.client.DoTimeout(req, res, time.Minute); err != nil {
		c.t.Fatalf("%s %s: %v", req.Header.Method(), req.RequestURI(), err)
	}
	return res
}

// signed sends a request in the name of uid.
func (c *caller) signed(req *fasthttp.Request, uid string) *fasthttp.Response {
	c.t.Helper()
	c.signer.Sign(req, uid, c.clock.Now())
	return c.do(req)
}

func wantProblem(t testing.TB, res *fasthttp.Response, code problem.Code, says string) {
	t.Helper()
	var p problem.Problem
	if err := json.Unmarshal(res.Body(), &p); err != nil {
		t.Errorf("got %d %s, want problem %s", res.StatusCode(), res.Body(), code)
		return
	}
	if p.Code != code || p.Status != res.StatusCode() || !strings.Contains(p.Detail, says) ||
		string(res.Header.ContentType()) != problem.ContentType || p.RequestID != string(res.Header.Peek("X-Request-Id")) ||
		string(res.Header.Peek("Cache-Control")) != "no-store" {
		t.Errorf("got %d %s, want %s that says %q", res.StatusCode(), res.Body(), code, says)
	}
	if (res.StatusCode() == 503) != (len(res.Header.Peek("Retry-After")) > 0) && code != problem.SaleNotStarted {
		t.Errorf("got Retry-After %q with %d", res.Header.Peek("Retry-After"), res.StatusCode())
	}
}

func TestBeforeBeginEverythingIsOverloaded(t *testing.T) {
	_, c := start(t, roomy)
	wantProblem(t, c.signed(c.request("GET", "/v1/time", ""), ""), problem.Overloaded, "starting")
}

func TestUnsignedRequestsAreRefusedAndCounted(t *testing.T) {
	s, c := start(t, roomy)
	s.begin()
	sign := func(change func(*fasthttp.Request)) *fasthttp.Response {
		req := c.request("POST", "/v1/sales/1/orders", `{"quantity":1}`)
		req.Header.Set("Idempotency-Key", "k")
		c.signer.Sign(req, "alice", c.clock.Now())
		change(req)
		return c.do(req)
	}
	for name, change := range map[string]func(*fasthttp.Request){
		"unsigned":        func(r *fasthttp.Request) { r.Header.Del(signing.HeaderSignature) },
		"unknown key":     func(r *fasthttp.Request) { r.Header.Set(signing.HeaderKey, "other") },
		"another user":    func(r *fasthttp.Request) { r.Header.Set(signing.HeaderUID, "bob") },
		"another body":    func(r *fasthttp.Request) { r.SetBodyString(`{"quantity":2}`) },
		"another path":    func(r *fasthttp.Request) { r.SetRequestURI("/v1/sales/2/orders") },
		"another key":     func(r *fasthttp.Request) { r.Header.Set("Idempotency-Key", "l") },
		"another method":  func(r *fasthttp.Request) { r.Header.SetMethod("PUT") },
		"an old time":     func(r *fasthttp.Request) { r.Header.Set(signing.HeaderTime, "1") },
		"no time":         func(r *fasthttp.Request) { r.Header.Del(signing.HeaderTime) },
		"a public header": func(r *fasthttp.Request) { r.Header.Del(signing.HeaderUID); r.Header.Set("X-User-Id", "alice") },
	} {
		t.Run(name, func(t *testing.T) {
			res := sign(change)
			wantProblem(t, res, problem.Unauthenticated, "signed by a gateway")
			if len(res.Header.Peek("WWW-Authenticate")) == 0 {
				t.Error("no WWW-Authenticate")
			}
			if ms, err := strconv.ParseInt(string(res.Header.Peek(signing.HeaderTime)), 10, 64); err != nil || c.clock.Now().Sub(time.UnixMilli(ms)).Abs() > time.Minute {
				t.Errorf("got %s %q, want the time to sign by", signing.HeaderTime, res.Header.Peek(signing.HeaderTime))
			}
		})
	}
	if got := testutil.ToFloat64(s.metrics.unsigned[signing.ErrMismatch]); got != 6 {
		t.Errorf("got %v mismatches counted, want 6", got)
	}
	if got := testutil.ToFloat64(s.metrics.unsigned[signing.ErrUnsigned]); got != 1 {
		t.Errorf("got %v unsigned counted, want 1", got)
	}
	if got := testutil.ToFloat64(s.metrics.requests[&unrouted]["UNAUTHENTICATED"]); got != 10 {
		t.Errorf("got %v refusals counted, want 10", got)
	}
	wantProblem(t, c.signed(c.request("GET", "/v1/time", ""), "a b"), problem.Unauthenticated, "")
}

const someOrder = "0190163d-8694-739b-aea5-966c26f8ad91-42"

func TestRefusals(t *testing.T) {
	s, c := start(t, roomy)
	s.begin()
	long := strings.Repeat("k", wire.MaxIdempotencyKey+1)
	for _, r := range []struct {
		method, target, uid, body string
		header                    []string
		code                      problem.Code
		says                      string
	}{
		{"GET", "/", "", "", nil, problem.NotFound, ""},
		{"GET", "/v1/sales/", "", "", nil, problem.NotFound, ""},
		{"GET", "/v1/sales/1/", "", "", nil, problem.NotFound, ""},
		{"GET", "/v1//sales", "", "", nil, problem.NotFound, ""},
		{"GET", "/v1/sales/../time", "", "", nil, problem.NotFound, ""},
		{"GET", "/v1/%74ime", "", "", nil, problem.NotFound, ""},
		{"POST", "/v1/sales/1/orders/2", "alice", "", nil, problem.NotFound, ""},
		{"GET", "/v1/orders/" + someOrder + "/x", "alice", "", nil, problem.NotFound, ""},
		{"GET", "/internal/v1/feed/", "", "", nil, problem.NotFound, ""},
		{"POST", "/v1/sales", "", "", nil, problem.MethodNotAllowed, "GET"},
		{"GET", "/v1/sales/1/orders", "alice", "", nil, problem.MethodNotAllowed, "POST"},
		{"DELETE", "/v1/orders/" + someOrder, "alice", "", nil, problem.MethodNotAllowed, "GET"},
		{"GET", "/v1/sales/abc", "", "", nil, problem.BadRequest, "sale_id"},
		{"GET", "/v1/sales/0", "", "", nil, problem.BadRequest, "sale_id"},
		{"GET", "/v1/sales/9223372036854775808", "", "", nil, problem.BadRequest, "sale_id"},
		{"POST", "/v1/sales/-1/orders", "alice", "", nil, problem.BadRequest, "sale_id"},
		{"POST", "/v1/sales/1/orders", "", "", nil, problem.Unauthenticated, "user"},
		{"GET", "/v1/orders", "", "", nil, problem.Unauthenticated, "user"},
		{"GET", "/v1/orders/" + someOrder, "", "", nil, problem.Unauthenticated, "user"},
		{"POST", "/v1/orders/" + someOrder + "/cancellation", "", "", nil, problem.Unauthenticated, "user"},
		{"GET", "/v1/time?x=1", "", "", nil, problem.BadRequest, "x: "},
		{"GET", "/v1/orders?sale_id=1&sale_id=1", "alice", "", nil, problem.BadRequest, "sale_id: it is there more than once"},
		{"GET", "/v1/orders?sale_id=", "alice", "", nil, problem.BadRequest, "sale_id"},
		{"GET", "/v1/orders?sale_id=01", "alice", "", nil, problem.BadRequest, "sale_id"},
		{"GET", "/v1/orders?uid=bob", "alice", "", nil, problem.BadRequest, "uid"},
		{"GET", "/v1/orders?cursor=%00", "alice", "", nil, problem.BadRequest, "cursor"},
		{"GET", "/v1/orders?cursor=%zz", "alice", "", nil, problem.BadRequest, "query"},
		{"GET", "/v1/orders/" + someOrder + "?wait_ms=20001", "alice", "", nil, problem.BadRequest, "wait_ms"},
		{"GET", "/v1/orders/" + someOrder + "?wait_ms=-1", "alice", "", nil, problem.BadRequest, "wait_ms"},
		{"GET", "/v1/orders/" + someOrder + "?wait_ms=1.5", "alice", "", nil, problem.BadRequest, "wait_ms"},
		{"GET", "/v1/orders/" + someOrder + "?wait_ms=", "alice", "", nil, problem.BadRequest, "wait_ms"},
		{"GET", "/v1/orders/1", "alice", "", nil, problem.OrderNotFound, ""},
		{"GET", "/v1/orders/" + strings.ToUpper(someOrder), "alice", "", nil, problem.OrderNotFound, ""},
		{"GET", wire.FeedPath + "?since=x", "", "", nil, problem.BadRequest, "since"},
		{"GET", wire.FeedPath + "?wait_ms=x", "", "", nil, problem.BadRequest, "wait_ms"},
		{"GET", wire.FeedPath + "?instance=a%20b", "", "", nil, problem.BadRequest, "instance"},
		{"GET", wire.FeedPath, "", "", nil, problem.Overloaded, "being read"},
		{"GET", "/v1/sales", "", "", nil, problem.Overloaded, "being read"},
		{"POST", "/v1/sales/1/orders", "alice", "", []string{"Idempotency-Key", ""}, problem.BadRequest, "Idempotency-Key"},
		{"POST", "/v1/sales/1/orders", "alice", "", []string{"Idempotency-Key", "a b"}, problem.BadRequest, "Idempotency-Key"},
		{"POST", "/v1/sales/1/orders", "alice", "", []string{"Idempotency-Key", long}, problem.BadRequest, "Idempotency-Key"},
		{"POST", "/v1/sales/1/orders", "alice", "", []string{"Idempotency-Key", "a", "Idempotency-Key", "a"}, problem.BadRequest, "more than once"},
		{"POST", "/v1/sales/1/orders", "alice", "quantity=1", []string{"Content-Type", "application/x-www-form-urlencoded"}, problem.UnsupportedMediaType, "form"},
		{"POST", "/v1/orders/" + someOrder + "/payment", "alice", "", nil, problem.Forbidden, "no test payments"},
		{"POST", "/v1/orders/" + someOrder + "/cancellation", "alice", `{"why":1}`, nil, problem.BadRequest, "why"},
		{"POST", "/v1/orders/" + someOrder + "/cancellation", "alice", `x`, []string{"Content-Type", "text/plain"}, problem.UnsupportedMediaType, "text/plain"},
	} {
		req := c.request(r.method, r.target, r.body)
		for i := 0; i < len(r.header); i += 2 {
			if i > 0 || r.header[i] == "Content-Type" {
				req.Header.Del(r.header[i])
			}
		}
		for i := 0; i < len(r.header); i += 2 {
			req.Header.Add(r.header[i], r.header[i+1])
		}
		res := c.signed(req, r.uid)
		t.Run(fmt.Sprintf("%s %.60s %v", r.method, r.target, r.header), func(t *testing.T) {
			wantProblem(t, res, r.code, r.says)
			if r.code == problem.MethodNotAllowed && string(res.Header.Peek("Allow")) != r.says {
				t.Errorf("got Allow %q, want %q", res.Header.Peek("Allow"), r.says)
			}
		})
	}
}

// What the parser refuses is answered as a problem too, before the body has come.
func TestMalformedRequests(t *testing.T) {
	s, c := start(t, roomy)
	s.begin()
	for text, want := range map[string]struct {
		status int
		code   problem.Code
	}{
		fmt.Sprintf("POST /v1/sales/1/orders HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n", maxBody+1): {413, problem.PayloadTooLarge},
		"GET /v1/time HTTP/1.1\r\nHost: b\r\nX: " + strings.Repeat("x", maxHeader) + "\r\n\r\n":             {431, problem.BadRequest},
		"nonsense\r\n\r\n": {400, problem.BadRequest},
	} {
		conn, err := c.client.Dial("")
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() { _, err := conn.Write([]byte(text)); written <- err }()
		res := fasthttp.AcquireResponse()
		if err := res.Read(bufio.NewReader(conn)); err != nil {
			t.Fatalf("%.40q: %v", text, err)
		}
		wantProblem(t, res, want.code, "")
		if res.StatusCode() != want.status || !res.ConnectionClose() {
			t.Errorf("%.40q: got %s, want %d and the connection closed", text, res, want.status)
		}
		conn.Close()
		<-written // with an error, where the server closed before it had read all of it
	}
}

func TestRequestID(t *testing.T) {
	s, c := start(t, roomy)
	s.begin()
	for sent, passed := range map[string]bool{"abc-1": true, "": false, "a b": false, strings.Repeat("a", 65): false, "<script>": false} {
		req := c.request("GET", "/v1/time", "")
		req.Header.Set("X-Request-Id", sent)
		res := c.signed(req, "")
		got := string(res.Header.Peek("X-Request-Id"))
		if (got == sent) != passed || got == "" || res.StatusCode() != 200 {
			t.Errorf("%q: got %q, %d; want it passed through: %v", sent, got, res.StatusCode(), passed)
		}
	}
}

func TestTimeIsTheServersAndNeverCached(t *testing.T) {
	s, c := start(t, roomy)
	s.begin()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	s.Clock.Set(at, time.Now())
	res := c.signed(c.request("GET", "/v1/time", ""), "")
	var now wire.Now
	if err := json.Unmarshal(res.Body(), &now); err != nil || now.Now.Sub(at).Abs() > time.Minute || string(res.Header.Peek("Cache-Control")) != "no-store" {
		t.Errorf("got %s, %v", res, err)
	}
}

func TestAPanicIsA500AndTheServerGoesOn(t *testing.T) {
	s, c := start(t, roomy)
	s.begin() // without a reader of orders
	wantProblem(t, c.signed(c.request("GET", "/v1/orders", ""), "alice"), problem.Internal, "")
	if res := c.signed(c.request("GET", "/v1/time", ""), ""); res.StatusCode() != 200 {
		t.Errorf("after a panic: got %d", res.StatusCode())
	}
	if got := testutil.ToFloat64(s.metrics.panics); got != 1 {
		t.Errorf("got %v panics counted, want 1", got)
	}
	if got := s.inFlight.Load(); got != 0 {
		t.Errorf("got %d requests in flight, want 0", got)
	}
}

// What the backend logs of a request has the ids by which the gateway logs it.
func TestALogLineNamesTheRequestAndItsTrace(t *testing.T) {
	s, c := start(t, roomy)
	var out bytes.Buffer
	s.Log = slog.New(slog.NewTextHandler(&out, nil))
	s.begin() // without a reader of orders, which is a panic
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for given, want := range map[string]string{
		"00-" + trace + "-b7ad6b7169203331-00": " request_id=the-id trace_id=" + trace + " stack=",
		"ff-" + trace + "-b7ad6b7169203331-00": " request_id=the-id stack=",
		"":                                     " request_id=the-id stack=",
	} {
		out.Reset()
		req := c.request("GET", "/v1/orders", "")
		req.Header.Set("X-Request-Id", "the-id")
		req.Header.Set("traceparent", given)
		wantProblem(t, c.signed(req, "alice"), problem.Internal, "")
		if !strings.Contains(out.String(), want) {
			t.Errorf("traceparent %q: got %s, want%s", given, &out, want)
		}
	}
}

func TestInFlightIsBounded(t *testing.T) {
	s, c := start(t, Limits{InFlight: 1, Waiting: 1, Connections: 10, Queued: 1, Lag: time.Hour, Line: longLine})
	s.begin()
	if p := s.enter(); p != nil {
		t.Fatal(p)
	}
	wantProblem(t, c.signed(c.request("GET", "/v1/time", ""), ""), problem.Overloaded, "in flight")
	unpark, ok := s.park() // who waits makes room
	if !ok {
		t.Fatal("cannot park")
	}
	if res := c.signed(c.request("GET", "/v1/time", ""), ""); res.StatusCode() != 200 {
		t.Errorf("got %d, want 200", res.StatusCode())
	}
	if _, ok := s.park(); ok {
		t.Error("more wait than may")
	}
	unpark()
	s.inFlight.Add(-1)
	if in, waiting := s.inFlight.Load(), s.waiting.Load(); in != 0 || waiting != 0 {
		t.Errorf("got %d in flight, %d waiting; want none", in, waiting)
	}
}

// Every verdict of the script is either an acceptance or stands in the table.
func TestEveryVerdictHasAnAnswer(t *testing.T) {
	for _, answer := range []lua.Answer{lua.KeyReused, lua.AlreadyOrdered, lua.SoldOut, lua.NotEnough, lua.TooMany, lua.NotStarted, lua.Ended, lua.Paused, lua.StaleEpoch} {
		if _, ok := refusals[answer]; !ok {
			t.Errorf("%s has no answer", answer)
		}
	}
}

func TestWarningsOfAKindAreSparse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := sparse{log: slog.New(slog.NewTextHandler(&out, nil))}
		for range 1000 {
			s.warn("redis is away")
			s.warn("mysql is away")
		}
		time.Sleep(time.Second)
		s.warn("redis is away")
		if n := strings.Count(out.String(), "\n"); n != 3 || !strings.Contains(out.String(), "not_logged=999") {
			t.Errorf("got %s, want 3 lines, the last of which counts 999 more", out.String())
		}
	})
}

func TestTagMatches(t *testing.T) {
	for header, want := range map[string]bool{`"a"`: true, `W/"a"`: true, `"b", W/"a"`: true, "*": true, `"b"`: false, "": false, "a": false} {
		if got := tagMatches(header, `"a"`); got != want {
			t.Errorf("%s: got %v, want %v", header, got, want)
		}
	}
}

// Every answer says which request it is to, and a backend that is full says that it serves.
func TestAnswersNameTheirRequestAndHealthIsNeverFull(t *testing.T) {
	s, c := start(t, Limits{InFlight: 0, Waiting: 1, Connections: 100, Line: longLine})
	health := func() *fasthttp.Response {
		req := c.request("GET", wire.HealthPath, "")
		res := c.signed(req, "")
		if nonce := req.Header.Peek(signing.HeaderNonce); len(nonce) == 0 || !bytes.Equal(nonce, res.Header.Peek(signing.HeaderNonce)) {
			t.Errorf("got nonce %q for %q", res.Header.Peek(signing.HeaderNonce), nonce)
		}
		return res
	}
	wantProblem(t, health(), problem.Overloaded, "starting")
	s.begin()
	wantProblem(t, health(), problem.Overloaded, "being read")
	wantProblem(t, c.signed(c.request("GET", "/v1/time", ""), ""), problem.Overloaded, "in flight")
	unsigned := c.request("GET", "/v1/time", "")
	unsigned.Header.Set(signing.HeaderNonce, "n")
	if res := c.do(unsigned); res.StatusCode() != 401 || string(res.Header.Peek(signing.HeaderNonce)) != "n" {
		t.Errorf("a refusal: got %s", &res.Header)
	}
	s.stop()
	wantProblem(t, health(), problem.Overloaded, "draining")
}

// BenchmarkRequest is what every request costs before and after its own work: the signature, the route, the metrics.
func BenchmarkRequest(b *testing.B) {
	clk := &clock.Clock{}
	clk.Set(time.Now(), time.Now())
	s := New(Config{Keys: []signing.Key{testKey}, Limits: roomy, Clock: clk, Log: slog.New(slog.DiscardHandler), Register: prometheus.NewRegistry()})
	s.begin()
	var ctx fasthttp.RequestCtx
	ctx.Request.SetRequestURI("/v1/time")
	signing.NewSigner(testKey).Sign(&ctx.Request, "alice", clk.Now())
	b.ReportAllocs()
	for b.Loop() {
		ctx.Response.Reset()
		s.serve(&ctx)
	}
	if ctx.Response.StatusCode() != 200 {
		b.Fatalf("got %d", ctx.Response.StatusCode())
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("/v1/sales/1/orders", "a=b")
	f.Fuzz(func(t *testing.T, path, query string) {
		rt, arg := match(path)
		if rt != nil && strings.Contains(arg, "/") {
			t.Errorf("%q: got argument %q", path, arg)
		}
		if q, p := parseQuery(query, []string{"wait_ms"}); p == nil && len(q) > 1 {
			t.Errorf("%q: got %v", query, q)
		}
	})
}
