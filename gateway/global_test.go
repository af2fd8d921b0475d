package gateway

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// global sets limits.global.
func global(value string) edit {
	return with("  ip_exempt:", "  global: "+value+"\n  ip_exempt:")
}

// Row D10: all orders together are bounded, whoever presses, and nothing else is.
func TestTheGlobalLimit(t *testing.T) {
	t.Attr("row", "D10")
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, global("{rate: 0.01, burst: 2, max_wait: 0s}"))
	for uid := range 2 {
		if a := g.do("POST", "/v1/sales/1/orders", g.as(fmt.Sprint(uid))); a.code != 202 {
			t.Errorf("user %d: got %v", uid, a)
		}
	}
	a := g.do("POST", "/v1/sales/1/orders", g.as("2"))
	if h := a.header; a.problem() != "RATE_LIMITED" || h.Get("RateLimit-Policy") != `"global";q=2;w=200` || !strings.HasPrefix(h.Get("RateLimit"), `"global";r=0;t=`) ||
		!strings.Contains(a.body, "nothing was done") {
		t.Errorf("got %v, %v; want it refused by the global rule", a, h)
	} else if after, err := strconv.Atoi(h.Get("Retry-After")); err != nil || after < 90 || after > 101 {
		t.Errorf("got Retry-After %s, want a little less than the 100 s in which a token comes, and jitter", h.Get("Retry-After"))
	}
	if a := g.do("GET", "/v1/orders", g.as("2")); a.code != 202 { // the peer accepts everything
		t.Errorf("a read: got %v", a)
	}
	if n := len(p.got("/v1/sales/1/orders")); n != 2 {
		t.Errorf("got %d orders at the backend, want 2", n)
	}
	// Whoever is over their own limit takes nothing of the others' share.
	if a := g.do("POST", "/v1/sales/1/orders", g.as("0")); !strings.Contains(a.header.Get("RateLimit"), `"order"`) {
		t.Errorf("got %v, %v; want it refused by the user's own limit", a, a.header)
	}
	if got := g.metric(`gateway_refusals_total{rule="global"}`); got != "1" {
		t.Errorf("got %s refusals counted, want 1", got)
	}
}

// Row D10: an order waits for a token, as long as it may, and goes through.
func TestAnOrderWaitsForAToken(t *testing.T) {
	t.Attr("row", "D10")
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, global("{rate: 50, burst: 1, max_wait: 10s}"))
	var wg sync.WaitGroup
	for uid := range 20 {
		me := g.as(fmt.Sprint(uid))
		wg.Go(func() {
			if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
				t.Errorf("got %v", a)
			}
		})
	}
	wg.Wait()
	if got := g.metric(`gateway_limit_waits_total{rule="global"}`); got == "0" {
		t.Errorf("nobody waited")
	}
	if got := g.metric(`gateway_limit_waiting{rule="global"}`); got != "0" {
		t.Errorf("%s wait still", got)
	}
}

// Row D10: those who wait are bounded in number; one more is told at once, and not before the user's own token is back.
func TestTooManyWaitForAToken(t *testing.T) {
	t.Attr("row", "D10")
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, global("{rate: 0.101, burst: 1, max_wait: 10s, max_waiting: 0}"))
	if a := g.do("POST", "/v1/sales/1/orders", g.as("0")); a.code != 202 {
		t.Fatalf("got %v", a)
	}
	a := g.do("POST", "/v1/sales/1/orders", g.as("1"))
	after, err := strconv.Atoi(a.header.Get("Retry-After"))
	if a.problem() != "OVERLOADED" || !strings.Contains(a.body, "too many orders are waiting") || err != nil || after < 5 {
		t.Errorf("got %v, Retry-After %s", a, a.header.Get("Retry-After"))
	}
}

// Row D10: a reload changes the law, not the level.
func TestReloadKeepsTheGlobalLevel(t *testing.T) {
	t.Attr("row", "D10")
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, global("{rate: 0.001, burst: 1, max_wait: 0s}"))
	if a := g.do("POST", "/v1/sales/1/orders", g.as("0")); a.code != 202 {
		t.Fatalf("got %v", a)
	}
	for burst := 2; burst < 12; burst++ {
		g.write(configText([]string{p.addr}, global(fmt.Sprintf("{rate: 0.001, burst: %d, max_wait: 1s}", burst))))
		if a := g.reload(); a.code != 200 { // the first one to see the change may have been the watcher of the file
			t.Fatalf("got %v", a)
		}
		if a := g.do("POST", "/v1/sales/1/orders", g.as(fmt.Sprint(burst))); a.problem() != "RATE_LIMITED" {
			t.Errorf("burst %d: got %v, want no token out of a reload", burst, a)
		}
	}
	if a := g.do("GET", "http://"+g.ops+"/-/config"); !strings.Contains(strings.Join(strings.Fields(a.body), ""), `"global":{"burst":11,"max_wait":"1s"`) {
		t.Errorf("got %v, want the last of the laws in force", a)
	}
	g.write(configText([]string{p.addr}, global("{rate: 1000, burst: 1000, max_wait: 1s}")))
	if a := g.reload(); a.code != 200 {
		t.Fatalf("got %v", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("last")); a.code != 202 {
		t.Errorf("by the new law: got %v", a)
	}
}
