//go:build servers

package lock

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/ports"
)

// childEnv makes this test binary a process that does what it is told, a line each, and answers each with a line.
const (
	childEnv  = "LOCK_TEST_CHILD_PREFIX"
	childDSN  = "LOCK_TEST_CHILD_DSN"
	leaseText = "2s"
)

func child() int {
	s, err := redis.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: os.Getenv(childEnv)})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer s.Close()
	var db *sql.DB
	if dsn := os.Getenv(childDSN); dsn != "" {
		if db, err = store.Open(dsn, 1); err != nil {
			fmt.Println(err)
			return 1
		}
		defer db.Close()
	}
	l := New(s, prometheus.NewRegistry())
	ctx := context.Background()
	lease, _ := time.ParseDuration(leaseText)
	var h *Hold
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var answer any
		switch in.Text() {
		case "acquire":
			if h, err = l.Acquire(ctx, "door", NewOwner(), lease, patience); err == nil {
				answer = h.Fence()
			}
		case "write":
			if err = write(ctx, db, h.Fence(), "child"); errors.Is(err, ErrFenced) {
				answer, err = "fenced", nil
			} else {
				answer = "written"
			}
		case "told":
			<-h.Context().Done()
			answer = errors.Is(context.Cause(h.Context()), ErrLost)
		case "count": // a hundred times
			answer = "counted"
			for i := 0; i < 100 && err == nil; i++ {
				var h *Hold
				if h, err = l.Acquire(ctx, "counter", NewOwner(), 10*time.Second, patience); err == nil {
					err = errors.Join(addOne(ctx, s, s.Prefix()+"counter"), h.Release())
				}
			}
		}
		if err != nil {
			answer = err
		}
		fmt.Println(answer)
	}
	return 0
}

// other is another process.
type other struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func newProcess(t *testing.T, l *Locks, dsn string) *other {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+l.prefix, childDSN+"="+dsn)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &other{t, cmd, in, bufio.NewReader(out)}
	t.Cleanup(func() { p.end() })
	return p
}

// end kills it.
func (p *other) end() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

func (p *other) say(command string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *other) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (p *other) ask(command string) string {
	p.t.Helper()
	p.say(command)
	return p.hear()
}

// Row A5: processes exclude each other.
func TestProcessesExcludeEachOther(t *testing.T) {
	t.Attr("row", "A5")
	l := newLocks(t)
	var all []*other
	for range 4 {
		all = append(all, newProcess(t, l, ""))
	}
	for _, p := range all {
		p.say("count")
	}
	for _, p := range all {
		if got := p.hear(); got != "counted" {
			t.Error(got)
		}
	}
	if got, err := read(t.Context(), l.client, l.prefix+"counter"); err != nil || got != 400 {
		t.Errorf("four processes counted to %d, %v; want 400", got, err)
	}
}

// Row A7: a holder that is stopped for longer than its lease wakes up, writes, and is refused; then it is told.
func TestAHolderThatSleptThroughItsLeaseCannotWrite(t *testing.T) {
	t.Attr("row", "A7")
	l, dsn := newLocks(t), backendtest.MySQLDSN(t)
	db := protected(t, dsn)
	p := newProcess(t, l, dsn)
	first := p.ask("acquire")
	if got := p.ask("write"); got != "written" {
		t.Fatal(got)
	}
	wantRow(t, db, "child "+first)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h := take(t, l, "door", NewOwner(), hours, patience) // the wait ends with the lease: nobody tells of it
	if err := write(t.Context(), db, h.Fence(), "heir"); err != nil {
		t.Fatal(err)
	}
	p.say("write") // it goes on where it stood
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := p.hear(); got != "fenced" {
		t.Errorf("the late write: got %s, want fenced", got)
	}
	wantRow(t, db, fmt.Sprint("heir ", h.Fence()))
	if got := p.ask("told"); got != "true" {
		t.Errorf("told that the lock is lost: got %s", got)
	}
	if left := refused(t, l, "door"); left < hours-time.Hour {
		t.Errorf("the heir's lease has %v left: the late watchdog touched it", left)
	}
	release(t, h)
}

// Row C4: a lock survives the death of its holder: the others wait until its lease ends, and no longer.
func TestTheLockOfADeadHolderIsTaken(t *testing.T) {
	t.Attr("row", "C4")
	l := newLocks(t)
	p := newProcess(t, l, "")
	if got := p.ask("acquire"); strings.Trim(got, "0123456789") != "" {
		t.Fatal(got)
	}
	lease, _ := time.ParseDuration(leaseText)
	if left := refused(t, l, "door"); left > lease {
		t.Errorf("%v are left of a lease of %v", left, lease)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			h, err := l.Acquire(t.Context(), "door", NewOwner(), hours, patience)
			if err != nil {
				t.Error(err)
				return
			}
			release(t, h)
		})
	}
	until(t, "they wait", func() bool { return l.waiters.standing(l.holder("door")) == 3 })
	p.end()
	wg.Wait()
}

// server is a Redis of the test's own, which can be killed.
type server struct {
	t    *testing.T
	dir  string
	addr string
	cmd  *exec.Cmd
}

func newServer(t *testing.T) *server {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: t.TempDir(), addr: fmt.Sprintf("127.0.0.1:%d", free[0])}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start starts it on what it has on disk, and returns when it answers.
func (s *server) start() {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", s.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("a Redis of the test's own: %v", err)
	}
	until(s.t, "Redis answers", func() bool {
		c, err := redis.Open(redis.Config{Addrs: []string{s.addr}})
		if err != nil {
			return false
		}
		defer c.Close()
		_, err = c.Now(s.t.Context())
		return err == nil
	})
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()
}

func (s *server) locks() *Locks {
	s.t.Helper()
	r, err := redis.Open(redis.Config{Addrs: []string{s.addr}, Prefix: "t:"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(r.Close)
	return New(r, prometheus.NewRegistry())
}

// again asks until Redis has answered: the first calls may meet a connection that is being given up.
func again(t *testing.T, l *Locks, wait time.Duration) (h *Hold, err error) {
	until(t, "Redis is reached", func() bool {
		h, err = l.Acquire(t.Context(), "door", NewOwner(), hours, wait)
		var held *HeldError
		return err == nil || errors.As(err, &held)
	})
	return h, err
}

// A Redis that comes back with its data knows the lock; one that comes back empty does not, the holder is told, and yet no
// later fence is lower.
func TestRedisIsRestarted(t *testing.T) {
	s := newServer(t)
	l := s.locks()
	h := take(t, l, "door", NewOwner(), 15*time.Second, 0)
	s.kill()
	if _, err := l.Acquire(t.Context(), "door", NewOwner(), hours, patience); err == nil {
		t.Error("took a lock without Redis")
	}
	s.start()
	if _, err := again(t, l, 0); err == nil {
		t.Error("took a lock that another has, after a restart")
	}
	last := time.Duration(hours).Milliseconds()
	until(t, "the lease is renewed", func() bool { // by the watchdog, which the restart did not end
		if err := h.Context().Err(); err != nil {
			t.Fatalf("the hold has ended: %v", context.Cause(h.Context()))
		}
		now, err := l.client.Do(t.Context(), l.client.B().Pttl().Key(l.holder("door")).Build()).AsInt64()
		if err != nil { // another connection that is being given up
			return false
		}
		rose := now > last
		last = now
		return rose
	})
	s.kill()
	if err := os.RemoveAll(filepath.Join(s.dir, "appendonlydir")); err != nil {
		t.Fatal(err)
	}
	s.start()
	heir, err := again(t, l, 0)
	if err != nil {
		t.Fatal(err)
	}
	if heir.Fence() <= h.Fence() {
		t.Errorf("after Redis was emptied: got fence %d after %d", heir.Fence(), h.Fence())
	}
	if err := ended(t, h); !errors.Is(err, ErrLost) {
		t.Errorf("the first holder: got %v, want %v", err, ErrLost)
	}
	release(t, heir)
}
