//go:build servers

package broker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/queued"
)

// bin takes dead letters.
type bin struct {
	got chan queued.DeadMessage
}

func collectDead(t *testing.T, b *broker.Broker, fail func() error) *bin {
	t.Helper()
	c := &bin{got: make(chan queued.DeadMessage, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- b.ConsumeDead(ctx, func(_ context.Context, m queued.DeadMessage) error {
			if err := fail(); err != nil {
				return err
			}
			c.got <- m
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *bin) next(t *testing.T) queued.DeadMessage {
	t.Helper()
	select {
	case m := <-c.got:
		return m
	case <-time.After(60 * time.Second):
		t.Fatal("there is no dead letter")
		return queued.DeadMessage{}
	}
}

// A message over which every consumer dies takes none of those with it that were delivered beside it.
func TestOnlyTheCulpritReachesTheDeliveryLimit(t *testing.T) {
	b := open(t, backendtest.AMQP(t), 1)
	all := orders(1, 300)
	publishApart(t, b, all)
	culprit := all[120].ID
	bk := newBook()
	alive, buried := context.WithCancel(t.Context())
	dead := collectDead(t, b, func() error { buried(); return nil })
	deaths := 0
	for alive.Err() == nil { // each consumer ends, with its connection and all that it holds, as soon as it gets the culprit
		ctx, cancel := context.WithCancel(alive)
		err := b.Consume(ctx, 50, 2*time.Millisecond, broker.Handler{Settled: bk.settled, Settle: func(sctx context.Context, es []queued.Entry) error {
			if slices.Contains(ids(es), culprit) {
				deaths++
				cancel()
				return errors.New("killed")
			}
			return bk.settle(sctx, es)
		}})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	m := dead.next(t)
	if m.Entry == nil || m.Entry.ID != culprit || m.Queue != broker.QueueName(0) || m.Deliveries <= broker.DeliveryLimit || !strings.Contains(m.Reason, "never settled") {
		t.Errorf("got %+v, want the culprit, %s", m, culprit)
	}
	consume(t, b, 50, bk.settle, bk.settled)
	bk.until(t, "the others", func() bool { return len(bk.retired) == len(all)-1 })
	if slices.Contains(ids(bk.retired), culprit) || deaths < broker.DeliveryLimit/2 {
		t.Errorf("the culprit is settled after %d deaths", deaths)
	}
	if len(dead.got) != 0 {
		t.Errorf("%d other orders are dead, want none", len(dead.got))
	}
}

// A dead letter that cannot be taken now is held, not lost and not sent round.
func TestADeadLetterIsHeldUntilItIsTaken(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	publish(t, b, orders(1, 1))
	bk := newBook()
	consume(t, b, 10, bk.settle, bk.settled)
	if err := channel(t, url).PublishWithContext(t.Context(), broker.Exchange, "0", true, false, amqp.Publishing{Type: "order", Body: []byte("{")}); err != nil {
		t.Fatal(err)
	}
	tries := 0
	dead := collectDead(t, b, func() error {
		if tries++; tries < 4 {
			return errors.New("no MySQL")
		}
		return nil
	})
	m := dead.next(t)
	if m.Entry != nil || string(m.Payload) != "{" || m.Queue != broker.QueueName(0) || m.Deliveries != 1 || m.Reason == "" || tries != 4 {
		t.Errorf("got %+v after %d tries", m, tries)
	}
}

// A dead message of several orders is a dead letter for each of them.
func TestEachOrderOfADeadMessageIsADeadLetter(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	all := orders(1, 3)
	publish(t, b, all)
	messages, err := channel(t, url).Consume(broker.QueueName(0), "", false, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := <-messages
	if err := d.Reject(false); err != nil {
		t.Fatal(err)
	}
	tries := 0
	dead := collectDead(t, b, func() error {
		if tries++; tries == 2 {
			return errors.New("no MySQL")
		}
		return nil
	})
	for _, want := range all {
		m := dead.next(t)
		if m.Entry == nil || *m.Entry != want || !slices.Equal(m.Payload, queued.Encode(want)) || m.Queue != broker.QueueName(0) {
			t.Errorf("got %+v, want order %s", m, want.ID)
		}
	}
	if tries != 4 {
		t.Errorf("%d tries, want 4", tries)
	}
}
