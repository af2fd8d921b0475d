package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/shared/wire"
)

// An upgrade in place: on SIGUSR2 this process starts the executable that it was started as once more, with its listening
// sockets. The new process loads its configuration, takes this one's buckets over, and commits. From the instant at which a
// bucket is handed over, this process asks the new one for each token: so no token is taken twice. Until the new one has committed
// those requests wait. If it never commits, this process takes its buckets back, unchanged.

// handoverVersion is the version of what two processes say to each other. Another one refuses the upgrade.
const handoverVersion = 1

// How long a new process may take to load and to begin, and then to take the buckets over, during which requests wait.
const (
	upgradeTime  = time.Minute
	handoverTime = 10 * time.Second
)

// inheritedEnv names the sockets that a process inherits, from descriptor 3 on: public, ops, then redirect where there is one,
// then the connection to the old process, then the one from it.
const inheritedEnv = "FLOODGATE_INHERITED"

// executable is what an upgrade starts: the path by which this process was started.
var executable = func() string {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return os.Args[0]
	}
	return path
}()

// Hello is what the old process says of itself. Both must listen as their files say, at the same addresses.
type Hello struct {
	Version    int
	Listen     [3]string
	IPv6Prefix int
	Feed       []byte // salegate.Snapshot as JSON
	FeedAge    time.Duration
}

// Take asks for a token.
type Take struct {
	Table int
	Key   string
}

// handover is the old process's side. Its exported methods are called by the new process.
type handover struct {
	r       *process
	client  *rpc.Client // to the new process
	begun   chan struct{}
	decided chan struct{} // closed when it is known who has the buckets

	mu        sync.Mutex // guards what follows
	parts     int
	whole     bool
	over      bool
	committed bool
	failed    string
}

// Hello begins.
func (h *handover) Hello(version int, out *Hello) error {
	if version != handoverVersion {
		return fmt.Errorf("it speaks version %d, this process version %d: restart", version, handoverVersion)
	}
	*out = h.r.hello()
	return nil
}

func (r *process) hello() Hello {
	c := r.current.Load()
	h := Hello{Version: handoverVersion, Listen: [3]string{c.Listen.Public, c.Listen.Ops, c.Listen.Redirect}, IPv6Prefix: c.IPv6Prefix}
	if f := r.gate.Snapshot(); f != nil {
		h.FeedAge = r.gate.Age(time.Now())
		h.Feed, _ = json.Marshal(f) // what was read from JSON
	}
	return h
}

// Next hands the next part of the buckets over.
func (h *handover) Next(_ int, out *edge.Part) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return errors.New("too late: the old process goes on")
	}
	if h.parts == 0 {
		close(h.begun)
	}
	*out, err = h.r.edge.HandOver(h.parts, h.take)
	h.parts++
	h.whole = h.whole || err == nil && out.Last
	return err
}

// Commit makes the new process the one that answers.
func (h *handover) Commit(_ int, _ *int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || !h.whole {
		return errors.New("too late or too soon: the old process goes on")
	}
	h.over, h.committed = true, true
	close(h.decided)
	return nil
}

// Failed says why the new process gives up.
func (h *handover) Failed(why string, _ *int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = why[:min(len(why), 4096)]
	return nil
}

// take asks the new process for a token. Before it has committed, requests wait.
func (h *handover) take(table int, key string) (d limit.Decision, ok bool) {
	<-h.decided
	if !h.committed {
		return d, false
	}
	if err := h.client.Call("New.Take", Take{table, key}, &d); err != nil { // it died: nobody may say yes
		return limit.Decision{Wait: time.Second}, true
	}
	return d, true
}

// abort takes the buckets back, unless the new process has committed. failed is what that said when it gave up, if it did.
func (h *handover) abort() (committed bool, failed string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.committed {
		return true, ""
	}
	h.over = true
	h.r.edge.TakeBack()
	close(h.decided)
	return false, h.failed
}

// upgrade starts a new process and returns when that has taken over, or why it has not.
func (r *process) upgrade(ctx context.Context, listeners []net.Listener) (pid int, err error) {
	if os.Getpid() == 1 {
		return 0, errors.New("this process is the first of its container, which would end with it: replace the container")
	}
	if r.canary.Load() != nil {
		return 0, errors.New("limits are being tried: wait until that is decided")
	}
	child, from, to, err := startNew(listeners)
	if err != nil {
		return 0, err
	}
	h := &handover{r: r, client: rpc.NewClient(to), begun: make(chan struct{}), decided: make(chan struct{})}
	server := rpc.NewServer()
	if err := server.RegisterName("Old", h); err != nil {
		panic("BUG: " + err.Error())
	}
	go server.ServeConn(from)
	ended := make(chan string, 1)
	go func() {
		state, err := child.Wait()
		ended <- fmt.Sprint(errors.Join(err), state)
	}()
	why := h.await(ctx, ended)
	if why == "" {
		return child.Pid, nil
	}
	child.Kill()
	<-ended
	committed, failed := h.abort()
	if committed {
		return child.Pid, nil // it had committed, and died: as if this process had been killed after it
	}
	from.Close()
	to.Close()
	return 0, errors.New(cmp.Or(failed, why))
}

// await waits until the new process has taken over, and says why if it has not. ended gets the state in which it ended, and has it again.
func (h *handover) await(ctx context.Context, ended chan string) (why string) {
	begun, late := h.begun, time.NewTimer(upgradeTime)
	defer late.Stop()
	for {
		select {
		case <-h.decided:
			return ""
		case <-begun:
			begun = nil
			late.Reset(handoverTime)
		case <-late.C:
			return "it did not take over in time"
		case state := <-ended:
			ended <- state
			return "it ended: " + state
		case <-ctx.Done():
			return "this process is told to end"
		}
	}
}

// startNew starts the executable with the listeners' sockets. It returns the connections on which the new process calls, and is called.
func startNew(listeners []net.Listener) (child *os.Process, from, to net.Conn, err error) {
	var files []uintptr
	var ends []net.Conn
	defer func() {
		for _, fd := range files {
			syscall.Close(int(fd))
		}
		if err != nil {
			for _, c := range ends {
				c.Close()
			}
		}
	}()
	for _, l := range listeners {
		fd, err := duplicate(l)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("inherit a listener: %w", err)
		}
		files = append(files, fd)
	}
	for range 2 {
		mine, its, err := socketPair()
		if err != nil {
			return nil, nil, nil, err
		}
		files, ends = append(files, its), append(ends, mine)
	}
	env := append(os.Environ(), fmt.Sprintf("%s=%d", inheritedEnv, len(listeners)))
	pid, err := syscall.ForkExec(executable, os.Args, &syscall.ProcAttr{Env: env, Files: append([]uintptr{0, 1, 2}, files...)})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("start %s: %w", executable, err)
	}
	child, err = os.FindProcess(pid)
	return child, ends[0], ends[1], err
}

// duplicate is a descriptor of l's socket for another process. It leaves the socket as it is, which File and Fd would not.
func duplicate(l net.Listener) (fd uintptr, err error) {
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Control(func(of uintptr) {
		var n int
		n, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 3)
		fd = uintptr(n)
	}); e != nil {
		return 0, e
	}
	return fd, err
}

// socketPair is a connection, and the descriptor of its other end.
func socketPair() (net.Conn, uintptr, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("make a socket pair: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "upgrade")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		syscall.Close(fds[1])
		return nil, 0, err
	}
	return c, uintptr(fds[1]), nil
}

// upgrades upgrades on each SIGUSR2 until one has succeeded, or ctx is done. leave then stops accepting.
func (r *process) upgrades(ctx context.Context, listeners []net.Listener, leave func()) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	defer signal.Stop(asked)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-asked:
		}
		r.log.Info("upgrading", "executable", executable)
		pid, err := r.upgrade(ctx, listeners)
		if err == nil {
			notify(fmt.Sprintf("MAINPID=%d", pid))
			r.log.Info("the new process has taken over", "pid", pid)
			leave()
			return nil
		}
		r.log.Error("the upgrade failed, this process goes on", "error", err)
	}
}

// leavePublic lets every connection end with its next answer, for as long as a drain may take.
func (r *process) leavePublic(ctx context.Context, public *edge.Listener) {
	r.edge.Leave()
	public.Listener.Close()
	late := time.NewTimer(r.current.Load().Server.Drain)
	defer late.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for public.Open() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			return
		case <-tick.C:
		}
	}
}

// inherited is what a process gets of the one that it replaces.
type inherited struct {
	listeners []net.Listener
	old       *rpc.Client
	takes     net.Conn
}

// inherit returns what this process inherits; nil: nothing. What it starts itself inherits nothing.
func inherit() (*inherited, error) {
	text, ok := os.LookupEnv(inheritedEnv)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(inheritedEnv)
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 || n > 3 {
		return nil, fmt.Errorf("%s=%q: it is set by an upgrade alone", inheritedEnv, text)
	}
	in := &inherited{}
	var conns []net.Conn
	for fd := 3; fd < 3+n+2; fd++ {
		f := os.NewFile(uintptr(fd), "inherited")
		if fd < 3+n {
			l, err := net.FileListener(f)
			if err != nil {
				return nil, fmt.Errorf("inherit a listener: %w", err)
			}
			in.listeners = append(in.listeners, l)
		} else {
			c, err := net.FileConn(f)
			if err != nil {
				return nil, fmt.Errorf("inherit a connection: %w", err)
			}
			conns = append(conns, c)
		}
		f.Close()
	}
	in.old, in.takes = rpc.NewClient(conns[0]), conns[1]
	return in, nil
}

// fail tells the old process why this one gives up. in may be nil.
func (in *inherited) fail(err error) {
	if in != nil && err != nil {
		in.old.Call("Old.Failed", err.Error(), new(int))
	}
}

// meet finds out whether the old process can be replaced, and takes over what it knows of the sales.
func (in *inherited) meet(r *process) error {
	var old Hello
	if err := in.old.Call("Old.Hello", handoverVersion, &old); err != nil {
		return fmt.Errorf("the old process: %w", err)
	}
	mine := r.hello()
	if old.Listen != mine.Listen || old.IPv6Prefix != mine.IPv6Prefix {
		return errors.New("listen.public, listen.ops, listen.redirect or ipv6_prefix has changed: an upgrade keeps them, restart instead")
	}
	if len(old.Feed) > 0 {
		f := new(wire.Feed)
		if err := json.Unmarshal(old.Feed, f); err != nil {
			return fmt.Errorf("the old process's sales: %w", err)
		}
		r.gate.Adopt(f, old.FeedAge)
	}
	return nil
}

// takeOver takes the old process's buckets. When it returns nil this process must answer.
func (in *inherited) takeOver(r *process) error {
	for {
		var p edge.Part
		if err := in.old.Call("Old.Next", 0, &p); err != nil {
			return fmt.Errorf("take the buckets over: %w", err)
		}
		if err := r.edge.TakeOver(p); err != nil {
			return fmt.Errorf("take the buckets over: %w", err)
		}
		if p.Last {
			break
		}
	}
	if err := in.old.Call("Old.Commit", 0, new(int)); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	server := rpc.NewServer()
	if err := server.RegisterName("New", &successor{r}); err != nil {
		panic("BUG: " + err.Error())
	}
	go func() { // until the old process ends
		server.ServeConn(in.takes)
		in.old.Close()
	}()
	return nil
}

// successor is the new process's side, for the requests that the old one still answers.
type successor struct{ r *process }

// Take takes a token.
func (s *successor) Take(t Take, out *limit.Decision) (err error) {
	*out, err = s.r.edge.TakeFor(t.Table, t.Key)
	return err
}

// notify tells systemd, where it is asked to (sd_notify(3)). An abstract socket's name begins with @.
func notify(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if c, err := net.Dial("unixgram", name); err == nil {
		c.Write([]byte(state))
		c.Close()
	}
}
