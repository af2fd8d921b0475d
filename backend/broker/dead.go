package broker

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/queued"
)

// deadAtOnce is how many dead letters a consumer of them holds.
const deadAtOnce = 20

// ConsumeDead hands each message of the dead-letter queue to take until ctx is cancelled, and then returns nil. It uses its own
// connection. It calls take until it succeeds, with growing pauses, and then acknowledges the message. When ctx is cancelled, a
// running take may finish within 5 s; the rest goes back.
func (b *Broker) ConsumeDead(ctx context.Context, take func(context.Context, queued.DeadMessage) error) error {
	for pause := newPause(); ; {
		began := time.Now()
		err := b.consumeDeadOnce(ctx, take)
		if ctx.Err() != nil {
			return nil
		}
		b.log.Warn("rabbitmq: connection for dead letters", "error", err)
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		pause.Wait(ctx, nil)
	}
}

func (b *Broker) consumeDeadOnce(ctx context.Context, take func(context.Context, queued.DeadMessage) error) error {
	conn, watch, end, err := b.dialToConsume(ctx, "dead letters", "dead")
	if err != nil {
		return err
	}
	defer end()
	// The library's calls take no context.
	unwatch := context.AfterFunc(ctx, func() { hangUp(conn) })
	defer unwatch()
	if err := b.topology(conn); err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	if err := ch.Qos(deadAtOnce, 0, false); err != nil {
		return fmt.Errorf("prefetch of %s: %w", Dead, err)
	}
	gone := make(chan struct{})
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	watch.Go(func() error { <-closed; close(gone); return nil })
	deliveries, err := ch.Consume(Dead, "", false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume %s: %w", Dead, err)
	}
	if !unwatch() {
		return ctx.Err()
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case d, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("%s: %w", Dead, errGone)
			}
			if err := b.takeDead(ctx, d, gone, take); err != nil {
				return err
			}
		}
	}
}

// takeDead holds one message until all that it carries is taken.
func (b *Broker) takeDead(ctx context.Context, d amqp.Delivery, gone <-chan struct{}, take func(context.Context, queued.DeadMessage) error) error {
	letters := deadMessages(d)
	for pause, warned := newPause(), false; len(letters) > 0; {
		tctx, cancel := lasting(ctx)
		err := take(tctx, letters[0])
		cancel()
		if err == nil {
			letters = letters[1:]
			continue
		}
		if !warned {
			warned = true
			b.log.Warn("a dead letter is held: it cannot be taken now", "error", err)
		}
		pause.Wait(ctx, gone)
		select {
		case <-gone:
			return fmt.Errorf("%s: %w while a dead letter was held: %w", Dead, errGone, err)
		default:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := d.Ack(false); err != nil {
		return fmt.Errorf("%s: acknowledge: %w", Dead, err)
	}
	return nil
}

// deadMessages is what a message of the dead-letter queue carries, with RabbitMQ's reason: each order by itself.
func deadMessages(d amqp.Delivery) []queued.DeadMessage {
	m := queued.DeadMessage{Queue: Dead, Payload: d.Body, Deliveries: 1}
	how := ""
	if deaths, ok := d.Headers["x-death"].([]any); ok && len(deaths) > 0 {
		if last, ok := deaths[0].(amqp.Table); ok {
			if queue, ok := last["queue"].(string); ok {
				m.Queue = queue
			}
			how, _ = last["reason"].(string)
		}
	}
	entries, err := decode(d)
	switch {
	case how == "delivery_limit":
		m.Deliveries = DeliveryLimit + 1
		m.Reason = fmt.Sprintf("delivered %d times and never settled: whoever tried it ended", m.Deliveries)
	case err != nil:
		m.Reason = err.Error()
	default:
		m.Reason = "it was put there: " + how
	}
	if len(entries) == 0 {
		return []queued.DeadMessage{m}
	}
	letters := make([]queued.DeadMessage, len(entries))
	for i, e := range entries {
		letters[i] = m
		letters[i].Payload, letters[i].Entry = queued.Encode(e), &e
	}
	return letters
}
