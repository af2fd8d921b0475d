// Package payment takes what payment providers say by webhook: that a shopper's payment succeeded, failed or was refunded.
//
// Deliveries come more than once and in any order, and change nothing the second time: payment_events remembers each event
// by its id and gives a repeat the first one's answer; payments has one row a payment, which only ever goes forward:
//
//	            failed ──┐
//	             │       v
//	new ─────────┴────> paid | refund_due ────> refunded
//	 └───────────────────────────────────────────^
//
// A success makes its order paid by the one conditional UPDATE that cancellation and expiry compete with. Where they were
// first, or another payment was, or the amount is not what the order costs, a refund is due: it is recorded, counted and
// listed for operators until the provider says that it was made. Nothing brings an order back that ended, and nothing but
// an operator takes back one that was paid and whose payment was refunded later. A success after its own refund is late news.
//
// Locks are taken in the order payment_events, payments, and then as package order does.
package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/event"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// Kept is how long an event's id is remembered: longer than any provider retries, and than a signature is valid. A later
// delivery is judged by what its payment has become.
const Kept = 30 * 24 * time.Hour

// MaxSecrets bounds the secrets of one provider.
const MaxSecrets = 8

// Provider is one that may send webhooks.
type Provider struct {
	Name    string
	Secrets []string // that it may sign with: more than one while they are rotated
}

// Result is what came of an event, for the provider.
type Result string

// The results.
const (
	ResultPaid      Result = "paid"       // by this payment the order is paid
	ResultRefundDue Result = "refund_due" // the order cannot be paid by it: give the money back
	ResultFailed    Result = "failed"     // noted
	ResultRefunded  Result = "refunded"   // noted
	ResultIgnored   Result = "ignored"    // it came too late to mean anything
	resultMismatch  Result = "mismatch"   // the answer is a MismatchError
)

// Receipt is the answer to an event.
type Receipt struct {
	EventID string `json:"event_id"`
	OrderID string `json:"order_id"`
	Result  Result `json:"result"`
}

var (
	// ErrProvider: no such provider is configured.
	ErrProvider = errors.New("no such payment provider")
	// ErrQueued: the order waits for no payment yet. Nothing was recorded: the event is welcome again.
	ErrQueued = errors.New("the order is still queued")
	// ErrReused: the event's id came before, with another event.
	ErrReused = errors.New("this event id came before and said something else")
	// ErrMismatch: the event is not about what the order costs, or not about the payment that is known under its id.
	ErrMismatch = errors.New("the payment does not fit")
)

// MismatchError says what does not fit. It matches ErrMismatch.
type MismatchError struct{ Detail string }

func (e *MismatchError) Error() string { return e.Detail }

// Is makes a MismatchError match ErrMismatch.
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }

// Webhooks takes events. It is safe for concurrent use, by any number of processes.
type Webhooks struct {
	db      *sql.DB
	orders  *order.Store
	told    *event.Log
	clk     *clock.Clock
	log     *slog.Logger
	secrets map[string][]string // by provider
	events  *prometheus.CounterVec
	due     prometheus.Gauge
}

// Config is what Webhooks need.
type Config struct {
	DB       *sql.DB
	Orders   *order.Store
	Events   *event.Log   // nil: the shop is told nothing
	Clock    *clock.Clock // follows Redis's clock: signatures age by it
	Log      *slog.Logger
	Register prometheus.Registerer

	Providers []Provider // whose webhooks are taken
}

// New makes Webhooks and registers their metrics.
func New(c Config) *Webhooks {
	w := &Webhooks{db: c.DB, orders: c.Orders, told: c.Events, clk: c.Clock, log: c.Log, secrets: map[string][]string{},
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_payment_events_total",
			Help: "Deliveries of payment providers, by what came of them: paid, refund_due, failed, refunded, ignored, mismatch; repeated, refused, unknown."}, []string{"result"}),
		due: prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_payment_refunds_due",
			Help: "Payments that wait for their refund, as the timer last counted them: alert on it."})}
	c.Register.MustRegister(w.events, w.due)
	for _, p := range c.Providers {
		w.secrets[p.Name] = p.Secrets
	}
	for _, r := range []Result{ResultPaid, ResultRefundDue, ResultFailed, ResultRefunded, ResultIgnored, resultMismatch, cameRepeated, cameRefused, cameUnknown} {
		w.events.WithLabelValues(string(r))
	}
	return w
}

// Take handles one delivery: the provider that the path names, the signature header, and the raw body. The errors, in the
// order of the checks: ErrProvider; ErrUnsigned, ErrForged, ErrAge; ErrBody; order.ErrNotFound, ErrQueued; ErrReused,
// ErrMismatch. After any other error the outcome is unknown, and the same delivery may be made again.
func (w *Webhooks) Take(ctx context.Context, provider, signature string, body []byte) (Receipt, error) {
	r, repeated, err := w.take(ctx, provider, signature, body)
	came := string(r.Result)
	switch {
	case repeated:
		came = cameRepeated
	case refused(err):
		came = cameRefused
	case r.Result == "":
		came = cameUnknown
	}
	w.events.WithLabelValues(came).Inc()
	return r, err
}

// Other outcomes of a delivery than a Result, for the metrics.
const (
	cameRepeated = "repeated"
	cameRefused  = "refused"
	cameUnknown  = "unknown"
)

// refused reports whether a delivery was refused, and nothing recorded.
func refused(err error) bool {
	for _, e := range []error{ErrProvider, ErrUnsigned, ErrForged, ErrAge, ErrBody, order.ErrNotFound, ErrQueued, ErrReused} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (w *Webhooks) take(ctx context.Context, provider, signature string, body []byte) (r Receipt, repeated bool, err error) {
	secrets, ok := w.secrets[provider]
	if !ok {
		return r, false, ErrProvider
	}
	if err := verify(secrets, signature, body, w.clk.Now()); err != nil {
		return r, false, err
	}
	e, err := parse(body)
	if err != nil {
		return r, false, err
	}
	bill, err := w.orders.Bill(ctx, e.OrderID)
	if err != nil {
		return r, false, fmt.Errorf("event %s of %s: %w", e.ID, provider, err)
	}
	if bill.Status == wire.Queued {
		return r, false, fmt.Errorf("event %s of %s: %w", e.ID, provider, ErrQueued)
	}
	j := judgement{event: e, provider: provider, bill: bill}
	err = store.InTx(ctx, w.db, func(tx *sql.Tx) error { return w.judge(ctx, tx, &j) })
	if repeated = errors.Is(err, errRepeat); repeated {
		err = w.again(ctx, &j)
	}
	if err != nil {
		return r, false, fmt.Errorf("event %s of %s: %w", e.ID, provider, err)
	}
	if !repeated {
		w.report(ctx, &j)
	}
	r = Receipt{EventID: e.ID, OrderID: e.OrderID, Result: j.result}
	if j.result == resultMismatch {
		return r, repeated, &MismatchError{fmt.Sprintf("payment %s is of %d %s for order %s, which costs %d %s; a payment, and its refund, is of the whole amount, and of one order",
			e.PaymentID, e.Amount, e.Currency, e.OrderID, bill.Amount, bill.Currency)}
	}
	return r, repeated, nil
}

// judgement is one event on its way to its result.
type judgement struct {
	event    Event
	provider string
	bill     order.Bill
	result   Result
	reason   string // why a refund is due
	paid     bool   // the order is paid by it, now
	unpaid   bool   // the order was paid by the payment, which is refunded now
}

// errRepeat: payment_events has the event.
var errRepeat = errors.New("the event came before")

// judge records the event, and what it makes of its payment and its order, in one transaction. It may run several times.
func (w *Webhooks) judge(ctx context.Context, tx *sql.Tx, j *judgement) error {
	e, now := j.event, w.now()
	_, err := tx.ExecContext(ctx, `INSERT INTO payment_events (provider, event_id, digest, result, received_at) VALUES (?, ?, ?, '', ?)`,
		j.provider, e.ID, e.digest(), now)
	if store.Duplicate(err) {
		return errRepeat
	}
	if err != nil {
		return fmt.Errorf("payment_events: %w", err)
	}
	// The upsert locks the row, new or not.
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments (provider, payment_id, order_id, amount, currency, first_at, last_at)
		VALUES (?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE last_at = VALUES(last_at)`,
		j.provider, e.PaymentID, e.OrderID, e.Amount, e.Currency, now, now); err != nil {
		return fmt.Errorf("payments: %w", err)
	}
	p := Payment{Provider: j.provider}
	if err := p.scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM payments WHERE provider = ? AND payment_id = ?`, j.provider, e.PaymentID)); err != nil {
		return fmt.Errorf("payments: %w", err)
	}
	was := p.Status
	if err := w.apply(ctx, tx, j, &p); err != nil {
		return err
	}
	if p.Status != was {
		if _, err := tx.ExecContext(ctx, `UPDATE payments SET status = ?, reason = ? WHERE id = ?`, string(p.Status), p.Reason, p.ID); err != nil {
			return fmt.Errorf("payments: %w", err)
		}
		if p.Status == StatusRefundDue {
			if err := w.told.Write(ctx, tx, now, event.Event{Type: event.RefundDue, Ref: e.OrderID, Data: p}); err != nil {
				return err
			}
		}
	}
	j.reason, j.unpaid = p.Reason, was == StatusPaid && p.Status == StatusRefunded
	if _, err := tx.ExecContext(ctx, `UPDATE payment_events SET result = ? WHERE provider = ? AND event_id = ?`, string(j.result), j.provider, e.ID); err != nil {
		return fmt.Errorf("payment_events: %w", err)
	}
	return nil
}

// reasonMismatch is the reason of a refund that is due for the amount; any other is what the order was found to be.
const (
	reasonMismatch = "mismatch"
	reasonOverdue  = "overdue"
)

// apply sets the result, and what the event makes of p.
func (w *Webhooks) apply(ctx context.Context, tx *sql.Tx, j *judgement, p *Payment) error {
	e := j.event
	j.paid, j.result = false, ResultIgnored
	if p.OrderID != e.OrderID || p.Amount != e.Amount || p.Currency != e.Currency {
		j.result = resultMismatch
		return nil
	}
	switch e.Type {
	case Failed:
		if p.Status == "" || p.Status == StatusFailed {
			p.Status, j.result = StatusFailed, ResultFailed
		}
		return nil
	case Refunded:
		p.Status, p.Reason, j.result = StatusRefunded, "", ResultRefunded
		return nil
	}
	switch p.Status {
	case StatusPaid:
		j.result = ResultPaid
	case StatusRefundDue:
		j.result = ResultRefundDue
	case "", StatusFailed:
		p.Status, j.result = StatusRefundDue, ResultRefundDue
		if e.Amount != j.bill.Amount || e.Currency != j.bill.Currency {
			p.Reason = reasonMismatch
			break
		}
		paid, stands, err := w.orders.PayIn(ctx, tx, e.OrderID)
		switch {
		case err != nil:
			return err
		case paid:
			p.Status, j.result, j.paid = StatusPaid, ResultPaid, true
		case stands == wire.PendingPayment:
			p.Reason = reasonOverdue
		default:
			p.Reason = string(stands)
		}
	}
	if p.Reason == reasonMismatch {
		j.result = resultMismatch
	}
	return nil
}

// again finds the first one's result.
func (w *Webhooks) again(ctx context.Context, j *judgement) error {
	var digest string
	err := w.db.QueryRowContext(ctx, `SELECT digest, result FROM payment_events WHERE provider = ? AND event_id = ?`, j.provider, j.event.ID).
		Scan(&digest, &j.result)
	if err != nil {
		return fmt.Errorf("payment_events: %w", err)
	}
	if digest != j.event.digest() {
		return ErrReused
	}
	return store.Durable(ctx, w.db) // a provider that is answered does not come again
}

// report logs what needs an operator, and does in Redis what is left to do.
func (w *Webhooks) report(ctx context.Context, j *judgement) {
	if j.paid {
		w.orders.Paid(ctx, j.event.OrderID)
	}
	log := w.log.With("provider", j.provider, "event", j.event.ID, "payment", j.event.PaymentID, "order", j.event.OrderID, "amount", j.event.Amount, "currency", j.event.Currency)
	switch {
	case j.reason != "" && j.event.Type == Succeeded:
		log.Warn("payment: a refund is due", "reason", j.reason)
	case j.result == resultMismatch:
		log.Warn("payment: an event contradicts its payment; nothing was changed", "type", j.event.Type)
	case j.unpaid:
		log.Warn("payment: the payment of a paid order was refunded; the order stays paid")
	}
}

// now is the time as MySQL keeps it, in milliseconds. With a finer time MySQL would not search an index.
func (w *Webhooks) now() time.Time { return w.clk.Now().Truncate(time.Millisecond) }

// Tend is one bounded pass: it counts the refunds that are due, for the metric, and deletes events that are older than
// Kept. It returns how many it deleted: call again at once until that is 0.
func (w *Webhooks) Tend(ctx context.Context) (int, error) {
	var due int64
	if err := w.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM payments WHERE status = ?`, string(StatusRefundDue)).Scan(&due); err != nil {
		return 0, fmt.Errorf("count the refunds due: %w", err)
	}
	w.due.Set(float64(due))
	return store.Prune(ctx, w.db, `DELETE FROM payment_events WHERE received_at < ? ORDER BY received_at`, w.now().Add(-Kept))
}
