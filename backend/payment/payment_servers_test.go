//go:build servers

package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

const (
	secret = "the-secret-of-acme-is-at-least-32-bytes"
	other  = "the-secret-of-beta-is-at-least-32-bytes"
)

// shop is a Desk and what it stands on: goods of 49.00 EUR a unit.
type shop struct {
	t       *testing.T
	dsn     string
	db      *sql.DB
	redis   *reserve.Store
	clk     *clock.Clock
	book    *order.Store
	intents *intent.Runner
	desk    *Webhooks
	sale    int64
	n       int
}

// newShop makes one; when the test ends its books must balance.
func newShop(t *testing.T, stock int64) *shop {
	dsn := backendtest.MySQLDSN(t)
	s := &shop{t: t, dsn: dsn, db: backendtest.OpenMySQL(t, dsn, 16), redis: backendtest.Redis(t)}
	if _, err := store.Migrate(t.Context(), s.db); err != nil {
		t.Fatal(err)
	}
	s.clk = s.clockAhead(0)
	s.book, s.desk = s.open(s.db, s.clk)
	s.intents = intent.New(intent.Config{DB: s.db, Redis: s.redis, Clock: s.clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	s.sale = backendtest.Sale(t, s.db, backendtest.SaleOptions{Stock: stock, Price: 4900, PayWithin: time.Minute, Limit: 2})
	backendtest.Load(t, s.db, s.redis, s.sale)
	t.Cleanup(func() {
		if err := backendtest.Balance(context.Background(), s.db, s.sale); err != nil {
			t.Errorf("sale %d does not balance: %v", s.sale, err)
		}
	})
	return s
}

func (s *shop) clockAhead(d time.Duration) *clock.Clock {
	s.t.Helper()
	asked := time.Now()
	now, err := s.redis.Client().Now(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	clk := new(clock.Clock)
	clk.Set(now.Add(d), asked)
	return clk
}

func (s *shop) open(db *sql.DB, clk *clock.Clock) (*order.Store, *Webhooks) {
	reg := prometheus.NewRegistry()
	book := order.NewStore(order.Config{Intents: intent.New(intent.Config{DB: db, Redis: s.redis, Clock: clk, Log: backendtest.Log(s.t), Register: reg}),
		DB: db, Redis: s.redis, Clock: clk, Log: backendtest.Log(s.t), Register: reg})
	return book, New(Config{Providers: []Provider{{"acme", []string{secret}}, {"beta", []string{other}}}, DB: db, Orders: book, Clock: clk, Log: backendtest.Log(s.t), Register: reg})
}

// queued is an order that only Redis has.
func (s *shop) queued(uid string) string {
	s.t.Helper()
	v, err := s.redis.Reserve(s.t.Context(), reserve.Request{Sale: s.sale, UID: uid, Quantity: 1, Epoch: 1,
		OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale)})
	if err != nil || v.Answer != lua.Reserved {
		s.t.Fatalf("order of %s: got %+v, %v", uid, v, err)
	}
	return v.OrderID
}

// ordered is an order that waits for its payment.
func (s *shop) ordered(uid string) string {
	s.t.Helper()
	id := s.queued(uid)
	snap, err := s.redis.Snapshot(s.t.Context(), s.sale)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := errors.Join(s.book.Settle(s.t.Context(), snap.Outbox), s.book.Retire(s.t.Context(), snap.Outbox)); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// take delivers a body to a desk, signed now by its clock.
func take(ctx context.Context, d *Webhooks, body string) (Receipt, error) {
	return d.Take(ctx, "acme", sign(secret, d.clk.Now(), body), []byte(body))
}

// event is a body about a payment of what an order costs, under a new event id.
func (s *shop) event(kind Type, paymentID, orderID string) string {
	s.n++
	return text(fmt.Sprint("evt_", s.n), kind, paymentID, orderID, 4900, "EUR")
}

// gets delivers it, and again, and wants the same result both times.
func (s *shop) gets(body string, want Result) {
	s.t.Helper()
	first, err := take(s.t.Context(), s.desk, body)
	if err != nil || first.Result != want {
		s.t.Errorf("%s: got %+v, %v; want %s", body, first, err, want)
	}
	before := s.all()
	again, err := take(s.t.Context(), s.desk, body)
	if err != nil || again != first {
		s.t.Errorf("%s, again: got %+v, %v; want %+v", body, again, err, first)
	}
	s.same(before, "a repeat")
}

// all is everything in the tables that an event may change.
func (s *shop) all() string {
	s.t.Helper()
	var b strings.Builder
	for _, query := range []string{
		`SELECT CONCAT_WS(' ', id, status, ended_at) FROM orders ORDER BY id`,
		`SELECT CONCAT_WS(' ', sale_id, available, locked, sold) FROM sale_stock ORDER BY sale_id`,
		`SELECT CONCAT_WS(' ', sale_id, kind, ref, available_after, locked_after) FROM ledger ORDER BY id`,
		`SELECT CONCAT_WS(' ', id, kind, order_id) FROM intents ORDER BY id`,
		`SELECT CONCAT_WS(' ', order_id, slot) FROM order_slots ORDER BY order_id, slot`,
		`SELECT CONCAT_WS(' ', provider, payment_id, order_id, amount, currency, status, reason, first_at) FROM payments ORDER BY id`,
		`SELECT CONCAT_WS(' ', provider, event_id, digest, result) FROM payment_events ORDER BY provider, event_id`,
	} {
		rows, err := s.db.QueryContext(s.t.Context(), query)
		if err != nil {
			s.t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				s.t.Fatal(err)
			}
			b.WriteString(line + "\n")
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			s.t.Fatal(err)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// same fails the test unless nothing has changed.
func (s *shop) same(before, what string) {
	s.t.Helper()
	if after := s.all(); after != before {
		s.t.Errorf("%s changed something: before\n%s\nafter\n%s", what, before, after)
	}
}

func (s *shop) number(query string, args ...any) (n int64) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (s *shop) stands(orderID string) (status wire.OrderStatus) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), `SELECT status FROM orders WHERE id = ?`, orderID).Scan(&status); err != nil {
		s.t.Fatalf("order %s: %v", orderID, err)
	}
	return status
}

// payment is how a payment stands, "" if there is none: "refund_due mismatch".
func (s *shop) payment(id string) string {
	s.t.Helper()
	var status, reason string
	err := s.db.QueryRowContext(s.t.Context(), `SELECT status, reason FROM payments WHERE provider = 'acme' AND payment_id = ?`, id).Scan(&status, &reason)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(status + " " + reason)
}

// due is the metric, after it was counted.
func (s *shop) due() float64 {
	s.t.Helper()
	if _, err := s.desk.Tend(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return testutil.ToFloat64(s.desk.due)
}

func TestASuccessPaysItsOrderOnce(t *testing.T) {
	s := newShop(t, 10)
	id := s.ordered("u")
	body := s.event(Succeeded, "pay_1", id)
	s.gets(body, ResultPaid)
	if got := s.stands(id); got != wire.Paid {
		t.Fatalf("the order is %s", got)
	}
	s.gets(s.event(Succeeded, "pay_1", id), ResultPaid) // the same news as another event
	if n := s.number(`SELECT COUNT(*) FROM ledger WHERE kind = 'pay'`); n != 1 {
		t.Errorf("got %d payments in the ledger, want 1", n)
	}
	if got := s.payment("pay_1"); got != "paid" {
		t.Errorf("the payment is %q", got)
	}
	// Written otherwise it is the same event; it says the same under another provider's name, and is another one.
	r, err := take(t.Context(), s.desk, strings.ReplaceAll(body, `,"`, ` , "`))
	if err != nil || r.Result != ResultPaid {
		t.Errorf("written otherwise: got %+v, %v", r, err)
	}
	r, err = s.desk.Take(t.Context(), "beta", sign(other, s.clk.Now(), body), []byte(body))
	if err != nil || r.Result != ResultRefundDue {
		t.Errorf("another provider's payment of the same order: got %+v, %v; want its refund to be due", r, err)
	}
	for result, want := range map[string]float64{"paid": 2, "repeated": 3, "refund_due": 1, "refused": 0} {
		if got := testutil.ToFloat64(s.desk.events.WithLabelValues(result)); got != want {
			t.Errorf("%v deliveries are counted as %s, want %v", got, result, want)
		}
	}
}

// Whatever has become of an order, a payment that comes too late is to be given back, and the order stays as it is.
func TestAPaymentThatCannotPayIsToBeGivenBack(t *testing.T) {
	s := newShop(t, 20)
	ctx := t.Context()
	cancelled, expired, paid, overdue := s.ordered("cancelled"), s.ordered("expired"), s.ordered("paid"), s.ordered("overdue")
	rejected := queued.Entry{ID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale), Sale: s.sale, UID: "r", Quantity: 1, Slots: "1", Epoch: 1, At: 1}
	if err := s.book.Reject(ctx, rejected, "undeliverable"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.book.Cancel(ctx, "cancelled", cancelled); err != nil {
		t.Fatal(err)
	}
	if _, err := s.book.Pay(ctx, "paid", paid); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(ctx, `UPDATE orders SET pay_before = '2020-01-01' WHERE id = ?`, expired); err != nil {
		t.Fatal(err)
	}
	if n, err := s.book.Expire(ctx); n != 1 || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	if _, err := s.db.ExecContext(ctx, `UPDATE orders SET pay_before = '2020-01-01' WHERE id = ?`, overdue); err != nil {
		t.Fatal(err)
	}
	stock := func() string {
		return fmt.Sprint(s.number(`SELECT available FROM sale_stock`), s.number(`SELECT locked FROM sale_stock`), s.number(`SELECT sold FROM sale_stock`))
	}
	before, due := stock(), 0.0
	for _, c := range []struct {
		id     string
		status wire.OrderStatus
		reason string
	}{{cancelled, wire.Cancelled, "cancelled"}, {expired, wire.Expired, "expired"}, {paid, wire.Paid, "paid"}, {rejected.ID, wire.Rejected, "rejected"},
		{overdue, wire.PendingPayment, "overdue"}} {
		payment := "pay_" + c.reason
		s.gets(s.event(Succeeded, payment, c.id), ResultRefundDue)
		s.gets(s.event(Succeeded, payment, c.id), ResultRefundDue)
		s.gets(s.event(Failed, payment, c.id), ResultIgnored)
		if got := s.payment(payment); got != "refund_due "+c.reason {
			t.Errorf("%s: the payment is %q", c.reason, got)
		}
		if got := s.stands(c.id); got != c.status {
			t.Errorf("%s: the order became %s", c.reason, got)
		}
		if due++; s.due() != due {
			t.Errorf("%s: %v refunds are due by the metric, want %v", c.reason, s.due(), due)
		}
	}
	if got := stock(); got != before {
		t.Errorf("the stock row was %s and is %s", before, got)
	}
	list, err := List(ctx, s.db, Filter{Status: StatusRefundDue}, 1<<62, 100)
	if err != nil || len(list) != 5 || list[0].OrderID != overdue || list[4].OrderID != cancelled || list[4].Reason != "cancelled" || list[4].Amount != 4900 {
		t.Errorf("operators see %+v, %v", list, err)
	}
	if page, err := List(ctx, s.db, Filter{Status: StatusRefundDue}, list[3].ID, 100); err != nil || len(page) != 1 || page[0] != list[4] {
		t.Errorf("the next page is %+v, %v", page, err)
	}
	if of, err := List(ctx, s.db, Filter{OrderID: paid}, 1<<62, 100); err != nil || len(of) != 1 || of[0].PaymentID != "pay_paid" {
		t.Errorf("of one order: got %+v, %v", of, err)
	}
	s.gets(s.event(Refunded, "pay_cancelled", cancelled), ResultRefunded)
	if got := s.payment("pay_cancelled"); got != "refunded" || s.due() != due-1 {
		t.Errorf("after the refund the payment is %q, and %v are due", got, s.due())
	}
	if n, err := s.book.Expire(ctx); n != 1 || err != nil || s.stands(overdue) != wire.Expired {
		t.Errorf("the overdue order: got %d, %v, %s; want it expired all the same", n, err, s.stands(overdue))
	}
}

// Whatever the order of its news, a payment ends the same; and its order is paid if the success was there before the refund.
func TestAnyOrderOfNewsEndsTheSame(t *testing.T) {
	s := newShop(t, 100)
	i := 0
	var permute func(done, left []Type)
	permute = func(done, left []Type) {
		if len(left) > 0 {
			for k := range left {
				rest := slices.Delete(slices.Clone(left), k, k+1)
				permute(append(slices.Clone(done), left[k]), rest)
			}
			return
		}
		i++
		id, payment := s.ordered(fmt.Sprint("u", i)), fmt.Sprint("pay_", i)
		var news []string
		for _, kind := range done {
			news = append(news, s.event(kind, payment, id))
		}
		for _, body := range slices.Concat(news, news, news[:1]) {
			if _, err := take(t.Context(), s.desk, body); err != nil {
				t.Errorf("%v: %s: %v", done, body, err)
			}
		}
		status, order := "refunded", wire.PendingPayment
		if slices.Index(done, Succeeded) < slices.Index(done, Refunded) {
			order = wire.Paid
		}
		if got := s.payment(payment); got != status {
			t.Errorf("%v: the payment is %q, want %s", done, got, status)
		}
		if got := s.stands(id); got != order {
			t.Errorf("%v: the order is %s, want %s", done, got, order)
		}
	}
	permute(nil, []Type{Failed, Succeeded, Refunded, Failed})
	id := s.ordered("u")
	s.gets(s.event(Failed, "pay_a", id), ResultFailed)
	s.gets(s.event(Failed, "pay_b", id), ResultFailed)
	s.gets(s.event(Succeeded, "pay_b", id), ResultPaid)
	s.gets(s.event(Failed, "pay_b", id), ResultIgnored)
	s.gets(s.event(Succeeded, "pay_a", id), ResultRefundDue)
	s.gets(s.event(Refunded, "pay_b", id), ResultRefunded)
	if got := s.stands(id); got != wire.Paid {
		t.Errorf("after the refund of its payment the order is %s, want it left to operators: paid", got)
	}
	s.gets(s.event(Succeeded, "pay_b", id), ResultIgnored)
}

// Random news of several payments of several orders, amid everything else that ends orders, against a model.
func TestAnySequenceOfNews(t *testing.T) {
	s := newShop(t, 100_000)
	late, _ := s.open(s.db, s.clockAhead(time.Hour))
	rapid.Check(t, func(r *rapid.T) {
		type model struct {
			order  wire.OrderStatus
			status map[string]string // of payments
		}
		orders := map[string]*model{}
		var ids, sent []string
		for range rapid.IntRange(1, 2).Draw(r, "orders") {
			id := s.ordered(uuid.NewString())
			ids, orders[id] = append(ids, id), &model{wire.PendingPayment, map[string]string{}}
		}
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			id := rapid.SampledFrom(ids).Draw(r, "order")
			m := orders[id]
			payment := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "payment") + id
			switch step := rapid.IntRange(0, 6).Draw(r, "step"); step {
			case 0, 1, 2:
				kind := []Type{Succeeded, Failed, Refunded}[step]
				body := s.event(kind, payment, id)
				sent = append(sent, body)
				if _, err := take(t.Context(), s.desk, body); err != nil {
					r.Fatal(err)
				}
				have := m.status[payment]
				switch {
				case kind == Refunded:
					m.status[payment] = "refunded"
				case have != "" && have != "failed":
				case kind == Failed:
					m.status[payment] = "failed"
				case m.order == wire.PendingPayment:
					m.order, m.status[payment] = wire.Paid, "paid"
				default:
					m.status[payment] = "refund_due " + string(m.order)
				}
			case 3: // anything that came before
				if len(sent) > 0 {
					if _, err := take(t.Context(), s.desk, rapid.SampledFrom(sent).Draw(r, "again")); err != nil {
						r.Fatal(err)
					}
				}
			case 4:
				if _, err := s.book.Cancel(t.Context(), "", id); err == nil {
					m.order = wire.Cancelled
				} else if !errors.Is(err, order.ErrState) {
					r.Fatal(err)
				}
			case 5:
				if _, err := late.Expire(t.Context()); err != nil {
					r.Fatal(err)
				}
				for _, o := range orders {
					if o.order == wire.PendingPayment {
						o.order = wire.Expired
					}
				}
			case 6:
				wrong := strings.Replace(s.event(Succeeded, "c"+id, id), "4900", "4901", 1)
				if _, err := take(t.Context(), s.desk, wrong); !errors.Is(err, ErrMismatch) {
					r.Fatalf("%s: got %v", wrong, err)
				}
				m.status["c"+id] = "refund_due mismatch"
			}
		}
		for id, m := range orders {
			if got := s.stands(id); got != m.order {
				r.Fatalf("order %s: got %s, want %s", id, got, m.order)
			}
			for payment, want := range m.status {
				if got := s.payment(payment); got != want {
					r.Fatalf("payment %s: got %q, want %q", payment, got, want)
				}
			}
		}
	})
}

func TestWhatDoesNotFitIsRefusedAndRecorded(t *testing.T) {
	s := newShop(t, 10)
	id, elsewhere := s.ordered("u"), s.ordered("v")
	refused := func(body, says string) {
		t.Helper()
		_, err := take(t.Context(), s.desk, body)
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want ErrMismatch that says %q", body, err, says)
		}
		before := s.all()
		if _, again := take(t.Context(), s.desk, body); !errors.Is(again, ErrMismatch) || fmt.Sprint(again) != fmt.Sprint(err) {
			t.Errorf("%s, again: got %v, want %v", body, again, err)
		}
		s.same(before, "a repeat")
	}
	for what, body := range map[string]string{
		"less": text("m1", Succeeded, "pay_less", id, 4899, "EUR"), "more": text("m2", Succeeded, "pay_more", id, 4901, "EUR"),
		"nothing": text("m3", Succeeded, "pay_nothing", id, 0, "EUR"), "other": text("m4", Succeeded, "pay_other", id, 4900, "USD"),
	} {
		refused(body, "costs 4900 EUR")
		if got := s.payment("pay_" + what); got != "refund_due mismatch" {
			t.Errorf("%s: the payment is %q", what, got)
		}
	}
	if got := s.due(); got != 4 {
		t.Errorf("%v refunds are due, want 4: the money was taken", got)
	}
	refused(text("m5", Succeeded, "pay_less", id, 4899, "EUR"), "costs 4900 EUR") // the same news as another event
	s.gets(text("m6", Refunded, "pay_less", id, 4899, "EUR"), ResultRefunded)
	if got := s.stands(id); got != wire.PendingPayment {
		t.Errorf("the order is %s", got)
	}

	// A payment is of one order and one amount, whatever is said of it later.
	s.gets(text("m7", Succeeded, "pay_1", id, 4900, "EUR"), ResultPaid)
	for i, body := range []string{
		text("n1", Succeeded, "pay_1", elsewhere, 4900, "EUR"), text("n2", Succeeded, "pay_1", id, 1, "EUR"), text("n3", Refunded, "pay_1", id, 100, "EUR"),
		text("n4", Refunded, "pay_1", elsewhere, 4900, "EUR"), text("n5", Failed, "pay_1", id, 4900, "USD"),
	} {
		refused(body, "payment pay_1 is of")
		if got := s.payment("pay_1"); got != "paid" || s.stands(elsewhere) != wire.PendingPayment || s.stands(id) != wire.Paid {
			t.Errorf("%d: the payment is %q, its order %s, the other one %s", i, got, s.stands(id), s.stands(elsewhere))
		}
	}
}

func TestRefusalsRecordNothing(t *testing.T) {
	s := newShop(t, 10)
	id := s.ordered("u")
	queued := s.queued("q")
	body := s.event(Succeeded, "pay_1", id)
	huge := strings.Replace(body, "{", "{"+strings.Repeat(" ", 100_000), 1)
	before := s.all()
	now := s.clk.Now()
	_, slow := s.open(s.db, s.clockAhead(Tolerance+time.Minute)) // Redis's clock goes on: a delivery that lay about
	for _, c := range []struct {
		name, provider, signature, body string
		desk                            *Webhooks
		want                            error
	}{
		{"an unknown provider", "gamma", sign(secret, now, body), body, s.desk, ErrProvider},
		{"no provider", "", sign(secret, now, body), body, s.desk, ErrProvider},
		{"no signature", "acme", "", body, s.desk, ErrUnsigned},
		{"another provider's signature", "acme", sign(other, now, body), body, s.desk, ErrForged},
		{"another body", "acme", sign(secret, now, body), huge, s.desk, ErrForged},
		{"too old", "acme", sign(secret, now, body), body, slow, ErrAge},
		{"no event", "acme", sign(secret, now, "{}"), "{}", s.desk, ErrBody},
		{"a duplicate member", "acme", sign(secret, now, `{"id":"a","id":"b"}`), `{"id":"a","id":"b"}`, s.desk, ErrBody},
		{"an unknown order", "acme", "", strings.Replace(body, id, wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale), 1), s.desk, order.ErrNotFound},
		{"an order of an unknown sale", "acme", "", strings.Replace(body, id, wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), 999999), 1), s.desk, order.ErrNotFound},
		{"no order id", "acme", "", strings.Replace(body, id, "nonsense", 1), s.desk, order.ErrNotFound},
		{"an order that is queued", "acme", "", strings.Replace(body, id, queued, 1), s.desk, ErrQueued},
	} {
		signature := c.signature
		if signature == "" && c.want != ErrUnsigned {
			signature = sign(secret, now, c.body)
		}
		if r, err := c.desk.Take(t.Context(), c.provider, signature, []byte(c.body)); !errors.Is(err, c.want) || r != (Receipt{}) {
			t.Errorf("%s: got %+v, %v; want %v", c.name, r, err, c.want)
		}
		s.same(before, c.name)
	}
	s.gets(body, ResultPaid)
	before = s.all()
	for _, reused := range []string{strings.Replace(body, "succeeded", "refunded", 1), strings.Replace(body, "4900", "4901", 1), strings.Replace(body, "pay_1", "pay_2", 1)} {
		if _, err := take(t.Context(), s.desk, reused); !errors.Is(err, ErrReused) {
			t.Errorf("%s: got %v, want ErrReused", reused, err)
		}
		s.same(before, reused)
	}
	if got := testutil.ToFloat64(s.desk.events.WithLabelValues("refused")); got != 14 {
		t.Errorf("%v deliveries are counted as refused, want 14", got)
	}
}

// desks are as many as there may be processes, each with connections of its own.
func (s *shop) desks(n int) (books []*order.Store, desks []*Webhooks) {
	for range n {
		b, d := s.open(backendtest.OpenMySQL(s.t, s.dsn, 4), s.clk)
		books, desks = append(books, b), append(desks, d)
	}
	return books, desks
}

func TestDeliveredManyTimesAtOnceItCountsOnce(t *testing.T) {
	const rounds = 20
	s := newShop(t, rounds)
	_, desks := s.desks(4)
	for i := range rounds {
		id := s.ordered(fmt.Sprint("u", i))
		news := []string{s.event(Succeeded, id, id), s.event(Succeeded, id, id)}
		var g errgroup.Group
		receipts := make([]Receipt, 24)
		for k := range receipts {
			g.Go(func() (err error) {
				receipts[k], err = take(t.Context(), desks[k%len(desks)], news[k/4%2])
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for k, r := range receipts {
			if r.Result != ResultPaid || r.OrderID != id {
				t.Errorf("round %d, delivery %d: got %+v", i, k, r)
			}
		}
	}
	for what, query := range map[string]string{"payments in the ledger": `SELECT COUNT(*) FROM ledger WHERE kind = 'pay'`, "payments": `SELECT COUNT(*) FROM payments WHERE status = 'paid'`} {
		if n := s.number(query); n != rounds {
			t.Errorf("got %d %s, want %d", n, what, rounds)
		}
	}
	if n := s.number(`SELECT COUNT(*) FROM payment_events`); n != 2*rounds {
		t.Errorf("got %d events, want %d", n, 2*rounds)
	}
}

// Two payments, a cancellation and a timer are after the same order: one of them wins, and each payment that did not is to
// be given back.
func TestPaymentsRaceTheEndOfTheirOrder(t *testing.T) {
	const rounds = 300
	s := newShop(t, rounds)
	books, desks := s.desks(3)
	late, _ := s.open(backendtest.OpenMySQL(t, s.dsn, 4), s.clockAhead(time.Hour))
	ends := map[wire.OrderStatus]int64{}
	for i := range rounds {
		id := s.ordered(fmt.Sprint("u", i))
		a, b := s.event(Succeeded, "a"+id, id), s.event(Succeeded, "b"+id, id)
		var ra, rb Receipt
		var cancelled error
		var start sync.WaitGroup
		start.Add(1)
		var g errgroup.Group
		todo := []func() error{
			func() (err error) { ra, err = take(t.Context(), desks[0], a); return err },
			func() (err error) { rb, err = take(t.Context(), desks[1], b); return err },
			func() error { _, cancelled = books[2].Cancel(t.Context(), "", id); return nil },
			func() error { _, err := late.Expire(t.Context()); return err },
		}
		for k := range todo {
			who := (k + i) % len(todo)
			g.Go(func() error {
				start.Wait()
				for range i % 12 * (who / 2) { // the payments have further to go: they are given so many round trips' start
					if err := s.db.PingContext(t.Context()); err != nil {
						return err
					}
				}
				return todo[who]()
			})
		}
		start.Done()
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		end := s.stands(id)
		ends[end]++
		results := map[Result]int{}
		results[ra.Result]++
		results[rb.Result]++
		want := map[Result]int{ResultRefundDue: 2}
		if end == wire.Paid {
			want = map[Result]int{ResultPaid: 1, ResultRefundDue: 1}
		}
		if fmt.Sprint(results) != fmt.Sprint(want) || (cancelled == nil) != (end == wire.Cancelled) || cancelled != nil && !errors.Is(cancelled, order.ErrState) {
			t.Errorf("round %d: the order is %s; the payments were told %v, the owner %v", i, end, results, cancelled)
		}
	}
	t.Logf("%v", ends)
	if len(ends) != 3 {
		t.Errorf("got the ends %v, want some orders paid, some cancelled, some expired: else that was no race", ends)
	}
	if got, want := s.number(`SELECT COUNT(*) FROM payments WHERE status = 'refund_due'`), 2*rounds-ends[wire.Paid]; got != want {
		t.Errorf("%d refunds are due, want %d: all payments but those that paid", got, want)
	}
	if got := s.number(`SELECT sold FROM sale_stock`); got != ends[wire.Paid] {
		t.Errorf("%d units are sold, want %d", got, ends[wire.Paid])
	}
	for {
		if n, err := s.intents.Run(t.Context()); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			break
		}
	}
	backendtest.RedisBalanced(t, s.db, s.redis, s.sale)
}

// The COMMIT is done and its answer lost: nobody knows, and the next delivery does.
func TestALostCommitIsFoundAgain(t *testing.T) {
	s := newShop(t, 10)
	c, err := mysql.ParseDSN(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	cut := netfault.New(t, c.Addr)
	c.Addr = cut.Addr()
	_, through := s.open(backendtest.OpenMySQL(t, c.FormatDSN(), 1), s.clk)
	id := s.ordered("u")
	body := s.event(Succeeded, "pay_1", id)
	cut.LoseAnswerTo("\x03COMMIT")
	if _, err := take(t.Context(), through, body); !errors.Is(err, store.ErrUnknown) {
		t.Fatalf("got %v, want ErrUnknown", err)
	}
	r, err := take(t.Context(), through, body)
	if err != nil || r.Result != ResultPaid {
		t.Errorf("delivered again: got %+v, %v", r, err)
	}
	if n := s.number(`SELECT COUNT(*) FROM ledger WHERE kind = 'pay'`); n != 1 {
		t.Errorf("got %d payments in the ledger, want 1", n)
	}
}

// Events are forgotten after Kept, a bounded number at a time, by the index; what they did is not.
func TestOldEventsAreForgotten(t *testing.T) {
	s := newShop(t, 10)
	id := s.ordered("u")
	body := s.event(Succeeded, "pay_1", id)
	s.gets(body, ResultPaid)
	const old, recent = 2500, 5000
	for from, n := range map[string]int{"old": old, "recent": recent} {
		at := s.clk.Now().Add(-Kept).Add(map[string]time.Duration{"old": -time.Second, "recent": time.Hour}[from])
		for i := 0; i < n; i += 500 {
			var rows []string
			var args []any
			for k := i; k < i+500; k++ {
				rows, args = append(rows, `('acme', ?, '', 'paid', ?)`), append(args, fmt.Sprint(from, k), at)
			}
			if _, err := s.db.ExecContext(t.Context(), `INSERT INTO payment_events (provider, event_id, digest, result, received_at) VALUES `+strings.Join(rows, ", "), args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	session := backendtest.OpenMySQL(t, s.dsn, 1)
	_, desk := s.open(session, s.clk)
	for _, want := range []int{1000, 1000, 500, 0} {
		reads, changes := backendtest.Rows(t, session, func() {
			if n, err := desk.Tend(t.Context()); n != want || err != nil {
				t.Errorf("got %d, %v; want %d", n, err, want)
			}
		})
		if reads > int64(2*want+20) || changes > int64(want) {
			t.Errorf("forgetting %d events read %d rows and changed %d", want, reads, changes)
		}
	}
	if n := s.number(`SELECT COUNT(*) FROM payment_events`); n != recent+1 {
		t.Errorf("%d events are left, want %d", n, recent+1)
	}
	_, later := s.open(s.db, s.clockAhead(Kept+time.Hour))
	if n, err := later.Tend(t.Context()); n != 1000 || err != nil {
		t.Errorf("much later: got %d, %v", n, err)
	}
	if _, err := s.db.ExecContext(t.Context(), `DELETE FROM payment_events`); err != nil {
		t.Fatal(err)
	}
	s.gets(body, ResultPaid) // judged anew, by what the payment has become
	if n := s.number(`SELECT COUNT(*) FROM ledger WHERE kind = 'pay'`); n != 1 {
		t.Errorf("got %d payments in the ledger, want 1", n)
	}
}
