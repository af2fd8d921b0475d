//go:build servers

package faults

import (
	"bytes"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/rueidis"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// patience bounds every wait for the system to come to rest. It is far more than it takes: a slow machine is no fault.
const patience = time.Minute

// world is one running system, with servers of its own: they are killed, too.
type world struct {
	dir, bin string
	servers  *stack.Servers
	ports    stack.Ports
	backend  *stack.Process
	gateway  *stack.Process
	books    oracle.Books
	http     *http.Client
	uids     atomic.Int64 // that were handed out
}

// newWorld builds the binaries with these flags and starts everything.
func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{dir: dir, bin: filepath.Join(dir, "bin"), http: &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 10 * time.Second}}}
	t.Cleanup(w.http.CloseIdleConnections)
	build(t, w.bin, flags...)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	w.servers, err = stack.Open(filepath.Join(dir, "servers"), nil)
	must(t, err)
	t.Cleanup(func() {
		if err := w.servers.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	must(t, w.servers.Start(ctx))
	w.ports, err = stack.FreeSystemPorts()
	must(t, err)
	w.configs(t, 1)
	c, err := mysql.ParseDSN(w.servers.MySQLDSN())
	must(t, err)
	c.ParseTime, c.Logger = true, &mysql.NopLogger{} // it is killed on purpose
	connector, err := mysql.NewConnector(c)
	must(t, err)
	w.books.DB, w.books.Prefix = sql.OpenDB(connector), "faults:"
	t.Cleanup(func() { w.books.DB.Close() })
	w.books.Redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{w.servers.RedisAddr()}, DisableCache: true, ForceSingleClient: true})
	must(t, err)
	t.Cleanup(w.books.Redis.Close)
	if out, err := w.command("backend", "migrate", "-config", w.file("backend.yaml")).CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	w.backend, w.gateway = w.process("backend", ""), w.process("gateway", "")
	t.Cleanup(func() {
		for _, p := range []*stack.Process{w.gateway, w.backend} {
			if err := p.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			w.blame(t, p)
		}
	})
	must(t, w.backend.Start(ctx))
	must(t, w.gateway.Start(ctx))
	return w
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
	if t.Failed() {
		t.Logf("the end of %s's log:\n%s", p.Name(), b[max(0, len(b)-8000):])
	}
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

func (w *world) command(binary string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(w.bin, binary), args...)
}

// configs writes both configurations; generation makes the gateway's differ.
func (w *world) configs(t *testing.T, generation int) {
	t.Helper()
	must(t, os.WriteFile(w.file("backend.yaml"), fmt.Appendf(nil, `development: true
listen: {internal: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
admin_token: %s
signing_keys: [{id: %s, secret: %s}]
redis: {addrs: ["%s"], prefix: "faults:"}
mysql: {dsn: "%s"}
queue: {driver: rabbitmq, url: "%s"}
orders: {batch: 20}
outbox: {claim_idle: 1s}
carts: {abandoned_after: 1s}
log: {level: info}
`, w.ports.Internal, w.ports.Admin, development.AdminToken, development.SigningKeyID, development.SigningSecret, w.servers.RedisAddr(), w.servers.MySQLDSN(), w.servers.AMQPURL()), 0o600))
	must(t, os.WriteFile(w.file("gateway.yaml"), fmt.Appendf(nil, `development: true
listen: {public: "127.0.0.1:%d", ops: "127.0.0.1:%d"}
backends: ["%s"]
signing_key: {id: %s, secret: %s}
identity:
  keys: [{kid: %s, alg: HS256, secret: %s, sign: true}]
limits:
  order: {rate: 20, burst: 20, max_keys: %d}
  ip_exempt: ["127.0.0.0/8", "::1/128"]
log: {level: info}
`, w.ports.Public, w.ports.Ops, w.ports.InternalURL(), development.SigningKeyID, development.SigningSecret, development.LoginKeyID, development.LoginSecret, 1000000+generation), 0o600))
}

// process is one of the two binaries, which dies at the failpoint ("" for none).
func (w *world) process(name, failpoint string) *stack.Process {
	p := stack.Program{Name: name, Path: filepath.Join(w.bin, name), Args: []string{"-config", w.file(name + ".yaml")}, Ready: w.ports.AdminURL() + "/-/ready"}
	if name == "gateway" {
		p.Ready = w.ports.OpsURL() + "/-/ready"
	}
	if failpoint != "" {
		p.Env = []string{"FLOODGATE_FAILPOINT=" + failpoint}
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

func (w *world) do(ctx context.Context, method, url, token, key, body string) answer {
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
	a := w.admin(ctx, "POST", "/sales", "", saleBody(title, stock, payWithin))
	if a.status != 201 {
		t.Fatalf("make a sale: %s", a)
	}
	w.open(t, a.ID)
	return a.ID
}

func (w *world) open(t *testing.T, sale int64) {
	t.Helper()
	until(t, "the gateway says that the sale is open", func(ctx context.Context) error {
		a := w.do(ctx, "GET", fmt.Sprintf("%s/v1/sales/%d", w.ports.PublicURL(), sale), "", "", "")
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
	err := await(ctx, func(ctx context.Context) (err error) {
		if v, err = w.books.Look(ctx, sale); err != nil {
			return err
		}
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
	}
	return v.Count(stock, log)
}

// drained ends the system and then asks the broker itself: with every consumer gone, what was not settled is ready again.
func (w *world) drained(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, w.gateway.Stop(ctx))
	must(t, w.backend.Stop(ctx))
	u, err := url.Parse(w.servers.AMQPURL())
	must(t, err)
	left, err := leftIn(u.String())
	must(t, err)
	if len(left) > 0 {
		t.Errorf("the broker still holds messages: %v", left)
	}
}
