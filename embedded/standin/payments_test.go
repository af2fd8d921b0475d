package standin

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/payment"
	"floodgate.internal/shared/clock"
)

// The stand-in takes webhooks, expires and forgets as the real server does, on its one connection.
func TestPaymentsAndExpiry(t *testing.T) {
	_, db := openMySQL(t, 1)
	redis := openRedis(t)
	clk, log, reg := new(clock.Clock), slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	now := clk.Now()
	clk.Set(now, time.Now())
	intents := intent.New(intent.Config{DB: db, Redis: redis, Clock: clk, Log: log, Register: reg})
	book := order.NewStore(order.Config{Intents: intents, DB: db, Redis: redis, Clock: clk, Log: log, Register: reg})
	const secret = "a-secret-of-at-least-thirty-two-bytes"
	desk := payment.New(payment.Config{Providers: []payment.Provider{{Name: "acme", Secrets: []string{secret}}}, DB: db, Orders: book, Clock: clk, Log: log, Register: reg})
	exec(t, db, `INSERT INTO sales (id, sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, created_at)
		VALUES (?, 1, 'goods', 'Mug', 100, 'EUR', ?, ?, 1, 60, ?)`, sale, now, now, now)
	exec(t, db, `INSERT INTO sale_stock (sale_id, total, available, locked, epoch) VALUES (?, 10, 7, 3, 1)`, sale)
	pending := func(n int, payBefore time.Time, saleID int64) string {
		exec(t, db, `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at, pay_before) VALUES (?, ?, ?, 1, 100, 'pending_payment', ?, ?, ?)`,
			orderID(n), saleID, fmt.Sprint("u", n), now, now, payBefore)
		return orderID(n)
	}
	take := func(id, kind, paymentID, orderID string, amount int) (payment.Result, error) {
		t.Helper()
		body := fmt.Sprintf(`{"id":%q,"type":%q,"payment_id":%q,"order_id":%q,"amount":%d,"currency":"EUR"}`, id, kind, paymentID, orderID, amount)
		stamp := strconv.FormatInt(clk.Now().Unix(), 10)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(stamp + "." + body))
		r, err := desk.Take(t.Context(), "acme", "t="+stamp+",v1="+hex.EncodeToString(mac.Sum(nil)), []byte(body))
		return r.Result, err
	}
	good, late, stuck := pending(1, now.Add(time.Hour), sale), pending(2, now.Add(-time.Hour), sale), pending(3, now.Add(-2*time.Hour), sale+1)
	for range 2 {
		if got, err := take("e1", "payment.succeeded", "p1", good, 100); got != payment.ResultPaid || err != nil {
			t.Errorf("got %s, %v", got, err)
		}
	}
	if got, err := take("e2", "payment.succeeded", "p2", good, 100); got != payment.ResultRefundDue || err != nil {
		t.Errorf("another payment: got %s, %v", got, err)
	}
	if _, err := take("e3", "payment.succeeded", "p3", late, 99); !errors.Is(err, payment.ErrMismatch) {
		t.Errorf("a wrong amount: got %v", err)
	}
	if got, err := take("e4", "payment.refunded", "p2", good, 100); got != payment.ResultRefunded || err != nil {
		t.Errorf("a refund: got %s, %v", got, err)
	}
	for _, want := range []int{2, 0} { // one that expires, and one that does not fit any stock row
		if n, err := book.Expire(t.Context()); n != want || err != nil {
			t.Errorf("expire: got %d, %v; want %d", n, err, want)
		}
	}
	for id, want := range map[string]string{good: "paid", late: "expired", stuck: "pending_payment"} {
		if n := count(t, db, `SELECT COUNT(*) FROM orders WHERE id = ? AND status = ?`, id, want); n != 1 {
			t.Errorf("order %s is not %s", id, want)
		}
	}
	list, err := payment.List(t.Context(), db, payment.Filter{Status: payment.StatusRefundDue}, 1<<62, 10)
	if err != nil || len(list) != 1 || list[0].PaymentID != "p3" || list[0].Reason != "mismatch" {
		t.Errorf("refunds that are due: got %+v, %v", list, err)
	}
	clk.Set(now.Add(payment.Kept+time.Hour), time.Now())
	for what, pass := range map[string]func() (int, error){
		"events": func() (int, error) { return desk.Tend(t.Context()) }, "intents": func() (int, error) { return intents.Prune(t.Context()) },
	} {
		exec(t, db, `UPDATE intents SET done_at = ?`, now)
		if n, err := pass(); n == 0 || err != nil {
			t.Errorf("old %s: got %d, %v", what, n, err)
		}
	}
}
