package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func (g *gw) generation() int {
	var c struct{ Generation int }
	json.Unmarshal([]byte(g.do("GET", "http://"+g.ops+"/-/config", "Authorization: Bearer dev-ops").body), &c)
	return c.Generation
}

func (g *gw) reload(extra ...string) answer {
	return g.do("POST", "http://"+g.ops+"/-/reload", extra...)
}

func TestReloadThreeWays(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	text := func(rate string) string {
		return configText([]string{p.addr}, with("order: {rate: 0.2", "order: {rate: "+rate))
	}
	g.write(text("0.3"))
	g.until("the file's change is taken over", func() bool { return g.generation() == 2 })

	// As Kubernetes changes a ConfigMap: the file is a link into a directory that is a link, which is swapped.
	dir := filepath.Dir(g.file)
	link := func(target, name string) {
		if err := os.Symlink(target, name+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	for i, rate := range []string{"0.4", "0.5"} {
		version := fmt.Sprint("..v", i)
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, version, "gateway.yaml"), []byte(text(rate)), 0o600); err != nil {
			t.Fatal(err)
		}
		link(version, filepath.Join(dir, "..data"))
		if i == 0 {
			link("..data/gateway.yaml", g.file)
		}
		g.until("the swapped link is taken over", func() bool { return g.generation() == 3+i })
	}
	syscall.Kill(os.Getpid(), syscall.SIGHUP) // nothing has changed: nothing happens
	g.until("SIGHUP is heard", func() bool { return g.metric(`gateway_config_reloads_total{result="ok"}`) == "4" })
	if n := g.generation(); n != 4 {
		t.Errorf("got generation %d after a reload without a change, want 4", n)
	}
	if a := g.reload(); a.code != 200 || a.body != "nothing changed\n" {
		t.Errorf("got %v", a)
	}
	if !strings.Contains(g.log.String(), "limits.order.rate: 0.4 becomes 0.5") {
		t.Error("the diff is not in the log")
	}
}

func TestReloadIsAllOrNothing(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	me := g.as("7")
	if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
		t.Fatalf("got %v", a)
	}
	for _, c := range []struct{ old, new, want string }{
		{"rate: 0.2", "rate: -1", "limits.order.rate: -1 must be positive"},
		{"feed: {", "fed: {", "fed"},
		{"read_timeout: 2s", "read_timeout: 3s", "server.read_timeout needs a restart"},
		{`public: "127.0.0.1:0"`, `public: "127.0.0.1:1"`, "listen.public needs a restart"},
	} {
		// Something else changes too, and must not be taken over.
		g.write(configText([]string{p.addr}, with("cache: {ttl: 1s", "cache: {ttl: 9s"), with(c.old, c.new)))
		if a := g.reload(); a.code != 400 || !strings.Contains(a.body, c.want) {
			t.Errorf("%s: got %v, want 400 and %q", c.new, a, c.want)
		}
		if a := g.do("GET", "http://"+g.ops+"/-/config"); !strings.Contains(a.body, `"ttl": "1s"`) || g.generation() != 1 {
			t.Errorf("%s: something was taken over: %v", c.new, a)
		}
	}
	if a := g.do("GET", "http://"+g.ops+"/-/config"); strings.Contains(a.body, "dev-") && strings.Contains(a.body, "secret-for") || !strings.Contains(a.body, "********") {
		t.Errorf("a secret is shown: %v", a)
	}
	// Buckets keep their tokens through a reload, refused or not; a new rate counts from there on.
	g.write(configText([]string{p.addr}, with("rate: 0.2, burst: 1", "rate: 0.1, burst: 1")))
	if a := g.reload(); a.code != 200 && g.generation() != 2 || g.generation() != 2 {
		t.Fatalf("got %v", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", me); a.problem() != "RATE_LIMITED" || a.header.Get("RateLimit-Policy") != `"order";q=1;w=10` {
		t.Errorf("got %v %v", a, a.header)
	}
	if a := g.do("POST", "/v1/sales/1/orders", g.as("8")); a.code != 202 {
		t.Errorf("got %v", a)
	}
}

// What is at the backend counts on through a reload, and a new bound holds for all of it.
func TestReloadKeepsWhatIsInFlight(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	release, entered := make(chan struct{}), make(chan struct{}, 10)
	p.on(func(ctx *fastCtx, _ call) { entered <- struct{}{}; <-release; accept(ctx) })
	edits := func(bound, leeway string) []edit {
		return []edit{with("max_in_flight: 64", "max_in_flight: "+bound), with("timeout: 3s", "timeout: 60s"), with("identity:", "identity:\n  leeway: "+leeway)}
	}
	g := run(t, []string{p.addr}, edits("2", "10s")...)
	var wg sync.WaitGroup
	users := 0
	order := func() {
		users++
		me := g.as(fmt.Sprint(users))
		wg.Go(func() {
			if a := g.do("POST", "/v1/sales/1/orders", me); a.code != 202 {
				t.Errorf("got %v", a)
			}
		})
		<-entered
	}
	order()
	order()
	for i, c := range []struct {
		bound string
		room  int
	}{{"2", 0}, {"4", 2}, {"3", 0}, {"6", 1}} { // of six places new orders may take five
		g.write(configText([]string{p.addr}, edits(c.bound, fmt.Sprint(20+i, "s"))...))
		if a := g.reload(); a.code != 200 || g.generation() != 2+i {
			t.Fatalf("got %v", a)
		}
		for range c.room {
			order()
		}
		users++
		if a := g.do("POST", "/v1/sales/1/orders", g.as(fmt.Sprint(users))); a.problem() != "OVERLOADED" {
			t.Errorf("one more than %s at once: got %v", c.bound, a)
		}
	}
	close(release)
	wg.Wait()
	if got := g.metric("gateway_upstream_in_flight"); got != "0" {
		t.Errorf("%s are in flight in the end", got)
	}
}

// A hundred reloads under load, every third one of a file that is wrong: no request fails of it, no bucket gains a token, and
// what is wrong is refused, says why, and is on record.
func TestReloadUnderLoad(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 1, burst: 1000"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for u := range 4 {
		me := g.as(fmt.Sprint(u))
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if a := g.do("POST", "/v1/sales/1/orders", me); i == 0 && a.code != 202 || i > 0 && a.problem() != "RATE_LIMITED" {
					t.Errorf("order %d: got %v", i, a)
					return
				}
				if a := g.do("GET", "/v1/sales/1"); a.code != 200 {
					t.Errorf("got %v", a)
				}
			}
		})
	}
	taken := 0
	for i := range 100 {
		rate := fmt.Sprintf("0.000%02d", 10+i%50) // a second token takes half an hour
		if i%3 == 2 {
			rate = "-1"
		}
		g.write(configText([]string{p.addr}, with("read: {rate: 10, burst: 20", "read: {rate: 1, burst: 1000"), with("order: {rate: 0.2", "order: {rate: "+rate)))
		a := g.reload()
		if want := map[bool]int{true: 400, false: 200}[i%3 == 2]; a.code != want || want == 400 && !strings.Contains(a.body, "limits.order.rate: -1 must be positive") {
			t.Errorf("reload %d: got %v, want %d and why", i, a, want)
		} else if want == 200 {
			taken++
		}
		if last := g.reloads()[0]; (last.Result == refused) != (i%3 == 2) || (last.Reason != "") != (i%3 == 2) || last.Generation != 1+taken {
			t.Errorf("reload %d is on record as %+v", i, last)
		}
	}
	close(stop)
	wg.Wait()
	if n := len(p.got("/v1/sales/1/orders")); n != 4 {
		t.Errorf("got %d orders at the backend, want one of each user: a reload gave tokens", n)
	}
	if taken != 67 {
		t.Errorf("got %d reloads taken over, want 67", taken)
	}
}

func TestReloadChangesKeysAndBackends(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	p.set(1, nil)
	q.set(1, nil)
	q.instance = "another"
	p.on(echo)
	q.on(func(ctx *fastCtx, c call) { ctx.SetBodyString("the other") })
	g := run(t, []string{p.addr})
	old := g.as("7")
	if a := g.do("GET", "/v1/orders", old); a.body != "GET /v1/orders 7" {
		t.Fatalf("got %v", a)
	}
	g.write(configText([]string{q.addr}, with("dev-login-secret-for-tests-only-000001", "dev-login-secret-for-tests-only-000002"),
		with(`ops_token: ""`, `ops_token: dev-ops`)))
	if a := g.reload(); a.code != 200 && a.code != 401 { // 401: the file's watcher was quicker, and the token is needed already
		t.Fatalf("got %v", a)
	}
	g.until("taken over", func() bool { return g.generation() == 2 })
	if a := g.do("GET", "/v1/orders", old); a.code != 401 {
		t.Errorf("a token of the old key, though remembered: got %v", a)
	}
	if a := g.do("GET", "/v1/orders", g.as("7")); a.body != "the other" {
		t.Errorf("got %v", a)
	}
	if a := g.reload(); a.code != 401 || a.problem() != "UNAUTHENTICATED" {
		t.Errorf("without the ops token: got %v", a)
	}
	if a := g.reload("Authorization: Bearer dev-ops"); a.code != 200 {
		t.Errorf("with it: got %v", a)
	}
}

func TestCheckAndToken(t *testing.T) {
	p := newPeer(t)
	command := func(args ...string) (string, int) {
		var out bytes.Buffer
		err := Run(context.Background(), args, &out, io.Discard)
		if err != nil {
			out.WriteString(err.Error())
		}
		return out.String(), exitCode(err)
	}
	g := launch(t, []string{p.addr})
	// The running one listens on a port that the file does not name, so this file names it.
	file := func(edits ...edit) string {
		name := t.TempDir() + "/gateway.yaml"
		edits = append(edits, with(`ops: "127.0.0.1:0"`, `ops: "`+g.ops+`"`))
		if err := os.WriteFile(name, []byte(configText([]string{p.addr}, edits...)), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if out, code := command("check", "-config", g.file); code != 0 || !strings.HasPrefix(out, "ok") {
		t.Errorf("got %d %s", code, out)
	}
	if out, code := command("check", "-config", file(with("rate: 0.2", "rate: 0.5"))); code != 0 || !strings.Contains(out, "limits.order.rate: 0.2 becomes 0.5") || !strings.Contains(out, "listen.ops needs a restart") {
		t.Errorf("got %d %s", code, out)
	}
	if out, code := command("check", "-config", file(with("rate: 0.2", "rate: 0"))); code != 2 || !strings.Contains(out, "limits.order.rate: 0 must be positive") {
		t.Errorf("got %d %s", code, out)
	}
	out, code := command("token", "-config", g.file, "-uid", "5-7")
	if lines := strings.Fields(out); code != 0 || len(lines) != 3 {
		t.Errorf("got %d, %d tokens", code, len(lines))
	} else {
		for i, token := range lines {
			if a := g.do("GET", "/v1/session", "Authorization: Bearer "+token); !strings.Contains(a.body, fmt.Sprintf(`"uid":"%d"`, 5+i)) {
				t.Errorf("token %d: got %v", i, a)
			}
		}
	}
	if out, code := command("token", "-config", g.file, "-uid", "alice-b"); code != 0 || len(strings.Fields(out)) != 1 {
		t.Errorf("a uid with a dash: got %d %s", code, out)
	}
	for _, c := range [][]string{{g.file, "7-5"}, {g.file, "1-99999999"}, {g.file, "a b"}, {g.file, ""}, {file(with(", sign: true", "")), "7"}} {
		if out, code := command("token", "-config", c[0], "-uid", c[1]); code != 2 {
			t.Errorf("-uid %q: got %d %s", c[1], code, out)
		}
	}
}
