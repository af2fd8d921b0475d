package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// event is a line of go test -json (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output
	Test       string
	Elapsed    float64
	Output     string
	Key, Value string // of attr
}

// name identifies a test, or with Test "" its package.
type name struct{ Package, Test string }

func (n name) String() string { return strings.TrimSpace(n.Package + " " + n.Test) }

// result is what became of a phase.
type result struct {
	phase    string
	progress *lines
	failed   []name
	passed   map[name]bool
	rows     map[name][]string // that a test said it shows: t.Attr("row", "A7 C4")
	took     time.Duration
	cpu      time.Duration // of everything that the phase ran and waited for
	err      error         // beside failed tests

	output map[name]*strings.Builder // of what has not ended; the last mostOutput bytes of each
}

// mostOutput bounds what is kept, and shown, of a test's output; all of it is in the log.
const mostOutput = 16 << 10

func newResult(phase string, progress *lines) *result {
	return &result{phase: phase, progress: progress, passed: map[name]bool{}, rows: map[name][]string{}, output: map[name]*strings.Builder{}}
}

// run runs a phase to its end.
func (r *result) run(ctx context.Context, p phase) {
	began := time.Now()
	r.err = func() error {
		if p.command != nil {
			r.progress.say(r.phase, "begins: %s", strings.Join(p.command, " "))
			return r.plain(exec.CommandContext(ctx, p.command[0], p.command[1:]...))
		}
		packages, err := list(ctx, p)
		if err != nil {
			return err
		}
		r.progress.say(r.phase, "begins: %d packages", len(packages))
		args := slices.Concat([]string{"test", "-json", "-tags=servers", "-count=1"}, p.args)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if p.race {
			cmd.Args = append(cmd.Args, "-race")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		}
		cmd.Args = append(cmd.Args, packages...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		return r.follow(cmd)
	}()
	r.took = time.Since(began)
	r.progress.say(r.phase, "has ended after %v", r.took.Round(time.Second))
}

// plain runs a command that is no go test. What it printed is in the phase's log, and is shown if it fails.
func (r *result) plain(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if ended := cmd.ProcessState; ended != nil {
		r.cpu = ended.UserTime() + ended.SystemTime()
	}
	if err != nil {
		r.progress.text(string(out))
		err = fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return errors.Join(err, os.WriteFile(filepath.Join(dir, r.phase+".log"), out, 0o644))
}

// list returns the packages of a phase.
func list(ctx context.Context, p phase) ([]string, error) {
	names := func(patterns []string) ([]string, error) {
		if len(patterns) == 0 {
			return nil, nil
		}
		cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, patterns...)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
		}
		return strings.Fields(string(out)), nil
	}
	all, err := names(p.packages)
	if err != nil {
		return nil, err
	}
	but, err := names(p.but)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(pkg string) bool { return slices.Contains(but, pkg) }), nil
}

// follow runs go test, reads its events and writes them, and their text, to the phase's files.
func (r *result) follow(cmd *exec.Cmd) error {
	events, err := os.Create(filepath.Join(dir, r.phase+".json"))
	if err != nil {
		return err
	}
	defer events.Close()
	log, err := os.Create(filepath.Join(dir, r.phase+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintln(log, strings.Join(cmd.Args, " "))
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	read := r.read(io.TeeReader(out, events), log)
	err = cmd.Wait()
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && len(r.failed) > 0 {
		err = nil // it is told by the failed tests
	}
	return errors.Join(read, err)
}

// read takes the events of go test, and writes their text.
func (r *result) read(from io.Reader, log io.Writer) error {
	in := bufio.NewReader(from)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "output", Output: string(line)} // not of test2json
			}
			if _, err := io.WriteString(log, e.Output); err != nil {
				return err
			}
			r.take(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take notes one event, and says on the way which packages end, and what tests that fail have said.
func (r *result) take(e event) {
	n := name{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		r.progress.text(e.Output)
	case "output":
		b := r.output[n]
		if b == nil {
			b = &strings.Builder{}
			r.output[n] = b
		}
		if b.WriteString(e.Output); b.Len() > 2*mostOutput {
			end := b.String()[b.Len()-mostOutput:]
			b.Reset()
			b.WriteString(end)
		}
	case "attr":
		if e.Key == "row" {
			r.rows[n] = append(r.rows[n], strings.Fields(e.Value)...)
		}
	case "pass", "skip":
		r.passed[n] = e.Action == "pass"
		delete(r.output, n)
		if e.Test == "" {
			r.progress.say(r.phase, "%s %s (%.1f s)", e.Action, e.Package, e.Elapsed)
		}
	case "fail":
		r.failed = append(r.failed, n)
		if b := r.output[n]; b != nil {
			r.progress.text(b.String())
		}
		delete(r.output, n)
		r.progress.say(r.phase, "FAIL %s (%.1f s)", n, e.Elapsed)
		if e.Test != "" {
			return
		}
		for m := range r.output { // the package ended before these tests did
			if m.Package == e.Package {
				r.take(event{Action: "fail", Package: m.Package, Test: m.Test})
			}
		}
	}
}

// culprits are the failed tests without those that failed because of a subtest, and packages of which no test failed.
func (r *result) culprits() (list []name) {
	for _, n := range r.failed {
		if !slices.ContainsFunc(r.failed, func(m name) bool {
			return m != n && m.Package == n.Package && (n.Test == "" || strings.HasPrefix(m.Test, n.Test+"/"))
		}) {
			list = append(list, n)
		}
	}
	return list
}

func (r *result) good() bool { return r.err == nil && len(r.failed) == 0 }

// table says what became of the phases, a line each, and below a phase that failed a line for each of its culprits. It reports whether
// all are good.
func table(out io.Writer, results []*result) bool {
	fmt.Fprintf(out, "\n%-8s  %-6s  %5s  %7s  %7s\n", "phase", "result", "tests", "took", "CPU")
	good := true
	for _, r := range results {
		verdict := "ok"
		if !r.good() {
			verdict, good = "FAILED", false
		}
		tests := 0
		for n, passed := range r.passed {
			if passed && n.Test != "" && !strings.Contains(n.Test, "/") {
				tests++
			}
		}
		fmt.Fprintf(out, "%-8s  %-6s  %5d  %5.0f s  %5.0f s\n", r.phase, verdict, tests, r.took.Seconds(), r.cpu.Seconds())
		for _, n := range r.culprits() {
			fmt.Fprintf(out, "          %s\n", n)
		}
		if r.err != nil {
			fmt.Fprintf(out, "          %s\n", strings.ReplaceAll(r.err.Error(), "\n", "\n          "))
		}
	}
	return good
}

// lines writes progress for phases that run beside each other.
type lines struct {
	mu    sync.Mutex // guards out
	out   io.Writer
	began time.Time
}

func (l *lines) say(phase, format string, args ...any) {
	l.text(fmt.Sprintf("%4.0f s  %-8s "+format+"\n", append([]any{time.Since(l.began).Seconds(), phase}, args...)...))
}

func (l *lines) text(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	io.WriteString(l.out, s)
}
