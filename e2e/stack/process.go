package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"floodgate.internal/shared/ports"
)

// serveWithin bounds the wait for a process that was started to serve. It is far more than any takes: a slow machine is no fault, a
// backend waits for a broker that starts beside it, and a process that ends is noticed at once.
const serveWithin = 10 * time.Minute

// Process is one program that may outlive whoever started it. It is found again, by this or another launcher, through
// its pid file and the moment it started, so that a pid that was given to somebody else is never mistaken for it.
// A Process is for one goroutine at a time.
type Process struct {
	name    string
	dir     string // of the pid file
	data    string // what Wipe removes; "" if it keeps nothing
	addrs   []string
	command func() *exec.Cmd
	prepare func(context.Context) error // before a start, nil for nothing
	ready   func(context.Context) error // one probe, nil once it serves

	startWithin, stopWithin time.Duration
	report                  func(format string, args ...any)
	exited                  chan struct{} // closed by the reaper; nil if another launcher started it
	how                     string        // it ended, by itself or by a signal; valid once exited is closed
}

// Program is one of the project's own binaries, as NewProcess starts it.
type Program struct {
	Name  string   // of the pid and log files
	Path  string   // of the binary
	Args  []string // without the name
	Env   []string // added to the environment
	Addrs []string // what it listens on: checked to be free before a start
	Ready string   // the URL that answers 200 once it serves
}

// NewProcess returns the process of a program whose pid and log files are in dir. It starts nothing.
func NewProcess(dir string, p Program) *Process {
	return &Process{
		name: p.Name, dir: dir, addrs: p.Addrs,
		command: func() *exec.Cmd {
			cmd := exec.Command(p.Path, p.Args...)
			cmd.Env = append(os.Environ(), p.Env...)
			return cmd
		},
		ready:       func(ctx context.Context) error { return probeHTTP(ctx, p.Ready) },
		startWithin: serveWithin, stopWithin: 45 * time.Second,
		report: func(string, ...any) {},
	}
}

// With adds to the environment and to the arguments of each later start, and calls before, nil for nothing, when its data is there
// and it is about to start. What it was given before stays.
func (p *Process) With(env, args []string, before func() error) {
	command, prepare := p.command, p.prepare
	p.command = func() *exec.Cmd {
		cmd := command()
		cmd.Env, cmd.Args = append(cmd.Env, env...), append(cmd.Args, args...)
		return cmd
	}
	p.prepare = func(ctx context.Context) error {
		if prepare != nil {
			if err := prepare(ctx); err != nil {
				return err
			}
		}
		if before == nil {
			return nil
		}
		return before()
	}
}

// Name is what its files are called by.
func (p *Process) Name() string { return p.name }

// DataDir is where it keeps its data, "" if it keeps none.
func (p *Process) DataDir() string { return p.data }

// LogFile is where its output goes.
func (p *Process) LogFile() string { return filepath.Join(p.dir, "log", p.name+".log") }

// PID is its process id, 0 when it does not run.
func (p *Process) PID() int {
	pid, _ := p.find()
	return pid
}

// CPU is the processor time that the process has used since its start, and its process id; 0 and 0 when it does not run.
func (p *Process) CPU() (used time.Duration, pid int) {
	pid, ok := p.find()
	if !ok {
		return 0, 0
	}
	st, err := readStat(pid)
	if err != nil { // it ended just now
		return 0, 0
	}
	return st.cpu, pid
}

// Running reports whether it runs (not whether it serves already).
func (p *Process) Running() bool { return p.PID() != 0 }

// Start starts it, if it does not run, and returns when it serves. A process that ends or does not serve in time is an
// error that carries the last lines of its log.
func (p *Process) Start(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.startWithin)
	defer cancel()
	pid := p.PID()
	if pid != 0 && dying(ctx, pid) && goneWithin(ctx, []int{pid}, p.stopWithin) {
		pid = 0
	}
	if pid != 0 {
		err := p.await(ctx, pid, -1)
		if !errors.Is(err, errEnded) {
			return err
		}
		p.report("%s (pid %d) has just ended: starting it again", p.name, pid) // it was killed a moment ago
	}
	if err := p.awaitFree(ctx); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	if p.prepare != nil {
		if err := p.prepare(ctx); err != nil {
			return fmt.Errorf("start %s: %w", p.name, err)
		}
	}
	pid, logged, err := p.spawn()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	if err := p.await(ctx, pid, logged); err != nil {
		return err
	}
	at := ""
	if len(p.addrs) > 0 {
		at = " on " + strings.Join(p.addrs, ", ")
	}
	p.report("%s serves%s (pid %d, %.1f s)", p.name, at, pid, time.Since(began).Seconds())
	return nil
}

// spawn starts the program in a session of its own and records it. logged is the length of the log before.
func (p *Process) spawn() (pid int, logged int64, err error) {
	if err := makeDirs(filepath.Join(p.dir, "log")); err != nil {
		return 0, 0, err
	}
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, 0, err
	}
	defer log.Close()
	if st, err := log.Stat(); err == nil {
		logged = st.Size()
	}
	cmd := p.command()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cmd.Dir == "" {
		cmd.Dir = p.dir
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	pid = cmd.Process.Pid
	// Before anybody waits for it: one that has ended already can still be read.
	recorded := p.record(pid)
	if recorded != nil {
		_ = cmd.Process.Kill()
	}
	exited := make(chan struct{})
	p.exited = exited
	go func() { // the reaper: ends with the process
		defer close(exited)
		_ = cmd.Wait() // why it ended is in its log
		p.how = cmd.ProcessState.String()
	}()
	if recorded != nil {
		<-exited
		return 0, 0, recorded
	}
	return pid, logged, nil
}

func (p *Process) pidFile() string      { return filepath.Join(p.dir, p.name+".pid") }
func (p *Process) identityFile() string { return filepath.Join(p.dir, "identity", p.name) }

func (p *Process) record(pid int) error {
	st, err := readStat(pid)
	if err != nil {
		return err
	}
	if err := makeDirs(filepath.Join(p.dir, "identity")); err != nil {
		return err
	}
	if err := os.WriteFile(p.identityFile(), []byte(st.identity()+"\n"), 0o600); err != nil {
		return err
	}
	return os.WriteFile(p.pidFile(), []byte(strconv.Itoa(pid)+"\n"), 0o644)
}

// find returns the process that was recorded, if it lives.
func (p *Process) find() (pid int, ok bool) {
	b, err := os.ReadFile(p.pidFile())
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return 0, false
	}
	id, err := os.ReadFile(p.identityFile())
	if err != nil {
		return 0, false
	}
	st, err := readStat(pid)
	if err != nil || st.dead() || st.identity() != strings.TrimSpace(string(id)) {
		return 0, false
	}
	return pid, true
}

func (p *Process) forget() {
	_ = os.Remove(p.pidFile())
	_ = os.Remove(p.identityFile())
}

// awaitReady polls until it serves, whoever runs it.
func (p *Process) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.startWithin)
	defer cancel()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve on %s: %w", p.name, strings.Join(p.addrs, ", "), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var errEnded = errors.New("ended")

// await polls until the process serves. logged is where this life's log begins; -1 if another launcher started it.
func (p *Process) await(ctx context.Context, pid int, logged int64) error {
	began := time.Now()
	said := began
	for {
		probe, cancel := context.WithTimeout(ctx, 5*time.Second+time.Since(began)) // one that was cut short on a slow machine gets longer
		err := p.ready(probe)
		cancel()
		if p.PID() != pid {
			return fmt.Errorf("%s %w before it served%s (log: %s)%s", p.name, errEnded, p.cause(logged), p.LogFile(), tail(p.LogFile(), logged))
		}
		if err == nil {
			if err = p.listens(pid); err == nil {
				return nil
			}
		}
		if now := time.Now(); now.Sub(said) > 10*time.Second {
			said = now
			p.report("%s: still waiting, %.0f s: %v", p.name, now.Sub(began).Seconds(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s (pid %d) does not serve after %.0f s: %w (log: %s)%s",
				p.name, pid, time.Since(began).Seconds(), err, p.LogFile(), tail(p.LogFile(), logged))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cause is what is known of the end of a process that ended before it served, beside its log: how it ended, where this launcher started
// it, and who has one of its addresses now. A server that finds its address taken ends, and epmd does so with exit status 0.
func (p *Process) cause(logged int64) string {
	var text string
	if logged >= 0 {
		<-p.exited
		text = ", " + p.how
	}
	for _, addr := range p.addrs {
		if err := checkFree([]string{addr}); err != nil {
			text += "; " + err.Error()
		}
	}
	return text
}

// listens is an error while somebody else listens on an address of the process: then what answers there is not the process, which is
// about to end.
func (p *Process) listens(pid int) error {
	family := descendants(pid)
	for _, addr := range p.addrs {
		if who := listeners(addr); len(who) > 0 && !slices.ContainsFunc(who, func(l int) bool { return l == pid || family[l] != "" }) {
			return fmt.Errorf("%s is in use by %s", addr, listener(addr))
		}
	}
	return nil
}

// Signal sends it a signal, for example SIGHUP, or SIGSTOP and SIGCONT to pause it. After SIGSTOP it waits until every thread has
// stopped: they go on until one of them has seen the signal.
func (p *Process) Signal(sig syscall.Signal) error {
	pid, ok := p.find()
	if !ok {
		return fmt.Errorf("signal %s: it does not run", p.name)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal %s (pid %d): %w", p.name, pid, err)
	}
	if sig != syscall.SIGSTOP {
		return nil
	}
	for late := time.Now().Add(pauseWithin); ; time.Sleep(time.Millisecond) {
		if stopped, err := allStopped(pid); err != nil || stopped {
			return err
		}
		if time.Now().After(late) {
			return fmt.Errorf("signal %s (pid %d): not all of its threads have stopped after %v", p.name, pid, pauseWithin)
		}
	}
}

// Stop asks it to end (SIGTERM), kills it if it does not end in time, and returns when it and its children are gone. It
// is no error that it does not run.
func (p *Process) Stop(ctx context.Context) error {
	return p.end(ctx, syscall.SIGTERM)
}

// Kill ends it with SIGKILL and returns when it and its children are gone. It is no error that it does not run.
func (p *Process) Kill(ctx context.Context) error {
	return p.end(ctx, syscall.SIGKILL)
}

// Restart is Stop and Start.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Wait returns when it has ended, by itself or by a signal, or when ctx is done.
func (p *Process) Wait(ctx context.Context) error {
	pid, ok := p.find()
	if !ok {
		return nil
	}
	if !goneWithin(ctx, []int{pid}, 24*time.Hour) {
		return fmt.Errorf("wait for %s (pid %d): %w", p.name, pid, context.Cause(ctx))
	}
	return nil
}

// Wipe removes its data. It must not run; the next Start begins empty.
func (p *Process) Wipe() error {
	if pid := p.PID(); pid != 0 {
		return fmt.Errorf("wipe %s: it runs (pid %d): stop it first", p.name, pid)
	}
	if p.data == "" {
		return nil
	}
	return os.RemoveAll(p.data)
}

func (p *Process) end(ctx context.Context, sig syscall.Signal) error {
	pid, ok := p.find()
	if !ok {
		p.forget()
		return nil
	}
	began := time.Now()
	family := descendants(pid)
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s (pid %d): %w", p.name, pid, err)
	}
	_ = syscall.Kill(pid, syscall.SIGCONT) // a paused process sees no SIGTERM
	if !goneWithin(ctx, []int{pid}, p.stopWithin) {
		if ctx.Err() != nil {
			return fmt.Errorf("stop %s (pid %d): it still runs: %w", p.name, pid, context.Cause(ctx))
		}
		p.report("%s (pid %d) did not end in %.0f s: killing it", p.name, pid, p.stopWithin.Seconds())
		_ = syscall.Kill(pid, syscall.SIGKILL)
		if !goneWithin(ctx, []int{pid}, time.Minute) {
			return fmt.Errorf("stop %s: pid %d is there a minute after SIGKILL", p.name, pid)
		}
	}
	if !goneWithin(ctx, family.pids(), 3*time.Second) { // they follow their parent
		family.kill()
		if !goneWithin(ctx, family.pids(), time.Minute) {
			return fmt.Errorf("stop %s: children of pid %d do not end: %v", p.name, pid, family.pids())
		}
	}
	if p.exited != nil {
		<-p.exited
	}
	p.forget()
	p.report("%s (pid %d) is gone (%.1f s)", p.name, pid, time.Since(began).Seconds())
	return nil
}

// awaitFree returns once its addresses can be listened on. Those of a process that was killed a moment ago may take one
// more to become free.
func (p *Process) awaitFree(ctx context.Context) error {
	_, err := os.Stat(p.pidFile())
	died := err == nil
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := checkFree(p.addrs)
		if err == nil || !died || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// checkFree reports the first address on which somebody listens.
func checkFree(addrs []string) error {
	for _, addr := range addrs {
		if ports.Taken(addr) {
			return fmt.Errorf("%s is in use by %s: stop that one first (a system from another checkout, or an embedded one?)", addr, listener(addr))
		}
	}
	return nil
}

func probeHTTP(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(res.Body, 512))
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", url, res.Status, strings.TrimSpace(string(b)))
	}
	return nil
}

// tail is the end of a log file from an offset on, as the lines to put under an error message; "" if there is nothing.
func tail(path string, from int64) string {
	const most, lines = 16 << 10, 20
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	from = max(from, size-most, 0)
	b, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) == 1 && all[0] == "" {
		return "; the log is empty"
	}
	return "; its last lines:\n  | " + strings.Join(all[max(0, len(all)-lines):], "\n  | ")
}

func makeDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}
