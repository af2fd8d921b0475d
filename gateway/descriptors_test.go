package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"floodgate.internal/gateway/edge"
)

// asFewFiles is the environment variable with which the test's gateway process may open so many files.
const asFewFiles = "FLOODGATE_TEST_FILES"

// fewFiles lowers the limit, as the variable says.
func fewFiles() {
	if n, err := strconv.ParseUint(os.Getenv(asFewFiles), 10, 64); err == nil {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			panic(err)
		}
	}
}

func TestFitFiles(t *testing.T) {
	c := DefaultConfig()
	for _, limit := range []int{1 << 30, c.filesOf(c.Server.MaxConnections, edge.MaxClosing)} {
		if n, closing, err := c.fitFiles(limit); n != c.Server.MaxConnections || closing != edge.MaxClosing || err != nil {
			t.Errorf("%d: got %d, %d, %v", limit, n, closing, err)
		}
	}
	for _, limit := range []int{200, 1024, 4096, 20_000, 65_536, 83_000} {
		n, closing, err := c.fitFiles(limit)
		if err != nil || n < limit/4 || n >= c.Server.MaxConnections || c.filesOf(n, closing) > limit || c.filesOf(n+2, closing) <= limit-1 {
			t.Errorf("%d: got %d, %d, %v, which need %d", limit, n, closing, err, c.filesOf(n, closing))
		}
	}
	for _, limit := range []int{0, 50, 100, 140} {
		if n, _, err := c.fitFiles(limit); err == nil || !strings.Contains(err.Error(), "server.max_connections: 65536") || !strings.Contains(err.Error(), fmt.Sprintf("process %d,", limit)) {
			t.Errorf("%d: got %d, %v", limit, n, err)
		}
	}
	c.Server.MaxConnections = 3 // few on purpose
	if n, _, err := c.fitFiles(120); n != 3 || err != nil {
		t.Errorf("3 connections: got %d, %v", n, err)
	}
}

// Where the system allows few open files, the bound on connections is lowered, at the start and by a reload; and when all of the
// public's are used, the ops listener answers, shoppers over the bound are told, and the log says both numbers.
func TestFewOpenFiles(t *testing.T) {
	t.Setenv(asFewFiles, "300")
	p := newPeer(t)
	p.set(1, nil)
	config := func(n int) string {
		return configText([]string{p.addr}, with("server: {", fmt.Sprintf("server: {max_connections: %d, ", n)))
	}
	g := launchAlone(t, (*exec.Cmd).Start, config(5000))
	g.log.await(t, `fewer are taken.* max_connections=5000 taken=\d+ open_files=300 needed=\d+`)
	most := int(g.number("gateway_connections_max"))
	if most < 50 || most > 250 {
		t.Fatalf("%d connections of 300 open files", most)
	}
	var open []net.Conn
	for range most { // busy ones: they have begun a request
		c := g.raw()
		if _, err := io.WriteString(c, timeRequest[:8]); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	g.until("all are taken", func() bool { return int(g.number("gateway_connections")) == most })
	for range 5 {
		if b, err := io.ReadAll(g.raw()); err != nil || !strings.Contains(string(b), "503 ") {
			t.Errorf("one more: got %q, %v", b, err)
		}
	}
	for range 20 { // each on a connection of its own
		a := g.do("GET", "http://"+g.ops+"/-/ready", "Connection: close")
		if a.code != 200 {
			t.Errorf("ops: got %v", a)
		}
	}
	for _, c := range open {
		io.WriteString(c, timeRequest[8:])
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
			t.Fatalf("one of those that are in: %v, %v", resp, err)
		}
	}
	if failed := g.number("gateway_accept_failures_total"); failed != 0 {
		t.Errorf("%v connections could not be accepted", failed)
	}
	g.write(config(9000))
	g.log.await(t, `fewer are taken.* max_connections=9000 taken=`)
	g.until("reloaded", func() bool { return g.generation() == 2 })
	if now := int(g.number("gateway_connections_max")); now != most {
		t.Errorf("after a reload: %d connections, want %d as before", now, most)
	}
	g.write(config(20))
	g.until("reloaded", func() bool { return g.number("gateway_connections_max") == 20 })

	t.Setenv(asFewFiles, "100")
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env = append(os.Environ(), asGateway+"="+g.fileOf(config(5000)))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "server.max_connections: 5000 may need") {
		t.Errorf("100 open files: got %v, %s", err, out)
	}
}
