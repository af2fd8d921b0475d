//go:build servers

package backend

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/rueidis"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// morgue is a backend whose orders die.
type morgue struct {
	*running
	t     *testing.T
	redis *reserve.Store
	dsn   string
	queue string
	amqp  string // "" with redis-stream
	sale  int64
	end   func() error // of the first process
}

// newMorgue has a sale of 10 open, and nobody who settles orders. More is added to the configuration.
func newMorgue(t *testing.T, driver string, more ...string) *morgue {
	t.Helper()
	m := &morgue{t: t, redis: backendtest.Redis(t), dsn: backendtest.MySQLDSN(t), queue: fmt.Sprintf("{driver: %s}", driver)}
	if driver == RabbitMQ {
		m.amqp = backendtest.AMQP(t)
		m.queue = fmt.Sprintf("{driver: %s, url: %q, partitions: 1}", driver, m.amqp)
	}
	m.queue = strings.Join(append([]string{m.queue}, more...), "\n")
	m.running = m.another()
	if err := m.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	m.end = m.start("-roles", "api,relay")
	m.waitReady()
	m.sale = m.createSale(t, 10)
	return m
}

// another process on the same stores.
func (m *morgue) another() *running {
	r := configure(m.t, os.Getenv("REDIS_ADDR"), m.redis.Client().Prefix(), m.dsn, m.queue+"\noutbox: {claim_idle: 1s}")
	r.t = m.t
	return r
}

func (m *morgue) press(uid string) wire.Accepted {
	m.t.Helper()
	var a wire.Accepted
	if res := m.call(uid, "POST", fmt.Sprintf("/v1/sales/%d/orders", m.sale), "", "", &a); res.StatusCode() != 202 {
		m.t.Fatalf("%s: got %d %s", uid, res.StatusCode(), res.Body())
	}
	return a
}

func (m *morgue) letters() []deadletter.Message {
	m.t.Helper()
	var page struct {
		DeadLetters []deadletter.Message `json:"dead_letters"`
	}
	m.get("/admin/v1/dead-letters", &page)
	return page.DeadLetters
}

func (m *morgue) get(path string, out any) {
	m.t.Helper()
	if _, err := m.operator("GET", path, nil, out); err != nil {
		m.t.Fatal(err)
	}
}

// channel is a direct line to the broker.
func (m *morgue) channel() *amqp.Channel {
	m.t.Helper()
	conn, err := amqp.Dial(m.amqp)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			m.t.Error(err)
		}
	})
	ch, err := conn.Channel()
	if err != nil {
		m.t.Fatal(err)
	}
	return ch
}

// dies makes an order one that was delivered to too many that ended over it.
func (m *morgue) dies(uid string) wire.Accepted {
	m.t.Helper()
	if m.amqp != "" {
		ch := m.channel()
		if err := ch.Qos(1, 0, false); err != nil {
			m.t.Fatal(err)
		}
		list, err := ch.Consume(broker.QueueName(0), "", false, false, false, false, nil)
		if err != nil {
			m.t.Fatal(err)
		}
		a := m.press(uid)
		for range broker.DeliveryLimit + 1 {
			d := <-list
			if d.MessageId != a.OrderID {
				m.t.Fatalf("got message %s, want %s", d.MessageId, a.OrderID)
			}
			if err := d.Nack(false, true); err != nil {
				m.t.Fatal(err)
			}
		}
		if err := ch.Close(); err != nil {
			m.t.Fatal(err)
		}
		return a
	}
	a := m.press(uid)
	h, ok, err := m.redis.Lookup(m.t.Context(), m.sale, a.OrderID)
	if err != nil || !ok {
		m.t.Fatal(ok, err)
	}
	c, key := m.redis.Client(), m.redis.OutboxKey(m.sale)
	for _, cmd := range []rueidis.Completed{
		c.B().XgroupCreate().Key(key).Group(reserve.Group).Id("0").Build(),
		c.B().Xreadgroup().Group(reserve.Group, "dead").Count(100).Streams().Key(key).Id(">").Build(),
		c.B().Xclaim().Key(key).Group(reserve.Group).Consumer("dead").MinIdleTime("0").Id(h.Entry).Idle(60_000).Retrycount(50).Justid().Build(),
	} {
		if err := c.Do(m.t.Context(), cmd).Error(); err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
			m.t.Fatal(err)
		}
	}
	return a
}

// garbage puts something that is no order where orders come from.
func (m *morgue) garbage(text string) {
	m.t.Helper()
	var err error
	if m.amqp != "" {
		err = m.channel().PublishWithContext(m.t.Context(), broker.Exchange, "0", true, false, amqp.Publishing{Type: "order", Body: []byte(text)})
	} else {
		c := m.redis.Client()
		err = c.Do(m.t.Context(), c.B().Xadd().Key(m.redis.OutboxKey(m.sale)).Id("*").FieldValue().FieldValue("what", text).Build()).Error()
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

type audited struct {
	Balanced                               bool
	Available, Queued, Locked, Sold, Total int64
	Findings                               []any
}

func (m *morgue) settled(available, locked int64) {
	m.t.Helper()
	eventually(m.t, "the audit", func() error {
		var a audited
		_, err := m.operator("GET", fmt.Sprintf("/admin/v1/sales/%d/audit", m.sale), nil, &a)
		if err != nil || !a.Balanced || a.Available != available || a.Queued != 0 || a.Locked != locked {
			return fmt.Errorf("got %+v, %v; want %d available, %d locked", a, err, available, locked)
		}
		return nil
	})
}

func bothDrivers(t *testing.T, test func(t *testing.T, driver string)) {
	for _, driver := range []string{RabbitMQ, RedisStream} {
		t.Run(driver, func(t *testing.T) { test(t, driver) })
	}
}

// An order over which whoever gets it ends is rejected, and its unit is back, once; what is no order is kept; both are to be
// seen, and replaying them changes nothing.
//
// Rows B4, B7: a poison order dies alone, is kept, and is replayed.
func TestDeadLettersFromDeathToReplay(t *testing.T) {
	t.Attr("row", "B4 B7")
	bothDrivers(t, func(t *testing.T, driver string) {
		m := newMorgue(t, driver)
		dead := m.dies("alice")
		alive := m.press("bob")
		m.garbage("no order at all")
		m.another().start("-roles", "consumer,timer")

		var o wire.Order
		m.call("bob", "GET", alive.StatusURL+"?wait_ms=20000", "", "", &o)
		if o.Status != wire.PendingPayment {
			t.Errorf("bob's order: got %+v, want it to await payment", o)
		}
		m.call("alice", "GET", dead.StatusURL+"?wait_ms=20000", "", "", &o)
		if o.Status != wire.Rejected || o.Reason != deadletter.Undeliverable {
			t.Errorf("alice's order: got %+v, want it to be rejected as undeliverable", o)
		}
		eventually(t, "two dead letters", func() error {
			if list := m.letters(); len(list) != 2 {
				return fmt.Errorf("got %+v", list)
			}
			return nil
		})
		m.settled(9, 1)
		var order, junk deadletter.Message
		for _, l := range m.letters() {
			if l.Readable {
				order = l
			} else {
				junk = l
			}
		}
		if order.OrderID != dead.OrderID || order.SaleID != m.sale || order.Status != wire.Rejected || order.Deliveries <= 49 || !strings.Contains(order.Reason, "never settled") ||
			!strings.Contains(order.Payload, dead.OrderID) || order.Encoding != "utf-8" || order.Times != 1 || order.ReplayedAt != nil {
			t.Errorf("got %+v", order)
		}
		if !strings.Contains(junk.Payload, "no order at all") || junk.OrderID != "" || junk.Reason == "" || junk.ReplayedAt != nil || junk.Size != int64(len(junk.Payload)) {
			t.Errorf("got %+v", junk)
		}
		var queue struct {
			DeadLetters int64 `json:"dead_letters"`
		}
		if m.get("/admin/v1/queue", &queue); queue.DeadLetters != 2 {
			t.Errorf("the queue says %d dead letters, want 2", queue.DeadLetters)
		}

		for _, test := range []struct {
			letter deadletter.Message
			want   string
		}{{order, deadletter.Unchanged}, {junk, deadletter.Unreadable}} {
			path := fmt.Sprintf("/admin/v1/dead-letters/%d", test.letter.ID)
			var first, second deadletter.Replayed
			for _, into := range []*deadletter.Replayed{&first, &second} {
				if _, err := m.operator("POST", path+"/replay", nil, into); err != nil {
					t.Fatal(err)
				}
			}
			if first.Result != test.want || first.ReplayedAt == nil || second.Result != first.Result || !second.ReplayedAt.Equal(first.ReplayedAt.Time) {
				t.Errorf("got %+v, then %+v; want %s twice", first, second, test.want)
			}
			var l deadletter.Message
			if m.get(path, &l); l.ReplayedAt == nil || l.Status != test.letter.Status {
				t.Errorf("got %+v", l)
			}
		}
		var audit struct {
			Entries []struct{ Action, Target string }
		}
		m.get("/admin/v1/audit-log", &audit)
		var replays []string
		for _, e := range audit.Entries {
			if e.Action == "dead-letter.replay" {
				replays = append(replays, e.Target)
			}
		}
		if len(replays) != 2 {
			t.Errorf("the audit log has the replays %v, want one of each letter", replays)
		}
		if m.get("/admin/v1/queue", &queue); queue.DeadLetters != 0 {
			t.Errorf("the queue says %d dead letters, want none: all were replayed", queue.DeadLetters)
		}
		m.settled(9, 1)
	})
}

// An order for which MySQL takes no row at all keeps its units and its place in the outbox, whatever is tried, and gets its
// row once MySQL takes it: by a replay, or by itself.
func TestAnOrderThatMySQLRefusesIsKeptUntilItDoesNot(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		m := newMorgue(t, driver)
		db := backendtest.OpenMySQL(t, m.dsn, 1)
		if _, err := db.ExecContext(t.Context(), `ALTER TABLE orders ADD CONSTRAINT deadly CHECK (uid NOT LIKE 'deadly%')`); err != nil {
			t.Fatal(err)
		}
		deadly, other := m.press("deadly-1"), m.press("bob")
		again := m.press("deadly-2")
		stop := m.another().start("-roles", "consumer,timer")
		var o wire.Order
		m.call("bob", "GET", other.StatusURL+"?wait_ms=20000", "", "", &o)
		if o.Status != wire.PendingPayment {
			t.Errorf("got %+v, want it to await payment", o)
		}
		letterOf := func(a wire.Accepted) (found deadletter.Message) {
			for _, l := range m.letters() {
				if l.OrderID == a.OrderID {
					found = l
				}
			}
			return found
		}
		eventually(t, "it died twice", func() error { // it comes back from the outbox
			if l := letterOf(deadly); l.Times < 2 || l.Status != "" || !l.Readable {
				return fmt.Errorf("got %+v", l)
			}
			return nil
		})
		eventually(t, "the other one died", func() error {
			if letterOf(again).ID == 0 {
				return fmt.Errorf("got %+v", m.letters())
			}
			return nil
		})
		var a audited
		if m.get(fmt.Sprintf("/admin/v1/sales/%d/audit", m.sale), &a); !a.Balanced || a.Queued != 2 || a.Available != 7 || a.Locked != 1 {
			t.Errorf("got %+v, want two queued and their units held", a)
		}
		replay := func(a wire.Accepted) (r deadletter.Replayed) {
			t.Helper()
			if _, err := m.operator("POST", fmt.Sprintf("/admin/v1/dead-letters/%d/replay", letterOf(a).ID), nil, &r); err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := replay(deadly); r.Result != deadletter.Refused {
			t.Errorf("got %+v, want it refused", r)
		}
		if err := stop(); err != nil { // or it may find its order refused, and a row that says so taken
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), `ALTER TABLE orders DROP CONSTRAINT deadly`); err != nil {
			t.Fatal(err)
		}
		if r := replay(deadly); r.Result != deadletter.Settled || r.Status != wire.PendingPayment {
			t.Errorf("got %+v, want it settled", r)
		}
		m.another().start("-roles", "consumer,timer")
		m.call("deadly-2", "GET", again.StatusURL+"?wait_ms=20000", "", "", &o)
		if o.Status != wire.PendingPayment {
			t.Errorf("got %+v, want it to await payment: nobody replayed it", o)
		}
		m.settled(7, 3)
	})
}

// A letter that was never an order of ours is settled by its replay, by the rules that hold for every order, and only once.
//
// Row B7: a replay has one effect.
func TestAReplayedOrderIsSettledOnce(t *testing.T) {
	t.Attr("row", "B7")
	m := newMorgue(t, RedisStream)
	a := m.press("alice")
	snap, err := m.redis.Snapshot(t.Context(), m.sale)
	if err != nil || len(snap.Outbox) != 1 {
		t.Fatal(snap, err)
	}
	payload, err := json.Marshal(snap.Outbox[0])
	if err != nil {
		t.Fatal(err)
	}
	db := backendtest.OpenMySQL(t, m.dsn, 1)
	if _, err := db.ExecContext(t.Context(), `INSERT INTO dead_letters (digest, queue, reason, payload, size, readable, order_id, sale_id, deliveries, first_at, last_at)
		VALUES ('x', 'outbox', 'by hand', ?, ?, TRUE, ?, ?, 1, ?, ?)`, payload, len(payload), a.OrderID, m.sale, time.Now().UTC(), time.Now().UTC()); err != nil {
		t.Fatal(err)
	}
	id := m.letters()[0].ID
	for _, want := range []string{deadletter.Settled, deadletter.Unchanged, deadletter.Unchanged} {
		var r deadletter.Replayed
		if _, err := m.operator("POST", fmt.Sprintf("/admin/v1/dead-letters/%d/replay", id), nil, &r); err != nil || r.Result != want || r.Status != wire.PendingPayment {
			t.Errorf("got %+v, %v; want %s", r, err, want)
		}
	}
	m.settled(9, 1)
	if snap, err = m.redis.Snapshot(t.Context(), m.sale); err != nil || len(snap.Outbox) != 0 {
		t.Errorf("got %+v, %v; want an empty outbox", snap.Outbox, err)
	}
	if _, err := m.operator("POST", "/admin/v1/dead-letters/999/replay", nil, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v, want 404", err)
	}
}

// What the broker loses is published again from the outbox: every order is settled, and to the auditor, who asks all the
// while, nothing was ever amiss: what is in flight is no finding.
func TestAMessagePurgedFromTheBrokerHealsByItself(t *testing.T) {
	m := newMorgue(t, RabbitMQ, "orders: {queued_bound: 10m}")
	look := func() (a struct {
		audited
		Broker audit.Broker
	}) {
		t.Helper()
		m.get(fmt.Sprintf("/admin/v1/sales/%d/audit", m.sale), &a)
		if !a.Balanced || a.Available+a.Queued+a.Locked+a.Sold != 10 {
			t.Fatalf("got %+v, want it balanced all the while", a)
		}
		return a
	}
	var all []wire.Accepted
	for i := range 5 {
		all = append(all, m.press(fmt.Sprint("u", i)))
		look()
	}
	eventually(t, "the broker has confirmed them all", func() error {
		var q struct {
			Outboxes []struct {
				Consumers []struct {
					Name    string
					Pending int
				}
			}
		}
		m.get("/admin/v1/queue", &q)
		for _, o := range q.Outboxes {
			for _, c := range o.Consumers {
				if c.Name == outbox.Published && c.Pending == len(all) {
					return nil
				}
			}
		}
		return fmt.Errorf("got %+v", q)
	})
	if n, err := m.channel().QueuePurge(broker.QueueName(0), false); n == 0 || err != nil {
		t.Fatalf("%d messages were purged, %v; want those of %d orders", n, err, len(all))
	}
	if a := look(); a.Queued != int64(len(all)) {
		t.Errorf("got %+v, want all queued", a)
	}
	m.another().start("-roles", "consumer,timer")
	eventually(t, "every order awaits payment", func() error {
		if a := look(); a.Locked != int64(len(all)) {
			return fmt.Errorf("got %+v", a)
		}
		return nil
	})
	for i, a := range all {
		var o wire.Order
		m.call(fmt.Sprint("u", i), "GET", a.StatusURL, "", "", &o)
		if o.Status != wire.PendingPayment {
			t.Errorf("got %+v, want it to await payment", o)
		}
	}
	eventually(t, "an idle broker", func() error {
		if b := look().Broker; b.Error != "" || b.Ready+b.Unrouted+b.Dead+b.DeadLetters != 0 || b.Consumers != 1 || b.Unexplained {
			return fmt.Errorf("got %+v", b)
		}
		return nil
	})
}
