//go:build servers

package planted

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// patience bounds every wait. It is far more than it takes: a slow machine is no fault.
const patience = time.Minute

// day is a real system, with a corner of its own on the servers that the environment names, and what happens to it.
type day struct {
	*world.World
	t      *testing.T
	tree   tree   // what the system was built from
	judge  string // the binaries without a bug: the auditor's
	kind   string // rabbitMQ, redisStream or confirm
	redis  *link  // between the backend and Redis
	amqp   *link  // and RabbitMQ; nil with redis-stream
	tokens []string
	sales  []*sale

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

// newDay starts a system of the binaries in bin, of one of the three kinds.
func newDay(t *testing.T, r tree, bin, judge, kind string) *day {
	t.Helper()
	stores := world.StoresOfEnv(t)
	d := &day{t: t, tree: r, judge: judge, kind: kind, redis: newLink(t, stores.Redis)}
	through, backend := stores, "orders: {queued_bound: 5s}\noutbox: {claim_idle: 1s}\n"
	if kind == redisStream {
		stores.AMQP, through.AMQP = "", ""
	} else {
		u, err := url.Parse(stores.AMQP)
		world.Must(t, err)
		d.amqp = newLink(t, u.Host)
		u.Host = d.amqp.addr
		through.AMQP = u.String()
	}
	through.Redis = d.redis.addr
	if kind == confirm {
		backend += "accept: {after: confirm, confirm_within: 500ms}\n"
	}
	random := make([]byte, 6)
	rand.Read(random)
	name := "planted_" + hex.EncodeToString(random)
	t.Cleanup(func() { // also where New fails
		if err := stores.Remove(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	d.World = world.New(t, t.Context(), world.Options{Name: name, Dir: t.TempDir(), Bin: bin, Stores: stores, Through: through, Backend: backend,
		Limits: `{order: {rate: 1000, burst: 1000, max_keys: 1000}, read: {rate: 1000, burst: 1000, max_keys: 1000}, ip_exempt: ["127.0.0.0/8", "::1/128"]}`})
	t.Cleanup(d.forget)
	through.Redis = stores.Redis
	world.Must(t, d.WriteBackend("auditor", through)) // who reaches Redis without the link
	var err error
	d.answers, err = os.Create(d.File("answers.jsonl"))
	world.Must(t, err)
	t.Cleanup(func() { d.answers.Close() })
	d.tokens, err = world.Mint(t.Context(), judge, d.File("gateway.yaml"), 1, people)
	world.Must(t, err)
	t.Cleanup(func() {
		if err := d.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			world.ShowLog(t, d.Gateway)
			world.ShowLog(t, d.Backend)
		}
	})
	world.Must(t, d.Start(t.Context()))
	return d
}

// forget takes the system's keys out of Redis.
func (d *day) forget() {
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
	for _, name := range []string{"state", "orders", "buyers", "idem", "outbox", "applied", "gone"} {
		keys = append(keys, fmt.Sprintf("%s{sale:%d}:%s", d.Books.Prefix, s.id, name))
	}
	return d.Books.Redis.Do(ctx, d.Books.Redis.B().Del().Key(keys...).Build()).Error()
}

func (d *day) do(method, url, token, key, body string) world.Answer {
	return d.Client.Do(d.t.Context(), world.Call{Method: method, URL: url, Token: token, Key: key, Body: body})
}

func (d *day) admin(path, key, body string) world.Answer {
	return d.do("POST", d.AdminURL(path), development.AdminToken, key, body)
}

// until asks again and again; the day ends with the last answer when patience is over.
func (d *day) until(what string, ok func() (bool, string)) {
	d.t.Helper()
	world.Until(d.t, d.t.Context(), what, patience, world.Whether(ok))
}

// newSale makes a sale and waits until shoppers see it open.
func (d *day) newSale(stock int64, payWithin time.Duration) *sale {
	d.t.Helper()
	now := time.Now()
	a := d.admin("/sales", "", world.SaleBody("sale", stock, now.Add(-time.Minute), now.Add(3*time.Hour), payWithin))
	world.Must(d.t, a.Is(201))
	s := &sale{a.ID, stock, oracle.NewLog()}
	d.sales = append(d.sales, s)
	d.until("the sale is open", func() (bool, string) {
		a := d.do("GET", fmt.Sprintf("%s/v1/sales/%d", d.Ports.PublicURL(), s.id), "", "", "")
		return a.State == "open", a.String()
	})
	return s
}

// press asks for a unit, again and again with the same key, until something final is said.
func (d *day) press(s *sale, uid int) world.Answer {
	d.t.Helper()
	a, err := d.insist(s, uid, nil)
	world.Must(d.t, err)
	return a
}

func (d *day) insist(s *sale, uid int, header map[string]string) (a world.Answer, err error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	err = world.Await(ctx, func(context.Context) error {
		var failed error
		if a, failed = d.once(s, uid, header); failed != nil || a.AskAgain() {
			return fmt.Errorf("uid %d is told nothing final: %s, %w", uid, a, failed)
		}
		return nil
	})
	return a, err
}

// once asks once, and logs the answer, for the oracle and for the auditor.
func (d *day) once(s *sale, who int, header map[string]string) (world.Answer, error) {
	uid, key := strconv.Itoa(who), fmt.Sprintf("key-of-%d", who)
	a := d.Client.Do(d.t.Context(), world.Call{Method: "POST", URL: fmt.Sprintf("%s/v1/sales/%d/orders", d.Ports.PublicURL(), s.id), Token: d.tokens[who-1],
		Key: key, Body: `{"quantity":1}`, Header: header})
	s.log.Add(a.To(uid, key))
	line, err := json.Marshal(map[string]any{"uid": uid, "sale": s.id, "key": key, "status": a.Status, "code": a.Code, "order_id": a.OrderID})
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
	if a.Status != 202 {
		d.t.Fatalf("uid %d: got %s, want an order", uid, a)
	}
	d.status(uid, a.OrderID, wire.PendingPayment)
	return a.OrderID
}

// status waits until an order has a status.
func (d *day) status(uid int, order string, want wire.OrderStatus) {
	d.t.Helper()
	d.until("order "+order+" is "+string(want), func() (bool, string) {
		a := d.do("GET", d.Ports.PublicURL()+wire.OrderPath(order), d.tokens[uid-1], "", "")
		return a.Order == want, a.String()
	})
}

// lose lets a script be carried out once more, and its answer be lost. The script is the one of the tree under test;
// sale_reserve.lua is called under the name of the present life of Redis.
func (d *day) lose(script string) {
	d.t.Helper()
	source, err := os.ReadFile(filepath.Join(d.tree.dir, "lua", script))
	world.Must(d.t, err)
	if script == "sale_reserve.lua" {
		var life string
		world.Must(d.t, d.Books.DB.QueryRowContext(d.t.Context(), `SELECT name FROM redis_life WHERE only_row = 1`).Scan(&life))
		source = fmt.Appendf(source, "-- incarnation %s\n", life)
	}
	world.Must(d.t, d.Books.Redis.Do(d.t.Context(), d.Books.Redis.B().ScriptLoad().Script(string(source)).Build()).Error()) // else NOSCRIPT would be lost
	sum := sha1.Sum(source)
	d.redis.loseAnswerTo(hex.EncodeToString(sum[:]))
}

// intentsDone waits until nothing decided in MySQL is left to be done in Redis.
func (d *day) intentsDone() {
	d.t.Helper()
	d.until("no intent is open", func() (bool, string) {
		var n int
		err := d.Books.DB.QueryRowContext(d.t.Context(), "SELECT COUNT(*) FROM intents WHERE done_at IS NULL").Scan(&n)
		return err == nil && n == 0, fmt.Sprintf("%d, %v", n, err)
	})
}

// hold locks something that the consumer needs, until the returned function is called.
func (d *day) hold(query string, args ...any) (release func()) {
	d.t.Helper()
	tx, err := d.Books.DB.BeginTx(d.t.Context(), nil)
	world.Must(d.t, err)
	d.t.Cleanup(func() { _ = tx.Rollback() }) // where the day ends early
	_, err = tx.ExecContext(d.t.Context(), query, args...)
	world.Must(d.t, err)
	return func() { world.Must(d.t, tx.Rollback()) }
}

// waiting waits until a statement of the system's does, and returns its connection.
func (d *day) waiting(like string) (id int64) {
	d.t.Helper()
	d.until("a statement like "+like+" waits", func() (bool, string) {
		err := d.Books.DB.QueryRowContext(d.t.Context(), "SELECT id FROM information_schema.processlist WHERE db = ? AND info LIKE ?", d.Name, like).Scan(&id)
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
				_, err := d.insist(s, uid, map[string]string{"X-User-Id": strconv.Itoa(people)})
				return err
			})
		}
	}
	world.Must(d.t, g.Wait())

	// A unit is given back, and the answer is lost: the timer tries again.
	order := d.ordered(s, 6)
	d.lose("sale_release.lua")
	d.until("it is cancelled", func() (bool, string) {
		a := d.do("POST", d.Ports.PublicURL()+wire.OrderPath(order)+"/cancellation", d.tokens[6-1], "", "")
		return a.Status == 200, a.String()
	})
	d.intentsDone()

	// Units are added, and the answer is lost.
	d.lose("sale_adjust.lua")
	s.stock += 3
	d.until("it is restocked", func() (bool, string) {
		a := d.admin(fmt.Sprintf("/sales/%d/restock", s.id), "restock", `{"quantity":3}`)
		return a.Status == 200, a.String()
	})
	d.intentsDone()

	// The backend is killed while MySQL takes its time with a batch.
	release := d.hold("UPDATE sale_stock SET total = total WHERE sale_id = ?", s.id)
	d.press(s, 7)
	d.waiting("UPDATE sale_stock SET available%")
	world.Must(d.t, d.Backend.Kill(d.t.Context()))
	release()
	world.Must(d.t, d.Backend.Start(d.t.Context()))

	// MySQL ends the connection that a batch is on.
	release = d.hold("UPDATE sale_stock SET total = total WHERE sale_id = ?", s.id)
	d.press(s, 8)
	id := d.waiting("UPDATE sale_stock SET available%")
	_, err := d.Books.DB.ExecContext(d.t.Context(), "KILL CONNECTION "+strconv.FormatInt(id, 10))
	world.Must(d.t, err)
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
		if a := d.admin(fmt.Sprintf("/sales/%d/rebuild", s.id), "", ""); a.Status != 200 {
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
		a, err := d.once(s, 11, nil)
		world.Must(d.t, err)
		world.Must(d.t, d.empty(d.t.Context(), s))
		d.amqp.cut()
		if a.AskAgain() { // then this shopper knows that nothing is promised yet
			d.press(s, 11)
		}
		d.press(s, 12)
	}
}

// audit asks the auditor, who reads Redis, MySQL and the broker, and what shoppers were told.
func (d *day) audit() (balanced bool, said string) {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), filepath.Join(d.judge, "backend"), "audit", "-config", d.File("auditor.yaml"), "--all", "--answers", d.answers.Name())
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
		v, err := d.Books.Look(d.t.Context(), s.id)
		world.Must(d.t, err)
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
