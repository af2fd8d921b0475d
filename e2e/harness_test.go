//go:build servers

package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/rueidis"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/development"
)

// machine is what all tests of this package share: one set of private servers, and the binaries. Each test takes a fresh
// schema, vhost and key prefix on it. Tests that stop a server, or empty it of its scripts, run alone; the others, which are
// t.Parallel, after them.
var machine struct {
	once    sync.Once
	dir     string
	bin     string
	servers *stack.Servers
	err     error
	mu      sync.Mutex // guards what follows, and the servers while a test sees to it that they run
	worlds  int
}

func TestMain(m *testing.M) {
	code := m.Run()
	if v := machine.servers; v != nil {
		if err := v.Kill(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "end the servers:", err)
			code = max(code, 1)
		}
	}
	if machine.dir != "" && code == 0 {
		_ = os.RemoveAll(machine.dir)
	}
	os.Exit(code)
}

// raced reports whether the binaries are built with the race detector (see TestTheBinariesHaveNoDataRace); else they are built as they
// are shipped.
func raced() bool { return os.Getenv("FLOODGATE_RACE") != "" }

func startMachine() {
	machine.err = func() (err error) {
		if machine.dir, err = os.MkdirTemp("", "floodgate-e2e-"); err != nil {
			return err
		}
		root, err := stack.Root()
		if err != nil {
			return err
		}
		machine.bin = filepath.Join(machine.dir, "bin")
		args, cgo := []string{"build", "-buildvcs=false"}, "CGO_ENABLED=0"
		if raced() {
			args, cgo = append(args, "-race"), "CGO_ENABLED=1"
		}
		build := exec.Command("go", append(args, "-o", machine.bin+"/", "./gateway/cmd/gateway", "./backend/cmd/backend")...)
		build.Dir = root
		build.Env = append(os.Environ(), cgo)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(build.Args, " "), err, out)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		v, err := stack.Open(filepath.Join(machine.dir, "servers"), nil)
		if err != nil {
			return err
		}
		machine.servers = v
		return v.Start(ctx)
	}()
}

// world is one running system: a gateway and a backend of its own, with a schema, a vhost and a key prefix of their own.
type world struct {
	t        testing.TB
	ctx      context.Context
	dir      string
	servers  *stack.Servers
	ports    stack.Ports
	backend  *stack.Process
	second   *stack.Process // nil unless options.second
	consumer *stack.Process // nil unless options.ownConsumer
	gateway  *stack.Process
	db       *sql.DB
	redis    rueidis.Client
	prefix   string
	vhost    string
	http     *http.Client
	contract *contract
}

// options are what a world has otherwise than the development system.
type options struct {
	ownConsumer bool   // the consumer role is a process of its own
	orders      string // the gateway's order limit, "" for production's
	queuedBound string // orders.queued_bound, "" for the default
	maxLag      string // orders.max_lag, "" for the default
	maxOutage   string // orders.max_outage, "" for the default
	after       string // accept.after, "" for the default
	carts       string // the section carts, "" for the default
	second      bool   // there is another backend, of the roles api and timer
}

// patience bounds every wait: how long after a fault, or after the end of a run, everything must have settled.
const patience = 30 * time.Second

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	machine.once.Do(startMachine)
	if machine.err != nil {
		t.Fatal(machine.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	machine.mu.Lock()
	machine.worlds++
	name := fmt.Sprintf("e2e%d", machine.worlds)
	err := machine.servers.Start(ctx) // a test before may have ended one
	machine.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, ctx: ctx, dir: filepath.Join(machine.dir, name), servers: machine.servers, prefix: name + ":", vhost: name, contract: loadContract(t),
		http: &http.Client{Timeout: 40 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 4096, MaxConnsPerHost: 4096, IdleConnTimeout: 10 * time.Second},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	t.Cleanup(w.http.CloseIdleConnections)
	w.makeVhost()
	dsn := w.makeSchema(name)
	redis, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{w.servers.RedisAddr()}, DisableCache: true, ForceSingleClient: true})
	w.must(err)
	w.redis = redis
	t.Cleanup(redis.Close)

	w.ports, err = stack.FreeSystemPorts()
	w.must(err)
	w.must(os.MkdirAll(w.dir, 0o755))
	amqp, err := url.Parse(w.servers.AMQPURL())
	w.must(err)
	amqp.Path = "/" + w.vhost
	backend := func(file string, internal, admin int) string {
		bound := "orders: {batch: 200"
		if o.queuedBound != "" {
			bound += ", queued_bound: " + o.queuedBound
		}
		if o.maxLag != "" {
			bound += ", max_lag: " + o.maxLag
		}
		if o.maxOutage != "" {
			bound += ", max_outage: " + o.maxOutage
		}
		bound += "}\n"
		if o.after != "" {
			bound += "accept: {after: " + o.after + "}\n"
		}
		if o.carts != "" {
			bound += "carts: " + o.carts + "\n"
		}
		return w.write(file, fmt.Sprintf(`development: true
listen: {internal: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
admin_token: %s
signing_keys: [{id: %s, secret: %s}]
redis: {addrs: ["%s"], prefix: "%s"}
mysql: {dsn: "%s"}
queue: {driver: rabbitmq, url: "%s"}
payments: {providers: [{name: %s, secrets: [%s]}]}
%slog: {level: info}
`, internal, admin, development.AdminToken, development.SigningKeyID, development.SigningSecret, w.servers.RedisAddr(), w.prefix, dsn, amqp,
			development.Provider, development.PaymentSecret, bound))
	}
	limit := "{rate: 0.2, burst: 1, max_keys: 1000000}"
	if o.orders != "" {
		limit = o.orders
	}
	backends := strconv.Quote(w.ports.InternalURL())
	if o.second {
		p, err := stack.FreePorts(2)
		w.must(err)
		w.second = stack.NewProcess(w.dir, stack.Program{
			Name: "second", Path: filepath.Join(machine.bin, "backend"),
			Args:  []string{"-config", backend("second.yaml", p[0], p[1]), "-roles", "api,timer"},
			Ready: fmt.Sprintf("http://127.0.0.1:%d/-/ready", p[1]),
		})
		backends += fmt.Sprintf(`, "http://127.0.0.1:%d"`, p[0])
	}
	gateway := w.write("gateway.yaml", fmt.Sprintf(`development: true
listen: {public: "127.0.0.1:%d", ops: "127.0.0.1:%d"}
backends: [%s]
signing_key: {id: %s, secret: %s}
identity:
  keys: [{kid: %s, alg: HS256, secret: %s, sign: true}]
limits:
  order: %s
  ip_exempt: ["127.0.0.0/8", "::1/128"]
server: {read_timeout: 1m} # thousands press at once from the machine that answers them
log: {level: info}
`, w.ports.Public, w.ports.Ops, backends, development.SigningKeyID, development.SigningSecret, development.LoginKeyID, development.LoginSecret, limit))
	config := backend("backend.yaml", w.ports.Internal, w.ports.Admin)

	migrate := exec.CommandContext(ctx, filepath.Join(machine.bin, "backend"), "migrate", "-config", config)
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(migrate.Args, " "), err, out)
	}
	roles := "api,relay,consumer,timer"
	if o.ownConsumer {
		roles = "api,relay,timer"
		p, err := stack.FreePorts(2)
		w.must(err)
		w.consumer = stack.NewProcess(w.dir, stack.Program{
			Name: "consumer", Path: filepath.Join(machine.bin, "backend"),
			Args:  []string{"-config", backend("consumer.yaml", p[0], p[1]), "-roles", "consumer"},
			Ready: fmt.Sprintf("http://127.0.0.1:%d/-/ready", p[1]),
		})
	}
	w.backend = stack.NewProcess(w.dir, stack.Program{
		Name: "backend", Path: filepath.Join(machine.bin, "backend"), Args: []string{"-config", config, "-roles", roles},
		Ready: w.ports.AdminURL() + "/-/ready",
	})
	w.gateway = stack.NewProcess(w.dir, stack.Program{
		Name: "gateway", Path: filepath.Join(machine.bin, "gateway"), Args: []string{"-config", gateway}, Ready: w.ports.OpsURL() + "/-/ready",
	})
	for _, p := range []*stack.Process{w.backend, w.second, w.consumer, w.gateway} {
		if p == nil {
			continue
		}
		t.Cleanup(func() { w.end(p) })
		w.must(p.Start(ctx))
	}
	return w
}

// end stops a process as an operator would; it must end by itself and cleanly. On a failed test its log is shown.
func (w *world) end(p *stack.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		w.t.Error(err)
	}
	b, err := os.ReadFile(p.LogFile())
	if err != nil {
		w.t.Error(err)
	}
	for _, bad := range []string{"DATA RACE", "panic:", "goroutine stack exceeds"} {
		if bytes.Contains(b, []byte(bad)) {
			w.t.Errorf("%s's log holds %q", p.Name(), bad)
		}
	}
	if w.t.Failed() {
		w.t.Logf("the end of %s's log:\n%s", p.Name(), b[max(0, len(b)-6000):])
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) string {
	path := filepath.Join(w.dir, name)
	w.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (w *world) makeSchema(name string) (dsn string) {
	c, err := mysql.ParseDSN(w.servers.MySQLDSN())
	w.must(err)
	c.DBName = ""
	c.ParseTime = true
	admin, err := sql.Open("mysql", c.FormatDSN())
	w.must(err)
	defer admin.Close()
	_, err = admin.ExecContext(w.ctx, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4")
	w.must(err)
	c.DBName = name
	w.db, err = sql.Open("mysql", c.FormatDSN())
	w.must(err)
	w.t.Cleanup(func() { w.db.Close() })
	own, err := mysql.ParseDSN(w.servers.MySQLDSN())
	w.must(err)
	own.DBName = name
	return own.FormatDSN()
}

func (w *world) makeVhost() {
	u, err := url.Parse(w.servers.ManagementURL())
	w.must(err)
	w.management(http.MethodPut, "/api/vhosts/"+w.vhost, `{}`, nil)
	w.management(http.MethodPut, "/api/permissions/"+w.vhost+"/"+u.User.Username(), `{"configure":".*","write":".*","read":".*"}`, nil)
}

// management calls RabbitMQ's HTTP API.
func (w *world) management(method, path, body string, out any) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.ctx, method, w.servers.ManagementURL()+path, strings.NewReader(body))
	w.must(err)
	req.Header.Set("Content-Type", "application/json")
	res, err := w.http.Do(req)
	w.must(err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	w.must(err)
	if res.StatusCode/100 != 2 {
		w.t.Fatalf("%s %s: %s: %s", method, path, res.Status, b)
	}
	if out != nil {
		w.must(json.Unmarshal(b, out))
	}
}

// until waits for a condition: it asks again and again, and fails the test with the last answer when the deadline is over.
func (w *world) until(what string, within time.Duration, ok func() (bool, string)) {
	w.t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		done, last := ok()
		if done {
			return
		}
		select {
		case <-deadline.C:
			w.t.Fatalf("%s: not within %v: %s", what, within, last)
		case <-tick.C:
		}
	}
}
