//go:build servers

package api

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// settleAll does what a consumer does.
func (w *working) settleAll(sale int64) {
	w.t.Helper()
	snap, err := w.redis.Snapshot(w.t.Context(), sale)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.Orders.Settle(w.t.Context(), snap.Outbox); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Orders.Retire(w.t.Context(), snap.Outbox); err != nil {
		w.t.Fatal(err)
	}
}

func (w *working) coupons(uid, query string) wire.ClaimList {
	w.t.Helper()
	res := w.signed(w.request("GET", wire.CouponsPath+query, ""), uid)
	var list wire.ClaimList
	if err := json.Unmarshal(res.Body(), &list); res.StatusCode() != 200 || err != nil || string(res.Header.Peek("Cache-Control")) != "no-store" {
		w.t.Fatalf("got %d %s, %v", res.StatusCode(), res.Body(), err)
	}
	return list
}

// Row C1: claims are listed to their owner page by page, used once, and are nobody else's.
func TestCoupons(t *testing.T) {
	t.Attr("row", "C1")
	w := work(t, Limits{InFlight: 100, Waiting: 1, Connections: 100, Queued: 1000, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Kind: wire.Coupon, Stock: 100, Limit: 60})
	id := accepted(t, w.press("ann", sale, "", `{"quantity":59}`))
	if list := w.coupons("ann", ""); len(list.Coupons) != 0 {
		t.Errorf("before the order is issued: got %+v", list)
	}
	w.settleAll(sale)
	wantProblem(t, w.press("ann", sale, "", `{"quantity":2}`), problem.AlreadyOrdered, "")
	first := w.coupons("ann", "")
	second := w.coupons("ann", "?cursor="+first.Next)
	if len(first.Coupons) != pageSize || len(second.Coupons) != 59-pageSize || second.Next != "" {
		t.Fatalf("got %d and %d claims, then %q", len(first.Coupons), len(second.Coupons), second.Next)
	}
	seen := map[string]bool{}
	for _, x := range append(first.Coupons, second.Coupons...) {
		if x.OrderID != id || x.SaleID != sale || x.State != wire.ClaimNew || seen[x.ClaimID] {
			t.Errorf("got %+v", x)
		}
		seen[x.ClaimID] = true
	}
	claim := second.Coupons[0].ClaimID
	use := func(uid, claim, body string) *fasthttp.Response {
		return w.signed(w.request("POST", wire.UsePath(claim), body), uid)
	}
	wantProblem(t, use("bob", claim, ""), problem.NotFound, "you have no coupon")
	wantProblem(t, use("", claim, ""), problem.Unauthenticated, "user")
	wantProblem(t, use("ann", "nonsense", ""), problem.NotFound, "you have no coupon")
	wantProblem(t, use("ann", wire.NewClaimID(id, 60), ""), problem.NotFound, "you have no coupon")
	wantProblem(t, use("ann", claim, `{"uid":"ann"}`), problem.BadRequest, "uid: unknown member")
	wantProblem(t, w.signed(w.request("POST", wire.UsePath(claim)+"?force=1", ""), "ann"), problem.BadRequest, "force")
	wantProblem(t, w.signed(w.request("GET", wire.UsePath(claim), ""), "ann"), problem.MethodNotAllowed, "")
	wantProblem(t, w.signed(w.request("POST", wire.CouponsPath, ""), "ann"), problem.MethodNotAllowed, "")
	wantProblem(t, w.signed(w.request("GET", wire.CouponsPath, ""), ""), problem.Unauthenticated, "user")
	for _, query := range []string{"?cursor=x", "?cursor=" + id, "?cursor=%00", "?limit=1"} {
		wantProblem(t, w.signed(w.request("GET", wire.CouponsPath+query, ""), "ann"), problem.BadRequest, "")
	}
	for _, path := range []string{wire.CouponsPath + "/", wire.CouponsPath + "/" + claim, wire.CouponsPath + "/" + claim + "/use/x", wire.CouponsPath + "//use"} {
		wantProblem(t, w.signed(w.request("POST", path, ""), "ann"), problem.NotFound, "no such path")
	}
	res := use("ann", claim, "{}")
	var used wire.Claim
	if err := json.Unmarshal(res.Body(), &used); res.StatusCode() != 200 || err != nil || used.State != wire.ClaimUsed || used.UsedAt == nil || used.ClaimID != claim {
		t.Errorf("got %d %s, %v", res.StatusCode(), res.Body(), err)
	}
	wantProblem(t, use("ann", claim, ""), problem.OrderStateConflict, "was used at")
	backendtest.Balanced(t, w.db, sale)
}

// Row C1: a claim that asks for a category is made only where the campaign is of it, and is told which it is of.
func TestAClaimAsksForACategory(t *testing.T) {
	t.Attr("row", "C1")
	w := work(t, Limits{InFlight: 100, Waiting: 1, Connections: 100, Queued: 1000, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"))
	shoes := backendtest.Sale(t, w.db, backendtest.SaleOptions{Kind: wire.Coupon, Stock: 10, Limit: 5})
	goods := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 10, Limit: 5})
	if _, err := w.db.Exec(`UPDATE sales SET category = 'shoes' WHERE id = ?`, shoes); err != nil {
		t.Fatal(err)
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, w.press("ann", shoes, "k", `{"quantity":1,"category":"hats"}`), problem.BadRequest, `of category "shoes"`)
	wantProblem(t, w.press("ann", shoes, "k", `{"category":""}`), problem.BadRequest, `of category "shoes"`)
	wantProblem(t, w.press("ann", goods, "", `{"category":""}`), problem.BadRequest, "no coupon campaign")
	snap, err := w.redis.Snapshot(t.Context(), shoes)
	if err != nil || len(snap.Orders) != 0 {
		t.Errorf("a refused claim took something: %+v, %v", snap.Orders, err)
	}
	first := accepted(t, w.press("ann", shoes, "k", `{"quantity":1,"category":"shoes"}`))
	if second := accepted(t, w.press("ann", shoes, "", `{"quantity":2}`)); second == first {
		t.Errorf("got order %s again", first)
	}
	var told wire.Sale
	for sale, want := range map[int64]string{shoes: "shoes", goods: ""} {
		res := w.signed(w.request("GET", fmt.Sprintf("/v1/sales/%d", sale), ""), "")
		if err := json.Unmarshal(res.Body(), &told); err != nil || told.Category != want {
			t.Errorf("the page of sale %d: got %s, %v; want category %q", sale, res.Body(), err, want)
		}
		told = wire.Sale{}
	}
	// The campaign changes its category: what was accepted before is repeated all the same.
	if _, err := w.db.Exec(`UPDATE sales SET category = 'hats' WHERE id = ?`, shoes); err != nil {
		t.Fatal(err)
	}
	until(t, "the catalog has heard of it", func() bool {
		return w.press("bob", shoes, "", `{"quantity":1,"category":"shoes"}`).StatusCode() == 400
	})
	if again := accepted(t, w.press("ann", shoes, "k", `{"quantity":1,"category":"shoes"}`)); again != first {
		t.Errorf("a repeat: got order %s, want %s", again, first)
	}
}

// Row C1: what is not published is unknown to the public, and what was issued before is its owner's all the same.
func TestAHiddenCampaign(t *testing.T) {
	t.Attr("row", "C1")
	w := work(t, Limits{InFlight: 100, Waiting: 1, Connections: 100, Queued: 1000, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Kind: wire.Coupon, Stock: 100, Limit: 2})
	id := accepted(t, w.press("ann", sale, "", ""))
	if _, err := w.db.ExecContext(t.Context(), `UPDATE sales SET published = FALSE, version = version + 1 WHERE id = ?`, sale); err != nil {
		t.Fatal(err)
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, w.press("bob", sale, "", ""), problem.SaleNotFound, "")
	w.settleAll(sale)
	list := w.coupons("ann", "")
	if len(list.Coupons) != 1 || list.Coupons[0].OrderID != id {
		t.Fatalf("got %+v", list)
	}
	if res := w.signed(w.request("POST", wire.UsePath(list.Coupons[0].ClaimID), ""), "ann"); res.StatusCode() != 200 {
		t.Errorf("got %d %s", res.StatusCode(), res.Body())
	}
	if res := w.signed(w.request("GET", wire.OrderPath(id), ""), "ann"); res.StatusCode() != 200 {
		t.Errorf("got %d %s", res.StatusCode(), res.Body())
	}
}
