// Package order is what becomes of an accepted order. The Store settles orders into MySQL, takes payments, cancels,
// expires and gives units back. The Reader tells owners how their orders stand.
//
// MySQL decides. Every change of an order's state is one conditional UPDATE or one INSERT under the order id, in one
// transaction with the stock row, the ledger, and an intent for what is left to do in Redis. Every transaction takes its
// locks in the same order: standby, orders, order_slots, coupon_claims, skus by ascending id, sale_stock by ascending
// sale, ledgers, intents, event_marks. See docs/mysql.md.
//
// A cart's order is a row with sale 0, made by package cart. Its units are those of package sku.
package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/event"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/wire"
)

var (
	// ErrNotFound: there is no such order, or it is somebody else's.
	ErrNotFound = errors.New("no such order")
	// ErrState: the order's state does not allow this; the error is a *StateError.
	ErrState = errors.New("the order's state does not allow this")
)

// StateError says why a payment or a cancellation was refused. It matches ErrState.
type StateError struct {
	Order  wire.Order // as it stands
	Detail string     // a sentence for its owner
}

func (e *StateError) Error() string {
	return fmt.Sprintf("order %s is %s: %s", e.Order.OrderID, e.Order.Status, e.Detail)
}

// Is makes a StateError match ErrState.
func (e *StateError) Is(target error) bool { return target == ErrState }

// Why an order is rejected.
const (
	OutOfStock   = "out_of_stock"  // MySQL, or after a loss Redis, had no unit left for it
	OverLimit    = "limit"         // the buyer's slots are taken by other live orders
	DuplicateKey = "duplicate_key" // another order of the buyer has its Idempotency-Key
	UnknownSale  = "unknown_sale"  // MySQL has no such sale
	Malformed    = "malformed"     // it contradicts itself
	Refused      = "refused"       // MySQL refuses its values
	Archived     = "archived"      // it came when its sale was archived, by when every order was settled
)

// Store writes orders. It is safe for concurrent use, by any number of processes.
type Store struct {
	db      *sql.DB
	redis   *reserve.Store
	intents *intent.Runner
	events  *event.Log
	clk     *clock.Clock
	log     *slog.Logger
	metrics metrics
	tracer  *tracing.Tracer
	bound   time.Duration // 0: none

	acceptWithin time.Duration    // of an offer to the standby line
	returned     func(sale int64) // the sale's standby line moved on
}

// Config is what a Store needs.
type Config struct {
	DB       *sql.DB
	Redis    *reserve.Store
	Intents  *intent.Runner
	Clock    *clock.Clock // follows Redis's clock before anything is decided
	Log      *slog.Logger
	Register prometheus.Registerer
	Tracer   *tracing.Tracer // nil: nothing is traced
	Events   *event.Log      // nil: the shop is told nothing

	// QueuedBound is how long an order may be queued; those that were longer are counted. 0: there is no bound.
	QueuedBound time.Duration
	// AcceptWithin is how long an offer to a standby line stands, at most as long as any order of the sale waits for its payment.
	AcceptWithin time.Duration
	// Returned is told, at once, when a sale may have something to offer to its standby line. Nil: nobody is.
	Returned func(sale int64)
}

// NewStore makes a Store and registers its metrics.
func NewStore(c Config) *Store {
	if c.Returned == nil {
		c.Returned = func(int64) {}
	}
	return &Store{db: c.DB, redis: c.Redis, intents: c.Intents, events: c.Events, clk: c.Clock, log: c.Log, metrics: newBookMetrics(c.Register), tracer: c.Tracer, bound: c.QueuedBound,
		acceptWithin: c.AcceptWithin, returned: c.Returned}
}

// left notes that orders have left the status queued.
func (s *Store) left(entries ...queued.Entry) {
	now := s.clk.Now()
	for _, e := range entries {
		if e.At <= 0 || e.At > maxMillis {
			continue
		}
		queued := max(0, now.Sub(time.UnixMilli(e.At)))
		s.metrics.queued.Observe(queued.Seconds())
		if s.bound > 0 && queued > s.bound {
			s.metrics.late.Inc()
		}
	}
}

// now is the time as MySQL keeps it, in milliseconds: by a finer one it does not search an index.
func (s *Store) now() time.Time { return s.clk.Now().Truncate(time.Millisecond) }

type metrics struct {
	settled  *prometheus.CounterVec
	rejected *prometheus.CounterVec
	poison   prometheus.Counter
	batch    prometheus.Histogram
	duration prometheus.Histogram
	changes  *prometheus.CounterVec
	unsent   prometheus.Counter
	queued   prometheus.Histogram
	late     prometheus.Counter
	stuck    prometheus.Counter

	overtaken prometheus.Counter

	deferredSales prometheus.Gauge
}

func newBookMetrics(reg prometheus.Registerer) metrics {
	m := metrics{
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_orders_settled_total",
			Help: "Orders that consumers brought to an end, by result: inserted, rejected, adopted, known (in MySQL before); or that wait for their closed sale: deferred."}, []string{"result"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_orders_rejected_total",
			Help: "Accepted orders that were rejected, by reason. Each broke a promise or came from outside."}, []string{"reason"}),
		poison: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_orders_poison_total",
			Help: "Entries for which no row can be written at all."}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_settle_batch_orders",
			Help: "Orders in one call of Settle.", Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500}}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_settle_duration_seconds",
			Help: "How long one call of Settle took.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_order_changes_total",
			Help: "Orders that changed after they were settled, by their new status."}, []string{"status"}),
		unsent: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_settled_unsent_total",
			Help: "Settle notifications that could not be published; waiting clients learn the status by the fallback."}),
	}
	m.queued = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_order_queued_seconds",
		Help:    "From the press, by Redis's clock, to the COMMIT that made the order something else than queued.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900, 3600}})
	m.late = prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_orders_late_total",
		Help: "Orders that were queued for longer than the stated bound (orders.queued_bound)."})
	m.stuck = prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_orders_stuck_total",
		Help: "Times that an overdue order was found not to fit its stock row, and left alone for a while: audit its sale."})
	m.overtaken = prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_stock_overtaken_total",
		Help: "Changes of a stock row under the guard version that found the row changed since it was read, and read it again."})
	m.deferredSales = prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_sales_with_deferred_orders",
		Help: "Sales of which orders of older epochs wait in MySQL until the sale takes them."})
	for _, result := range []string{"inserted", "rejected", "adopted", "known", "deferred"} { // so that the first is an increase, too
		m.settled.WithLabelValues(result)
	}
	reg.MustRegister(m.deferredSales, m.overtaken, m.settled, m.rejected, m.poison, m.batch, m.duration, m.changes, m.unsent, m.queued, m.late, m.stuck)
	return m
}

// row is an order as MySQL has it.
type row struct {
	id, uid, reason string
	sale, amount    int64
	quantity        int
	status          wire.OrderStatus
	created         time.Time
	payBefore       sql.NullTime
	items           []wire.OrderItem // of a cart's order, where they were read
}

func (r *row) ofCart() bool { return r.sale == 0 }

const columns = `id, sale_id, uid, quantity, amount, status, reason, created_at, pay_before`

func (r *row) scan(from interface{ Scan(...any) error }) error {
	return from.Scan(&r.id, &r.sale, &r.uid, &r.quantity, &r.amount, &r.status, &r.reason, &r.created, &r.payBefore)
}

func (r *row) wire() wire.Order {
	o := wire.Order{OrderID: r.id, SaleID: r.sale, Quantity: r.quantity, Amount: r.amount, Status: r.status, CreatedAt: wire.At(r.created), Reason: r.reason, Items: r.items}
	if r.payBefore.Valid {
		at := wire.At(r.payBefore.Time)
		o.PayBefore = &at
	}
	return o
}

// queuedRow is an order that is still only in Redis.
func queuedRow(h reserve.Held, sale, price int64) row {
	return row{id: h.ID, uid: h.UID, sale: sale, amount: price * int64(h.Quantity), quantity: h.Quantity, status: wire.Queued, created: time.UnixMilli(h.At)}
}

// find reads those of the orders that MySQL has.
func find(ctx context.Context, q store.Queryer, ids []string) (map[string]row, error) {
	found := make(map[string]row, len(ids))
	if len(ids) == 0 {
		return found, nil
	}
	rows, err := read(ctx, q, `SELECT `+columns+` FROM orders WHERE id IN (`+store.Marks(len(ids))+`)`, store.Anys(ids)...)
	if err == nil {
		err = readItems(ctx, q, rows)
	}
	if err != nil {
		return nil, fmt.Errorf("read %d orders: %w", len(ids), err)
	}
	for _, r := range rows {
		found[r.id] = r
	}
	return found, nil
}

// read runs a query of columns.
func read(ctx context.Context, q store.Queryer, query string, args ...any) ([]row, error) {
	var out []row
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var r row
		err := r.scan(rows)
		out = append(out, r)
		return err
	}, query, args...)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// readItems reads the lines of those of the orders that are carts'.
func readItems(ctx context.Context, q store.Queryer, orders []row) error {
	at := map[string]*row{}
	var ids []any
	for i := range orders {
		if o := &orders[i]; o.ofCart() {
			at[o.id] = o
			ids = append(ids, o.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var id string
		var item wire.OrderItem
		err := rows.Scan(&id, &item.SKU, &item.Quantity, &item.Price)
		at[id].items = append(at[id].items, item)
		return err
	}, `SELECT order_id, sku_id, quantity, price FROM cart_lines WHERE order_id IN (`+store.Marks(len(ids))+`) ORDER BY order_id, sku_id`, ids...)
	if err != nil {
		return fmt.Errorf("lines of %d carts: %w", len(ids), err)
	}
	return nil
}

// price reads what one unit of a sale costs; 0 for a sale that MySQL does not have.
func price(ctx context.Context, q store.Queryer, sale int64) (int64, error) {
	var p int64
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		if err := rows.Scan(&p); err != nil {
			return err
		}
		return nil
	}, `SELECT price FROM sales WHERE id = ?`, sale)
	if err != nil {
		return 0, fmt.Errorf("price of sale %d: %w", sale, err)
	}
	return p, nil
}
