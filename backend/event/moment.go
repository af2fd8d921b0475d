package event

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

const (
	momentsBack = 72 * time.Hour // a moment of a sale that passed longer ago is told no more
	momentsOnce = 100            // sales in one pass
)

const saleColumns = `s.id, s.kind, s.title, s.price, s.currency, s.starts_at, s.ends_at, k.total, k.sold FROM sales s JOIN sale_stock k ON k.sale_id = s.id`

func readSales(ctx context.Context, q store.Queryer, where string, args ...any) (list []Sale, err error) {
	err = store.Each(ctx, q, func(rows *sql.Rows) error {
		var s Sale
		var starts, ends time.Time
		err := rows.Scan(&s.ID, &s.Kind, &s.Title, &s.Price, &s.Currency, &starts, &ends, &s.Total, &s.Sold)
		s.StartsAt, s.EndsAt = wire.At(starts), wire.At(ends)
		list = append(list, s)
		return err
	}, `SELECT `+saleColumns+` WHERE `+where+` ORDER BY s.id`, args...)
	if err != nil {
		return nil, fmt.Errorf("sales for events: %w", err)
	}
	return list, nil
}

// Moments is one pass over the sales that opened or ended by the clock and of which that was not told yet, also while no process ran.
// It returns how many moments it told: call again at once until that is 0. Any number of passes may run at once.
func (l *Log) Moments(ctx context.Context, db *sql.DB, now time.Time) (n int, err error) {
	if !l.On() {
		return 0, nil
	}
	for _, m := range []struct {
		what Type
		at   string
		also string
	}{
		{SaleOpened, `GREATEST(s.starts_at, s.created_at)`, ` AND (s.closed_at IS NULL OR s.closed_at > s.starts_at)`},
		{SaleEnded, `COALESCE(s.closed_at, s.ends_at)`, ``},
	} {
		sales, err := readSales(ctx, db, m.at+` <= ? AND `+m.at+` > ?`+m.also+` AND NOT EXISTS (SELECT 1 FROM event_marks m WHERE m.sale_id = s.id AND m.type = ?)`,
			now, now.Add(-momentsBack), string(m.what))
		if err != nil {
			return n, err
		}
		sales = sales[:min(len(sales), momentsOnce)]
		if len(sales) == 0 {
			continue
		}
		if err := store.InTx(ctx, db, func(tx *sql.Tx) error {
			var events []Event
			for _, s := range sales {
				first, err := mark(ctx, tx, s.ID, m.what)
				if err != nil {
					return err
				}
				if first {
					events = append(events, Event{m.what, SaleRef(s.ID), s})
				}
			}
			return l.Write(ctx, tx, now, events...)
		}); err != nil {
			return n, fmt.Errorf("tell %s of %d sales: %w", m.what, len(sales), err)
		}
		n += len(sales)
	}
	return n, nil
}

// mark reports whether this is the first time that a moment is told. Whoever tells the same waits for this transaction's end.
func mark(ctx context.Context, tx *sql.Tx, sale int64, what Type) (bool, error) {
	marked, err := store.Changed(tx.ExecContext(ctx, `INSERT IGNORE INTO event_marks (sale_id, type) VALUES (?, ?)`, sale, string(what)))
	return marked == 1, err
}

// SoldOut writes which of the sales have no unit left, in the transaction that took units of each of them and has their stock rows
// locked. Units of tranches to come are units that are left. A sale that sells out before its opening was told is told to be open first.
func (l *Log) SoldOut(ctx context.Context, tx *sql.Tx, at time.Time, sales []int64) error {
	if !l.On() {
		return nil
	}
	empty, err := readSales(ctx, tx, `k.available = 0 AND s.id IN (`+store.Marks(len(sales))+`)`, store.Anys(sales)...)
	if err != nil {
		return err
	}
	var events []Event
	for _, s := range empty {
		first, err := mark(ctx, tx, s.ID, SaleOpened)
		if err != nil {
			return err
		}
		if first {
			events = append(events, Event{SaleOpened, SaleRef(s.ID), s})
		}
		events = append(events, Event{SaleSoldOut, SaleRef(s.ID), s})
	}
	return l.Write(ctx, tx, at, events...)
}
