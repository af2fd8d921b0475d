package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// Handler is what is done with orders. Its functions are called concurrently for different partitions.
type Handler struct {
	// Settle brings a batch to its end. A queued.KeptError is a success.
	Settle func(context.Context, []queued.Entry) error
	// Settled is called with what Settle has settled, after it was acknowledged.
	Settled func(context.Context, []queued.Entry)
	// Postpone keeps orders elsewhere, where each can be tried alone, and names them in a queued.KeptError. It is called instead of
	// Settle with a message of several orders that came back too often.
	Postpone func(context.Context, []queued.Entry) error
}

// Consume settles every partition's orders until ctx is cancelled, and then returns nil. Of all processes that consume, one at a
// time gets a partition's orders. They come in batches of about batch, for no message is divided, in the partition's order, except
// those that came back after a consumer was lost. A batch that is not full waits for more, at most wait after its first order.
//
// Consume calls h.Settle until it succeeds, with growing pauses. Meanwhile it holds the batch, and never returns it to the queue.
// Then it acknowledges the batch, then it calls h.Settled.
//
// When the connection is lost, what it delivered is dropped and delivered again. When ctx is cancelled, a running Settle may
// finish within 5 s and is acknowledged; the rest goes back.
func (b *Broker) Consume(ctx context.Context, batch int, wait time.Duration, h Handler) error {
	if batch < 1 || batch > maxBatch {
		return fmt.Errorf("consume: a batch of %d orders is not between 1 and %d", batch, maxBatch)
	}
	for pause := newPause(); ; {
		began := time.Now()
		err := b.consumeOnce(ctx, batch, wait, h)
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

func (b *Broker) consumeOnce(ctx context.Context, batch int, wait time.Duration, h Handler) error {
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
		partition(QueueName(i), consumer{batch: batch, wait: wait, Handler: h, answer: b.answerFence})
	}
	// An unrouted message may be the only copy of an order.
	reroute := Handler{Settle: b.Publish, Postpone: b.Publish, Settled: func(_ context.Context, es []queued.Entry) {
		b.m.rerouted.Add(float64(len(es)))
	}}
	partition(Unrouted, consumer{batch: batch, wait: wait, Handler: reroute, answer: func(context.Context, amqp.Delivery) {}}) // a fence that missed its partition passed nothing
	return g.Wait()
}

// suspicious is how often a message was delivered, and came back, before it is settled alone.
const suspicious = 3

// errPace: the consumer is to go on at the other pace.
var errPace = errors.New("the other pace")

// newerPause is for how long a consumer leaves a queue to others because of a message that only a newer one can read.
const newerPause = 30 * time.Second

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
// old one gives everything back at once, so the partition has one consumer at any time. Which order of a suspicious message is the
// culprit nobody knows, so a message of several is postponed: MySQL counts the tries of each.
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
	Handler
	answer   func(context.Context, amqp.Delivery) // a fence
	patience time.Duration                        // without a delivery, before it checks the queue
	ask      func(func() error) error             // makes a call that waits for the broker; the end of the consumer ends it
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
		var away time.Duration
		switch err := c.run(ctx); {
		case errors.Is(err, errPace):
			c.careful = !c.careful
		case errors.Is(err, errNewer):
			c.b.log.Error("rabbitmq: a message is left to a newer consumer", "queue", c.queue, "again_after", newerPause, "error", err)
			c.careful, away = true, newerPause
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
		if away > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(away):
			}
		}
	}
}

// batch is what is settled at once.
type batch struct {
	entries  []queued.Entry
	last     uint64         // the tag of the last delivery; 0: none
	clean    bool           // one of the messages is not suspicious
	postpone bool           // they came in one message, which is suspicious
	newer    error          // after them comes a message that only a newer consumer can read
	fence    *amqp.Delivery // after them; nil for none
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
		if b.last > 0 {
			failpoint.Hit("consumer.before-ack")
			ackErr := c.ch.Ack(b.last, true)
			failpoint.Hit("consumer.before-retire")
			if len(b.entries) > 0 {
				after, cancel := lasting(ctx)
				c.Settled(after, b.entries) // they are settled whether or not the broker gets the acknowledgement
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
		if b.newer != nil {
			return b.newer
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
	for b.last == 0 || !c.careful && len(b.entries) < c.batch {
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
			n := returned(d)
			if n >= suspicious && !c.careful {
				return b, errPace
			}
			entries, err := decode(d)
			if errors.Is(err, errNewer) {
				b.newer = err
				return b, nil
			}
			b.clean = b.clean || n < suspicious-1 // it may come back once more when the pace changes
			if err != nil {
				if err := c.reject(d.DeliveryTag, err); err != nil {
					return b, err
				}
				continue
			}
			b.entries, b.last = append(b.entries, entries...), d.DeliveryTag
			b.postpone = n >= suspicious && len(entries) > 1
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

// exclude removes entries from a batch.
func (b *batch) exclude(kept []queued.Entry) {
	ids := make(map[string]bool, len(kept))
	for _, e := range kept {
		ids[e.ID] = true
	}
	b.entries = slices.DeleteFunc(slices.Clone(b.entries), func(e queued.Entry) bool { return ids[e.ID] }) // others may have the slice
}

// hold settles or postpones a batch, however long that takes. It gives up only when the channel is gone or ctx is cancelled. After it
// the batch has only what is settled.
func (c consumer) hold(ctx context.Context, b *batch) error {
	held := false
	defer func() {
		if held {
			c.b.m.held.Dec()
		}
	}()
	settle := c.Settle
	if b.postpone {
		c.b.log.Warn("rabbitmq: a message came back too often; its orders are tried one by one", "queue", c.queue, "orders", len(b.entries))
		settle = c.Postpone
	}
	for pause := newPause(); ; {
		sctx, cancel := lasting(ctx)
		err := settle(sctx, b.entries)
		cancel()
		if err == nil {
			return nil
		}
		if kept := (*queued.KeptError)(nil); errors.As(err, &kept) {
			b.exclude(kept.Entries)
			return nil
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
