package gateway

import (
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

var soon = with("cache: {", "timeline: {flush_every: 100ms}\ncache: {")

// Every press of a known user is recorded once, as what it was answered; a press that the gate answers is recorded for nobody.
func TestWhatIsRecordedOfAPress(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.set(2, func(s *wire.Sale) { s.State = wire.SoldOut })
	g := run(t, []string{p.addr}, soon)
	refuse := func(ctx *fasthttp.RequestCtx, code problem.Code, rule verdict.Rule) {
		problem.New(code, "so it is").WriteTo(ctx, "id")
		ctx.Response.Header.Set(verdict.HeaderRule, string(rule))
	}
	p.on(func(ctx *fasthttp.RequestCtx, c call) {
		switch c.UID {
		case "again":
			accept(ctx)
			ctx.Response.Header.Set(verdict.HeaderRule, "repeated")
		case "late":
			refuse(ctx, problem.SoldOut, "")
		case "long":
			refuse(ctx, problem.Overloaded, verdict.AdmissionLong)
		case "busy":
			refuse(ctx, problem.Overloaded, "no_such_rule")
		case "banned":
			refuse(ctx, problem.Forbidden, verdict.Banned)
		case "twice":
			refuse(ctx, problem.AlreadyOrdered, "")
		case "maybe":
			refuse(ctx, problem.OutcomeUnknown, "")
		case "nowhere":
			refuse(ctx, problem.SaleNotFound, "")
		case "lost":
			ctx.Conn().Close()
		default:
			accept(ctx)
		}
	})
	press := func(uid, sale, code string, extra ...string) {
		t.Helper()
		a := g.do("POST", "/v1/sales/"+sale+"/orders", append(extra, g.as(uid))...)
		if a.problem() != code || a.header.Get(verdict.HeaderRule) != "" {
			t.Errorf("%s: got %v, %v; want %q, and no word of the rule", uid, a, a.header, code)
		}
	}
	want := map[string]int64{"ann accepted": 1, "ann order_limit": 2, "again repeated": 1, "late sold_out": 1, "long line_long": 1, "busy overloaded": 1,
		"banned banned": 1, "twice already_ordered": 1, "maybe unconfirmed": 1, "lost no_answer": 1, "odd bad_request": 2, "odd accepted": 1}
	press("ann", "1", "")
	press("ann", "1", "RATE_LIMITED")
	press("ann", "1", "RATE_LIMITED")
	press("odd", "1", "BAD_REQUEST", `{"quantity":0}`)
	press("odd", "1", "BAD_REQUEST", "x")
	press("odd", "1", "")
	for uid, code := range map[string]string{"again": "", "long": "OVERLOADED", "busy": "OVERLOADED", "banned": "FORBIDDEN", "twice": "ALREADY_ORDERED",
		"maybe": "OUTCOME_UNKNOWN", "lost": "OUTCOME_UNKNOWN", "nowhere": "SALE_NOT_FOUND", "late": "SOLD_OUT"} {
		if uid != "late" { // the gate remembers that one
			press(uid, "1", code)
		}
	}
	press("late", "1", "SOLD_OUT")
	press("ann", "2", "SOLD_OUT")
	press("ann", "3", "SALE_NOT_FOUND")
	g.until("everything is handed over", func() bool { return maps.Equal(p.recorded(1), want) })
	if more := p.recorded(2); len(more)+len(p.recorded(3)) > 0 {
		t.Errorf("what the gate refused was recorded: %v, %v", more, p.recorded(3))
	}
	now := p.now()
	for _, b := range p.handed() {
		for _, r := range b.Records {
			if d := now.Sub(r.First.Time); d < 0 || d.Minutes() > 5 {
				t.Errorf("%+v: its time is not the system's, which is %v", r, now)
			}
		}
	}
}

// While the backend is away, or takes nothing, nothing is lost; nor when the gateway ends.
func TestRecordsAreKeptUntilTheyAreTaken(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	var refused atomic.Int64
	refusing := true
	p.records = func() int {
		if refusing {
			refused.Add(1)
			return 503
		}
		return 204
	}
	g := run(t, []string{p.addr}, soon)
	me := g.as("ann")
	for range 5 {
		g.do("POST", "/v1/sales/1/orders", me)
	}
	g.until("batches are refused", func() bool { return refused.Load() >= 3 })
	if len(p.recorded(1)) > 0 {
		t.Errorf("recorded: %v", p.recorded(1))
	}
	p.stop()
	away := g.do("POST", "/v1/sales/1/orders", g.as("bob"))
	if away.code != 503 {
		t.Errorf("without a backend: got %v", away)
	}
	p.mu.Lock()
	refusing = false
	p.mu.Unlock()
	p.start(p.addr)
	want := map[string]int64{"ann accepted": 1, "ann order_limit": 4, "bob unreachable": 1}
	g.until("everything is handed over", func() bool { return maps.Equal(p.recorded(1), want) })
	g.do("POST", "/v1/sales/1/orders", me)
	g.cancel()
	if err := <-g.done; err != nil {
		t.Error(err)
	}
	g.done <- nil
	want["ann order_limit"]++
	if got := p.recorded(1); !maps.Equal(got, want) {
		t.Errorf("after the gateway has ended: got %v, want %v", got, want)
	}
	if all := p.handed(); !all[len(all)-1].Last {
		t.Errorf("the last batch says no goodbye: %+v", all[len(all)-1])
	}
}

// A user's timeline is asked for in their own name, is never cached, draws on the limit of reads; and nobody hands records over
// through the gateway.
func TestTheTimelineOfAUser(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 0.001, burst: 3"))
	p.mu.Lock()
	p.onPage = func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(`{"events":[]}`) }
	p.mu.Unlock()
	for range 3 {
		if a := g.do("GET", "/v1/sales/1/timeline?uid=bob", g.as("ann")); a.code != 200 || a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Cache") != "" {
			t.Errorf("got %v, %v", a, a.header)
		}
	}
	if a := g.do("GET", "/v1/sales/1/timeline", g.as("ann")); a.problem() != "RATE_LIMITED" {
		t.Errorf("the fourth: got %v", a)
	}
	if a := g.do("GET", "/v1/sales/1/timeline"); a.problem() != "UNAUTHENTICATED" {
		t.Errorf("without a token: got %v", a)
	}
	if a := g.do("POST", "/v1/sales/1/timeline", g.as("bob")); a.problem() != "METHOD_NOT_ALLOWED" {
		t.Errorf("POST: got %v", a)
	}
	if a := g.do("GET", "/v1/sales/0/timeline", g.as("bob")); a.problem() != "SALE_NOT_FOUND" {
		t.Errorf("sale 0: got %v", a)
	}
	calls := p.got("/v1/sales/1/timeline")
	if len(calls) != 3 || calls[0].UID != "ann" || strings.Contains(calls[0].Target, "?") {
		t.Errorf("the backend was asked %+v, want it three times in the token's name", calls)
	}
	if a := g.do("POST", verdict.Path, g.as("bob"), `{}`); a.problem() != "NOT_FOUND" {
		t.Errorf("records from outside: got %v", a)
	}
}
