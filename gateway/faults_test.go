package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestUnknownOutcomeIsSaid(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("timeout: 3s", "timeout: 300ms"), with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"))
	me := g.as("7")
	release := make(chan struct{})
	for name, answer := range map[string]func(ctx *fastCtx, c call){
		"cut":  func(ctx *fastCtx, _ call) { ctx.Conn().Close() },
		"late": func(ctx *fastCtx, _ call) { <-release; accept(ctx) },
	} {
		before := len(p.got("/v1/sales/1/orders"))
		p.on(answer)
		a := g.do("POST", "/v1/sales/1/orders", me, "Idempotency-Key: k")
		if a.problem() != "OUTCOME_UNKNOWN" || a.code != 503 || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: got %v", name, a)
		}
		if n := len(p.got("/v1/sales/1/orders")) - before; n != 1 {
			t.Errorf("%s: sent %d times, want once", name, n)
		}
	}
	close(release)
	p.on(nil)
	// A late answer belongs to nobody.
	p.on(echo)
	for range 20 {
		if a := g.do("GET", "/v1/orders/"+orderID, me); a.body != "GET /v1/orders/"+orderID+" 7" {
			t.Fatalf("got somebody else's answer: %v", a)
		}
	}
}

// Who drew the one token of five seconds for an order that nobody took is not told to come back before there is another.
func TestOverloadedNamesATimeAtWhichTheUserIsAdmitted(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("stale_after: 2s", "stale_after: 60s"))
	p.stop()
	a := g.do("POST", "/v1/sales/1/orders", g.as("7"))
	after, err := strconv.Atoi(a.header.Get("Retry-After"))
	if a.problem() != "OVERLOADED" || err != nil || after < 5 {
		t.Errorf("got %v, Retry-After %q; want OVERLOADED and at least 5", a, a.header.Get("Retry-After"))
	}
}

func TestBackendGoneAndBack(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"), with("stale_after: 2s", "stale_after: 60s"))
	me := g.as("7")
	var wg sync.WaitGroup
	for range 20 { // connections to be left idle
		wg.Go(func() { g.do("POST", "/v1/sales/1/orders", me) })
	}
	wg.Wait()
	addr := p.addr
	p.stop()
	for range 5 {
		if a := g.do("POST", "/v1/sales/1/orders", me); a.problem() != "OVERLOADED" || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "nothing was done") {
			t.Errorf("nobody is there: got %v", a)
		}
	}
	if a := g.do("GET", "/v1/orders/"+orderID, me); a.problem() != "OVERLOADED" {
		t.Errorf("got %v", a)
	}
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 200 || !strings.Contains(a.body, addr) {
		t.Errorf("readiness does not name the lost backend: %v", a)
	}
	p.start(addr)
	g.until("it is back", func() bool { return g.do("POST", "/v1/sales/1/orders", me).code == 202 })
	// Killed and back at once: the connections that lie idle are dead, and no order is lost in one of them.
	for range 20 {
		wg.Go(func() { g.do("POST", "/v1/sales/1/orders", me) })
	}
	wg.Wait()
	p.stop()
	p.start(addr)
	for range 20 {
		if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
			t.Errorf("after a quick restart: got %v", a)
		}
	}
}

func TestSecondBackendTakesOver(t *testing.T) {
	a, b := newPeer(t), newPeer(t)
	a.set(1, nil)
	b.set(1, nil)
	b.instance = "other"
	g := run(t, []string{a.addr, b.addr}, with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"))
	me := g.as("7")
	for range 20 {
		g.do("POST", "/v1/sales/1/orders", me)
	}
	if na, nb := len(a.got("/v1/sales/1/orders")), len(b.got("/v1/sales/1/orders")); na == 0 || nb == 0 {
		t.Errorf("got %d and %d orders, want some at each", na, nb)
	}
	a.stop()
	for range 20 {
		if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
			t.Errorf("one of two is gone: got %v", a)
		}
	}
	b.set(1, func(s *sale) { s.State = "paused" })
	g.until("the feed goes on with the other", func() bool { return g.do("POST", "/v1/sales/1/orders", me).problem() == "OVERLOADED" })
}

func TestInFlightBound(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	release, entered := make(chan struct{}), make(chan struct{}, 10)
	p.on(func(ctx *fastCtx, _ call) { entered <- struct{}{}; <-release; accept(ctx) })
	g := run(t, []string{p.addr}, with("max_in_flight: 64", "max_in_flight: 2"), with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"))
	me := g.as("7")
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
				t.Errorf("got %v", a)
			}
		})
		<-entered
	}
	if a := g.do("POST", "/v1/sales/1/orders", me); a.problem() != "OVERLOADED" {
		t.Errorf("a third at once: got %v", a)
	}
	// Who waits for news does not take the place of who orders.
	p.on(func(ctx *fastCtx, c call) { entered <- struct{}{}; <-release; echo(ctx, c) })
	wg.Go(func() {
		if a := g.do("GET", "/v1/orders/"+orderID+"?wait_ms=10000", me); a.code != 200 {
			t.Errorf("a wait while the rest is full: got %v", a)
		}
	})
	<-entered
	close(release)
	wg.Wait()
}

func TestDrain(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	release, entered := make(chan struct{}), make(chan struct{})
	p.on(func(ctx *fastCtx, _ call) { close(entered); <-release; accept(ctx) })
	g := run(t, []string{p.addr})
	me := g.as("7")
	answered := make(chan answer, 1)
	go func() { answered <- g.do("POST", "/v1/sales/1/orders", me) }()
	<-entered
	g.cancel()
	g.log.await(t, "msg=draining")
	g.until("new connections are refused", func() bool {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
		_, err := c.Get("http://" + g.public + "/v1/time")
		return err != nil
	})
	select {
	case a := <-answered:
		t.Errorf("got %v before the backend answered", a)
	default:
	}
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 503 || !strings.Contains(a.body, "draining") {
		t.Errorf("readiness while draining: got %v", a)
	}
	close(release)
	if a := <-answered; a.code != 202 {
		t.Errorf("the request in flight: got %v", a)
	}
	if err := <-g.done; err != nil {
		t.Errorf("got %v", err)
	}
	g.done <- nil
}

func TestDrainEnds(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	release, entered := make(chan struct{}), make(chan struct{})
	p.on(func(ctx *fastCtx, _ call) { close(entered); <-release; accept(ctx) })
	g := run(t, []string{p.addr}, with("drain: 5s", "drain: 100ms"))
	me := g.as("7")
	answered := make(chan answer, 1)
	go func() { answered <- g.do("POST", "/v1/sales/1/orders", me) }()
	<-entered
	g.cancel()
	if err := <-g.done; err != nil {
		t.Errorf("got %v", err)
	}
	g.done <- nil
	if a := <-answered; a.err == nil {
		t.Errorf("got %v, want a closed connection", a)
	}
	close(release)
}

func TestStartProblems(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	// The address is taken: exit code 1.
	other := configText([]string{p.addr}, with(`public: "127.0.0.1:0"`, `public: "`+g.public+`"`))
	if err := runOnce(t, other, "-config"); exitCode(err) != 1 {
		t.Errorf("got %v", err)
	}
	for _, args := range [][]string{{}, {"-config", "/does/not/exist"}, {"nonsense"}, {"token", "-config", g.file}, {"-config", g.file, "-nonsense"}} {
		if err := runArgs(args...); exitCode(err) != 2 {
			t.Errorf("%v: got %v, want exit code 2", args, err)
		}
	}
	if err := runArgs("-help"); err != nil {
		t.Errorf("help: got %v", err)
	}
}

// When places at the backends are short pages are refused first, then new orders; what was promised is served to the last.
func TestWhatWasPromisedComesFirst(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.set(2, nil)
	release, entered := make(chan struct{}), make(chan struct{}, 20)
	p.on(func(ctx *fastCtx, c call) {
		if c.Method == "POST" && strings.HasSuffix(c.Target, "/orders") {
			entered <- struct{}{}
			<-release
		}
		accept(ctx)
	})
	g := run(t, []string{p.addr}, with("timeout: 3s, max_in_flight: 64", "timeout: 60s, max_in_flight: 10, max_per_sale: 7"), with("order: {rate: 0.2, burst: 1", "order: {rate: 1000, burst: 1000"))
	me := g.as("7")
	var wg sync.WaitGroup
	order := func(sale string) {
		wg.Go(func() {
			if a := g.do("POST", "/v1/sales/"+sale+"/orders", me); a.code != 202 {
				t.Errorf("got %v", a)
			}
		})
		<-entered
	}
	for range 7 {
		order("1")
	}
	refused := func(what string, a answer, bound string) {
		t.Helper()
		if a.problem() != "OVERLOADED" || a.code != 503 || a.header.Get("Retry-After") == "" || g.metric(`gateway_upstream_refused_total{bound="`+bound+`"}`) != "1" {
			t.Errorf("%s: got %v, %s counted", what, a, g.metric(`gateway_upstream_refused_total{bound="`+bound+`"}`))
		}
	}
	refused("an eighth of one sale", g.do("POST", "/v1/sales/1/orders", me), "sale")
	refused("a page", g.do("GET", "/v1/sales/1"), "page")
	order("2")
	refused("an order of another sale", g.do("POST", "/v1/sales/2/orders", me), "order")
	if a := g.do("POST", "/v1/cart/orders", me, "Idempotency-Key: k", `{"items":[{"sku_id":1,"quantity":1}]}`); a.problem() != "OVERLOADED" {
		t.Errorf("a cart: got %v", a)
	}
	for _, promised := range [][]string{{"GET", "/v1/orders/" + orderID}, {"POST", "/v1/orders/" + orderID + "/payment"}, {"POST", "/v1/orders/" + orderID + "/cancellation"},
		{"GET", "/v1/orders"}, {"POST", "/v1/coupons/" + orderID + ".1/use"}, {"POST", "/v1/payments/webhook/test"}} {
		if a := g.do(promised[0], promised[1], me); a.code != 202 {
			t.Errorf("%v: got %v", promised, a)
		}
	}
	close(release)
	wg.Wait()
	if a := g.do("GET", "/v1/sales/1"); a.code != 200 {
		t.Errorf("afterwards: got %v", a)
	}
	if got := g.metric(`gateway_upstream_backend_up{backend="` + p.addr + `"}`); got != "1" {
		t.Errorf("the backend is up: %s", got)
	}
}

// Without news the backend is asked, by those who can order: the others are told what the gate believes, and take no place.
func TestWhoCannotOrderAsksNobody(t *testing.T) {
	p := newPeer(t)
	p.set(1, func(s *sale) { s.State = "sold_out" })
	g := run(t, []string{p.addr}, with("stale_after: 2s", "stale_after: 500ms"))
	p.mu.Lock()
	p.silent = true
	p.mu.Unlock()
	g.until("the feed is lost", func() bool { return g.metric("gateway_feed_fresh") == "0" })
	for range 100 {
		for _, token := range []string{"Authorization: Bearer rubbish", "X-User-Id: 7"} {
			if a := g.do("POST", "/v1/sales/1/orders", token); a.problem() != "SOLD_OUT" {
				t.Fatalf("%s: got %v", token, a)
			}
		}
	}
	if got := g.metric(`gateway_gate_asked_total{why="stale"}`); got != "0" || len(p.got("/v1/sales/1/orders")) != 0 {
		t.Errorf("%s asked", got)
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("7")); a.code != 202 { // it reopened, and nobody could tell
		t.Errorf("got %v", a)
	}
}
