package broker

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// fences are this process's calls that wait for an answer.
type fences struct {
	mu      sync.Mutex // guards waiting
	waiting map[string]fence
}

// fence is one call that waits.
type fence struct {
	passed   chan struct{} // closed when it has passed the partition
	returned chan struct{} // holds one when it came back to its queue, and must be sent again
}

func (f *fences) add(id string) fence {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == nil {
		f.waiting = map[string]fence{}
	}
	w := fence{make(chan struct{}), make(chan struct{}, 1)}
	f.waiting[id] = w
	return w
}

func (f *fences) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, id)
}

// answered takes an answer of the given type.
func (f *fences) answered(id, answer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.waiting[id]
	switch {
	case !ok:
	case answer == typeFence:
		close(w.passed)
		delete(f.waiting, id)
	case answer == typeReturned:
		select {
		case w.returned <- struct{}{}:
		default: // one is enough
		}
	}
}

// Fence returns nil once everything that was published to the sale's partition and confirmed before the call is settled. It
// sends a message through the partition, and sends it again when the connection was lost, when the message came back to its
// queue, or when no answer came for a while. Only ctx bounds it, for without a consumer there is no answer.
//
// Only a fence that is delivered for the first time has passed what was before it. A quorum queue puts what a lost consumer
// held behind what came back earlier. So after two losses a fence that came back may be ahead of orders that it followed. A
// message that never came back is delivered only when none that did is left.
func (b *Broker) Fence(ctx context.Context, sale int64) error {
	id := uuid.NewString()
	answer := b.fences.add(id)
	defer b.fences.remove(id)
	var last error
	again := 2 * time.Second
	for pause := newPause(); ; {
		p, err := b.sendFence(ctx, sale, id)
		if err != nil {
			last = err
			pause.Wait(ctx, answer.passed)
		} else {
			pause.Reset()
			t := time.NewTimer(again)
			select {
			case <-answer.passed:
			case <-answer.returned:
			case <-p.done:
			case <-ctx.Done():
			case <-t.C:
				again = min(2*again, time.Minute) // the queue may be long: do not add to it
			}
			t.Stop()
		}
		select {
		case <-answer.passed:
			return nil
		default:
		}
		if ctx.Err() != nil {
			if last != nil {
				return fmt.Errorf("fence of sale %d in partition %d: %w (last: %w)", sale, b.Partition(sale), ctx.Err(), last)
			}
			return fmt.Errorf("fence of sale %d in partition %d: no consumer reached it: %w", sale, b.Partition(sale), ctx.Err())
		}
	}
}

func (b *Broker) sendFence(ctx context.Context, sale int64, id string) (*publisher, error) {
	p, err := b.publisher(ctx)
	if err != nil {
		return nil, err
	}
	if _, blocked := p.blockedNow(); blocked {
		return nil, ErrBlocked
	}
	return p, p.fences.PublishWithContext(ctx, Exchange, strconv.Itoa(b.Partition(sale)), true, false, amqp.Publishing{
		Type: typeFence, DeliveryMode: amqp.Persistent, CorrelationId: id, ReplyTo: "amq.rabbitmq.reply-to",
	})
}

// answerFence answers the sender, which asks again if the answer is lost.
func (b *Broker) answerFence(ctx context.Context, d amqp.Delivery) {
	answer := typeFence
	if d.Redelivered {
		answer = typeReturned
	}
	p, err := b.publisher(ctx)
	if err == nil {
		if _, blocked := p.blockedNow(); blocked {
			err = ErrBlocked
		} else {
			err = p.fences.PublishWithContext(ctx, "", d.ReplyTo, false, false, amqp.Publishing{Type: answer, CorrelationId: d.CorrelationId})
		}
	}
	if err != nil {
		b.log.Warn("rabbitmq: answer a fence", "error", err)
	}
}
