// Package reconcile makes a sale in Redis agree with MySQL and the outbox. One procedure does the first load of a sale, each later
// load, a rebuild on request, and the recovery of a restarted or emptied Redis. See docs/reconciling.md. Package model explores it.
//
// It writes the reservations R = L ∪ (O \ M) and the stock = total − units(R). M are all orders in MySQL, L the live ones, O those of
// unretired outbox entries. Any number of reconcilers may run at once, stop anywhere, or sleep for an hour: each has a token, and
// each step is conditional on its token being the newest.
package reconcile

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/lock"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

// Fence is the broker, as a reconciler needs it.
type Fence interface {
	// Fence returns nil once everything that was published before to the sale's partition is settled.
	Fence(ctx context.Context, sale int64) error
}

// Errors of Sale.
var (
	ErrUnknown  = errors.New("there is no such sale")
	ErrArchived = catalog.ErrArchived
)

const (
	// drainTime bounds the first wait for the queue. What is still queued then is adopted afterwards. The wait is shorter if a
	// reconciler had left the gate closed, for the queue itself may then wait for the gate.
	drainTime = 4 * time.Second
	// adoptTime bounds the second wait. The gate stays closed to reserve meanwhile, and another attempt follows.
	adoptTime = time.Minute
	// takeoverTime is how long a process waits for the lock of another that is about to do the same.
	takeoverTime = 10 * time.Second
	// beatEvery is the interval of a reconciler's beats, far shorter than the patience of others.
	beatEvery = time.Second
)

// Reconciler reconciles sales. It is safe for concurrent use.
type Reconciler struct {
	db       *sql.DB
	anyMySQL *sql.DB      // nil: MySQL is not compared
	orders   *order.Store // with anyMySQL
	redis    *reserve.Store
	fence    Fence
	locks    *lock.Locks
	log      *slog.Logger
	wake     chan struct{} // holds one: look now
	drain    time.Duration // bounds the first wait for the queue
	patience time.Duration // how long a closed gate may stand still before another reconciler takes over
	beat     time.Duration // between two beats
	lease    time.Duration // of the locks that keep others from doing the same
	takeover time.Duration // how long to wait for the holder of such a lock
	steps    chan struct{} // holds one for each sale that is being read or written, which bounds memory and the load on both stores

	runs     *prometheus.CounterVec
	seconds  prometheus.Histogram
	notOpen  prometheus.Gauge
	restarts prometheus.Counter

	takeovers *prometheus.CounterVec
	forgotten prometheus.Counter
}

// maxSteps is how many sales are read from MySQL and written to Redis at once.
const maxSteps = 4

// Config is what a Reconciler needs.
type Config struct {
	DB       *sql.DB
	Redis    *reserve.Store
	Fence    Fence // nil: the outbox itself is the queue, and there is nothing to wait for
	Log      *slog.Logger
	Register prometheus.Registerer

	// AnyMySQL leads also to a MySQL that was not compared with Redis (store.OpenAny). Keep compares one that took over or was started
	// anew, and ends in it by Orders what it has forgotten. Nil: nobody does, and none is ever another.
	AnyMySQL *sql.DB
	Orders   *order.Store

	// Lease is how long the others wait for a process that died while it had one of the locks: at most takeoverTime, after
	// which they go on without it. A live holder renews its lock. 0: three seconds.
	Lease time.Duration
}

// New makes a Reconciler and registers its metrics.
func New(c Config) *Reconciler {
	r := &Reconciler{db: c.DB, anyMySQL: c.AnyMySQL, orders: c.Orders, redis: c.Redis, fence: c.Fence, locks: lock.New(c.Redis.Client(), c.Register), log: c.Log,
		wake: make(chan struct{}, 1), drain: drainTime, patience: patience, beat: beatEvery, lease: cmp.Or(c.Lease, aloneLease), takeover: takeoverTime, steps: make(chan struct{}, maxSteps),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_reconciliations_total",
			Help: "Attempts to reconcile a sale: opened, lost to another reconciler, or failed."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_reconciliation_duration_seconds",
			Help: "From the closing of a sale's gate to its opening.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 9)}),
		notOpen: prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_sales_not_open",
			Help: "Live sales whose gate in Redis is not open."}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_redis_restarts_total",
			Help: "How often primaries of Redis were found without sale_reserve.lua, and their live sales were closed and reconciled."}),
		takeovers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_mysql_takeovers_total",
			Help: "How often MySQL was found started anew, or another server, and compared with Redis: it was whole, or older than what Redis knows."}, []string{"result"}),
		forgotten: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_orders_forgotten_total",
			Help: "Settled orders that MySQL has forgotten, found in Redis and queued again."}),
	}
	for _, result := range []string{whole, older} { // so that the first is an increase, too
		r.takeovers.WithLabelValues(result)
	}
	c.Register.MustRegister(r.runs, r.seconds, r.notOpen, r.restarts, r.takeovers, r.forgotten)
	return r
}

// Sale reconciles one sale. After nil its gate is open: this call opened it or, after this call began, another reconciler did. If
// one is at work already, this call waits for it, and takes over if its beat stops. After an error the gate is closed to
// reserve, and the Keep of some process continues.
func (r *Reconciler) Sale(ctx context.Context, sale int64) error {
	states, err := r.redis.States(ctx, []int64{sale})
	if err != nil {
		return fmt.Errorf("reconcile sale %d: %w", sale, err)
	}
	c := r.closed(states[0])
	if st := states[0]; st.Present && st.Gate != lua.GateOpen {
		opened, err := r.watch(ctx, c, sale, st.Token-1)
		if err != nil {
			return fmt.Errorf("reconcile sale %d: %w", sale, err)
		}
		if opened {
			return nil
		}
	}
	return r.finish(ctx, &attempt{r: r, sale: sale}, c)
}

// finish continues the attempt, and repeats it until the gate is open. c is the state of the gate.
func (r *Reconciler) finish(ctx context.Context, a *attempt, c *closed) error {
	for sale := a.sale; ; {
		err := a.run(ctx)
		switch {
		case err == nil:
			r.runs.WithLabelValues("opened").Inc()
			return nil
		case errors.Is(err, ErrArchived):
			return errors.Join(fmt.Errorf("reconcile sale %d: %w", sale, err), r.forgetLater(ctx, []int64{sale}))
		case !errors.Is(err, reserve.ErrLost):
			r.runs.WithLabelValues("failed").Inc()
			return fmt.Errorf("reconcile sale %d: %w", sale, err)
		}
		r.runs.WithLabelValues("lost").Inc()
		r.log.Info("another reconciler took over, or redis was emptied", "sale", sale, "token", a.token)
		opened, err := r.watch(ctx, c, sale, a.token)
		if err != nil {
			return fmt.Errorf("reconcile sale %d: %w", sale, err)
		}
		if opened {
			return nil
		}
		a = &attempt{r: r, sale: sale}
	}
}

// watch waits for a reconciler with a higher token to open the gate, as long as its beat rises. False: the beat stands still, or
// there is no such reconciler, for Redis has lost what this one had done.
func (r *Reconciler) watch(ctx context.Context, c *closed, sale, token int64) (bool, error) {
	for {
		states, err := r.redis.States(ctx, []int64{sale})
		if err != nil {
			return false, err
		}
		st := states[0]
		if st.Gate == lua.GateOpen && st.Token > token {
			return true, nil
		}
		var newest int64
		if err := r.db.QueryRowContext(ctx, `SELECT token FROM sale_stock WHERE sale_id = ?`, sale).Scan(&newest); err != nil {
			return false, fmt.Errorf("read the newest token: %w", err)
		}
		if newest == token || c.silent(st) {
			return false, nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return false, err
		}
	}
}

// step runs f as one of at most maxSteps at once.
func (r *Reconciler) step(ctx context.Context, f func(context.Context) error) error {
	select {
	case r.steps <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.steps }()
	return f(ctx)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
