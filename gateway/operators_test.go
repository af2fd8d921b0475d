package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/operator"
)

// Operators of the ops listener have names and roles; a reload changes them at once, and says who asked for it.
func TestOperatorsOfTheOpsListener(t *testing.T) {
	p := newPeer(t)
	tokens := map[string]string{}
	entry := func(name, role string) string {
		token, hash := operator.Mint()
		tokens[name] = "Authorization: Bearer " + token
		return fmt.Sprintf("{name: %s, role: %s, token_sha256: %q}", name, role, hash)
	}
	anna, bob, carl := entry("anna", "viewer"), entry("bob", "operator"), entry("carl", "admin")
	text := func(token string, list ...string) string {
		return configText([]string{p.addr}, with(`ops_token: ""`, fmt.Sprintf("ops_token: %q\noperators: [%s]", token, strings.Join(list, ", "))))
	}
	g := run(t, []string{p.addr})
	if a := g.do("GET", "http://"+g.ops+"/-/config"); a.code != 200 {
		t.Errorf("with nobody on the list: got %v", a)
	}
	g.write(text("", anna, bob, carl))
	if a := g.reload(); a.code != 200 && a.code != 401 { // the file's change may have come first
		t.Fatalf("got %v", a)
	}
	g.until("the operators count", func() bool { return g.do("GET", "http://"+g.ops+"/-/config").code == 401 })
	for path, need := range map[string]string{"/-/config": "viewer", "/-/top": "viewer", "/-/reloads": "viewer", "/-/nothing": "viewer",
		"/debug/pprof/": "operator", "/debug/pprof/goroutine": "operator", "/debug/pprof/cmdline": "operator", "/debug/pprof/symbol": "operator"} {
		for name, mine := range tokens {
			a := g.do("GET", "http://"+g.ops+path, mine)
			if low := need == "operator" && name == "anna"; low != (a.code == 403) || a.code == 401 {
				t.Errorf("%s by %s: got %v", path, name, a)
			} else if low && (a.problem() != "FORBIDDEN" || !strings.Contains(a.body, "this needs the role operator: anna is viewer")) {
				t.Errorf("%s by %s: got %v", path, name, a)
			}
		}
	}
	if a := g.do("GET", "http://"+g.ops+"/-/config", tokens["anna"]); strings.Contains(anna, "token_sha256: \"********\"") || !strings.Contains(a.body, `"name": "anna"`) || !strings.Contains(a.body, "********") {
		t.Errorf("got %v", a)
	}
	if a := g.reload(tokens["anna"]); a.code != 403 {
		t.Errorf("a viewer's reload: got %v", a)
	}
	if a := g.reload(tokens["bob"]); a.code != 200 {
		t.Errorf("an operator's reload: got %v", a)
	}
	if a := g.do("GET", "http://"+g.ops+"/-/reloads", tokens["anna"]); !strings.Contains(a.body, "by bob (operator)") {
		t.Errorf("got %v", a)
	}
	g.write(text("dev-ops", bob))
	g.until("anna is gone", func() bool { return g.do("GET", "http://"+g.ops+"/-/config", tokens["anna"]).code == 401 })
	for _, header := range []string{tokens["bob"], "Authorization: Bearer dev-ops"} {
		if a := g.do("GET", "http://"+g.ops+"/-/config", header); a.code != 200 {
			t.Errorf("%s: got %v", header, a)
		}
	}
	before := g.do("GET", "http://"+g.ops+"/-/config", tokens["bob"]).body
	g.write(text("dev-ops", strings.Replace(bob, "operator", "root", 1)))
	if a := g.reload(tokens["bob"]); a.code != 400 || !strings.Contains(a.body, `operators[0].role: "root" must be viewer, operator or admin`) {
		t.Errorf("a wrong role: got %v", a)
	}
	if a := g.do("GET", "http://"+g.ops+"/-/config", tokens["bob"]); a.body != before {
		t.Errorf("a refused file changed %s to %v", before, a)
	}
}

// Whoever guesses waits, with a Retry-After; the log counts the guesses.
func TestGuessesOfTheOpsTokenAreSlowed(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with(`ops_token: ""`, "ops_token: dev-ops"))
	guess := func() answer { return g.do("GET", "http://"+g.ops+"/-/config", "Authorization: Bearer dev-guess") }
	for range 10 {
		if a := guess(); a.code != 401 {
			t.Fatalf("got %v", a)
		}
	}
	for _, token := range []string{"dev-guess", "dev-ops"} {
		a := g.do("GET", "http://"+g.ops+"/-/config", "Authorization: Bearer "+token)
		if h := a.header; a.code != 429 || a.problem() != "RATE_LIMITED" || h.Get("Retry-After") == "" || h.Get("RateLimit-Policy") != `"guesses";q=10;w=60` || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %v %v", token, a, h)
		}
	}
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 200 {
		t.Errorf("readiness: got %v", a)
	}
	g.log.await(t, `msg="a wrong operator token" address=127\.0\.0\.1/32 wrong=10`)
	if strings.Contains(g.log.String(), "dev-guess") {
		t.Error("the log has a guess")
	}
	if g.metric(`gateway_operator_guesses_total{result="wrong"}`) != "10" || g.metric(`gateway_operator_guesses_total{result="slowed"}`) != "2" {
		t.Errorf("got %s wrong, %s slowed", g.metric(`gateway_operator_guesses_total{result="wrong"}`), g.metric(`gateway_operator_guesses_total{result="slowed"}`))
	}
}

func TestOperatorTokenCommand(t *testing.T) {
	var out bytes.Buffer
	if err := Run(context.Background(), []string{"operator-token", "-name", "anna", "-role", "viewer"}, &out, io.Discard); err != nil || !strings.Contains(out.String(), "{name: anna, role: viewer, token_sha256: ") {
		t.Errorf("got %v, %s", err, out.String())
	}
	for _, args := range [][]string{{"operator-token"}, {"operator-token", "-name", "anna"}, {"operator-token", "-name", "anna", "-role", "root"}} {
		if err := Run(context.Background(), args, io.Discard, io.Discard); cli.ExitCode(err) != 2 {
			t.Errorf("%v: got %v", args, err)
		}
	}
}
