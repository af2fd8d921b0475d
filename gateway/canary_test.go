package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/problem"
)

// cautious has a reload try limits on half of the users, from six requests on either side on.
func cautious(s string) string {
	return s + "reload: {canary: {share: 0.5, watch: 2m, max_more_refused: 0.1, max_more_errors: 0.01, min_requests: 6}}\n"
}

// halves is some users in the canary that runs, and as many others.
func (g *gw) halves(n int) (tried, rest []string) {
	g.t.Helper()
	last := g.reloads()[0]
	if last.Result != "canary" {
		g.t.Fatalf("no canary runs: %+v", last)
	}
	c := edge.NewCanary(edge.Settings{}, last.Hash, 0.5)
	for i := 0; len(tried) < n || len(rest) < n; i++ {
		if uid := fmt.Sprint("u", i); c.Has(uid) {
			tried = append(tried, uid)
		} else {
			rest = append(rest, uid)
		}
	}
	return tried[:n], rest[:n]
}

// read has every user read their orders, and counts those that are refused.
func (g *gw) read(uids []string) (refused int) {
	g.t.Helper()
	for _, uid := range uids {
		switch a := g.do("GET", "/v1/orders", g.as(uid)); a.code {
		case 200, 503:
		case 429:
			refused++
		default:
			g.t.Fatalf("got %v", a)
		}
	}
	return refused
}

// try reloads an edited file, and wants that result.
func (g *gw) try(want string, backends []string, edits ...edit) ops.Reload {
	g.t.Helper()
	n := len(g.reloads())
	g.write(configText(append([]string(nil), backends...), append([]edit{cautious}, edits...)...))
	g.until("the file is read", func() bool { return len(g.reloads()) > n })
	last := g.reloads()[0]
	if last.Result != want {
		g.t.Fatalf("got %+v, want %s", last, want)
	}
	return last
}

func (g *gw) outcome(want string) ops.Reload {
	g.t.Helper()
	g.until("the canary ends", func() bool { return g.metric("gateway_canary_running") == "0" })
	last := g.reloads()[0]
	if last.Result != want {
		g.t.Fatalf("got %+v, want %s", last, want)
	}
	return last
}

var strictReads = with("read: {rate: 10, burst: 20", "read: {rate: 0.01, burst: 1")

func answering(p *peer) *peer {
	p.set(1, nil)
	p.on(echo)
	return p
}

// Limits that refuse too many are rolled back by themselves. The users who had them keep the tokens that they have.
func TestCanaryIsRolledBack(t *testing.T) {
	p, clk := answering(newPeer(t)), newClock()
	backends := []string{p.addr}
	g := runAt(t, clk, append([]string(nil), backends...), cautious)
	g.try("canary", backends, strictReads, with("cache: {ttl: 1s", "cache: {ttl: 9s"))
	tried, rest := g.halves(6)
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 200 || !strings.Contains(a.body, "the limits are tried on 50% of the users for 2m0s") {
		t.Errorf("got %v", a)
	}
	if n := g.read(rest) + g.read(rest); n != 0 {
		t.Errorf("%d of those with the old limits were refused", n)
	}
	if got := g.metric(`gateway_canary_requests{limits="old",result="passed"}`); got != "12" {
		t.Errorf("got %s requests under the old limits, want 12", got)
	}
	if n := g.read(tried[:5]) + g.read(tried[:5]); n < 4 || n > 5 { // the sixth request may end it
		t.Errorf("%d of those with the new limits were refused", n)
	}
	last := g.outcome("rolled_back")
	if !strings.HasPrefix(last.Reason, "refused: ") || !strings.Contains(last.Reason, "12 (0.00%) with the old ones: more than max_more_refused, 0.1, above") || last.Generation != 1 || len(last.Diff) != 3 {
		t.Errorf("got %+v", last)
	}
	if g.generation() != 1 || strings.Contains(g.do("GET", "http://"+g.ops+"/-/config").body, `"ttl": "9s"`) {
		t.Error("something of the file is in force")
	}
	if ok, n := g.metric("gateway_config_last_reload_successful"), g.metric(`gateway_config_reloads_total{result="rolled_back"}`); ok != "0" || n != "1" {
		t.Errorf("got %s, %s in the metrics", ok, n)
	}
	if n := g.read(tried[:1]); n != 1 {
		t.Error("a rolled back rule gave tokens")
	}
	clk.move(time.Second)
	for range 10 { // by the old law
		if n := g.read(tried[:1]); n != 0 {
			t.Fatal("the old limits do not hold again")
		}
	}
	if n := g.read(tried[:1]); n != 1 {
		t.Error("more tokens than the old law gives in a second")
	}
}

// Errors of the canary's users count, too.
func TestCanaryIsRolledBackForErrors(t *testing.T) {
	p, clk := answering(newPeer(t)), newClock()
	g := runAt(t, clk, []string{p.addr}, cautious)
	g.try("canary", []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 10, burst: 30"))
	tried, rest := g.halves(6)
	p.on(func(ctx *fastCtx, c call) {
		if c.UID == tried[5] {
			problemAnswer(ctx, 503, string(problem.Overloaded))
			return
		}
		echo(ctx, c)
	})
	g.read(rest)
	g.read(tried)
	if last := g.outcome("rolled_back"); !strings.HasPrefix(last.Reason, "errors: 1 of 6 requests") {
		t.Errorf("got %+v", last)
	}
}

// Limits that harm nobody hold for everybody after the watch, with the rest of the file; not before there were enough requests.
func TestCanaryIsTaken(t *testing.T) {
	p, clk := answering(newPeer(t)), newClock()
	g := runAt(t, clk, []string{p.addr}, cautious)
	g.try("canary", []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 10, burst: 2"), with("cache: {ttl: 1s", "cache: {ttl: 9s"), limits("uid_exempt: [monitor]"))
	tried, rest := g.halves(6)
	clk.move(3 * time.Minute)
	g.read(rest)
	g.read(tried[:5])
	before := g.do("GET", "http://"+g.ops+"/-/ready").body
	if !strings.Contains(before, "with the new limits 5 requests, 0 refused, 0 errors; with the old ones 6, 0, 0") {
		t.Errorf("got %s", before)
	}
	g.read(tried[5:])
	last := g.outcome("taken")
	if last.Generation != 2 || !strings.HasPrefix(last.Reason, "after 3m0s: with the new limits ") || len(last.Diff) != 3 || g.generation() != 2 {
		t.Errorf("got %+v", last)
	}
	if body := g.do("GET", "http://"+g.ops+"/-/config").body; !strings.Contains(body, `"ttl": "9s"`) {
		t.Error("the rest of the file is not in force")
	}
	if g.read(tried[:1]) != 0 || g.read(tried[:1]) != 1 { // of the new burst of 2 one token was left
		t.Error("the limits that were tried gave tokens when they were taken")
	}
	for range 2 { // had 19 of 20 tokens, has 2
		if n := g.read(rest[:1]); n != 0 {
			t.Error("refused by the new limits too early")
		}
	}
	if n := g.read(rest[:1]); n != 1 {
		t.Error("the new limits do not hold for the others")
	}
	if g.metric("gateway_config_last_reload_successful") != "1" || strings.Contains(g.do("GET", "http://"+g.ops+"/-/ready").body, "warnings") {
		t.Error("a canary that was taken leaves a warning")
	}
}

// The newest file counts. One that cannot be taken over changes nothing, and the canary goes on.
func TestReloadWhileACanaryRuns(t *testing.T) {
	p, clk := answering(newPeer(t)), newClock()
	g := runAt(t, clk, []string{p.addr}, cautious)
	backends := []string{p.addr}
	burst := func(n string) edit { return with("read: {rate: 10, burst: 20", "read: {rate: 10, burst: "+n) }

	first := g.try("canary", backends, burst("30"))
	if a := g.reload(); a.code != 200 || g.reloads()[0].Result != "unchanged" || g.metric("gateway_canary_running") != "1" {
		t.Errorf("the same file: got %v", a)
	}
	g.try("refused", backends, burst("0"))
	if g.metric("gateway_canary_running") != "1" || !strings.Contains(g.do("GET", "http://"+g.ops+"/-/ready").body, first.Hash) {
		t.Error("a file that is wrong ended the canary")
	}

	second := g.try("canary", backends, burst("40"))
	if got := g.reloads()[1]; got.Result != "rolled_back" || got.Reason != "another file came, by file change" || got.Hash != first.Hash || second.Hash == first.Hash {
		t.Errorf("got %+v, then %+v", got, second)
	}

	g.try("unchanged", backends) // as before it all
	if got := g.reloads()[1]; got.Result != "rolled_back" || got.Hash != second.Hash || g.generation() != 1 || g.metric("gateway_canary_running") != "0" {
		t.Errorf("got %+v", got)
	}

	// What no canary can try, and what is to hold at once, does.
	g.try("canary", backends, burst("50"))
	g.try("taken", backends, with("ip: {rate: 50, burst: 100", "ip: {rate: 50, burst: 200"))
	if g.generation() != 2 || g.metric("gateway_canary_running") != "0" {
		t.Errorf("got generation %d", g.generation())
	}
	g.try("taken", backends, burst("60"), with("share: 0.5", "share: 0"))
	if g.generation() != 3 {
		t.Errorf("got generation %d", g.generation())
	}
	g.try("canary", backends, burst("70"))
}

// Orders that the fast path refuses count as those that it does not.
func TestCanaryOnTheFastPath(t *testing.T) {
	for _, fast := range []string{"true", "false"} {
		p, clk := newPeer(t), newClock()
		p.set(1, nil)
		server := with("server: {", "server: {fast_path: "+fast+", ")
		g := runAt(t, clk, []string{p.addr}, cautious, server)
		g.try("canary", []string{p.addr}, server, with("order: {rate: 0.2, burst: 1", "order: {rate: 0.2, burst: 3"), with("min_requests: 6", "min_requests: 600"))
		tried, rest := g.halves(2)
		for _, uid := range append(tried, rest...) {
			for range 5 {
				g.do("POST", "/v1/sales/1/orders", g.as(uid))
			}
		}
		for labels, want := range map[string]string{`limits="new",result="passed"`: "6", `limits="new",result="refused"`: "4", `limits="old",result="passed"`: "2", `limits="old",result="refused"`: "8"} {
			if got := g.metric("gateway_canary_requests{" + labels + "}"); got != want {
				t.Errorf("fast path %s, %s: got %s, want %s", fast, labels, got, want)
			}
		}
	}
}

func TestJudge(t *testing.T) {
	c := &canaryRun{CanaryConfig: CanaryConfig{Share: 0.05, Watch: time.Minute, MaxMoreRefused: 0.1, MaxMoreErrors: 0.01, MinRequests: 100}}
	for _, x := range []struct {
		name        string
		tried, rest edge.Tally
		since       time.Duration
		want        string
	}{
		{"nothing came", edge.Tally{}, edge.Tally{}, time.Hour, ""},
		{"too few with the new limits", edge.Tally{Requests: 99, Refused: 99}, edge.Tally{Requests: 1000}, time.Hour, ""},
		{"too few with the old limits", edge.Tally{Requests: 1000, Refused: 1000}, edge.Tally{Requests: 99}, time.Hour, ""},
		{"good, but too early", edge.Tally{Requests: 100}, edge.Tally{Requests: 100}, time.Minute - 1, ""},
		{"good", edge.Tally{Requests: 100}, edge.Tally{Requests: 100}, time.Minute, taken},
		{"at the bound", edge.Tally{Requests: 100, Refused: 20, Failed: 1}, edge.Tally{Requests: 1000, Refused: 100}, time.Minute, taken},
		{"past it, at once", edge.Tally{Requests: 100, Refused: 21}, edge.Tally{Requests: 1000, Refused: 100}, 1, rolledBack},
		{"errors past it", edge.Tally{Requests: 100, Failed: 2}, edge.Tally{Requests: 1000}, 1, rolledBack},
		{"errors of everybody", edge.Tally{Requests: 100, Failed: 50}, edge.Tally{Requests: 1000, Failed: 500}, time.Minute, taken},
		{"better than before", edge.Tally{Requests: 100}, edge.Tally{Requests: 1000, Refused: 900, Failed: 90}, time.Minute, taken},
	} {
		if got, reason := c.judge(x.tried, x.rest, x.since); got != x.want || (got == "") != (reason == "") {
			t.Errorf("%s: got %q, %q, want %q", x.name, got, reason, x.want)
		}
	}
}
