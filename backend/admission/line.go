// Package admission is the bounded waiting line in front of the decision of orders: as many are decided at once as the machine
// does well, the others wait, first come, first served, and who cannot be served is told so at once.
//
// It is a bounded queue. Who decides waits while it is empty. Who comes to a full one is pushed back: a line that is longer
// than a few buyers for each unit that is left helps nobody. And when the last unit goes, everybody in that sale's line is
// told in that moment.
package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

// Why Enter did not let somebody in. Nothing was done.
var (
	// ErrSoldOut: nothing is available.
	ErrSoldOut = errors.New("nothing is available")
	// ErrFull: as many wait, of all sales, as may.
	ErrFull = errors.New("too many orders are waiting")
	// ErrLong: as many wait for the sale as is sensible for what is left of it.
	ErrLong = errors.New("too many orders are waiting for what is left of this sale")
	// ErrLate: it would have taken too long.
	ErrLate = errors.New("the order has waited for too long")
	// ErrClosed: the line was closed.
	ErrClosed = errors.New("no orders are taken any more")
)

// Limits bound a line.
type Limits struct {
	Slots   int           // orders being decided at once
	Waiting int           // orders that wait, of all sales
	PerUnit int           // orders that wait for one sale, for each unit that is left of it
	Wait    time.Duration // of one order
}

// Line is the line of one process. It is safe for concurrent use.
type Line struct {
	limits Limits
	slots  *semaphore.Weighted // first come, first served
	ctx    context.Context     // ends with Close
	end    context.CancelCauseFunc

	mu      sync.Mutex       // guards the rest
	sales   map[int64]*queue // of the sales that are waited for
	waiting int

	waited  prometheus.Histogram
	refused map[error]prometheus.Counter
}

// queue is those who wait for one sale.
type queue struct {
	open    context.Context // ends when the sale has sold out
	sellOut context.CancelCauseFunc
	waiting int // guarded by Line.mu
}

var reasons = map[error]string{ErrSoldOut: "sold_out", ErrFull: "full", ErrLong: "long", ErrLate: "late", ErrClosed: "closed"}

// New makes a line in which nobody waits. Close it.
func New(limits Limits, reg prometheus.Registerer) *Line {
	if limits.Slots < 1 || limits.PerUnit < 1 {
		panic(fmt.Sprintf("BUG: a line of %d slots, %d for a unit", limits.Slots, limits.PerUnit))
	}
	l := &Line{limits: limits, slots: semaphore.NewWeighted(int64(limits.Slots)), sales: map[int64]*queue{}, refused: map[error]prometheus.Counter{},
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_line_wait_seconds",
			Help: "Time in line of the orders that were let in after a wait.", Buckets: prometheus.ExponentialBuckets(.001, 3, 8)})}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_line_refused_total",
		Help: "Orders that were not let in, by why: the line was full, or too long for what was left, the wait too long, the sale sold out, or the process ending."}, []string{"reason"})
	for err, reason := range reasons {
		l.refused[err] = refused.WithLabelValues(reason)
	}
	reg.MustRegister(l.waited, refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_line_waiting",
		Help: "Orders in line."}, func() float64 { return float64(l.Waiting()) }))
	return l
}

// Close sends everybody in line away, and whoever would have to wait from now on.
func (l *Line) Close() { l.end(ErrClosed) }

// Waiting is how many wait.
func (l *Line) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// Enter returns nil when it is an order's turn to be decided, and Leave must be called then. It waits where others are
// before it. left says what is left of the sale, false if that is not known; it is only asked where there is a wait.
// Any error is one of this package's: nothing was done.
func (l *Line) Enter(sale int64, left func() (units int64, known bool)) error {
	if l.slots.TryAcquire(1) { // nobody is before it
		return nil
	}
	err := l.wait(sale, left)
	if err != nil {
		l.refused[err].Inc()
	}
	return err
}

// Leave ends what Enter allowed: the next one's turn has come.
func (l *Line) Leave() { l.slots.Release(1) }

func (l *Line) wait(sale int64, left func() (int64, bool)) error {
	q, err := l.join(sale, left)
	if err != nil {
		return err
	}
	defer l.part(sale, q)
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(q.open, l.limits.Wait, ErrLate)
	defer cancel()
	if l.slots.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	l.waited.Observe(time.Since(began).Seconds())
	return nil
}

// join takes a place in line. What is left is asked under the lock that SoldOut takes, and SoldOut is called after it is
// known that nothing is: so nobody who joins misses it.
func (l *Line) join(sale int64, left func() (int64, bool)) (*queue, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, ErrClosed
	}
	q := l.sales[sale]
	if units, known := left(); known {
		if units <= 0 {
			return nil, ErrSoldOut
		}
		// Not as a product, which may overflow: units x PerUnit <= waiting.
		if q != nil && int64(q.waiting/l.limits.PerUnit) >= units {
			return nil, ErrLong
		}
	}
	if l.waiting >= l.limits.Waiting {
		return nil, ErrFull
	}
	if q == nil {
		q = &queue{}
		q.open, q.sellOut = context.WithCancelCause(l.ctx)
		l.sales[sale] = q
	}
	q.waiting++
	l.waiting++
	return q, nil
}

func (l *Line) part(sale int64, q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	if q.waiting--; q.waiting == 0 {
		q.sellOut(nil)
		if l.sales[sale] == q {
			delete(l.sales, sale)
		}
	}
}

// SoldOut tells everybody who waits for a sale that nothing is available. It is called once that is known: what left
// answers after it is at least as new. When it returns everybody is told, whoever else tells them at the same moment. Who
// comes later may wait again: stock may have come back.
func (l *Line) SoldOut(sale int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.sales[sale]; q != nil {
		delete(l.sales, sale)
		q.sellOut(ErrSoldOut)
	}
}
