package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// fences are those that this process sent and that wait for their answer.
type fences struct {
	mu      sync.Mutex // guards waiting
	waiting map[string]chan struct{}
}

func (f *fences) add(id string) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == nil {
		f.waiting = map[string]chan struct{}{}
	}
	c := make(chan struct{})
	f.waiting[id] = c
	return c
}

func (f *fences) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, id)
}

func (f *fences) passed(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.waiting[id]; ok {
		close(c)
		delete(f.waiting, id)
	}
}

// Fence returns nil once everything that was published to the sale's partition, and confirmed, before the call is settled
// by its consumer. It sends a message through the partition, and sends it anew when the connection was lost or no answer
// came for a while. It is bounded by ctx alone: without a consumer there is no answer.
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
			pause.wait(ctx, answer)
		} else {
			pause.reset()
			t := time.NewTimer(again)
			select {
			case <-answer:
			case <-p.done:
			case <-ctx.Done():
			case <-t.C:
				again = min(2*again, time.Minute) // it may stand in a long queue: do not add to that
			}
			t.Stop()
		}
		select {
		case <-answer:
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

// answerFence tells the sender. An answer that is lost is asked for anew.
func (b *Broker) answerFence(ctx context.Context, d amqp.Delivery) {
	p, err := b.publisher(ctx)
	if err == nil {
		if _, blocked := p.blockedNow(); blocked {
			err = ErrBlocked
		} else {
			err = p.fences.PublishWithContext(ctx, "", d.ReplyTo, false, false, amqp.Publishing{Type: typeFence, CorrelationId: d.CorrelationId})
		}
	}
	if err != nil {
		b.log.Warn("rabbitmq: answer a fence", "error", err)
	}
}

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }
