package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/alecthomas/kong"

	"floodgate.internal/embedded"
	"floodgate.internal/embedded/demo"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/version"
)

type grammar struct {
	Demo demoCommand `cmd:"" help:"A whole sale on free ports, with a crowd, an audit and a verdict."`
	Run  runCommand  `cmd:"" help:"The system in the foreground on 8080/8081/9080/9081, with sample sales; Ctrl-C ends it."`

	Version kong.VersionFlag `help:"Print which build this is."`
}

type demoCommand struct {
	Stock    int           `default:"100" help:"Units for sale."`
	Shoppers int           `default:"2000" help:"Shoppers who press at once."`
	Out      string        `default:"build/demo.json" help:"File that gets the result."`
	Log      string        `default:"build/demo.log" help:"File that gets the log of gateway and backend."`
	Timeout  time.Duration `default:"45s" help:"How long the sale may take."`
}

type runCommand struct {
	Dir string `default:".run" help:"Directory that gets gateway.yaml and backend.yaml."`
}

// execute reads the command line and does what it says.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var g grammar
	kc, err := cli.Parse(&g, args, stdout, stderr, kong.Vars{"version": version.This().Line("floodgate-embedded")})
	if err != nil || kc == nil {
		return err
	}
	if kc.Command() == "demo" {
		return g.Demo.run(ctx, stdout)
	}
	return g.Run.run(ctx, stdout, stderr)
}

func (d demoCommand) run(ctx context.Context, stdout io.Writer) error {
	switch {
	case d.Stock < 1:
		return cli.Usage("-stock: %d must be at least 1", d.Stock)
	case d.Shoppers < 10*d.Stock:
		return cli.Usage("-shoppers: %d must be at least ten times the stock, %d, so that every unit that comes back finds a buyer", d.Shoppers, d.Stock)
	case d.Timeout <= 0:
		return cli.Usage("-timeout: %s must be positive", d.Timeout)
	}
	began := time.Now()
	result, err := demo.Run(ctx, demo.Options{Stock: d.Stock, Shoppers: d.Shoppers, Log: d.Log, Timeout: d.Timeout}, stdout)
	if result != (demo.Result{}) {
		err = errors.Join(err, result.Write(d.Out))
	}
	if err != nil {
		return fmt.Errorf("%w\n(the log of gateway and backend is in %s)", err, d.Log)
	}
	fmt.Fprintf(stdout, "everything adds up; %.1f s in all; the result is in %s\n", time.Since(began).Seconds(), d.Out)
	return nil
}

func (r runCommand) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	fmt.Fprintf(stdout, "%s\n\n", embedded.GivesUp)
	s, err := embedded.Start(ctx, embedded.Options{Dir: r.Dir, Addrs: embedded.DefaultAddrs, Log: stderr})
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() {
		fmt.Fprintln(stdout, "\ndraining ...")
		err = errors.Join(err, s.Close())
	}()
	ids, err := s.Admin().Samples(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	dir := s.Dir
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	fmt.Fprintf(stdout, `
shoppers:     http://%[1]s/ (sample sales %[2]v: open, opens in a minute, coupon)
gateway ops:  http://%[3]s/-/config
console:      http://%[4]s/ (the admin token is %[5]s), for the API Authorization: Bearer %[5]s
a token:      build/gateway token -config %[6]s -uid 1
an order:     curl -i -X POST -H "Authorization: Bearer $(build/gateway token -config %[6]s -uid 1)" http://%[1]s/v1/sales/%[7]d/orders
Ctrl-C drains and ends it.

`, s.Addrs.Public, ids, s.Addrs.Ops, s.Addrs.Admin, development.AdminToken, filepath.Join(dir, "gateway.yaml"), ids[0])
	return s.Wait(ctx)
}

// interrupted is nil when err only says that Ctrl-C came early.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
