// Command rehearse holds a sale on the real system of this machine, with a crowd and faults; see package rehearse.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"floodgate.internal/e2e/rehearse"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/cli"
)

type grammar struct {
	Shoppers int     `default:"20000" help:"How many come, from 1 to 1000000."`
	Stock    int     `default:"500" help:"How many units there are, from 1."`
	Minutes  float64 `default:"1" help:"How long the sale lasts, from 0.2 to 60."`
	Faults   int     `default:"5" help:"How many times something is killed meanwhile, from 0 to 1000: Redis, RabbitMQ, MySQL, backend, gateway in turn."`
	Seed     uint64  `help:"Makes a run again, as far as the machine lets it: 0 for another one each time."`
	Dir      string  `default:"build/rehearsal" help:"Where the system's data and logs are meanwhile. They are removed."`
	Report   string  `default:"build/rehearsal.html" help:"Where the report is written; beside it, as .json, what backend preflight --rehearsal reads."`
	Bin      string  `default:"build" help:"Where the binaries backend and gateway are."`
}

func main() {
	ctx, stop := stack.Signals(context.Background())
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rehearse:", err)
		os.Exit(cli.ExitCode(err))
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var g grammar
	kc, err := cli.Parse(&g, args, stdout, stderr, kong.Name("rehearse"), kong.Description(
		"Rehearses a sale: starts the real system on free loopback ports, lets a crowd press while processes and servers are killed, "+
			"holds what every shopper was told against the stores, and writes a report with pictures. Exit code 0: every promise was kept."))
	if err != nil || kc == nil {
		return err
	}
	length := time.Duration(g.Minutes * float64(time.Minute)).Round(time.Second)
	switch {
	case g.Shoppers < 1 || g.Shoppers > 1_000_000:
		return cli.Usage("--shoppers %d: from 1 to 1000000", g.Shoppers)
	case g.Stock < 1 || g.Stock > 1_000_000_000:
		return cli.Usage("--stock %d: from 1 to 1000000000", g.Stock)
	case length < 10*time.Second || length > time.Hour:
		return cli.Usage("--minutes %g: from 0.2 to 60", g.Minutes)
	case g.Faults < 0 || g.Faults > 1000:
		return cli.Usage("--faults %d: from 0 to 1000", g.Faults)
	}
	if g.Seed == 0 {
		g.Seed = rand.Uint64()
	}
	began := time.Now()
	var mu sync.Mutex // of stdout
	progress := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(stdout, "%6.1f s  "+format+"\n", append([]any{time.Since(began).Seconds()}, args...)...)
	}
	r, err := rehearse.Run(ctx, rehearse.Options{Shoppers: g.Shoppers, Stock: g.Stock, Length: length, Faults: g.Faults, Seed: g.Seed, Dir: g.Dir, Bin: g.Bin, Progress: progress, Log: stderr})
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	if err := errors.Join(write(g.Report, r.WriteHTML), write(strings.TrimSuffix(g.Report, ".html")+".json", r.WriteJSON)); err != nil {
		return err
	}
	t := r.Tally
	fmt.Fprintf(stdout, "\npromised %d: lost %d, duplicated %d, oversold %d, stranded %d; %d of %d units sold\nwhat bounded the sale: %s %s\n%s\n\nreport: %s (seed %d)\n",
		t.Promised, t.Lost, t.Duplicated, t.Oversold, t.Stranded, r.Sold, g.Stock, r.Bound(), r.Load.Words(), r.Audit, g.Report, g.Seed)
	if !r.Good() {
		for _, b := range r.Broken {
			fmt.Fprintln(stdout, "broken:", b)
		}
		return errors.New("not everything holds: see the report")
	}
	return nil
}

func write(path string, to func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(to(f), f.Close())
}
