package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
)

// ErrUnacknowledged: fewer replicas than wanted have acknowledged the order in time.
var ErrUnacknowledged = errors.New("too few replicas have acknowledged the order")

const (
	roundsAtOnce = 16   // of different sales, each with a connection of its own
	roundOrders  = 1000 // orders in one round, at most
)

// Replicas waits until replicas of Redis have acknowledged an order (accept.after: replicas:N). Orders of one sale that wait at the
// same time share one WAIT: a round. A sale has one round at a time. It is safe for concurrent use.
type Replicas struct {
	redis    *reserve.Store
	n        int
	within   time.Duration
	duration prometheus.Observer
	failed   prometheus.Counter
	places   chan struct{} // of rounds
	rounds   sync.WaitGroup

	mu    sync.Mutex // guards sales
	sales map[int64][]waiting
}

// waiting is an order whose answer waits. done takes one error, without blocking.
type waiting struct {
	entry queued.Entry
	done  chan error
}

// ReplicasConfig is what a Replicas needs.
type ReplicasConfig struct {
	Redis    *reserve.Store
	Register prometheus.Registerer

	Count  int           // of replicas that must acknowledge an order
	Within time.Duration // an order waits for them, at most
}

// NewReplicas makes a Replicas and registers its metrics.
func NewReplicas(c ReplicasConfig) *Replicas {
	duration := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_replicated_duration_seconds",
		Help:    "From a reservation to the acknowledgements of Redis's replicas.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}})
	failed := prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_unreplicated_total",
		Help: "Orders that too few of Redis's replicas acknowledged in time; they stand in Redis."})
	c.Register.MustRegister(duration, failed)
	return &Replicas{redis: c.Redis, n: c.Count, within: c.Within, duration: duration, failed: failed,
		places: make(chan struct{}, roundsAtOnce), sales: map[int64][]waiting{}}
}

// Run returns when ctx has ended and no round is under way.
func (r *Replicas) Run(ctx context.Context) error {
	<-ctx.Done()
	r.rounds.Wait()
	return nil
}

// Confirm waits for the replicas. After nil the server that holds the order in the epoch of its entry has as many replicas as
// wanted that have it as well. ErrMoved; after any other error the outcome is unknown.
func (r *Replicas) Confirm(ctx context.Context, e queued.Entry) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	w := waiting{e, make(chan error, 1)}
	r.mu.Lock()
	line, running := r.sales[e.Sale]
	r.sales[e.Sale] = append(line, w)
	r.mu.Unlock()
	if !running {
		r.rounds.Go(func() { r.serve(e.Sale) })
	}
	var err error
	select {
	case err = <-w.done:
	case <-ctx.Done():
		err = fmt.Errorf("order %s: %w: %w", e.ID, ErrUnacknowledged, ctx.Err())
	}
	if err != nil {
		r.failed.Inc()
		return err
	}
	r.duration.Observe(time.Since(began).Seconds())
	return nil
}

// Again is Confirm for an order that any process made before. ErrMoved, ErrNotQueued; after any other error the outcome is
// unknown. After nil the order may have been rejected before it was adopted: ask MySQL.
func (r *Replicas) Again(ctx context.Context, sale int64, orderID string) error {
	e, _, err := find(ctx, r.redis, sale, orderID)
	if err != nil {
		return err
	}
	return r.Confirm(ctx, e)
}

// serve does the rounds of a sale until nobody waits.
func (r *Replicas) serve(sale int64) {
	for {
		r.places <- struct{}{}
		r.mu.Lock()
		line := r.sales[sale]
		if len(line) == 0 {
			delete(r.sales, sale)
			r.mu.Unlock()
			<-r.places
			return
		}
		round := line[:min(len(line), roundOrders)]
		r.sales[sale] = line[len(round):]
		r.mu.Unlock()
		r.round(sale, round)
		<-r.places
	}
}

// round waits for half of within at most: who came while the round before was under way has time for a whole one.
func (r *Replicas) round(sale int64, round []waiting) {
	entries := make([]queued.Entry, len(round))
	for i, w := range round {
		entries[i] = w.entry
	}
	held, acknowledged, err := r.redis.Replicated(context.Background(), sale, entries, r.n, r.within/2)
	for i, w := range round {
		switch {
		case err != nil:
			w.done <- err
		case !held[i]:
			w.done <- fmt.Errorf("order %s of epoch %d: %w", w.entry.ID, w.entry.Epoch, ErrMoved)
		case acknowledged < r.n:
			w.done <- fmt.Errorf("order %s: %w: %d of %d", w.entry.ID, ErrUnacknowledged, acknowledged, r.n)
		default:
			w.done <- nil
		}
	}
}
