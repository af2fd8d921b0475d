package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/valyala/fasthttp"
)

// slowOrders is a rule by which a user orders once in an hour, whatever else there is of tokens.
var slowOrders = []edit{with("order: {rate: 0.2, burst: 1, max_keys: 1000}", "order: {rate: 0.0003, burst: 1, max_keys: 100000}"),
	with("ip: {", "global: {rate: 100000, burst: 100000}\n  ip: {"), with("max_in_flight: 64", "max_in_flight: 1024, max_per_sale: 1024")}

// upgrade tells the gateway's process to upgrade.
func (g *gw) upgrade(pid int) {
	g.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
		g.t.Fatal(err)
	}
}

// alone starts a gateway in a process of its own, and returns its process id. What it started is killed at the end.
func alone(t *testing.T, config string) (*gw, *exec.Cmd) {
	t.Helper()
	var cmd *exec.Cmd
	g := launchAlone(t, func(c *exec.Cmd) error { cmd = c; return c.Start() }, config)
	t.Cleanup(func() {
		for _, m := range regexp.MustCompile(`taken over.* pid=(\d+)`).FindAllStringSubmatch(g.log.String(), -1) {
			var pid int
			fmt.Sscan(m[1], &pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("the log:\n%s", g.log)
		}
	})
	return g, cmd
}

// Under load, three processes follow one another: no request fails, and each user, whose bucket has one token an hour, is admitted
// once, however often they ask, on connections of the old process and of the new ones.
func TestUpgradeUnderLoad(t *testing.T) {
	for _, way := range []string{"plain", "PROXY and TLS"} {
		t.Run(way, func(t *testing.T) { upgradeUnderLoad(t, way) })
	}
}

func upgradeUnderLoad(t *testing.T, way string) {
	p := newPeer(t)
	p.set(1, nil)
	var mu sync.Mutex
	admitted := map[string]int{}
	p.on(func(ctx *fasthttp.RequestCtx, c call) {
		mu.Lock()
		admitted[c.UID]++
		mu.Unlock()
		accept(ctx)
	})
	edits, clientsOf := by(t, way, slowOrders...)
	redirects := strings.Contains(way, "TLS")
	if redirects {
		edits = append(edits, with("listen: {", `listen: {redirect: "127.0.0.1:0", `))
	}
	g, cmd := alone(t, configText([]string{p.addr}, edits...))
	clientsOf(g)
	const users, clients = 2000, 16
	var out bytes.Buffer
	if err := Run(context.Background(), []string{"token", "-config", g.file, "-uid", fmt.Sprintf("1-%d", users)}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	tokens := strings.Fields(out.String())
	var asked, failed atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{DialContext: g.dial, TLSClientConfig: g.secure.Clone()}, Timeout: patience}
			defer client.CloseIdleConnections()
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				req, _ := http.NewRequest("POST", g.scheme()+g.public+"/v1/sales/1/orders", nil)
				req.Header.Set("Authorization", "Bearer "+tokens[(n*7)%users])
				resp, err := client.Do(req)
				asked.Add(1)
				if err != nil {
					failed.Add(1)
					t.Errorf("a request failed: %v", err)
					return
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 202 && resp.StatusCode != 429 {
					failed.Add(1)
					t.Errorf("got %d %s", resp.StatusCode, b)
				}
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(admitted) }
	g.until("a third of the users were admitted", func() bool { return count() > users/3 })
	g.upgrade(cmd.Process.Pid)
	m := g.log.await(t, `taken over.* pid=(\d+)`)
	var second int
	fmt.Sscan(m[1], &second)
	if state, err := cmd.Process.Wait(); err != nil || !state.Success() { // not cmd.Wait: the new process has its log
		t.Errorf("the old process: %v, %v", state, err)
	}
	g.until("the second process answers operators", func() bool { return g.do("GET", "http://"+g.ops+"/-/ready").code == 200 })
	g.upgrade(second)
	g.log.await(t, `(?s)taken over.*taken over.* pid=\d+`)
	since := asked.Load()
	g.until("every user was admitted, and all asked again", func() bool { return count() == users && asked.Load() > since+2*users })
	close(stop)
	all.Wait()
	if redirects {
		g.public, g.secure = g.log.await(t, `msg=redirecting from=(\S+)`)[1], nil
		if statuses, all := exchangeRaw(g, "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n"); len(statuses) != 1 || statuses[0] != "308" {
			t.Errorf("the third process does not redirect: got %q", all)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	gained := 0
	for _, n := range admitted {
		gained += n - 1
	}
	t.Logf("%d requests, %d failed; %d users, %d tokens gained", asked.Load(), failed.Load(), len(admitted), gained)
	if gained != 0 || failed.Load() != 0 {
		t.Errorf("%d tokens gained and %d requests failed by two upgrades", gained, failed.Load())
	}
}

// A new process that cannot take over leaves the old one as it was: it says why, answers, and its buckets are neither emptied nor
// filled.
func TestUpgradeThatFails(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	config := configText([]string{p.addr}, slowOrders...)
	g, cmd := alone(t, config)
	seven, eight := g.as("7"), g.as("8")
	if a := g.do("POST", "/v1/sales/1/orders", seven); a.code != 202 {
		t.Fatalf("got %v", a)
	}
	g.write(strings.Replace(config, "rate: 0.0003", "rate: -1", 1))
	g.log.await(t, "not taken over")
	g.upgrade(cmd.Process.Pid)
	g.log.await(t, `the upgrade failed.*limits\.order\.rate`)
	g.write(strings.Replace(config, `public: "127.0.0.1:0"`, `public: "localhost:0"`, 1))
	g.log.await(t, "needs a restart")
	g.upgrade(cmd.Process.Pid)
	g.log.await(t, `the upgrade failed.*listen\.public`)
	if a := g.do("POST", "/v1/sales/1/orders", seven); a.code != 429 {
		t.Errorf("a token gained: got %v", a)
	}
	if a := g.do("POST", "/v1/sales/1/orders", eight); a.code != 202 {
		t.Errorf("a token lost: got %v", a)
	}
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 200 {
		t.Errorf("got %v", a)
	}
	c, err := net.Dial("tcp", g.public)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
