package gateway

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// opsPaths are all of the ops listener but what is open to everybody.
var opsPaths = []string{"/-/config", "/-/reloads", "/-/top", "/-/reload", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=1", "/-/other", "/", "//metrics", "/-/healthy/x"}

// With an ops token nothing but health, readiness and metrics is told without it.
func TestTheOpsTokenGuardsTheListener(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with(`ops_token: ""`, "ops_token: dev-ops"))
	for i, path := range opsPaths {
		for _, method := range []string{"GET", "POST"} {
			tokens := []string{"", "Bearer ", "Basic dev-ops", "dev-ops"}
			if i < 2 { // more guesses would be slowed
				tokens = append(tokens, "Bearer dev-op", "Bearer dev-opss")
			}
			for _, token := range tokens {
				header := []string{}
				if token != "" {
					header = append(header, "Authorization: "+token)
				}
				if a := g.do(method, "http://"+g.ops+path, header...); a.code != 401 || a.problem() != "UNAUTHENTICATED" || a.header.Get("WWW-Authenticate") == "" || a.header.Get("X-Request-Id") == "" {
					t.Errorf("%s %s with %q: got %v, want 401", method, path, token, a)
				}
			}
		}
		if a := g.do("GET", "http://"+g.ops+path, "Authorization: Bearer dev-ops"); a.code == 401 || a.code == 421 {
			t.Errorf("%s with the token: got %v", path, a)
		}
	}
	for _, path := range []string{"/-/healthy", "/-/ready", "/metrics"} {
		if a := g.do("GET", "http://"+g.ops+path); a.code != 200 {
			t.Errorf("%s: got %v, want 200", path, a)
		}
	}
	// "gateway check" asks with the file's own token.
	check := func(token string) string {
		g.write(configText([]string{p.addr}, with(`ops: "127.0.0.1:0"`, `ops: "`+g.ops+`"`), with(`ops_token: ""`, "ops_token: "+token)))
		var out bytes.Buffer
		if err := Run(context.Background(), []string{"check", "-config", g.file}, &out, io.Discard); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	if out := check("dev-ops"); !strings.Contains(out, "listen.ops") {
		t.Errorf("check with the token: got %q", out)
	}
	if out := check("dev-other"); !strings.Contains(out, "refuses this token") {
		t.Errorf("check with another token: got %q", out)
	}
}

// A foreign name that resolves to this machine gets nothing of the ops listener; what is listed does, by reload.
func TestTheOpsListenerChecksTheHost(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	ask := func(method, path, host string) int {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+g.ops+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode
	}
	_, port, _ := net.SplitHostPort(g.ops)
	for _, path := range append([]string{"/-/healthy", "/-/ready", "/metrics"}, opsPaths...) {
		for _, host := range []string{"evil.example", "evil.example:" + port, "127.0.0.1.evil.example:" + port, "10.1.2.3:" + port} {
			if code := ask("GET", path, host); code != 421 {
				t.Errorf("%s for %s: got %d, want 421", path, host, code)
			}
		}
	}
	if code := ask("POST", "/-/reload", "evil.example"); code != 421 {
		t.Errorf("a reload: got %d", code)
	}
	for _, host := range []string{"localhost:" + port, "localhost", "127.0.0.1:" + port, "127.0.0.1", "[::1]:" + port, g.ops} {
		if code := ask("GET", "/-/config", host); code != 200 {
			t.Errorf("%s: got %d, want 200", host, code)
		}
	}
	g.write(configText([]string{p.addr}, with(`ops_token: ""`, "ops_hosts: [ops.example]")))
	g.reload()
	g.until("taken over", func() bool { return g.generation() == 2 })
	if code := ask("GET", "/-/config", "OPS.example:"+port); code != 200 {
		t.Errorf("a listed name: got %d", code)
	}
	// The target of an absolute form counts, not the field (RFC 9112, 3.2.2); and a request without a Host has none that is ours.
	for raw, want := range map[string]string{"GET http://evil.example/-/config HTTP/1.1\r\nHost: localhost\r\n\r\n": " 421 ", "GET /-/config HTTP/1.0\r\n\r\n": " 421 ", "GET /-/config HTTP/1.1\r\n\r\n": " 400 "} {
		c, err := net.Dial("tcp", g.ops)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, raw)
		c.(*net.TCPConn).CloseWrite()
		if b, _ := io.ReadAll(c); !strings.Contains(strings.SplitN(string(b), "\r\n", 2)[0], want) {
			t.Errorf("%q: got %q, want%s", raw, b, want)
		}
		c.Close()
	}
}
