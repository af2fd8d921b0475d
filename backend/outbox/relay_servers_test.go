//go:build servers

package outbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
)

func openBroker(t testing.TB, url string) *broker.Broker {
	t.Helper()
	b, err := broker.Open(broker.Config{URL: url, Partitions: 2, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// watched is the real broker, with a count of what is asked of it.
type watched struct {
	*broker.Broker
	mu        sync.Mutex // guards what follows
	published int
	fenced    chan struct{} // a token for each fence that is about to be sent, if there is room
	refuse    bool          // publishes, and says that it did not
}

func watch(b *broker.Broker) *watched { return &watched{Broker: b, fenced: make(chan struct{}, 100)} }

// Publish counts before it publishes: who consumes may be quicker than the confirm.
func (w *watched) Publish(ctx context.Context, es []queued.Entry) error {
	w.add(len(es))
	if err := w.Broker.Publish(ctx, es); err != nil {
		w.add(-len(es))
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse {
		return errors.New("the confirm was lost")
	}
	return nil
}

func (w *watched) add(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published += n
}

func (w *watched) Fence(ctx context.Context, sale int64) error {
	select {
	case w.fenced <- struct{}{}:
	default:
	}
	return w.Broker.Fence(ctx, sale)
}

func (w *watched) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published
}

func relay(t *testing.T, s *reserve.Store, name string, idle time.Duration, p outbox.Publisher, live func() []int64) (stop func()) {
	t.Helper()
	r := outbox.NewRelay(outbox.RelayConfig{ReaderConfig: outbox.ReaderConfig{Redis: s, Live: live,
		Name: name, ClaimIdle: idle, Log: backendtest.Log(t), Register: prometheus.NewRegistry()}, Broker: p})
	return run(t, r.Run)
}

func settle(t *testing.T, b *broker.Broker, c *crowd) (stop func()) {
	t.Helper()
	return run(t, func(ctx context.Context) error {
		return b.Consume(ctx, 200, time.Millisecond, broker.Handler{Settle: c.handle, Settled: func(context.Context, []queued.Entry) {}})
	})
}

func TestRelayedOrdersAreSettledOnceEach(t *testing.T) {
	s, b := backendtest.Redis(t), watch(openBroker(t, backendtest.AMQP(t)))
	var ids []string
	for sale := int64(1); sale <= 3; sale++ {
		load(t, s, sale)
		ids = append(ids, press(t, s, sale, 100)...)
	}
	c := newCrowd(s)
	relay(t, s, "r1", time.Minute, b, sales(1, 2, 3))
	relay(t, s, "r2", time.Minute, b, sales(1, 2, 3))
	settle(t, b.Broker, c)
	for sale := int64(1); sale <= 3; sale++ {
		ids = append(ids, press(t, s, sale, 100)...)
	}
	c.until(t, "600 orders", func() bool { return c.has(ids) })
	if n := len(c.all()); n != 600 || b.count() != 600 {
		t.Errorf("%d settled, %d published; want 600", n, b.count())
	}
}

func TestPublishedOrdersAreNotQueuedTwiceWhileTheyWait(t *testing.T) {
	s, b := backendtest.Redis(t), watch(openBroker(t, backendtest.AMQP(t)))
	load(t, s, 1)
	ids := press(t, s, 1, 50)
	c := newCrowd(s)
	mysql := make(chan struct{}) // closed: it is back
	c.fail = func([]queued.Entry) error {
		select {
		case <-mysql:
			return nil
		default:
			return errors.New("no MySQL")
		}
	}
	settle(t, b.Broker, c)
	relay(t, s, "r1", 3*time.Second, b, sales(1)) // time enough to publish: else one takes over what the other is at
	relay(t, s, "r2", 3*time.Second, b, sales(1))
	<-b.fenced // both relays ask what became of them ...
	<-b.fenced
	c.until(t, "five tries", func() bool { return c.tries >= 5 })
	if got := consumers(t, s, 1)[outbox.Published]; got != 50 || b.count() != 50 {
		t.Errorf("%d are marked and %d were published, want 50 each", got, b.count()) // ... and wait for the answer
	}
	close(mysql)
	c.until(t, "the orders", func() bool { return c.has(ids) })
	if n := b.count(); n != 50 {
		t.Errorf("%d were published, want 50", n)
	}
}

func TestAWipedQueueIsFilledAgain(t *testing.T) {
	url := backendtest.AMQP(t)
	s, b := backendtest.Redis(t), watch(openBroker(t, url))
	load(t, s, 1)
	load(t, s, 2)
	ids := append(press(t, s, 1, 50), press(t, s, 2, 50)...)
	c := newCrowd(s)
	reg := prometheus.NewRegistry()
	stop := run(t, outbox.NewRelay(outbox.RelayConfig{ReaderConfig: outbox.ReaderConfig{Redis: s, Live: sales(1, 2),
		Name: "r1", ClaimIdle: 100 * time.Millisecond, Log: backendtest.Log(t), Register: reg}, Broker: b}).Run)
	c.store = s
	<-b.fenced // so they are published, and marked
	<-b.fenced
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueuePurge(broker.QueueName(1), false); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDelete(broker.QueueName(0), false, false, false); err != nil {
		t.Fatal(err)
	}
	settle(t, b.Broker, c)
	c.until(t, "every order", func() bool { return c.has(ids) })
	stop()
	// A relay that gets no processor for as long as entries may be idle takes over its own, and publishes those once more.
	if n, own := b.count(), int(counted(t, reg, "backend_outbox_claimed_total")); n != 200+own {
		t.Errorf("%d were published and %d taken over, want each of 100 twice, and those", n, own)
	}
}

// counted is the value of a counter.
func counted(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

func times(seen []string, id string) (n int) {
	for _, s := range seen {
		if s == id {
			n++
		}
	}
	return n
}

// What is deferred was acknowledged to the broker, and is in no queue: that is not lost.
func TestDeferredOrdersAreNotPublishedAgain(t *testing.T) {
	s, b := backendtest.Redis(t), watch(openBroker(t, backendtest.AMQP(t)))
	load(t, s, 1)
	load(t, s, 3) // in the same partition
	deferred, lost := press(t, s, 1, 50), press(t, s, 3, 50)
	c := newCrowd(s)
	c.keep = true
	settle(t, b.Broker, c)
	asked := make(chan struct{}, 100)
	r := outbox.NewRelay(outbox.RelayConfig{ReaderConfig: outbox.ReaderConfig{Redis: s, Live: sales(1, 3),
		Name: "r1", ClaimIdle: 100 * time.Millisecond, Log: backendtest.Log(t), Register: prometheus.NewRegistry()}, Broker: b,
		Deferred: func(_ context.Context, sale int64) (bool, error) {
			if sale == 1 {
				select {
				case asked <- struct{}{}:
				default:
				}
			}
			return sale == 1, nil
		}})
	stop := run(t, r.Run)
	c.until(t, "those of the other sale came again", func() bool { return times(c.seen, lost[0]) >= 3 })
	<-asked
	<-asked
	stop()
	seen := c.all()
	for _, id := range deferred {
		if n := times(seen, id); n != 1 {
			t.Fatalf("a deferred order was published %d times, want once", n)
		}
	}
}

func TestALostConfirmAndADyingRelayLoseNothing(t *testing.T) {
	s, b := backendtest.Redis(t), watch(openBroker(t, backendtest.AMQP(t)))
	load(t, s, 1)
	ids := press(t, s, 1, 50)
	b.refuse = true
	c := newCrowd(s)
	c.keep = true
	stop := relay(t, s, "dying", time.Minute, b, sales(1))
	settle(t, b.Broker, c)
	c.until(t, "the orders, from the broker", func() bool { return c.has(ids) })
	stop()
	if got := consumers(t, s, 1); got["dying"] != 50 || got[outbox.Published] != 0 {
		t.Errorf("the consumers hold %v, want 50 with dying", got)
	}
	heir := watch(b.Broker)
	relay(t, s, "heir", 50*time.Millisecond, heir, sales(1))
	<-heir.fenced
	if got := consumers(t, s, 1); got["dying"] != 0 || got[outbox.Published]+got["heir"] != 50 {
		t.Errorf("the consumers hold %v, want all 50 with the heir or %s", got, outbox.Published)
	}
}
