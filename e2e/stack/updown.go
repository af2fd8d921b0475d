package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// Options say what Up and Down work on.
type Options struct {
	Dir    string // data, logs, pids
	Bin    string // where the binaries backend and gateway are; Down needs none
	Root   string // the checkout, for docker-compose.yml
	Ports  Ports
	Native bool // private native servers even where a Docker engine answers
	Clean  bool // Down removes the data, too

	Report func(format string, args ...any) // progress; safe for concurrent use
	Log    io.Writer                        // what apt and docker print
}

// Up starts whatever does not run of the real system, makes the sample sales if there are none, and returns when the
// gateway and the backend are ready.
func Up(ctx context.Context, o Options) (*System, error) {
	for _, name := range []string{"backend", "gateway"} {
		if _, err := os.Stat(filepath.Join(o.Bin, name)); err != nil {
			return nil, fmt.Errorf("%w: build the binaries first (make build), or say where they are with -bin", err)
		}
	}
	unlock, err := Lock(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	servers, err := Open(o.Dir, o.Report)
	if err != nil {
		return nil, err
	}
	s, err := NewSystem(o.Dir, o.Bin, servers, o.Ports, o.Report)
	if err != nil {
		return nil, err
	}
	for _, p := range []*Process{s.Backend, s.Gateway} { // before the servers, which take their time
		if p.Running() {
			continue
		}
		if err := p.awaitFree(ctx); err != nil {
			return nil, fmt.Errorf("start %s: %w", p.name, err)
		}
	}
	if err := servers.startOnAny(ctx, o); err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(o.Dir, "env"), []byte(servers.ShellEnv())); err != nil {
		return nil, err
	}
	if err := s.startBinaries(ctx); err != nil {
		return nil, err
	}
	return s, s.Samples(ctx)
}

// Down stops what Up or StartServers started under the directory, and nothing else. It is no error that nothing runs.
func Down(ctx context.Context, o Options) error {
	settings, err := loadSettings(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		o.Report("nothing runs under %s", o.Dir)
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := Lock(o.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	servers := newServers(dir, settings, o.Report)
	s, err := NewSystem(dir, o.Bin, servers, o.Ports, o.Report)
	if err != nil {
		return err
	}
	running := servers.dockerized()
	for _, p := range []*Process{s.Gateway, s.Backend, servers.Redis, servers.RabbitMQ, servers.MySQL, servers.epmd} {
		running = running || p.Running()
	}
	if !running {
		o.Report("nothing runs under %s", o.Dir)
	}
	if err := s.stopBinaries(ctx); err != nil {
		return err
	}
	if servers.dockerized() {
		err = servers.dockerDown(ctx, o, o.Clean)
	} else {
		err = servers.Stop(ctx)
	}
	if err != nil || !o.Clean {
		return err
	}
	return removeState(dir, o.Report)
}

// removeState removes what this package puts into dir, and dir itself if nothing else is left in it.
func removeState(dir string, report func(format string, args ...any)) error {
	if err := removeData(dir); err != nil {
		return err
	}
	names := []string{"log", "identity", "env", "compose.yml", "gateway.yaml", "backend.yaml", "settings.json", "lock"}
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	_ = os.Remove(dir) // fails where somebody else keeps something in it
	report("removed the data under %s", dir)
	return nil
}

// StartServers installs what is missing and starts the three servers alone.
func StartServers(ctx context.Context, dir string, report func(format string, args ...any), log io.Writer) (*Servers, error) {
	unlock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	servers, err := Open(dir, report)
	if err != nil {
		return nil, err
	}
	if err := Install(ctx, report, log, ForServers); err != nil {
		return nil, err
	}
	return servers, servers.Start(ctx)
}

// Exec starts the three servers on fresh data (with inMemory in memory, where there is room for it), runs a command that finds them in its environment (see Servers.Env), ends
// command and servers, removes the data, and returns the command's exit code (128 and the number of the signal that
// ended it). When ctx is done the command's process group gets SIGTERM, ten seconds later SIGKILL. The servers' logs stay.
func Exec(ctx context.Context, dir string, inMemory bool, argv []string, stdout, stderr io.Writer, report func(format string, args ...any)) (code int, err error) {
	unlock, err := Lock(dir)
	if err != nil {
		return 1, err
	}
	defer unlock()
	servers, err := Open(dir, report)
	if err != nil {
		return 1, err
	}
	if err := Install(ctx, report, stderr, ForServers); err != nil {
		return 1, err
	}
	if err := discard(ctx, servers); err != nil { // left by a launcher that was killed
		return 1, err
	}
	if inMemory {
		if err := dataInMemory(servers.dir, report); err != nil {
			return 1, err
		}
	}
	defer func() {
		if e := discard(ctx, servers); e != nil {
			err, code = errors.Join(err, e), max(code, 1)
		}
	}()
	if err := servers.Start(ctx); err != nil {
		return 1, err
	}
	return run(ctx, argv, servers.Env(), stdout, stderr)
}

// discard kills the servers and removes their data, without a word: what the command printed last stays last.
func discard(ctx context.Context, v *Servers) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	quiet := newServers(v.dir, v.settings, nil)
	if err := quiet.Kill(ctx); err != nil {
		return err
	}
	return removeData(v.dir)
}

// run runs a command in a process group of its own and returns its exit code.
func run(ctx context.Context, argv, env []string, stdout, stderr io.Writer) (int, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the command left behind
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("run %s: %w", argv[0], err)
	}
	return 0, nil
}

// Signals returns a context that ends with the first SIGINT, SIGTERM or SIGHUP.
func Signals(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}
