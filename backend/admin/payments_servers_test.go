//go:build servers

package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/payment"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func TestPaymentsAreListed(t *testing.T) {
	o := newOffice(t, 1)
	orders := make([]string, 3)
	for i := range orders {
		orders[i] = wire.NewOrderID(fmt.Sprintf("0190163d-8694-739b-aea5-%012d", i), 7)
	}
	for i := range 9 {
		status := payment.Statuses[i%len(payment.Statuses)]
		if _, err := o.DB.ExecContext(t.Context(), `INSERT INTO payments (provider, payment_id, order_id, amount, currency, status, reason, first_at, last_at)
			VALUES ('acme', ?, ?, 4900, 'EUR', ?, ?, '2030-01-02 03:04:05.678', '2030-01-02 03:04:06')`, fmt.Sprint("pay_", i), orders[i%3], string(status),
			map[bool]string{true: "expired"}[status == payment.StatusRefundDue]); err != nil {
			t.Fatal(err)
		}
	}
	type page struct {
		Payments []payment.Payment `json:"payments"`
		Next     string            `json:"next"`
	}
	var all []payment.Payment
	for query := "?limit=4"; query != ""; {
		p := do[page](o, 200, "GET", "/admin/v1/payments"+query, "")
		all = append(all, p.Payments...)
		if query = ""; p.Next != "" {
			query = "?limit=4&cursor=" + p.Next
		}
	}
	if len(all) != 9 || all[0].PaymentID != "pay_8" || all[8].PaymentID != "pay_0" || all[8].FirstAt.Format(wire.TimeFormat) != "2030-01-02T03:04:05.678Z" {
		t.Errorf("got %+v", all)
	}
	due := do[page](o, 200, "GET", "/admin/v1/payments?status=refund_due", "").Payments
	if len(due) != 2 || due[0].PaymentID != "pay_6" || due[1].PaymentID != "pay_2" || due[1].Reason != "expired" || due[1].Amount != 4900 {
		t.Errorf("refunds that are due: got %+v", due)
	}
	if of := do[page](o, 200, "GET", "/admin/v1/payments?status=refund_due&order_id="+orders[2], "").Payments; len(of) != 1 || of[0].PaymentID != "pay_2" {
		t.Errorf("of one order: got %+v", of)
	}
	for query, says := range map[string]string{"?status=due": "status", "?status=": "status", "?order_id=x": "order_id", "?uid=1": "uid", "?limit=0": "limit", "?cursor=x": "cursor"} {
		refused(t, send(o.Admin, "GET", "/admin/v1/payments"+query, ""), problem.BadRequest, says)
	}
}

// An Idempotency-Key is remembered for keysKept, and forgotten after it: by the index, a bounded number at a time.
func TestOldIdempotencyKeysAreForgotten(t *testing.T) {
	o := newOffice(t, 1) // whose counters are those of all that is done
	old, recent := 1500, 3000
	for what, n := range map[string]int{"old": old, "recent": recent} {
		at := o.now().Add(-keysKept).Add(map[string]time.Duration{"old": -time.Minute, "recent": time.Hour}[what])
		for i := 0; i < n; i += 500 {
			var rows []string
			var args []any
			for k := i; k < i+500; k++ {
				rows, args = append(rows, `(?, '', 200, '{}', ?)`), append(args, fmt.Sprint(what, k), at)
			}
			if _, err := o.DB.ExecContext(t.Context(), `INSERT INTO admin_requests (idem_key, request, status, answer, created_at) VALUES `+strings.Join(rows, ", "), args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	made := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Lamp","price":500,"currency":"USD","stock":1}`, "Idempotency-Key: now")
	for _, want := range []int{1000, 500, 0} {
		reads, changes := backendtest.Rows(t, o.DB, func() {
			if n, err := o.PruneKeys(t.Context()); n != want || err != nil {
				t.Errorf("got %d, %v; want %d", n, err, want)
			}
		})
		if reads > int64(2*want+20) || changes > int64(want) {
			t.Errorf("forgetting %d keys read %d rows and changed %d", want, reads, changes)
		}
	}
	if n := o.count(`SELECT COUNT(*) FROM admin_requests`); n != int64(recent+1) {
		t.Errorf("%d keys are left, want %d", n, recent+1)
	}
	again := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Lamp","price":500,"currency":"USD","stock":1}`, "Idempotency-Key: now")
	if again.ID != made.ID {
		t.Errorf("a key that is remembered: got SKU %d, want %d", again.ID, made.ID)
	}
}
