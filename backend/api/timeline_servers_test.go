//go:build servers

package api

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// A backend names the rule by which it answered an order, where the code does not say it, for the gateway to record.
func TestAnAnswerNamesItsRule(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	change := w.lists()
	change(eligibility.Bans, []string{"bob"}, nil)
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 1})
	invited := backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	change(invited, []string{"ann"}, nil)
	rule := func(uid string, sale int64, key, want string) {
		t.Helper()
		res := w.press(uid, sale, key, "")
		if got := string(res.Header.Peek(verdict.HeaderRule)); got != want {
			t.Errorf("%s in sale %d: got rule %q with %d %s, want %q", uid, sale, got, res.StatusCode(), res.Body(), want)
		}
	}
	rule("ann", sale, "k", "")
	rule("ann", sale, "k", "repeated")
	rule("ann", sale, "", "")
	rule("cyd", sale, "", "")
	rule("bob", sale, "", "banned")
	rule("cyd", invited, "", "not_listed")
	w.Outage = func() string { return "mysql" }
	rule("dan", sale, "", "outage")
	w.Outage = nil
	w.Limits.Queued = -1
	rule("dan", sale, "", "queue_full")
}

// Records are taken from gateways, each batch once, unless something is away; and a user reads their own.
func TestRecordsAreTakenAndRead(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	now := wire.At(time.Now())
	b := verdict.Batch{Gateway: "g", Seq: 1, Records: []verdict.Record{{Sale: sale, UID: "ann", Rule: verdict.SoldOut, First: now, Last: now, Count: 2}}}
	hand := func() int {
		t.Helper()
		body, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		return w.signed(w.request("POST", verdict.Path, string(body)), "").StatusCode()
	}
	w.Outage = func() string { return "rabbitmq" }
	if got := hand(); got != 503 {
		t.Errorf("while something is away: got %d", got)
	}
	w.Outage = nil
	for range 2 {
		if got := hand(); got != 204 {
			t.Errorf("got %d", got)
		}
	}
	b.Seq, b.Records[0].Rule = 2, "no_rule"
	if got := hand(); got != 400 {
		t.Errorf("a rule that is none: got %d", got)
	}
	b.Records = slices.Repeat(b.Records, verdict.MaxBatch+1)
	if got := hand(); got != 400 {
		t.Errorf("too many records: got %d", got)
	}
	read := func(uid string, sale int64) (tl verdict.Timeline) {
		t.Helper()
		res := w.signed(w.request("GET", fmt.Sprintf("/v1/sales/%d/timeline", sale), ""), uid)
		if err := json.Unmarshal(res.Body(), &tl); err != nil || res.StatusCode() != 200 || string(res.Header.Peek("Cache-Control")) != "no-store" {
			t.Fatalf("got %d %s", res.StatusCode(), res.Body())
		}
		return tl
	}
	if tl := read("ann", sale); len(tl.Events) != 2 || tl.Events[1].Count != 2 || tl.Events[1].Rule != "sold_out" || tl.UID != "" {
		t.Errorf("got %+v", tl)
	}
	if tl := read("bob", sale); len(tl.Events) != 0 {
		t.Errorf("bob's: got %+v", tl)
	}
	wantProblem(t, w.signed(w.request("GET", "/v1/sales/999999/timeline", ""), "ann"), problem.SaleNotFound, "")
	wantProblem(t, w.signed(w.request("GET", "/v1/sales/x/timeline", ""), "ann"), problem.BadRequest, "")
	wantProblem(t, w.signed(w.request("GET", fmt.Sprintf("/v1/sales/%d/timeline", sale), ""), ""), problem.Unauthenticated, "")
}
