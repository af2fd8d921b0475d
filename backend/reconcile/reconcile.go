// Package reconcile brings a sale in Redis in line with MySQL and the outbox. The first load of a new sale, a cold load, a
// rebuild on request and the recovery of a restarted or emptied Redis are this one procedure; package model explores it.
//
// Wanted are the reservations R = L ∪ (O \ M) and the stock = total − units(R), where M are all orders in MySQL, L the live
// ones, O those of unretired outbox entries. Any number of reconcilers may run at once, stop anywhere, or sleep for an hour:
// each has a token, and each step is conditional on it being the newest.
package reconcile

import (
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
	// takeoverTime is how long a reconciler waits for another that is at the same before it does it itself.
	takeoverTime = 10 * time.Second
)

// Reconciler reconciles sales. It is safe for concurrent use; two calls for one sale are two reconcilers, of which the
// second takes over.
type Reconciler struct {
	db       *sql.DB
	redis    *reserve.Store
	fence    Fence
	locks    *lock.Locks
	log      *slog.Logger
	wake     chan struct{} // a token: look now
	drain    time.Duration // the first wait for the queue, at most
	patience time.Duration // with a gate that is not open and does not move
	lease    time.Duration // of the locks that keep others from doing the same
	takeover time.Duration // how long another one is waited for before its work is taken over
	steps    chan struct{} // a token for each sale that is being read or written, so that memory and both stores are not swamped

	runs     *prometheus.CounterVec
	seconds  prometheus.Histogram
	notOpen  prometheus.Gauge
	restarts prometheus.Counter
}

// maxSteps is how many sales are read from MySQL and written to Redis at once.
const maxSteps = 4

// New makes a Reconciler. Without a fence the outbox itself is the queue, and nothing is waited for.
func New(db *sql.DB, redis *reserve.Store, fence Fence, log *slog.Logger, reg prometheus.Registerer) *Reconciler {
	r := &Reconciler{db: db, redis: redis, fence: fence, locks: lock.New(redis.Client(), redis.Prefix(), reg), log: log,
		wake: make(chan struct{}, 1), drain: drainTime, patience: patience, lease: aloneLease, takeover: takeoverTime, steps: make(chan struct{}, maxSteps),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_reconciliations_total",
			Help: "Attempts to reconcile a sale: opened, lost to another reconciler, or failed."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_reconciliation_duration_seconds",
			Help: "From the closing of a sale's gate to its opening.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 9)}),
		notOpen: prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_sales_not_open",
			Help: "Live sales whose gate in Redis is not open."}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_redis_restarts_total",
			Help: "How often primaries of Redis were found without reserve.lua, and their live sales were closed and reconciled."}),
	}
	reg.MustRegister(r.runs, r.seconds, r.notOpen, r.restarts)
	return r
}

// Sale reconciles one sale. Nil: its gate is open, opened by this call or, after this call began, by another reconciler
// that took over. An error leaves the gate closed to reserve; Keep, of whichever process, goes on from there.
func (r *Reconciler) Sale(ctx context.Context, sale int64) error {
	return r.finish(ctx, &attempt{r: r, sale: sale})
}

// finish is Sale from wherever a is.
func (r *Reconciler) finish(ctx context.Context, a *attempt) error {
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
		opened, err := r.watch(ctx, sale, a.token)
		if err != nil {
			return fmt.Errorf("reconcile sale %d: %w", sale, err)
		}
		if opened {
			return nil
		}
		a = &attempt{r: r, sale: sale}
	}
}

// watch waits for the reconciler that took over to open the gate; false if that takes too long, or if there is none: then
// it was Redis that lost what this one had done.
func (r *Reconciler) watch(ctx context.Context, sale, token int64) (bool, error) {
	for end := time.Now().Add(r.takeover); time.Now().Before(end); {
		states, err := r.redis.States(ctx, []int64{sale})
		if err != nil {
			return false, err
		}
		if st := states[0]; st.Gate == lua.GateOpen && st.Token > token {
			return true, nil
		}
		var newest int64
		if err := r.db.QueryRowContext(ctx, `SELECT token FROM sale_stock WHERE sale_id = ?`, sale).Scan(&newest); err != nil {
			return false, fmt.Errorf("read the newest token: %w", err)
		}
		if newest == token {
			return false, nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return false, err
		}
	}
	return false, nil
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
