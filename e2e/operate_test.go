//go:build servers

package e2e

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// operate asks what running a sale takes: archive, orders, the lists of who may buy, concentration, the audit log of a target.
func (k *walk) operate() {
	k.w.t.Helper()
	keyed := func(method, path, key, body string, status int, code string) world.Answer {
		k.w.t.Helper()
		return k.try(world.Call{Method: method, URL: k.w.Ports.AdminURL() + "/admin/v1" + path, Token: development.AdminToken, Key: key, Body: body}, status, code)
	}
	sale := k.w.newSale("Operated", 3, time.Now().Add(-time.Minute), 600)
	at := fmt.Sprintf("/sales/%d", sale)
	k.w.state(sale, wire.Open)
	order := k.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), k.tokens[12], "", 202, "").OrderID
	k.w.order(order, k.tokens[12], wire.PendingPayment)

	for _, q := range []string{"", "?uid=13", fmt.Sprintf("?sale_id=%d", sale), "?status=pending_payment", fmt.Sprintf("?uid=13&sale_id=%d&status=pending_payment&limit=1", sale)} {
		if a := k.admin("GET", "/orders"+q, "", 200, ""); !strings.Contains(string(a.Body), order) {
			k.w.t.Errorf("orders%s: got %s, want order %s in it", q, a, order)
		}
	}
	for _, q := range []string{"?uid=a/b", "?sale_id=x", "?status=queued", "?status=none", "?cursor=x", "?limit=0", "?limit=201", "?user=1"} {
		k.admin("GET", "/orders"+q, "", 400, "BAD_REQUEST")
	}
	if a := k.admin("GET", at+"/orders.csv", "", 200, ""); !strings.Contains(string(a.Body), order) {
		k.w.t.Errorf("the export has no order %s: %s", order, a)
	}
	k.admin("GET", at+"/orders.csv?x=1", "", 400, "BAD_REQUEST")
	k.admin("GET", "/sales/999999/orders.csv", "", 404, "SALE_NOT_FOUND")
	if a := k.admin("GET", at+"/concentration", "", 200, ""); !strings.Contains(string(a.Body), `{"network":"127.0.0.0/24","orders":1,"at_least":1}`) {
		k.w.t.Errorf("concentration: got %s", a)
	}
	k.admin("GET", "/sales/999999/concentration", "", 404, "SALE_NOT_FOUND")

	k.admin("POST", at+"/archive", "", 409, "SALE_STATE_CONFLICT")
	keyed("POST", "/orders/"+order+"/cancel", "cancel-it-once", "", 200, "")
	keyed("POST", "/orders/"+order+"/cancel", "cancel-it-once", "", 200, "")
	k.admin("POST", "/orders/"+order+"/cancel", `{"x":1}`, 400, "BAD_REQUEST")
	k.admin("POST", "/orders/"+strings.Replace(order, fmt.Sprintf("-%d", sale), "-999", 1)+"/cancel", "", 404, "ORDER_NOT_FOUND")
	k.admin("POST", "/orders/x/cancel", "", 404, "ORDER_NOT_FOUND")
	paid := k.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), k.tokens[11], "", 202, "").OrderID
	k.w.order(paid, k.tokens[11], wire.PendingPayment)
	k.public("POST", "/v1/orders/"+paid+"/payment", k.tokens[11], "", 200, "")
	k.admin("POST", "/orders/"+paid+"/cancel", "", 409, "ORDER_STATE_CONFLICT")

	keyed("POST", "/bans", "ban-once", `{"add":["mallory","trudy"]}`, 200, "")
	keyed("POST", "/bans", "ban-once", `{"add":["mallory"]}`, 422, "IDEMPOTENCY_KEY_REUSED")
	k.admin("POST", "/bans", `{"remove":["trudy"]}`, 200, "")
	for _, q := range []string{"", "?limit=1", "?cursor=a", "?uid=mallory"} {
		if a := k.admin("GET", "/bans"+q, "", 200, ""); !strings.Contains(string(a.Body), `["mallory"]`) {
			k.w.t.Errorf("bans%s: got %s", q, a)
		}
	}
	k.admin("GET", "/bans?uid=a/b", "", 400, "BAD_REQUEST")
	k.admin("POST", "/bans", `{"add":["a b"]}`, 400, "BAD_REQUEST")
	k.admin("DELETE", "/bans", "", 405, "METHOD_NOT_ALLOWED")
	keyed("POST", "/revocations", "revoke-once", `{"uid":"mallory"}`, 201, "")
	keyed("POST", "/revocations", "revoke-once", `{"uid":"trudy"}`, 422, "IDEMPOTENCY_KEY_REUSED")
	k.admin("POST", "/revocations", `{"uid":"mallory","before":"2020-01-01T00:00:00Z"}`, 200, "")
	k.admin("POST", "/revocations", `{"jti":"6f1c2a"}`, 201, "")
	for _, q := range []string{"", "?limit=2", "?uid=mallory"} {
		if a := k.admin("GET", "/revocations"+q, "", 200, ""); !strings.Contains(string(a.Body), `"mallory"`) {
			k.w.t.Errorf("revocations%s: got %s", q, a)
		}
	}
	k.admin("GET", "/revocations?uid=a/b", "", 400, "BAD_REQUEST")
	k.admin("POST", "/revocations", `{"uid":"a b"}`, 400, "BAD_REQUEST")
	k.admin("DELETE", "/revocations", `{"jti":"6f1c2a"}`, 200, "")
	k.admin("DELETE", "/revocations", `{"jti":"6f1c2a"}`, 404, "NOT_FOUND")
	k.admin("PUT", "/revocations", "", 405, "METHOD_NOT_ALLOWED")
	k.admin("POST", at+"/eligibility", `{"add":["ann"]}`, 409, "SALE_STATE_CONFLICT")
	keyed("PUT", at+"/eligibility", "list-once", `{"uids":["ann","bob"]}`, 200, "")
	k.admin("PUT", at+"/eligibility", `{"uids":[1]}`, 400, "BAD_REQUEST")
	k.admin("POST", at+"/eligibility", `{"add":["cyd"],"remove":["bob"]}`, 200, "")
	if a := k.admin("GET", at+"/eligibility", "", 200, ""); !strings.Contains(string(a.Body), `["ann","cyd"]`) {
		k.w.t.Errorf("eligibility: got %s", a)
	}
	k.admin("DELETE", at+"/eligibility", "", 200, "")
	for _, c := range [][2]string{{"GET", ""}, {"PUT", `{"uids":[]}`}, {"POST", `{"add":["x"]}`}, {"DELETE", ""}} {
		k.admin(c[0], "/sales/999999/eligibility", c[1], 404, "SALE_NOT_FOUND")
	}

	k.admin("POST", at+"/close", "", 200, "")
	k.admin("PUT", at+"/eligibility", `{"uids":[]}`, 403, "SALE_ENDED")
	k.w.until("the sale can be archived", patience, func() (bool, string) { // its order may be in the outbox still, or its unsold units on their way back
		a := k.w.do(k.w.ctx, world.Call{Method: "POST", URL: k.w.Ports.AdminURL() + "/admin/v1" + at + "/archive", Token: development.AdminToken})
		return a.Status == 200, a.String()
	})
	k.admin("POST", at+"/archive", "", 200, "")
	k.admin("POST", at+"/archive", `{"x":1}`, 400, "BAD_REQUEST")
	k.admin("POST", at+"/rebuild", "", 403, "SALE_ENDED")
	k.admin("POST", "/sales/999999/archive", "", 404, "SALE_NOT_FOUND")
	k.admin("GET", at+"/archive", "", 405, "METHOD_NOT_ALLOWED")
	k.admin("GET", at+"/audit", "", 200, "")
	log := k.admin("GET", fmt.Sprintf("/audit-log?target=sale%%20%d", sale), "", 200, "")
	for _, action := range []string{"sale.create", "eligibility.set", "eligibility.change", "eligibility.lift", "sale.close", "sale.archive"} {
		if !strings.Contains(string(log.Body), `"`+action+`"`) {
			k.w.t.Errorf("the audit log of sale %d has no %s: %s", sale, action, log)
		}
	}
	if strings.Contains(string(log.Body), `"bans.change"`) {
		k.w.t.Errorf("the audit log of sale %d has another target's", sale)
	}
	k.admin("GET", "/audit-log?target=bans&limit=1", "", 200, "")
	k.admin("GET", "/audit-log?target=", "", 400, "BAD_REQUEST")
}

// TestASaleIsOverAndArchived runs a sale to its end, archives it, and asks all that may be asked of it afterwards.
func TestASaleIsOverAndArchived(t *testing.T) {
	const stock, buyers = 20, 60
	w := newSystem(t, world.Options{Limits: freely})
	tokens := w.tokens(1, buyers)
	sale := w.newSale("Twenty", stock, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	j := oracle.NewLog()
	(&crowd{w: w, sale: sale, journal: j, tokens: tokens, first: 1, presses: 1}).run()
	o := w.settle(sale, stock, j)
	archive := fmt.Sprintf("/admin/v1/sales/%d/archive", sale)
	if a := w.want(w.admin("POST", archive, ""), 409, "SALE_STATE_CONFLICT"); !strings.Contains(string(a.Body), "close it first") || !strings.Contains(string(a.Body), "20 orders are pending_payment") {
		t.Errorf("got %s", a)
	}
	token := func(uid string) string {
		var n int
		_, err := fmt.Sscan(uid, &n)
		w.must(err)
		return tokens[n-1]
	}
	paid, n := map[string]string{}, 0
	for id, x := range o.Orders {
		if n++; n%4 == 0 {
			w.want(w.admin("POST", "/admin/v1/orders/"+id+"/cancel", ""), 200, "")
			continue
		}
		w.want(w.public("POST", "/v1/orders/"+id+"/payment", token(x.UID), ""), 200, "")
		paid[id] = x.UID
	}
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/close", sale), ""), 200, "")
	w.state(sale, wire.Ended)
	var archived struct {
		ArchivedAt *wire.Time `json:"archived_at"`
		Total      int64      `json:"total"`
		Sold       int64      `json:"sold"`
	}
	w.until("it is archived", patience, func() (bool, string) { // changes may be under way
		a := w.admin("POST", archive, "")
		if a.Status == 200 {
			a.Decode(w.t, &archived)
		}
		return a.Status == 200, a.String()
	})
	if archived.ArchivedAt == nil || archived.Sold != 15 || archived.Total != 15 {
		t.Errorf("got %+v, want the 15 units that were paid for", archived)
	}

	// Nothing of it is in Redis, and nothing comes back, whatever is asked.
	gone := func() {
		t.Helper()
		keys, err := w.Books.Redis.Do(w.ctx, w.Books.Redis.B().Keys().Pattern(fmt.Sprintf("%s{sale:%d}:*", w.Books.Prefix, sale)).Build()).AsStrSlice()
		w.must(err)
		if len(keys) > 0 {
			t.Errorf("in Redis there are %v", keys)
		}
	}
	gone()
	press := fmt.Sprintf("/v1/sales/%d/orders", sale)
	k := &walk{w: w, good: map[string]bool{}}
	signer := signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})
	for range 3 {
		w.want(w.public("POST", press, tokens[0], ""), 403, "SALE_ENDED")
		w.want(w.public("POST", press, "", ""), 403, "SALE_ENDED")
		w.want(w.do(w.ctx, k.signed(signer, "POST", press, "stranger", "", "")), 403, "SALE_ENDED")
		for id, uid := range paid { // the backend itself answers what the gateway would not ask it for
			if a := w.want(w.do(w.ctx, k.signed(signer, "POST", press, uid, "press-of-"+uid, `{"quantity":1}`)), 202, ""); a.OrderID != id {
				t.Errorf("a repeat of uid %s: got order %s, want %s", uid, a.OrderID, id)
			}
			var x wire.Order
			w.want(w.public("GET", "/v1/orders/"+id, token(uid), ""), 200, "").Decode(w.t, &x)
			if x.Status != wire.Paid {
				t.Errorf("got %+v", x)
			}
			var mine wire.OrderList
			w.want(w.public("GET", fmt.Sprintf("/v1/orders?sale_id=%d", sale), token(uid), ""), 200, "").Decode(w.t, &mine)
			if len(mine.Orders) != 1 || mine.Orders[0].OrderID != id {
				t.Errorf("uid %s has %+v", uid, mine)
			}
		}
		gone()
	}
	w.state(sale, wire.Ended)
	w.until("the list is without it", patience, func() (bool, string) {
		a := w.want(w.public("GET", "/v1/sales", "", ""), 200, "")
		var list wire.SaleList
		a.Decode(w.t, &list)
		return len(list.Sales) == 0, a.String()
	})
	if r, a := w.audit(sale); !r.Balanced || r.Sold != 15 || r.Total != 15 {
		t.Errorf("the audit says %s", a)
	}
	rows, err := csv.NewReader(strings.NewReader(string(w.want(w.admin("GET", fmt.Sprintf("/admin/v1/sales/%d/orders.csv", sale), ""), 200, "").Body))).ReadAll()
	if err != nil || len(rows) != stock+1 {
		t.Errorf("the export has %d lines, %v; want a head and %d orders", len(rows), err, stock)
	}

	// Processes that begin after the archive, and a Redis that is restarted, know no more of it.
	w.must(w.servers.Redis.Kill(w.ctx))
	w.must(w.servers.Start(w.ctx))
	w.must(w.Backend.Stop(w.ctx))
	w.must(w.Gateway.Stop(w.ctx))
	w.must(w.Backend.Start(w.ctx))
	w.must(w.Gateway.Start(w.ctx))
	w.until("orders are refused again", patience, func() (bool, string) {
		a := w.public("POST", press, tokens[0], "")
		return a.Status == 403 && a.Code == "SALE_ENDED", a.String()
	})
	for id, uid := range paid {
		w.until("a repeat is answered", patience, func() (bool, string) {
			a := w.do(w.ctx, k.signed(signer, "POST", press, uid, "press-of-"+uid, `{"quantity":1}`))
			return a.Status == 202 && a.OrderID == id, a.String()
		})
		break
	}
	gone()
}

// Every change reaches every gateway, also one that knows another backend than the one that was asked; how soon is measured.
// Row D13: bans and lists of eligible uids, changed while the sale runs.
func TestChangesReachEveryGateway(t *testing.T) {
	t.Attr("row", "D13")
	t.Parallel()
	const buyers = 40
	w := newSystem(t, world.Options{Limits: freely})
	two := w.beside()
	tokens := w.tokens(1, buyers)
	sale := w.newSale("Changing", 1000, time.Now().Add(-time.Minute), 600)
	for _, x := range []*system{w, two} {
		x.state(sale, wire.Open)
	}
	path := fmt.Sprintf("/admin/v1/sales/%d", sale)
	press := func(x *system, buyer int) world.Answer {
		return x.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[buyer-1], "")
	}
	// A buyer who has an order by now is told ALREADY_ORDERED: the gate is open to them.
	open := func(a world.Answer) bool { return a.Status == 202 || a.Code == "ALREADY_ORDERED" }
	code := func(want string) func(world.Answer) bool { return func(a world.Answer) bool { return a.Code == want } }
	type step struct {
		name         string
		method, path string
		body         string
		buyer        int
		then         func(world.Answer) bool
	}
	for _, s := range []step{
		{"pause", "POST", path + "/pause", "", 1, code("OVERLOADED")},
		{"resume", "POST", path + "/resume", "", 1, open},
		{"ban", "POST", "/admin/v1/bans", `{"add":["2","3"]}`, 2, code("FORBIDDEN")},
		{"unban", "POST", "/admin/v1/bans", `{"remove":["2"]}`, 2, open},
		{"revoke", "POST", "/admin/v1/revocations", `{"uid":"9"}`, 9, code("UNAUTHENTICATED")},
		{"revoke, taken back", "DELETE", "/admin/v1/revocations", `{"uid":"9"}`, 9, open},
		{"eligible", "PUT", path + "/eligibility", `{"uids":["5"]}`, 4, code("FORBIDDEN")},
		{"eligible, added", "POST", path + "/eligibility", `{"add":["4"]}`, 4, open},
		{"eligible, lifted", "DELETE", path + "/eligibility", "", 6, open},
		{"close", "POST", path + "/close", "", 7, code("SALE_ENDED")},
	} {
		began := time.Now()
		status := 200
		if s.name == "revoke" { // an entry is made
			status = 201
		}
		w.want(w.admin(s.method, s.path, s.body), status, "")
		answered := time.Now()
		for name, x := range map[string]*system{"its own gateway": w, "another's gateway": two} {
			w.until(s.name+" at "+name, patience, func() (bool, string) {
				a := press(x, s.buyer)
				return s.then(a), a.String()
			})
			t.Logf("%s: %v after the request, %v after its answer, %s knew", s.name, time.Since(began).Round(time.Millisecond), time.Since(answered).Round(time.Millisecond), name)
		}
	}
	// A banned uid's orders stand, and it may read and pay them.
	order := w.want(w.admin("GET", fmt.Sprintf("/admin/v1/orders?uid=2&sale_id=%d", sale), ""), 200, "")
	var found struct {
		Orders []struct {
			ID string `json:"order_id"`
		} `json:"orders"`
	}
	order.Decode(w.t, &found)
	if len(found.Orders) != 1 {
		t.Fatalf("uid 2 has %s", order)
	}
	w.want(w.admin("POST", "/admin/v1/bans", `{"add":["2"]}`), 200, "")
	w.order(found.Orders[0].ID, tokens[1], wire.PendingPayment)
	w.want(w.public("POST", "/v1/orders/"+found.Orders[0].ID+"/payment", tokens[1], ""), 200, "")

	// Each process counts where the orders that it took came from: all of them from here.
	var orders int64
	for _, x := range []*system{w, two} {
		var c struct {
			Orders   int64
			Networks json.RawMessage
		}
		x.want(x.admin("GET", path+"/concentration", ""), 200, "").Decode(w.t, &c)
		if want := fmt.Sprintf(`[{"network":"127.0.0.0/24","orders":%d,"at_least":%d}]`, c.Orders, c.Orders); c.Orders > 0 && string(c.Networks) != want {
			t.Errorf("got %s, want %s", c.Networks, want)
		}
		orders += c.Orders
	}
	var rows int64
	w.until("every order is settled", patience, func() (bool, string) {
		w.must(w.Books.DB.QueryRow(`SELECT COUNT(*) FROM orders WHERE sale_id = ?`, sale).Scan(&rows))
		return rows == orders, fmt.Sprintf("%d orders, %d counted", rows, orders)
	})
	var banned int64
	w.must(w.Books.DB.QueryRow(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND uid = '3'`, sale).Scan(&banned))
	if banned != 0 {
		t.Errorf("a banned uid has %d orders", banned)
	}
}
