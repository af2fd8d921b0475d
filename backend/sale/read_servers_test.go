//go:build servers

package sale_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/wire"
)

func TestReadIsWhatMySQLHas(t *testing.T) {
	db := backendtest.MySQL(t)
	start := time.Now().UTC().Truncate(time.Millisecond)
	tranches := []backendtest.Tranche{{At: start, Quantity: 4}, {At: start.Add(time.Minute), Quantity: 5}, {At: start.Add(2 * time.Minute), Quantity: 1}}
	first := backendtest.Sale(t, db, backendtest.SaleOptions{Limit: 2, PayWithin: 90 * time.Second, StartsAt: start, EndsAt: start.Add(time.Hour), Tranches: tranches})
	archived := backendtest.Sale(t, db, backendtest.SaleOptions{})
	second := backendtest.Sale(t, db, backendtest.SaleOptions{Kind: wire.Coupon})
	if _, err := db.Exec(`UPDATE sales SET archived_at = ?, closed_at = ? WHERE id = ?`, start, start, archived); err != nil {
		t.Fatal(err)
	}
	live, err := sale.Read(t.Context(), db)
	if err != nil || len(live) != 2 || live[0].ID != first || live[1].ID != second || live[1].Kind != wire.Coupon {
		t.Fatalf("got %+v, %v; want sales %d and %d", live, err, first, second)
	}
	want := sale.Sale{ID: first, SKU: live[0].SKU, Kind: wire.Goods, Title: "test sale", Price: 100, Currency: "EUR", StartsAt: start,
		EndsAt: start.Add(time.Hour), PerUserLimit: 2, PayWithin: 90 * time.Second, Version: 1,
		Tranches: []sale.Tranche{{At: start, Quantity: 4}, {At: start.Add(time.Minute), Quantity: 5}, {At: start.Add(2 * time.Minute), Quantity: 1}}}
	if diff := cmp.Diff(want, live[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	named, err := sale.Read(t.Context(), tx, archived, 999999, first)
	if err != nil || len(named) != 2 || named[1].ID != archived || named[1].ArchivedAt == nil || named[1].ClosedAt == nil || len(named[0].Tranches) != 3 {
		t.Errorf("by id: got %+v, %v", named, err)
	}
}
