package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/tracing"
)

var (
	// ErrMoved: Redis has lost the order, or was reconciled since it was read. MySQL knows what became of it.
	ErrMoved = errors.New("redis no longer holds the order as it was read")
	// ErrNotQueued: the outbox does not have the order. It is in MySQL, if anywhere.
	ErrNotQueued = errors.New("the order is not in the outbox")
)

// Confirmer publishes single orders at once and waits for the broker's confirm (accept.after: confirm). A relay publishes
// later what it cannot publish in time. It is safe for concurrent use.
type Confirmer struct {
	redis    *reserve.Store
	pub      Publisher
	tracer   *tracing.Tracer
	within   time.Duration
	duration prometheus.Observer
	failed   prometheus.Counter
}

// ConfirmerConfig is what a Confirmer needs.
type ConfirmerConfig struct {
	Redis    *reserve.Store
	Broker   Publisher
	Tracer   *tracing.Tracer // nil: nothing is traced
	Register prometheus.Registerer

	Within time.Duration // a confirm is waited for, at most
}

// NewConfirmer makes a Confirmer and registers its metrics.
func NewConfirmer(c ConfirmerConfig) *Confirmer {
	duration := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_confirm_duration_seconds",
		Help:    "From a reservation to the broker's confirm of it and Redis's word that it still holds it.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}})
	failed := prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_unconfirmed_total",
		Help: "Orders of which no confirm came in time; relays publish them."})
	c.Register.MustRegister(duration, failed)
	return &Confirmer{redis: c.Redis, pub: c.Broker, tracer: c.Tracer, within: c.Within, duration: duration, failed: failed}
}

// Confirm publishes an order. After nil the broker has confirmed it and Redis still holds it as it was published, so it survives
// the loss of either. ErrMoved; after any other error the outcome is unknown.
func (c *Confirmer) Confirm(ctx context.Context, e queued.Entry) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.within)
	defer cancel()
	err := publish(ctx, c.pub, c.tracer, []queued.Entry{e})
	if err == nil {
		err = c.kept(ctx, e)
	}
	if err != nil {
		c.failed.Inc()
		return err
	}
	c.duration.Observe(time.Since(began).Seconds())
	return nil
}

func (c *Confirmer) kept(ctx context.Context, e queued.Entry) error {
	kept, err := c.redis.Keep(ctx, e, Published)
	if err == nil && !kept {
		err = fmt.Errorf("order %s of epoch %d: %w", e.ID, e.Epoch, ErrMoved)
	}
	return err
}

// Again is Confirm for an order that any process made before, whatever became of its confirm then. An order that was marked
// as published is not published again. ErrMoved, ErrNotQueued; after any other error the outcome is unknown.
// After nil the order may have been rejected before it was adopted: ask MySQL.
func (c *Confirmer) Again(ctx context.Context, sale int64, orderID string) error {
	e, published, err := find(ctx, c.redis, sale, orderID)
	switch {
	case err != nil:
		return err
	case published:
		return c.kept(ctx, e)
	default:
		return c.Confirm(ctx, e)
	}
}

// find reads the outbox entry of an order and whether it is marked as published. ErrNotQueued.
func find(ctx context.Context, s *reserve.Store, sale int64, orderID string) (e queued.Entry, published bool, err error) {
	held, ok, err := s.Lookup(ctx, sale, orderID)
	switch {
	case err != nil:
		return e, false, err
	case !ok || held.Entry == "-":
		return e, false, fmt.Errorf("order %s: %w", orderID, ErrNotQueued)
	}
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	client, key, id := s.Client(), s.OutboxKey(sale), held.Entry
	r := client.DoMulti(ctx,
		client.B().Xrange().Key(key).Start(id).End(id).Build(),
		client.B().Xpending().Key(key).Group(reserve.Group).Start(id).End(id).Count(1).Consumer(Published).Build())
	found, err := r[0].AsXRange()
	if err != nil {
		return e, false, fmt.Errorf("entry %s of sale %d: %w", id, sale, err)
	}
	if len(found) == 0 {
		return e, false, fmt.Errorf("entry %s of sale %d: %w", id, sale, ErrNotQueued)
	}
	if e, err = queued.Parse(sale, id, found[0].FieldValues); err != nil {
		return e, false, err
	}
	marks, err := r[1].ToArray()
	if _, redis := rueidis.IsRedisErr(err); err != nil && !redis { // an error of Redis: the group does not exist yet, so it is not marked
		return e, false, fmt.Errorf("entry %s of sale %d: %w", id, sale, err)
	}
	return e, len(marks) > 0, nil
}
