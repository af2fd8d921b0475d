//go:build servers

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// machine is what all tests of this package share: one set of private servers, and the binaries. Each test takes a fresh
// schema, vhost and key prefix on it. Tests that stop a server, or empty it of its scripts, run alone; the others, which are
// t.Parallel, after them.
var machine struct {
	once   sync.Once
	dir    string
	ground *world.Ground
	err    error
	mu     sync.Mutex // held while a test sees to it that the servers run
}

func TestMain(m *testing.M) {
	code := m.Run()
	if g := machine.ground; g != nil {
		if err := g.Servers.Kill(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "end the servers:", err)
			code = max(code, 1)
		}
	}
	if machine.dir != "" && code == 0 {
		_ = os.RemoveAll(machine.dir)
	}
	os.Exit(code)
}

// raced reports whether the binaries are built with the race detector (see TestTheBinariesHaveNoDataRace); else they are built as they
// are shipped.
func raced() bool { return os.Getenv("FLOODGATE_RACE") != "" }

func startMachine() {
	var flags []string
	if raced() {
		flags = []string{"-race"}
	}
	if machine.dir, machine.err = os.MkdirTemp("", "floodgate-e2e-"); machine.err == nil {
		machine.ground, machine.err = world.OpenGround(machine.dir, flags...)
	}
}

// system is a world whose answers are held against the contract.
type system struct {
	*world.World
	t        testing.TB
	ctx      context.Context
	servers  *stack.Servers
	contract *contract
}

// orders are the gateway's limits with this rule for orders.
func orders(rule string) string {
	return `{order: ` + rule + `, ip_exempt: ["127.0.0.0/8", "::1/128"]}`
}

// freely are limits that let repeats through to the backend, which must answer them right by itself.
var freely = orders("{rate: 20, burst: 20, max_keys: 1000000}")

// patience bounds every wait: a slow machine is no fault.
const patience = 2 * time.Minute

func newSystem(t testing.TB, o world.Options) *system {
	t.Helper()
	machine.once.Do(startMachine)
	world.Must(t, machine.err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	machine.mu.Lock()
	err := machine.ground.Servers.Start(ctx) // a test before may have ended one
	machine.mu.Unlock()
	world.Must(t, err)
	o.Name, o.Gateway = "e2e", "server: {read_timeout: 1m}\n"+o.Gateway // thousands press at once from the machine that answers them
	w := &system{World: machine.ground.New(t, ctx, o), t: t, ctx: ctx, servers: machine.ground.Servers, contract: loadContract(t)}
	w.hold()
	w.Run(t, ctx)
	return w
}

// hold lets the contract see every answer.
func (w *system) hold() {
	w.Client.Seen = func(req *http.Request, c world.Call, a world.Answer) { w.contract.hold(w, req, a, c.Quiet) }
}

// beside starts another backend and another gateway, which knows that backend alone, on the stores of w.
func (w *system) beside() *system {
	w.t.Helper()
	two := *w
	two.World = w.Beside(w.t)
	two.hold()
	two.Run(w.t, w.ctx)
	return &two
}

func (w *system) must(err error) {
	w.t.Helper()
	world.Must(w.t, err)
}

// until waits for a condition: it asks again and again, and fails the test with the last answer when the deadline is over.
func (w *system) until(what string, within time.Duration, ok func() (bool, string)) {
	w.t.Helper()
	world.Until(w.t, w.ctx, what, within, world.Whether(ok))
}

// metric is one of the backend's.
func (w *system) metric(name string) float64 {
	w.t.Helper()
	return w.Metric(w.t, w.Ports.AdminURL(), name)
}

// command runs a command of the backend's.
func (w *system) command(ctx context.Context, name string, args ...string) (string, error) {
	return world.Command(ctx, filepath.Join(w.Bin, "backend"), append([]string{name, "-config", w.File("backend.yaml")}, args...)...)
}
