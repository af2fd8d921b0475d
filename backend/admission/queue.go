// Package admission is the bounded queue in front of the decision of orders. A fixed number of orders is decided at once, the others
// wait in the order in which they came. An order is refused at once if the queue is full, or if it holds more than a few orders
// for each unit that is left. When a sale sells out, all its waiting orders are refused at once.
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

// Why Enter refused an order. Nothing was done.
var (
	// ErrSoldOut: nothing is available.
	ErrSoldOut = errors.New("nothing is available")
	// ErrFull: too many orders wait, of all sales.
	ErrFull = errors.New("too many orders are waiting")
	// ErrLong: too many orders wait for what is left of the sale.
	ErrLong = errors.New("too many orders are waiting for what is left of this sale")
	// ErrLate: the order has waited for too long.
	ErrLate = errors.New("the order has waited for too long")
	// ErrClosed: the queue was closed.
	ErrClosed = errors.New("no orders are taken any more")
)

// Limits bound a queue.
type Limits struct {
	Slots   int           // orders being decided at once
	Waiting int           // orders that wait, of all sales
	PerUnit int           // orders that wait for one sale, for each unit that is left of it
	Wait    time.Duration // of one order
}

// Queue is the waiting orders of one process. It is safe for concurrent use.
type Queue struct {
	limits Limits
	slots  *semaphore.Weighted // first come, first served
	ctx    context.Context     // ends with Close
	end    context.CancelCauseFunc

	mu      sync.Mutex           // guards the rest
	sales   map[int64]*saleQueue // those that orders wait for
	waiting int

	waited  prometheus.Histogram
	refused map[error]prometheus.Counter
}

// saleQueue is the orders that wait for one sale.
type saleQueue struct {
	open    context.Context // ends when the sale has sold out
	sellOut context.CancelCauseFunc
	waiting int // guarded by Queue.mu
}

var reasons = map[error]string{ErrSoldOut: "sold_out", ErrFull: "full", ErrLong: "long", ErrLate: "late", ErrClosed: "closed"}

// New makes an empty queue. Close it.
func New(limits Limits, reg prometheus.Registerer) *Queue {
	if limits.Slots < 1 || limits.PerUnit < 1 {
		panic(fmt.Sprintf("BUG: a queue of %d slots, %d for a unit", limits.Slots, limits.PerUnit))
	}
	a := &Queue{limits: limits, slots: semaphore.NewWeighted(int64(limits.Slots)), sales: map[int64]*saleQueue{}, refused: map[error]prometheus.Counter{},
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_line_wait_seconds",
			Help: "Time in line of the orders that were let in after a wait.", Buckets: prometheus.ExponentialBuckets(.001, 3, 8)})}
	a.ctx, a.end = context.WithCancelCause(context.Background())
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_line_refused_total",
		Help: "Orders that were not let in, by why: the line was full, or too long for what was left, the wait too long, the sale sold out, or the process ending."}, []string{"reason"})
	for err, reason := range reasons {
		a.refused[err] = refused.WithLabelValues(reason)
	}
	reg.MustRegister(a.waited, refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_line_waiting",
		Help: "Orders in line."}, func() float64 { return float64(a.Waiting()) }))
	return a
}

// Close refuses every order that waits, or would have to from now on.
func (a *Queue) Close() { a.end(ErrClosed) }

// Waiting is how many orders wait.
func (a *Queue) Waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting
}

// Enter returns nil when it is the order's turn to be decided. Then Leave must be called. It waits if other orders are before it.
// left returns what is left of the sale, or false if that is unknown. It is called only if the order has to wait. Any error is
// one of this package's: nothing was done.
func (a *Queue) Enter(sale int64, left func() (units int64, known bool)) error {
	if a.slots.TryAcquire(1) { // no order is before it
		return nil
	}
	err := a.wait(sale, left)
	if err != nil {
		a.refused[err].Inc()
	}
	return err
}

// Leave ends what Enter allowed: it is the next order's turn.
func (a *Queue) Leave() { a.slots.Release(1) }

func (a *Queue) wait(sale int64, left func() (int64, bool)) error {
	q, err := a.join(sale, left)
	if err != nil {
		return err
	}
	defer a.part(sale, q)
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(q.open, a.limits.Wait, ErrLate)
	defer cancel()
	if a.slots.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	a.waited.Observe(time.Since(began).Seconds())
	return nil
}

// join adds an order to the queue. It calls left under the lock that SoldOut takes, and SoldOut is called once left answers that
// nothing is left. So no order that joins misses it.
func (a *Queue) join(sale int64, left func() (int64, bool)) (*saleQueue, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx.Err() != nil {
		return nil, ErrClosed
	}
	q := a.sales[sale]
	if units, known := left(); known {
		if units <= 0 {
			return nil, ErrSoldOut
		}
		// Not as a product, which may overflow: units x PerUnit <= waiting.
		if q != nil && int64(q.waiting/a.limits.PerUnit) >= units {
			return nil, ErrLong
		}
	}
	if a.waiting >= a.limits.Waiting {
		return nil, ErrFull
	}
	if q == nil {
		q = &saleQueue{}
		q.open, q.sellOut = context.WithCancelCause(a.ctx)
		a.sales[sale] = q
	}
	q.waiting++
	a.waiting++
	return q, nil
}

func (a *Queue) part(sale int64, q *saleQueue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting--
	if q.waiting--; q.waiting == 0 {
		q.sellOut(nil)
		if a.sales[sale] == q {
			delete(a.sales, sale)
		}
	}
}

// SoldOut refuses all waiting orders of a sale with ErrSoldOut. Call it once left answers that nothing is left. When it returns all
// are refused, also those of concurrent calls. Later orders may wait again, for stock may have come back.
func (a *Queue) SoldOut(sale int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.sales[sale]; q != nil {
		delete(a.sales, sale)
		q.sellOut(ErrSoldOut)
	}
}
