package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
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

// Row D3: over the limit is the page from the cache, not an error.
func TestOverTheLimitGetsThePageThereIs(t *testing.T) {
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
	for _, path := range []string{"/", "/sales/1", "/assets/app.js"} {
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
	token := strings.TrimPrefix(g.as("9"), "Authorization: Bearer ")
	for _, a := range []answer{g.do("POST", "/v1/session", g.as("9")), g.do("POST", "/v1/session", `{"token":"`+token+`"}`)} {
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
