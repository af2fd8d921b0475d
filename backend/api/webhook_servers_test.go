//go:build servers

package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/payment"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

var testProvider = payment.Provider{Name: "acme", Secrets: []string{strings.Repeat("s", 32)}}

// deliver sends a webhook as a gateway passes it on; at is the time of the provider's signature.
func (w *working) deliver(provider, body string, at time.Time) *fasthttp.Response {
	w.t.Helper()
	req := w.request("POST", wire.WebhookPath+provider, body)
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(testProvider.Secrets[0]))
	mac.Write([]byte(stamp + "." + body))
	req.Header.Set(wire.PaymentSignature, "t="+stamp+",v1="+hex.EncodeToString(mac.Sum(nil)))
	return w.signed(req, "")
}

// Every outcome of a delivery has an answer of its own.
func TestAnswersToWebhooks(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Price: 4900})
	queued := accepted(t, w.press("alice", sale, "", ""))
	now := w.clock.Now()
	body := func(id, order string, amount int) string {
		return fmt.Sprintf(`{"id":%q,"type":"payment.succeeded","payment_id":"pay-%s","order_id":%q,"amount":%d,"currency":"EUR"}`, id, id, order, amount)
	}
	wantProblem(t, w.deliver("acme", body("e1", queued, 4900), now), problem.Overloaded, "queued")
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Orders.Settle(t.Context(), snap.Outbox); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, w.deliver("beta", body("e1", queued, 4900), now), problem.NotFound, "payment provider")
	wantProblem(t, w.deliver("acme", body("e1", queued, 4900), now.Add(-time.Hour)), problem.Unauthenticated, "too far off")
	wantProblem(t, w.deliver("acme", body("e1", queued, 4900)[1:], now), problem.BadRequest, "JSON")
	wantProblem(t, w.deliver("acme", `{"id":"a","id":"b"}`, now), problem.BadRequest, "id: duplicate member")
	wantProblem(t, w.deliver("acme", body("e1", someOrder, 4900), now), problem.OrderNotFound, "nothing was recorded")
	wantProblem(t, w.deliver("acme", strings.Repeat(" ", wire.MaxWebhook)+body("e1", queued, 4900), now), problem.PayloadTooLarge, "16384")
	wantProblem(t, w.deliver("acme", body("e0", queued, 4899), now), problem.PaymentMismatch, "4899 EUR")

	unsigned := w.signed(w.request("POST", wire.WebhookPath+"acme", body("e1", queued, 4900)), "")
	wantProblem(t, unsigned, problem.Unauthenticated, wire.PaymentSignature)
	if got := string(unsigned.Header.Peek("WWW-Authenticate")); !strings.HasPrefix(got, wire.PaymentSignature) {
		t.Errorf("got WWW-Authenticate %q", got)
	}
	twice := w.request("POST", wire.WebhookPath+"acme", body("e1", queued, 4900))
	twice.Header.Add(wire.PaymentSignature, "t=1")
	twice.Header.Add(wire.PaymentSignature, "t=1")
	wantProblem(t, w.signed(twice, ""), problem.Unauthenticated, wire.PaymentSignature)

	for range 2 {
		res := w.deliver("acme", body("e1", queued, 4900), now)
		var got payment.Receipt
		if err := json.Unmarshal(res.Body(), &got); err != nil || res.StatusCode() != 200 || got != (payment.Receipt{EventID: "e1", OrderID: queued, Result: payment.ResultPaid}) ||
			string(res.Header.Peek("Cache-Control")) != "no-store" {
			t.Errorf("got %s", res)
		}
	}
	wantProblem(t, w.deliver("acme", body("e1", queued, 1), now), problem.IdempotencyKeyReused, "event")
	if res := w.deliver("acme", body("e2", queued, 4900), now); res.StatusCode() != 200 || !strings.Contains(string(res.Body()), `"refund_due"`) {
		t.Errorf("a second payment: got %s", res)
	}
	for path, code := range map[string]problem.Code{"": problem.NotFound, "A": problem.NotFound, "a/b": problem.NotFound, strings.Repeat("a", 33): problem.NotFound} {
		wantProblem(t, w.deliver(path, "{}", now), code, "path")
	}
	get := w.signed(w.request("GET", wire.WebhookPath+"acme", ""), "")
	wantProblem(t, get, problem.MethodNotAllowed, "POST")
}
