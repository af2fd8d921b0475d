//go:build servers

package order

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// shop is a Book and what it stands on.
type shop struct {
	t      testing.TB
	dsn    string
	db     *sql.DB
	redis  *reserve.Store
	clk    *clock.Clock
	orders *Store
	sales  []int64
}

// newShop makes a shop; when the test ends, every sale of it must balance.
func newShop(t testing.TB) *shop {
	dsn := backendtest.MySQLDSN(t)
	s := &shop{t: t, dsn: dsn, db: backendtest.OpenMySQL(t, dsn, 16), redis: backendtest.Redis(t)}
	if _, err := store.Migrate(t.Context(), s.db); err != nil {
		t.Fatal(err)
	}
	s.clk = s.clockAhead(0)
	s.orders = s.ordersAt(s.clk)
	t.Cleanup(func() {
		for _, sale := range s.sales {
			s.balanced(sale)
		}
	})
	return s
}

// clockAhead is the server's clock, or one that has gone on by d since.
func (s *shop) clockAhead(d time.Duration) *clock.Clock {
	s.t.Helper()
	asked := time.Now()
	now, err := s.redis.Client().Now(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	clk := new(clock.Clock)
	clk.Set(now.Add(d), asked)
	return clk
}

func (s *shop) ordersAt(clk *clock.Clock) *Store {
	return newBook(s.db, s.redis, clk, backendtest.Log(s.t))
}

func newBook(db *sql.DB, redis *reserve.Store, clk *clock.Clock, log *slog.Logger) *Store {
	reg := prometheus.NewRegistry()
	return NewStore(Config{DB: db, Redis: redis, Clock: clk, Log: log, Register: reg,
		Intents: intent.New(intent.Config{DB: db, Sales: sale.Reader{DB: db}, Redis: redis, Clock: clk, Log: log, Register: reg})})
}

func (s *shop) sale(o backendtest.SaleOptions) int64 {
	s.t.Helper()
	id := backendtest.Sale(s.t, s.db, o)
	backendtest.Load(s.t, s.db, s.redis, id)
	s.sales = append(s.sales, id)
	return id
}

func (s *shop) balanced(sale int64) {
	s.t.Helper()
	// A cleanup has no context of its own left: t.Context is over by then.
	if err := backendtest.Balance(context.Background(), s.db, sale); err != nil {
		s.t.Errorf("sale %d does not balance: %v", sale, err)
	}
}

// press reserves in Redis, as a shopper does, and returns the order id.
func (s *shop) press(sale int64, uid string, quantity int, key string) string {
	s.t.Helper()
	v, err := s.redis.Reserve(s.t.Context(), reserve.Request{Sale: sale, UID: uid, Quantity: quantity, OrderID: newID(sale), Key: key, Epoch: s.epoch(sale)})
	if err != nil || v.Answer != lua.Reserved {
		s.t.Fatalf("press by %s: got %+v, %v; want it reserved", uid, v, err)
	}
	return v.OrderID
}

func (s *shop) epoch(sale int64) int64 {
	return s.number(`SELECT epoch FROM sale_stock WHERE sale_id = ?`, sale)
}

// outbox is what consumers of a sale are given.
func (s *shop) outbox(sale int64) []queued.Entry {
	s.t.Helper()
	snap, err := s.redis.Snapshot(s.t.Context(), sale)
	if err != nil || len(snap.Bad) > 0 {
		s.t.Fatalf("snapshot of sale %d: %v, %v", sale, err, snap.Bad)
	}
	return snap.Outbox
}

// settle settles and retires everything in a sale's outbox.
func (s *shop) settle(sale int64) {
	s.t.Helper()
	batch := s.outbox(sale)
	if err := s.orders.Settle(s.t.Context(), batch); err != nil {
		s.t.Fatal(err)
	}
	if err := s.orders.Retire(s.t.Context(), batch); err != nil {
		s.t.Fatal(err)
	}
}

// ordered is one settled order.
func (s *shop) ordered(sale int64, uid string) string {
	s.t.Helper()
	id := s.press(sale, uid, 1, "")
	s.settle(sale)
	return id
}

// forged is an entry that Redis never decided on.
func forged(sale int64, uid string, o queued.Entry) queued.Entry {
	o.ID, o.Sale, o.UID = cmp.Or(o.ID, newID(sale)), sale, uid
	o.Quantity, o.Slots = cmp.Or(o.Quantity, 1), cmp.Or(o.Slots, "1")
	o.Epoch, o.At = cmp.Or(o.Epoch, 1), cmp.Or(o.At, time.Now().UnixMilli())
	return o
}

func newID(sale int64) string { return wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale) }

func (s *shop) number(query string, args ...any) (n int64) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (s *shop) exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.db.ExecContext(s.t.Context(), query, args...); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

// stands is an order's status and reason in MySQL, "" if it is not there.
func (s *shop) stands(id string) string {
	s.t.Helper()
	found, err := find(s.t.Context(), s.db, []string{id})
	if err != nil {
		s.t.Fatal(err)
	}
	r := found[id]
	if r.reason != "" {
		return fmt.Sprintf("%s: %s", r.status, r.reason)
	}
	return string(r.status)
}

// count is how many orders of a sale have a status.
func (s *shop) count(sale int64, status wire.OrderStatus) int64 {
	s.t.Helper()
	return s.number(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND status = ?`, sale, string(status))
}

func (s *shop) stock(sale int64) int64 {
	s.t.Helper()
	states, err := s.redis.States(s.t.Context(), []int64{sale})
	if err != nil {
		s.t.Fatal(err)
	}
	return states[0].Stock
}

// reload does to a sale what reconciling does: it closes the gate, raises the epoch, and loads these reservations.
func (s *shop) reload(sale int64, held []reserve.Held, stock int64, open bool) {
	s.t.Helper()
	ctx := s.t.Context()
	s.exec(`UPDATE sale_stock SET epoch = epoch + 1, token = token + 1 WHERE sale_id = ?`, sale)
	epoch := s.epoch(sale)
	states, err := s.redis.States(ctx, []int64{sale})
	if err != nil {
		s.t.Fatal(err)
	}
	token := s.number(`SELECT token FROM sale_stock WHERE sale_id = ?`, sale)
	if _, err := s.redis.Shut(ctx, sale, token); err != nil {
		s.t.Fatal(err)
	}
	l := reserve.Loaded{Definition: states[0].Definition, Epoch: epoch, Stock: stock, Total: states[0].Total, Orders: held}
	if err := s.redis.Load(ctx, sale, token, l); err != nil {
		s.t.Fatal(err)
	}
	if open {
		if err := s.redis.Unlock(ctx, sale, token); err != nil {
			s.t.Fatal(err)
		}
	}
}
