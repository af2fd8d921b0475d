//go:build servers

package audit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// until audits until ok, and returns that audit.
func (s *shop) until(what string, ok func(audit.Result) bool) audit.Result {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		if r := s.audit(); ok(r) {
			return r
		}
	}
	s.t.Fatalf("never: %s: %+v", what, s.audit())
	return audit.Result{}
}

func TestASettledEntryThatStaysIsFound(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{}, 200*time.Millisecond)
	id := s.press("ann", 1)
	snap, err := s.redis.Snapshot(t.Context(), s.sale)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.book.Settle(t.Context(), snap.Outbox); err != nil {
		t.Fatal(err)
	}
	r := s.until("a finding", func(r audit.Result) bool { return !r.Balanced })
	if len(r.Findings) != 1 || r.Findings[0].OrderID != id || !strings.Contains(r.Findings[0].Equation, "leaves the outbox") || r.Redis.Unretired != 1 || r.Redis.Queued != 0 {
		t.Errorf("got %+v", r)
	}
	if err := s.book.Retire(t.Context(), snap.Outbox); err != nil {
		t.Fatal(err)
	}
	s.balanced(9, 0, 1, 0, 10)
}

// withBroker is the shop's auditor, which asks the broker too.
func (s *shop) withBroker(q audit.Queues, bound time.Duration) *audit.Auditor {
	return audit.New(audit.Config{DB: s.db, Redis: s.redis, Broker: q, QueuedBound: bound})
}

// What the broker holds is no finding while an outbox accounts for it, nor before the bound; then it is.
func TestWhatTheBrokerKeepsIsFound(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{}, time.Second)
	url := backendtest.AMQP(t)
	b, err := broker.Open(broker.Config{URL: url, Partitions: 2, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	quiet := s.auditor
	s.auditor = s.withBroker(b, time.Second)
	if r := s.audit(); !r.Balanced || r.Broker == nil || *r.Broker != (audit.Broker{Queue: broker.QueueName(b.Partition(s.sale)), Unacked: -1}) {
		t.Errorf("got %+v", r.Broker)
	}
	forged := queued.Entry{ID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale), Sale: s.sale, UID: "ann", Quantity: 1, Slots: "1", Epoch: 1, At: 1, Entry: "1-1"}
	if err := b.Publish(t.Context(), []queued.Entry{forged}); err != nil {
		t.Fatal(err)
	}
	if r := s.audit(); !r.Balanced || r.Broker.Ready != 1 || !r.Broker.Unexplained {
		t.Errorf("got %+v, %v; want it seen, and no finding yet", r.Broker, r.Findings)
	}
	r := s.until("a finding", func(r audit.Result) bool { return !r.Balanced })
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Equation, "broker") || !strings.Contains(r.Findings[0].Key, broker.QueueName(b.Partition(s.sale))) {
		t.Errorf("got %v", r.Findings)
	}
	s.press("bob", 1) // in the outbox: what the queue holds may be that
	if r := s.audit(); !r.Balanced || r.Broker.Unexplained {
		t.Errorf("got %+v, %v", r.Broker, r.Findings)
	}
	s.settle()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueuePurge(broker.QueueName(b.Partition(s.sale)), false); err != nil {
		t.Fatal(err)
	}
	if r := s.audit(); !r.Balanced || r.Broker.Ready != 0 || r.Broker.Unexplained {
		t.Errorf("got %+v, %v", r.Broker, r.Findings)
	}
	if err := ch.PublishWithContext(t.Context(), broker.Dead, "", false, false, amqp.Publishing{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	r = s.until("a finding about the dead", func(r audit.Result) bool { return !r.Balanced })
	if r.Broker.Dead != 1 || !strings.Contains(r.Findings[0].Key, broker.Dead) {
		t.Errorf("got %+v, %v", r.Broker, r.Findings)
	}
	if r, err := quiet.Sale(t.Context(), s.sale); err != nil || r.Broker != nil || !r.Balanced {
		t.Errorf("without a broker: got %+v, %v", r, err)
	}
}

// steady is a broker whose queues always stand like this.
type steady []broker.QueueState

func (q steady) Partition(int64) int { return 0 }

func (q steady) Queues(context.Context) ([]broker.QueueState, error) { return q, nil }

// What comes and goes is no finding, though every look, of looks far apart, finds the like of it in the broker: orders that
// have left the outbox by the time that is asked, and dead messages. What stands still is one.
func TestWhatPassesAtEveryLookIsNoFinding(t *testing.T) {
	const bound = 50 * time.Millisecond
	for name, c := range map[string]struct {
		queues steady
		passes func(s *shop, box *deadletter.Store, i int)
		key    string
	}{
		"orders": {steady{{Name: broker.QueueName(0), Ready: 1}, {Name: broker.Unrouted, Ready: 1}}, func(s *shop, _ *deadletter.Store, i int) {
			s.press(fmt.Sprint("u", i), 1)
			s.settle()
		}, "queue " + broker.QueueName(0)},
		"dead messages": {steady{{Name: broker.Dead, Ready: 1}}, func(s *shop, box *deadletter.Store, i int) {
			if err := box.Take(s.t.Context(), queued.DeadMessage{Queue: "q", Payload: fmt.Append(nil, "garbage ", i%2)}); err != nil {
				s.t.Fatal(err)
			}
		}, "queue " + broker.Dead},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, backendtest.SaleOptions{Stock: 1000}, bound)
			s.auditor = s.withBroker(c.queues, bound)
			box := deadletter.NewStore(deadletter.Config{DB: s.db, Orders: s.book, Clock: new(clock.Clock), Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
			began := time.Now()
			for i := 0; i < 5 || time.Since(began) < 4*bound; i++ {
				c.passes(s, box, i)
				if r := s.audit(); !r.Balanced || !r.Broker.Unexplained {
					t.Fatalf("look %d: got %+v, %v; want it seen, and no finding", i, r.Broker, r.Findings)
				}
			}
			r := s.until("a finding", func(r audit.Result) bool { return !r.Balanced })
			if r.Findings[0].Key != c.key {
				t.Errorf("got %v, want %s", r.Findings, c.key)
			}
		})
	}
}
