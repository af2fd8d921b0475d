package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/failpoint"
)

// maxBatch is the largest batch: an outbox retires at most that many entries at once, and a quorum queue's consumer may
// hold 2,000 messages.
const maxBatch = 1000

// drainGrace is how long a settle that is under way may go on after its context was cancelled.
const drainGrace = 5 * time.Second

// Consume settles every partition's orders, as long as ctx lives; of all processes that consume, one at a time gets a
// partition's. Orders come in batches of at most batch, in the partition's order, but for those that came back after a consumer
// was lost; a batch that is not full waits for more, at most wait after its first order.
//
// settle is called until it succeeds, with growing pauses: meanwhile the batch is held, never returned to the queue. Then
// the batch is acknowledged, then settled is called. A queued.PoisonError is a success, but for the entries that it names:
// they become dead letters. So is a queued.DeferredError: the entries that it names are safe elsewhere, so they are
// acknowledged, but settled is not called with them. When the connection is lost, what was delivered over it is forgotten
// and delivered anew. When ctx is cancelled, a settle under way may finish (within 5 s) and is acknowledged; what is not
// settled goes back. It returns nil after that; it never returns on account of the broker. Settle and settled are called
// concurrently for different partitions.
func (b *Broker) Consume(ctx context.Context, batch int, wait time.Duration,
	settle func(context.Context, []queued.Entry) error, settled func(context.Context, []queued.Entry)) error {
	if batch < 1 || batch > maxBatch {
		return fmt.Errorf("consume: a batch of %d orders is not between 1 and %d", batch, maxBatch)
	}
	for pause := newPause(); ; {
		began := time.Now()
		err := b.consumeOnce(ctx, batch, wait, settle, settled)
		if ctx.Err() != nil {
			return nil
		}
		b.log.Warn("rabbitmq: consuming connection", "error", err)
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		pause.Wait(ctx, nil)
	}
}

// errGone ends one life of the consuming connection.
var errGone = errors.New("the connection, a channel or a queue is gone")

func (b *Broker) consumeOnce(ctx context.Context, batch int, wait time.Duration,
	settle func(context.Context, []queued.Entry) error, settled func(context.Context, []queued.Entry)) error {
	conn, err := b.dial(ctx, "consume")
	b.m.connects.WithLabelValues("consume", result(err)).Inc()
	if err != nil {
		return err
	}
	var watch errgroup.Group // ends with the connection
	blockings := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	watch.Go(func() error {
		for range blockings { // nothing is published here; it is drained all the same
		}
		return nil
	})
	defer func() {
		hangUp(conn)
		_ = watch.Wait() // always nil
	}()
	g, gctx := errgroup.WithContext(ctx)
	// What waits for the broker's answer does not look at a context, and a queue without a leader (after a crash) may keep
	// one waiting for long: so until every lane runs, the end of one of them or of ctx ends the connection.
	var starting atomic.Int64
	starting.Store(int64(b.cfg.Partitions) + 1)
	defer context.AfterFunc(gctx, func() {
		if starting.Load() > 0 {
			hangUp(conn)
		}
	})()
	ask := func(f func() error) error {
		starting.Add(1)
		defer starting.Add(-1)
		if gctx.Err() != nil {
			return gctx.Err()
		}
		return f()
	}
	var opened sync.Once
	// Each lane starts by itself: one that waits for its queue does not hold up the others.
	partition := func(queue string, lane lane) {
		lane.b, lane.queue, lane.ask, lane.patience = b, queue, ask, b.cfg.StallAfter
		g.Go(func() error {
			for lane.careful = true; ; {
				if err := lane.open(conn, &watch); err != nil {
					return err
				}
				if starting.Add(-1) == 0 {
					opened.Do(func() { b.log.Info("rabbitmq: consuming connection is open", "partitions", b.cfg.Partitions) })
				}
				switch err := lane.run(gctx); {
				case errors.Is(err, errPace):
					lane.careful = !lane.careful
				case errors.Is(err, errStalled):
					b.m.stalled.Inc()
					b.log.Info("rabbitmq: a consumer got nothing though its queue is not empty, and begins anew", "queue", queue, "after", lane.patience)
					lane.careful = true
					lane.patience = min(2*lane.patience, maxPatience)
				default:
					return err
				}
				starting.Add(1)
				if gctx.Err() != nil {
					return gctx.Err()
				}
				if err := lane.ch.Close(); err != nil { // what it holds goes back
					return fmt.Errorf("close the channel of %s: %w", queue, err)
				}
			}
		})
	}
	if err := b.topology(conn); err != nil {
		g.Go(func() error { return err })
		return g.Wait()
	}
	for i := range b.cfg.Partitions {
		partition(QueueName(i), lane{batch: batch, wait: wait, settle: settle, settled: settled, answer: b.answerFence})
	}
	// What found no queue is not lost: it may be the only copy of an order.
	partition(Unrouted, lane{batch: batch, wait: wait, settle: b.Publish, settled: func(_ context.Context, es []queued.Entry) {
		b.m.rerouted.Add(float64(len(es)))
	}, answer: func(context.Context, amqp.Delivery) {}}) // a fence that missed its partition passed nothing
	return g.Wait()
}

// suspicious is how often a message was delivered, and came back, before it is settled alone.
const suspicious = 3

// errPace: the lane is to go on at the other pace.
var errPace = errors.New("the other pace")

// errStalled: the queue holds messages, and the lane gets none.
var errStalled = errors.New("nothing is delivered")

// maxPatience bounds a lane's patience, which doubles with each stall: a lane that only stands by for the active consumer of
// its queue, which is held up, looks stalled, too.
const maxPatience = 5 * time.Minute

// lane is one partition's consumer on one life of the connection.
//
// A message over which its consumer dies comes back, its count one higher, with all that the consumer held besides. So that
// the culprit alone reaches the delivery limit, a lane begins carefully: it holds one message at a time, until one comes
// that is not suspicious. When it meets one that is while it goes at its full pace, it is careful again. Each change of
// pace is a new channel: the old one gives everything back at once, so that the partition has one consumer at any time.
//
// A delivery may be lost on its way, in the broker, when a queue's leader dies: then the queue waits for an acknowledgement of
// what the consumer never saw, for ever, and a careful lane waits for it. So a lane that got nothing for long looks whether its
// queue holds something, and then begins anew.
type lane struct {
	careful    bool
	b          *Broker
	ch         *amqp.Channel
	queue      string
	deliveries <-chan amqp.Delivery
	gone       chan struct{} // closed when the channel is
	batch      int
	wait       time.Duration
	settle     func(context.Context, []queued.Entry) error
	settled    func(context.Context, []queued.Entry)
	answer     func(context.Context, amqp.Delivery) // a fence
	patience   time.Duration                        // without a delivery, before it looks
	ask        func(func() error) error             // calls what waits for the broker; the end of the consumer ends it
}

// batch is what is settled at once.
type batch struct {
	entries []queued.Entry
	tags    []uint64       // of their deliveries, and of those that are deferred
	clean   bool           // the first of them was hardly delivered before
	fence   *amqp.Delivery // after them; nil for none
}

// open gives the lane a channel at its pace.
func (l *lane) open(conn *amqp.Connection, watch *errgroup.Group) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	prefetch := min(2*l.batch, 2*maxBatch)
	if l.careful {
		prefetch = 1
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return fmt.Errorf("prefetch of %s: %w", l.queue, err)
	}
	closed, gone := ch.NotifyClose(make(chan *amqp.Error, 1)), make(chan struct{})
	watch.Go(func() error { <-closed; close(gone); return nil })
	if l.deliveries, err = ch.Consume(l.queue, "", false, false, false, false, nil); err != nil {
		return fmt.Errorf("consume %s: %w", l.queue, err)
	}
	l.ch, l.gone = ch, gone
	return nil
}

// returned is how often a message was delivered before.
func returned(d amqp.Delivery) int64 {
	n, _ := d.Headers["x-delivery-count"].(int64)
	return n
}

// run ends with an error when the lane is gone, with ctx, or with errPace.
func (l *lane) run(ctx context.Context) error {
	for {
		b, err := l.collect(ctx)
		if err != nil {
			return err
		}
		if len(b.entries) > 0 {
			if err := l.hold(ctx, &b); err != nil {
				return err
			}
		}
		if len(b.tags) > 0 {
			failpoint.Hit("consumer.before-ack")
			ackErr := l.ch.Ack(b.tags[len(b.tags)-1], true)
			failpoint.Hit("consumer.before-retire")
			if len(b.entries) > 0 {
				after, cancel := lasting(ctx)
				l.settled(after, b.entries) // true whether or not the broker learns of it
				cancel()
			}
			if ackErr != nil {
				return fmt.Errorf("%s: acknowledge: %w", l.queue, ackErr)
			}
			l.b.m.consumed.Add(float64(len(b.entries)))
			l.patience = l.b.cfg.StallAfter
		}
		if b.fence != nil {
			l.answer(ctx, *b.fence)
			if err := b.fence.Ack(false); err != nil {
				return fmt.Errorf("%s: acknowledge a fence: %w", l.queue, err)
			}
		}
		if l.careful && b.clean {
			return errPace
		}
	}
}

// look returns errStalled where the queue holds something to deliver.
func (l lane) look() error {
	var q amqp.Queue
	err := l.ask(func() (err error) {
		q, err = l.ch.QueueDeclarePassive(l.queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("look at %s: %w", l.queue, err)
	}
	if q.Messages > 0 {
		return fmt.Errorf("%s: %w", l.queue, errStalled)
	}
	return nil
}

// collect waits for a first delivery, then for a full batch, a fence or the end of the wait. A cancelled ctx is an error:
// what was collected then goes back to the queue.
func (l lane) collect(ctx context.Context) (b batch, err error) {
	idle := time.NewTimer(l.patience)
	defer idle.Stop()
	var full <-chan time.Time
	most := l.batch
	if l.careful {
		most = 1
	}
	for len(b.entries) < most {
		select {
		case <-ctx.Done():
			return b, ctx.Err()
		case <-full:
			return b, nil
		case <-idle.C:
			if len(b.entries) == 0 {
				if err := l.look(); err != nil {
					return b, err
				}
			}
			idle.Reset(l.patience)
		case d, ok := <-l.deliveries:
			if !ok {
				return b, fmt.Errorf("%s: %w", l.queue, errGone)
			}
			if d.Type == typeFence {
				b.fence = &d
				return b, nil
			}
			if n := returned(d); n >= suspicious && !l.careful {
				return b, errPace
			} else if n < suspicious-1 { // it may come back once more when the pace changes
				b.clean = true
			}
			e, err := decode(d)
			if err != nil {
				if err := l.bury(d.DeliveryTag, err); err != nil {
					return b, err
				}
				continue
			}
			b.entries, b.tags = append(b.entries, e), append(b.tags, d.DeliveryTag)
			if full == nil {
				t := time.NewTimer(l.wait)
				defer t.Stop()
				full = t.C
			}
		}
	}
	return b, nil
}

// bury sends a message to the dead letters.
func (l lane) bury(tag uint64, why error) error {
	l.b.m.unreadable.Inc()
	l.b.log.Error("rabbitmq: a message that is no order goes to the dead letters", "queue", l.queue, "error", why)
	if err := l.ch.Reject(tag, false); err != nil {
		return fmt.Errorf("%s: reject: %w", l.queue, err)
	}
	return nil
}

// exclude buries the entries of a batch that can never be settled, and leaves only the deliveries of those that are deferred.
func (l lane) exclude(b *batch, poison *queued.PoisonError, deferred *queued.DeferredError) error {
	bad, later := map[string]bool{}, map[string]bool{}
	if poison != nil {
		for _, e := range poison.Entries {
			bad[e.ID] = true
		}
	}
	if deferred != nil {
		for _, e := range deferred.Entries {
			later[e.ID] = true
		}
	}
	var good batch
	for i, e := range b.entries {
		if bad[e.ID] {
			if err := l.bury(b.tags[i], poison.Err); err != nil {
				return err
			}
			continue
		}
		good.tags = append(good.tags, b.tags[i])
		if !later[e.ID] {
			good.entries = append(good.entries, e)
		}
	}
	b.entries, b.tags = good.entries, good.tags
	return nil
}

// hold settles a batch, however long that takes; it gives up only when the lane is gone or ctx is cancelled. What can never be
// settled, or is deferred, is no longer among the batch's entries then.
func (l lane) hold(ctx context.Context, b *batch) error {
	held := false
	defer func() {
		if held {
			l.b.m.held.Dec()
		}
	}()
	for pause := newPause(); ; {
		sctx, cancel := lasting(ctx)
		err := l.settle(sctx, b.entries)
		cancel()
		if err == nil {
			return nil
		}
		var poison *queued.PoisonError
		var deferred *queued.DeferredError
		isPoison, isDeferred := errors.As(err, &poison), errors.As(err, &deferred)
		if isPoison || isDeferred {
			return l.exclude(b, poison, deferred)
		}
		l.b.m.settleErrors.Inc()
		if !held {
			held = true
			l.b.m.held.Inc()
			l.b.log.Warn("orders are held: they cannot be settled now", "queue", l.queue, "orders", len(b.entries), "error", err)
		}
		pause.Wait(ctx, l.gone)
		select {
		case <-l.gone:
			return fmt.Errorf("%s: %w while orders were held: %w", l.queue, errGone, err)
		default:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// lasting is ctx, but lives drainGrace longer when that is cancelled.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(drainGrace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-long.Done():
		}
	})
	return long, func() { stop(); cancel() }
}
