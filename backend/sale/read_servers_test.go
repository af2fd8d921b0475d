//go:build servers

package sale_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
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

// The mark is another after whatever a catalog has to hear of, and else the same.
func TestTheMarkTellsOfEachChange(t *testing.T) {
	db := backendtest.MySQL(t)
	mark := func() sale.Mark {
		t.Helper()
		m, err := sale.ReadMark(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	last := mark()
	if last != (sale.Mark{}) {
		t.Errorf("got %+v without a sale", last)
	}
	news := func(what string, change func(tx *sql.Tx) error) {
		t.Helper()
		if err := store.InTx(t.Context(), db, change); err != nil {
			t.Fatal(err)
		}
		if m := mark(); m == last {
			t.Errorf("%s: the mark is the same, %+v", what, m)
		} else if last = m; mark() != last {
			t.Errorf("%s: the mark changes by itself", what)
		}
	}
	var one, two int64
	create := func(id *int64) func(*sql.Tx) error {
		return func(*sql.Tx) error { *id = backendtest.Sale(t, db, backendtest.SaleOptions{}); return nil }
	}
	with := func(id *int64, f func(*sql.Tx, sale.Record) error) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			before, err := sale.Lock(t.Context(), tx, *id)
			if err != nil {
				return err
			}
			return f(tx, before)
		}
	}
	archive := func(tx *sql.Tx, before sale.Record) error {
		if _, err := tx.ExecContext(t.Context(), `UPDATE intents SET done_at = ? WHERE sale_id = ?`, now, before.ID); err != nil {
			return err
		}
		seen := sale.Seen{Version: before.Version}
		if err := tx.QueryRowContext(t.Context(), `SELECT epoch, token FROM sale_stock WHERE sale_id = ?`, before.ID).Scan(&seen.Epoch, &seen.Token); err != nil {
			return err
		}
		_, err := sale.Archive(t.Context(), tx, now, before, seen)
		return err
	}
	news("a sale is made", create(&one))
	news("another is made", create(&two))
	news("one is paused", with(&one, func(tx *sql.Tx, before sale.Record) error {
		_, err := sale.Pause(t.Context(), tx, now, before, true)
		return err
	}))
	news("it gets another title", with(&one, func(tx *sql.Tx, before sale.Record) error {
		next := before
		next.Title = "another"
		_, err := sale.Update(t.Context(), tx, now, before, next)
		return err
	}))
	news("one is closed", with(&two, func(tx *sql.Tx, before sale.Record) error {
		_, err := sale.Close(t.Context(), tx, now, before)
		return err
	}))
	news("it is archived", with(&two, archive))
	var three int64
	news("one is made and archived at once", func(tx *sql.Tx) error {
		if err := create(&three)(tx); err != nil {
			return err
		}
		return with(&three, archive)(tx)
	})
}
