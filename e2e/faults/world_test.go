//go:build servers

package faults

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/rueidis"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// patience bounds every wait for the system to come to rest. It is far more than it takes: a slow machine is no fault.
const patience = 3 * time.Minute

// ground is what several worlds may stand on: the binaries, and one set of servers.
type ground struct {
	dir, bin string
	servers  *stack.Servers
	worlds   atomic.Int64
}

// newGround builds the binaries with these flags and starts servers.
func newGround(t *testing.T, flags ...string) *ground {
	t.Helper()
	dir := t.TempDir()
	g := &ground{dir: dir, bin: filepath.Join(dir, "bin"), servers: openServers(t, filepath.Join(dir, "servers"))}
	build(t, g.bin, flags...)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	must(t, g.servers.Start(ctx))
	return g
}

// openServers are servers that end with the test; none is started.
func openServers(t *testing.T, dir string) *stack.Servers {
	t.Helper()
	v, err := stack.Open(dir, nil)
	must(t, err)
	t.Cleanup(func() {
		if err := v.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return v
}

// links are a proxy on each way between the parts of a system; of those that have none the proxy is nil.
type links struct{ public, internal, redis, mysql, rabbitmq *netfault.Link }

// options are what a world has otherwise than the development system.
type options struct {
	after       string // accept.after, "" for the default
	batch       int    // orders.batch, 0 for the default
	maxLag      string // orders.max_lag, "" for the default
	maxOutage   string // orders.max_outage, the same
	ownConsumer bool   // the consumer role is a process of its own
	linked      bool   // all links have a proxy
	// Servers of the world's own, of which only that one runs; nil: the ground's.
	redis, mysql, rabbitmq *stack.Servers
	amqp                   string         // host:port of a broker that the rabbitmq link leads to; "" for the one of the servers
	extra                  string         // lines of the gateway's configuration
	bin                    string         // where the binaries are; "" for the ground's
	wallOff                map[string]int // seconds by which the wall clock of each binary is off
}

// world is one running system: a gateway and a backend with a schema, a vhost and a key prefix of their own.
type world struct {
	options
	dir      string
	servers  *stack.Servers // the ground's
	links    links
	name     string // of the schema and the vhost; the key prefix is it and a colon
	dsn      string // that the backend has
	url      string // of the vhost, that the backend has
	ports    stack.Ports
	backend  *stack.Process
	consumer *stack.Process // nil unless ownConsumer
	gateway  *stack.Process

	consumerAdmin string     // the URL of its admin listener
	mu            sync.Mutex // guards books.Redis
	books         oracle.Books
	http          *http.Client
	uids          atomic.Int64 // that were handed out
}

// smallBatch is for many batches, each of which can be hit.
const smallBatch = 20

// newWorld makes a world on a ground of its own, which is built with these flags. Its batches are small, so that there are many.
func newWorld(t *testing.T, flags ...string) *world {
	return newGround(t, flags...).world(t, options{batch: smallBatch})
}

// world starts a system.
func (g *ground) world(t *testing.T, o options) *world {
	t.Helper()
	w := &world{options: o, servers: g.servers, name: fmt.Sprint("faults", g.worlds.Add(1)),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 10 * time.Second}}}
	t.Cleanup(w.http.CloseIdleConnections)
	w.dir, w.bin = filepath.Join(g.dir, w.name), cmp.Or(o.bin, g.bin)
	must(t, os.MkdirAll(w.dir, 0o755))
	for _, own := range []**stack.Servers{&w.redis, &w.mysql, &w.rabbitmq} {
		if *own == nil {
			*own = g.servers
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	w.ports, err = stack.FreeSystemPorts()
	must(t, err)
	w.connect(t, ctx)
	w.configs(t, 1)
	if out, err := w.command("backend", "migrate", "-config", w.file("backend.yaml")).CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	w.backend, w.gateway = w.process("backend", ""), w.process("gateway", "")
	all := []*stack.Process{w.backend, w.gateway}
	if o.ownConsumer {
		w.consumer = w.process("consumer", "")
		all = []*stack.Process{w.backend, w.consumer, w.gateway}
	}
	for _, p := range all {
		t.Cleanup(func() {
			if err := p.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			w.blame(t, p)
		})
		must(t, p.Start(ctx))
	}
	return w
}

// connect makes the world's own corner of the servers, and the links to them.
func (w *world) connect(t *testing.T, ctx context.Context) {
	t.Helper()
	if w.linked {
		w.links = links{public: netfault.New(t, hostOf(t, w.ports.PublicURL())), internal: netfault.New(t, hostOf(t, w.ports.InternalURL())),
			redis: netfault.New(t, w.redis.RedisAddr())}
	}
	c, err := mysql.ParseDSN(w.mysql.MySQLDSN())
	must(t, err)
	c.DBName, c.ParseTime, c.Logger = "", true, &mysql.NopLogger{} // it is killed on purpose
	db, err := sql.Open("mysql", c.FormatDSN())
	must(t, err)
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE DATABASE "+w.name+" CHARACTER SET utf8mb4")
	must(t, err)
	c.DBName = w.name
	connector, err := mysql.NewConnector(c)
	must(t, err)
	w.books.DB, w.books.Prefix = sql.OpenDB(connector), w.name+":"
	t.Cleanup(func() { w.books.DB.Close() })
	c.ParseTime = false
	if w.linked {
		w.links.mysql = netfault.New(t, c.Addr)
		c.Addr = w.links.mysql.Addr()
	}
	w.dsn = c.FormatDSN()
	w.books.Redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{w.redis.RedisAddr()}, DisableCache: true, ForceSingleClient: true})
	must(t, err)
	t.Cleanup(w.books.Redis.Close)
	w.makeVhost(t)
	u, err := url.Parse(w.rabbitmq.AMQPURL())
	must(t, err)
	u.Path = "/" + w.name
	if w.linked || w.amqp != "" {
		w.links.rabbitmq = netfault.New(t, cmp.Or(w.amqp, u.Host))
		u.Host = w.links.rabbitmq.Addr()
	}
	w.url = u.String()
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	return u.Host
}

// makeVhost makes the vhost in the broker, which forgets it when it is wiped.
func (w *world) makeVhost(t *testing.T) {
	t.Helper()
	u, err := url.Parse(w.rabbitmq.ManagementURL())
	must(t, err)
	w.management(t, http.MethodPut, "/api/vhosts/"+w.name, `{}`)
	w.management(t, http.MethodPut, "/api/permissions/"+w.name+"/"+u.User.Username(), `{"configure":".*","write":".*","read":".*"}`)
}

// management calls RabbitMQ's HTTP API.
func (w *world) management(t *testing.T, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequest(method, w.rabbitmq.ManagementURL()+path, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := w.http.Do(req)
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(t, err)
	if res.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s: %s", method, path, res.Status, b)
	}
	return b
}

// look is what the stores say of a sale.
func (w *world) look(ctx context.Context, sale int64) (oracle.View, error) {
	w.mu.Lock()
	books := w.books
	w.mu.Unlock()
	return books.Look(ctx, sale)
}

// primary makes another Redis the one that counts.
func (w *world) primary(c rueidis.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.books.Redis = c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blame looks for what must never be in a log, and shows the log of a failed test.
func (w *world) blame(t *testing.T, p *stack.Process) {
	b, err := os.ReadFile(p.LogFile())
	must(t, err)
	for _, bad := range []string{"DATA RACE", "panic", "BUG:"} {
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
		t.Logf("the end of %s's log:\n%s", p.Name(), b[max(0, len(b)-8000):])
	}
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

func (w *world) command(binary string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(w.bin, binary), args...)
}

// configs writes the configurations; generation makes the gateway's differ.
func (w *world) configs(t *testing.T, generation int) {
	t.Helper()
	redis, internal := w.redis.RedisAddr(), w.ports.InternalURL()
	if w.linked {
		redis, internal = w.links.redis.Addr(), "http://"+w.links.internal.Addr()
	}
	backend := func(file string, internal, admin int) {
		must(t, os.WriteFile(w.file(file), fmt.Appendf(nil, `development: true
listen: {internal: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
admin_token: %s
signing_keys: [{id: %s, secret: %s}]
redis: {addrs: ["%s"], prefix: "%s"}
mysql: {dsn: "%s"}
queue: {driver: rabbitmq, url: "%s"}
accept: {after: %s}
orders: {batch: %d, max_lag: %s, max_outage: %s}
outbox: {claim_idle: %s}
carts: {abandoned_after: 1s}
log: {level: info}
`, internal, admin, development.AdminToken, development.SigningKeyID, development.SigningSecret, redis, w.books.Prefix, w.dsn, w.url,
			cmp.Or(w.after, "fsync"), cmp.Or(w.batch, 200), cmp.Or(w.maxLag, "10s"), cmp.Or(w.maxOutage, "10s"), map[string]string{"": "1s", "confirm": "4s"}[w.after]), 0o600))
	}
	backend("backend.yaml", w.ports.Internal, w.ports.Admin)
	if w.ownConsumer {
		p, err := stack.FreePorts(2)
		must(t, err)
		backend("consumer.yaml", p[0], p[1])
		w.consumerAdmin = fmt.Sprintf("http://127.0.0.1:%d", p[1])
	}
	must(t, os.WriteFile(w.file("gateway.yaml"), fmt.Appendf(nil, `development: true
listen: {public: "127.0.0.1:%d", ops: "127.0.0.1:%d"}
backends: ["%s"]
signing_key: {id: %s, secret: %s}
identity:
  keys: [{kid: %s, alg: HS256, secret: %s, sign: true}]
limits:
  order: {rate: 20, burst: 20, max_keys: %d}
  ip_exempt: ["127.0.0.1/32"]
log: {level: info}
%s`, w.ports.Public, w.ports.Ops, internal, development.SigningKeyID, development.SigningSecret, development.LoginKeyID, development.LoginSecret,
		1000000+generation, w.extra), 0o600))
}

// publicURL is where shoppers find the gateway.
func (w *world) publicURL() string {
	if w.linked {
		return "http://" + w.links.public.Addr()
	}
	return w.ports.PublicURL()
}

// process is one of the programs, which dies at the failpoint ("" for none).
func (w *world) process(name, failpoint string, args ...string) *stack.Process {
	p := stack.Program{Name: name, Path: filepath.Join(w.bin, name), Args: append([]string{"-config", w.file(name + ".yaml")}, args...)}
	switch name {
	case "gateway":
		p.Ready = w.ports.OpsURL() + "/-/ready"
	case "consumer":
		p.Path, p.Args, p.Ready = filepath.Join(w.bin, "backend"), append(p.Args, "-roles", "consumer"), w.consumerAdmin+"/-/ready"
	default:
		p.Ready = w.ports.AdminURL() + "/-/ready"
		if w.ownConsumer {
			p.Args = append(p.Args, "-roles", "api,relay,timer")
		}
	}
	if failpoint != "" {
		p.Env = append(p.Env, "FLOODGATE_FAILPOINT="+failpoint)
	}
	if off := w.wallOff[name]; off != 0 {
		p.Env = append(p.Env, fmt.Sprintf("%s=%d", wallVar, off))
	}
	return stack.NewProcess(w.dir, p)
}

// mint makes tokens for n buyers that nobody was before, of uid first, first+1, ...
func (w *world) mint(n int) (first int, tokens []string, err error) {
	first = int(w.uids.Add(int64(n))) - n + 1
	out, err := w.command("gateway", "token", "-config", w.file("gateway.yaml"), "-uid", fmt.Sprintf("%d-%d", first, first+n-1)).Output()
	if err != nil {
		return 0, nil, fmt.Errorf("mint tokens: %w", err)
	}
	if tokens = strings.Fields(string(out)); len(tokens) != n {
		return 0, nil, fmt.Errorf("mint tokens: got %d, want %d", len(tokens), n)
	}
	return first, tokens, nil
}

// answer is what came back; status 0: nothing did.
type answer struct {
	status     int
	retryAfter string
	body       []byte
	Code       string          `json:"code"`
	OrderID    string          `json:"order_id"`
	Status     json.RawMessage `json:"status"` // of an order a string, of a problem a number
	ID         int64           `json:"id"`
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// shopperWaits is how long a shopper waits for an answer before asking again, and operatorWaits an operator.
const (
	shopperWaits  = 10 * time.Second
	operatorWaits = time.Minute
)

func (w *world) do(ctx context.Context, method, url, token, key, body string) answer {
	within := shopperWaits
	if strings.HasPrefix(url, w.ports.AdminURL()) {
		within = operatorWaits
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := w.http.Do(req)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil { // half an answer is none
		return answer{body: []byte(err.Error())}
	}
	a := answer{status: res.StatusCode, retryAfter: res.Header.Get("Retry-After"), body: b}
	_ = json.Unmarshal(b, &a) // what is not an object has none of these
	return a
}

func (w *world) admin(ctx context.Context, method, path, key, body string) answer {
	return w.do(ctx, method, w.ports.AdminURL()+"/admin/v1"+path, development.AdminToken, key, body)
}

// saleBody is what POST /admin/v1/sales takes.
func saleBody(title string, stock int64, payWithin time.Duration) string {
	now := time.Now()
	return fmt.Sprintf(`{"title":%q,"price":4900,"currency":"EUR","stock":%d,"starts_at":%q,"ends_at":%q,"per_user_limit":1,"pay_within_s":%d}`,
		title, stock, now.Add(-time.Minute).UTC().Format(wire.TimeFormat), now.Add(3*time.Hour).UTC().Format(wire.TimeFormat), int(payWithin.Seconds()))
}

// newSale makes a sale and waits until the gateway says that it is open.
func (w *world) newSale(t *testing.T, title string, stock int64, payWithin time.Duration) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sale := w.create(t, ctx, saleBody(title, stock, payWithin))
	w.open(t, sale)
	return sale
}

// create makes a sale.
func (w *world) create(t *testing.T, ctx context.Context, body string) int64 {
	t.Helper()
	a := w.admin(ctx, "POST", "/sales", "", body)
	if a.status != 201 {
		t.Fatalf("make a sale: %s", a)
	}
	return a.ID
}

// newCoupon makes a coupon campaign and waits until the gateway says that it is open.
func (w *world) newCoupon(t *testing.T, title string, total int64) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	now := time.Now()
	a := w.admin(ctx, "POST", "/coupons", "", fmt.Sprintf(`{"title":%q,"valid_from":%q,"valid_until":%q,"total":%d,"guard":"version"}`,
		title, now.Add(-time.Minute).UTC().Format(wire.TimeFormat), now.Add(3*time.Hour).UTC().Format(wire.TimeFormat), total))
	if a.status != 201 {
		t.Fatalf("make a coupon campaign: %s", a)
	}
	w.open(t, a.ID)
	return a.ID
}

func (w *world) open(t *testing.T, sale int64) {
	t.Helper()
	until(t, "the gateway says that the sale is open", func(ctx context.Context) error {
		a := w.do(ctx, "GET", fmt.Sprintf("%s/v1/sales/%d", w.publicURL(), sale), "", "", "")
		if !bytes.Contains(a.body, []byte(`"state":"open"`)) {
			return errors.New(a.String())
		}
		return nil
	})
}

// until asks again and again, and ends the test with the last answer when patience is over.
func until(t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := await(ctx, ok); err != nil {
		t.Fatalf("%s: not within %v: %v", what, patience, err)
	}
}

func await(ctx context.Context, ok func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("never asked")
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// rest waits until every equation of a sale holds, by the oracle and by the auditor, and counts.
func (w *world) rest(t *testing.T, sale, stock int64, log *oracle.Log) oracle.Tally {
	t.Helper()
	var v oracle.View
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := await(ctx, func(ctx context.Context) error {
		seen, err := w.look(ctx, sale)
		if err != nil {
			return err
		}
		v = seen
		if bad := append(v.Always(stock, 1), v.Settled(stock, log)...); len(bad) > 0 {
			return errors.New(strings.Join(bad, "\n  "))
		}
		if a := w.admin(ctx, "GET", fmt.Sprintf("/sales/%d/audit", sale), "", ""); a.status != 200 || !bytes.Contains(a.body, []byte(`"balanced":true`)) {
			return fmt.Errorf("the auditor says %s", a)
		}
		return nil
	})
	if err != nil {
		t.Errorf("sale %d: the equations do not hold within %v:\n  %v\nanswers: %s", sale, patience, err, log.Summary())
		w.testify(t, sale, v)
	}
	return v.Count(stock, log)
}

// testify logs what tells why a sale's books do not agree: its outbox, with who holds what, the orders in doubt and their buyers' other
// ones, and what the backend is doing.
func (w *world) testify(t *testing.T, sale int64, v oracle.View) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := w.books.Redis
	outbox, err := c.Do(ctx, c.B().Arbitrary("XINFO", "STREAM").Keys(fmt.Sprintf("%s{sale:%d}:outbox", w.books.Prefix, sale)).Args("FULL", "COUNT", "20").Build()).ToMessage()
	t.Logf("the outbox: %v, %v", outbox.String(), err)
	said := 0
	for id, uid := range v.Reservations {
		if o, ok := v.Orders[id]; (ok && wire.OrderStatus(o.Status).Live()) || said == 20 {
			continue
		}
		said++
		for _, o := range v.Orders {
			if o.UID == uid {
				t.Logf("redis holds %s for %s, who has %+v", id, uid, o)
			}
		}
		if said <= 3 {
			w.history(t, sale, id)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.ports.AdminURL()+"/debug/pprof/goroutine?debug=2", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+development.AdminToken)
	res, err := w.http.Do(req)
	if err != nil {
		t.Logf("the backend's goroutines: %v", err)
		return
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 100_000))
	t.Logf("the backend's goroutines: %v\n%s", err, b)
}

// history logs what Redis's append-only files say of an order and of its outbox entry: each command around a mention.
func (w *world) history(t *testing.T, sale int64, order string) {
	t.Helper()
	const most, around = 20, 500
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := w.books.Redis
	held, err := c.Do(ctx, c.B().Hget().Key(fmt.Sprintf("%s{sale:%d}:orders", w.books.Prefix, sale)).Field(order).Build()).ToString()
	t.Logf("redis holds %s: %q, %v", order, held, err)
	words := [][]byte{[]byte(order)}
	if parts := strings.Fields(held); len(parts) > 3 && parts[3] != "-" {
		words = append(words, []byte(parts[3]))
	}
	files, err := filepath.Glob(filepath.Join(w.redis.Redis.DataDir(), "appendonlydir", "*"))
	must(t, err)
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		said := 0
		for at := 0; at < len(b) && said < most; said++ {
			next := -1
			for _, word := range words {
				if i := bytes.Index(b[at:], word); i >= 0 && (next < 0 || at+i < next) {
					next = at + i
				}
			}
			if next < 0 {
				break
			}
			t.Logf("%s at %d of %d: %q", filepath.Base(file), next, len(b), b[max(0, next-around):min(len(b), next+around)])
			at = next + around
		}
	}
}

// drained ends the system and then asks the broker itself: with every consumer gone, what was not settled is ready again.
func (w *world) drained(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, w.gateway.Stop(ctx))
	must(t, w.backend.Stop(ctx))
	if w.consumer != nil {
		must(t, w.consumer.Stop(ctx))
	}
	left, err := leftIn(w.url)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("the broker still holds messages: %v", left)
	}
}
