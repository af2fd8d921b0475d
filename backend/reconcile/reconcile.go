// Package reconcile brings a sale in Redis in line with MySQL and the outbox. The first load of a new sale, a cold load, a
// rebuild on request and the recovery of a restarted or emptied Redis are this one procedure; package model explores it.
//
// Wanted are the reservations R = L ∪ (O \ M) and the stock = total − units(R), where M are all orders in MySQL, L the live
// ones, O those of unretired outbox entries. Any number of reconcilers may run at once, stop anywhere, or sleep for an hour:
// each has a token, and each step is conditional on it being the newest.
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
	// drainTime bounds the first wait for the queue. Where it does not do, what is queued is adopted afterwards; it does not
	// do where the queue itself waits for a gate that a reconciler closed and left, so that it is shorter then.
	drainTime = 4 * time.Second
	// adoptTime bounds the second: the gate stays closed to reserve meanwhile, and another attempt follows.
	adoptTime = time.Minute
	// takeoverTime is how long a process waits for the lock of another that is about to begin the same.
	takeoverTime = 10 * time.Second
	// beatEvery is how often a reconciler shows that it is at work, well within anybody's patience.
	beatEvery = time.Second
)

// Reconciler reconciles sales. It is safe for concurrent use.
type Reconciler struct {
	db       *sql.DB
	redis    *reserve.Store
	fence    Fence
	locks    *lock.Locks
	log      *slog.Logger
	wake     chan struct{} // a token: look now
	drain    time.Duration // the first wait for the queue, at most
	patience time.Duration // with a gate that is not open, and whose reconciler shows nothing
	beat     time.Duration // how often a reconciler shows that it is at work
	lease    time.Duration // of the locks that keep others from doing the same
	takeover time.Duration // how long the holder of such a lock is waited for
	steps    chan struct{} // a token for each sale that is being read or written, so that memory and both stores are not swamped

	runs     *prometheus.CounterVec
	seconds  prometheus.Histogram
	notOpen  prometheus.Gauge
	restarts prometheus.Counter
}

// maxSteps is how many sales are read from MySQL and written to Redis at once.
const maxSteps = 4

// Config is what a Reconciler needs.
type Config struct {
	DB       *sql.DB
	Redis    *reserve.Store
	Fence    Fence // nil: the outbox itself is the queue, and nothing is waited for
	Log      *slog.Logger
	Register prometheus.Registerer

	// Lease is how long the others wait for a process that died while it had one of the locks: at most takeoverTime, after
	// which they go on without it. A live holder renews its lock. 0: three seconds.
	Lease time.Duration
}

// New makes a Reconciler and registers its metrics.
func New(c Config) *Reconciler {
	r := &Reconciler{db: c.DB, redis: c.Redis, fence: c.Fence, locks: lock.New(c.Redis.Client(), c.Redis.Prefix(), c.Register), log: c.Log,
		wake: make(chan struct{}, 1), drain: drainTime, patience: patience, beat: beatEvery, lease: cmp.Or(c.Lease, aloneLease), takeover: takeoverTime, steps: make(chan struct{}, maxSteps),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_reconciliations_total",
			Help: "Attempts to reconcile a sale: opened, lost to another reconciler, or failed."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_reconciliation_duration_seconds",
			Help: "From the closing of a sale's gate to its opening.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 9)}),
		notOpen: prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_sales_not_open",
			Help: "Live sales whose gate in Redis is not open."}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_redis_restarts_total",
			Help: "How often primaries of Redis were found without sale_reserve.lua, and their live sales were closed and reconciled."}),
	}
	c.Register.MustRegister(r.runs, r.seconds, r.notOpen, r.restarts)
	return r
}

// Sale reconciles one sale. Nil: its gate is open, opened by this call or, after this call began, by another reconciler. So
// where one is at work already, it is waited for; where that shows nothing for a while, this call takes over. An error leaves
// the gate closed to reserve; Keep, of whichever process, goes on from there.
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

// finish is Sale from wherever a is, without a wait for another reconciler before. c is what is known of the gate.
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

// watch waits for a reconciler with a higher token to open the gate, for as long as it shows that it is at work. False: it shows
// nothing, or there is none, since it was Redis that lost what this one had done.
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

// step runs f with one of the few tokens for work on both stores.
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
