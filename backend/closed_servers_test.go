//go:build servers

package backend

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// A sale stays closed, in the middle of a reconciliation whose process stopped, while the messages of another one come through
// the same partition, behind a thousand of the closed one. Row D9.
func TestAClosedSaleHoldsBackNoOther(t *testing.T) {
	t.Attr("row", "D9")
	m := newMorgue(t, RabbitMQ)
	db := backendtest.OpenMySQL(t, m.dsn, 4)
	closed, open := m.createSale(t, 10_000), m.createSale(t, 10_000)
	m.sale = closed
	held := m.pressAll(0, 1000)
	queue := m.channel()
	m.until("all are queued", func() bool { return m.published() == 1000 })
	m.stop(t) // and with it whoever would open the sale's gate
	const token = 1_000_000
	m.must(db, `UPDATE sale_stock SET epoch = epoch + 1, token = ? WHERE sale_id = ?`, token, closed)
	if ok, err := m.redis.Shut(t.Context(), closed, token); err != nil || !ok {
		t.Fatal(ok, err)
	}

	worker := m.another()
	stop := worker.start("-roles", "relay,consumer")
	b, err := broker.Open(broker.Config{URL: m.amqp, Partitions: 1, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	m.sale = open
	for round := range 3 {
		ids := m.reserve(db, 100*round, 100)
		m.until(fmt.Sprintf("round %d is settled, retired and acknowledged", round), func() bool {
			es, bad, err := m.redis.Outbox(t.Context(), open)
			return err == nil && len(bad) == 0 && len(es) == 0 && m.number(db, `SELECT COUNT(*) FROM orders WHERE sale_id = ?`, open) == len(ids)*(round+1) && m.ready(queue) == 0
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		if err := b.Fence(ctx, open); err != nil {
			t.Errorf("round %d: a fence of the open sale: %v", round, err)
		}
		cancel()
	}
	if st := m.redisState(closed); st.Gate != lua.GateShut || st.Token != token {
		t.Fatalf("the closed sale: got gate %s, token %d: this test shows nothing", st.Gate, st.Token)
	}
	if n := m.number(db, `SELECT COUNT(*) FROM orders WHERE sale_id = ?`, closed); n != 0 {
		t.Errorf("%d orders of the closed sale are in MySQL", n)
	}
	if got, _, err := m.redis.Outbox(t.Context(), closed); err != nil || len(got) != len(held) {
		t.Errorf("the closed sale's outbox: got %d entries, %v; want all %d", len(got), err, len(held))
	}
	// The consumer is lost, and another one takes over what waits.
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.running = m.another()
	m.start()
	m.waitReady()
	m.until("the closed sale is open and settled", func() bool {
		es, _, err := m.redis.Outbox(t.Context(), closed)
		return err == nil && len(es) == 0 && m.redisState(closed).Gate == lua.GateOpen && m.number(db, `SELECT COUNT(*) FROM orders WHERE sale_id = ?`, closed) == len(held)
	})
	if n := m.number(db, `SELECT COUNT(*) FROM orders WHERE status <> 'pending_payment'`); n != 0 {
		t.Errorf("%d promised orders were rejected", n)
	}
	if n := m.number(db, `SELECT COUNT(*) FROM deferred_orders`); n != 0 {
		t.Errorf("%d deferred orders are left", n)
	}
	for _, sale := range []int64{closed, open} {
		backendtest.Balanced(t, db, sale)
		backendtest.RedisBalanced(t, db, m.redis, sale)
	}
}

// The broker is wiped, and so is Redis, while orders are deferred: MySQL has the only copy of them.
func TestDeferredOrdersOutliveBrokerAndRedis(t *testing.T) {
	m := newMorgue(t, RabbitMQ)
	db := backendtest.OpenMySQL(t, m.dsn, 4)
	ids := m.pressAll(0, 10)
	queue := m.channel()
	m.until("all are queued", func() bool { return m.published() == 10 })
	m.stop(t)
	const token = 1_000_000
	m.must(db, `UPDATE sale_stock SET epoch = epoch + 1, token = ? WHERE sale_id = ?`, token, m.sale)
	if _, err := m.redis.Shut(t.Context(), m.sale, token); err != nil {
		t.Fatal(err)
	}
	stop := m.another().start("-roles", "consumer")
	m.until("all are deferred", func() bool { return m.number(db, `SELECT COUNT(*) FROM deferred_orders`) == 10 && m.ready(queue) == 0 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	backendtest.Wipe(t, m.redis, m.sale)
	if n, err := queue.QueueDelete(broker.QueueName(0), false, false, false); err != nil || n != 0 {
		t.Fatalf("the queue: %d messages, %v; want none", n, err)
	}
	m.running = m.another()
	m.start()
	m.waitReady()
	m.press11(t)
	m.until("all are settled", func() bool {
		return m.number(db, `SELECT COUNT(*) FROM orders WHERE status = 'pending_payment'`) == len(ids)
	})
	backendtest.Balanced(t, db, m.sale)
}

// press11 asks for an eleventh unit of ten, as soon as the sale is open: it must be sold out.
func (m *morgue) press11(t *testing.T) {
	t.Helper()
	m.until("the sale is open", func() bool { return m.redisState(m.sale).Gate == lua.GateOpen })
	if v, err := m.redis.Reserve(t.Context(), reserve.Request{Sale: m.sale, UID: "late", Quantity: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), m.sale), Epoch: m.redisState(m.sale).Epoch}); err != nil || v.Answer != lua.SoldOut {
		t.Errorf("one unit more than there are: got %+v, %v; want it sold out", v, err)
	}
}

func (m *morgue) until(what string, f func() bool) {
	m.t.Helper()
	eventually(m.t, what, func() error {
		if !f() {
			return fmt.Errorf("not yet: %s", what)
		}
		return nil
	})
}

// published is how many of the sale's orders the broker has confirmed.
func (m *morgue) published() int {
	m.t.Helper()
	c := m.redis.Client()
	held, err := c.Do(m.t.Context(), c.B().Xpending().Key(m.redis.OutboxKey(m.sale)).Group(reserve.Group).Start("-").End("+").Count(10_000).Consumer(outbox.Published).Build()).ToArray()
	if err != nil && !strings.HasPrefix(err.Error(), "NOGROUP") {
		m.t.Fatal(err)
	}
	return len(held)
}

// ready is how many messages wait in the partition.
func (m *morgue) ready(ch *amqp.Channel) int {
	m.t.Helper()
	q, err := ch.QueueDeclarePassive(broker.QueueName(0), true, false, false, false, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return q.Messages
}

// stop ends the first backend.
func (m *morgue) stop(t *testing.T) {
	t.Helper()
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
}

// pressAll lets n shoppers buy, and returns their orders' ids.
func (m *morgue) pressAll(from, n int) []string {
	m.t.Helper()
	var mu sync.Mutex // guards ids
	var ids []string
	var wg sync.WaitGroup
	for part := range slices.Chunk(make([]struct{}, n), max(1, n/8)) {
		first := from
		from += len(part)
		wg.Go(func() {
			for i := range part {
				var a wire.Accepted
				res := m.call(fmt.Sprintf("u%d", first+i), "POST", fmt.Sprintf("/v1/sales/%d/orders", m.sale), "", "", &a)
				if res.StatusCode() != 202 {
					m.t.Errorf("got %d %s", res.StatusCode(), res.Body())
					return
				}
				mu.Lock()
				ids = append(ids, a.OrderID)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if m.t.Failed() {
		m.t.FailNow()
	}
	return ids
}

// reserve is pressAll where no api runs.
func (m *morgue) reserve(db *sql.DB, from, n int) []string {
	m.t.Helper()
	epoch := m.redisState(m.sale).Epoch
	ids := make([]string, n)
	for i := range ids {
		ids[i] = wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), m.sale)
		v, err := m.redis.Reserve(m.t.Context(), reserve.Request{Sale: m.sale, UID: fmt.Sprintf("u%d", from+i), Quantity: 1, OrderID: ids[i], Epoch: epoch})
		if err != nil || v.Answer != lua.Reserved {
			m.t.Fatalf("reserve: %+v, %v", v, err)
		}
	}
	return ids
}

func (m *morgue) redisState(sale int64) reserve.State {
	m.t.Helper()
	states, err := m.redis.States(m.t.Context(), []int64{sale})
	if err != nil {
		m.t.Fatal(err)
	}
	return states[0]
}

func (m *morgue) number(db *sql.DB, query string, args ...any) (n int) {
	m.t.Helper()
	if err := db.QueryRowContext(m.t.Context(), query, args...).Scan(&n); err != nil {
		m.t.Fatal(err)
	}
	return n
}

func (m *morgue) must(db *sql.DB, statement string, args ...any) {
	m.t.Helper()
	if _, err := db.ExecContext(m.t.Context(), statement, args...); err != nil {
		m.t.Fatal(err)
	}
}

// A message of several orders came back three times. Its orders are deferred, so that each can be tried alone, and settled.
func TestOrdersOfASuspiciousMessageAreSettled(t *testing.T) {
	m := newMorgue(t, RabbitMQ)
	db := backendtest.OpenMySQL(t, m.dsn, 4)
	m.stop(t)
	ids := m.reserve(db, 0, 10)
	entries, bad, err := m.redis.Outbox(t.Context(), m.sale)
	if err != nil || len(bad) != 0 || len(entries) != len(ids) {
		t.Fatal(entries, bad, err)
	}
	b, err := broker.Open(broker.Config{URL: m.amqp, Partitions: 1, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Publish(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	queue := m.channel()
	deliveries, err := queue.Consume(broker.QueueName(0), "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d := <-deliveries
		if err := d.Nack(false, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := queue.Close(); err != nil {
		t.Fatal(err)
	}
	worker := m.another()
	worker.start("-roles", "consumer")
	m.until("all are settled and retired", func() bool {
		es, _, err := m.redis.Outbox(t.Context(), m.sale)
		return err == nil && len(es) == 0 && m.number(db, `SELECT COUNT(*) FROM orders WHERE status = 'pending_payment'`) == len(ids) &&
			m.number(db, `SELECT COUNT(*) FROM deferred_orders`) == 0
	})
	res, err := http.Get("http://" + worker.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if want := `backend_orders_settled_total{result="deferred"} 10`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the metrics lack %s: they were not deferred (%v)", want, err)
	}
	backendtest.Balanced(t, db, m.sale)
}
