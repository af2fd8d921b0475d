//go:build servers

package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// event is what a payment provider says.
type event struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	PaymentID string `json:"payment_id"`
	OrderID   string `json:"order_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

func (e event) with(change func(*event)) event {
	change(&e)
	return e
}

// webhook is a delivery to the gateway, signed now.
func (w *system) webhook(e event) world.Call {
	w.t.Helper()
	body, err := json.Marshal(e)
	w.must(err)
	return w.signedWebhook(string(body), development.PaymentSecret, time.Now())
}

func (w *system) signedWebhook(body, secret string, at time.Time) world.Call {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "." + body))
	return world.Call{Method: "POST", URL: w.Ports.PublicURL() + wire.WebhookPath + development.Provider, Body: body,
		Header: map[string]string{wire.PaymentSignature: "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))}}
}

// ledgers is what payments may change, in MySQL: as it is now.
func (w *system) ledgers() string {
	w.t.Helper()
	var all []string
	for _, query := range []string{`SELECT CONCAT_WS(' ', id, status) FROM orders ORDER BY id`, `SELECT CONCAT_WS(' ', sale_id, available, locked, sold) FROM sale_stock ORDER BY sale_id`,
		`SELECT CONCAT_WS(' ', sale_id, kind, ref) FROM ledger ORDER BY id`, `SELECT CONCAT_WS(' ', payment_id, status, reason) FROM payments ORDER BY id`,
		`SELECT CONCAT_WS(' ', event_id, digest, result) FROM payment_events ORDER BY event_id`} {
		rows, err := w.Books.DB.QueryContext(w.ctx, query)
		w.must(err)
		for rows.Next() {
			var line string
			w.must(rows.Scan(&line))
			all = append(all, line)
		}
		w.must(rows.Err())
	}
	return strings.Join(all, "\n")
}

// TestWebhooks pays, and fails to pay, through the real gateway, in every way that its contract names. Each bad delivery has
// an answer of its own and changes nothing.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{Limits: freely})
	const stock = 4
	sale := w.newSale("Four lamps", stock, time.Now().Add(-time.Minute), 600)
	brief := w.newSale("Quickly", 1, time.Now().Add(-time.Minute), 1)
	w.state(sale, wire.Open)
	w.state(brief, wire.Open)
	tokens := w.tokens(1, 5)
	j := oracle.NewLog()
	order := func(sale int64, uid int) string {
		t.Helper()
		a := w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[uid-1], ""), 202, "")
		if sale != brief {
			j.Add(a.To(fmt.Sprint(uid), ""))
		}
		return a.OrderID
	}
	paid, cancelled, waiting, expired := order(sale, 1), order(sale, 2), order(sale, 3), order(brief, 4)
	for uid, id := range map[int]string{1: paid, 2: cancelled, 3: waiting} {
		w.order(id, tokens[uid-1], wire.PendingPayment)
	}
	w.order(expired, tokens[3], wire.Expired)
	n := 0
	about := func(kind, payment, order string) event {
		n++
		return event{ID: fmt.Sprint("evt-", n), Type: "payment." + kind, PaymentID: payment, OrderID: order, Amount: 4900, Currency: "EUR"}
	}
	gets := func(e event, result string) {
		t.Helper()
		first := w.want(w.do(w.ctx, w.webhook(e)), 200, "")
		if !strings.Contains(string(first.Body), `"result":"`+result+`"`) {
			t.Errorf("%+v: got %s, want %s", e, first, result)
		}
		before := w.ledgers()
		again := w.want(w.do(w.ctx, w.webhook(e)), 200, "")
		if string(again.Body) != string(first.Body) || w.ledgers() != before {
			t.Errorf("%+v, again: got %s, before %s; or it changed something", e, again, first)
		}
	}
	// The good ones.
	gets(about("failed", "p1", paid), "failed")
	gets(about("succeeded", "p1", paid), "paid")
	gets(about("failed", "p1", paid), "ignored")
	w.order(paid, tokens[0], wire.Paid)
	w.want(w.public("POST", "/v1/orders/"+paid+"/payment", tokens[0], ""), 200, "") // paid is paid
	w.want(w.public("POST", "/v1/orders/"+cancelled+"/cancellation", tokens[1], ""), 200, "")

	// Too late: to be given back, and the orders stay as they are.
	gets(about("succeeded", "p2", cancelled), "refund_due")
	gets(about("succeeded", "p3", expired), "refund_due")
	gets(about("succeeded", "p4", paid), "refund_due") // paid by another payment
	w.want(w.public("POST", "/v1/orders/"+expired+"/payment", tokens[3], ""), 409, "ORDER_STATE_CONFLICT")
	w.order(cancelled, tokens[1], wire.Cancelled)
	w.order(expired, tokens[3], wire.Expired)
	due := w.want(w.admin("GET", "/admin/v1/payments?status=refund_due", ""), 200, "")
	for _, p := range []string{"p2", "p3", "p4"} {
		if !strings.Contains(string(due.Body), `"`+p+`"`) {
			t.Errorf("operators do not see that %s is to be given back: %s", p, due)
		}
	}
	w.until("the metric counts the refunds that are due", patience, func() (bool, string) {
		n := w.metric("backend_payment_refunds_due")
		return n == 3, fmt.Sprint(n)
	})
	gets(about("refunded", "p2", cancelled), "refunded")
	gets(about("succeeded", "p2", cancelled), "ignored")

	// The bad ones.
	body := func(e event) string {
		b, err := json.Marshal(e)
		w.must(err)
		return string(b)
	}
	good := about("succeeded", "p5", waiting)
	now := time.Now()
	genuine := func(body string) world.Call { return w.signedWebhook(body, development.PaymentSecret, now) }
	mismatch := genuine(body(good.with(func(e *event) { e.ID, e.PaymentID, e.Amount = "short", "p6", 4899 })))
	w.want(w.do(w.ctx, mismatch), 422, "PAYMENT_MISMATCH") // recorded: the money was taken
	before := w.ledgers()
	twice := genuine(body(good))
	twice.Header[wire.PaymentSignature] += "," + twice.Header[wire.PaymentSignature]
	elsewhere := genuine(body(good))
	elsewhere.URL = strings.Replace(elsewhere.URL, "/"+development.Provider, "/nobody", 1)
	altered := genuine(body(good))
	altered.Body = strings.Replace(altered.Body, "4900", "4901", 1)
	unsigned := genuine(body(good))
	unsigned.Header = nil
	plain := genuine(body(good))
	plain.Header["Content-Type"] = "text/plain"
	for _, c := range []struct {
		name   string
		call   world.Call
		status int
		code   string
		says   string
	}{
		{"another amount, again", mismatch, 422, "PAYMENT_MISMATCH", "4899 EUR"},
		{"another currency of a known payment", genuine(body(about("succeeded", "p1", paid).with(func(e *event) { e.Currency, e.ID = "USD", "evt-1" }))), 422, "IDEMPOTENCY_KEY_REUSED", "event"},
		{"an unknown provider", elsewhere, 404, "NOT_FOUND", "provider"},
		{"no signature", unsigned, 401, "UNAUTHENTICATED", wire.PaymentSignature},
		{"another secret", w.signedWebhook(body(good), strings.Repeat("x", 40), now), 401, "UNAUTHENTICATED", "no secret"},
		{"an altered body", altered, 401, "UNAUTHENTICATED", "no secret"},
		{"too old", w.signedWebhook(body(good), development.PaymentSecret, now.Add(-10*time.Minute)), 401, "UNAUTHENTICATED", "too far off"},
		{"from the future", w.signedWebhook(body(good), development.PaymentSecret, now.Add(10*time.Minute)), 401, "UNAUTHENTICATED", "too far off"},
		{"signed twice over", twice, 401, "UNAUTHENTICATED", wire.PaymentSignature},
		{"huge", genuine(body(good) + strings.Repeat(" ", wire.MaxWebhook)), 413, "PAYLOAD_TOO_LARGE", "16384"},
		{"a duplicate member", genuine(strings.Replace(body(good), "{", `{"amount":4900,`, 1)), 400, "BAD_REQUEST", "amount: duplicate member"},
		{"an unknown member", genuine(strings.Replace(body(good), "{", `{"note":1,`, 1)), 400, "BAD_REQUEST", "note: unknown member"},
		{"two events", genuine(body(good) + body(good)), 400, "BAD_REQUEST", "JSON"},
		{"no JSON", plain, 415, "UNSUPPORTED_MEDIA_TYPE", ""},
		{"an unknown order", genuine(body(good.with(func(e *event) { e.OrderID = "0190163d-8694-739b-aea5-966c26f8ad91-999999" }))), 404, "ORDER_NOT_FOUND", ""},
	} {
		a := w.do(w.ctx, c.call)
		if a.Status != c.status || a.Code != c.code || !strings.Contains(string(a.Body), c.says) {
			t.Errorf("%s: got %s, want %d %s that says %q", c.name, a, c.status, c.code, c.says)
		}
		if after := w.ledgers(); after != before {
			t.Errorf("%s changed something: before\n%s\nafter\n%s", c.name, before, after)
		}
	}
	w.order(waiting, tokens[2], wire.PendingPayment)
	gets(good, "paid")
	w.order(waiting, tokens[2], wire.Paid)
	o := w.settle(sale, stock, j)
	if o.Row.Sold != 2 || o.Row.Locked != 0 || o.Row.Available != 2 {
		t.Errorf("got %+v, want two sold and two available", o.Row)
	}
}
