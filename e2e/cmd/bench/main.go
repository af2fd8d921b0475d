// Command bench measures the speed table; see package bench.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"floodgate.internal/e2e/bench"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/cli"
)

type grammar struct {
	Measure measureCommand `cmd:"" default:"withargs" help:"Measure (the default command)."`
	Merge   mergeCommand   `cmd:"" help:"Make one table of several runs: bench.json, bench.html and speed.md."`
	Peer    peerCommand    `cmd:"" hidden:"" help:"Be one of the programs that are compared with."`
}

func main() {
	ctx, stop := stack.Signals(context.Background())
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(cli.ExitCode(err))
	}
}

// output is where commands write.
type output struct{ stdout, stderr io.Writer }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var g grammar
	kc, err := cli.Parse(&g, args, stdout, stderr, kong.Name("bench"), kong.Vars{"rounds": strconv.Itoa(usualRounds)}, kong.Description(
		"Measures what the gateway and the backend cost, as ratios against the plainest programs that do the same, and nginx, side by side on this machine. "+
			"It finds the servers in its environment, as stack exec starts them, and writes bench.json, bench.html and speed.md."))
	if err != nil || kc == nil {
		return err
	}
	kc.BindTo(ctx, (*context.Context)(nil))
	if err = kc.Run(&output{stdout, stderr}); err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// roundSize makes a round long enough to be measured, and short enough that the machine is the same for both sides of it.
const roundSize = 8000

const usualRounds = 15

type measureCommand struct {
	Only   []string `help:"Some of the parts gateway, visits, connections, memory, overload, backend, idle (default: all)." placeholder:"PART"`
	Rounds int      `default:"${rounds}" help:"Of each comparison of CPU time, from 3 to 1000."`
	Out    string   `default:"build" help:"Where bench.json, bench.html and speed.md are written."`
	Bin    string   `default:"build" help:"Where the binaries backend and gateway are."`
}

func (c *measureCommand) Run(ctx context.Context, o *output) error {
	if len(c.Only) == 0 {
		c.Only = bench.Parts
	}
	for _, part := range c.Only {
		if !slices.Contains(bench.Parts, part) {
			return cli.Usage("--only %q: give some of %s", part, strings.Join(bench.Parts, ", "))
		}
	}
	if c.Rounds < 3 || c.Rounds > 1000 {
		return cli.Usage("--rounds %d: from 3 to 1000", c.Rounds)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	options := bench.Options{Dir: filepath.Join(c.Out, "bench-data"), Bin: c.Bin, Self: self, Only: c.Only, Rounds: c.Rounds, Size: roundSize, Connections: 20_000, Sales: 2000, Window: 5 * time.Second, Log: o.stderr}
	var partial []string
	if len(c.Only) < len(bench.Parts) {
		partial = append(partial, strings.Join(c.Only, " and ")+" alone")
	}
	if c.Rounds != usualRounds {
		partial = append(partial, fmt.Sprintf("%d rounds", c.Rounds))
	}
	for name, to := range map[string]*string{"REDIS_ADDR": &options.Redis, "MYSQL_DSN": &options.MySQL, "AMQP_URL": &options.AMQP, "AMQP_MANAGEMENT_URL": &options.Management} {
		if *to = os.Getenv(name); *to == "" && (slices.Contains(c.Only, "backend") || slices.Contains(c.Only, "idle")) {
			return cli.Usage("%s is not set: run it by build/stack exec, as make bench does", name)
		}
	}
	began := time.Now()
	options.Progress = func(format string, args ...any) {
		fmt.Fprintf(o.stdout, "%6.1f s  "+format+"\n", append([]any{time.Since(began).Seconds()}, args...)...)
	}
	report, err := bench.Run(ctx, options)
	if err != nil {
		return err
	}
	report.Partial = strings.Join(partial, ", ")
	return publish(o, c.Out, report)
}

// publish writes a report's three forms and prints its rows.
func publish(o *output, dir string, report *bench.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, to := range map[string]func(io.Writer) error{"bench.json": report.WriteJSON, "bench.html": report.WriteHTML, "speed.md": report.WriteMarkdown} {
		if err := write(filepath.Join(dir, name), to); err != nil {
			return err
		}
	}
	fmt.Fprintln(o.stdout)
	for _, r := range report.Rows {
		verdict := ""
		if r.Wanted() != "" {
			verdict = ", " + strings.ToUpper(strings.Trim(r.Verdict(), "*"))
		}
		fmt.Fprintf(o.stdout, "%-52s %-62s %-24s %s%s\n", r.What, r.Against, r.Times(), r.Wanted(), verdict)
	}
	fmt.Fprintf(o.stdout, "\nreport: %s, bench.json and speed.md\n", filepath.Join(dir, "bench.html"))
	return nil
}

type mergeCommand struct {
	Runs []string `arg:"" help:"The runs' bench.json."`
	Out  string   `default:"build" help:"Where bench.json, bench.html and speed.md are written."`
}

func (c *mergeCommand) Run(o *output) error {
	var runs []*bench.Report
	for _, file := range c.Runs {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var r bench.Report
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		runs = append(runs, &r)
	}
	merged, err := bench.Merge(runs)
	if err != nil {
		return err
	}
	return publish(o, c.Out, merged)
}

func write(path string, to func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(to(f), f.Close())
}

type peerCommand struct {
	File string `arg:"" help:"What it does, as JSON."`
}

func (c *peerCommand) Run() error {
	text, err := os.ReadFile(c.File)
	if err != nil {
		return err
	}
	var p bench.Peer
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	return p.Serve()
}
