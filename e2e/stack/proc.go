package stack

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stat is the part of /proc/PID/stat that tells who a process is, and what it has used.
type stat struct {
	state   byte
	parent  int
	exiting bool
	cpu     time.Duration // of all its threads, those that have ended too
	threads string
	start   string // clock ticks after boot
}

// dead reports whether nothing is left of the process but its exit code. While other threads are still going down their
// leader is a zombie already, but files and ports are not free yet.
func (s stat) dead() bool {
	return s.state == 'X' || s.state == 'Z' && (s.threads == "0" || s.threads == "1")
}

// identity tells this process from every other that has had or will have its pid.
func (s stat) identity() string { return bootID() + " " + s.start }

var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "-"
	}
	return strings.TrimSpace(string(b))
})

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	// pid (name) state ppid ...: the name may hold anything, so count from the last parenthesis.
	_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat: unknown form: %q", pid, b)
	}
	parent, err := strconv.Atoi(f[1])
	if err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: parent: %w", pid, err)
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: flags: %w", pid, err)
	}
	cpu, err := Ticks(f[11:13])
	if err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: times: %w", pid, err)
	}
	return stat{state: f[0][0], parent: parent, exiting: flags&4 != 0, cpu: cpu, threads: f[17], start: f[19]}, nil
}

// Ticks is the sum of times as /proc has them: in hundredths of a second, on every kind of machine.
func Ticks(fields []string) (sum time.Duration, err error) {
	for _, field := range fields {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum, nil
}

// pauseWithin is how long a thread may wait for a disk before it stops.
const pauseWithin = 30 * time.Second

// allStopped says whether every thread of a process is stopped by a signal.
func allStopped(pid int) (bool, error) {
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return false, err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return false, err
		}
		if st, err := readStat(tid); err == nil && st.state != 'T' && !st.dead() { // an error: the thread has ended
			return false, nil
		}
	}
	return true, nil
}

// dying reports whether a process that is still there was killed by SIGKILL a moment ago. Whoever sent it may be back
// before the process has noticed, hence the second look.
func dying(ctx context.Context, pid int) bool {
	return killed(pid) || goneWithin(ctx, []int{pid}, 30*time.Millisecond) || killed(pid)
}

func killed(pid int) bool {
	st, err := readStat(pid)
	if err != nil || st.exiting {
		return true
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(b)) {
		if set, ok := strings.CutPrefix(line, "SigPnd:"); ok {
			pending, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			return err == nil && pending&(1<<(syscall.SIGKILL-1)) != 0
		}
	}
	return false
}

// family is the processes below one, with the identity each had when it was seen.
type family map[int]string

func descendants(pid int) family {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	stats := map[int]stat{}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(n); err == nil {
			stats[n] = st
			children[st.parent] = append(children[st.parent], n)
		}
	}
	found := family{}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, c := range children[next[0]] {
			found[c] = stats[c].identity()
			next = append(next, c)
		}
	}
	return found
}

// pids lists the members that still live.
func (f family) pids() []int {
	var out []int
	for pid, id := range f {
		if st, err := readStat(pid); err == nil && !st.dead() && st.identity() == id {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

func (f family) kill() {
	for _, pid := range f.pids() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// goneWithin reports whether all processes have ended before the time is over.
func goneWithin(ctx context.Context, pids []int, within time.Duration) bool {
	deadline := time.Now().Add(within)
	for {
		pids = slices.DeleteFunc(pids, func(pid int) bool {
			st, err := readStat(pid)
			return err != nil || st.dead()
		})
		if len(pids) == 0 {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listener names a process that listens on the port of an address, for an error message.
func listener(addr string) string {
	who := listeners(addr)
	if len(who) == 0 {
		return "another program"
	}
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", who[0])) // "" for a process that is not ours to see
	return fmt.Sprintf("pid %d (%.120s)", who[0], strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " ")))
}

// listeners are the processes that listen on the port of an address, at whatever address of this machine, as far as this user may know.
func listeners(addr string) (pids []int) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil
	}
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode; state 0A is LISTEN.
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && sockets[to] {
			if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
