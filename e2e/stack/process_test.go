package stack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sleeper is a process that serves at once and would run for an hour; script runs before, in the same process.
func sleeper(t *testing.T, dir, script string) *Process {
	t.Helper()
	p := &Process{
		name: "sleeper", dir: dir,
		command:     func() *exec.Cmd { return exec.Command("sh", "-c", script+"\nexec sleep 3600") },
		ready:       func(context.Context) error { return nil },
		startWithin: 10 * time.Second, stopWithin: 10 * time.Second,
		report: t.Logf,
	}
	t.Cleanup(func() {
		if err := p.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func start(t *testing.T, p *Process) int {
	t.Helper()
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p.PID()
}

func TestStartIsIdempotentAcrossLaunchers(t *testing.T) {
	dir := t.TempDir()
	first := start(t, sleeper(t, dir, ""))
	second := start(t, sleeper(t, dir, "")) // another launcher: it knows only the files
	if first == 0 || second != first {
		t.Fatalf("got pids %d and %d, want the same", first, second)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if third := start(t, sleeper(t, dir, "")); third == first || third == 0 {
		t.Fatalf("after SIGKILL: got pid %d, want a new one (was %d)", third, first)
	}
}

func TestAPidOfSomebodyElseIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	p := sleeper(t, dir, "")
	start(t, p)
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The pid file survived a crash of the machine, say, and its number is now that of this very test.
	if err := os.WriteFile(p.pidFile(), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.identityFile(), []byte(bootID()+" 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid := p.PID(); pid != 0 {
		t.Fatalf("got pid %d, want none", pid)
	}
	if err := p.Stop(t.Context()); err != nil { // must not end the test
		t.Fatal(err)
	}
	if pid := start(t, p); pid == 0 || pid == os.Getpid() {
		t.Fatalf("got pid %d, want one of its own", pid)
	}
}

func TestStopTakesTheChildrenAlong(t *testing.T) {
	dir := t.TempDir()
	p := sleeper(t, dir, "setsid sleep 3601 & echo $! > child; mv child child.pid")
	pid := start(t, p)
	var child int
	for deadline := time.Now().Add(2 * time.Minute); child == 0; time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(filepath.Join(dir, "child.pid")); err == nil {
			child, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		if time.Now().After(deadline) {
			t.Fatal("the child did not start")
		}
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil { // a paused process must stop as well
		t.Fatal(err)
	}
	if stopped, err := allStopped(pid); !stopped || err != nil {
		t.Errorf("after SIGSTOP: stopped %t, %v", stopped, err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{pid, child} {
		if st, err := readStat(pid); err == nil && !st.dead() {
			t.Errorf("pid %d still runs", pid)
		}
	}
	if _, err := os.Stat(p.pidFile()); err == nil {
		t.Error("the pid file is still there")
	}
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	dir := t.TempDir()
	p := sleeper(t, dir, "trap '' TERM; touch ready")
	p.ready = func(context.Context) error { _, err := os.Stat(filepath.Join(dir, "ready")); return err }
	p.stopWithin = 200 * time.Millisecond
	start(t, p)
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.Running() {
		t.Error("it still runs")
	}
}

func TestStartTellsWhyItFailed(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		wants  []string
	}{
		"it ends":          {"echo old >&2; echo the disk is full >&2; exit 1", []string{"sleeper ended before it served", "| the disk is full"}},
		"it never serves":  {"echo waiting for godot", []string{"does not serve after", "not yet", "| waiting for godot"}},
		"it says nothing.": {"exit 1", []string{"the log is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := sleeper(t, t.TempDir(), c.script)
			p.startWithin = 500 * time.Millisecond
			p.ready = func(context.Context) error { return fmt.Errorf("not yet") }
			err := p.Start(t.Context())
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
		})
	}
}

func TestStartNamesTheAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := sleeper(t, t.TempDir(), "")
	p.addrs = []string{l.Addr().String()}
	err = p.Start(t.Context())
	if want := fmt.Sprintf("%s is in use by pid %d (%s", l.Addr(), os.Getpid(), os.Args[0]); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want %q in it", err, want)
	}
}

func TestProbeHTTPTellsTheAnswer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "waiting for redis", http.StatusServiceUnavailable)
	}))
	defer s.Close()
	err := probeHTTP(t.Context(), s.URL+"/-/ready")
	if err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "waiting for redis") {
		t.Fatalf("got %v, want the status and the body", err)
	}
}

func TestSettingsAreChosenOnce(t *testing.T) {
	dir := t.TempDir()
	a, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.settings != b.settings {
		t.Fatalf("got %+v, then %+v", a.settings, b.settings)
	}
	seen := map[int]bool{}
	s := a.settings
	for _, port := range []int{s.RedisPort, s.MySQLPort, s.AMQPPort, s.ManagementPort, s.DistPort, s.EPMDPort} {
		if port == 0 || seen[port] {
			t.Errorf("port %d is none or twice in %+v", port, s)
		}
		seen[port] = true
	}
	if _, err := Open(filepath.Join(dir, "with a space"), nil); err == nil {
		t.Error("a path with spaces: got no error")
	}
}

func TestLockKeepsOthersOut(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another launcher") {
		t.Fatalf("locked twice: got %v", err)
	}
	unlock()
	unlock, err = Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestRunPassesTheExitCodeOn(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "test \"$FG_TEST\" = yes": 0} {
		code, err := run(t.Context(), []string{"sh", "-c", script}, []string{"FG_TEST=yes"}, t.Output(), t.Output())
		if err != nil || code != want {
			t.Errorf("%s: got %d, %v, want %d", script, code, err, want)
		}
	}
	if _, err := run(t.Context(), []string{"no-such-program"}, nil, t.Output(), t.Output()); err == nil {
		t.Error("no-such-program: got no error")
	}
}

func TestRunEndsTheWholeGroupWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		line := make([]byte, 1)
		_, _ = r.Read(line) // both run
		cancel()
	}()
	began := time.Now()
	code, err := run(ctx, []string{"sh", "-c", "sleep 3600 & echo; wait"}, nil, w, w)
	w.Close()
	if err != nil && ctx.Err() == nil || code == 0 {
		t.Fatalf("got %d, %v", code, err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("took %v", took)
	}
}
