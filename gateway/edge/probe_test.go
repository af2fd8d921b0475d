package edge

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/presslog"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// While the gate is in doubt, an address has no more signatures checked than its bucket has tokens, however many it sends: each of
// these tokens is another one, so that none is remembered.
func TestSignaturesOfAnAddressAreBoundedWhileTheGateIsInDoubt(t *testing.T) {
	now := time.Now()
	later := func() time.Time { return now.Add(time.Minute) } // what is known by then has not been looked at lately
	for name, staleAfter := range map[string]time.Duration{"a refusal in doubt": time.Hour, "a stale feed": time.Nanosecond} {
		reg := prometheus.NewRegistry()
		clk := &clock.Clock{}
		sale := wire.Sale{ID: 1, Kind: wire.Goods, Title: "T", Price: 1, Currency: "EUR", State: wire.SoldOut, PerUserLimit: 1,
			StartsAt: wire.At(now.Add(-time.Hour)), EndsAt: wire.At(now.Add(time.Hour))}
		gate := follow(t, clk, reg, staleAfter, sale)
		var checked atomic.Int64 // the verifier asks for the time once a signature was found good
		_, tokens := signed(t, clk, uids(100)...)
		counting, err := identity.NewVerifier([]identity.Key{testKey}, identity.Rules{}, func() time.Time { checked.Add(1); return clk.Now() })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := counting.Verify([]byte(tokens["u0"])); err != nil {
			t.Fatal(err)
		}
		each := checked.Swap(0) // of one signature
		pool := upstream.New(upstream.Config{Backends: []string{"127.0.0.1:1"}, Key: signing.Key{ID: "k", Secret: "s"}}, clk, reg)
		t.Cleanup(pool.Close)
		rule := func(name string, burst int) *limit.Rule {
			return limit.NewRule(name, 1000, now, limit.Law{Rate: 0.0001, Burst: burst})
		}
		const bucket = 5
		s := New(Config{Clock: clk, Gate: gate, Cache: pagecache.New(1<<20, reg), Backends: pool, Presses: presslog.NewRecorder(100, reg), Log: slog.New(slog.DiscardHandler), Now: later}, Settings{Verifier: counting, Order: rule("order", 1), Payment: rule("payment", 1), Read: rule("read", 1), IP: rule("ip", bucket), IPUsers: rule("ip_users", 1), Webhook: rule("webhook", 1), Global: rule("global", 1)}, reg)
		for uid := range tokens { // nobody may order yet: so nobody's order ends the doubt
			s.orders.Take(uid, s.settings.Load().Order, later())
		}
		var all strings.Builder
		for i := range 99 {
			uid := fmt.Sprintf("u%d", i+1)
			fmt.Fprintf(&all, "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 0\r\n\r\n", tokens[uid])
		}
		if !s.Gate.Order(1, later()).MayProbe() {
			t.Fatalf("%s: the gate is not in doubt: %+v", name, s.Gate.Order(1, later()))
		}
		written, _ := answers(t, s, []byte(all.String()))
		if n := strings.Count(written, "\r\nX-Request-Id: "); n != 99 {
			t.Fatalf("%s: %d answers", name, n)
		}
		if n := checked.Load() / each; n < 1 || n > bucket {
			t.Errorf("%s: %d signatures were checked for one address, want at most the %d of its bucket", name, n, bucket)
		}
	}
}

func uids(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("u%d", i))
	}
	return all
}
