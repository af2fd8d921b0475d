//go:build servers

package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/cart"
	"floodgate.internal/backend/intent"
	orders "floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// carts is carts on the real stores.
type carts struct {
	t       *testing.T
	db      *sql.DB
	redis   *reserve.Store
	carts   *cart.Carts
	book    *orders.Store
	intents *intent.Runner
	skus    *sku.Cache
	n       int
}

func newCarts(t *testing.T) *carts {
	t.Helper()
	s := &carts{t: t, db: backendtest.MySQL(t), redis: backendtest.Redis(t)}
	clk, log, reg := new(clock.Clock), backendtest.Log(t), prometheus.NewRegistry()
	s.skus = sku.NewCache(sku.Config{DB: s.db, Redis: s.redis.Client(), Log: log, Register: reg})
	s.carts = cart.New(cart.Config{PayWithin: time.Minute, MaxInFlight: 10, DB: s.db, SKUs: s.skus, Clock: clk, Log: log, Register: reg})
	s.intents = intent.New(intent.Config{DB: s.db, Sales: sale.Reader{DB: s.db}, Redis: s.redis, Clock: clk, Log: log, Register: reg})
	s.book = orders.NewStore(orders.Config{Intents: s.intents, DB: s.db, Redis: s.redis, Clock: clk, Log: log, Register: reg})
	return s
}

func (s *carts) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *carts) exec(query string, args ...any) {
	s.t.Helper()
	_, err := s.db.ExecContext(s.t.Context(), query, args...)
	s.must(err)
}

func (s *carts) cart(skuID, units int64) string {
	s.t.Helper()
	s.n++
	body, _, err := s.carts.Place(s.t.Context(), "ann", fmt.Sprint(s.n), []wire.CartItem{{SKU: skuID, Quantity: units}})
	s.must(err)
	var a wire.CartAnswer
	s.must(json.Unmarshal(body, &a))
	if a.OrderID == nil {
		s.t.Fatalf("got %s", body)
	}
	return *a.OrderID
}

// sku has 20 units: 11 available, 2 of an unpaid order, 3 of a paid one, 4 allotted to a sale; and an order was cancelled.
func (s *carts) sku() (skuID int64, unpaid, paid string) {
	s.t.Helper()
	skuID = backendtest.SKU(s.t, s.db, 20, 100, "EUR")
	sale := backendtest.Sale(s.t, s.db, backendtest.SaleOptions{Stock: 4})
	s.exec(`UPDATE sales SET sku_id = ? WHERE id = ?`, skuID, sale)
	s.exec(`UPDATE skus SET available = 16, allotted = 4 WHERE id = ?`, skuID)
	s.exec(`INSERT INTO sku_ledger (sku_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
		VALUES (?, 'allot', 'intent:0', 20, -4, 16, 0, 0, 0, ?)`, skuID, time.Now())
	unpaid, paid = s.cart(skuID, 2), s.cart(skuID, 3)
	cancelled := s.cart(skuID, 5)
	_, err := s.book.Pay(s.t.Context(), "ann", paid)
	s.must(err)
	_, err = s.book.Cancel(s.t.Context(), "ann", cancelled)
	s.must(err)
	return skuID, unpaid, paid
}

func (s *carts) redisSet(skuID int64, name, field, value string) {
	s.t.Helper()
	c := s.redis.Client()
	s.must(c.Do(s.t.Context(), c.B().Hset().Key(fmt.Sprintf("%s{sku:%d}:%s", s.redis.Client().Prefix(), skuID, name)).FieldValue().FieldValue(field, value).Build()).Error())
}

func (s *carts) redisDel(skuID int64, name string) {
	s.t.Helper()
	c := s.redis.Client()
	s.must(c.Do(s.t.Context(), c.B().Del().Key(fmt.Sprintf("%s{sku:%d}:%s", s.redis.Client().Prefix(), skuID, name)).Build()).Error())
}

// Row E1, Row E5: a SKU that is in order, loaded or not, and with something in flight.
func TestASKUInOrderIsBalanced(t *testing.T) {
	t.Attr("row", "E1 E5")
	s := newCarts(t)
	skuID, unpaid, _ := s.sku()
	a := New(Config{DB: s.db, Redis: s.redis, QueuedBound: time.Hour})
	want := func(f func(SKU) bool) {
		t.Helper()
		r, err := a.SKU(t.Context(), skuID)
		if err != nil || !r.Balanced || r.Available+r.Allotted+r.Locked+r.Sold != r.Total || !f(r) {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	want(func(r SKU) bool {
		return r.Total == 20 && r.Available == 11 && r.Locked == 2 && r.Sold == 3 && r.Redis.Available == 11 && r.Lines == 1 && r.Redis.Orders == 1
	})
	// Units that a cart has locked, a payment and a restock that are not in Redis yet.
	if _, err := s.skus.Lock(t.Context(), wire.NewCartOrderID("0190163d-8694-739b-aea5-966c26f8ad91"), []sku.Line{{SKU: skuID, Units: 4}}); err != nil {
		t.Fatal(err)
	}
	s.exec(`UPDATE orders SET status = 'paid' WHERE id = ?`, unpaid)
	s.exec(`UPDATE cart_lines SET held = FALSE WHERE order_id = ?`, unpaid)
	s.exec(`UPDATE skus SET locked = 0, sold = 5, available = available + 6, total = total + 6 WHERE id = ?`, skuID)
	s.exec(`INSERT INTO sku_ledger (sku_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
		VALUES (?, 'pay', ?, 11, 0, 11, 2, -2, 0, ?), (?, 'restock', 'intent:1', 11, 6, 17, 0, 0, 0, ?)`, skuID, unpaid, time.Now(), skuID, time.Now())
	s.exec(`INSERT INTO sku_intents (sku_id, kind, order_id, lock_id, quantity, created_at) SELECT sku_id, 'sold', order_id, lock_id, 0, NOW() FROM cart_lines WHERE order_id = ?`, unpaid)
	s.exec(`INSERT INTO sku_intents (sku_id, kind, quantity, created_at) VALUES (?, 'adjust', 6, NOW())`, skuID)
	want(func(r SKU) bool { return r.Redis.InFlight == 4 && r.Intents == 2 })
	if n, err := s.intents.RunSKUs(t.Context()); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	want(func(r SKU) bool { return r.Redis.Sold == 5 && r.Redis.Available == 13 && r.Intents == 0 })
	s.redisDel(skuID, "state")
	want(func(r SKU) bool { return !r.Redis.Loaded })
	if ids, err := a.SKUs(t.Context()); err != nil || len(ids) != 1 || ids[0] != skuID {
		t.Errorf("SKUs: got %v, %v", ids, err)
	}
	if _, err := a.SKU(t.Context(), 999); !errors.Is(err, ErrUnknownSKU) {
		t.Errorf("got %v", err)
	}
}

// Each of these is found, and named.
func TestWhatIsWrongWithASKUIsFound(t *testing.T) {
	s := newCarts(t)
	for name, c := range map[string]struct {
		plant    func(skuID int64, unpaid, paid string)
		equation string
		says     string
	}{
		"a unit is allotted to no sale": {func(skuID int64, _, _ string) {
			s.exec(`UPDATE skus SET available = available - 1, allotted = allotted + 1 WHERE id = ?`, skuID)
		}, eqSKU, "allotted is 5"},
		"a unit is sold by nobody": {func(skuID int64, _, _ string) {
			s.exec(`UPDATE skus SET sold = sold + 1, total = total + 1 WHERE id = ?`, skuID)
		}, eqSKULines, "sold 4"},
		"an order was cancelled by hand": {func(_ int64, unpaid, _ string) {
			s.exec(`UPDATE orders SET status = 'cancelled' WHERE id = ?`, unpaid)
		}, eqSKULines, "held of its line is true"},
		"an order has no row": {func(_ int64, _, paid string) {
			s.exec(`DELETE FROM orders WHERE id = ?`, paid)
		}, eqSKULines, "gone"},
		"a ledger row is gone": {func(skuID int64, unpaid, _ string) {
			s.exec(`DELETE FROM sku_ledger WHERE ref = ?`, unpaid)
		}, eqSKULedger, "add up to available 13"},
		"a ledger row does not add up": {func(skuID int64, unpaid, _ string) {
			s.exec(`UPDATE sku_ledger SET available_after = available_after + 1 WHERE ref = ?`, unpaid)
		}, eqSKULedger, "before + change is not after"},
		"an order's end is not in the ledger": {func(_ int64, _, paid string) {
			s.exec(`UPDATE sku_ledger SET kind = 'cancel' WHERE kind = 'pay' AND ref = ?`, paid)
		}, eqSKULedger, "no row of kind pay"},
		"a request lost its answer": {func(_ int64, unpaid, _ string) {
			s.exec(`UPDATE cart_requests SET answer = NULL WHERE order_id = ?`, unpaid)
		}, eqSKURequest, "order again"},
		"Redis has a unit too many": {func(skuID int64, _, _ string) { s.redisSet(skuID, "state", "available", "12") }, eqSKURedis, "available 12"},
		"Redis sells more than there is": {func(skuID int64, _, _ string) {
			s.redisSet(skuID, "state", "available", "12")
			s.redisSet(skuID, "state", "total", "17")
		}, eqSKUTotals, "total 17"},
		"Redis has sold another one": {func(skuID int64, _, _ string) {
			s.redisSet(skuID, "state", "available", "10")
			s.redisSet(skuID, "state", "sold", "4")
		}, eqSKUTotals, "sold 4"},
		"an unpaid order's units are not locked": {func(skuID int64, _, _ string) { s.redisDel(skuID, "orders") }, eqSKUHeld, "not locked in Redis"},
		"an unpaid order has other units locked": {func(skuID int64, unpaid, _ string) { s.redisSet(skuID, "orders", unpaid, "1 1.1") }, eqSKUHeld, "1 units are locked in Redis"},
		"an unpaid order has another lock":       {func(skuID int64, unpaid, _ string) { s.redisSet(skuID, "orders", unpaid, "2 1.99") }, eqSKUHeld, "lock 1.99"},
		"a paid order's units are still locked":  {func(skuID int64, _, paid string) { s.redisSet(skuID, "orders", paid, "3 1.2") }, eqSKUHeld, "the order is paid"},
		"a lock of no order, that nobody sweeps": {func(skuID int64, _, _ string) {
			s.redisSet(skuID, "orders", wire.NewCartOrderID("0190163d-8694-739b-aea5-966c26f8ad91"), "1 1.9")
		}, eqSKUHeld, "MySQL does not have"},
		"a lock of no order, swept too late": {func(skuID int64, _, _ string) {
			if _, err := s.skus.Lock(t.Context(), "o", []sku.Line{{SKU: skuID, Units: 1}}); err != nil {
				t.Fatal(err)
			}
			c := s.redis.Client()
			s.must(c.Do(t.Context(), c.B().Zadd().Key(fmt.Sprintf("%s{sku:%d}:open", s.redis.Client().Prefix(), skuID)).ScoreMember().ScoreMember(float64(time.Now().Add(-time.Hour).UnixMilli()), "o").Build()).Error())
		}, eqSKUHeld, "for longer than"},
		"Redis is an older copy":     {func(skuID int64, _, _ string) { s.exec(`UPDATE skus SET epoch = 7 WHERE id = ?`, skuID) }, eqSKUEpoch, "MySQL in epoch 7"},
		"a loader died and is stuck": {func(skuID int64, _, _ string) { s.redisSet(skuID, "state", "gate", "closed") }, eqSKUEpoch, "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			skuID, unpaid, paid := s.sku()
			c.plant(skuID, unpaid, paid)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := New(Config{DB: s.db, Redis: s.redis, QueuedBound: time.Second, Abandoned: time.Minute}).SKU(ctx, skuID)
			if err != nil || r.Balanced {
				t.Fatalf("got %+v, %v", r, err)
			}
			for _, f := range r.Findings {
				if f.Equation == c.equation && strings.Contains(f.Detail, c.says) && f.Fix != "" && f.Key != "" {
					return
				}
			}
			t.Errorf("got %v, want %q that says %q", r.Findings, c.equation, c.says)
		})
	}
}
