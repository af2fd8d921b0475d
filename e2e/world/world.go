// Package world starts a whole system for a test: a gateway and a backend with a schema, a vhost and a key prefix of their own on
// servers that run, and what it takes to ask them and the stores.
package world

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/netfault"
)

// Options are what a world has otherwise than a development system.
type Options struct {
	Name     string // of the schema and the vhost; the prefix of Redis's keys is it and a colon
	Dir      string // of its configurations, pid files and logs
	Bin      string // where the binaries are
	Stores   Stores // without AMQP the queue is in Redis
	Through  Stores // where the backends find them, if elsewhere
	Linked   bool   // there is a proxy on each way between its parts
	Consumer bool   // the consumer role is a process of its own
	Second   bool   // there is another backend, of the roles api and timer
	Several  bool   // there are two gateways, three apis and two of each other role, each a process of its own; without proxies
	Backend  string // lines of the backends' configurations
	Gateway  string // lines of the gateway's configuration
	Listen   string // keys of its section listen, each after a comma
	// Limits is the gateway's section limits, in one line; "" for those of production, from which loopback is exempt.
	Limits string
}

// Links are a proxy on each way between the parts of a system.
type Links struct{ Public, Internal, Redis, MySQL, RabbitMQ *netfault.Link }

// World is one system.
type World struct {
	Options
	Ports  stack.Ports
	Links  Links        // all nil unless Linked
	Books  oracle.Books // the stores, past every link
	Vhost  string       // of the backends' configurations; at first it is Name
	Client *Client

	Backend  *stack.Process
	Second   *stack.Process // nil unless the options say so
	Consumer *stack.Process // nil unless the options say so
	Gateway  *stack.Process

	// Of several of each: the parts, where shoppers find each gateway, and all processes but Backend and Gateway.
	Parts  []Part
	Fronts []string
	others []*stack.Process

	ports map[string]stack.Ports // of each process, by its name
}

// New makes the world's own corner of the servers, and its configurations. It starts nothing. Its connections end with the test.
func New(t testing.TB, ctx context.Context, o Options) *World {
	t.Helper()
	w := &World{Options: o, Vhost: o.Name, Client: NewClient(4096, time.Minute)}
	t.Cleanup(w.Client.Close)
	Must(t, os.MkdirAll(o.Dir, 0o755))
	var err error
	w.Ports, err = stack.FreeSystemPorts()
	Must(t, err)
	w.ports = map[string]stack.Ports{"backend": w.Ports, "gateway": w.Ports}
	Must(t, o.Stores.withoutSchema(ctx, "CREATE DATABASE "+o.Name+" CHARACTER SET utf8mb4"))
	if o.Stores.AMQP != "" {
		Must(t, o.Stores.MakeVhost(ctx, o.Name))
	}
	w.Books, err = o.Stores.OpenBooks(o.Name, o.Name+":")
	Must(t, err)
	redis := w.Books.Redis
	t.Cleanup(func() { redis.Close(); w.Books.DB.Close() })
	w.Through = cmp.Or(w.Through, w.Stores)
	if o.Linked {
		w.link(t)
	}
	Must(t, w.WriteBackend("backend", w.Through))
	Must(t, w.WriteGateway())
	Must(t, stack.Migrate(ctx, filepath.Join(w.Bin, "backend"), w.File("backend.yaml")))
	roles := "api,relay,consumer,timer"
	if o.Consumer {
		roles = "api,relay,timer"
	}
	if o.Several {
		roles = "api"
	}
	w.Backend = w.Process("backend", nil, "-roles", roles)
	w.Gateway = w.Process("gateway", nil)
	if o.Consumer {
		w.Consumer = w.addBackend(t, "consumer", "consumer")
	}
	if o.Second {
		w.Second = w.addBackend(t, "second", "api,timer")
		Must(t, w.WriteGateway())
	}
	if o.Several {
		w.several(t)
	}
	return w
}

func (w *World) link(t testing.TB) {
	t.Helper()
	dsn, err := mysql.ParseDSN(w.Stores.MySQL)
	Must(t, err)
	amqp, err := url.Parse(w.Stores.AMQP)
	Must(t, err)
	w.Links = Links{netfault.New(t, host(w.Ports.Public)), netfault.New(t, host(w.Ports.Internal)), netfault.New(t, w.Stores.Redis), netfault.New(t, dsn.Addr), netfault.New(t, amqp.Host)}
	dsn.Addr, amqp.Host = w.Links.MySQL.Addr(), w.Links.RabbitMQ.Addr()
	w.Through.Redis, w.Through.MySQL, w.Through.AMQP = w.Links.Redis.Addr(), dsn.FormatDSN(), amqp.String()
}

// File is the path of a file of the world's.
func (w *World) File(name string) string { return filepath.Join(w.Dir, name) }

// PublicURL is where shoppers find the gateway.
func (w *World) PublicURL() string {
	if w.Linked {
		return "http://" + w.Links.Public.Addr()
	}
	return w.Ports.PublicURL()
}

// WriteBackend writes the configuration NAME.yaml of a backend that finds the stores there.
func (w *World) WriteBackend(name string, stores Stores) error {
	dsn, err := DSN(stores.MySQL, w.Name)
	if err != nil {
		return err
	}
	queue := "queue: {driver: redis-stream}"
	if stores.AMQP != "" {
		u, err := url.Parse(stores.AMQP)
		if err != nil {
			return err
		}
		u.Path = "/" + w.Vhost
		queue = fmt.Sprintf("queue: {driver: rabbitmq, url: %q}", u)
	}
	p, ok := w.ports[name]
	if !ok {
		p = w.Ports
	}
	text := development.Backend(development.Addrs{Internal: host(p.Internal), Admin: host(p.Admin)}, fmt.Sprintf("redis: {addrs: [%q], prefix: %q}\nmysql: {dsn: %q}\n%s\n%s",
		stores.Redis, w.Books.Prefix, dsn, queue, w.Options.Backend), "info")
	return os.WriteFile(w.File(name+".yaml"), text, 0o600)
}

func host(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// WriteGateway writes gateway.yaml. A gateway that runs sees that.
func (w *World) WriteGateway() error {
	backends := []string{w.Ports.InternalURL()}
	if w.Linked {
		backends[0] = "http://" + w.Links.Internal.Addr()
	}
	if p, ok := w.ports["second"]; ok {
		backends = append(backends, p.InternalURL())
	}
	if !w.Several {
		return w.writeGateway("gateway", backends...)
	}
	backends = nil
	for i := range apis {
		backends = append(backends, w.ports[member("api", i)].InternalURL())
	}
	return errors.Join(w.writeGateway("gateway", backends...), w.writeGateway(member("gateway", 1), backends...))
}

// writeGateway writes the configuration NAME.yaml of a gateway of these backends.
func (w *World) writeGateway(name string, backends ...string) error {
	p := w.ports[name]
	limits := cmp.Or(w.Limits, `{order: {rate: 0.2, burst: 1, max_keys: 1000000}, ip_exempt: ["127.0.0.0/8", "::1/128"]}`)
	return os.WriteFile(w.File(name+".yaml"), fmt.Appendf(nil, `development: true
listen: {public: %q, ops: %q%s}
backends: ["%s"]
signing_key: {id: %s, secret: %s}
identity: {keys: [{kid: %s, alg: HS256, secret: %s, sign: true}]}
limits: %s
log: {level: info}
%s`, host(p.Public), host(p.Ops), w.Listen, strings.Join(backends, `", "`), development.SigningKeyID, development.SigningSecret,
		development.LoginKeyID, development.LoginSecret, limits, w.Options.Gateway), 0o600)
}

// addBackend is one more backend of these roles, with a configuration and ports of its own. It is not started.
func (w *World) addBackend(t testing.TB, name, roles string) *stack.Process {
	t.Helper()
	p, err := stack.FreeSystemPorts()
	Must(t, err)
	w.ports[name] = p
	Must(t, w.WriteBackend(name, w.Through))
	return w.Process(name, nil, "-roles", roles)
}

// Beside is another backend, of the role api, and another gateway, which knows that backend alone, on the same stores. Its client is its own.
func (w *World) Beside(t testing.TB) *World {
	t.Helper()
	two := *w
	two.Client = NewClient(4096, time.Minute)
	t.Cleanup(two.Client.Close)
	two.Backend, two.Second, two.Consumer = w.addBackend(t, "backend-2", "api"), nil, nil
	two.Ports = w.ports["backend-2"]
	w.ports["gateway-2"] = two.Ports
	Must(t, w.writeGateway("gateway-2", two.Ports.InternalURL()))
	two.Gateway = w.Process("gateway-2", nil)
	return &two
}

// Process is one of the world's programs: a gateway or a backend by its name, with this environment and these arguments, too.
func (w *World) Process(name string, env []string, args ...string) *stack.Process {
	binary, ready := "backend", w.ports[name].AdminURL()
	if strings.HasPrefix(name, "gateway") {
		binary, ready = "gateway", w.ports[name].OpsURL()
	}
	return stack.NewProcess(w.Dir, stack.Program{Name: name, Path: filepath.Join(w.Bin, binary), Env: env,
		Args: append([]string{"-config", w.File(name + ".yaml")}, args...), Ready: ready + "/-/ready"})
}

// processes are all of them, in the order in which they start.
func (w *World) processes() (all []*stack.Process) {
	for _, p := range append([]*stack.Process{w.Backend, w.Second, w.Consumer, w.Gateway}, w.others...) {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Start starts what does not run, and returns when all serve.
func (w *World) Start(ctx context.Context) error {
	for _, p := range w.processes() {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the gateway and then the others, as an operator does.
func (w *World) Stop(ctx context.Context) error { return w.end(ctx, (*stack.Process).Stop) }

// Kill kills them.
func (w *World) Kill(ctx context.Context) error { return w.end(ctx, (*stack.Process).Kill) }

func (w *World) end(ctx context.Context, do func(*stack.Process, context.Context) error) error {
	err := do(w.Gateway, ctx)
	for _, p := range w.processes() {
		err = errors.Join(err, do(p, ctx))
	}
	return err
}

// Run starts the world until the test ends.
func (w *World) Run(t testing.TB, ctx context.Context) {
	t.Helper()
	for _, p := range w.processes() {
		Run(t, ctx, p)
	}
}

// Run starts a process until the test ends. It must end by itself then, and its log must not hold what says that something broke.
func Run(t testing.TB, ctx context.Context, p *stack.Process) {
	t.Helper()
	t.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		blame(t, p)
	})
	Must(t, p.Start(ctx))
}

// blame looks for what must never be in a log, and shows the log of a failed test.
func blame(t testing.TB, p *stack.Process) {
	b, err := os.ReadFile(p.LogFile())
	if err != nil {
		t.Error(err)
		return
	}
	for _, bad := range []string{"DATA RACE", "panic", "BUG:", "goroutine stack exceeds"} {
		if i := bytes.Index(b, []byte(bad)); i >= 0 {
			t.Errorf("%s's log holds %q: %s", p.Name(), bad, b[max(0, i-200):min(len(b), i+2000)])
		}
	}
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte("pending with nobody")) { // it was put right; how often it is needed is worth knowing
			t.Logf("%s", line)
		}
	}
	if t.Failed() {
		ShowLog(t, p)
	}
}

// ShowLog logs the end of a process's log.
func ShowLog(t testing.TB, p *stack.Process) {
	b, err := os.ReadFile(p.LogFile())
	t.Logf("the end of %s's log (%v):\n%s", p.Name(), err, b[max(0, len(b)-8000):])
}

// Metric is the value of a metric at the admin or the ops listener: of one with these labels, or the sum of all of that name.
func (w *World) Metric(t testing.TB, listener, name string) float64 {
	t.Helper()
	sum, err := w.metric(t.Context(), listener, name)
	Must(t, err)
	return sum
}

func (w *World) metric(ctx context.Context, listener, name string) (sum float64, err error) {
	a := w.Client.Do(ctx, Call{Method: "GET", URL: listener + "/metrics"})
	found := false
	for line := range strings.Lines(string(a.Body)) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:]), 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s: %s", listener, name, a)
	}
	return sum, nil
}

// Mint makes a token for each uid of first to last.
func (w *World) Mint(ctx context.Context, first, last int) ([]string, error) {
	return Mint(ctx, w.Bin, w.File("gateway.yaml"), first, last)
}

// AdminURL is the address of an operation of the admin API.
func (w *World) AdminURL(path string) string { return w.Ports.AdminURL() + "/admin/v1" + path }

// Balanced returns an error unless the equations of a settled sale hold, as the oracle and the auditor see them.
func (w *World) Balanced(ctx context.Context, sale, stock int64, log *oracle.Log) (v oracle.View, err error) {
	if v, err = w.Books.Look(ctx, sale); err != nil {
		return v, err
	}
	if bad := append(v.Always(stock, 1), v.Settled(stock, log)...); len(bad) > 0 {
		return v, errors.New("\n  " + strings.Join(bad, "\n  "))
	}
	return v, w.Audited(ctx, sale)
}

// Audited returns an error unless the auditor calls the sale balanced.
func (w *World) Audited(ctx context.Context, sale int64) error {
	a := w.Client.Do(ctx, Call{Method: "GET", URL: w.AdminURL(fmt.Sprintf("/sales/%d/audit", sale)), Token: development.AdminToken})
	return a.Is(200, `"balanced":true`)
}

// Watch holds what is to be seen of a sale against the equations that always hold, again and again until stop is called. A store
// may be away only if mayFail.
func Watch(t testing.TB, ctx context.Context, stock int64, mayFail bool, look func(context.Context) (oracle.View, error)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	looks := 0
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			v, err := look(ctx)
			switch {
			case err == nil:
				looks++
				for _, bad := range v.Always(stock, 1) {
					t.Errorf("meanwhile: %s", bad)
				}
			case ctx.Err() == nil && !mayFail:
				t.Errorf("meanwhile: %v", err)
			}
			Pause(ctx, 100*time.Millisecond)
		}
	}()
	return func() {
		t.Helper()
		cancel()
		<-done
		if looks == 0 && !t.Failed() {
			t.Error("nothing was to be seen of the sale meanwhile")
		}
	}
}

// Queue is one of the broker's queues, as its HTTP API tells it.
type Queue struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Messages int      `json:"messages"`
	Ready    int      `json:"messages_ready"`
	Unacked  int      `json:"messages_unacknowledged"`
	Online   []string `json:"online"`
}

// fewestQueues is how many a backend declares with the default number of partitions: theirs, those not routed, the dead.
const fewestQueues = 4 + 2

// Queues are those of the vhost. What they hold lags.
func (w *World) Queues(ctx context.Context) (all []Queue, err error) {
	if err := w.Stores.Manage(ctx, "GET", "/queues/"+w.Vhost, "", &all); err != nil {
		return nil, err
	}
	if len(all) < fewestQueues {
		return nil, fmt.Errorf("got queues %+v, want at least %d", all, fewestQueues)
	}
	return all, nil
}

// Drained ends the system and then asks the broker itself what is left in its queues: its statistics lag, and what was delivered and not
// settled is ready again once every consumer is gone.
func (w *World) Drained(ctx context.Context) error {
	if err := w.Stop(ctx); err != nil {
		return err
	}
	queues, err := w.Queues(ctx)
	if err != nil {
		return err
	}
	u, err := url.Parse(w.Stores.AMQP)
	if err != nil {
		return err
	}
	u.Path = "/" + w.Vhost
	conn, err := amqp.Dial(u.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	var left []error
	for _, q := range queues {
		var now amqp.Queue
		if err := Await(ctx, func(context.Context) (err error) {
			if now, err = ch.QueueDeclarePassive(q.Name, true, false, false, false, nil); err == nil && now.Consumers > 0 {
				err = fmt.Errorf("queue %s still has %d consumers", q.Name, now.Consumers)
			}
			return err
		}); err != nil {
			return err
		}
		if now.Messages > 0 {
			left = append(left, fmt.Errorf("queue %s still holds %d messages", q.Name, now.Messages))
		}
	}
	return errors.Join(left...)
}
