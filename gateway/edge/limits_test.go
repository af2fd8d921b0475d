package edge

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"pgregory.net/rapid"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/presslog"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// Rows D2, D10, D13: whatever was asked before, by whom and under which laws, whoever is refused and comes back exactly when told is
// admitted by every limit, while nobody else draws on what is shared; and a client that comes more than the jitter early is not.
// A refusal by the address alone may be followed by one of the user's, for the token is not looked at before.
func TestWaitingAsToldIsEnoughForEveryLimit(t *testing.T) {
	t.Attr("row", "D2 D10 D13")
	clk := &clock.Clock{}
	verifier, tokens := signed(t, clk, "ann", "bob", "monitor")
	now := time.Now()
	gate := follow(t, clk, prometheus.NewRegistry(), 10_000*time.Hour, wire.Sale{ID: 6, Kind: wire.Goods, Title: "T", Price: 1, Currency: "EUR", State: wire.Open, PerUserLimit: 2,
		StartsAt: wire.At(now.Add(-time.Hour)), EndsAt: wire.At(now.Add(10_000 * time.Hour))})
	const id = "/v1/orders/0190163d-8694-739b-aea5-966c26f8ad91-6"
	asks := []string{"POST /v1/sales/6/orders", "POST " + wire.CartPath, "GET /v1/orders", "GET " + id + "?wait_ms=9", "POST " + id + "/payment", "POST " + id + "/cancellation",
		"GET /v1/sales/6", "GET " + wire.StandbyPath(6), "GET " + wire.CouponsPath, "GET /v1/session", "POST " + wire.WebhookPath + "bank"}
	tested := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		law := rapid.Custom(func(rt *rapid.T) limit.Law {
			return limit.Law{Rate: rapid.Float64Range(0.05, 3).Draw(rt, "rate"), Burst: rapid.IntRange(1, 4).Draw(rt, "burst"), Shadow: rapid.IntRange(0, 4).Draw(rt, "shadow") == 0}
		})
		rule := func(name string) *limit.Rule {
			return limit.NewRule(name, rapid.IntRange(1, 9).Draw(rt, "keys"), now, rapid.SliceOfN(law, 1, limit.MaxLaws).Draw(rt, name)...)
		}
		reg := prometheus.NewRegistry()
		at := now
		// No place at the backends: what every limit admits is OVERLOADED.
		pool := upstream.New(upstream.Config{Backends: []string{"127.0.0.1:1"}, Key: signing.Key{ID: "k", Secret: "s"}}, clk, reg)
		defer pool.Close()
		log := slog.New(slog.DiscardHandler)
		s := New(Config{Clock: clk, Gate: gate, Cache: pagecache.New(1<<20, reg), Backends: pool, Presses: presslog.NewRecorder(100, reg), Log: log, Now: func() time.Time { return at },
			HTTP: HTTPConfig{MaxBody: 1000, MaxHeader: 4096, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute}}, Settings{
			Verifier: verifier, Order: rule("order"), Payment: rule("payment"), Read: rule("read"), IP: rule("ip"), IPUsers: rule("ip_users"), Webhook: rule("webhook"),
			Global: limit.NewRule("global", 0, now, law.Draw(rt, "global")), GlobalWait: rapid.SampledFrom([]limit.WaitBounds{{}, {MaxWait: 10 * time.Second}}).Draw(rt, "wait"),
			Trusted: networks(t, "127.0.0.0/8"), Exempt: networks(t, "10.0.0.0/8"), ExemptUsers: map[string]struct{}{"monitor": {}},
		}, reg)
		l := newLine("127.0.0.1:1")
		done := l.serve(t, s)
		defer func() { close(l.asked); <-done }()

		type client struct{ request, uid, addr string }
		// ask returns which limit refused, and after how many seconds to come back; 0 where nobody knows.
		ask := func(c client) (by string, after int) {
			method, path, _ := strings.Cut(c.request, " ")
			body := ""
			if path == wire.CartPath {
				body = `{"items":[{"sku_id":1,"quantity":1}]}`
			}
			l.asked <- fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: %s\r\nAuthorization: Bearer %s\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				method, path, c.addr, tokens[c.uid], len(body), body)
			<-l.answer
			var resp fasthttp.Response
			if err := resp.Read(bufio.NewReader(bytes.NewReader(l.last))); err != nil {
				rt.Fatal(err)
			}
			after, _ = strconv.Atoi(string(resp.Header.Peek("Retry-After")))
			if resp.StatusCode() == 429 {
				_, name, _ := strings.Cut(string(resp.Header.Peek("RateLimit")), `"`)
				name, _, _ = strings.Cut(name, `"`)
				by, _, _ = strings.Cut(name, "-")
			} else if strings.Contains(string(resp.Body()), "too many orders are waiting") {
				by = "global"
			}
			if by != "" && after == 0 {
				rt.Fatalf("refused without a Retry-After: %s", l.last)
			}
			return by, after
		}
		clients := rapid.Custom(func(rt *rapid.T) client {
			return client{rapid.SampledFrom(asks).Draw(rt, "request"), rapid.SampledFrom([]string{"ann", "bob", "monitor", "nobody"}).Draw(rt, "uid"),
				rapid.SampledFrom([]string{"203.0.113.1", "2001:db8::1", "10.0.0.1", "10.0.0.1"}).Draw(rt, "from")}
		})
		c := clients.Draw(rt, "client")
		for range rapid.IntRange(20, 80).Draw(rt, "requests") {
			at = at.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "later")))
			if rapid.IntRange(0, 3).Draw(rt, "another") == 0 {
				c = clients.Draw(rt, "client")
			}
			by, after := ask(c)
			switch {
			case after == 0:
			case rapid.IntRange(0, 2).Draw(rt, "as told") == 0:
				at = at.Add(time.Duration(after) * time.Second)
				then, more := ask(c)
				if address := by == "ip" || by == "ip_users"; then != "" && (!address || then == by) {
					rt.Fatalf("%+v: refused by %q, came back after %d s, as told, and was refused by %q for %d s more", c, by, after, then, more)
				}
				tested["as told by "+by]++
			case by != "" && after > 2 && rapid.Bool().Draw(rt, "early"):
				at = at.Add(time.Duration(after-2) * time.Second)
				if then, _ := ask(c); then == "" {
					rt.Fatalf("%+v: refused by %q, told to come back after %d s, and was admitted 2 s before", c, by, after)
				}
				tested["early for "+by]++
			}
		}
	})
	for _, by := range []string{"ip", "ip_users", "webhook", "order", "payment", "read", "global"} {
		if tested["as told by "+by]+tested["early for "+by] == 0 && !testing.Short() { // few draws
			t.Errorf("no refusal by %s was met: %v", by, tested)
		}
	}
}

// The first request with a token draws on the address's strict buckets, the next one on the generous ones: the first is told to come
// back when those have a token, too.
func TestTheFirstRequestWithATokenIsToldOfTheNext(t *testing.T) {
	s, tokens := refusing(t)
	now := time.Now()
	s.Now = func() time.Time { return now }
	set := *s.settings.Load()
	set.Exempt = network.Set{}
	set.IP = limit.NewRule("ip", 1000, now, limit.Law{Rate: 1000, Burst: 1000})
	set.IPUsers = limit.NewRule("ip_users", 1000, now, limit.Law{Rate: 0.01, Burst: 1})
	s.SetSettings(set)
	addr := netip.MustParseAddr("203.0.113.1")
	s.ipUsers.Take(s.key(addr), set.IPUsers, now) // somebody else's request
	l := newLine("203.0.113.1:1")
	done := l.serve(t, s)
	defer func() { close(l.asked); <-done }()
	ask := func() (status, after int) {
		l.asked <- "GET /v1/orders/0190163d-8694-739b-aea5-966c26f8ad91-6 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + tokens["8"] + "\r\n\r\n"
		<-l.answer
		var resp fasthttp.Response
		if err := resp.Read(bufio.NewReader(bytes.NewReader(l.last))); err != nil {
			t.Fatal(err)
		}
		after, _ = strconv.Atoi(string(resp.Header.Peek("Retry-After")))
		return resp.StatusCode(), after
	}
	status, after := ask()
	if status != 503 || after < 100 {
		t.Errorf("got %d and Retry-After %d, want 503 and at least 100", status, after)
	}
	now = now.Add(time.Duration(after) * time.Second)
	if status, _ := ask(); status != 503 {
		t.Errorf("who came back as told got %d, want 503: there is still no place", status)
	}
}

// A gateway whose own clock is wrong says nothing about tokens before it was told the time.
func TestATokenIsNotJudgedByTheMachinesClock(t *testing.T) {
	s, _ := refusing(t)
	clk := &clock.Clock{}
	s.Clock = clk
	set := *s.settings.Load()
	verifier, tokens := signed(t, clk, "9")
	set.Verifier = verifier
	s.SetSettings(set)
	c := refusal{request: "GET /v1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + tokens["9"] + "x\r\n\r\n", from: "127.0.0.1"}
	if a := answered(t, s, c); a.StatusCode() != 503 || len(a.Header.Peek("Retry-After")) == 0 {
		t.Errorf("before the time is known: %s", a)
	}
	clk.Set(time.Now(), time.Now())
	if a := answered(t, s, c); a.StatusCode() != 401 {
		t.Errorf("when the time is known: %s", a)
	}
}
