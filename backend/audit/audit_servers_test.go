//go:build servers

package audit_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// shop is one open sale on the real stores.
type shop struct {
	t       *testing.T
	db      *sql.DB
	redis   *reserve.Store
	book    *order.Store
	intents *intent.Runner
	auditor *audit.Auditor
	sale    int64
}

func newShop(t *testing.T, o backendtest.SaleOptions, bound time.Duration) *shop {
	t.Helper()
	db, redis := backendtest.MySQL(t), backendtest.Redis(t)
	s := &shop{t: t, db: db, redis: redis, sale: backendtest.Sale(t, db, o), auditor: audit.New(audit.Config{DB: db, Redis: redis, QueuedBound: bound})}
	clk, log, reg := new(clock.Clock), backendtest.Log(t), prometheus.NewRegistry()
	s.intents = intent.New(intent.Config{DB: db, Sales: sale.Reader{DB: db}, Redis: redis, Clock: clk, Log: log, Register: reg})
	s.book = order.NewStore(order.Config{DB: db, Redis: redis, Intents: s.intents, Clock: clk, Log: log, Register: reg})
	backendtest.Load(t, db, redis, s.sale)
	return s
}

func (s *shop) press(uid string, quantity int) string {
	s.t.Helper()
	id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale)
	v, err := s.redis.Reserve(s.t.Context(), reserve.Request{Sale: s.sale, UID: uid, Quantity: quantity, OrderID: id, Epoch: 1})
	if err != nil || v.Answer != lua.Reserved {
		s.t.Fatalf("press of %s: %+v, %v", uid, v, err)
	}
	return id
}

// settle brings everything that is queued to MySQL.
func (s *shop) settle() {
	s.t.Helper()
	snap, err := s.redis.Snapshot(s.t.Context(), s.sale)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.book.Settle(s.t.Context(), snap.Outbox); err != nil {
		s.t.Fatal(err)
	}
	if err := s.book.Retire(s.t.Context(), snap.Outbox); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) audit() audit.Result {
	s.t.Helper()
	r, err := s.auditor.Sale(s.t.Context(), s.sale)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *shop) exec(statement string, args ...any) {
	s.t.Helper()
	r, err := s.db.ExecContext(s.t.Context(), statement, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		s.t.Fatalf("%s: %d rows, %v", statement, n, err)
	}
}

func (s *shop) key(name string) string {
	return fmt.Sprintf("%s{sale:%d}:%s", s.redis.Client().Prefix(), s.sale, name)
}

func (s *shop) command(words ...string) {
	s.t.Helper()
	c := s.redis.Client()
	if err := c.Do(s.t.Context(), c.B().Arbitrary(words[0]).Keys(words[1]).Args(words[2:]...).Build()).Error(); err != nil {
		s.t.Fatalf("%v: %v", words, err)
	}
}

// balanced fails the test unless the audit balances with these numbers.
func (s *shop) balanced(available, queued, locked, sold, total int64) {
	s.t.Helper()
	r := s.audit()
	got, want := [5]int64{r.Available, r.Queued, r.Locked, r.Sold, r.Total}, [5]int64{available, queued, locked, sold, total}
	if !r.Balanced || got != want {
		s.t.Errorf("got balanced %v, available, queued, locked, sold, total %v, findings %v; want %v", r.Balanced, got, r.Findings, want)
	}
}

// Row E1, for sales: what is available, locked and sold adds up after each step of an order's life, in MySQL and, with what is
// queued, in Redis.
func TestALifeBalancesAtEveryStep(t *testing.T) {
	t.Attr("row", "E1")
	s := newShop(t, backendtest.SaleOptions{Stock: 20, Limit: 3}, time.Minute)
	s.balanced(20, 0, 0, 0, 20)
	a, b, c := s.press("ann", 2), s.press("bob", 1), s.press("cyd", 3)
	s.balanced(14, 6, 0, 0, 20)
	s.settle()
	s.balanced(14, 0, 6, 0, 20)
	if _, err := s.book.Pay(t.Context(), "ann", a); err != nil {
		t.Fatal(err)
	}
	s.balanced(14, 0, 4, 2, 20)
	if _, err := s.book.Cancel(t.Context(), "bob", b); err != nil {
		t.Fatal(err)
	}
	s.balanced(15, 0, 3, 2, 20)
	s.exec(`UPDATE orders SET pay_before = ? WHERE id = ?`, time.Now().UTC().Add(-time.Hour), c)
	if n, err := s.book.Expire(t.Context()); n != 1 || err != nil {
		t.Fatalf("expire: %d, %v", n, err)
	}
	s.balanced(18, 0, 0, 2, 20)
	s.press("bob", 3)
	s.balanced(15, 3, 0, 2, 20)
}

func TestCouponsBalance(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Kind: wire.Coupon, Stock: 5, Limit: 2}, time.Minute)
	s.press("ann", 2)
	s.balanced(3, 2, 0, 0, 5)
	s.settle()
	s.balanced(3, 0, 0, 2, 5)
	s.exec(`UPDATE coupon_claims SET state = 'used', ended_at = ? LIMIT 1`, time.Now().UTC())
	s.exec(`UPDATE sales SET published = FALSE, paused = FALSE`)
	s.command("HSET", s.key("state"), "paused", "1") // which is how Redis is told of it
	s.balanced(3, 0, 0, 2, 5)
}

// Row C1, row C2: the claims are held against the orders that were issued, one for each unit, and the finding names the order.
func TestEachFaultOfAClaimIsFound(t *testing.T) {
	t.Attr("row", "C1 C2")
	for name, spoil := range map[string]func(s *shop, order string){
		"a claim is missing":            func(s *shop, order string) { s.exec(`DELETE FROM coupon_claims WHERE id = ?`, order+".2") },
		"all claims are missing":        func(s *shop, order string) { s.exec(`DELETE FROM coupon_claims`) },
		"a claim too many":              func(s *shop, order string) { s.addClaim(order, "ann") },
		"a claim of an order of nobody": func(s *shop, order string) { s.addClaim("nobody", "ann") },
		"somebody else's claim":         func(s *shop, order string) { s.exec(`UPDATE coupon_claims SET uid = 'bob' WHERE id = ?`, order+".1") },
		"a state that there is not": func(s *shop, order string) {
			s.exec(`UPDATE coupon_claims SET state = 'lost' WHERE id = ?`, order+".1")
		},
		"used, nobody knows when": func(s *shop, order string) {
			s.exec(`UPDATE coupon_claims SET state = 'used' WHERE id = ?`, order+".1")
		},
		"new again": func(s *shop, order string) {
			s.exec(`UPDATE coupon_claims SET ended_at = valid_until WHERE id = ?`, order+".1")
		},
		"a claim of a rejected order": func(s *shop, order string) { s.exec(`UPDATE orders SET status = 'rejected' WHERE id = ?`, order) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, backendtest.SaleOptions{Kind: wire.Coupon, Stock: 5, Limit: 3}, time.Minute)
			order := s.press("ann", 2)
			s.settle()
			s.balanced(3, 0, 0, 2, 5)
			spoil(s, order)
			r := s.audit()
			if r.Balanced || !slices.ContainsFunc(r.Findings, func(f audit.Finding) bool {
				return strings.HasPrefix(f.Equation, "claims =") && (f.OrderID == order || f.OrderID == "nobody")
			}) {
				t.Errorf("balanced %v, findings %v; want one that names order %s", r.Balanced, r.Findings, order)
			}
		})
	}
}

// addClaim adds a claim by hand.
func (s *shop) addClaim(order, uid string) {
	s.t.Helper()
	now := time.Now().UTC()
	s.exec(`INSERT INTO coupon_claims (id, order_id, sale_id, uid, state, claimed_at, valid_until) VALUES (?, ?, ?, ?, 'new', ?, ?)`, order+".9", order, s.sale, uid, now, now)
}

// A release that waits for its intent is under way: its units are counted as available.
func TestAPendingReleaseIsNoFinding(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 10, Limit: 2}, time.Minute)
	id := s.press("ann", 2)
	s.settle()
	if _, err := s.redis.Shut(t.Context(), s.sale, 2); err != nil { // a closed gate keeps the release from happening
		t.Fatal(err)
	}
	if _, err := s.book.Cancel(t.Context(), "ann", id); err != nil {
		t.Fatal(err)
	}
	s.command("HSET", s.key("state"), "gate", lua.GateOpen)
	r := s.audit()
	if !r.Balanced || r.Available != 10 || r.Redis.Stock != 8 || r.MySQL.Releasing != 2 {
		t.Errorf("got %+v", r)
	}
	if n, err := s.intents.Run(t.Context()); n != 1 || err != nil {
		t.Fatalf("intents: %d, %v", n, err)
	}
	s.balanced(10, 0, 0, 0, 10)
}

func TestEachFaultIsFound(t *testing.T) {
	const bound = 200 * time.Millisecond
	// Each sale has an unpaid order of ann, a queued one of bob and a paid one of cyd.
	for name, c := range map[string]struct {
		spoil    func(s *shop, ann, bob, cyd string)
		equation string // part of what a finding names
		who      string // whose order it names; "" for none in particular
	}{
		"an order's row deleted in MySQL":    {func(s *shop, ann, _, _ string) { s.exec(`DELETE FROM orders WHERE id = ?`, ann) }, "R = L", "ann"},
		"an order's status changed in MySQL": {func(s *shop, ann, _, _ string) { s.exec(`UPDATE orders SET status = 'cancelled' WHERE id = ?`, ann) }, "R = L", "ann"},
		"the stock field changed in Redis":   {func(s *shop, _, _, _ string) { s.command("HINCRBY", s.key("state"), "stock", "1") }, "S + |R|", ""},
		"a reservation deleted in Redis":     {func(s *shop, ann, _, _ string) { s.command("HDEL", s.key("orders"), ann) }, "R = L", "ann"},
		"a buyer deleted in Redis":           {func(s *shop, _, _, _ string) { s.command("HDEL", s.key("buyers"), "ann") }, "buyers", "ann"},
		"an outbox entry deleted":            {func(s *shop, _, _, _ string) { s.command("DEL", s.key("outbox")) }, "R = L", "bob"},
		"everything deleted in Redis":        {func(s *shop, _, _, _ string) { backendtest.Wipe(s.t, s.redis, s.sale) }, "in Redis and open", ""},
		"a ledger row deleted":               {func(s *shop, _, _, cyd string) { s.exec(`DELETE FROM ledger WHERE ref = ? AND kind = 'pay'`, cyd) }, "ledger", "cyd"},
		"a slot row deleted": {func(s *shop, ann, _, _ string) {
			s.exec(`DELETE FROM order_slots WHERE order_id = ? AND slot = 2`, ann)
		}, "slots", "ann"},
		"stock moved by hand in MySQL": {func(s *shop, _, _, _ string) {
			s.exec(`UPDATE sale_stock SET available = available + 1, locked = locked - 1 WHERE sale_id = ?`, s.sale)
		}, "locked + sold", ""},
		"the SKU moved by hand": {func(s *shop, _, _, _ string) {
			s.exec(`UPDATE skus SET allotted = allotted - 1, available = available + 1`)
		}, "SKU", ""},
		"the limit changed in Redis": {func(s *shop, _, _, _ string) { s.command("HSET", s.key("state"), "limit", "50") }, "definition", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, backendtest.SaleOptions{Stock: 20, Limit: 3}, time.Minute)
			ids := map[string]string{"ann": s.press("ann", 2), "cyd": s.press("cyd", 1)}
			s.settle()
			if _, err := s.book.Pay(t.Context(), "cyd", ids["cyd"]); err != nil {
				t.Fatal(err)
			}
			ids["bob"] = s.press("bob", 3)
			s.balanced(14, 3, 2, 1, 20)
			c.spoil(s, ids["ann"], ids["bob"], ids["cyd"])
			r := s.audit()
			if r.Balanced || !slices.ContainsFunc(r.Findings, func(f audit.Finding) bool {
				return strings.Contains(f.Equation, c.equation) && (c.who == "" || f.OrderID == ids[c.who])
			}) {
				t.Errorf("balanced %v, findings %v; want one of %q that names %s's order %s", r.Balanced, r.Findings, c.equation, c.who, ids[c.who])
			}
		})
	}
	t.Run("an order queued too long", func(t *testing.T) {
		s := newShop(t, backendtest.SaleOptions{}, bound)
		id := s.press("ann", 1)
		deadline := time.Now().Add(2 * time.Minute)
		var r audit.Result
		for r = s.audit(); r.Balanced && time.Now().Before(deadline); r = s.audit() {
		}
		if r.Balanced || len(r.Findings) != 1 || r.Findings[0].OrderID != id || !strings.Contains(r.Findings[0].Equation, "queued longer") {
			t.Errorf("got %v", r.Findings)
		}
		s.settle()
		s.balanced(9, 0, 1, 0, 10)
	})
}

// The auditor may be asked at any moment of a live sale.
func TestALiveSaleBalances(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 500, Limit: 5}, time.Minute)
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for i := range 150 {
				uid := fmt.Sprintf("u%d", i)
				id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale)
				v, err := s.redis.Reserve(t.Context(), reserve.Request{Sale: s.sale, UID: uid, Quantity: 1 + i%3, OrderID: id, Epoch: 1})
				if err != nil || v.Answer != lua.Reserved {
					return fmt.Errorf("press %d: %+v, %w", i, v, err)
				}
				if i%2 == 1 {
					continue
				}
				snap, err := s.redis.Snapshot(t.Context(), s.sale)
				if err != nil {
					return err
				}
				if err := errors.Join(s.book.Settle(t.Context(), snap.Outbox), s.book.Retire(t.Context(), snap.Outbox)); err != nil {
					return err
				}
				if i%4 == 0 {
					_, err = s.book.Cancel(t.Context(), uid, id)
				} else {
					_, err = s.book.Pay(t.Context(), uid, id)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	audits := 0
	for running := true; running; audits++ {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			running = false
		default:
		}
		if r := s.audit(); !r.Balanced || r.Available+r.Queued+r.Locked+r.Sold != 500 {
			t.Fatalf("audit %d: %+v", audits, r)
		}
	}
	t.Logf("%d audits", audits)
}

func TestUnknownSale(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{}, time.Minute)
	if _, err := s.auditor.Sale(t.Context(), s.sale+1); !errors.Is(err, audit.ErrUnknownSale) {
		t.Errorf("got %v", err)
	}
	if ids, err := s.auditor.Sales(t.Context()); err != nil || !slices.Equal(ids, []int64{s.sale}) {
		t.Errorf("got %v, %v", ids, err)
	}
}

// An order that a reconciler has not got back from the broker yet is not lost.
func TestAnswersWaitForAReconciler(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{}, time.Minute)
	id := s.press("ann", 1)
	snap, err := s.redis.Snapshot(t.Context(), s.sale)
	if err != nil {
		t.Fatal(err)
	}
	answers := func() (audit.Answered, error) {
		return s.auditor.Answers(t.Context(), []audit.Answer{{UID: "ann", Sale: s.sale, Status: 202, OrderID: id, Line: 1}})
	}
	backendtest.Wipe(t, s.redis, s.sale)
	if r, err := answers(); err != nil || r.Balanced || r.Lost != 1 {
		t.Errorf("got %+v, %v; want it lost: no reconciler comes", r, err)
	}
	lock, err := s.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := lock.ExecContext(t.Context(), `LOCK TABLES orders WRITE`); err != nil {
		t.Fatal(err)
	}
	type result struct {
		audit.Answered
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := answers()
		done <- result{r, err}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for waiting := 0; waiting == 0; { // it has seen Redis without the order
		if err := s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'Waiting for table%'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	backendtest.Load(t, s.db, s.redis, s.sale)
	if answers, err := s.redis.Adopt(t.Context(), snap.Outbox[:1], map[int64]int64{s.sale: 1}); err != nil || answers[0] != lua.Adopted {
		t.Fatal(answers, err)
	}
	if _, err := lock.ExecContext(t.Context(), `UNLOCK TABLES`); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.err != nil || !r.Balanced || r.Queued != 1 {
		t.Errorf("got %+v, want it queued", r)
	}
}
