// Package gateway refuses what it can of a flash sale's requests from its own memory, answers pages from a cache, and sends
// the rest to the backends. See docs/gateway.md.
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
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/logging"
	"floodgate.internal/shared/memory"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/version"
)

const description = `Floodgate's gateway: refuses what it can of a flash sale's requests from its own memory, and sends the rest to the backends.

Without a command it runs the gateway.`

type grammar struct {
	Serve         serveCommand          `cmd:"" default:"withargs" help:"Run the gateway (the default)."`
	Check         checkCommand          `cmd:"" help:"Say what is wrong with a configuration, or what it would change in the running gateway."`
	Token         tokenCommand          `cmd:"" help:"Mint test tokens of 24 hours with the configuration's signing key."`
	OperatorToken operator.TokenCommand `cmd:"" help:"Make a token for an operator, and its line for the configuration."`
	Schema        schemaCommand         `cmd:"" help:"Print a JSON Schema of the configuration, which editors use."`
	Completion    cli.CompletionCommand `cmd:"" help:"Print a script that completes commands and flags in a shell."`
	Man           cli.ManCommand        `cmd:"" help:"Print the manual page."`

	Version kong.VersionFlag `help:"Print which build this is."`
}

type serveCommand struct {
	Config string `required:"" placeholder:"FILE" help:"The configuration file; it is watched."`
}

// Run runs the gateway's command line until it is done or ctx is. A wrong command line or configuration is a
// cli.UsageError.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var g grammar
	kc, err := cli.Parse(&g, args, stdout, stderr, kong.Name("gateway"), kong.Description(description), kong.Vars{"version": version.This().Line("gateway")})
	if err != nil || kc == nil {
		return err
	}
	switch command, _, _ := strings.Cut(kc.Command(), " "); command {
	case "check":
		return g.Check.run(ctx, stdout)
	case "operator-token":
		return g.OperatorToken.Write(stdout)
	case "token":
		return g.Token.run(stdout)
	case "schema":
		return g.Schema.run(stdout)
	case "completion":
		return g.Completion.Run(kc)
	case "man":
		return g.Man.Run(kc)
	default:
		return serve(ctx, g.Serve.Config, time.Now, stderr)
	}
}

// tracesTime is how long the end of the gateway waits for the collector to take the last traces.
const tracesTime = 2 * time.Second

// serve runs the gateway until ctx is done, and drains it. now is time.Now but in tests.
func serve(ctx context.Context, path string, now func() time.Time, stderr io.Writer) error {
	in, err := inherit()
	if err != nil {
		return err
	}
	err = serveOn(ctx, in, path, now, stderr)
	in.fail(err)
	return err
}

// serveOn is serve with what the process inherits; in is nil where it inherits nothing.
func serveOn(ctx context.Context, in *inherited, path string, now func() time.Time, stderr io.Writer) error {
	c, hash, err := Load(path)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	level := new(slog.LevelVar)
	log := logging.New(stderr, c.Log.Format, c.Development, level)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), version.This().Metric("gateway"))

	memory.Limit(log)
	p, err := newProcess(path, c, hash, now, log, level, reg)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	current := p.current.Load()
	listeners, err := p.open(in)
	if err != nil {
		return err
	}
	publicListener, opsListener := listeners[0], listeners[1]
	if len(listeners) > 2 {
		log.Info("redirecting", "from", listeners[2].Addr().String())
	}
	public := p.listen(publicListener, reg)
	log.Info("listening", "public", publicListener.Addr().String(), "ops", opsListener.Addr().String(), "generation", current.Generation, "hash", current.Hash)

	// These outlive the public listener, so that a drain can be watched, decides by a fresh feed, and is recorded.
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer endBackground()
	flushing, endFlushing := context.WithCancel(background)
	defer endFlushing()
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		p.flusher.Run(flushing)
	}()
	var rest errgroup.Group
	begin := make(chan struct{}) // closed when this process may answer
	answering, endOps := context.WithCancel(background)
	defer endOps()
	rest.Go(func() error {
		<-begin
		return ops.Serve(answering, opsListener, ops.Handler(p.opsConfig(), reg, log), log)
	})
	rest.Go(func() error {
		p.gate.Follow(background, p.pool, log, p.edge.SalesChanged)
		return nil
	})
	rest.Go(func() error {
		p.tokens.run(background, p.pool)
		return nil
	})
	rest.Go(func() error {
		p.report(background, publicListener.Addr())
		return nil
	})
	rest.Go(func() error {
		p.pool.Watch(background)
		return nil
	})

	if in != nil {
		if err = in.takeOver(p); err != nil {
			endOps()
		}
	}
	close(begin)
	if err == nil {
		notify("READY=1")
		err = p.servePublic(ctx, public, listeners, endOps)
	}
	endFlushing()
	<-flushed
	p.cache.Close()
	closing, endClosing := context.WithTimeout(context.WithoutCancel(ctx), tracesTime)
	if traceErr := p.tracer.Close(closing); traceErr != nil {
		log.Warn("the last traces are lost", "error", traceErr)
	}
	endClosing()
	endBackground()
	p.pool.Close()
	if restErr := rest.Wait(); err == nil {
		err = restErr
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	log.Info("stopped")
	return err
}

// socket makes listeners whose connections have no TCP keep-alive, which would cost each four system calls. A client that is gone
// without a word is ended by server.idle_timeout.
var socket = net.ListenConfig{KeepAlive: -1}

// open returns the listeners for the public, for operators and, where it is configured, for plain HTTP: new ones, or those that in
// has.
func (r *process) open(in *inherited) (all []net.Listener, err error) {
	if in != nil {
		return in.listeners, in.meet(r)
	}
	c := r.current.Load().Listen
	for _, l := range []struct{ what, addr string }{{"the public", c.Public}, {"operators", c.Ops}, {"plain HTTP", c.Redirect}} {
		if l.addr == "" {
			continue
		}
		ln, err := socket.Listen(context.Background(), "tcp", l.addr)
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, fmt.Errorf("listen for %s: %w", l.what, err)
		}
		all = append(all, ln)
	}
	return all, nil
}

// servePublic answers on the public listener, and watches the configuration, until ctx is done. Then it drains.
// listeners is those of open; endOps ends the ops listener when another process takes them over.
func (r *process) servePublic(ctx context.Context, public *edge.Listener, listeners []net.Listener, endOps func()) error {
	server := r.edge.HTTPServer()
	told := ctx
	ctx, end := context.WithCancel(ctx)
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.watch(ctx, hangups(ctx)) })
	group.Go(func() error { return r.watchTLS(ctx) })
	group.Go(func() error { return r.watchBackendTLS(ctx) })
	group.Go(func() error { return r.watchCanary(ctx) })
	group.Go(func() error {
		if err := server.Serve(public); err != nil {
			return fmt.Errorf("serve the public: %w", err)
		}
		return nil
	})
	if len(listeners) > 2 {
		group.Go(func() error { return r.serveRedirect(ctx, public, listeners[2]) })
	}
	group.Go(func() error {
		return r.upgrades(ctx, listeners, func() {
			endOps()
			for _, l := range listeners[2:] {
				l.Close()
			}
			r.leavePublic(ctx, public)
			end()
		})
	})
	group.Go(func() error {
		<-ctx.Done()
		r.delayShutdown(told)
		r.draining.Store(true)
		r.edge.Drain()
		budget := r.current.Load().Server.Drain
		r.log.Info("draining", "at_most", budget)
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		defer cancel()
		failpoint.Hit("gateway.before-drain")
		public.Listener.Close() // the server may not serve it yet, and would not close it
		public.CloseIdle()
		if err := server.ShutdownWithContext(ctx); errors.Is(err, context.DeadlineExceeded) {
			r.log.Warn("closing what did not end in time", "connections", server.GetOpenConnectionsCount())
		}
		failpoint.Hit("gateway.after-drain")
		public.CloseAll()
		return nil
	})
	return group.Wait()
}

// hangups delivers each SIGHUP until ctx is done.
func hangups(ctx context.Context) <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { signal.Stop(c) })
	return c
}
