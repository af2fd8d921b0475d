//go:build servers

package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// older keeps what MySQL has of sales and orders, and returns what brings that back: as a copy that lags has it.
func (s *system) older() (back func()) {
	s.t.Helper()
	tables := []string{"sales", "sale_stock", "orders", "order_slots", "ledger", "intents"}
	do := func(format string) {
		s.t.Helper()
		for _, table := range tables {
			for statement := range strings.SplitSeq(strings.ReplaceAll(format, "TABLE", table), ";") {
				if _, err := s.db.ExecContext(s.t.Context(), statement); err != nil {
					s.t.Fatal(statement, err)
				}
			}
		}
	}
	do("CREATE table copy_TABLE AS SELECT * FROM TABLE")
	return func() {
		s.t.Helper()
		do("DELETE FROM TABLE;INSERT INTO TABLE SELECT * FROM copy_TABLE")
	}
}

// another makes MySQL another server than the one that was compared.
func (s *system) another() {
	s.t.Helper()
	if _, err := s.db.ExecContext(s.t.Context(), `REPLACE INTO compared_server (only_row, address, started, compared_at) VALUES (1, 'another', 1, NOW())`); err != nil {
		s.t.Fatal(err)
	}
}

// comparing is a keeper that compares MySQL with Redis.
func (s *system) comparing() *keeper {
	s.t.Helper()
	all, err := store.OpenAny(s.dsn, 1)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { all.Close() })
	r := New(Config{DB: s.db, AnyMySQL: all, Orders: s.orders, Redis: s.redis, Log: backendtest.Log(s.t), Register: prometheus.NewRegistry()})
	return &keeper{r: r, shut: map[int64]*closed{}, ends: map[int64]context.CancelFunc{}}
}

// compare does what a look of Keep does, and waits until the sales are open.
func (k *keeper) compareNow(t *testing.T) {
	t.Helper()
	if err := k.compare(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.running.Wait()
}

// served reports whether MySQL gives a new connection.
func (s *system) served() error {
	s.t.Helper()
	db, err := store.Open(s.dsn, 1)
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	return db.PingContext(s.t.Context())
}

func (s *system) statuses(ids ...string) (list []wire.OrderStatus) {
	s.t.Helper()
	known, err := statuses(s.t.Context(), s.db, ids)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, id := range ids {
		list = append(list, known[id])
	}
	return list
}

// An older MySQL gets back what it has forgotten: orders that were settled and retired, and that one was cancelled, whose unit Redis has
// promised to another since. Until then it serves nobody.
func TestAnOlderMySQLIsFilledAgain(t *testing.T) {
	s := newSystem(t, false)
	id := s.sale(backendtest.SaleOptions{Stock: 3})
	k := s.comparing()
	k.compareNow(t) // the first one
	a, b := s.press(id, "a", 1, ""), s.press(id, "b", 1, "key-of-b")
	s.settle(a, b)
	older := s.older()
	c := s.press(id, "c", 1, "key-of-c")
	s.settle(c)
	if _, err := s.orders.Cancel(t.Context(), "b", b.ID); err != nil {
		t.Fatal(err)
	}
	d := s.press(id, "d", 1, "") // the unit of b
	s.settle(d)
	e := s.state(id).Epoch
	if _, err := s.orders.Cancel(t.Context(), "c", c.ID); err != nil {
		t.Fatal(err)
	}
	f := s.press(id, "f", 1, "") // the unit of c; it is queued
	older()
	s.another()
	if err := s.served(); !errors.Is(err, store.ErrNotCompared) {
		t.Fatalf("a MySQL that was not compared: got %v, want %v", err, store.ErrNotCompared)
	}
	k.compareNow(t)
	if err := s.served(); err != nil {
		t.Fatalf("a MySQL that was compared: %v", err)
	}
	if got, want := s.statuses(b.ID, c.ID), []wire.OrderStatus{wire.Cancelled, wire.Cancelled}; !slices.Equal(got, want) {
		t.Errorf("orders that were cancelled: got %v, want %v", got, want)
	}
	if st := s.state(id); st.Gate != lua.GateOpen || st.Epoch <= e || st.Stock != 0 {
		t.Errorf("got %+v, want an open gate, an epoch above %d and no stock", st, e)
	}
	s.settleOutbox(id)
	if got, want := s.statuses(a.ID, d.ID, f.ID), []wire.OrderStatus{wire.PendingPayment, wire.PendingPayment, wire.PendingPayment}; !slices.Equal(got, want) {
		t.Errorf("orders that were promised: got %v, want %v", got, want)
	}
	held := map[string]bool{}
	if _, err := s.redis.EachHeld(t.Context(), id, func(page []reserve.Held) error {
		for _, h := range page {
			held[h.ID] = true
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]bool{a.ID: true, d.ID: true, f.ID: true}; !maps.Equal(held, want) {
		t.Errorf("got reservations %v, want %v", held, want)
	}
}

// A MySQL that took over and has everything closes no gate.
func TestAMySQLThatIsNotBehindServesAtOnce(t *testing.T) {
	s := newSystem(t, false)
	id := s.sale(backendtest.SaleOptions{Stock: 5})
	k := s.comparing()
	k.compareNow(t)
	a, b := s.press(id, "a", 1, ""), s.press(id, "b", 1, "")
	s.settle(a, b)
	s.press(id, "c", 1, "") // queued
	if _, err := s.orders.Cancel(t.Context(), "b", b.ID); err != nil {
		t.Fatal(err)
	}
	before := s.state(id)
	s.another()
	k.compareNow(t)
	if err := s.served(); err != nil {
		t.Fatal(err)
	}
	if now := s.state(id); now.Token != before.Token || now.Gate != lua.GateOpen {
		t.Errorf("got %+v, want it as it was: %+v", now, before)
	}
}

// A consumer that settled an order in a MySQL that is gone may retire it after the one that took over was compared. The next comparison
// finds it.
func TestAnOrderThatIsRetiredLateIsFound(t *testing.T) {
	s := newSystem(t, false)
	id := s.sale(backendtest.SaleOptions{Stock: 5})
	k := s.comparing()
	k.compareNow(t)
	older := s.older()
	a := s.press(id, "a", 1, "")
	if err := s.orders.Settle(t.Context(), []queued.Entry{a}); err != nil {
		t.Fatal(err)
	}
	older()
	s.another()
	k.compareNow(t)
	if err := s.orders.Retire(t.Context(), []queued.Entry{a}); err != nil {
		t.Fatal(err)
	}
	if err := k.r.compareAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.settleOutbox(id)
	if got := s.statuses(a.ID); got[0] != wire.PendingPayment {
		t.Errorf("got %q, want %s", got[0], wire.PendingPayment)
	}
}
