package embedded

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"floodgate.internal/shared/development"
)

// What fasthttp starts for its housekeeping ends by itself, at its next tick.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// buffer is what two processes log to.
type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestStartSamplesAndClose(t *testing.T) {
	var log buffer
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	ids, err := s.Admin().Samples(t.Context())
	if err != nil || len(ids) != 3 {
		t.Errorf("got sales %v, %v; want three", ids, err)
	}
	for _, path := range []string{"/admin/v1/dead-letters?open=true", "/admin/v1/queue"} {
		if status, body := operator(t, s.Addrs.Admin, path); status != http.StatusOK || !strings.Contains(body, "dead_letters") {
			t.Errorf("%s: got %d %s", path, status, body)
		}
	}
	tokens, err := s.Tokens(t.Context(), "1-3")
	if err != nil || len(tokens) != 3 {
		t.Errorf("got tokens %v, %v; want three", tokens, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Wait(ctx); err != nil {
		t.Errorf("wait: got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v\n%s", err, &log)
	}
	if !strings.Contains(log.String(), "development") {
		t.Errorf("the log does not warn about development secrets:\n%s", &log)
	}
	if err := s.Addrs.InUse(); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// operator reads a path of the admin listener.
func operator(t *testing.T, addr, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+development.AdminToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestStartRefusesAPortInUse(t *testing.T) {
	a, err := FreeAddrs()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", a.Admin)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log buffer
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Addrs: a, Log: &log})
	if err == nil || !strings.Contains(err.Error(), a.Admin) || s != nil {
		t.Errorf("got %v; want an error that names %s", err, a.Admin)
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log buffer
	if s, err := Start(ctx, Options{Dir: t.TempDir(), Log: &log}); err == nil {
		s.Close()
		t.Error("got a system, want an error")
	}
}

// What the stand-ins are made of must be in no other binary.
func TestProductionBinariesContainNoStandIn(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "floodgate.internal/backend/cmd/backend", "floodgate.internal/gateway/cmd/gateway")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	if !strings.Contains(string(out), "floodgate.internal/shared/wire") {
		t.Errorf("these do not look like their packages: %s", out)
	}
	for _, name := range []string{"miniredis", "go-mysql-server", "vitess", "floodgate.internal/embedded"} {
		if strings.Contains(string(out), name) {
			t.Errorf("a production binary contains %s", name)
		}
	}
}
