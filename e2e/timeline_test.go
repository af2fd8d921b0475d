//go:build servers

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// timelines asks for timelines, and hands records over as a gateway does.
func (k *walk) timelines(sale int64) {
	k.w.t.Helper()
	at := fmt.Sprintf("/v1/sales/%d/timeline", sale)
	if a := k.public("GET", at, k.tokens[1], "", 200, ""); a.Header.Get("Cache-Control") != "no-store" || strings.Contains(string(a.Body), `"uid"`) {
		k.w.t.Errorf("GET %s: got %s, %v", at, a, a.Header)
	}
	k.public("GET", at, "", "", 401, "UNAUTHENTICATED")
	k.public("POST", at, k.tokens[1], "", 405, "METHOD_NOT_ALLOWED")
	k.public("GET", "/v1/sales/999999/timeline", k.tokens[1], "", 404, "SALE_NOT_FOUND")
	k.public("POST", verdict.Path, k.tokens[1], "{}", 404, "NOT_FOUND")

	signer := signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})
	batch := func(seq int, count int) string {
		return fmt.Sprintf(`{"gateway":"walk","seq":%d,"last":true,"records":[{"sale_id":%d,"uid":"nadia","rule":"behind","first":%q,"last":%[3]q,"count":%d}],"dropped":[]}`,
			seq, sale, time.Now().UTC().Format(wire.TimeFormat), count)
	}
	for _, body := range []string{batch(1, 3), batch(1, 3), batch(2, 4)} { // the second one came before
		c := k.signed(signer, "POST", verdict.Path, "", "", body)
		if a := k.try(c, 204, ""); len(a.Body) != 0 {
			k.w.t.Errorf("records: got %s", a)
		}
	}
	for _, body := range []string{"", "x", "{}", strings.Replace(batch(3, 1), `"behind"`, `"no_rule"`, 1), strings.Replace(batch(3, 1), `"count":1`, `"count":0`, 1), strings.Replace(batch(3, 1), `"seq":3`, `"seq":0`, 1)} {
		k.try(k.signed(signer, "POST", verdict.Path, "", "", body), 400, "BAD_REQUEST")
	}
	k.try(world.Call{Method: "POST", URL: k.w.Ports.InternalURL() + verdict.Path, Body: batch(3, 1)}, 401, "UNAUTHENTICATED")

	if a := k.admin("GET", fmt.Sprintf("/timeline?uid=nadia&sale_id=%d", sale), "", 200, ""); !strings.Contains(string(a.Body), `"count":7,"what":"refused","rule":"behind"`) {
		k.w.t.Errorf("nadia's timeline: got %s", a)
	}
	for _, q := range []string{"", "?uid=nadia", fmt.Sprintf("?sale_id=%d", sale), "?uid=a/b&sale_id=1", "?uid=a&sale_id=0", "?uid=a&sale_id=1&x=1", "?uid=a&uid=b&sale_id=1"} {
		k.admin("GET", "/timeline"+q, "", 400, "BAD_REQUEST")
	}
	k.admin("GET", "/timeline?uid=nadia&sale_id=999999", "", 404, "SALE_NOT_FOUND")
	k.admin("DELETE", "/timeline?uid=nadia&sale_id=1", "", 405, "METHOD_NOT_ALLOWED")
}

// mine is a shopper's timeline as they read it.
func (w *system) mine(sale int64, token string) (verdict.Timeline, world.Answer) {
	w.t.Helper()
	a := w.want(w.public("GET", fmt.Sprintf("/v1/sales/%d/timeline", sale), token, ""), 200, "")
	var t verdict.Timeline
	a.Decode(w.t, &t)
	return t, a
}

// says lists a timeline's events as "what rule count".
func says(t verdict.Timeline) (list []string) {
	for _, e := range t.Events {
		list = append(list, fmt.Sprintf("%s %s %d", e.What, e.Rule, e.Count))
	}
	return list
}

// A shopper is too fast, gives a unit back, comes too late, gets one that came back, and pays; the timeline tells it all, in the
// order of time, to the shopper and to operators, and to nobody else. Row D7: and says nothing of how many there were.
func TestWhyDidntIGetOne(t *testing.T) {
	t.Attr("row", "D7")
	t.Parallel()
	const slow, fast = "{rate: 0.001, burst: 1, max_keys: 1000000}", "{rate: 1, burst: 1, max_keys: 1000000}"
	w := newSystem(t, world.Options{Limits: orders(slow)}) // nobody gets a second token before the limit is changed
	sale := w.newSale("Two lamps", 2, time.Now().Add(time.Hour), 600)
	w.state(sale, wire.Upcoming)
	w.begin(sale)
	tokens := w.tokens(1, 4)
	ann, bob, cyd, dan := tokens[0], tokens[1], tokens[2], tokens[3]
	path := fmt.Sprintf("/v1/sales/%d/orders", sale)
	limited := 0
	order := func(token string) (id string) { // as soon as the limit lets it through
		t.Helper()
		w.until("the limit lets an order through", patience, func() (bool, string) {
			a := w.public("POST", path, token, "")
			if a.Code == "RATE_LIMITED" && token == ann {
				limited++
			}
			id = a.OrderID
			return a.Status == 202, a.String()
		})
		w.order(id, token, wire.PendingPayment)
		return id
	}
	cancel := func(id, token string) {
		t.Helper()
		w.want(w.public("POST", "/v1/orders/"+id+"/cancellation", token, ""), 200, "")
	}

	given := order(ann)
	cancel(given, ann)
	w.want(w.public("POST", path, ann, ""), 429, "RATE_LIMITED")
	limited++
	first := order(bob)
	order(cyd)
	w.state(sale, wire.SoldOut)
	w.want(w.public("POST", path, ann, ""), 409, "SOLD_OUT") // by the gate: of nobody
	cancel(first, bob)
	w.state(sale, wire.Open)
	w.Limits = orders(fast)
	w.must(w.WriteGateway()) // which it watches
	got := order(ann)
	w.want(w.public("POST", "/v1/orders/"+got+"/payment", ann, ""), 200, "")
	w.state(sale, wire.SoldOut)

	want := []string{"sale upcoming 1", "sale open 1", "sale sold_out 1", "sale open 1", "sale sold_out 1", fmt.Sprintf("arrived  %d", 2+limited), "accepted accepted 2",
		fmt.Sprintf("limited order_limit %d", limited), "queued  1", "pending_payment  1", "cancelled  1", "queued  1", "pending_payment  1", "paid  1"}
	sort := func(list []string) []string { return slices.Sorted(slices.Values(list)) }
	var tl verdict.Timeline
	var text string
	w.until("ann's timeline is whole", patience, func() (bool, string) {
		var a world.Answer
		tl, a = w.mine(sale, ann)
		text = string(a.Body)
		return tl.Complete && slices.Equal(sort(says(tl)), sort(want)), a.String()
	})
	at := map[string]time.Time{}
	for i, e := range tl.Events {
		if i > 0 && e.At.Before(tl.Events[i-1].At.Time) || e.Detail == "" || time.Since(e.At.Time) > 5*time.Minute || time.Since(e.At.Time) < -time.Minute {
			t.Errorf("event %d: got %+v", i, e)
		}
		at[e.What+" "+e.Rule] = e.At.Time // the last one
		if (e.What == "queued" || e.What == "paid") && e.OrderID != got && e.OrderID != given {
			t.Errorf("%s of order %s, want %s or %s", e.What, e.OrderID, given, got)
		}
	}
	for _, two := range [][2]string{{"sale upcoming", "queued "}, {"accepted accepted", "pending_payment "}, {"queued ", "pending_payment "}, {"pending_payment ", "paid "}} {
		if at[two[1]].Before(at[two[0]]) {
			t.Errorf("%s stands before %s: %s", two[1], two[0], text)
		}
	}
	if strings.Contains(text, first) || strings.Contains(text, `"uid"`) || strings.Contains(text, "stock") {
		t.Errorf("it tells more than ann's own: %s", text)
	}
	if hers := says(only(w.mine(sale, dan))); slices.ContainsFunc(hers, func(s string) bool { return !strings.HasPrefix(s, "sale ") }) {
		t.Errorf("who did nothing: got %q", hers)
	}

	// The same for operators, on the command line, too.
	a := w.want(w.admin("GET", fmt.Sprintf("/admin/v1/timeline?uid=1&sale_id=%d", sale), ""), 200, "")
	var theirs verdict.Timeline
	a.Decode(w.t, &theirs)
	if !slices.Equal(says(theirs), says(tl)) || theirs.UID != "1" {
		t.Errorf("for operators: got %s, want what ann is told: %s", a, text)
	}
	out, err := w.command(w.ctx, "timeline", "-uid", "2", "-sale", fmt.Sprint(sale))
	if err != nil || !strings.Contains(out, "cancelled") || !strings.Contains(out, "You cancelled the order") || strings.Contains(out, "not complete") {
		t.Errorf("backend timeline: %v\n%s", err, out)
	}

	// The records of a gateway that dies are missing, and that is said.
	w.must(w.Gateway.Kill(w.ctx))
	_, err = w.Books.DB.ExecContext(w.ctx, `UPDATE timeline_gateways SET at = at - INTERVAL 5 MINUTE`)
	w.must(err)
	a = w.want(w.admin("GET", fmt.Sprintf("/admin/v1/timeline?uid=1&sale_id=%d", sale), ""), 200, "")
	a.Decode(w.t, &theirs)
	if theirs.Complete || !strings.Contains(strings.Join(theirs.Missing, ""), "1 gateways have not reported") {
		t.Errorf("after a gateway was killed: got %s", a)
	}
	w.must(w.Gateway.Start(w.ctx))
	if n := len(only(w.mine(sale, ann)).Events); n != len(want) {
		t.Errorf("through another gateway: got %d events, want %d", n, len(want))
	}
}

func only(t verdict.Timeline, _ world.Answer) verdict.Timeline { return t }

// Whatever a crowd is answered stands in the timelines, each press once: nothing is lost and nothing is invented, though the
// gateway is restarted in the middle of it.
func TestEveryAnswerIsInATimeline(t *testing.T) {
	t.Parallel()
	const users, presses = 40, 6
	w := newSystem(t, world.Options{Limits: orders("{rate: 1, burst: 3, max_keys: 1000000}")})
	sale := w.newSale("Mugs", users/2, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, users)
	var mu sync.Mutex // guards told
	told := map[string]int64{}
	gated := int64(0)
	round := func() {
		const gate = `gateway_refusals_total{rule="gate"}`
		before := int64(w.Metric(t, w.Ports.OpsURL(), gate)) // who asked for a sale that the gate did not know is in it, too
		var wg sync.WaitGroup
		for i, token := range tokens {
			for range presses {
				wg.Go(func() {
					a := w.press(w.ctx, sale, token, "")
					rule := map[string]verdict.Rule{"": verdict.Accepted, "RATE_LIMITED": verdict.OrderLimit, "SOLD_OUT": verdict.SoldOut, "ALREADY_ORDERED": verdict.AlreadyOrdered}[a.Code]
					if a.Status == 0 || rule == "" {
						t.Errorf("user %d: got %s", i+1, a)
						return
					}
					mu.Lock()
					told[fmt.Sprint(i+1, " ", rule)]++
					mu.Unlock()
				})
			}
		}
		wg.Wait()
		gated += int64(w.Metric(t, w.Ports.OpsURL(), gate)) - before
	}
	round()
	w.must(w.Gateway.Restart(w.ctx))
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/restock", sale), fmt.Sprintf(`{"quantity":%d}`, users)), 200, "")
	w.state(sale, wire.Open)
	round()

	// What the gate refused is of nobody: of SOLD_OUT as much as the gate counted is missing, of the others nothing.
	var kept map[string]int64
	w.until("all is handed over", patience, func() (bool, string) {
		kept = map[string]int64{}
		rows, err := w.Books.DB.QueryContext(w.ctx, `SELECT uid, rule, times FROM timeline WHERE sale_id = ?`, sale)
		w.must(err)
		defer rows.Close()
		var keptAll, toldAll int64
		for rows.Next() {
			var uid, rule string
			var n int64
			w.must(rows.Scan(&uid, &rule, &n))
			kept[uid+" "+rule] = n
			keptAll += n
		}
		w.must(rows.Err())
		for _, n := range told {
			toldAll += n
		}
		return keptAll == toldAll-gated, fmt.Sprintf("%d presses were answered, %d of them by the gate, %d are recorded", toldAll, gated, keptAll)
	})
	for k, n := range kept {
		if m := told[k]; strings.HasSuffix(k, string(verdict.SoldOut)) && n > m || !strings.HasSuffix(k, string(verdict.SoldOut)) && n != m {
			t.Errorf("%s: %d times in the timeline, and answered %d times", k, n, m)
		}
	}
	var accepted, limited int64
	for k, n := range kept {
		switch _, rule, _ := strings.Cut(k, " "); verdict.Rule(rule) {
		case verdict.Accepted:
			accepted += n
		case verdict.OrderLimit:
			limited += n
		}
	}
	if accepted != users || limited == 0 {
		t.Errorf("%d presses were accepted, and %d limited: %v", accepted, limited, slices.Collect(maps.Keys(kept)))
	}
}
