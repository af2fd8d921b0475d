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
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func (w *working) standby(method, uid string, sale int64) *fasthttp.Response {
	w.t.Helper()
	return w.signed(w.request(method, wire.StandbyPath(sale), ""), uid)
}

// stands is the state of the answer, which must be good.
func stands(t testing.TB, res *fasthttp.Response) wire.Standby {
	t.Helper()
	var at wire.Standby
	if err := json.Unmarshal(res.Body(), &at); err != nil || res.StatusCode() != 200 || string(res.Header.Peek("Cache-Control")) != "no-store" {
		t.Fatalf("got %d %s, want a place", res.StatusCode(), res.Body())
	}
	return at
}

// Whom the line refuses, and how.
func TestTheStandbyLineRefuses(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	now := time.Now()
	for what, c := range map[string]struct {
		o    backendtest.SaleOptions
		code problem.Code
	}{
		"upcoming":  {backendtest.SaleOptions{StartsAt: now.Add(time.Hour), EndsAt: now.Add(2 * time.Hour)}, problem.SaleNotStarted},
		"over":      {backendtest.SaleOptions{EndsAt: now.Add(-time.Minute)}, problem.SaleEnded},
		"available": {backendtest.SaleOptions{}, problem.UnitsAvailable}, // also where the sale is not in Redis yet
		"a coupon":  {backendtest.SaleOptions{Kind: wire.Coupon}, problem.SaleStateConflict},
	} {
		sale := backendtest.Sale(t, w.db, c.o)
		res := w.standby("POST", "ann", sale)
		if wantProblem(t, res, c.code, ""); t.Failed() {
			t.Fatal(what)
		}
		wantProblem(t, w.standby("GET", "ann", sale), problem.NotInLine, "")
		wantProblem(t, w.standby("DELETE", "ann", sale), problem.NotInLine, "")
	}
	change := w.lists()
	change(eligibility.Bans, []string{"mallory"}, nil)
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 1})
	id := accepted(t, w.press("ann", sale, "", ""))
	res := w.standby("POST", "ann", sale)
	var p problem.Problem
	if wantProblem(t, res, problem.AlreadyOrdered, ""); json.Unmarshal(res.Body(), &p) != nil || p.OrderID != id {
		t.Errorf("at the limit: got %s, want the order %s", res.Body(), id)
	}
	wantProblem(t, w.standby("POST", "mallory", sale), problem.Forbidden, "")
	wantProblem(t, w.standby("POST", "bob", 999999), problem.SaleNotFound, "")
	wantProblem(t, w.standby("POST", "", sale), problem.Unauthenticated, "")
	wantProblem(t, w.standby("PUT", "bob", sale), problem.MethodNotAllowed, "GET, POST, DELETE")
	wantProblem(t, w.signed(w.request("POST", wire.StandbyPath(sale), `{"x":1}`), "bob"), problem.BadRequest, "x")
	wantProblem(t, w.signed(w.request("POST", wire.StandbyPath(sale)+"?x=1", ""), "bob"), problem.BadRequest, "x")

	for i, uid := range []string{"bob", "cyd", "bob"} {
		if at := stands(t, w.standby("POST", uid, sale)); at.State != wire.StandbyWaiting || *at.Place != i%2+1 || at.Offer != nil {
			t.Errorf("%s joins: got %+v", uid, at)
		}
	}
	wantProblem(t, w.standby("POST", "dan", sale), problem.StandbyFull, "") // of two places
	if _, err := w.db.Exec(`UPDATE sales SET paused = TRUE, version = version + 1 WHERE id = ?`, sale); err != nil {
		t.Fatal(err)
	}
	if err := w.Reconciler.(*reconcile.Reconciler).Sale(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	stands(t, w.standby("GET", "bob", sale))
	stands(t, w.standby("DELETE", "bob", sale))
	if at := stands(t, w.standby("DELETE", "bob", sale)); at.State != wire.StandbyLeft || at.Place != nil {
		t.Errorf("left: got %+v", at)
	}
	wantProblem(t, w.standby("POST", "dan", sale), problem.Overloaded, "paused")
	if at := stands(t, w.standby("GET", "cyd", sale)); *at.Place != 1 {
		t.Errorf("who was second: got %+v", at)
	}
}

// More than a few at a time are in line for the line.
func TestACrowdThatAsksForTheLineIsShed(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 1})
	accepted(t, w.press("ann", sale, "", ""))
	for range standbyAtOnce {
		w.standing <- struct{}{}
	}
	wantProblem(t, w.standby("POST", "bob", sale), problem.Overloaded, "standby lines")
	wantProblem(t, w.standby("GET", "bob", sale), problem.Overloaded, "standby lines")
	<-w.standing
	if at := stands(t, w.standby("POST", "bob", sale)); *at.Place != 1 {
		t.Errorf("got %+v", at)
	}
	if n := len(w.standing); n != standbyAtOnce-1 {
		t.Errorf("%d of %d turns are taken, want %d", n, standbyAtOnce, standbyAtOnce-1)
	}
}

// Paying accepts; leaving with an open offer cancels it; both by the paths of any order as well.
func TestAnOfferIsPaidOrCancelled(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 2})
	var ids []string
	for i := range 2 {
		ids = append(ids, accepted(t, w.press(fmt.Sprint("buyer", i), sale, "", "")))
	}
	w.settleOutbox(sale)
	offered := func(uid string) wire.StandbyOffer {
		t.Helper()
		if _, err := w.Standby.Offer(t.Context(), sale); err != nil {
			t.Fatal(err)
		}
		w.settleOutbox(sale)
		at := stands(t, w.standby("GET", uid, sale))
		if at.State != wire.StandbyOffered || at.Offer == nil {
			t.Fatalf("%s: got %+v, want an offer", uid, at)
		}
		return *at.Offer
	}
	for i, uid := range []string{"ann", "bob"} {
		stands(t, w.standby("POST", uid, sale))
		w.signed(w.request("POST", wire.OrderPath(ids[i])+"/cancellation", ""), fmt.Sprint("buyer", i))
	}
	offered("ann")
	stands(t, w.standby("POST", "cyd", sale))
	for uid, want := range map[string]wire.StandbyState{"ann": wire.StandbyAccepted, "bob": wire.StandbyLeft} {
		offer := offered(uid)
		if again := stands(t, w.standby("POST", uid, sale)); again.Offer == nil || *again.Offer != offer {
			t.Errorf("%s joins with an open offer: got %+v", uid, again)
		}
		if want == wire.StandbyAccepted {
			if res := w.signed(w.request("POST", wire.OrderPath(offer.OrderID)+"/payment", ""), uid); res.StatusCode() != 200 {
				t.Fatalf("%s pays: got %d %s", uid, res.StatusCode(), res.Body())
			}
			wantProblem(t, w.standby("DELETE", uid, sale), problem.OrderStateConflict, "paid")
			wantProblem(t, w.standby("POST", uid, sale), problem.AlreadyOrdered, "")
		} else {
			stands(t, w.standby("DELETE", uid, sale))
		}
		if at := stands(t, w.standby("GET", uid, sale)); at.State != want || at.Offer == nil || at.Offer.OrderID != offer.OrderID {
			t.Errorf("%s: got %+v, want %s", uid, at, want)
		}
	}
	offered("cyd")
}

func (w *working) settleOutbox(sale int64) {
	w.t.Helper()
	entries, _, err := w.redis.Outbox(w.t.Context(), sale)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.Orders.Settle(w.t.Context(), entries); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Orders.Retire(w.t.Context(), entries); err != nil {
		w.t.Fatal(err)
	}
}
