// Package backend is everything behind the gateway: the internal API, the relay, the order consumer, the timer and the
// operators' listener, in one program that runs any of them.
package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/alecthomas/kong"

	"floodgate.internal/backend/command"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/memory"
	"floodgate.internal/shared/version"
)

const description = `Floodgate's backend: decides orders in Redis, carries them to MySQL, expires what is not paid, and answers operators.

Without a command it serves the roles that -roles names.`

type grammar struct {
	Serve   serveCommand    `cmd:"" default:"withargs" help:"Serve the roles of -roles (the default command)."`
	Migrate command.Migrate `cmd:"" help:"Bring MySQL's schema up to date."`
	Sale    command.Sale    `cmd:"" help:"Create, list and manage sales, through the admin API."`
	Coupon  command.Coupon  `cmd:"" help:"Create, list and publish coupon campaigns, through the admin API."`
	Audit   command.Audit   `cmd:"" help:"Prove that every unit is accounted for."`
	Rebuild command.Rebuild `cmd:"" help:"Write a sale into Redis anew, from MySQL and the outbox."`
	Queue   command.Queue   `cmd:"" help:"Show what is queued, and who holds it."`

	Preflight     command.Preflight   `cmd:"" help:"Say go or no-go for a sale: all that must be true before it."`
	Plan          command.Plan        `cmd:"" help:"Say what a sale takes: gateways, connections, memory, limits, by measured figures."`
	Doctor        command.Doctor      `cmd:"" help:"Look at everything from outside, and say what is wrong."`
	DeadLetters   command.DeadLetters `cmd:"" help:"Show what could not be processed, and process it anew."`
	Orders        command.Orders      `cmd:"" help:"Find, cancel and export orders."`
	Bans          command.Bans        `cmd:"" help:"Who may not buy, in any sale."`
	Eligible      command.Eligible    `cmd:"" help:"Who alone may buy in a sale."`
	Revocation    command.Revocation  `cmd:"" help:"Which tokens are worth nothing before they expire."`
	Timeline      command.Timeline    `cmd:"" help:"Why a buyer did not get one: what became of their presses in a sale."`
	AuditLog      command.AuditLog    `cmd:"" help:"Who changed what."`
	OperatorToken operatorToken       `cmd:"" help:"Make a token for an operator, and its line for the configuration."`
	Schema        schemaCommand       `cmd:"" help:"Print a JSON Schema of the configuration, which editors use."`

	Completion cli.CompletionCommand `cmd:"" help:"Print a script that completes commands and flags in a shell."`
	Man        cli.ManCommand        `cmd:"" help:"Print the manual page."`

	Version kong.VersionFlag `help:"Print which build this is."`
}

type serveCommand struct {
	Config string `required:"" placeholder:"FILE" help:"Configuration file; configs/backend.yaml explains every value."`
	Roles  string `default:"api,relay,consumer,timer" help:"What this process does: some of api, relay, consumer, timer."`
}

// Run is the program: args without its name, out to stdout, logs to stderr. It returns when ctx has ended and everything
// is drained, or with what stopped it; cli.ExitCode tells a usage error from a failure.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var g grammar
	kc, err := cli.Parse(&g, args, stdout, stderr, kong.Name("backend"), kong.Description(description),
		kong.Vars{"version": version.This().Line("backend")})
	if err != nil || kc == nil {
		return err
	}
	kc.BindTo(ctx, (*context.Context)(nil))
	return kc.Run(&command.Env{Stdout: stdout, Stderr: stderr, Config: func(path string) (command.Config, error) {
		c, err := LoadConfig(path)
		if err != nil {
			return command.Config{}, err
		}
		return c.operate(stderr), nil
	}})
}

// Run serves.
func (c *serveCommand) Run(ctx context.Context, env *command.Env) error {
	roles, err := ParseRoles(c.Roles)
	if err != nil {
		return err
	}
	config, err := LoadConfig(c.Config)
	if err != nil {
		return err
	}
	return serve(ctx, c.Config, config, roles, env.Stderr)
}

func serve(ctx context.Context, path string, c Config, roles Roles, stderr io.Writer) error {
	log := c.logger(stderr)
	if c.Development {
		log.Warn("development: true: for a developer's machine only", "development_secrets", c.developmentSecrets(), "test_payments", c.TestPayments())
	}
	memory.Limit(log)
	p, err := newProcess(path, c, roles, log)
	if err != nil {
		return err
	}
	return p.run(ctx)
}

// listen takes a port, or says what is in the way.
func listen(ctx context.Context, field, addr string) (net.Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is in use by another program: stop it, or choose another port", field, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return ln, nil
}
