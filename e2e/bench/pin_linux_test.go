package bench

import (
	"context"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"testing"
)

// What is compared has the first core, and whatever else is started the others; afterwards all is as before.
func TestSplit(t *testing.T) {
	all, err := cores()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{}
	undo, err := b.split()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		if len(b.alone) != 0 {
			t.Errorf("got core %v of one", b.alone)
		}
		return
	}
	if alone := allowed(t, func(do func() error) error { return on(b.alone, do) }); alone != strconv.Itoa(all[0]) {
		t.Errorf("what is compared runs on %s, want %d", alone, all[0])
	}
	if rest, err := cores(); err != nil || len(rest) != len(all)-1 || rest[0] != all[1] || runtime.GOMAXPROCS(0) != len(rest) {
		t.Errorf("the load runs on %v by %d, %v; want %v", rest, runtime.GOMAXPROCS(0), err, all[1:])
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if now, err := cores(); err != nil || len(now) != len(all) || b.alone != nil {
		t.Errorf("afterwards: got %v, %v, %v", now, err, b.alone)
	}
}

// allowed is the cores of a process that is started by start, as the kernel lists them.
func allowed(t *testing.T, start func(func() error) error) string {
	t.Helper()
	var out []byte
	if err := start(func() (err error) {
		out, err = exec.CommandContext(context.Background(), "cat", "/proc/self/status").Output()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^Cpus_allowed_list:\s+(\S+)$`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("got %s", out)
	}
	return string(m[1])
}
