//go:build servers

package admin

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/closing"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// office is an Admin on the real stores.
type office struct {
	*Admin
	t    *testing.T
	book *order.Store
	skus *sku.Cache
	// down, when it is set, is what every attempt to reach Redis after a COMMIT meets.
	down error
}

func newOffice(t *testing.T, connections int) *office {
	t.Helper()
	dsn := backendtest.MySQLDSN(t)
	db, redis := backendtest.OpenMySQL(t, dsn, connections), backendtest.Redis(t)
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	clk, log, reg := new(clock.Clock), backendtest.Log(t), prometheus.NewRegistry()
	intents := intent.New(intent.Config{DB: db, Sales: sale.Reader{DB: db}, Redis: redis, Clock: clk, Log: log, Register: reg})
	o := &office{t: t, book: order.NewStore(order.Config{Intents: intents, DB: db, Redis: redis, Clock: clk, Log: log, Register: reg}), skus: sku.NewCache(sku.Config{DB: db, Redis: redis.Client(), Log: log, Register: reg})}
	reconciler := reconcile.New(reconcile.Config{DB: db, Redis: redis, Log: log, Register: reg})
	rebuild := func(ctx context.Context, sale int64) error {
		if o.down != nil {
			return o.down
		}
		return reconciler.Sale(ctx, sale)
	}
	auditor := audit.New(audit.Config{DB: db, Redis: redis, QueuedBound: time.Minute})
	changes := &change.Maker{DB: db, Clock: clk, Intents: intents, Reconcile: rebuild, Changed: func(context.Context) error { return o.down }, Log: log}
	o.Admin = New(Config{Operators: only(token), DB: db, Redis: redis, Clock: clk, Audit: auditor, Changes: changes,
		Closing:   closing.New(closing.Config{DB: db, Redis: redis, Clock: clk, Audit: auditor, Maker: changes, Log: log, Register: reg}),
		Reconcile: rebuild,
		Rebuild:   o.skus.Rebuild,
		Queues: func(context.Context) ([]broker.QueueState, error) {
			return []broker.QueueState{{Name: broker.QueueName(0), Ready: 3, Unacked: 2, Consumers: 1}, {Name: broker.Dead, Ready: 1}}, nil
		},
		Orders:      o.book,
		DeadLetters: deadletter.NewStore(deadletter.Config{DB: db, Orders: o.book, Clock: clk, Log: log, Register: reg}),
		Gateways:    gateways.New(redis.Client(), clk),
		Ready:       func(context.Context) []string { return nil }, Log: log, Gatherer: reg, Register: reg})
	return o
}

// do sends a request that must be answered with this status.
func do[T any](o *office, want int, method, path, body string, header ...string) T {
	o.t.Helper()
	r := send(o.Admin, method, path, body, header...)
	if r.StatusCode != want {
		o.t.Fatalf("%s %s %s: got %d %+v, want %d", method, path, body, r.StatusCode, read[problem.Problem](o.t, r), want)
	}
	return read[T](o.t, r)
}

func (o *office) sale(id int64) adminapi.Sale {
	o.t.Helper()
	return do[adminapi.Sale](o, 200, "GET", fmt.Sprintf("/admin/v1/sales/%d", id), "")
}

func (o *office) sku(id int64) adminapi.SKU {
	o.t.Helper()
	return do[adminapi.SKU](o, 200, "GET", fmt.Sprintf("/admin/v1/skus/%d", id), "")
}

// state is the sale in Redis.
func (o *office) state(sale int64) reserve.State {
	o.t.Helper()
	s, err := o.Redis.States(o.t.Context(), []int64{sale})
	if err != nil {
		o.t.Fatal(err)
	}
	return s[0]
}

func (o *office) balanced(sale int64) audit.Result {
	o.t.Helper()
	r := do[audit.Result](o, 200, "GET", fmt.Sprintf("/admin/v1/sales/%d/audit", sale), "")
	if !r.Balanced || r.Available+r.Queued+r.Locked+r.Sold != r.Total {
		o.t.Errorf("sale %d: %+v", sale, r)
	}
	return r
}

func (o *office) count(query string, args ...any) (n int64) {
	o.t.Helper()
	if err := o.DB.QueryRowContext(o.t.Context(), query, args...).Scan(&n); err != nil {
		o.t.Fatal(err)
	}
	return n
}

// press reserves units in Redis; the order is queued.
func (o *office) press(sale int64, uid string, quantity int) string {
	o.t.Helper()
	id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)
	v, err := o.Redis.Reserve(o.t.Context(), reserve.Request{Sale: sale, UID: uid, Quantity: quantity, OrderID: id, Epoch: o.state(sale).Epoch})
	if err != nil || v.Answer != lua.Reserved {
		o.t.Fatalf("press of %s: %+v, %v", uid, v, err)
	}
	return id
}

func (o *office) settle(sale int64) {
	o.t.Helper()
	snap, err := o.Redis.Snapshot(o.t.Context(), sale)
	if err != nil {
		o.t.Fatal(err)
	}
	if err := errors.Join(o.book.Settle(o.t.Context(), snap.Outbox), o.book.Retire(o.t.Context(), snap.Outbox)); err != nil {
		o.t.Fatal(err)
	}
}

// openSale is the body of a sale that is open now.
func openSale(members string) string {
	now := time.Now().UTC()
	return with(fmt.Sprintf(`"starts_at":%q,"ends_at":%q`, now.Add(-time.Hour).Format(time.RFC3339), now.Add(time.Hour).Format(time.RFC3339)) + members)
}
