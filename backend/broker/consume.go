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

// maxBatch is the largest batch: an outbox retires at most so many entries at once, and a quorum queue's consumer may hold
// 2,000 messages.
const maxBatch = 1000

// drainGrace is how long a running settle may go on after its context was cancelled.
const drainGrace = 5 * time.Second

// Consume settles every partition's orders until ctx is cancelled, and then returns nil. Of all processes that consume, one at a
// time gets a partition's orders. They come in batches of at most batch, in the partition's order, except those that came back
// after a consumer was lost. A batch that is not full waits for more, at most wait after its first order.
//
// Consume calls settle until it succeeds, with growing pauses. Meanwhile it holds the batch, and never returns it to the queue.
// Then it acknowledges the batch, then it calls settled. A queued.PoisonError is a success, except for the entries that it
// names: they become dead letters. So is a queued.DeferredError: the entries that it names are stored elsewhere, so they are
// acknowledged, but settled is not called with them.
//
// When the connection is lost, what it delivered is dropped and delivered again. When ctx is cancelled, a running settle may
// finish within 5 s and is acknowledged; the rest goes back. settle and settled are called concurrently for different partitions.
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

// errGone ends a consuming connection.
var errGone = errors.New("the connection, a channel or a queue is gone")

// dialToConsume opens a connection on which nothing is published. In watch is what ends with the connection: end hangs up and waits
// for it.
func (b *Broker) dialToConsume(ctx context.Context, name, label string) (conn *amqp.Connection, watch *errgroup.Group, end func(), err error) {
	conn, err = b.dial(ctx, name)
	b.m.connects.WithLabelValues(label, result(err)).Inc()
	if err != nil {
		return nil, nil, nil, err
	}
	watch = new(errgroup.Group)
	blockings := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	watch.Go(func() error {
		for range blockings { // the channel must be drained
		}
		return nil
	})
	return conn, watch, func() {
		hangUp(conn)
		_ = watch.Wait() // always nil
	}, nil
}

func (b *Broker) consumeOnce(ctx context.Context, batch int, wait time.Duration,
	settle func(context.Context, []queued.Entry) error, settled func(context.Context, []queued.Entry)) error {
	conn, watch, end, err := b.dialToConsume(ctx, "consume", "consume")
	if err != nil {
		return err
	}
	defer end()
	g, gctx := errgroup.WithContext(ctx)
	// The library's calls take no context, and a queue without a leader (after a crash) may block one for long. So until every
	// consumer runs, the end of one of them or of ctx ends the connection.
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
	// Each consumer starts by itself: one that waits for its queue does not hold up the others.
	partition := func(queue string, c consumer) {
		c.b, c.queue, c.ask, c.patience = b, queue, ask, b.cfg.StallAfter
		g.Go(func() error {
			return c.keep(gctx, conn, watch, &starting, func() {
				opened.Do(func() { b.log.Info("rabbitmq: consuming connection is open", "partitions", b.cfg.Partitions) })
			})
		})
	}
	if err := b.topology(conn); err != nil {
		g.Go(func() error { return err })
		return g.Wait()
	}
	for i := range b.cfg.Partitions {
		partition(QueueName(i), consumer{batch: batch, wait: wait, settle: settle, settled: settled, answer: b.answerFence})
	}
	// An unrouted message may be the only copy of an order.
	partition(Unrouted, consumer{batch: batch, wait: wait, settle: b.Publish, settled: func(_ context.Context, es []queued.Entry) {
		b.m.rerouted.Add(float64(len(es)))
	}, answer: func(context.Context, amqp.Delivery) {}}) // a fence that missed its partition passed nothing
	return g.Wait()
}

// suspicious is how often a message was delivered, and came back, before it is settled alone.
const suspicious = 3

// errPace: the consumer is to go on at the other pace.
var errPace = errors.New("the other pace")

// errStalled: the queue holds messages, and the consumer gets none.
var errStalled = errors.New("nothing is delivered")

// maxPatience bounds a consumer's patience, which doubles with each stall. A consumer that is not its queue's active one looks
// stalled, too, while the active one is held up.
const maxPatience = 5 * time.Minute

// consumer is one partition's consumer on one connection.
//
// A message that kills its consumer comes back with all that the consumer held, each delivered once more. So that the culprit
// alone reaches the delivery limit, a consumer begins carefully: it holds one message at a time, until one comes that is not
// suspicious. It is careful again when it meets a suspicious message at its full pace. Each change of pace is a new channel: the
// old one gives everything back at once, so the partition has one consumer at any time.
//
// The broker may lose a delivery when a queue's leader dies. Then the queue waits for ever for an acknowledgement of what the
// consumer never saw, and a careful consumer waits, too. So a consumer that got nothing for long checks whether its queue holds
// something, and begins again if it does.
type consumer struct {
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
	patience   time.Duration                        // without a delivery, before it checks the queue
	ask        func(func() error) error             // makes a call that waits for the broker; the end of the consumer ends it
}

// keep consumes until ctx ends or the connection is lost, at one pace and then the other. starting counts the consumers that do
// not run yet; the last of them calls opened.
func (c *consumer) keep(ctx context.Context, conn *amqp.Connection, watch *errgroup.Group, starting *atomic.Int64, opened func()) error {
	for c.careful = true; ; {
		if err := c.open(conn, watch); err != nil {
			return err
		}
		if starting.Add(-1) == 0 {
			opened()
		}
		switch err := c.run(ctx); {
		case errors.Is(err, errPace):
			c.careful = !c.careful
		case errors.Is(err, errStalled):
			c.b.m.stalled.Inc()
			c.b.log.Info("rabbitmq: a consumer got nothing though its queue is not empty, and begins anew", "queue", c.queue, "after", c.patience)
			c.careful = true
			c.patience = min(2*c.patience, maxPatience)
		default:
			return err
		}
		starting.Add(1)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := c.ch.Close(); err != nil { // what it holds goes back
			return fmt.Errorf("close the channel of %s: %w", c.queue, err)
		}
	}
}

// batch is what is settled at once.
type batch struct {
	entries []queued.Entry
	tags    []uint64       // of their deliveries, and of deferred ones
	clean   bool           // one of them is not suspicious
	fence   *amqp.Delivery // after them; nil for none
}

// open gives the consumer a channel at its pace.
func (c *consumer) open(conn *amqp.Connection, watch *errgroup.Group) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	prefetch := min(2*c.batch, 2*maxBatch)
	if c.careful {
		prefetch = 1
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return fmt.Errorf("prefetch of %s: %w", c.queue, err)
	}
	closed, gone := ch.NotifyClose(make(chan *amqp.Error, 1)), make(chan struct{})
	watch.Go(func() error { <-closed; close(gone); return nil })
	if c.deliveries, err = ch.Consume(c.queue, "", false, false, false, false, nil); err != nil {
		return fmt.Errorf("consume %s: %w", c.queue, err)
	}
	c.ch, c.gone = ch, gone
	return nil
}

// returned is how often a message was delivered before.
func returned(d amqp.Delivery) int64 {
	n, _ := d.Headers["x-delivery-count"].(int64)
	return n
}

// run ends with an error: the channel is gone, ctx has ended, errPace or errStalled.
func (c *consumer) run(ctx context.Context) error {
	for {
		b, err := c.collect(ctx)
		if err != nil {
			return err
		}
		if len(b.entries) > 0 {
			if err := c.hold(ctx, &b); err != nil {
				return err
			}
		}
		if len(b.tags) > 0 {
			failpoint.Hit("consumer.before-ack")
			ackErr := c.ch.Ack(b.tags[len(b.tags)-1], true)
			failpoint.Hit("consumer.before-retire")
			if len(b.entries) > 0 {
				after, cancel := lasting(ctx)
				c.settled(after, b.entries) // they are settled whether or not the broker gets the acknowledgement
				cancel()
			}
			if ackErr != nil {
				return fmt.Errorf("%s: acknowledge: %w", c.queue, ackErr)
			}
			c.b.m.consumed.Add(float64(len(b.entries)))
			c.patience = c.b.cfg.StallAfter
		}
		if b.fence != nil {
			c.answer(ctx, *b.fence)
			if err := b.fence.Ack(false); err != nil {
				return fmt.Errorf("%s: acknowledge a fence: %w", c.queue, err)
			}
		}
		if c.careful && b.clean {
			return errPace
		}
	}
}

// look returns errStalled if the queue holds something to deliver.
func (c consumer) look() error {
	var q amqp.Queue
	err := c.ask(func() (err error) {
		q, err = c.ch.QueueDeclarePassive(c.queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("look at %s: %w", c.queue, err)
	}
	if q.Messages > 0 {
		return fmt.Errorf("%s: %w", c.queue, errStalled)
	}
	return nil
}

// collect waits for a first delivery, then for a full batch, a fence or the end of the wait. It returns an error if ctx is
// cancelled. What it has collected then goes back to the queue.
func (c consumer) collect(ctx context.Context) (b batch, err error) {
	idle := time.NewTimer(c.patience)
	defer idle.Stop()
	var full <-chan time.Time
	most := c.batch
	if c.careful {
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
				if err := c.look(); err != nil {
					return b, err
				}
			}
			idle.Reset(c.patience)
		case d, ok := <-c.deliveries:
			if !ok {
				return b, fmt.Errorf("%s: %w", c.queue, errGone)
			}
			if d.Type == typeFence {
				b.fence = &d
				return b, nil
			}
			if n := returned(d); n >= suspicious && !c.careful {
				return b, errPace
			} else if n < suspicious-1 { // it may come back once more when the pace changes
				b.clean = true
			}
			e, err := decode(d)
			if err != nil {
				if err := c.reject(d.DeliveryTag, err); err != nil {
					return b, err
				}
				continue
			}
			b.entries, b.tags = append(b.entries, e), append(b.tags, d.DeliveryTag)
			if full == nil {
				t := time.NewTimer(c.wait)
				defer t.Stop()
				full = t.C
			}
		}
	}
	return b, nil
}

// reject sends a message to the dead letters.
func (c consumer) reject(tag uint64, why error) error {
	c.b.m.unreadable.Inc()
	c.b.log.Error("rabbitmq: a message that is no order goes to the dead letters", "queue", c.queue, "error", why)
	if err := c.ch.Reject(tag, false); err != nil {
		return fmt.Errorf("%s: reject: %w", c.queue, err)
	}
	return nil
}

// exclude rejects the poison of a batch, and removes the deferred entries but not their deliveries, which are acknowledged.
func (c consumer) exclude(b *batch, poison *queued.PoisonError, deferred *queued.DeferredError) error {
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
			if err := c.reject(b.tags[i], poison.Err); err != nil {
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

// hold settles a batch, however long that takes. It gives up only when the channel is gone or ctx is cancelled. After it poison and
// deferred entries are no longer in the batch.
func (c consumer) hold(ctx context.Context, b *batch) error {
	held := false
	defer func() {
		if held {
			c.b.m.held.Dec()
		}
	}()
	for pause := newPause(); ; {
		sctx, cancel := lasting(ctx)
		err := c.settle(sctx, b.entries)
		cancel()
		if err == nil {
			return nil
		}
		var poison *queued.PoisonError
		var deferred *queued.DeferredError
		isPoison, isDeferred := errors.As(err, &poison), errors.As(err, &deferred)
		if isPoison || isDeferred {
			return c.exclude(b, poison, deferred)
		}
		c.b.m.settleErrors.Inc()
		if !held {
			held = true
			c.b.m.held.Inc()
			c.b.log.Warn("orders are held: they cannot be settled now", "queue", c.queue, "orders", len(b.entries), "error", err)
		}
		pause.Wait(ctx, c.gone)
		select {
		case <-c.gone:
			return fmt.Errorf("%s: %w while orders were held: %w", c.queue, errGone, err)
		default:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// lasting is ctx, but lives drainGrace longer when ctx is cancelled.
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
