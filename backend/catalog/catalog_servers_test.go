//go:build servers

package catalog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

func TestRunFollowsMySQLAndRedis(t *testing.T) {
	db, redis := backendtest.MySQL(t), backendtest.Redis(t)
	clk := &clock.Clock{}
	c := catalog.New(catalog.Config{DB: db, Redis: redis, Clock: clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	var instance string
	var version uint64
	// next follows the feed until it says this of the sale.
	next := func(what string, sale int64, ok func(wire.Sale) bool) {
		t.Helper()
		for ctx.Err() == nil {
			f := c.Feed(ctx, instance, version, time.Second)
			instance, version = f.Instance, f.Version
			for _, s := range f.Sales {
				if s.ID == sale && ok(s) {
					return
				}
			}
		}
		t.Fatalf("the feed never said: %s", what)
	}
	is := func(state wire.SaleState) func(wire.Sale) bool {
		return func(s wire.Sale) bool { return s.State == state }
	}
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{Stock: 1})
	next("open", sale, is(wire.Open))
	if !clk.Synced() {
		t.Error("the clock was not set")
	}
	backendtest.Load(t, db, redis, sale)
	r := reserve.Request{Sale: sale, UID: "u", Quantity: 1, OrderID: wire.NewOrderID("0190163d-8694-739b-aea5-966c26f8ad91", sale), Epoch: 1}
	if v, err := redis.Reserve(ctx, r); err != nil || v.OrderID == "" {
		t.Fatalf("got %+v, %v", v, err)
	}
	next("sold out", sale, is(wire.SoldOut))
	if got := c.Queued(sale); got != 1 {
		t.Errorf("got %d queued, want 1", got)
	}
	if got := c.Epoch(sale); got != 1 {
		t.Errorf("got epoch %d, want 1", got)
	}
	if _, err := redis.Release(ctx, sale, r.OrderID); err != nil {
		t.Fatal(err)
	}
	next("open again", sale, is(wire.Open))
	if _, err := db.Exec(`UPDATE sales SET paused = TRUE, version = 2 WHERE id = ?`, sale); err != nil {
		t.Fatal(err)
	}
	if err := c.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if s, _ := c.Public(sale); s.State != wire.Paused {
		t.Errorf("after a refresh: got %s, want paused", s.State)
	}
	// A gate that is closed says nothing of the stock.
	if _, err := db.Exec(`UPDATE sales SET paused = FALSE, version = 3 WHERE id = ?`, sale); err != nil {
		t.Fatal(err)
	}
	if _, err := redis.Shut(ctx, sale, 99); err != nil {
		t.Fatal(err)
	}
	next("open while it is reconciled", sale, is(wire.Open))
	if _, err := db.Exec(`UPDATE sales SET archived_at = ? WHERE id = ?`, time.Now().UTC(), sale); err != nil {
		t.Fatal(err)
	}
	next("ended, once it is archived", sale, is(wire.Ended))
	if _, err := c.Get(ctx, sale); !errors.Is(err, catalog.ErrArchived) {
		t.Errorf("an archived sale: got %v", err)
	}
	if p, ok := c.Public(sale); !ok || p.State != wire.Ended {
		t.Errorf("got %+v, %v; it is still told of", p, ok)
	}
	if len(c.List()) != 0 || len(c.Live()) != 0 {
		t.Errorf("got %v listed, %v live; an archived sale is neither", c.List(), c.Live())
	}
}

// The newest archived sales are told of as ended; one that was archived before them is known as that when it is asked for,
// and no more than once.
func TestArchivedSalesAreBounded(t *testing.T) {
	db, reg := backendtest.MySQL(t), prometheus.NewRegistry()
	c := catalog.New(catalog.Config{DB: db, Redis: backendtest.Redis(t), Clock: &clock.Clock{}, Log: backendtest.Log(t), Register: reg})
	when := time.Now().UTC().Truncate(time.Second)
	first := backendtest.Sale(t, db, backendtest.SaleOptions{})
	archive := func(where string, at time.Time) {
		t.Helper()
		if _, err := db.Exec(`UPDATE sales SET archived_at = ?, closed_at = ? WHERE archived_at IS NULL AND `+where, at, at); err != nil {
			t.Fatal(err)
		}
		if err := c.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	archive("TRUE", when)
	if p, ok := c.Public(first); !ok || p.State != wire.Ended {
		t.Fatalf("got %+v, %v", p, ok)
	}
	for n := 1; n <= catalog.MaxArchived; n *= 2 { // doubled until there are more than it tells of
		if _, err := db.Exec(`INSERT INTO sales (sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, created_at)
			SELECT sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, created_at FROM sales`); err != nil {
			t.Fatal(err)
		}
	}
	archive("TRUE", when.Add(time.Hour))
	if p, ok := c.Public(first); ok {
		t.Errorf("got %+v: newer ones are archived", p)
	}
	f := c.Feed(t.Context(), "", 0, 0)
	if len(f.Sales) != catalog.MaxArchived || len(c.List()) != 0 {
		t.Errorf("got %d sales in the feed, %d listed; want %d and none", len(f.Sales), len(c.List()), catalog.MaxArchived)
	}
	for range 3 {
		if _, err := c.Get(t.Context(), first); !errors.Is(err, catalog.ErrArchived) {
			t.Errorf("got %v", err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "backend_catalog_lookups_total" && f.Metric[0].GetCounter().GetValue() != 1 {
			t.Errorf("got %v lookups in MySQL, want 1", f.Metric[0].GetCounter().GetValue())
		}
	}
	live := backendtest.Sale(t, db, backendtest.SaleOptions{})
	if s, err := c.Get(t.Context(), live); err != nil || s.ID != live {
		t.Errorf("got %+v, %v", s, err)
	}
	if f := c.Feed(t.Context(), "", 0, 0); len(c.List()) != 1 || len(c.Live()) != 1 || f.Sales == nil {
		t.Errorf("got %v, %v: a live sale found on the way is live, the archived ones are not", c.List(), c.Live())
	}
}

// Row B6: random ids are no load on the database.
func TestUnknownIDsAskMySQLOnce(t *testing.T) {
	t.Attr("row", "B6")
	db := backendtest.MySQL(t)
	reg := prometheus.NewRegistry()
	c := catalog.New(catalog.Config{DB: db, Redis: backendtest.Redis(t), Clock: &clock.Clock{}, Log: backendtest.Log(t), Register: reg})
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	for range 50 {
		go func() { _, err := c.Get(t.Context(), 12345); got <- err }()
	}
	for range 50 {
		if err := <-got; !errors.Is(err, catalog.ErrUnknown) {
			t.Errorf("got %v", err)
		}
	}
	lookups, err := testutil.GatherAndCount(reg, "backend_catalog_lookups_total")
	if err != nil || lookups != 1 {
		t.Fatalf("got %d, %v", lookups, err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "backend_catalog_lookups_total" && f.Metric[0].GetCounter().GetValue() != 1 {
			t.Errorf("got %v lookups in MySQL, want 1", f.Metric[0].GetCounter().GetValue())
		}
	}
	// A sale that was made a moment ago by another process is found, and is live from then on.
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{})
	if s, err := c.Get(t.Context(), sale); err != nil || s.ID != sale || len(c.Live()) != 1 {
		t.Errorf("got %+v, %v, live %v", s, err, c.Live())
	}
}
