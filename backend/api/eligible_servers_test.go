//go:build servers

package api

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// lists gives the server the lists of who may buy; the function changes one of them, and lets the server know.
func (w *working) lists() (change func(list int64, add, remove []string)) {
	w.Lists = eligibility.New(eligibility.Config{DB: w.db, Log: backendtest.Log(w.t), Register: prometheus.NewRegistry()})
	return func(list int64, add, remove []string) {
		w.t.Helper()
		err := store.InTx(w.t.Context(), w.db, func(tx *sql.Tx) error {
			if list != eligibility.Bans && remove == nil {
				_, _, err := eligibility.Replace(w.t.Context(), tx, list, time.Now().UTC(), add)
				return err
			}
			_, _, err := eligibility.Change(w.t.Context(), tx, list, time.Now().UTC(), add, remove)
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
		if err := w.Lists.Refresh(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
}

// Row D13.
func TestWhoMayNotBuyIsToldSo(t *testing.T) {
	t.Attr("row", "D13")
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	change := w.lists()
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 10, Limit: 2})
	wantProblem(t, w.press("ann", sale, "", ""), problem.Overloaded, "being read") // nothing is known yet
	change(eligibility.Bans, []string{"bob"}, nil)
	first := accepted(t, w.press("ann", sale, "k", `{"quantity":2}`))
	wantProblem(t, w.press("bob", sale, "", ""), problem.Forbidden, "this account may not buy here")

	// A ban does not take what was promised before, and a repeat is told of it.
	change(eligibility.Bans, []string{"ann"}, []string{"bob"})
	wantProblem(t, w.press("ann", sale, "", ""), problem.Forbidden, "orders that it has stand")
	wantProblem(t, w.press("ann", sale, "other", ""), problem.Forbidden, "orders that it has stand")
	if again := accepted(t, w.press("ann", sale, "k", `{"quantity":2}`)); again != first {
		t.Errorf("a repeat: got %s, want the first order %s", again, first)
	}
	wantProblem(t, w.press("ann", sale, "k", ""), problem.IdempotencyKeyReused, "")
	res := w.signed(w.request("GET", wire.OrderPath(first), ""), "ann")
	var o wire.Order
	if err := json.Unmarshal(res.Body(), &o); err != nil || o.Status != wire.Queued {
		t.Errorf("her order: got %s", res.Body())
	}
	accepted(t, w.press("bob", sale, "", ""))

	change(sale, []string{"cyd"}, nil)
	wantProblem(t, w.press("dan", sale, "", ""), problem.Forbidden, "invited accounts only")
	accepted(t, w.press("cyd", sale, "", ""))
	other := backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	accepted(t, w.press("dan", other, "", "")) // another sale has no list
	wantProblem(t, w.press("ann", other, "k", ""), problem.Forbidden, "")
	for why, want := range map[eligibility.Refusal]float64{eligibility.Banned: 6, eligibility.NotListed: 1} {
		if got := testutil.ToFloat64(w.metrics.refused[why]); got != want {
			t.Errorf("%s: counted %v, want %v", why, got, want)
		}
	}
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil || len(snap.Orders) != 3 {
		t.Errorf("%d reservations, %v; want ann's, bob's and cyd's", len(snap.Orders), err)
	}
	l := newLink(t, os.Getenv("REDIS_ADDR"))
	away, err := reserve.Open(redis.Config{Addrs: []string{l.Addr().String()}, Prefix: w.redis.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.cut()
	away.Close()
	w.Redis = away
	wantProblem(t, w.press("ann", sale, "k", `{"quantity":2}`), problem.Overloaded, "cannot be looked up") // never "no" to who may have one
}

// Row D13: a ban holds for carts, too; a cart that was ordered before stands.
func TestWhoIsBannedMayNotBuyACart(t *testing.T) {
	t.Attr("row", "D13")
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	change := w.lists()
	sku := backendtest.SKU(t, w.db, 5, 100, "EUR")
	body := fmt.Sprintf(`{"items":[{"sku_id":%d}]}`, sku)
	wantProblem(t, w.cart("ann", "k", body), problem.Overloaded, "being read") // nothing is known yet
	change(eligibility.Bans, []string{"bob"}, nil)
	first := string(w.cart("ann", "k", body).Body())
	change(eligibility.Bans, []string{"ann"}, nil)
	if again := w.cart("ann", "k", body); again.StatusCode() != 200 || string(again.Body()) != first {
		t.Errorf("a repeat: got %d %s, want %s", again.StatusCode(), again.Body(), first)
	}
	wantProblem(t, w.cart("ann", "other", body), problem.Forbidden, "orders that it has stand")
	wantProblem(t, w.cart("ann", "k", `{"items":[{"sku_id":999}]}`), problem.IdempotencyKeyReused, "")
	wantProblem(t, w.cart("bob", "k", body), problem.Forbidden, "")
	if u := backendtest.SKUBalanced(t, w.db, w.redis.Client(), sku); u != (backendtest.Units{Available: 4, Locked: 1}) {
		t.Errorf("got %+v", u)
	}
}

// Row D13: where accepted orders come from is counted, as the gateway signed it.
func TestWhereOrdersComeFromIsCounted(t *testing.T) {
	t.Attr("row", "D13")
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	w.Origins = origins.New(w.Clock.Now())
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 3})
	press := func(uid, network string) int {
		req := w.request("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), "")
		if network != "" {
			req.Header.Set(signing.HeaderClient, network)
		}
		return w.signed(req, uid).StatusCode()
	}
	for i, network := range []string{"203.0.113.0/24", "203.0.113.0/24", "", "203.0.113.0/24"} {
		if code, want := press(fmt.Sprint("u", i), network), map[bool]int{true: 202, false: 409}[i < 3]; code != want {
			t.Errorf("press %d: got %d, want %d", i, code, want)
		}
	}
	got := w.Origins.Of(sale)
	if got.Orders != 3 || fmt.Sprint(got.Networks) != "[{203.0.113.0/24 2 2} {unknown 1 1}]" {
		t.Errorf("got %+v; what was refused does not count", got)
	}
}

// A press on an archived sale is answered from MySQL, as one on a sale that has ended is from Redis.
func TestAnArchivedSaleAnswersLikeOneThatEnded(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 10, Limit: 3})
	first := accepted(t, w.press("ann", sale, "k", `{"quantity":2}`))
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil {
		t.Fatal(err)
	}
	book := order.NewStore(order.Config{DB: w.db, Redis: w.redis, Clock: w.Clock, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err := book.Settle(t.Context(), snap.Outbox); err != nil {
		t.Fatal(err)
	}
	if _, err := book.Pay(t.Context(), "ann", first); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Exec(`UPDATE sales SET archived_at = ?, closed_at = ? WHERE id = ?`, time.Now().UTC(), time.Now().UTC(), sale); err != nil {
		t.Fatal(err)
	}
	backendtest.Wipe(t, w.redis, sale)
	answers := func(when string) {
		t.Helper()
		wantProblem(t, w.press("bob", sale, "", ""), problem.SaleEnded, "the sale has ended")
		wantProblem(t, w.press("bob", sale, "k", ""), problem.SaleEnded, "the sale has ended")
		wantProblem(t, w.press("ann", sale, "", ""), problem.SaleEnded, "the sale has ended")
		if again := accepted(t, w.press("ann", sale, "k", `{"quantity":2}`)); again != first {
			t.Errorf("%s: got %s, want the first order %s", when, again, first)
		}
		wantProblem(t, w.press("ann", sale, "k", `{"quantity":1}`), problem.IdempotencyKeyReused, "")
		wantProblem(t, w.press("ann", sale, "k", `{"quantity":0}`), problem.BadRequest, "quantity")
		if snap, err := w.redis.Snapshot(t.Context(), sale); err != nil || snap.Keys != 0 {
			t.Errorf("%s: %d keys are in Redis again, %v", when, snap.Keys, err)
		}
	}
	answers("before the catalog has heard of it, or when")
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers("when the catalog knows")
	res := w.signed(w.request("GET", fmt.Sprintf("/v1/sales/%d", sale), ""), "")
	var s wire.Sale
	if err := json.Unmarshal(res.Body(), &s); err != nil || res.StatusCode() != 200 || s.State != wire.Ended {
		t.Errorf("the sale: got %d %s", res.StatusCode(), res.Body())
	}
	res = w.signed(w.request("GET", "/v1/sales", ""), "")
	var list wire.SaleList
	if err := json.Unmarshal(res.Body(), &list); err != nil || len(list.Sales) != 0 {
		t.Errorf("the list: got %s", res.Body())
	}
	res = w.signed(w.request("GET", wire.OrderPath(first), ""), "ann")
	var o wire.Order
	if err := json.Unmarshal(res.Body(), &o); err != nil || o.Status != wire.Paid {
		t.Errorf("the order: got %s", res.Body())
	}
	mine := fmt.Sprintf("/v1/orders?sale_id=%d", sale)
	res = w.signed(w.request("GET", mine, ""), "ann")
	var orders wire.OrderList
	if err := json.Unmarshal(res.Body(), &orders); err != nil || len(orders.Orders) != 1 || orders.Orders[0].OrderID != first {
		t.Errorf("her orders: got %s", res.Body())
	}
	wantProblem(t, w.signed(w.request("GET", wire.OrderPath(wire.NewOrderID("0190163d-8694-739b-aea5-966c26f8ad91", sale)), ""), "ann"), problem.OrderNotFound, "")

	// One that was archived long ago is in nobody's memory.
	if _, err := w.db.Exec(`UPDATE sales SET archived_at = '2001-01-01' WHERE id = ?`, sale); err != nil {
		t.Fatal(err)
	}
	_, err = w.db.Exec(`INSERT INTO sales (sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, created_at, archived_at)
		WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 32)
		SELECT sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, created_at, ends_at FROM sales, n AS a, n AS b WHERE id = ?`, sale)
	if err != nil { // 1,024, catalog.MaxArchived and some
		t.Fatal(err)
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers("known to MySQL alone")
	wantProblem(t, w.signed(w.request("GET", fmt.Sprintf("/v1/sales/%d", sale), ""), ""), problem.SaleNotFound, "")
}
