// Package gateway is the edge of a flash sale: it answers what it can from its own memory and sends on what is left.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/failpoint"
)

type grammar struct {
	Serve serveCommand `cmd:"" default:"withargs" help:"Run the gateway (the default)."`
	Check checkCommand `cmd:"" help:"Say what is wrong with a configuration, or what it would change in the running gateway."`
	Token tokenCommand `cmd:"" help:"Mint test tokens of 24 hours with the configuration's signing key."`
}

type serveCommand struct {
	Config string `required:"" placeholder:"FILE" help:"The configuration file; it is watched."`
}

// Run runs the gateway's command line until it is done or ctx is. A wrong command line or configuration is a
// cli.UsageError.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var g grammar
	kc, err := cli.Parse(&g, args, stdout, stderr)
	if err != nil || kc == nil {
		return err
	}
	switch command, _, _ := strings.Cut(kc.Command(), " "); command {
	case "check":
		return g.Check.run(ctx, stdout)
	case "token":
		return g.Token.run(stdout)
	default:
		return serve(ctx, g.Serve.Config, time.Now, stderr)
	}
}

// serve runs the gateway until ctx is done, and drains it. now is time.Now but in tests.
func serve(ctx context.Context, path string, now func() time.Time, stderr io.Writer) (err error) {
	level := new(slog.LevelVar)
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	run, err := start(path, now, level, log, reg)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	config := run.current.Load().Config
	opsListener, err := net.Listen("tcp", config.Listen.Ops)
	if err != nil {
		return fmt.Errorf("listen for operators: %w", err)
	}
	publicListener, err := net.Listen("tcp", config.Listen.Public)
	if err != nil {
		opsListener.Close()
		return fmt.Errorf("listen for the public: %w", err)
	}
	public := run.listening(publicListener, reg)
	server := run.edge.HTTP(edge.Limits{
		ReadTimeout: config.Server.ReadTimeout, WriteTimeout: config.Server.WriteTimeout, IdleTimeout: config.Server.IdleTimeout,
		MaxBody: config.Server.MaxBody, MaxHeader: config.Server.MaxHeader,
	})
	log.Info("listening", "public", publicListener.Addr().String(), "ops", opsListener.Addr().String(), "generation", run.current.Load().Generation, "hash", run.current.Load().Hash)

	// The ops listener, the feed and the handover of records outlive the public listener: a drain can be watched, decides by fresh
	// news, and is recorded.
	last, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	recording, handOver := context.WithCancel(last)
	defer handOver()
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		run.handover.Run(recording)
	}()
	var behind errgroup.Group
	behind.Go(func() error { return ops.Serve(last, opsListener, ops.Handler(run.forOperators(), reg, log), log) })
	behind.Go(func() error {
		run.gate.Follow(last, run.pool, log, run.edge.Changed)
		return nil
	})
	behind.Go(func() error {
		run.pool.Watch(last)
		return nil
	})

	group, first := errgroup.WithContext(ctx)
	group.Go(func() error { return run.watch(first, hangups(first)) })
	group.Go(func() error {
		if err := server.Serve(public); err != nil {
			return fmt.Errorf("serve the public: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-first.Done()
		run.drain()
		budget := run.current.Load().Server.Drain
		log.Info("draining", "at_most", budget)
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		defer cancel()
		failpoint.Hit("gateway.before-drain")
		public.Listener.Close() // also when the server has not come to serve it yet
		public.CloseIdle()
		if err := server.ShutdownWithContext(ctx); errors.Is(err, context.DeadlineExceeded) {
			log.Warn("closing what did not end in time", "connections", server.GetOpenConnectionsCount())
		}
		failpoint.Hit("gateway.after-drain")
		public.CloseAll()
		return nil
	})
	err = group.Wait()
	handOver()
	<-handed
	run.cache.Close()
	end()
	run.pool.Close()
	if more := behind.Wait(); err == nil {
		err = more
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	log.Info("stopped")
	return err
}

// hangups delivers SIGHUP until ctx is done.
func hangups(ctx context.Context) <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { signal.Stop(c) })
	return c
}

type tokenCommand struct {
	Config string `required:"" placeholder:"FILE" help:"The configuration file."`
	UID    string `required:"" name:"uid" placeholder:"N|A-B" help:"The user, or a range of numbers: a token a line, in order."`
}

// maxTokens bounds a range of -uid.
const maxTokens = 10_000_000

func (c tokenCommand) run(stdout io.Writer) error {
	config, _, err := Load(c.Config)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	return mint(config, c.UID, time.Now(), stdout)
}

// uidRange reads "A-B" as numbers; anything else is one uid.
func uidRange(s string) (from, to uint64, ok bool) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		return 0, 0, false
	}
	from, err1 := strconv.ParseUint(a, 10, 64)
	to, err2 := strconv.ParseUint(b, 10, 64)
	return from, to, err1 == nil && err2 == nil
}
