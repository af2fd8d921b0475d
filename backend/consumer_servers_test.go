//go:build servers

package backend

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// With redis-stream an entry is all that there is of an order until MySQL has it.
func TestAnEntryStaysUntilMySQLHasTheOrder(t *testing.T) {
	dsn, redis := backendtest.MySQLDSN(t), backendtest.Redis(t)
	db := backendtest.OpenMySQL(t, dsn, 1)
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{})
	backendtest.Load(t, db, redis, sale)
	v, err := redis.Reserve(t.Context(), reserve.Request{Sale: sale, UID: "ann", Quantity: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Epoch: 1})
	if err != nil || v.Answer != lua.Reserved {
		t.Fatalf("reserve: %+v, %v", v, err)
	}
	entries := func() []queued.Entry {
		t.Helper()
		es, bad, err := redis.Outbox(t.Context(), sale)
		if err != nil || len(bad) > 0 {
			t.Fatal(err, bad)
		}
		return es
	}
	batch := entries()
	away := backendtest.OpenMySQL(t, dsn, 1)
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	clk := new(clock.Clock)
	for _, c := range []struct {
		db   *sql.DB
		left int
	}{{away, 1}, {db, 0}} {
		p := &process{orders: order.NewStore(order.Config{DB: c.db, Redis: redis, Clock: clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})}
		err := p.settle(t.Context(), batch)
		if left := len(entries()); (err != nil) != (c.left > 0) || left != c.left {
			t.Errorf("settle: got %v and %d entries left, want %d", err, left, c.left)
		}
	}
	backendtest.RedisBalanced(t, db, redis, sale)
}

// With redis-stream what is of a closed sale stays in its outbox, and what comes with it is settled and retired.
func TestAClosedSalesEntryStaysAndOthersAreSettled(t *testing.T) {
	dsn, redis := backendtest.MySQLDSN(t), backendtest.Redis(t)
	db := backendtest.OpenMySQL(t, dsn, 1)
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var batch []queued.Entry
	var sales []int64
	for range 2 {
		sale := backendtest.Sale(t, db, backendtest.SaleOptions{})
		backendtest.Load(t, db, redis, sale)
		v, err := redis.Reserve(t.Context(), reserve.Request{Sale: sale, UID: "ann", Quantity: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Epoch: 1})
		if err != nil || v.Answer != lua.Reserved {
			t.Fatalf("reserve: %+v, %v", v, err)
		}
		es, _, err := redis.Outbox(t.Context(), sale)
		if err != nil {
			t.Fatal(err)
		}
		batch, sales = append(batch, es...), append(sales, sale)
	}
	if _, err := db.Exec(`UPDATE sale_stock SET epoch = 2, token = 2 WHERE sale_id = ?`, sales[0]); err != nil {
		t.Fatal(err)
	}
	p := &process{orders: order.NewStore(order.Config{DB: db, Redis: redis, Clock: new(clock.Clock), Log: backendtest.Log(t), Register: prometheus.NewRegistry()})}
	var closed *queued.ClosedError
	if err := p.settle(t.Context(), batch); !errors.As(err, &closed) || len(closed.Entries) != 1 || closed.Entries[0].Sale != sales[0] {
		t.Errorf("got %v, want the closed sale's order to wait", err)
	}
	for i, want := range []int{1, 0} {
		if es, _, err := redis.Outbox(t.Context(), sales[i]); err != nil || len(es) != want {
			t.Errorf("sale %d: %d entries left, %v; want %d", sales[i], len(es), err, want)
		}
		var rows int
		if err := db.QueryRow(`SELECT COUNT(*) FROM orders WHERE sale_id = ?`, sales[i]).Scan(&rows); err != nil || rows != 1-want {
			t.Errorf("sale %d: %d rows, %v; want %d", sales[i], rows, err, 1-want)
		}
	}
}
