//go:build servers

package faults

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// fault is one failpoint and what it takes to get there.
type fault struct {
	point  string // with #COUNT for the n-th time
	what   string // for the table
	before string // another failpoint, at which the process dies first; so that it finds something to do when it is back
	expire bool   // nobody pays, and orders expire within a second
	first  func(*scene)
	coupon bool // of a coupon campaign, guarded by version
	act    func(*scene)
}

// scene is one fault being tried.
type scene struct {
	t       *testing.T
	w       *system
	load    *load
	sale    int64
	stock   int64
	process *stack.Process // that is to die
	after   func()         // once it is back; nil for nothing
	point   string
}

// The points, in the order of an order's way. What has no act is reached by the load itself.
var faults = []fault{
	{point: "api.before-script#60", what: "backend api: before the script"},
	{point: "api.script-sent#60", what: "backend api: the script's call is written, its answer not read"},
	{point: "api.before-202#60", what: "backend api: after the answer, before the 202"},
	{point: "api.halfway-through-202#60", what: "backend api: half of the 202 is written"},
	{point: "relay.after-read#3", what: "relay: after XREADGROUP"},
	{point: "relay.before-confirm#3", what: "relay: published, not confirmed"},
	{point: "relay.before-noted#3", what: "relay: confirmed, not noted"},
	{point: "relay.during-claim", what: "relay: during a claim of a dead one's entries", before: "relay.after-read#3"},
	{point: "consumer.before-begin#3", what: "consumer: delivered, before BEGIN"},
	{point: "consumer.after-orders#3", what: "consumer: after the orders' INSERT"},
	{point: "consumer.after-slots#3", what: "consumer: after the slots' INSERT"},
	{point: "consumer.after-claims#3", what: "consumer: after the coupons' INSERT", coupon: true},
	{point: "order.after-stock#6", what: "consumer or payment: after the stock's UPDATE"},
	{point: "order.before-ledger#6", what: "consumer or payment: after the stock was read back"},
	{point: "consumer.before-commit#3", what: "consumer: before COMMIT"},
	{point: "consumer.commit-sent#6", what: "consumer or payment: COMMIT is sent, its answer not read"},
	{point: "consumer.after-commit#3", what: "consumer: after COMMIT"},
	{point: "consumer.before-ack#3", what: "consumer: before the ack"},
	{point: "consumer.before-retire#3", what: "consumer: after the ack, before the entry is retired"},
	{point: "consumer.before-adopt", what: "consumer: before it adopts an order of an older epoch", act: adoption},
	{point: "consumer.after-adopt", what: "consumer: after it adopted one", act: adoption},
	{point: "cancel.before-release#3", what: "cancellation: in MySQL, not released"},
	{point: "timer.before-release", what: "timer: expired in MySQL, not released", expire: true},
	{point: "timer.before-done", what: "timer: released, not marked done", expire: true},
	{point: "admin.mid-create", what: "admin: in the transaction that makes a sale", act: creation},
	{point: "admin.after-commit", what: "admin: a sale is in MySQL, not in Redis", act: creation},
	{point: "admin.after-load", what: "admin: a sale is made, nobody was told", act: creation},
	{point: "admin.mid-restock", what: "admin: in the transaction of a restock", act: restocking},
	{point: "admin.after-commit", what: "admin: a restock is in MySQL, not in Redis", act: restocking},
	{point: "admin.before-done", what: "admin: a restock is in Redis, not marked done", act: restocking},
	{point: "admin.mid-archive", what: "admin: in the transaction of an archive", act: archiving},
	{point: "admin.mid-archive", what: "timer: in the transaction of an archive", act: overdue},
	{point: "admin.before-archive", what: "timer: archived in MySQL, the sale still in Redis", act: overdue},
	{point: "admin.before-archive", what: "admin: archived in MySQL, the sale still in Redis", act: archiving},
	{point: "admin.after-archive", what: "admin: archived and out of Redis, not marked done", act: archiving},
	{point: "reconcile.after-token", what: "rebuild: has its token", act: rebuilding},
	{point: "reconcile.after-shut", what: "rebuild: closed the gate", act: rebuilding},
	{point: "reconcile.after-read", what: "rebuild: raised the epoch and read", act: rebuilding},
	{point: "reconcile.mid-write", what: "rebuild: wrote a part", act: rebuilding},
	{point: "reconcile.after-write", what: "rebuild: the gate adopts", act: rebuilding},
	{point: "reconcile.before-open", what: "rebuild: before the gate opens", act: rebuilding},
	{point: "replay.before-retire", what: "dead-letter replay: its order is in MySQL, its entry not retired", first: refusal, act: replaying},
	{point: "replay.before-mark", what: "dead-letter replay: done, the letter not marked", first: refusal, act: replaying},
	{point: "cart.load-claimed", what: "cart: a SKU is claimed, MySQL not read", act: carting},
	{point: "cart.load-read", what: "cart: the SKU's epoch is raised, nothing of it in Redis", act: carting},
	{point: "cart.load-written", what: "cart: a part of the SKU is in Redis", act: carting},
	{point: "cart.after-request#9", what: "cart: the request is noted", act: carting},
	{point: "cart.script-sent#20", what: "cart: the script's calls are written, their answers not read", act: carting},
	{point: "cart.after-reduce#9", what: "cart: units are locked in Redis", act: carting},
	{point: "cart.before-commit#9", what: "cart: before COMMIT", act: carting},
	{point: "cart.after-commit#9", what: "cart: decided, nobody was told", act: carting},
	{point: "cart.before-unlock#5", what: "cart: an order ended in MySQL, not in Redis", act: carting},
	{point: "cart.before-done#5", what: "cart: an order ended in Redis, not marked done", act: carting},
	{point: "cart.after-retire", what: "timer: a cart that nobody goes on with has another order id, its units are not back", act: sweeping},
	{point: "standby.after-join", what: "standby line: joined in MySQL, Redis not told", act: standing},
	{point: "standby.after-reserve", what: "standby line: a unit is reserved for its head", act: standing},
	{point: "events.before-send#3", what: "timer: an event is claimed, not sent"},
	{point: "events.before-note#3", what: "timer: an event is delivered, and that is not noted"},
	{point: "gateway.request-sent#60", what: "gateway: a request is upstream"},
	{point: "gateway.before-answer#60", what: "gateway: has the answer, before it is passed on"},
	{point: "gateway.before-reload", what: "gateway: during a reload, before it is applied", act: reloading},
	{point: "gateway.mid-reload", what: "gateway: during a reload, a part is applied", act: reloading},
	{point: "gateway.before-drain", what: "gateway: a drain begins", act: draining},
	{point: "gateway.after-drain", what: "gateway: a drain ends", act: draining},
}

func (f fault) name() string { name, _, _ := strings.Cut(f.point, "#"); return name }

const (
	buyers = 240
	stock  = 200
	late   = 12 // buyers who come when the killed process is back
)

// TestFailpoints kills the system at each failpoint, under load, starts it again, and holds all that was promised against
// the stores.
//
// Row B3: a process dies at each place where it hurts.
func TestFailpoints(t *testing.T) {
	t.Attr("row", "B3")
	sideBySide(t)
	covered := append([]string{migration}, takeovers...)
	for _, f := range faults {
		covered = append(covered, f.name())
	}
	marked := points(t)
	for _, p := range marked {
		if !slices.Contains(covered, p) {
			t.Errorf("failpoint %s is never tried", p)
		}
	}
	for _, p := range covered {
		if !slices.Contains(marked, p) {
			t.Errorf("%s is to be tried, and is no failpoint", p)
		}
	}
	told, url := receiver(t)
	g := newGround(t, "-tags", "failpoint")
	w := g.system(t, options{batch: smallBatch,
		backend: fmt.Sprintf("events: {endpoints: [{name: shop, url: %q, secret: %q, types: [order.cancelled]}]}\n", url, "whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 24)))})
	t.Run(migration, w.migrate)
	for _, f := range faults {
		t.Run(f.name(), func(t *testing.T) { w.try(t, f) })
	}
	t.Run("takeover", func(t *testing.T) { takeoverFailpoints(t, g) })
	until(t, "the shop is told of every cancelled order", func(ctx context.Context) error {
		rows, err := w.Books.DB.QueryContext(ctx, "SELECT id FROM orders WHERE status = 'cancelled'")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return err
			}
			if _, ok := told.Load(id); !ok {
				return fmt.Errorf("it does not know of order %s", id)
			}
		}
		return rows.Err()
	})
	w.drained(t)
}

// receiver takes webhooks. It knows the orders that it was told of, by their ids.
func receiver(t *testing.T) (told *sync.Map, url string) {
	told = new(sync.Map)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			Data struct {
				OrderID string `json:"order_id"`
			} `json:"data"`
		}
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil || event.Data.OrderID == "" {
			t.Errorf("a webhook: %+v, %v", event, err)
		}
		told.Store(event.Data.OrderID, true)
	}))
	t.Cleanup(s.Close)
	return told, s.URL
}

func (w *system) try(t *testing.T, f fault) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	within, units := time.Hour, int64(stock)
	if f.expire {
		within = time.Second
	}
	var sale int64
	if f.coupon {
		sale = w.newCoupon(t, f.what, units)
	} else {
		sale = w.newSale(t, f.what, units, within)
	}
	first, tokens, err := w.mint(buyers + late)
	world.Must(t, err)
	l := w.newLoad(sale, first, tokens[:buyers])
	l.ends = !f.expire && !f.coupon
	clean := w.Backend
	if strings.HasPrefix(f.point, "gateway.") {
		clean = w.Gateway
	}
	t.Cleanup(func() { // whatever failed: the next one finds all running
		if !t.Failed() {
			return
		}
		if err := errors.Join(clean.Kill(context.Background()), clean.Start(context.Background())); err != nil {
			t.Error(err)
		}
	})
	s := &scene{t: t, w: w, load: l, sale: sale, stock: units, point: f.point}
	if f.first != nil {
		f.first(s)
	}
	// What is left to do of the scenes before would be done at the point at once, before the process serves: also what comes while it stops.
	left := func(ctx context.Context) error {
		var open, due int
		if err := w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM intents WHERE done_at IS NULL").Scan(&open); err != nil {
			return err
		}
		if err := w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE status = 'pending_payment' AND pay_before < UTC_TIMESTAMP() + INTERVAL 30 SECOND").Scan(&due); err != nil {
			return err
		}
		var waiting int
		if strings.HasPrefix(f.point, "events.") {
			if err := w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM events WHERE state = 'waiting' AND due_at < UTC_TIMESTAMP() + INTERVAL 30 SECOND").Scan(&waiting); err != nil {
				return err
			}
		}
		if open+due+waiting > 0 {
			return fmt.Errorf("%d changes are not done, %d orders are about to expire, %d events wait", open, due, waiting)
		}
		return nil
	}
	for {
		until(t, "nothing is left to do of the scenes before", left)
		world.Must(t, clean.Stop(ctx))
		if left(ctx) == nil {
			break
		}
		world.Must(t, clean.Start(ctx))
	}
	logged := size(t, clean)
	s.process = w.process(clean.Name(), f.point)
	armed := s.process
	if f.before != "" {
		armed = w.process(clean.Name(), f.before)
	}
	world.Must(t, armed.Start(ctx))

	ran := make(chan error, 1)
	go func() { ran <- l.run(ctx) }()
	if f.before != "" {
		world.Must(t, armed.Wait(ctx))
		if err := s.process.Start(ctx); err != nil && s.process.Running() { // it may die before it is ready
			t.Fatal(err)
		}
	}
	if f.act != nil {
		world.Must(t, l.log.Await(ctx, buyers/4))
		f.act(s)
	}
	reach, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := s.process.Wait(reach); err != nil {
		t.Fatalf("it never came to %s: %v; answers: %s", f.point, err, l.log.Summary())
	}
	died := l.fell()
	if text := "failpoint: killed at " + f.name() + "\n"; !bytes.Contains(since(t, clean, logged), []byte(text)) {
		t.Fatalf("%s ended, but not at %s:\n%s", clean.Name(), f.point, since(t, clean, logged))
	}
	world.Must(t, clean.Start(ctx))
	if s.after != nil {
		s.after()
	}
	world.Must(t, <-ran)
	l.first, l.tokens = first+buyers, tokens[buyers:]
	world.Must(t, l.run(ctx))
	tally := w.rest(t, sale, s.stock, l.log)
	r := line{fault: f.what, injected: "SIGKILL at `" + f.point + "`", times: 1, tally: &tally, settled: time.Since(died)}
	select {
	case at := <-l.decided:
		r.opened = []time.Duration{at.Sub(died)}
	default: // nothing was left to be decided
	}
	report(partFailpoints, r)
}

func size(t *testing.T, p *stack.Process) int64 {
	t.Helper()
	st, err := os.Stat(p.LogFile())
	world.Must(t, err)
	return st.Size()
}

func since(t *testing.T, p *stack.Process, from int64) []byte {
	t.Helper()
	b, err := os.ReadFile(p.LogFile())
	world.Must(t, err)
	return b[from:]
}

// insist sends an admin request that the process does not survive, and again, with the same Idempotency-Key, when it is back.
func (s *scene) insist(path, body string, status int, then func(world.Answer)) {
	s.t.Helper()
	ctx := context.Background()
	key := "insist-" + strconv.FormatInt(s.sale, 10)
	if a := s.w.admin(ctx, "POST", path, key, body); a.Status != 0 {
		s.t.Fatalf("POST %s: got %s, want no answer: it is to die", path, a)
	}
	s.after = func() {
		s.t.Helper()
		a := s.w.admin(ctx, "POST", path, key, body)
		world.Must(s.t, a.Is(status))
		then(a)
	}
}

func creation(s *scene) {
	title := fmt.Sprintf("made beside sale %d", s.sale)
	s.insist("/sales", saleBody(title, 70, time.Minute), 201, func(a world.Answer) {
		s.w.is(s.t, a.ID, wire.Open)
		var n int
		world.Must(s.t, s.w.Books.DB.QueryRow("SELECT COUNT(*) FROM sales WHERE title = ?", title).Scan(&n))
		if n != 1 {
			s.t.Errorf("the sale was made %d times", n)
		}
		s.w.rest(s.t, a.ID, 70, oracle.NewLog())
	})
}

func restocking(s *scene) {
	s.insist(fmt.Sprintf("/sales/%d/restock", s.sale), `{"quantity":30}`, 200, func(world.Answer) { s.stock += 30 })
}

// archiving archives a sale beside the one that is under load, with a paid order and unsold units, and is not answered.
func archiving(s *scene) {
	s.archived(func(sale int64) (again func()) {
		path, key := fmt.Sprintf("/sales/%d/archive", sale), fmt.Sprintf("archive-%d", sale)
		until(s.t, "the archive comes to the failpoint", func(ctx context.Context) error { // before, something may be under way
			return s.w.admin(ctx, "POST", path, key, "").Is(0)
		})
		return func() {
			until(s.t, "the archive is answered", func(ctx context.Context) error {
				return s.w.admin(ctx, "POST", path, key, "").Is(200, `"archived_at":"2`)
			})
		}
	})
}

// overdue has such a sale be over for so long that the timer archives it.
func overdue(s *scene) {
	s.archived(func(sale int64) (again func()) {
		_, err := s.w.Books.DB.Exec("UPDATE sales SET closed_at = closed_at - INTERVAL 25 HOUR WHERE id = ?", sale)
		world.Must(s.t, err)
		return func() {
			until(s.t, "the timer has archived it", func(ctx context.Context) error {
				var times int
				if err := s.w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM audit_log WHERE action = 'sale.archive' AND who = 'timer' AND target = ?",
					fmt.Sprintf("sale %d", sale)).Scan(&times); err != nil || times != 1 {
					return fmt.Errorf("%d times, %w", times, err)
				}
				return nil
			})
		}
	})
}

// archived has a sale archived beside the one that is under load, with a paid order and unsold units; again goes on with it when the
// process that was to do it is back.
func (s *scene) archived(archive func(sale int64) (again func())) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sale := s.w.newSale(s.t, fmt.Sprintf("archived beside sale %d", s.sale), 70, time.Minute)
	first, tokens, err := s.w.mint(1)
	world.Must(s.t, err)
	press := s.w.ordersURL(sale)
	order := s.w.do(ctx, "POST", press, tokens[0], "bought", "")
	world.Must(s.t, order.Is(202))
	until(s.t, "it is paid", func(ctx context.Context) error {
		return s.w.do(ctx, "POST", s.w.PublicURL()+wire.OrderPath(order.OrderID)+"/payment", tokens[0], "", "").Is(200)
	})
	s.w.closeSale(s.t, sale)
	again := archive(sale)
	s.after = func() {
		s.t.Helper()
		again()
		until(s.t, "the sale is archived and out of Redis", func(ctx context.Context) error {
			keys, err := s.w.Books.Redis.Do(ctx, s.w.Books.Redis.B().Keys().Pattern(fmt.Sprintf("%s{sale:%d}:*", s.w.Books.Prefix, sale)).Build()).AsStrSlice()
			if err != nil || len(keys) > 0 {
				return fmt.Errorf("in Redis are %v, %w", keys, err)
			}
			if err := s.w.Audited(ctx, sale); err != nil {
				return err
			}
			var open int
			if err := s.w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM intents WHERE sale_id = ? AND done_at IS NULL", sale).Scan(&open); err != nil || open > 0 {
				return fmt.Errorf("%d intents are open, %w", open, err)
			}
			return nil
		})
		var times, available, allotted, live int
		world.Must(s.t, s.w.Books.DB.QueryRow("SELECT COUNT(*) FROM audit_log WHERE action = 'sale.archive' AND target = ?", fmt.Sprintf("sale %d", sale)).Scan(&times))
		world.Must(s.t, s.w.Books.DB.QueryRow("SELECT k.available, k.allotted FROM skus k JOIN sales s ON s.sku_id = k.id WHERE s.id = ?", sale).Scan(&available, &allotted))
		world.Must(s.t, s.w.Books.DB.QueryRow("SELECT COUNT(*) FROM orders WHERE sale_id = ? AND uid = ? AND status = 'paid'", sale, strconv.Itoa(first)).Scan(&live))
		if times != 1 || available != 69 || allotted != 1 || live != 1 {
			s.t.Errorf("archived %d times, the SKU has %d units back and %d allotted, %d paid orders; want 1, 69, 1, 1", times, available, allotted, live)
		}
		until(s.t, "a press on it is refused as ended", func(ctx context.Context) error {
			return s.w.do(ctx, "POST", press, tokens[0], "", "").Is(403, "SALE_ENDED")
		})
	}
}

// standing has one join the line for the only unit of a sale beside, whose buyer gives it back, and dies on the way. When the
// process is back the one in line gets the unit, and nobody else.
func standing(s *scene) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sale := s.w.newSale(s.t, fmt.Sprintf("a line beside sale %d", s.sale), 1, time.Minute)
	_, tokens, err := s.w.mint(3)
	world.Must(s.t, err)
	ask := func(ctx context.Context, method, path, token string) world.Answer {
		return s.w.do(ctx, method, s.w.PublicURL()+path, token, "", "")
	}
	comes := func(what, method, path, token, text string) {
		s.t.Helper()
		until(s.t, what, func(ctx context.Context) error { return ask(ctx, method, path, token).Is(200, text) })
	}
	order := s.w.do(ctx, "POST", s.w.ordersURL(sale), tokens[0], "bought", "")
	world.Must(s.t, order.Is(202))
	comes("it waits for its payment", "GET", wire.OrderPath(order.OrderID), tokens[0], `"pending_payment"`)
	line, back := wire.StandbyPath(sale), wire.OrderPath(order.OrderID)+"/cancellation"
	if a := ask(ctx, "POST", line, tokens[1]); a.Status == 200 {
		ask(ctx, "POST", back, tokens[0]) // it dies now or soon
	}
	s.after = func() {
		s.t.Helper()
		comes("it is in line", "POST", line, tokens[1], "")
		comes("the unit is back", "POST", back, tokens[0], "")
		if a := s.w.do(ctx, "POST", s.w.ordersURL(sale), tokens[2], "", ""); a.Status == 202 {
			s.t.Error("somebody who was not in line got the unit")
		}
		comes("it is offered", "GET", line, tokens[1], `"offered"`)
		var offer string
		world.Must(s.t, s.w.Books.DB.QueryRow("SELECT order_id FROM standby WHERE sale_id = ?", sale).Scan(&offer))
		comes("it is accepted", "POST", wire.OrderPath(offer)+"/payment", tokens[1], `"paid"`)
		until(s.t, "all of it balances", func(ctx context.Context) error { return s.w.Audited(ctx, sale) })
	}
}

func rebuilding(s *scene) {
	if a := s.w.admin(context.Background(), "POST", fmt.Sprintf("/sales/%d/rebuild", s.sale), "", ""); a.Status != 0 {
		s.t.Fatalf("rebuild: got %s, want no answer: it is to die", a)
	}
}

// adoption makes the consumer hold a batch of an epoch that is over: another transaction has a slot that the batch needs,
// until a rebuild, which does not wait for ever, has raised the epoch.
func adoption(s *scene) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var epoch int64
	world.Must(s.t, s.w.Books.DB.QueryRowContext(ctx, "SELECT epoch FROM sale_stock WHERE sale_id = ?", s.sale).Scan(&epoch))
	tx, err := s.w.Books.DB.BeginTx(ctx, nil)
	world.Must(s.t, err)
	defer tx.Rollback()
	var values []string // of buyers who come late
	for n := s.load.first + buyers/2; n < s.load.first+buyers; n++ {
		values = append(values, fmt.Sprintf("(%d, '%d', 1, 'held')", s.sale, n))
	}
	held, err := tx.ExecContext(ctx, "INSERT IGNORE INTO order_slots (sale_id, uid, slot, order_id) VALUES "+strings.Join(values, ", "))
	world.Must(s.t, err)
	if n, err := held.RowsAffected(); err != nil || n == 0 {
		s.t.Fatalf("no order of the last %d buyers is still to come: %v", buyers/2, err)
	}
	world.Must(s.t, s.load.log.Await(ctx, buyers/2+lanes))                      // so that some of them are queued, and their batch waits
	go s.w.admin(ctx, "POST", fmt.Sprintf("/sales/%d/rebuild", s.sale), "", "") // not answered: the process dies
	until(s.t, "the rebuild raises the epoch", func(ctx context.Context) error {
		var now int64
		if err := s.w.Books.DB.QueryRowContext(ctx, "SELECT epoch FROM sale_stock WHERE sale_id = ?", s.sale).Scan(&now); err != nil {
			return err
		}
		if now == epoch {
			return errors.New("it is the same still")
		}
		return nil
	})
	world.Must(s.t, tx.Rollback())
}

// refused is the buyer of a scene whose order MySQL takes no row for.
func (s *scene) refused() string { return strconv.Itoa(s.load.first) }

// refusal lets MySQL refuse the order of the first buyer, so that it becomes a dead letter.
func refusal(s *scene) {
	_, err := s.w.Books.DB.Exec(fmt.Sprintf("ALTER TABLE orders ADD CONSTRAINT refusal CHECK (sale_id <> %d OR uid <> '%s')", s.sale, s.refused()))
	world.Must(s.t, err)
}

// replaying lets MySQL take the order, and replays its letter in a process beside which nothing else could settle it.
func replaying(s *scene) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var letter, order string
	until(s.t, "the refused order is a dead letter", func(ctx context.Context) error {
		return s.w.Books.DB.QueryRowContext(ctx, "SELECT id, order_id FROM dead_letters WHERE sale_id = ? AND payload LIKE ?", s.sale, `%"uid":"`+s.refused()+`"%`).Scan(&letter, &order)
	})
	world.Must(s.t, s.process.Stop(ctx))
	_, err := s.w.Books.DB.ExecContext(ctx, "ALTER TABLE orders DROP CONSTRAINT refusal")
	world.Must(s.t, err)
	s.process = s.w.process("backend", s.point, "-roles", "api")
	world.Must(s.t, s.process.Start(ctx))
	s.insist("/dead-letters/"+letter+"/replay", "", 200, func(a world.Answer) {
		var status string
		var marked bool
		world.Must(s.t, s.w.Books.DB.QueryRow("SELECT o.status, d.replayed_at IS NOT NULL FROM dead_letters d JOIN orders o ON o.id = d.order_id WHERE d.id = ?", letter).Scan(&status, &marked))
		if !bytes.Contains(a.Body, []byte(`"result":"unchanged"`)) || !bytes.Contains(a.Body, []byte(order)) || !marked || status == string(wire.Rejected) {
			s.t.Errorf("replayed again: %s; the order is %s, the letter is marked: %v; want the first replay's order, unchanged", a, status, marked)
		}
	})
}

// reloading changes the gateway's file, which it watches.
func reloading(s *scene) {
	s.w.Limits = limits(int(s.sale))
	world.Must(s.t, s.w.WriteGateway())
}

func draining(s *scene) { world.Must(s.t, s.process.Signal(syscall.SIGTERM)) }

// migration is the point in the middle of `backend migrate`.
const migration = "migrate.statement-sent"

// migrate kills one migration after the other, each at a later CREATE TABLE of its own; the next one must go on from there.
func (w *system) migrate(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const schema = "half_migrated"
	_, err := w.Books.DB.ExecContext(ctx, "CREATE DATABASE "+schema+" CHARACTER SET utf8mb4")
	world.Must(t, err)
	config, err := os.ReadFile(w.File("backend.yaml"))
	world.Must(t, err)
	file := w.File("migrate.yaml")
	world.Must(t, os.WriteFile(file, bytes.Replace(config, []byte(")/"+w.Name), []byte(")/"+schema), 1), 0o600))
	run := func(failpoint string) (string, error) {
		cmd := exec.Command(filepath.Join(w.Bin, "backend"), "migrate", "-config", file)
		cmd.Env = append(os.Environ(), "FLOODGATE_FAILPOINT="+failpoint)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	died := 0
	for n := 1; ; n++ {
		out, err := run(migration + "#" + strconv.Itoa(n))
		if strings.Contains(out, "failpoint: killed at "+migration) {
			died++
			continue
		}
		if err != nil {
			t.Fatalf("after %d migrations were killed: %v\n%s", died, err, out)
		}
		break
	}
	if died == 0 {
		t.Error("no migration was killed")
	}
	if out, err := run(""); err != nil || !strings.Contains(out, "up to date") {
		t.Errorf("migrate again: %v\n%s", err, out)
	}
	var here, whole int
	const count = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = ?"
	world.Must(t, w.Books.DB.QueryRowContext(ctx, count, schema).Scan(&here))
	world.Must(t, w.Books.DB.QueryRowContext(ctx, count, w.Name).Scan(&whole))
	if here != whole {
		t.Errorf("the schema has %d columns, one that was migrated in peace has %d", here, whole)
	}
	report(partFailpoints, line{fault: "backend migrate: a CREATE TABLE is sent", injected: "SIGKILL at `" + migration + "#1`, `#2`, ...", times: died})
}
