package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// stopped is a clock that stands still until a test moves it on.
type stopped struct {
	start time.Time
	moved atomic.Int64
}

func newClock() *stopped { return &stopped{start: time.Now()} }

func (s *stopped) now() time.Time { return s.start.Add(time.Duration(s.moved.Load())) }

func (s *stopped) move(d time.Duration) { s.moved.Add(int64(d)) }

// runAt starts a gateway that is ready, whose buckets go by the clock.
func runAt(t *testing.T, clk *stopped, backends []string, edits ...edit) *gw {
	t.Helper()
	g := launchBy(t, func(ctx context.Context, g *gw) error { return serve(ctx, g.file, clk.now, g.log) }, backends, edits...)
	g.awaitReady()
	return g
}

// limits sets keys of limits.
func limits(lines ...string) edit {
	return with("limits:\n", "limits:\n  "+strings.Join(lines, "\n  ")+"\n")
}

// behind has every client come through a proxy: who asks says from where. Those in 10.0.0.0/8 have no limits of addresses.
func behind(s string) string {
	return with("limits:", `trusted_proxies: ["127.0.0.0/8", "10.9.0.0/16"]`+"\nlimits:")(with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: ["10.0.0.0/8"]`)(s))
}

func from(addr string) string { return "X-Forwarded-For: " + addr }

// Rows D2, D10, D13: whoever is refused and waits exactly as long as told is admitted, by every rule, and by several at once;
// and was told to wait no longer than is needed.
func TestWaitingAsToldIsEnough(t *testing.T) {
	t.Attr("row", "D2 D10 D13")
	const order, exempt = "/v1/sales/1/orders", "10.0.0.1"
	change := "/v1/orders/" + orderID
	for _, c := range []struct {
		name, policy string
		edits        []edit
		ask          func(g *gw, i int) answer // for the i-th time
	}{
		{"order", `"order";q=1;w=5`, nil,
			func(g *gw, _ int) answer { return g.do("POST", order, g.as("7"), from(exempt)) }},
		{"order by two laws", `"order";q=2;w=3, "order-2";q=3;w=60`, []edit{with("order: {rate: 0.2, burst: 1", "order: {rate: 0.7, burst: 2, also: [{rate: 0.05, burst: 3}]")},
			func(g *gw, _ int) answer { return g.do("POST", order, g.as("7"), from(exempt)) }},
		{"payment", `"payment";q=2;w=7`, []edit{limits("payment: {rate: 0.3, burst: 2}")},
			func(g *gw, i int) answer {
				return g.do("POST", change+[]string{"/payment", "/cancellation"}[i%2], g.as("7"), from(exempt))
			}},
		{"read", `"read";q=3;w=14`, []edit{with("read: {rate: 10, burst: 20", "read: {rate: 0.22, burst: 3")},
			func(g *gw, _ int) answer { return g.do("GET", change, g.as("7"), from(exempt)) }},
		{"address", `"ip";q=2;w=6`, []edit{with("ip: {rate: 50, burst: 100", "ip: {rate: 0.37, burst: 2")},
			func(g *gw, i int) answer { // another user, from another address of one /64
				return g.do("GET", change, g.as(fmt.Sprint("u", i)), from(fmt.Sprintf("2001:db8:7:7::%x", i)))
			}},
		{"webhook", `"webhook";q=2;w=6`, []edit{limits("webhook: {rate: 0.37, burst: 2}")},
			func(g *gw, _ int) answer { return g.do("POST", hook, mark, "{}", from("192.0.2.1")) }},
		{"all orders", `"global";q=2;w=7`, []edit{limits("global: {rate: 0.3, burst: 2, max_wait: 0s}"), with("order: {rate: 0.2, burst: 1", "order: {rate: 10, burst: 9")},
			func(g *gw, i int) answer { return g.do("POST", order, g.as(fmt.Sprint("u", i)), from(exempt)) }},
		{"order, and an address that is slower", "", []edit{with("ip: {rate: 50, burst: 100", "ip: {rate: 0.05, burst: 2"), limits("ip_users: {rate: 0.05, burst: 2}")},
			func(g *gw, _ int) answer { return g.do("POST", order, g.as("7"), from("192.0.2.1")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, clk := newPeer(t), newClock()
			p.set(1, nil)
			g := runAt(t, clk, []string{p.addr}, append([]edit{behind}, c.edits...)...)
			asked := 0
			ask := func() answer { asked++; return c.ask(g, asked) }
			refusals := 0
			for round := 0; round < 12; round++ {
				a := ask()
				if a.err != nil || a.code != 429 && a.code >= 400 && a.code != 404 {
					t.Fatalf("got %v", a)
				}
				if a.code != 429 {
					continue
				}
				refusals++
				h := a.header
				wait, err := strconv.Atoi(h.Get("Retry-After"))
				_, level, _ := strings.Cut(h.Get("RateLimit"), ";t=")
				reset, err2 := strconv.Atoi(level)
				if err != nil || err2 != nil || wait < reset || c.policy != "" && (h.Get("RateLimit-Policy") != c.policy || wait > reset+1) {
					t.Fatalf("got Retry-After %s, RateLimit %s, RateLimit-Policy %s; want %s", h.Get("Retry-After"), h.Get("RateLimit"), h.Get("RateLimit-Policy"), c.policy)
				}
				if c.policy != "" && refusals%2 == 0 { // without the jitter, and a second short of it
					wait = reset
					clk.move(time.Duration(wait-1) * time.Second)
					if a := ask(); a.code != 429 {
						t.Fatalf("a second early: got %v", a)
					}
					clk.move(time.Second)
				} else {
					clk.move(time.Duration(wait) * time.Second)
				}
				if a := ask(); a.code == 429 {
					t.Fatalf("after waiting %d s, as told by %v: got %v %v", wait, h, a, a.header)
				}
			}
			if refusals < 3 {
				t.Errorf("%d refusals, want several", refusals)
			}
		})
	}
}

// Rows D2, D10: also who was let through and is OVERLOADED after all, by the backend or for want of one, finds the limits open when
// they come back as told.
func TestOverloadedWaitsForTheLimits(t *testing.T) {
	t.Attr("row", "D2 D10")
	p := newPeer(t)
	p.set(1, nil)
	p.on(func(ctx *fastCtx, _ call) {
		full := problem.New(problem.Overloaded, "full")
		full.RetryAfter = time.Second
		full.WriteTo(ctx, "id")
	})
	clk := newClock()
	g := runAt(t, clk, []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 0.1, burst: 1"), with("order: {rate: 0.2, burst: 1", "order: {rate: 0.01, burst: 1"))
	for i, uid := range []string{"7", "8"} {
		if i > 0 {
			p.stop()
		}
		for path, wait := range map[string]int{"POST /v1/sales/1/orders": 100, "GET /v1/orders": 10} {
			method, path, _ := strings.Cut(path, " ")
			a := g.do(method, path, g.as(uid))
			if after, err := strconv.Atoi(a.header.Get("Retry-After")); a.code != 503 || err != nil || after < wait || after > wait+1 {
				t.Errorf("%s %s: got %v, Retry-After %s, want %d or a second more", uid, path, a, a.header.Get("Retry-After"), wait)
			}
		}
	}
}

// Row D13: behind proxies the address is the one that a trusted hop has seen, whatever the client writes; IPv6 goes by its /56.
func TestTheClientsAddress(t *testing.T) {
	t.Attr("row", "D13")
	p := newPeer(t)
	p.set(1, nil)
	strict := with("ip: {rate: 50, burst: 100", "ip: {rate: 0.001, burst: 1")
	g := run(t, []string{p.addr}, behind, strict)
	for _, c := range []struct {
		headers []string
		code    int // 401: asked for the first time
	}{
		{[]string{from("203.0.113.1")}, 401},
		{[]string{from("203.0.113.1")}, 429},
		{[]string{from("9.9.9.9, 203.0.113.1")}, 429},
		{[]string{from("10.9.0.1,203.0.113.1")}, 429}, // pretends that a trusted hop came before
		{[]string{from("9.9.9.9"), from("203.0.113.1")}, 429},
		{[]string{from("203.0.113.1"), from("10.9.0.1 ,\t127.0.0.3")}, 429},
		{[]string{from("203.0.113.1:4711")}, 429},
		{[]string{from("::ffff:203.0.113.1")}, 429},
		{[]string{from("203.0.113.2")}, 401},
		{[]string{from("2001:db8:1:2::a")}, 401},
		{[]string{from("2001:db8:1:ff:ffff::b")}, 429},
		{[]string{from("[2001:db8:1:2::c]:443")}, 429},
		{[]string{from("2001:db8:1:103::a")}, 401},
		{nil, 401}, // the proxy itself
		{[]string{from("unknown")}, 429},
		{[]string{from("203.0.113.9, unknown")}, 429},
		{[]string{from("")}, 429},
		{[]string{"X-Real-IP: 203.0.113.7"}, 429},
		{[]string{"Forwarded: for=203.0.113.1"}, 429},
		{[]string{"Forwarded: for=9.9.9.9, for=\"203.0.113.1:4711\";proto=https, For=127.0.0.3;by=10.9.0.1"}, 429},
		{[]string{`Forwarded: for="`, "Forwarded: for=203.0.113.1"}, 429},
		{[]string{`Forwarded: for="9.9.9.9, for=203.0.113.1`}, 429},
		{[]string{"Forwarded: for=203.0.113.3"}, 401},
		{[]string{`Forwarded: for="[2001:db8:1:2::a]:443"`}, 429},
		{[]string{"Forwarded: for=203.0.113.3", from("203.0.113.3")}, 429},
		{[]string{"Forwarded: for=203.0.113.4", from("203.0.113.3")}, 400},
		{[]string{"Forwarded: for=unknown", from("203.0.113.3")}, 400},
		{[]string{from("10.0.0.1")}, 401}, // exempt
		{[]string{from("10.0.0.1")}, 401},
	} {
		if a := g.do("GET", "/v1/orders", c.headers...); a.code != c.code {
			t.Errorf("%q: got %v, want %d", c.headers, a, c.code)
		}
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("7"), from("6.6.6.6, 198.51.100.77")); a.code != 202 || !strings.Contains(p.got("/v1/sales/1/orders")[0].Header, "Floodgate-Client: 198.51.100.0/24\r\n") {
		t.Errorf("got %v; the backend got %s", a, p.got("/v1/sales/1/orders")[0].Header)
	}
	// The proxies are trusted no more.
	g.write(configText([]string{p.addr}, strict, with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: []`)))
	if a := g.reload(); a.code != 200 {
		t.Fatalf("got %v", a)
	}
	if got := g.metric("gateway_untrusted_forwarded_total"); got != "0" {
		t.Errorf("%s requests of untrusted peers are counted, want none", got)
	}
	for i, field := range []string{from("203.0.113.99"), "Forwarded: for=203.0.113.98"} {
		if a := g.do("GET", "/v1/orders", field); a.code != 429 {
			t.Errorf("%s, not trusted: got %v, want it counted for the connection's address", field, a)
		}
		if got := g.metric("gateway_untrusted_forwarded_total"); got != fmt.Sprint(i+1) {
			t.Errorf("%s: %s are counted, want %d", field, got, i+1)
		}
	}
	g.do("POST", "/v1/sales/99/orders", from("203.0.113.99")) // by the fast path
	if got, n := g.metric("gateway_untrusted_forwarded_total"), strings.Count(g.log.String(), "is not read"); got != "3" || n != 1 {
		t.Errorf("%s are counted, %d logged, want 3 and 1", got, n)
	}
}

// The bounds of connections follow a reload, and do not hold for each of a trusted proxy's connections.
func TestReloadOfConnectionBounds(t *testing.T) {
	p := newPeer(t)
	bound := func(n int) edit { return with("server: {", fmt.Sprintf("server: {max_connections_per_ip: %d, ", n)) }
	none := with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: []`)
	g := run(t, []string{p.addr}, none, bound(100))
	taken := func() bool {
		c := g.raw()
		io.WriteString(c, "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n")
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		return strings.Contains(string(b[:n]), "200 OK")
	}
	var held []net.Conn
	for range 5 {
		held = append(held, g.raw())
		io.WriteString(held[len(held)-1], "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := held[len(held)-1].Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		edits []edit
		taken bool
	}{
		{[]edit{none, bound(3)}, false}, {[]edit{none, bound(30)}, true}, {[]edit{none, with("server: {", "server: {max_connections: 3, ")}, false},
		{[]edit{behind, bound(3)}, true},
	} {
		g.write(configText([]string{p.addr}, c.edits...))
		if a := g.reload(); a.code != 200 {
			t.Fatalf("got %v", a)
		}
		if got := taken(); got != c.taken {
			t.Errorf("one more than 5: got %v, want %v", got, c.taken)
		}
	}
}

// Row D13: who is banned costs no more than the refusal, and what is not said of them stays as it is.
func TestBans(t *testing.T) {
	t.Attr("row", "D13")
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, behind, limits(`banned_networks: ["203.0.113.0/24", "2001:db8::/32"]`, `banned_uids: [mallory]`))
	mallory, alice := g.as("mallory"), g.as("alice")
	bad := []string{from("9.9.9.9, 203.0.113.77"), from("2001:db8:ffff::1")}
	for _, header := range bad {
		for _, c := range []string{"GET /", "GET /v1/time", "GET /v1/sales", "GET /v1/sales/1", "GET /v1/orders", "POST /v1/sales/1/orders", "POST " + hook} {
			method, path, _ := strings.Cut(c, " ")
			if a := g.do(method, path, alice, header); a.code != 403 || a.problem() != "FORBIDDEN" || a.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s, %s: got %v, want 403 FORBIDDEN", c, header, a)
			}
		}
	}
	if a := g.do("GET", "/v1/nowhere", bad[0]); a.code != 404 {
		t.Errorf("got %v", a)
	}
	for _, c := range []string{"/v1/sales/1/orders", wire.CartPath} {
		if a := g.do("POST", c, mallory, "Idempotency-Key: k", from("10.0.0.1"), `{"items":[{"sku_id":1,"quantity":1}]}`); a.problem() != "FORBIDDEN" || !strings.Contains(a.body, "orders that it has stand") {
			t.Errorf("%s: got %v, want 403 FORBIDDEN", c, a)
		}
	}
	if n := len(p.got("")); n != 0 {
		t.Errorf("%d requests came to the backend: %+v", n, p.got(""))
	}
	if got := g.metric(`gateway_refusals_total{rule="ban"}`); got != "16" {
		t.Errorf("%s refusals are counted, want 16", got)
	}
	if a := g.do("POST", "/v1/orders/"+orderID+"/cancellation", mallory, from("10.0.0.1")); a.code != 202 { // the peer accepts everything
		t.Errorf("what they have: got %v", a)
	}
	g.write(configText([]string{p.addr}, behind, limits("banned_uids: [alice]")))
	if a := g.reload(); a.code != 200 {
		t.Fatalf("got %v", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", mallory, bad[0]); a.code != 202 {
		t.Errorf("no longer banned: got %v, want it taken: a ban draws on no bucket", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", alice, bad[0]); a.problem() != "FORBIDDEN" {
		t.Errorf("banned by a reload: got %v", a)
	}
}

// Row D13: while there is a list of who may order, nobody else does; who is banned does not either, and a repeat is no exception.
// What they have stays theirs, and their timeline tells why.
func TestWhoMayOrder(t *testing.T) {
	t.Attr("row", "D13")
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, soon)
	ann, bob, mallory := g.as("ann"), g.as("bob"), g.as("mallory")
	orders := []string{"/v1/sales/1/orders", wire.CartPath, wire.StandbyPath(1)}
	order := func(path, who string) answer {
		body := ""
		if path == wire.CartPath {
			body = `{"items":[{"sku_id":1,"quantity":1}]}`
		}
		return g.do("POST", path, who, "Idempotency-Key: k", body)
	}
	if a := order(orders[0], mallory); a.code != 202 {
		t.Errorf("without a list: got %v", a)
	}
	reload := func(lists ...string) {
		t.Helper()
		g.write(configText([]string{p.addr}, soon, limits(lists...), with("order: {rate: 0.2, burst: 1", "order: {rate: 0.001, burst: 3")))
		if a := g.reload(); a.code != 200 {
			t.Fatalf("got %v", a)
		}
	}
	reload("eligible_uids: [ann, mallory]", "banned_uids: [mallory]")
	sent := len(p.got(""))
	for _, path := range orders {
		if a := order(path, bob); a.code != 403 || a.problem() != "FORBIDDEN" || !strings.Contains(a.body, "not on the list") || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s, who is not listed: got %v", path, a)
		}
		if a := order(path, mallory); a.problem() != "FORBIDDEN" || !strings.Contains(a.body, "may not buy here") {
			t.Errorf("%s, listed and banned: got %v", path, a)
		}
	}
	if a := order(orders[0], "Authorization: Bearer x"); a.problem() != "UNAUTHENTICATED" {
		t.Errorf("nobody: got %v", a)
	}
	if n := len(p.got("")) - sent; n != 0 {
		t.Errorf("%d requests came to the backend", n)
	}
	if e, b := g.metric(`gateway_refusals_total{rule="eligible"}`), g.metric(`gateway_refusals_total{rule="ban"}`); e != "3" || b != "3" {
		t.Errorf("%s and %s refusals are counted, want 3 and 3", e, b)
	}
	for _, who := range []string{bob, mallory} {
		for _, c := range []string{"GET /v1/orders", "GET /v1/orders/" + orderID, "POST /v1/orders/" + orderID + "/payment", "GET " + orders[2], "DELETE " + orders[2]} {
			method, path, _ := strings.Cut(c, " ")
			if a := g.do(method, path, who); a.code != 202 { // the peer accepts everything
				t.Errorf("%s: got %v", c, a)
			}
		}
	}
	for _, path := range orders {
		if a := order(path, ann); a.code != 202 {
			t.Errorf("%s, listed: got %v", path, a)
		}
	}
	want := map[string]int64{"mallory accepted": 1, "mallory banned": 1, "bob not_listed": 1, "ann accepted": 1}
	g.until("it is told", func() bool { return maps.Equal(p.recorded(1), want) })
	reload("eligible_uids: [bob]")
	if a := order(orders[0], bob); a.code != 202 {
		t.Errorf("listed by a reload: got %v, want it taken: what was refused drew on no bucket", a)
	}
	if a := order(orders[0], ann); a.problem() != "FORBIDDEN" {
		t.Errorf("no longer listed: got %v", a)
	}
	reload("eligible_uids: []")
	if a := order(orders[0], ann); a.code != 202 {
		t.Errorf("without a list: got %v", a)
	}
}

// Row D2: exempt users have no limits of users; those of addresses, of all orders and the lists hold for them as for everybody.
func TestExemptUsers(t *testing.T) {
	t.Attr("row", "D2")
	p := newPeer(t)
	p.set(1, nil)
	text := func(lists ...string) []edit {
		return []edit{behind, with("order: {rate: 0.2, burst: 1", "order: {rate: 0.001, burst: 1"), with("read: {rate: 10, burst: 20", "read: {rate: 0.001, burst: 1"),
			with("ip: {rate: 50, burst: 100", "ip: {rate: 0.001, burst: 2"),
			limits(append(lists, "payment: {rate: 0.001, burst: 1}", "global: {rate: 0.001, burst: 6, max_wait: 0s}", "ip_users: {rate: 0.001, burst: 2}")...)}
	}
	g := run(t, []string{p.addr}, text("uid_exempt: [monitor, mallory]", "banned_uids: [mallory]")...)
	ask := func(who, where, want string) {
		t.Helper()
		for _, c := range []string{"POST /v1/sales/1/orders", "POST /v1/orders/" + orderID + "/payment", "GET /v1/orders"} {
			method, path, _ := strings.Cut(c, " ")
			if a := g.do(method, path, who, from(where)); a.problem() != want {
				t.Errorf("%s, %s: got %v %v, want %q", who, c, a, a.header, want)
			}
		}
	}
	monitor, bob, mallory := g.as("monitor"), g.as("bob"), g.as("mallory")
	for range 3 {
		ask(monitor, "10.0.0.1", "")
	}
	ask(bob, "10.0.0.1", "")
	ask(bob, "10.0.0.1", "RATE_LIMITED")
	if a := g.do("POST", "/v1/sales/1/orders", mallory, from("10.0.0.1")); a.problem() != "FORBIDDEN" {
		t.Errorf("banned: got %v", a)
	}
	for range 2 {
		if a := g.do("POST", "/v1/sales/1/orders", monitor, from("192.0.2.1")); a.code != 202 {
			t.Errorf("got %v", a)
		}
	}
	ask(monitor, "192.0.2.1", "RATE_LIMITED") // by the address
	if a := g.do("POST", "/v1/sales/1/orders", monitor, from("10.0.0.1")); a.code != 429 || !strings.Contains(a.header.Get("RateLimit"), `"global"`) {
		t.Errorf("the seventh order: got %v %v, want it refused by the bucket of all", a, a.header)
	}
	if got := g.metric(`gateway_limit_buckets{rule="order"}`); got != "1" {
		t.Errorf("%s users have buckets, want bob alone", got)
	}
	g.write(configText([]string{p.addr}, text("uid_exempt: [bob]")...))
	if a := g.reload(); a.code != 200 {
		t.Fatalf("got %v", a)
	}
	if a := g.do("GET", "/v1/orders", bob, from("10.0.0.1")); a.code != 202 {
		t.Errorf("exempt by a reload: got %v", a)
	}
	for _, code := range []int{202, 429} {
		if a := g.do("GET", "/v1/orders", monitor, from("10.0.0.1")); a.code != code {
			t.Errorf("no longer exempt: got %v, want %d", a, code)
		}
	}
}

// A rule in shadow refuses nobody and counts; a reload enforces it with the buckets as full as they are.
func TestShadowThenEnforced(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	text := func(shadow bool) []edit {
		return []edit{
			with("order: {rate: 0.2, burst: 1", fmt.Sprintf("order: {rate: 0.001, burst: 2, shadow: %v, also: [{rate: 100, burst: 1000}]", shadow)),
			limits(fmt.Sprintf("global: {rate: 0.001, burst: 3, max_wait: 0s, shadow: %v}", shadow)),
		}
	}
	g := run(t, []string{p.addr}, text(true)...)
	for uid, n := range map[string]int{"7": 5, "8": 1} {
		me := g.as(uid)
		for range n {
			if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
				t.Errorf("in shadow: got %v", a)
			}
		}
	}
	if o, a := g.metric(`gateway_shadow_refusals_total{rule="order"}`), g.metric(`gateway_shadow_refusals_total{rule="global"}`); o != "3" || a != "3" {
		t.Errorf("%s and %s are counted, want 3 and 3", o, a)
	}
	if got := g.metric(`gateway_refusals_total{rule="order"}`); got != "0" {
		t.Errorf("%s refusals are counted", got)
	}
	g.write(configText([]string{p.addr}, text(false)...))
	if a := g.reload(); a.code != 200 {
		t.Fatalf("got %v", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("7")); a.code != 429 || !strings.Contains(a.header.Get("RateLimit"), `"order"`) {
		t.Errorf("enforced: got %v, want it refused: its bucket is empty", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("8")); a.code != 429 || !strings.Contains(a.header.Get("RateLimit"), `"global"`) {
		t.Errorf("enforced: got %v, want it refused by the bucket of all, which is empty", a)
	}
	if got := g.metric(`gateway_limit_buckets{rule="order"}`); got != "2" {
		t.Errorf("%s keys are in the table", got)
	}
}

// reloads asks for the record.
func (g *gw) reloads() []ops.Reload {
	g.t.Helper()
	var list struct{ Reloads []ops.Reload }
	if a := g.do("GET", "http://"+g.ops+"/-/reloads"); a.code != 200 || json.Unmarshal([]byte(a.body), &list) != nil {
		g.t.Fatalf("got %v", a)
	}
	return list.Reloads
}

// Every reload is on record with what it changed and who asked for it, taken over or refused, and the record is bounded.
func TestReloadsAreOnRecord(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	first := g.reloads()
	if len(first) != 1 || first[0].By != "start" || first[0].Result != "taken" || first[0].Generation != 1 || len(first[0].Hash) != 16 || first[0].At.IsZero() {
		t.Fatalf("got %+v", first)
	}
	if got := g.metric(`gateway_config_info{hash="` + first[0].Hash + `"}`); got != "1" {
		t.Errorf("the hash is not in the metrics: %q", got)
	}
	for _, c := range []struct {
		edits      []edit
		result     string
		generation int
		diff, err  string
	}{
		{[]edit{with("rate: 0.2", "rate: 0.3")}, "taken", 2, "limits.order.rate: 0.2 becomes 0.3", ""},
		{[]edit{with("rate: 0.2", "rate: -1")}, "refused", 2, "", "limits.order.rate: -1 must be positive"},
		{[]edit{with("rate: 0.2", "rate: 0.4"), with("read_timeout: 2s", "read_timeout: 3s")}, "refused", 2,
			`limits.order.rate: 0.3 becomes 0.4; server.read_timeout: "2s" becomes "3s"`, "a change of server.read_timeout needs a restart"},
		{[]edit{with("rate: 0.2", "rate: 0.5")}, "taken", 3, "limits.order.rate: 0.3 becomes 0.5", ""},
		{nil, "taken", 4, "limits.order.rate: 0.5 becomes 0.2", ""}, // the first one again
	} {
		before := len(g.reloads())
		g.write(configText([]string{p.addr}, c.edits...))
		g.until("it is tried", func() bool { return len(g.reloads()) > before })
		got := g.reloads()[0]
		if got.By != "file change" || got.Result != c.result || got.Generation != c.generation || strings.Join(got.Diff, "; ") != c.diff || !strings.Contains(got.Reason, c.err) || c.err == "" && got.Reason != "" {
			t.Errorf("got %+v, want %+v", got, c)
		}
		a := g.reload() // by hand, the same
		got = g.reloads()[0]
		if want := map[int]string{200: "unchanged", 400: "refused"}[a.code]; !strings.HasPrefix(got.By, "POST /-/reload from 127.0.0.1:") || got.Result != want || (c.err == "") != (a.code == 200) {
			t.Errorf("got %v, on record as %+v", a, got)
		}
		if !strings.Contains(g.log.String(), "generation="+fmt.Sprint(c.generation)) || !strings.Contains(g.log.String(), strings.ReplaceAll(c.diff, `"`, `\"`)) {
			t.Errorf("the log does not tell of %+v", c)
		}
	}
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("u%d", i)
	}
	g.write(configText([]string{p.addr}, limits("banned_uids: ["+strings.Join(many, ", ")+"]")))
	g.until("it is taken over", func() bool { return g.generation() == 5 })
	if got := g.reloads()[0].Diff; len(got) != keptLines+1 || got[keptLines] != "and 200 more" {
		t.Errorf("got %d lines, the last one %s", len(got), got[len(got)-1])
	}
	for range keptReloads + 10 {
		g.reload()
	}
	if got := g.reloads(); len(got) != keptReloads || got[0].Result != "unchanged" || got[0].At.Before(got[keptReloads-1].At.Time) {
		t.Errorf("%d are kept, the newest %+v", len(got), got[0])
	}
}

// Users whose tokens are known have a bucket of their own at an address. A stranger there cannot bar them, and nobody has more
// signatures checked than the strict bucket lets through, whatever else they send.
func TestUsersBehindOneAddress(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	clk := newClock()
	g := runAt(t, clk, []string{p.addr}, behind, with("ip: {rate: 50, burst: 100", "ip: {rate: 1, burst: 4"), limits("ip_users: {rate: 10, burst: 40}"))
	const carrier = "192.0.2.1"
	asked := func(who string) answer { return g.do("GET", "/v1/orders", who, from(carrier)) }
	var users []string
	for i := range 6 {
		users = append(users, g.as(fmt.Sprint("u", i)))
	}
	for i, who := range users { // each is verified once, by the strict bucket
		if a := asked(who); (a.code == 202) != (i < 4) || i >= 4 && !strings.Contains(a.header.Get("RateLimit"), `"ip"`) {
			t.Errorf("user %d, not known yet: got %v", i, a)
		}
	}
	for i := range 36 {
		if a := asked(users[i%4]); a.code != 202 {
			t.Errorf("request %d, known: got %v", i, a)
		}
	}
	if a := asked("Authorization: Bearer rubbish"); a.code != 429 {
		t.Errorf("a stranger: got %v", a)
	}
	if a := g.do("POST", "/v1/session", users[0], from(carrier), `{"token":"rubbish"}`); a.code != 429 {
		t.Errorf("another token in the body: got %v, want the strict bucket", a)
	}
	for range 4 {
		if a := asked(users[1]); a.code != 202 {
			t.Errorf("known: got %v", a)
		}
	}
	if a := asked(users[1]); a.code != 429 || !strings.Contains(a.header.Get("RateLimit"), `"ip_users"`) || g.metric(`gateway_refusals_total{rule="ip_users"}`) != "1" {
		t.Errorf("the 41st: got %v, %v", a, a.header)
	}
	clk.move(2 * time.Second)
	for i := 4; i < 6; i++ {
		if a := asked(users[i]); a.code != 202 {
			t.Errorf("user %d, later: got %v", i, a)
		}
	}
}
