// Command phases is what make test runs: all tests in a few phases, each to its end whatever becomes of the others. In the end it says in
// one table what failed. It runs in the checkout, below `stack exec`, which gives it the shared servers.
//
// For each phase it writes build/test/PHASE.json, the events of go test, and build/test/PHASE.log, their text.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"floodgate.internal/shared/cli"
)

const dir = "build/test"

// phase is one go test command, or another command that checks something.
type phase struct {
	name     string
	command  []string // instead of go test
	race     bool     // the race detector, in the tests themselves
	args     []string
	packages []string // as go list takes them
	but      []string // those of packages that another phase has
	named    bool     // it runs only where it is named: others have its tests, too
}

var (
	// Their tests empty the shared Redis of its scripts, which others would take for a restart.
	flushing = []string{"./lua", "./backend/reserve", "./backend/reconcile", "./backend/sku"}
	// It explores millions of states, one after the other: there is no race to detect.
	model = []string{"./backend/reconcile/model"}
)

// lanes run beside each other; the phases of a lane one after the other. Those of the first use the shared servers, and some make Redis
// forget its scripts; those of the second have servers of their own, or none, and wait a lot, which leaves processors to the first.
var lanes = [][]phase{
	{
		{name: "scripts", race: true, args: []string{"-timeout=80m", "-p=1"}, packages: flushing},
		{name: "modules", race: true, args: []string{"-timeout=80m", "-p=3"},
			packages: []string{"./embedded/...", "./shared/...", "./lua/...", "./gateway/...", "./backend/..."}, but: slices.Concat(flushing, model)},
		{name: "planted", args: []string{"-timeout=80m"}, packages: []string{"./e2e/planted"}},
		{name: "cluster", named: true, race: true, args: []string{"-timeout=80m", "-p=1", "-run=Cluster|Promot|Primary|Replica|Sentinel"}, packages: []string{"./backend/..."}, but: model},
	},
	{
		{name: "lint", command: []string{"make", "--no-print-directory", "lint"}},
		{name: "model", args: []string{"-timeout=80m"}, packages: model},
		{name: "e2e", args: []string{"-timeout=80m", "-p=3", "-parallel=3"}, packages: []string{"./e2e/..."}, but: []string{"./e2e/planted", "./e2e/faults"}},
		// Outside the workspace, so that nothing else is built with Kubernetes' types.
		{name: "deploy", command: []string{"env", "GOWORK=off", "go", "-C", "deploy", "test", "-count=1", "./..."}},
		{name: "faults", args: []string{"-timeout=80m"}, packages: []string{"./e2e/faults"}},
		{name: "nodes", named: true, packages: []string{"./e2e/faults"},
			args: []string{"-timeout=80m", "-run=TestSeveralOfEach|TestDisorders/side_by_side/(rabbitmq's_nodes|mysql's_failovers|semi-synchronous_mysql|galera)"}},
	},
}

type grammar struct {
	Phases []string `arg:"" optional:"" help:"scripts, modules, planted, lint, model, e2e, deploy, faults; all of these if none is named. Of their tests cluster and nodes are those of servers with several nodes."`
	Times  int      `default:"1" help:"Run them so many times, and stop at the first failure."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "phases:", err)
	}
	os.Exit(cli.ExitCode(err))
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var g grammar
	if kc, err := cli.Parse(&g, args, out, out); err != nil || kc == nil {
		return err
	}
	chosen, err := choose(g.Phases)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for n := range g.Times {
		if g.Times > 1 {
			fmt.Fprintf(out, "run %d of %d\n", n+1, g.Times)
		}
		results := runLanes(ctx, chosen, out)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("interrupted")
		}
		if len(g.Phases) == 0 {
			results = append(results, checkRows(results))
		}
		if !table(out, results) {
			return fmt.Errorf("not everything passed; the logs are %s/*.log", dir)
		}
	}
	return nil
}

// choose returns the lanes with these phases alone; with all that need not be named, where none is.
func choose(names []string) (chosen [][]phase, err error) {
	left := slices.Clone(names)
	for _, lane := range lanes {
		var some []phase
		for _, p := range lane {
			if len(names) == 0 && !p.named || slices.Contains(names, p.name) {
				some = append(some, p)
				left = slices.DeleteFunc(left, func(name string) bool { return name == p.name })
			}
		}
		chosen = append(chosen, some)
	}
	if len(left) > 0 {
		return nil, cli.Usage("no phase is called %s (--help shows what there is)", strings.Join(left, ", "))
	}
	return chosen, nil
}

// runLanes runs all phases and returns what became of each, in the order of the lanes.
func runLanes(ctx context.Context, lanes [][]phase, out io.Writer) (results []*result) {
	progress := &lines{out: out, began: time.Now()}
	var wg sync.WaitGroup
	for _, lane := range lanes {
		var mine []*result
		for _, p := range lane {
			mine = append(mine, newResult(p.name, progress))
		}
		results = append(results, mine...)
		wg.Go(func() {
			for i, p := range lane {
				if ctx.Err() != nil {
					return
				}
				mine[i].run(ctx, p)
			}
		})
	}
	wg.Wait()
	return results
}
