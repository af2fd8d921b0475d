//go:build servers

package plan

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// What an order takes in Redis and in MySQL is what the plan says, on the real servers.
func TestWhatAnOrderTakes(t *testing.T) {
	const n = 400
	db, redis := backendtest.MySQL(t), backendtest.Redis(t)
	c := redis.Client()
	book := order.NewStore(order.Config{DB: db, Redis: redis, Clock: new(clock.Clock), Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	bytes := func(sale int64) (sum float64) {
		keys, err := c.Do(t.Context(), c.B().Keys().Pattern(fmt.Sprintf("%s{sale:%d}:*", c.Prefix(), sale)).Build()).AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			b, err := c.Do(t.Context(), c.B().MemoryUsage().Key(key).Samples(0).Build()).AsInt64()
			if err != nil {
				t.Fatal(err)
			}
			sum += float64(b)
		}
		return sum
	}
	rows := func() (all int64) {
		for _, table := range []string{"orders", "order_slots", "ledger"} {
			var n int64
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			all += n
		}
		return all
	}
	var each [2]float64 // without and with an Idempotency-Key
	for i := range each {
		sale := backendtest.Sale(t, db, backendtest.SaleOptions{Stock: n})
		backendtest.Load(t, db, redis, sale)
		before, rowsBefore := bytes(sale), rows()
		var ids []string
		for j := range n {
			r := reserve.Request{Sale: sale, UID: fmt.Sprintf("shopper-%06d", j), Quantity: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Epoch: 1}
			if i == 1 {
				r.Key = uuid.NewString()
			}
			if v, err := redis.Reserve(t.Context(), r); err != nil || v.Answer != lua.Reserved {
				t.Fatalf("got %+v, %v", v, err)
			}
			ids = append(ids, r.OrderID)
		}
		snap, err := redis.Snapshot(t.Context(), sale)
		if err != nil {
			t.Fatal(err)
		}
		each[i] = (bytes(sale) - before) / n
		if err := errors.Join(book.Settle(t.Context(), snap.Outbox), book.Retire(t.Context(), snap.Outbox)); err != nil {
			t.Fatal(err)
		}
		if got, want := rows()-rowsBefore, n*(Measured.OrderRows+Measured.SlotRows+Measured.LedgerRows); got != want {
			t.Errorf("%d orders are %d rows, the plan says %d", n, got, want)
		}
		if _, err := book.Pay(t.Context(), "shopper-000000", ids[0]); err != nil {
			t.Fatal(err)
		}
		if got, want := rows()-rowsBefore, n*(Measured.OrderRows+Measured.SlotRows+Measured.LedgerRows)+Measured.ClosedRows; got != want {
			t.Errorf("a paid one makes them %d rows, the plan says %d", got, want)
		}
	}
	for name, got := range map[string][2]float64{"an order": {each[0], Measured.RedisOrderBytes}, "its key": {each[1] - each[0], Measured.RedisKeyBytes}} {
		t.Logf("%s: %.0f bytes", name, got[0])
		if got[0] > got[1] || got[0] < got[1]/2 {
			t.Errorf("%s takes %.0f bytes in Redis, the plan says %.0f: it is to be that or somewhat less", name, got[0], got[1])
		}
	}
}
