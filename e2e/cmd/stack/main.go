// Command stack starts and stops the real system on one machine; see package stack.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/development"
)

type grammar struct {
	Up      upCommand      `cmd:"" help:"Start whatever does not run: Redis, RabbitMQ, MariaDB, backend, gateway. Run again, it brings back what died."`
	Down    downCommand    `cmd:"" help:"Stop what up or servers started, and nothing else."`
	Servers serversCommand `cmd:"" help:"Start the three servers alone and print where they are, in shell syntax."`
	Exec    execCommand    `cmd:"" help:"Start the three servers, run a command that finds them in its environment, stop all, pass on the exit code."`
	Install installCommand `cmd:"" help:"Install what is missing of the Debian packages for a purpose."`
}

func main() {
	ctx, stop := stack.Signals(context.Background())
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		code = max(code, cli.ExitCode(err))
	}
	os.Exit(code)
}

// run is the program; code is what the command of exec ended with.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int, err error) {
	var g grammar
	kc, err := cli.Parse(&g, args, stdout, stderr, kong.Name("stack"), kong.Description(
		"Runs the real system on this machine: private instances of its servers on free loopback ports, the backend and the gateway, "+
			"with data, logs and process ids under one directory. The machine's own services are never touched."))
	if err != nil || kc == nil {
		return 0, err
	}
	out := &output{stdout: stdout, stderr: stderr}
	kc.BindTo(ctx, (*context.Context)(nil))
	err = kc.Run(out)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted")
		if kc.Command() == "up" || kc.Command() == "servers" {
			err = errors.New("interrupted; what was started still runs: go on with the same command, or end it with down")
		}
	}
	return out.code, err
}

// output is where commands write.
type output struct {
	stdout, stderr io.Writer
	mu             sync.Mutex // guards stderr: servers start side by side
	code           int
}

func (o *output) report(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(o.stderr, "stack: "+format+"\n", args...)
}

type upCommand struct {
	Dir string `default:".run" help:"Where data, logs and process ids are."`
	Bin string `help:"Where the binaries backend and gateway are (default: beside this one)."`

	Native bool `help:"Private native servers even where a Docker engine answers. What was taken first stays until down -clean."`
}

func (c *upCommand) Run(ctx context.Context, o *output) error {
	bin, err := binaries(c.Bin)
	if err != nil {
		return err
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	began := time.Now()
	s, err := stack.Up(ctx, stack.Options{
		Dir: c.Dir, Bin: bin, Root: root, Ports: stack.DefaultPorts, Native: c.Native, Report: o.report, Log: o.stderr,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.stdout, `
Floodgate is up (%.1f s), with development secrets, on loopback only.

  shoppers      %[2]s/
  gateway ops   %[3]s/-/ready   /-/config   /metrics
  console       %[4]s/   (admin token: %[5]s; the API is under /admin/v1/)
  servers       . %[6]s/env   (REDIS_ADDR, MYSQL_DSN, AMQP_URL, AMQP_MANAGEMENT_URL)
  logs          %[6]s/log/

next:
  TOKEN=$(build/gateway token -config %[6]s/gateway.yaml -uid 1)
  curl -s %[2]s/v1/sales
  curl -si -X POST -H "Authorization: Bearer $TOKEN" %[2]s/v1/sales/1/orders
  make up      brings back what died
  make down    stops it (CLEAN=1: and forgets the data)
`, time.Since(began).Seconds(), s.Ports.PublicURL(), s.Ports.OpsURL(), s.Ports.AdminURL(), development.AdminToken, c.Dir)
	return nil
}

func binaries(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("where this program is: %w; say where the binaries are with -bin", err)
	}
	return filepath.Dir(self), nil
}

type downCommand struct {
	Dir   string `default:".run" help:"The directory that was given to up or servers."`
	Clean bool   `help:"Remove the data, too."`
}

func (c *downCommand) Run(ctx context.Context, o *output) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	return stack.Down(ctx, stack.Options{
		Dir: c.Dir, Root: root, Ports: stack.DefaultPorts, Clean: c.Clean, Report: o.report, Log: o.stderr,
	})
}

type serversCommand struct {
	Dir string `required:"" help:"Where data, logs and process ids are."`
}

func (c *serversCommand) Run(ctx context.Context, o *output) error {
	s, err := stack.StartServers(ctx, c.Dir, o.report, o.stderr)
	if err != nil {
		return err
	}
	fmt.Fprint(o.stdout, s.ShellEnv())
	return nil
}

type execCommand struct {
	Dir     string   `required:"" help:"Where data, logs and process ids are. The data is removed in the end."`
	Memory  bool     `help:"Keep the data in memory, where there is room for it: for tests of what happens, not of how long a disk takes."`
	Command []string `arg:"" passthrough:"" help:"After --, the command and its arguments."`
}

func (c *execCommand) Run(ctx context.Context, o *output) error {
	argv := c.Command
	if argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return cli.Usage("exec: no command after --")
	}
	var err error
	o.code, err = stack.Exec(ctx, c.Dir, c.Memory, argv, o.stdout, o.stderr, o.report)
	return err
}

type installCommand struct {
	For []string `arg:"" help:"servers (redis-server, rabbitmq-server, mariadb-server), race (gcc, libc6-dev), browser (chromium), proxies (haproxy, nginx-light), docs (curl, openssl), prometheus, or bench (proxies, nginx with Lua)."`
}

func (c *installCommand) Run(ctx context.Context, o *output) error {
	return stack.Install(ctx, o.report, o.stderr, c.For...)
}
