package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	brotli "github.com/molecule-man/go-brrr"
)

func TestThousandMissesAreOneCall(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	wait, entered := make(chan struct{}), make(chan struct{}, 1000)
	release := sync.OnceFunc(func() { close(wait) })
	t.Cleanup(release)
	p.onPage = func(ctx *fastCtx) {
		entered <- struct{}{}
		<-wait
		p.page(ctx, string(ctx.Path()))
	}
	g := run(t, []string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 1m"), // a thousand connections may take a while
		with("read_timeout: 2s, idle_timeout: 5s", "read_timeout: 1m, idle_timeout: 1m"), with("upstream: {timeout: 3s", "upstream: {timeout: 1m"))
	g.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 1000
	const n = 1000
	var wg sync.WaitGroup
	var mu sync.Mutex
	how := map[string]int{}
	get := func() {
		a := g.do("GET", "/v1/sales/1?x=1")
		mu.Lock()
		defer mu.Unlock()
		how[a.header.Get("X-Cache")]++
		if a.code != 200 || a.header.Get("ETag") == "" || !strings.Contains(a.body, `"Sale 1"`) || a.header.Get("Cache-Control") != "public, max-age=60" {
			t.Errorf("got %v %v", a, a.header)
		}
	}
	wg.Go(get)
	<-entered
	for range n - 1 {
		wg.Go(get)
	}
	g.until("all wait", func() bool { return g.metric("gateway_connections") == fmt.Sprint(n) })
	release()
	wg.Wait()
	if calls := len(p.got("/v1/sales/1")); calls != 1 {
		t.Errorf("got %d calls, want 1", calls)
	}
	if how["MISS"] != 1 || how["MISS"]+how["COALESCED"]+how["HIT"] != n {
		t.Errorf("got %v", how)
	}
	if a := g.do("GET", "/v1/sales/1"); a.header.Get("X-Cache") != "HIT" {
		t.Errorf("got %v", a.header)
	}
}

func TestPagesFollowTheFeed(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.set(2, nil)
	g := run(t, []string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 1m"))
	first := g.do("GET", "/v1/sales/1")
	if first.header.Get("X-Cache") != "MISS" || g.do("GET", "/v1/sales/1").header.Get("X-Cache") != "HIT" {
		t.Fatalf("got %v", first.header)
	}
	tag := first.header.Get("ETag")
	for _, match := range []string{tag, strings.TrimPrefix(tag, "W/"), "*", `"x", ` + tag} {
		a := g.do("GET", "/v1/sales/1", "If-None-Match: "+match)
		if a.code != 304 || a.body != "" || a.header.Get("ETag") != tag || a.header.Get("Cache-Control") == "" {
			t.Errorf("If-None-Match %s: got %v %v", match, a, a.header)
		}
	}
	if a := g.do("GET", "/v1/sales/1", `If-None-Match: "x"`); a.code != 200 {
		t.Errorf("another tag: got %v", a)
	}
	if a := g.do("HEAD", "/v1/sales/1"); a.code != 200 || a.body != "" || a.header.Get("Content-Length") != fmt.Sprint(len(first.body)) {
		t.Errorf("HEAD: got %v %v", a, a.header)
	}
	g.do("GET", "/v1/sales")
	g.do("GET", "/v1/sales/2")
	p.set(1, func(s *sale) { s.Title = "Renamed" })
	g.until("the page is new, long before its time", func() bool { return strings.Contains(g.do("GET", "/v1/sales/1").body, "Renamed") })
	if a := g.do("GET", "/v1/sales"); !strings.Contains(a.body, "Renamed") {
		t.Errorf("the list is old: %v", a)
	}
	if a := g.do("GET", "/v1/sales/2"); a.header.Get("X-Cache") != "HIT" {
		t.Errorf("the page of a sale that did not change is gone: %v", a.header)
	}
	if a := g.do("GET", "/v1/sales/99"); a.problem() != "SALE_NOT_FOUND" || len(p.got("/v1/sales/99")) != 0 {
		t.Errorf("an unknown sale: got %v, %d calls", a, len(p.got("/v1/sales/99")))
	}
	p.stop()
	if a := g.do("GET", "/v1/sales/1"); a.code != 200 {
		t.Errorf("without a backend: got %v", a)
	}
}

func TestStalePageIsBetterThanNone(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 1ms"), with("stale_after: 2s", "stale_after: 1m"))
	if a := g.do("GET", "/v1/sales/1"); a.code != 200 {
		t.Fatalf("got %v", a)
	}
	for _, code := range []int{500, 503} {
		p.mu.Lock()
		p.onPage = func(ctx *fastCtx) { ctx.SetStatusCode(code); ctx.SetBodyString("broken") }
		p.mu.Unlock()
		g.until("the page is stale", func() bool {
			a := g.do("GET", "/v1/sales/1")
			if a.code != 200 || !strings.Contains(a.body, "Sale 1") {
				t.Fatalf("backend says %d: got %v", code, a)
			}
			return a.header.Get("X-Cache") == "STALE"
		})
	}
	if a := g.do("GET", "/v1/sales"); a.problem() != "OVERLOADED" || strings.Contains(a.body, "broken") {
		t.Errorf("a page that was never there: got %v", a)
	}
	p.stop()
	if a := g.do("GET", "/v1/sales/1"); a.code != 200 || a.header.Get("X-Cache") != "STALE" {
		t.Errorf("no backend: got %v %v", a, a.header)
	}
}

// Row D3: who is over the limit gets the page that there is, and 429 only where there is none.
func TestOverTheLimitGetsThePageThereIs(t *testing.T) {
	t.Attr("row", "D3")
	p := newPeer(t)
	p.set(1, nil)
	p.set(2, nil)
	g := run(t, []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 0.01, burst: 2"), with("cache: {ttl: 1s", "cache: {ttl: 1ms"))
	me := g.as("7")
	g.do("GET", "/v1/sales/1", me)
	for range 2 { // empties the bucket
		g.do("GET", "/v1/orders/"+orderID, me)
	}
	if a := g.do("GET", "/v1/orders/"+orderID, me); a.problem() != "RATE_LIMITED" || a.code != 429 {
		t.Fatalf("got %v", a)
	}
	g.until("the page is too old to be fresh", func() bool {
		a := g.do("GET", "/v1/sales/1", me)
		if a.code != 200 || !strings.Contains(a.body, "Sale 1") {
			t.Fatalf("over the limit: got %v", a)
		}
		return a.header.Get("X-Cache") == "STALE"
	})
	if a := g.do("GET", "/v1/sales/2", me); a.problem() != "RATE_LIMITED" || len(p.got("/v1/sales/2")) != 0 {
		t.Errorf("over the limit, no page: got %v", a)
	}
	if a := g.do("GET", "/v1/sales/2"); a.code != 200 {
		t.Errorf("somebody else: got %v", a)
	}
	if a := g.do("GET", "/v1/sales/2", "Authorization: Bearer rubbish"); a.code != 200 {
		t.Errorf("a public page does not need a token: got %v", a)
	}
}

// What a user asks about their own orders is asked of the backend each time, and kept by nobody.
func TestWhatIsOnesOwnIsNeverKept(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.on(echo)
	g := run(t, []string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 1m"))
	users := map[string]string{"7": g.as("7"), "8": g.as("8")}
	for _, path := range []string{"/v1/orders", "/v1/orders?sale_id=1", "/v1/orders/" + orderID, "/v1/orders/" + orderID + "?wait_ms=1000"} {
		for range 2 {
			for _, uid := range []string{"7", "8"} {
				a := g.do("GET", path, users[uid])
				if want := "GET " + path + " " + uid; a.code != 200 || a.body != want {
					t.Errorf("uid %s: got %v, want %s", uid, a, want)
				}
				if a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Cache") != "" {
					t.Errorf("uid %s, %s: it may be kept: %v", uid, path, a.header)
				}
			}
		}
	}
	if a := g.do("GET", "/v1/orders"); a.code != 401 {
		t.Errorf("nobody: got %v, want 401", a)
	}
	for _, uid := range []string{"7", "8"} {
		a := g.do("GET", "/v1/session", users[uid])
		if !strings.Contains(a.body, `"uid":"`+uid+`"`) || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("uid %s: got %v %v", uid, a, a.header)
		}
	}
	if n := len(p.got("/v1/orders")); n != 16 {
		t.Errorf("the backend was asked %d times, want 16", n)
	}
}

func TestLimits(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	a := g.do("POST", "/v1/sales/1/orders", g.as("7"))
	b := g.do("POST", "/v1/sales/1/orders", g.as("7"))
	c := g.do("POST", "/v1/sales/1/orders", g.as("8"))
	if a.code != 202 || b.problem() != "RATE_LIMITED" || c.code != 202 {
		t.Fatalf("got %v, %v, %v", a, b, c)
	}
	if h := b.header; h.Get("RateLimit-Policy") != `"order";q=1;w=5` || h.Get("RateLimit") != `"order";r=0;t=5` || h.Get("Retry-After") < "5" || h.Get("Retry-After") > "6" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("got %v", h)
	}
	if a := g.do("GET", "/v1/orders", g.as("7")); a.code != 202 { // the peer accepts everything
		t.Errorf("reads do not draw on the order bucket: got %v", a)
	}
	if n := len(p.got("/v1/sales/1/orders")); n != 2 {
		t.Errorf("got %d orders at the backend, want 2", n)
	}
	if got := g.metric(`gateway_requests_total{result="rate_limited",route="order_post"}`); got != "1" {
		t.Errorf("got %s refusals counted, want 1", got)
	}
}

// Row D13: an address has a limit of its own.
func TestIPLimit(t *testing.T) {
	t.Attr("row", "D13")
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: []`), with("ip: {rate: 50, burst: 100", "ip: {rate: 0.01, burst: 3"))
	for range 3 {
		if a := g.do("GET", "/v1/orders"); a.code != 401 {
			t.Fatalf("got %v", a)
		}
	}
	a := g.do("GET", "/v1/orders", "X-Forwarded-For: 9.9.9.9")
	if a.problem() != "RATE_LIMITED" || !strings.Contains(a.header.Get("RateLimit"), `"ip"`) {
		t.Errorf("got %v", a)
	}
	if a := g.do("GET", "/v1/time"); a.code != 200 {
		t.Errorf("the time: got %v", a)
	}
	if a := g.do("GET", "/"); a.code != 200 {
		t.Errorf("the page: got %v", a)
	}
}

func TestOpsListener(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	g.do("GET", "/v1/time")
	for path, want := range map[string]string{
		"/-/healthy": "healthy", "/-/ready": `"ready": true`, "/-/config": `"max_header": 8192`, "/debug/pprof/": "goroutine",
		"/metrics": `gateway_requests_total{result="ok",route="time"} 1`,
	} {
		if a := g.do("GET", "http://"+g.ops+path); a.code != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: got %v, want %s", path, a, want)
		}
	}
	if a := g.do("GET", "http://"+g.ops+"/-/reload"); a.code != 405 {
		t.Errorf("GET /-/reload: got %v", a)
	}
	if a := g.do("GET", "/-/healthy"); a.problem() != "NOT_FOUND" {
		t.Errorf("ops paths are not public: got %v", a)
	}
}

func TestTopNamesWhoAsksMost(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 0.01, burst: 2"))
	for range 5 {
		g.do("GET", "/v1/orders", g.as("ann"))
	}
	g.do("GET", "/v1/orders", g.as("bob"))
	g.do("GET", "/v1/orders", "Authorization: Bearer x")
	a := g.do("GET", "http://"+g.ops+"/-/top?n=1")
	for _, want := range []string{`"uids": [
    {
      "name": "ann",
      "requests": 5,
      "over": 0,
      "refused": 3
    }
  ]`, `"addresses": [
    {
      "name": "127.0.0.1",
      "requests": 7,
      "over": 0,
      "refused": 4
    }
  ]`} {
		if a.code != 200 || !strings.Contains(a.body, want) {
			t.Errorf("got %v, want %s", a.body, want)
		}
	}
	for _, n := range []string{"0", "x", "1025"} {
		if a := g.do("GET", "http://"+g.ops+"/-/top?n="+n); a.problem() != "BAD_REQUEST" {
			t.Errorf("n=%s: got %v", n, a)
		}
	}
}

func TestAccessLog(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	g := run(t, []string{p.addr}, func(s string) string { return s + "log: {access_every: 1}\n" }, with("read: {rate: 10, burst: 20", "read: {rate: 0.01, burst: 1"))
	g.do("GET", "/v1/orders?sale_id=1", g.as("ann"), "X-Request-Id: the-first", "traceparent: 00-"+trace+"-b7ad6b7169203331-01")
	g.do("GET", "/v1/orders", g.as("ann"), "X-Request-Id: the-second")
	g.log.await(t, `msg=request request_id=the-first method=GET route=orders_get status=202 result=ok took=\S+ bytes=\d+ uid=ann network=127.0.0.0/24 trace_id=`+trace)
	g.log.await(t, `msg=request request_id=the-second method=GET route=orders_get status=429 result=rate_limited took=\S+ bytes=\d+ rule=read uid=ann`)
	if c := p.got("/v1/orders?"); len(c) != 1 || !strings.Contains(c[0].Header, "\r\nTraceparent: 00-"+trace) {
		t.Errorf("the backend got %+v", c)
	}
	g.write(strings.Replace(configText([]string{p.addr}), "cache:", "log: {access_every: 0}\ncache:", 1))
	g.log.await(t, `generation=2`)
	g.do("GET", "/v1/time", "X-Request-Id: the-third")
	if strings.Contains(g.log.String(), "the-third") {
		t.Error("a request is logged, though none is to be")
	}
	if strings.Contains(g.log.String(), "Bearer") || strings.Contains(g.log.String(), "eyJ") {
		t.Error("a token is in the log")
	}
}

// Whatever is sent to a backend has a trace, the one that the log names; what is refused here has none of its own.
func TestTraces(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, func(s string) string { return s + "log: {access_every: 1}\n" }, with("read: {rate: 10, burst: 20", "read: {rate: 0.01, burst: 12"))
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	well := regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])$`)
	seen := map[string]bool{}
	for i, c := range []struct {
		given, trace, flags string // trace: "" for a new one
	}{
		{"00-" + trace + "-" + parent + "-00", trace, "00"},
		{"00-" + trace + "-" + parent + "-01", trace, "01"},
		{"", "", "01"},
		{"", "", "01"},
		{"ff-" + trace + "-" + parent + "-00", "", "01"},
		{"00-" + strings.ToUpper(trace) + "-" + parent + "-00", "", "01"},
		{"00-" + strings.Repeat("0", 32) + "-" + parent + "-00", "", "01"},
		{"00-" + trace + "-" + strings.Repeat("0", 16) + "-00", "", "01"},
		{"00-" + trace + "-" + parent + "-00-x", "", "01"},
		{"00-" + trace + "-" + parent, "", "01"},
		{"00-" + trace + "-" + parent + "-00\ntraceparent: 00-" + trace + "-" + parent + "-00", "", "01"},
	} {
		id := fmt.Sprintf("request-%d", i)
		header := []string{g.as("ann"), "X-Request-Id: " + id}
		for line := range strings.SplitSeq("traceparent: "+c.given, "\n") {
			if c.given != "" {
				header = append(header, line)
			}
		}
		g.do("GET", "/v1/orders", header...)
		calls := p.got("/v1/orders")
		sent := calls[len(calls)-1]
		m := well.FindStringSubmatch(field(sent.Header, "Traceparent"))
		if m == nil || sent.RequestID != id {
			t.Errorf("%q: the backend got %s", c.given, sent.Header)
			continue
		}
		if isNew := m[1] != trace; isNew != (c.trace == "") || isNew && seen[m[1]] || m[3] != c.flags || m[2] == parent || seen[m[2]] {
			t.Errorf("%q: the backend got %s, want trace %q with flags %s, each new id once", c.given, m[0], c.trace, c.flags)
		}
		seen[m[1]], seen[m[2]] = true, true
		g.log.await(t, `msg=request request_id=`+id+` .* trace_id=`+m[1]+` `)
	}
	g.do("GET", "/v1/sales", "X-Request-Id: the-page")
	if c := p.got("/v1/sales"); len(c) != 1 || !well.MatchString(field(c[0].Header, "Traceparent")) {
		t.Errorf("for a page the backend got %v", c)
	} else {
		g.log.await(t, `msg=request request_id=the-page .* trace_id=`+well.FindStringSubmatch(field(c[0].Header, "Traceparent"))[1]+` `)
	}
	g.do("GET", "/v1/orders", g.as("ann"))
	if a := g.do("GET", "/v1/orders", g.as("ann"), "X-Request-Id: the-refused"); a.code != 429 {
		t.Errorf("got %v, want 429", a)
	}
	g.log.await(t, `msg=request request_id=the-refused .* network=127.0.0.0/24 code=`)

	g.write(strings.Replace(configText([]string{p.addr}), "cache:", "log: {access_every: 0}\ncache:", 1))
	g.log.await(t, `generation=2`)
	g.do("GET", "/v1/orders?sale_id=1", g.as("bob"))
	if c := p.got("/v1/orders?"); len(c) != 1 || !strings.HasSuffix(field(c[0].Header, "Traceparent"), "-00") {
		t.Errorf("of what is not logged the backend got %v", c)
	}
	p.stop()
	g.do("GET", "/v1/orders", g.as("cid"), "X-Request-Id: the-lost", "traceparent: 00-"+trace+"-"+parent+"-00")
	g.log.await(t, `request_id=the-lost trace_id=`+trace+`\n`)
}

// field is a field of a request's head.
func field(head, name string) string {
	_, rest, _ := strings.Cut(head, "\r\n"+name+": ")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

func TestNotReadyBeforeTheFeed(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.silent = true
	g := launch(t, []string{p.addr}, with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"))
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 503 || !strings.Contains(a.body, "feed") {
		t.Errorf("got %v", a)
	}
	if a := g.do("GET", "/v1/time"); a.code != 200 {
		t.Errorf("got %v", a)
	}
	p.mu.Lock()
	p.silent = false
	p.mu.Unlock()
	g.awaitReady()
	if a := g.do("POST", "/v1/sales/1/orders", g.as("7")); a.code != 202 {
		t.Errorf("got %v", a)
	}
}

func TestTimeIsTheServers(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	a := g.do("GET", "/v1/time")
	var now struct{ Now time.Time }
	if err := json.Unmarshal([]byte(a.body), &now); err != nil || a.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("got %v, %v", a, err)
	}
	if d := p.now().Sub(now.Now); d < -10*time.Second || d > 10*time.Second {
		t.Errorf("got %v, the server's clock says %v", now.Now, p.now())
	}
}

func TestPage(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	for _, path := range []string{"/", "/sales/1", "/assets/favicon.svg"} {
		a := g.do("GET", path)
		h := a.header
		if a.code != 200 || a.body == "" || h.Get("ETag") == "" || h.Get("Cache-Control") == "" || h.Get("X-Cache") == "" ||
			h.Get("Content-Security-Policy") == "" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: got %d %v", path, a.code, h)
		}
		if a := g.do("GET", path, "If-None-Match: "+h.Get("ETag")); a.code != 304 {
			t.Errorf("%s: got %v, want 304", path, a)
		}
	}
	for _, path := range []string{"/sales/x", "/sales/", "/assets/nothing.js", "/assets/"} {
		if a := g.do("GET", path); a.problem() != "NOT_FOUND" {
			t.Errorf("%s: got %v", path, a)
		}
	}
}

func TestSession(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.on(echo)
	g := run(t, []string{p.addr})
	a := g.do("POST", "/v1/dev/session", `{"uid":"7"}`)
	cookie, attributes, _ := strings.Cut(a.header.Get("Set-Cookie"), ";")
	if a.code != 200 || !strings.Contains(a.body, `"uid":"7"`) || !strings.HasPrefix(cookie, "floodgate_session=") {
		t.Fatalf("got %v %v", a, a.header)
	}
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=86400"} {
		if !strings.Contains(attributes, want) {
			t.Errorf("got %s, want %s", attributes, want)
		}
	}
	cookie = "Cookie: " + cookie
	if a := g.do("GET", "/v1/session", cookie); a.code != 200 || !strings.Contains(a.body, `"uid":"7"`) {
		t.Errorf("who am I: got %v", a)
	}
	if a := g.do("GET", "/v1/orders", cookie); a.body != "GET /v1/orders 7" {
		t.Errorf("a read by cookie: got %v", a)
	}
	pay := "/v1/orders/" + orderID + "/payment"
	for _, c := range []struct {
		header string
		code   int
	}{
		{"Sec-Fetch-Site: same-origin", 200}, {"Origin: http://" + g.public, 200},
		{"Sec-Fetch-Site: cross-site", 403}, {"Sec-Fetch-Site: same-site", 403}, {"Sec-Fetch-Site: none", 403}, {"Origin: http://evil.example", 403},
		{"Origin: http://" + g.public + ".evil.example", 403}, {"Origin: null", 403}, {"Referer: http://" + g.public + "/", 403},
	} {
		if a := g.do("POST", pay, cookie, c.header); a.code != c.code || c.code == 403 && a.problem() != "FORBIDDEN" {
			t.Errorf("a write by cookie with %s: got %v, want %d", c.header, a, c.code)
		}
	}
	if a := g.do("POST", pay, g.as("8"), cookie, "Sec-Fetch-Site: cross-site"); a.body != "POST "+pay+" 8" {
		t.Errorf("a bearer token beside a cookie: got %v", a)
	}
	bearer := g.as("9") // one token: another is another as soon as the second changes
	token := strings.TrimPrefix(bearer, "Authorization: Bearer ")
	for _, a := range []answer{g.do("POST", "/v1/session", bearer), g.do("POST", "/v1/session", `{"token":"`+token+`"}`)} {
		if a.code != 200 || !strings.Contains(a.body, `"uid":"9"`) || !strings.HasPrefix(a.header.Get("Set-Cookie"), "floodgate_session="+token) {
			t.Errorf("got %v %v", a, a.header)
		}
	}
	for name, a := range map[string]answer{
		"no token": g.do("POST", "/v1/session"), "a bad one": g.do("POST", "/v1/session", `{"token":"x"}`), "line ends": g.do("POST", "/v1/session", `{"token":"`+token+`\r\nSet-Cookie: a=b"}`),
		"a cookie cannot renew itself": g.do("POST", "/v1/session", cookie),
	} {
		if a.code != 401 || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: got %v %v", name, a, a.header)
		}
	}
	if a := g.do("DELETE", "/v1/session", cookie, "Sec-Fetch-Site: cross-site"); a.code != 403 {
		t.Errorf("somebody else's page signs out: got %v", a)
	}
	if a := g.do("DELETE", "/v1/session", cookie, "Sec-Fetch-Site: same-origin"); a.code != 204 || !strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("signing out: got %v %v", a, a.header)
	}
	for _, body := range []string{`{}`, `{"uid":""}`, `{"uid":"a b"}`, `{"uid":7}`, `{"uid":"7","x":1}`} {
		if a := g.do("POST", "/v1/dev/session", body); a.code != 400 {
			t.Errorf("%s: got %v", body, a)
		}
	}
}

// One page, in the coding that the client likes best, under one tag; there are no ranges of it.
func TestCodings(t *testing.T) {
	p := newPeer(t)
	for id := range int64(50) {
		p.set(id+1, nil)
	}
	g := run(t, []string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 1m"))
	for _, path := range []string{"/v1/sales", "/"} {
		plain := g.do("GET", path, "Accept-Encoding: identity")
		tag := plain.header.Get("ETag")
		if plain.code != 200 || !strings.HasPrefix(tag, "W/") || plain.header.Get("Content-Encoding") != "" {
			t.Fatalf("%s: got %v %v", path, plain, plain.header)
		}
		for accept, want := range map[string]string{"gzip": "gzip", "gzip, deflate, br": "br", "br;q=0.5, gzip;q=0.8": "gzip", "gzip;q=0": "", "identity;q=0, gzip": "gzip", "deflate": "", "*": "br"} {
			a := g.do("GET", path, "Accept-Encoding: "+accept)
			var r io.Reader = strings.NewReader(a.body)
			var err error
			switch want {
			case "gzip":
				r, err = gzip.NewReader(r)
			case "br":
				r = brotli.NewReader(r)
			}
			if err != nil {
				t.Errorf("%s, %s: %v", path, accept, err)
				continue
			}
			body, err := io.ReadAll(r)
			if a.code != 200 || err != nil || string(body) != plain.body || a.header.Get("Content-Encoding") != want || a.header.Get("ETag") != tag || a.header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("%s, %s: got %d %v of %d bytes, %v", path, accept, a.code, a.header, len(a.body), err)
			}
			head := g.do("HEAD", path, "Accept-Encoding: "+accept)
			if head.body != "" || head.header.Get("Content-Length") != fmt.Sprint(len(a.body)) || head.header.Get("Content-Encoding") != want {
				t.Errorf("HEAD %s, %s: got %v", path, accept, head.header)
			}
			if a := g.do("GET", path, "Accept-Encoding: "+accept, "If-None-Match: "+tag); a.code != 304 || a.header.Get("Vary") != "Accept-Encoding" || a.body != "" {
				t.Errorf("%s, %s: got %v %v, want 304", path, accept, a, a.header)
			}
		}
		for _, accept := range []string{"*;q=0", "identity;q=0", "identity;q=0, deflate"} {
			if a := g.do("GET", path, "Accept-Encoding: "+accept); a.code != 406 || a.problem() != "BAD_REQUEST" || a.header.Get("ETag") != "" || a.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s, %s: got %v %v, want 406", path, accept, a, a.header)
			}
		}
		if a := g.do("GET", path, "Range: bytes=0-1", "Accept-Encoding: identity"); a.code != 200 || a.body != plain.body || a.header.Get("Accept-Ranges") != "" {
			t.Errorf("%s: a range: got %d of %d bytes", path, a.code, len(a.body))
		}
	}
	if n := len(p.got("/v1/sales")); n != 1 {
		t.Errorf("the backend was asked %d times", n)
	}
	if a := g.do("GET", "/v1/sales/1"); a.header.Get("X-Cache") != "MISS" {
		t.Errorf("got %v", a.header)
	}
}

func TestWhatTheBackendForbidsToKeepIsNotKept(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 1m"))
	for i, rule := range []string{"private", "no-store", "private, max-age=9"} {
		p.mu.Lock()
		p.onPage = func(ctx *fastCtx) { ctx.Response.Header.Set("Cache-Control", rule); p.page(ctx, string(ctx.Path())) }
		p.mu.Unlock()
		for range 2 {
			if a := g.do("GET", "/v1/sales/1"); a.code != 200 || a.header.Get("X-Cache") != "MISS" {
				t.Errorf("%s: got %v %v", rule, a, a.header)
			}
		}
		if n := len(p.got("/v1/sales/1")); n != 2*i+2 {
			t.Errorf("%s: asked %d times, want %d", rule, n, 2*i+2)
		}
	}
	p.mu.Lock()
	p.onPage = func(ctx *fastCtx) {
		ctx.Response.Header.Set("Content-Encoding", "gzip")
		p.page(ctx, string(ctx.Path()))
	}
	p.mu.Unlock()
	if a := g.do("GET", "/v1/sales/1"); a.problem() != "OVERLOADED" {
		t.Errorf("in a coding that nobody asked for: got %v", a)
	}
}
