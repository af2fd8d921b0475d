//go:build servers

package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/ports"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

const (
	devToken  = "dev-admin"
	devSecret = "dev-signing-secret-for-loopback-only-0001"
)

// running is a backend in this process.
type running struct {
	t        *testing.T
	internal string
	admin    string
	path     string // of its configuration
	log      *logBuffer
	signer   *signing.Signer
	client   *fasthttp.HostClient
}

// logBuffer keeps what the backend logs.
type logBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// freePorts finds ports that nobody listens on, nor will before the test process ends.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	free, err := ports.Free(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range free {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addrs
}

// configure writes a development configuration.
func configure(t *testing.T, redisAddr, prefix, dsn, queue string) *running {
	t.Helper()
	ports := freePorts(t, 2)
	path := writeConfig(t, fmt.Sprintf(`
development: true
listen: {internal: %q, admin: %q}
admin_token: %s
signing_keys: [{id: dev-gw, secret: %s}]
redis: {addrs: [%q], prefix: %q}
mysql: {dsn: %q}
queue: %s
drain: 10s
`, ports[0], ports[1], devToken, devSecret, redisAddr, prefix, dsn, queue))
	return &running{t: t, internal: ports[0], admin: ports[1], path: path, log: &logBuffer{},
		signer: signing.NewSigner(signing.Key{ID: "dev-gw", Secret: devSecret}), client: &fasthttp.HostClient{Addr: ports[0], DisablePathNormalizing: true}}
}

func (r *running) run(ctx context.Context, args ...string) error {
	return Run(ctx, append(args, "-config", r.path), r.log, r.log)
}

// start runs the backend until stop is called, which returns what Run returned.
func (r *running) start(args ...string) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.run(ctx, args...) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		r.client.CloseIdleConnections()
		select {
		case err := <-done:
			return err
		case <-time.After(2 * time.Minute):
			return errors.New("the backend does not end")
		}
	}
	r.t.Cleanup(func() {
		if err := stop(); err != nil {
			r.t.Errorf("the backend ended with %v", err)
		}
		if r.t.Failed() {
			r.t.Logf("it logged:\n%s", r.log)
		}
	})
	return stop
}

// startAlone is start for the only backend at that time: nothing of it may be left after stop.
func (r *running) startAlone(args ...string) (stop func() error) {
	before := goleak.IgnoreCurrent()
	end := r.start(args...)
	return func() error {
		err := end()
		http.DefaultClient.CloseIdleConnections()
		return errors.Join(err, goleak.Find(before,
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"), // the test's own client
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*TCPDialer).tcpAddrsClean"), // its dialer's, for ever
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),     // one for all servers, for ever
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))) // ends within 10 s
	}
}

// eventually waits until check is nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// operator calls the admin listener.
func (r *running) operator(method, path string, in, out any) (status int, err error) {
	body := &bytes.Buffer{}
	if in != nil {
		if err := json.NewEncoder(body).Encode(in); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequest(method, "http://"+r.admin+path, body)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+devToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err
	}
	if out != nil {
		err = json.Unmarshal(b, out)
	}
	if res.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, res.Status, b)
	}
	return res.StatusCode, err
}

func (r *running) waitReady() {
	r.t.Helper()
	eventually(r.t, "ready", func() error { _, err := r.operator("GET", "/-/ready", nil, nil); return err })
}

// call sends a signed request and decodes the answer.
func (r *running) call(uid, method, target, key, body string, out any) *fasthttp.Response {
	r.t.Helper()
	req, res := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	req.Header.SetMethod(method)
	req.SetRequestURI(target)
	req.Header.SetHost("backend")
	if body != "" {
		req.SetBodyString(body)
		req.Header.SetContentType("application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	r.signer.Sign(req, uid, time.Now())
	if err := r.client.DoTimeout(req, res, 30*time.Second); err != nil {
		r.t.Fatalf("%s %s: %v", method, target, err)
	}
	if out != nil {
		if err := json.Unmarshal(res.Body(), out); err != nil {
			r.t.Fatalf("%s %s: %d %s: %v", method, target, res.StatusCode(), res.Body(), err)
		}
	}
	return res
}

func (r *running) createSale(t *testing.T, stock int) int64 {
	t.Helper()
	return r.createSaleWith(t, stock, 600)
}

func (r *running) createSaleWith(t *testing.T, stock, payWithin int) int64 {
	t.Helper()
	var made struct {
		ID int64 `json:"id"`
	}
	now := time.Now().UTC()
	status, err := r.operator("POST", "/admin/v1/sales", map[string]any{
		"kind": "goods", "title": "Keyboard", "price": 4900, "currency": "EUR", "stock": stock, "per_user_limit": 1, "pay_within_s": payWithin,
		"starts_at": now.Add(-time.Minute).Format(wire.TimeFormat), "ends_at": now.Add(time.Hour).Format(wire.TimeFormat),
	}, &made)
	if err != nil || status != 201 || made.ID == 0 {
		t.Fatalf("create a sale: got %d, %+v, %v", status, made, err)
	}
	return made.ID
}

// queueOf is the queue section of the configuration for a driver.
func queueOf(t *testing.T, driver string) string {
	if driver == RabbitMQ {
		return fmt.Sprintf("{driver: %s, url: %q, partitions: 2}", driver, backendtest.AMQP(t))
	}
	return fmt.Sprintf("{driver: %s}", driver)
}

// From nothing to a paid order, over the real servers, with each queue driver and each moment of acceptance.
func TestAnOrderFromPressToPayment(t *testing.T) {
	for _, driver := range []string{RabbitMQ, RedisStream, RabbitMQ + " after confirm", RedisStream + " after replicas:1"} {
		t.Run(driver, func(t *testing.T) {
			driver, after, _ := strings.Cut(driver, " after ")
			queue, addr, prefix := queueOf(t, driver), os.Getenv("REDIS_ADDR"), backendtest.Redis(t).Client().Prefix()
			if after != "" {
				queue += fmt.Sprintf("\naccept: {after: %q}", after)
			}
			if after == "replicas:1" {
				addr = backendtest.RedisPair(t).Primary.Addr
			}
			r := configure(t, addr, prefix, backendtest.MySQLDSN(t), queue)
			if err := r.run(t.Context()); cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), "backend migrate") {
				t.Fatalf("without a schema: got %v, want it to say backend migrate", err)
			}
			if err := r.run(t.Context(), "migrate"); err != nil {
				t.Fatal(err)
			}
			stop := r.startAlone()
			r.waitReady()
			const stock = 3
			sale := r.createSale(t, stock)

			var feed wire.Feed
			r.call("", "GET", wire.FeedPath, "", "", &feed)
			if !feed.Full || len(feed.Sales) != 1 || feed.Sales[0].ID != sale || feed.Sales[0].State != wire.Open {
				t.Errorf("got feed %+v, want sale %d open", feed, sale)
			}
			orders := fmt.Sprintf("/v1/sales/%d/orders", sale)
			var accepted wire.Accepted
			res := r.call("alice", "POST", orders, "key-1", `{"quantity":1}`, &accepted)
			if res.StatusCode() != 202 || accepted.Status != wire.Queued || string(res.Header.Peek("Location")) != accepted.StatusURL ||
				accepted.StatusURL != wire.OrderPath(accepted.OrderID) {
				t.Fatalf("got %d %s", res.StatusCode(), res.Body())
			}
			var again wire.Accepted
			if res := r.call("alice", "POST", orders, "key-1", "", &again); res.StatusCode() != 202 || again != accepted {
				t.Errorf("the same again: got %d %s, want %+v", res.StatusCode(), res.Body(), accepted)
			}
			var refused problem.Problem
			r.call("alice", "POST", orders, "", "", &refused)
			if refused.Code != problem.AlreadyOrdered || refused.OrderID != accepted.OrderID {
				t.Errorf("without a key: got %+v, want ALREADY_ORDERED with %s", refused, accepted.OrderID)
			}
			refused = problem.Problem{}
			r.call("alice", "POST", orders, "", `{"quantity":2}`, &refused)
			if refused.Code != problem.BadRequest || refused.Field != "quantity" {
				t.Errorf("too many: got %+v, want BAD_REQUEST for quantity", refused)
			}

			var o wire.Order
			r.call("alice", "GET", accepted.StatusURL+"?wait_ms=20000", "", "", &o)
			if o.Status != wire.PendingPayment || o.PayBefore == nil || o.Amount != 4900 || o.SaleID != sale {
				t.Fatalf("got %+v, want it to await payment", o)
			}
			refused = problem.Problem{}
			r.call("bob", "GET", accepted.StatusURL, "", "", &refused)
			if refused.Code != problem.OrderNotFound {
				t.Errorf("somebody else's order: got %+v", refused)
			}
			for range 2 {
				r.call("alice", "POST", accepted.StatusURL+"/payment", "", "", &o)
				if o.Status != wire.Paid {
					t.Fatalf("got %+v, want paid", o)
				}
			}
			refused = problem.Problem{}
			r.call("alice", "POST", accepted.StatusURL+"/cancellation", "", "", &refused)
			if refused.Code != problem.OrderStateConflict {
				t.Errorf("cancel a paid order: got %+v", refused)
			}
			var list wire.OrderList
			r.call("alice", "GET", fmt.Sprintf("/v1/orders?sale_id=%d", sale), "", "", &list)
			if len(list.Orders) != 1 || list.Orders[0].OrderID != accepted.OrderID || list.Orders[0].Status != wire.Paid {
				t.Errorf("got %+v", list)
			}
			r.sellOut(t, sale, stock-1)
			r.audited(t, sale, 1, stock-1)
			if err := stop(); err != nil {
				t.Errorf("got %v", err)
			}
			for _, addr := range []string{r.internal, r.admin} {
				if _, err := net.Dial("tcp", addr); err == nil {
					t.Errorf("%s still listens", addr)
				}
			}
		})
	}
}

// sellOut has more shoppers press at once than there are units; then one who cancels makes room for one more.
func (r *running) sellOut(t *testing.T, sale int64, left int) {
	t.Helper()
	orders := fmt.Sprintf("/v1/sales/%d/orders", sale)
	var mu sync.Mutex // guards what follows
	byStatus, bought := map[int]int{}, map[string]string{}
	var wg sync.WaitGroup
	for i := range 10 * left {
		wg.Go(func() {
			uid := fmt.Sprint("shopper-", i)
			res := r.call(uid, "POST", orders, "", "", nil)
			var a struct {
				OrderID string `json:"order_id"`
			}
			if err := json.Unmarshal(res.Body(), &a); err != nil {
				t.Errorf("got %s: %v", res.Body(), err)
			}
			mu.Lock()
			defer mu.Unlock()
			byStatus[res.StatusCode()]++
			if res.StatusCode() == 202 {
				bought[uid] = a.OrderID
			}
		})
	}
	wg.Wait()
	if byStatus[202] != left || byStatus[409] != 9*left {
		t.Fatalf("got %v, want %d accepted and the others told SOLD_OUT", byStatus, left)
	}
	eventually(t, "the feed says sold out", func() error { return r.state(sale, wire.SoldOut) })
	for uid, id := range bought {
		var o wire.Order
		r.call(uid, "GET", wire.OrderPath(id)+"?wait_ms=20000", "", "", &o)
		r.call(uid, "POST", wire.OrderPath(id)+"/cancellation", "", "", &o)
		if o.Status != wire.Cancelled {
			t.Fatalf("got %+v, want cancelled", o)
		}
		break
	}
	eventually(t, "the feed says open again", func() error { return r.state(sale, wire.Open) })
	if res := r.call("late", "POST", orders, "", "", nil); res.StatusCode() != 202 {
		t.Errorf("after a cancellation: got %d %s, want 202", res.StatusCode(), res.Body())
	}
}

func (r *running) state(sale int64, want wire.SaleState) error {
	var s wire.Sale
	res := r.call("", "GET", fmt.Sprintf("/v1/sales/%d", sale), "", "", &s)
	if s.State != want {
		return fmt.Errorf("got %d %s, want %s", res.StatusCode(), res.Body(), want)
	}
	tag := string(res.Header.Peek("ETag"))
	if !strings.HasPrefix(tag, `W/"`) || string(res.Header.Peek("Cache-Control")) != "public, max-age=1" {
		return fmt.Errorf("got ETag %s, Cache-Control %s", tag, res.Header.Peek("Cache-Control"))
	}
	return nil
}

// audited waits until the audit balances with these numbers.
func (r *running) audited(t *testing.T, sale int64, sold, locked int) {
	t.Helper()
	eventually(t, "audit", func() error {
		var a struct {
			Balanced                               bool
			Total, Available, Queued, Locked, Sold int
			Findings                               []any
		}
		if _, err := r.operator("GET", fmt.Sprintf("/admin/v1/sales/%d/audit", sale), nil, &a); err != nil {
			return err
		}
		if !a.Balanced || a.Sold != sold || a.Locked != locked || a.Available != 0 || a.Queued != 0 || len(a.Findings) > 0 {
			return fmt.Errorf("got %+v, want %d sold, %d locked", a, sold, locked)
		}
		return nil
	})
}

// The timer takes back what is not paid, once, and what a closed sale has left.
func TestTheTimerGivesUnitsBack(t *testing.T) {
	r := configure(t, os.Getenv("REDIS_ADDR"), backendtest.Redis(t).Client().Prefix(), backendtest.MySQLDSN(t), queueOf(t, RedisStream))
	if err := r.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.waitReady()
	sale := r.createSaleWith(t, 1, 1)
	orders := fmt.Sprintf("/v1/sales/%d/orders", sale)
	var accepted wire.Accepted
	r.call("alice", "POST", orders, "", "", &accepted)
	eventually(t, "the order expires", func() error {
		var o wire.Order
		if r.call("alice", "GET", accepted.StatusURL, "", "", &o); o.Status != wire.Expired {
			return fmt.Errorf("got %+v", o)
		}
		return nil
	})
	var refused problem.Problem
	if r.call("alice", "POST", accepted.StatusURL+"/payment", "", "", &refused); refused.Code != problem.OrderStateConflict {
		t.Errorf("pay an expired order: got %+v", refused)
	}
	eventually(t, "the unit is back", func() error {
		if res := r.call("alice", "POST", orders, "", "", nil); res.StatusCode() != 202 {
			return fmt.Errorf("got %d %s", res.StatusCode(), res.Body())
		}
		return nil
	})
	if _, err := r.operator("POST", fmt.Sprintf("/admin/v1/sales/%d/close", sale), nil, nil); err != nil {
		t.Fatal(err)
	}
	if r.call("bob", "POST", orders, "", "", &refused); refused.Code != problem.SaleEnded {
		t.Errorf("a closed sale: got %+v", refused)
	}
	eventually(t, "the unsold unit is taken out of the sale", func() error {
		var a struct {
			Balanced bool
			Total    int
		}
		if _, err := r.operator("GET", fmt.Sprintf("/admin/v1/sales/%d/audit", sale), nil, &a); err != nil || !a.Balanced || a.Total != 0 {
			return fmt.Errorf("got %+v, %v", a, err)
		}
		return nil
	})
}

// Each role runs in a process of its own, and together they are the system.
func TestRolesApart(t *testing.T) {
	r := configure(t, os.Getenv("REDIS_ADDR"), backendtest.Redis(t).Client().Prefix(), backendtest.MySQLDSN(t), queueOf(t, RabbitMQ))
	if err := r.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	r.start("-roles", "api")
	r.waitReady()
	sale := r.createSale(t, 5)
	var accepted wire.Accepted
	r.call("alice", "POST", fmt.Sprintf("/v1/sales/%d/orders", sale), "", "", &accepted)
	var o wire.Order
	r.call("alice", "GET", accepted.StatusURL, "", "", &o)
	if o.Status != wire.Queued {
		t.Fatalf("with no consumer: got %+v, want queued", o)
	}
	text, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"relay", "consumer", "timer"} {
		other := *r
		ports := freePorts(t, 2)
		other.internal, other.admin, other.log = ports[0], ports[1], &logBuffer{}
		other.path = writeConfig(t, strings.NewReplacer(r.internal, other.internal, r.admin, other.admin).Replace(string(text)))
		other.start("-roles", role)
		other.waitReady()
		if _, err := net.Dial("tcp", other.internal); err == nil {
			t.Errorf("role %s listens for gateways", role)
		}
	}
	r.call("alice", "GET", accepted.StatusURL+"?wait_ms=20000", "", "", &o)
	if o.Status != wire.PendingPayment {
		t.Errorf("got %+v, want it to await payment", o)
	}
}

// A server that is not there is waited for, and /-/ready says so.
func TestUnreachableServersAreWaitedFor(t *testing.T) {
	nobody := freePorts(t, 1)[0]
	for missing, addr := range map[string]string{"redis": nobody, "mysql": os.Getenv("REDIS_ADDR")} {
		t.Run(missing, func(t *testing.T) {
			r := configure(t, addr, "x:", "u:p@tcp("+nobody+")/floodgate", "{driver: redis-stream}")
			stop := r.startAlone()
			eventually(t, "ready says what is missing", func() error {
				var ready struct{ Reasons []string }
				status, err := r.operator("GET", "/-/ready", nil, &ready)
				if status != 503 || len(ready.Reasons) != 1 || !strings.Contains(ready.Reasons[0], "waiting for "+missing) {
					return fmt.Errorf("got %d, %v, %v", status, ready, err)
				}
				return nil
			})
			if status, err := r.operator("GET", "/-/healthy", nil, nil); status != 200 {
				t.Errorf("healthy: got %d, %v", status, err)
			}
			if status, _ := r.operator("GET", "/admin/v1/sales", nil, nil); status != 503 {
				t.Errorf("admin: got %d, want 503", status)
			}
			var p problem.Problem
			if r.call("", "GET", "/v1/sales", "", "", &p); p.Code != problem.Overloaded {
				t.Errorf("got %+v, want OVERLOADED", p)
			}
			if err := stop(); err != nil {
				t.Errorf("got %v, want a clean end", err)
			}
		})
	}
}

// A shutdown answers who waits, and finishes what is in flight, before it ends.
func TestShutdownAnswersWhoWaits(t *testing.T) {
	r := configure(t, os.Getenv("REDIS_ADDR"), backendtest.Redis(t).Client().Prefix(), backendtest.MySQLDSN(t), queueOf(t, RedisStream))
	if err := r.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	stop := r.startAlone("-roles", "api")
	r.waitReady()
	sale := r.createSale(t, 5)
	var feed wire.Feed
	r.call("", "GET", wire.FeedPath, "", "", &feed)
	var accepted wire.Accepted
	r.call("alice", "POST", fmt.Sprintf("/v1/sales/%d/orders", sale), "", "", &accepted)
	type answer struct {
		status int
		body   string
	}
	answers := make(chan answer, 2)
	wait := func(uid, target string) {
		res := r.call(uid, "GET", target, "", "", nil)
		answers <- answer{res.StatusCode(), string(res.Body())}
	}
	go wait("", fmt.Sprintf("%s?instance=%s&since=%d&wait_ms=20000", wire.FeedPath, feed.Instance, 1_000_000))
	go wait("alice", accepted.StatusURL+"?wait_ms=20000")
	eventually(t, "one waits", func() error {
		res, err := http.Get("http://" + r.admin + "/metrics")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if !strings.Contains(string(b), "backend_waiting 1") {
			return fmt.Errorf("not yet: %v", err)
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Errorf("got %v", err)
	}
	for range 2 {
		if a := <-answers; a.status != 200 {
			t.Errorf("got %d %s, want an answer", a.status, a.body)
		}
	}
}

func TestAPortInUseIsNamed(t *testing.T) {
	r := configure(t, os.Getenv("REDIS_ADDR"), "x:", backendtest.MySQLDSN(t), "{driver: redis-stream}")
	for field, addr := range map[string]string{"listen.admin": r.admin, "listen.internal": r.internal} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		err = r.run(t.Context())
		if cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), field+": "+addr+" is in use") {
			t.Errorf("got %v, want it to name %s", err, field)
		}
		ln.Close()
	}
}

// The operators of a running backend follow its file, and the listener knows them at once; SIGHUP is taken and ends nothing.
func TestOperatorsOfARunningBackend(t *testing.T) {
	r := configure(t, os.Getenv("REDIS_ADDR"), backendtest.Redis(t).Client().Prefix(), backendtest.MySQLDSN(t), queueOf(t, RedisStream))
	if err := r.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	r.waitReady()
	token, hash := operator.Mint()
	status := func() int {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+r.admin+"/admin/v1/session", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	if got := status(); got != 401 {
		t.Errorf("before: got %d", got)
	}
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(r.path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Appendf(bytes.Clone(before), "operators: [{name: anna, role: viewer, token_sha256: %q}]\n", hash))
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "anna is known", func() error {
		if !strings.Contains(r.log.String(), "anna (viewer) is new") {
			return errors.New("the log does not say so")
		}
		return nil
	})
	if got := status(); got != 200 {
		t.Errorf("anna: got %d", got)
	}
	write(before)
	eventually(t, "anna has left", func() error {
		if !strings.Contains(r.log.String(), "anna (viewer) is gone") {
			return errors.New("the log does not say so")
		}
		return nil
	})
	if got := status(); got != 401 {
		t.Errorf("after: got %d", got)
	}
}
