package standin

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/reconcile"
	"floodgate.internal/lua"
)

// The stand-in is read by pages, of one moment, as the real server is, on its one connection.
func TestASaleOfManyPagesIsReconciled(t *testing.T) {
	_, db := openMySQL(t, 1)
	redis := openRedis(t)
	now, err := redis.Client().Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO sales (id, sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, created_at)
		VALUES (?, 1, 'goods', 'Mug', 100, 'EUR', ?, ?, 2, 60, ?)`, sale, now, now, now)
	const orders = 2100
	exec(t, db, `INSERT INTO sale_stock (sale_id, total, available, locked) VALUES (?, ?, 10, ?)`, sale, orders+10, orders)
	for from := 0; from < orders; from += 300 {
		var rows, slots []any
		for n := from; n < from+300; n++ {
			uid := fmt.Sprintf("u%04d", n/2) // two orders each, in the order of the keys: the stand-in sorts its tables after each statement
			rows = append(rows, orderID(n), sale, uid, now, now)
			slots = append(slots, sale, uid, n%2+1, orderID(n))
		}
		exec(t, db, `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at) VALUES `+
			strings.TrimPrefix(strings.Repeat(`, (?, ?, ?, 1, 100, 'pending_payment', ?, ?)`, 300), ", "), rows...)
		exec(t, db, `INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES `+strings.TrimPrefix(strings.Repeat(`, (?, ?, ?, ?)`, 300), ", "), slots...)
	}
	if err := reconcile.New(reconcile.Config{DB: db, Redis: redis, Log: slog.New(slog.DiscardHandler), Register: prometheus.NewRegistry()}).Sale(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	snap, err := redis.Snapshot(t.Context(), sale)
	if err != nil {
		t.Fatal(err)
	}
	if s := snap.State; s.Gate != lua.GateOpen || s.Stock != 10 || len(snap.Orders) != orders || len(snap.Buyers) != orders/2 {
		t.Errorf("got %d reservations of %d buyers, and %+v", len(snap.Orders), len(snap.Buyers), s)
	}
	for _, h := range snap.Orders {
		if h.Slots != "1" && h.Slots != "2" {
			t.Fatalf("order %s has the slots %q", h.ID, h.Slots)
		}
	}
}
