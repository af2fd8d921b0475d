//go:build servers

package audit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// until audits until ok, and returns that audit.
func (s *shop) until(what string, ok func(audit.Result) bool) audit.Result {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
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

// What the broker holds is no finding while an outbox accounts for it, nor before the bound; then it is.
func TestWhatTheBrokerKeepsIsFound(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{}, time.Second)
	url := backendtest.AMQP(t)
	b, err := broker.Open(broker.Config{URL: url, Partitions: 2}, backendtest.Log(t), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	quiet := s.auditor
	s.auditor = quiet.WithBroker(b)
	if r := s.audit(); !r.Balanced || r.Broker == nil || *r.Broker != (audit.Broker{Queue: broker.QueueName(b.Partition(s.sale)), Unacked: -1}) {
		t.Errorf("got %+v", r.Broker)
	}
	forged := reserve.Entry{ID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale), Sale: s.sale, UID: "ann", Quantity: 1, Slots: "1", Epoch: 1, At: 1, Entry: "1-1"}
	if err := b.Publish(t.Context(), []reserve.Entry{forged}); err != nil {
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
