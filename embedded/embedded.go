// Package embedded runs the whole system in one process, without servers: the same gateway and backend code, with the same
// drivers, scripts and SQL, against in-memory stand-ins for Redis and MySQL on loopback.
//
// It is for a first look and for demonstrations. It gives up durability (what the stand-ins hold ends with the process)
// and speed (they answer some hundred orders a second). No production binary contains any of it.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"floodgate.internal/backend"
	"floodgate.internal/backend/adminapi"
	"floodgate.internal/embedded/standin"
	"floodgate.internal/gateway"
	"floodgate.internal/shared/development"
)

// GivesUp says in two lines what the embedded profile is not.
const GivesUp = `embedded profile: everything is in this process's memory and gone when it ends (no durability: a 202 here survives nothing),
and the in-memory servers are slow (a few hundred orders a second). The real system: make up.`

// Options says where a System lives.
type Options struct {
	Dir      string    // gets backend.yaml and gateway.yaml
	Addrs    Addrs     // the zero value: free ports
	Log      io.Writer // gets the log lines of both processes
	LogLevel string    // debug, info, warn, error; "" is info
}

// System is a running system. Close must be called.
type System struct {
	Addrs Addrs
	Dir   string

	redis   *standin.Redis
	mysql   *standin.MySQL
	backend *process
	gateway *process
	log     io.Writer
}

// startTimeout bounds each process's way to readiness.
const startTimeout = 30 * time.Second

// Start starts the stand-ins, brings the schema up to date, and starts the backend with every role and the gateway. It
// returns when both are ready.
func Start(ctx context.Context, o Options) (s *System, err error) {
	s = &System{Addrs: o.Addrs, Dir: o.Dir, log: o.Log}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	if s.Addrs == (Addrs{}) {
		if s.Addrs, err = FreeAddrs(); err != nil {
			return s, err
		}
	}
	if err = s.Addrs.InUse(); err != nil {
		return s, err
	}
	if o.LogLevel == "" {
		o.LogLevel = "info"
	}
	if s.redis, err = standin.StartRedis(); err != nil {
		return s, err
	}
	if s.mysql, err = standin.StartMySQL(); err != nil {
		return s, err
	}
	if err = writeConfigs(s.Dir, s.Addrs, s.redis.Addr(), s.mysql.DSN(), o.LogLevel); err != nil {
		return s, err
	}
	if err = backend.Run(ctx, []string{"migrate", "-config", s.BackendConfig()}, io.Discard, o.Log); err != nil {
		return s, fmt.Errorf("migrate: %w", err)
	}
	s.backend = start("backend", backend.Run, []string{"-config", s.BackendConfig()}, o.Log)
	if err = s.backend.ready(ctx, "http://"+s.Addrs.Admin+"/-/ready"); err != nil {
		return s, err
	}
	s.gateway = start("gateway", gateway.Run, []string{"-config", s.GatewayConfig()}, o.Log)
	return s, s.gateway.ready(ctx, "http://"+s.Addrs.Ops+"/-/ready")
}

// BackendConfig is the path of the backend's configuration.
func (s *System) BackendConfig() string { return filepath.Join(s.Dir, "backend.yaml") }

// GatewayConfig is the path of the gateway's configuration.
func (s *System) GatewayConfig() string { return filepath.Join(s.Dir, "gateway.yaml") }

// Admin is a client of the backend's admin API. It keeps no connection.
func (s *System) Admin() *adminapi.Client {
	return &adminapi.Client{Base: "http://" + s.Addrs.Admin, Token: development.AdminToken, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// RedisAddr is where the stand-in for Redis listens.
func (s *System) RedisAddr() string { return s.redis.Addr() }

// MySQLDSN is the data source name of the stand-in for MySQL.
func (s *System) MySQLDSN() string { return s.mysql.DSN() }

// Tokens mints a token for each uid of a range like "1-2000", in order, with the gateway's own command.
func (s *System) Tokens(ctx context.Context, uids string) ([]string, error) {
	var out strings.Builder
	if err := gateway.Run(ctx, []string{"token", "-config", s.GatewayConfig(), "-uid", uids}, &out, s.log); err != nil {
		return nil, fmt.Errorf("mint tokens for %s: %w", uids, err)
	}
	return strings.Fields(out.String()), nil
}

// Wait returns when ctx ends, with nil, or when a process ends by itself, with what it said.
func (s *System) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.gateway.done:
		return s.gateway.ended()
	case <-s.backend.done:
		return s.backend.ended()
	}
}

// Close drains the gateway, then the backend, then ends the stand-ins.
func (s *System) Close() error {
	var errs []error
	for _, p := range []*process{s.gateway, s.backend} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	if s.mysql != nil {
		errs = append(errs, s.mysql.Close())
	}
	if s.redis != nil {
		s.redis.Close()
	}
	return errors.Join(errs...)
}

// process is one of the two, on a goroutine instead of in a process of its own.
type process struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // what it returned; to be read after done
}

type run func(ctx context.Context, args []string, stdout, stderr io.Writer) error

func start(name string, f run, args []string, log io.Writer) *process {
	ctx, cancel := context.WithCancel(context.Background()) // it ends in its turn, by stop
	p := &process{name: name, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = f(ctx, args, log, log)
	}()
	return p
}

// ready waits until url answers 200.
func (p *process) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	said := "no answer"
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if res, err := client.Do(req); err == nil {
			body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			said = res.Status + " " + strings.TrimSpace(string(body))
		}
		select {
		case <-p.done:
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w (last: %s)", url, ctx.Err(), said)
		case <-tick.C:
		}
	}
}

func (p *process) ended() error {
	if p.err == nil {
		return fmt.Errorf("the %s ended by itself", p.name)
	}
	return fmt.Errorf("%s: %w", p.name, p.err)
}

// stop drains it and returns what it said, unless it had ended by itself: then ready or Wait told.
func (p *process) stop() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.cancel()
	<-p.done
	if p.err != nil {
		return fmt.Errorf("stop the %s: %w", p.name, p.err)
	}
	return nil
}
