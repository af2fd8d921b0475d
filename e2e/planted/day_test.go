//go:build servers

package planted

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// patience bounds every wait. It is far more than it takes: a slow machine is no fault.
const patience = time.Minute

// day is a real system, with a corner of its own on the servers that the environment names, and what happens to it.
type day struct {
	t       *testing.T
	tree    tree   // what the system was built from
	judge   string // the binaries without a bug: the auditor's
	kind    string // rabbitMQ, redisStream or confirm
	dir     string
	backend *stack.Process
	gateway *stack.Process
	ports   stack.Ports
	redis   *link // between the backend and Redis
	amqp    *link // and RabbitMQ; nil with redis-stream
	schema  string
	db      *sql.DB
	books   oracle.Books
	http    *http.Client
	tokens  []string // of uid 1, 2, ...
	sales   []*sale

	mu      sync.Mutex // guards answers
	answers *os.File   // what shoppers were told, as the auditor reads it
}

// sale is one of the day's, and what its shoppers were told.
type sale struct {
	id    int64
	stock int64
	log   *oracle.Log
}

// people is how many shoppers there are. The last one never comes.
const people = 20

func env(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: this test needs the real servers: run make test", name)
	}
	return v
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newDay starts a system of the binaries in bin, of one of the three kinds.
func newDay(t *testing.T, r tree, bin, judge, kind string) *day {
	t.Helper()
	random := make([]byte, 6)
	rand.Read(random)
	name := "planted_" + hex.EncodeToString(random)
	d := &day{t: t, tree: r, judge: judge, kind: kind, dir: t.TempDir(), schema: name, http: &http.Client{Timeout: 30 * time.Second}}
	t.Cleanup(d.http.CloseIdleConnections)
	addr := env(t, "REDIS_ADDR")
	d.redis = newLink(t, addr)
	d.books.Prefix = name + ":"
	var err error
	d.books.Redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
	must(t, err)
	t.Cleanup(d.forget)
	dsn := d.makeSchema()
	queue := "queue: {driver: redis-stream}"
	if kind != redisStream {
		queue = fmt.Sprintf(`queue: {driver: rabbitmq, url: "%s"}`, d.makeVhost())
	}
	if kind == confirm {
		queue += "\naccept: {after: confirm, confirm_within: 500ms}"
	}
	d.ports, err = stack.FreeSystemPorts()
	must(t, err)
	d.configs(dsn, queue, addr)
	d.answers, err = os.Create(filepath.Join(d.dir, "answers.jsonl"))
	must(t, err)
	t.Cleanup(func() { d.answers.Close() })

	d.run(bin, "backend", "migrate", "-config", d.file("backend.yaml"))
	d.tokens = strings.Fields(d.run(judge, "gateway", "token", "-config", d.file("gateway.yaml"), "-uid", fmt.Sprintf("1-%d", people)))
	d.backend = d.process(bin, "backend", d.ports.AdminURL())
	d.gateway = d.process(bin, "gateway", d.ports.OpsURL())
	t.Cleanup(func() {
		for _, p := range []*stack.Process{d.gateway, d.backend} {
			if err := p.Kill(context.Background()); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(p.LogFile()); t.Failed() {
				t.Logf("the end of %s's log (%v):\n%s", p.Name(), err, b[max(0, len(b)-8000):])
			}
		}
	})
	must(t, d.backend.Start(t.Context()))
	must(t, d.gateway.Start(t.Context()))
	return d
}

func (d *day) file(name string) string { return filepath.Join(d.dir, name) }

func (d *day) run(bin, binary string, args ...string) string {
	d.t.Helper()
	out, err := exec.CommandContext(d.t.Context(), filepath.Join(bin, binary), args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s %s: %v\n%s", binary, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (d *day) process(bin, name, admin string) *stack.Process {
	return stack.NewProcess(d.dir, stack.Program{
		Name: name, Path: filepath.Join(bin, name), Args: []string{"-config", d.file(name + ".yaml")}, Ready: admin + "/-/ready",
	})
}

// configs writes the system's two and the auditor's, who reaches Redis without the link.
func (d *day) configs(dsn, queue, redisAddr string) {
	d.t.Helper()
	backend := func(file, addr string) {
		must(d.t, os.WriteFile(d.file(file), fmt.Appendf(nil, `development: true
listen: {internal: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
admin_token: %s
signing_keys: [{id: %s, secret: %s}]
redis: {addrs: ["%s"], prefix: "%s"}
mysql: {dsn: "%s"}
%s
orders: {queued_bound: 5s}
outbox: {claim_idle: 1s}
log: {level: info}
`, d.ports.Internal, d.ports.Admin, development.AdminToken, development.SigningKeyID, development.SigningSecret, addr, d.books.Prefix, dsn, queue), 0o600))
	}
	backend("backend.yaml", d.redis.addr)
	backend("auditor.yaml", redisAddr)
	must(d.t, os.WriteFile(d.file("gateway.yaml"), fmt.Appendf(nil, `development: true
listen: {public: "127.0.0.1:%d", ops: "127.0.0.1:%d"}
backends: ["%s"]
signing_key: {id: %s, secret: %s}
identity:
  keys: [{kid: %s, alg: HS256, secret: %s, sign: true}]
limits:
  order: {rate: 1000, burst: 1000, max_keys: 1000}
  read: {rate: 1000, burst: 1000, max_keys: 1000}
  ip_exempt: ["127.0.0.0/8", "::1/128"]
log: {level: info}
`, d.ports.Public, d.ports.Ops, d.ports.InternalURL(), development.SigningKeyID, development.SigningSecret, development.LoginKeyID, development.LoginSecret), 0o600))
}

func (d *day) makeSchema() (dsn string) {
	d.t.Helper()
	c, err := mysql.ParseDSN(env(d.t, "MYSQL_DSN"))
	must(d.t, err)
	c.DBName = d.schema
	dsn = c.FormatDSN()
	c.DBName, c.ParseTime = "", true
	d.db, err = sql.Open("mysql", c.FormatDSN())
	must(d.t, err)
	_, err = d.db.ExecContext(d.t.Context(), "CREATE DATABASE "+d.schema+" CHARACTER SET utf8mb4")
	must(d.t, err)
	c.DBName = d.schema
	d.books.DB, err = sql.Open("mysql", c.FormatDSN())
	must(d.t, err)
	d.t.Cleanup(func() {
		_, err := d.db.Exec("DROP DATABASE " + d.schema)
		if err = errors.Join(err, d.books.DB.Close(), d.db.Close()); err != nil {
			d.t.Error(err)
		}
	})
	return dsn
}

func (d *day) makeVhost() string {
	d.t.Helper()
	u, err := url.Parse(env(d.t, "AMQP_URL"))
	must(d.t, err)
	u.Path = "/" + d.schema
	d.amqp = newLink(d.t, u.Host)
	manage := func(method, path, body string) error {
		req, err := http.NewRequest(method, strings.TrimSuffix(env(d.t, "AMQP_MANAGEMENT_URL"), "/")+"/api"+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := d.http.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode/100 != 2 {
			return fmt.Errorf("%s %s: %s", method, path, res.Status)
		}
		return nil
	}
	must(d.t, manage("PUT", "/vhosts/"+d.schema, "{}"))
	d.t.Cleanup(func() {
		if err := manage("DELETE", "/vhosts/"+d.schema, ""); err != nil {
			d.t.Error(err)
		}
	})
	must(d.t, manage("PUT", "/permissions/"+d.schema+"/"+url.PathEscape(u.User.Username()), `{"configure":".*","write":".*","read":".*"}`))
	u.Host = d.amqp.addr
	return u.String()
}

// forget takes the system's keys out of Redis.
func (d *day) forget() {
	defer d.books.Redis.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range d.sales {
		if err := d.empty(ctx, s); err != nil {
			d.t.Error(err)
		}
	}
}

// empty takes a sale out of Redis, as a Redis that lost its disk would have.
func (d *day) empty(ctx context.Context, s *sale) error {
	var keys []string
	for _, name := range []string{"state", "orders", "buyers", "idem", "outbox", "applied"} {
		keys = append(keys, fmt.Sprintf("%s{sale:%d}:%s", d.books.Prefix, s.id, name))
	}
	return d.books.Redis.Do(ctx, d.books.Redis.B().Del().Key(keys...).Build()).Error()
}

// answer is what came back; status 0: nothing did.
type answer struct {
	status  int
	body    string
	Code    string          `json:"code"`
	OrderID string          `json:"order_id"`
	State   json.RawMessage `json:"state"`
	Status  json.RawMessage `json:"status"` // of an order a string, of a problem a number
	ID      int64           `json:"id"`
}

// final: asking again would say the same.
func (a answer) final() bool { return !oracle.AskAgain(a.status) }

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

func (d *day) do(method, url, token, body string, headers ...string) answer {
	req, err := http.NewRequestWithContext(d.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		return answer{body: err.Error()}
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := d.http.Do(req)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil { // half an answer is none
		return answer{body: err.Error()}
	}
	a := answer{status: res.StatusCode, body: string(b)}
	_ = json.Unmarshal(b, &a) // what is not an object has none of these
	return a
}

func (d *day) admin(path, body string, headers ...string) answer {
	return d.do("POST", d.ports.AdminURL()+"/admin/v1"+path, development.AdminToken, body, headers...)
}

// until asks again and again; the day ends with the last answer when patience is over.
func (d *day) until(what string, ok func() (bool, string)) {
	d.t.Helper()
	must(d.t, await(what, ok))
}

func await(what string, ok func() (bool, string)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		done, last := ok()
		if done {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %v: %s", what, patience, last)
		}
	}
}

// newSale makes a sale and waits until shoppers see it open.
func (d *day) newSale(stock int64, payWithin time.Duration) *sale {
	d.t.Helper()
	now := time.Now().UTC()
	a := d.admin("/sales", fmt.Sprintf(`{"title":"sale","price":100,"currency":"EUR","stock":%d,"starts_at":%q,"ends_at":%q,"per_user_limit":1,"pay_within_s":%d}`,
		stock, now.Add(-time.Minute).Format(wire.TimeFormat), now.Add(3*time.Hour).Format(wire.TimeFormat), int(payWithin.Seconds())))
	if a.status != 201 {
		d.t.Fatalf("make a sale: %s", a)
	}
	s := &sale{a.ID, stock, oracle.NewLog()}
	d.sales = append(d.sales, s)
	d.until("the sale is open", func() (bool, string) {
		a := d.do("GET", fmt.Sprintf("%s/v1/sales/%d", d.ports.PublicURL(), s.id), "", "")
		return string(a.State) == `"open"`, a.String()
	})
	return s
}

// press asks for a unit, again and again with the same key, until something final is said.
func (d *day) press(s *sale, uid int) answer {
	d.t.Helper()
	a, err := d.insist(s, uid)
	must(d.t, err)
	return a
}

func (d *day) insist(s *sale, uid int, headers ...string) (a answer, err error) {
	err = await(fmt.Sprintf("uid %d is told something final", uid), func() (bool, string) {
		var failed error
		a, failed = d.once(s, uid, headers...)
		return failed == nil && a.final(), fmt.Sprintf("%s, %v", a, failed)
	})
	return a, err
}

// once asks once, and logs the answer, for the oracle and for the auditor.
func (d *day) once(s *sale, who int, headers ...string) (answer, error) {
	uid, key := strconv.Itoa(who), fmt.Sprintf("key-of-%d", who)
	a := d.do("POST", fmt.Sprintf("%s/v1/sales/%d/orders", d.ports.PublicURL(), s.id), d.tokens[who-1], `{"quantity":1}`,
		append(slices.Clone(headers), "Idempotency-Key", key)...)
	s.log.Add(oracle.Answer{UID: uid, Key: key, Status: a.status, Code: a.Code, OrderID: a.OrderID})
	line, err := json.Marshal(map[string]any{"uid": uid, "sale": s.id, "key": key, "status": a.status, "code": a.Code, "order_id": a.OrderID})
	if err != nil {
		return a, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err = d.answers.Write(append(line, '\n'))
	return a, err
}

// ordered presses and waits until the order is settled.
func (d *day) ordered(s *sale, uid int) (order string) {
	d.t.Helper()
	a := d.press(s, uid)
	if a.status != 202 {
		d.t.Fatalf("uid %d: got %s, want an order", uid, a)
	}
	d.status(uid, a.OrderID, wire.PendingPayment)
	return a.OrderID
}

// status waits until an order has a status.
func (d *day) status(uid int, order string, want wire.OrderStatus) {
	d.t.Helper()
	d.until("order "+order+" is "+string(want), func() (bool, string) {
		a := d.do("GET", d.ports.PublicURL()+wire.OrderPath(order), d.tokens[uid-1], "")
		return string(a.Status) == strconv.Quote(string(want)), a.String()
	})
}

// lose lets a script be carried out once more, and its answer be lost. The script is the one of the tree under test;
// sale_reserve.lua is called under the name of the present life of Redis.
func (d *day) lose(script string) {
	d.t.Helper()
	source, err := os.ReadFile(filepath.Join(d.tree.dir, "lua", script))
	must(d.t, err)
	if script == "sale_reserve.lua" {
		var life string
		must(d.t, d.books.DB.QueryRowContext(d.t.Context(), `SELECT name FROM redis_life WHERE only_row = 1`).Scan(&life))
		source = fmt.Appendf(source, "-- incarnation %s\n", life)
	}
	must(d.t, d.books.Redis.Do(d.t.Context(), d.books.Redis.B().ScriptLoad().Script(string(source)).Build()).Error()) // else NOSCRIPT would be lost
	sum := sha1.Sum(source)
	d.redis.loseAnswerTo(hex.EncodeToString(sum[:]))
}

// intentsDone waits until nothing decided in MySQL is left to be done in Redis.
func (d *day) intentsDone() {
	d.t.Helper()
	d.until("no intent is open", func() (bool, string) {
		var n int
		err := d.books.DB.QueryRowContext(d.t.Context(), "SELECT COUNT(*) FROM intents WHERE done_at IS NULL").Scan(&n)
		return err == nil && n == 0, fmt.Sprintf("%d, %v", n, err)
	})
}

// hold locks something that the consumer needs, until the returned function is called.
func (d *day) hold(query string, args ...any) (release func()) {
	d.t.Helper()
	tx, err := d.books.DB.BeginTx(d.t.Context(), nil)
	must(d.t, err)
	d.t.Cleanup(func() { _ = tx.Rollback() }) // where the day ends early
	_, err = tx.ExecContext(d.t.Context(), query, args...)
	must(d.t, err)
	return func() { must(d.t, tx.Rollback()) }
}

// waiting waits until a statement of the system's does, and returns its connection.
func (d *day) waiting(like string) (id int64) {
	d.t.Helper()
	d.until("a statement like "+like+" waits", func() (bool, string) {
		err := d.db.QueryRowContext(d.t.Context(), "SELECT id FROM information_schema.processlist WHERE db = ? AND info LIKE ?", d.schema, like).Scan(&id)
		return err == nil, fmt.Sprint(err)
	})
	return id
}

// live is the day. What happens is the same for every bug.
func (d *day) live() {
	s := d.newSale(40, 10*time.Minute)
	d.ordered(s, 1)

	// The answer to a press is lost; the shopper asks again.
	d.lose("sale_reserve.lua")
	d.press(s, 2)

	// Three press many times, and claim to be somebody else.
	var g errgroup.Group
	for uid := 3; uid <= 5; uid++ {
		for range 3 {
			g.Go(func() error {
				_, err := d.insist(s, uid, "X-User-Id", strconv.Itoa(people))
				return err
			})
		}
	}
	must(d.t, g.Wait())

	// A unit is given back, and the answer is lost: the timer tries again.
	order := d.ordered(s, 6)
	d.lose("sale_release.lua")
	d.until("it is cancelled", func() (bool, string) {
		a := d.do("POST", d.ports.PublicURL()+wire.OrderPath(order)+"/cancellation", d.tokens[6-1], "")
		return a.status == 200, a.String()
	})
	d.intentsDone()

	// Units are added, and the answer is lost.
	d.lose("sale_adjust.lua")
	s.stock += 3
	d.until("it is restocked", func() (bool, string) {
		a := d.admin(fmt.Sprintf("/sales/%d/restock", s.id), `{"quantity":3}`, "Idempotency-Key", "restock")
		return a.status == 200, a.String()
	})
	d.intentsDone()

	// The backend is killed while MySQL takes its time with a batch.
	release := d.hold("UPDATE sale_stock SET total = total WHERE sale_id = ?", s.id)
	d.press(s, 7)
	d.waiting("UPDATE sale_stock SET available%")
	must(d.t, d.backend.Kill(d.t.Context()))
	release()
	must(d.t, d.backend.Start(d.t.Context()))

	// MySQL ends the connection that a batch is on.
	release = d.hold("UPDATE sale_stock SET total = total WHERE sale_id = ?", s.id)
	d.press(s, 8)
	id := d.waiting("UPDATE sale_stock SET available%")
	_, err := d.db.ExecContext(d.t.Context(), "KILL CONNECTION "+strconv.FormatInt(id, 10))
	must(d.t, err)
	release()

	// An order expires, and its buyer repeats the request.
	s = d.newSale(2, time.Second)
	d.status(9, d.press(s, 9).OrderID, wire.Expired)
	d.press(s, 9)

	switch d.kind {
	case redisStream: // with a broker the gate does not open before the consumer has settled what it holds
		// The sale is rebuilt while an order is on its way; two more come for the last unit.
		s = d.newSale(2, 10*time.Minute)
		release = d.hold("INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES (?, '10', 1, 'held')", s.id)
		d.press(s, 10)
		d.waiting("INSERT INTO order_slots%")
		if a := d.admin(fmt.Sprintf("/sales/%d/rebuild", s.id), ""); a.status != 200 {
			d.t.Fatalf("rebuild: %s", a)
		}
		d.press(s, 11)
		d.press(s, 12)
		release()
	case confirm:
		// What is published gets lost on its way to the broker, and then Redis loses the sale.
		s = d.newSale(5, 10*time.Minute)
		d.ordered(s, 10)
		d.amqp.loseAll()
		a, err := d.once(s, 11)
		must(d.t, err)
		must(d.t, d.empty(d.t.Context(), s))
		d.amqp.cut()
		if !a.final() { // then this shopper knows that nothing is promised yet
			d.press(s, 11)
		}
		d.press(s, 12)
	}
}

// audit asks the auditor, who reads Redis, MySQL and the broker, and what shoppers were told.
func (d *day) audit() (balanced bool, said string) {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), filepath.Join(d.judge, "backend"), "audit", "-config", d.file("auditor.yaml"), "--all", "--answers", d.answers.Name())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return err == nil, string(out)
}

// atRest asks the stores themselves whether every equation holds and nothing is under way.
func (d *day) atRest() (bad []string) {
	d.t.Helper()
	for _, s := range d.sales {
		v, err := d.books.Look(d.t.Context(), s.id)
		must(d.t, err)
		for _, what := range append(v.Always(s.stock, 1), v.Settled(s.stock, s.log)...) {
			bad = append(bad, fmt.Sprintf("sale %d: %s", s.id, what))
		}
	}
	return bad
}

// untilBalanced ends a day without a bug: the auditor and the oracle come to agree that all is well.
func (d *day) untilBalanced() {
	d.t.Helper()
	d.until("all is well", func() (bool, string) {
		balanced, said := d.audit()
		bad := d.atRest()
		return balanced && len(bad) == 0, said + strings.Join(bad, "\n")
	})
}

// untilFound ends a day with a bug: the auditor finds it, and it returns the finding. An auditor who calls the books balanced
// when nothing is under way any more has missed it.
func (d *day) untilFound(words string) (finding string) {
	d.t.Helper()
	d.until("the auditor finds: "+words, func() (bool, string) {
		balanced, said := d.audit()
		for _, part := range strings.Split(said, "\n\n") {
			if strings.Contains(part, words) {
				finding = brief(part)
				return true, ""
			}
		}
		if balanced && len(d.atRest()) == 0 {
			d.t.Fatalf("NOT CAUGHT: the auditor calls the books balanced, want: %s", words)
		}
		return false, said
	})
	return finding
}

// brief is a finding in one line: which equation, and what breaks it.
func brief(finding string) string {
	equation, rest, _ := strings.Cut(finding, "\n")
	for line := range strings.Lines(rest) {
		if what, ok := strings.CutPrefix(strings.TrimSpace(line), "what "); ok {
			return equation + ": " + strings.TrimSpace(what)
		}
	}
	return equation
}
