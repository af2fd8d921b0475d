package world

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/e2e/stack"
)

// Build makes both binaries of this checkout in a directory.
func Build(dir string, flags ...string) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	cgo := "CGO_ENABLED=0"
	if slices.Contains(flags, "-race") {
		cgo = "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", slices.Concat([]string{"build", "-buildvcs=false", "-o", dir + "/"}, flags, []string{"./gateway/cmd/gateway", "./backend/cmd/backend"})...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// Command runs one of the project's binaries and returns what it printed. What it said on stderr is in the error.
func Command(ctx context.Context, binary string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(binary), args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// Mint makes a token for each uid of first to last, by the gateway in bin with this configuration.
func Mint(ctx context.Context, bin, config string, first, last int) ([]string, error) {
	const most = 5000 // in one run
	var tokens []string
	for from := first; from <= last; from += most {
		out, err := Command(ctx, filepath.Join(bin, "gateway"), "token", "-config", config, "-uid", fmt.Sprintf("%d-%d", from, min(from+most-1, last)))
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, strings.Fields(out)...)
	}
	if want := last - first + 1; len(tokens) != want {
		return nil, fmt.Errorf("gateway token -uid %d-%d: got %d tokens, want %d", first, last, len(tokens), want)
	}
	return tokens, nil
}

// Ground is what several worlds stand on: the binaries, and one set of servers.
type Ground struct {
	Dir, Bin string
	Servers  *stack.Servers

	worlds atomic.Int64
}

// OpenGround is a ground in a directory: binaries, built with these flags, and servers, of which none is started.
func OpenGround(dir string, flags ...string) (*Ground, error) {
	servers, err := stack.Open(filepath.Join(dir, "servers"), nil)
	if err != nil {
		return nil, err
	}
	g := &Ground{Dir: dir, Bin: filepath.Join(dir, "bin"), Servers: servers}
	return g, Build(g.Bin, flags...)
}

// New is a world on this ground, but for what the options say. Its name begins with the one of the options.
func (g *Ground) New(t testing.TB, ctx context.Context, o Options) *World {
	t.Helper()
	o.Name += fmt.Sprint(g.worlds.Add(1))
	o.Dir, o.Bin = filepath.Join(g.Dir, o.Name), cmp.Or(o.Bin, g.Bin)
	o.Stores = cmp.Or(o.Stores, StoresOf(g.Servers, g.Servers, g.Servers))
	return New(t, ctx, o)
}
