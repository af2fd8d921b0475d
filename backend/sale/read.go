package sale

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// Read reads the sales with these ids (at most MaxLive), archived ones too, or without ids every sale that is not archived
// (at most MaxLive, the oldest). They come by ascending id; what is not there is left out.
//
// The sale is read before its tranches: outside a transaction the tranches may be newer than Version says, never older,
// and then the change that made them brings the rest.
func Read(ctx context.Context, q store.Queryer, ids ...int64) ([]Sale, error) {
	where, args := "archived_at IS NULL", []any(nil)
	if len(ids) > 0 {
		where, args = in("id", ids)
	}
	var sales []Sale
	index := map[int64]int{}
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var s Sale
		var payWithin int64
		var published bool
		if err := rows.Scan(&s.ID, &s.SKU, &s.Kind, &s.Title, &s.Price, &s.Currency, &s.Category, &s.Picture, &s.StartsAt, &s.EndsAt, &s.PerUserLimit,
			&payWithin, &s.Paused, &published, &s.ClosedAt, &s.ArchivedAt, &s.Version); err != nil {
			return err
		}
		s.PayWithin, s.Hidden = time.Duration(payWithin)*time.Second, !published
		index[s.ID] = len(sales)
		sales = append(sales, s)
		return nil
	}, `SELECT id, sku_id, kind, title, price, currency, category, picture, starts_at, ends_at, per_user_limit, pay_within_s,
		paused, published, closed_at, archived_at, version FROM sales WHERE `+where+fmt.Sprintf(` ORDER BY id LIMIT %d`, MaxLive), args...)
	if err != nil {
		return nil, fmt.Errorf("read sales: %w", err)
	}
	if len(sales) == 0 {
		return nil, nil
	}
	if len(ids) > 0 {
		where, args = in("sale_id", ids)
	} else {
		where, args = "sale_id IN (SELECT id FROM sales WHERE archived_at IS NULL)", nil
	}
	err = store.Each(ctx, q, func(rows *sql.Rows) error {
		var id int64
		var t Tranche
		if err := rows.Scan(&id, &t.At, &t.Quantity); err != nil {
			return err
		}
		if i, ok := index[id]; ok {
			sales[i].Tranches = append(sales[i].Tranches, t)
		}
		return nil
	}, `SELECT sale_id, at, quantity FROM tranches WHERE `+where+` ORDER BY sale_id, at`, args...)
	if err != nil {
		return nil, fmt.Errorf("read tranches: %w", err)
	}
	return sales, nil
}

// Record is a sale with its units, as MySQL has them: queued orders are not in them yet.
type Record struct {
	Sale
	CreatedAt                      time.Time
	Guard                          string // how its stock row is guarded: order.GuardConditional or order.GuardVersion
	Total, Available, Locked, Sold int64
}

// State is what the public is told at now, as far as MySQL knows it.
func (r *Record) State(now time.Time) wire.SaleState {
	switch {
	case r.ClosedAt != nil || !now.Before(r.EndsAt):
		return wire.Ended
	case r.Paused || r.Hidden:
		return wire.Paused
	case now.Before(r.StartsAt):
		return wire.Upcoming
	case r.Available <= r.Unreleased(now):
		return wire.SoldOut
	default:
		return wire.Open
	}
}

// Records reads the sales with these ids and their units, by ascending id; what is not there is left out.
func Records(ctx context.Context, q store.Queryer, ids ...int64) ([]Record, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	sales, err := Read(ctx, q, ids...)
	if err != nil {
		return nil, err
	}
	records := make([]Record, len(sales))
	index := map[int64]*Record{}
	for i, s := range sales {
		records[i].Sale = s
		index[s.ID] = &records[i]
	}
	where, args := in("s.id", ids)
	err = store.Each(ctx, q, func(rows *sql.Rows) error {
		var id int64
		var r Record
		if err := rows.Scan(&id, &r.CreatedAt, &r.Guard, &r.Total, &r.Available, &r.Locked, &r.Sold); err != nil {
			return err
		}
		if to, ok := index[id]; ok {
			r.Sale = to.Sale
			*to = r
		}
		return nil
	}, `SELECT s.id, s.created_at, s.stock_guard, k.total, k.available, k.locked, k.sold
		FROM sales s JOIN sale_stock k ON k.sale_id = s.id WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("units of sales: %w", err)
	}
	return records, nil
}

// Get reads one sale and its units. ErrNotFound.
func Get(ctx context.Context, q store.Queryer, id int64) (Record, error) {
	records, err := Records(ctx, q, id)
	if err != nil {
		return Record{}, err
	}
	if len(records) == 0 {
		return Record{}, &NotFoundError{id}
	}
	return records[0], nil
}

// Lock reads one sale and its units, and keeps every other change from the sale until the transaction ends. ErrNotFound.
func Lock(ctx context.Context, tx *sql.Tx, id int64) (Record, error) {
	var locked int64
	err := tx.QueryRowContext(ctx, `SELECT id FROM sales WHERE id = ? FOR UPDATE`, id).Scan(&locked)
	if errors.Is(err, sql.ErrNoRows) {
		return Record{}, &NotFoundError{id}
	}
	if err != nil {
		return Record{}, fmt.Errorf("lock sale %d: %w", id, err)
	}
	return Get(ctx, tx, id)
}

// Newest returns the ids of the sales below an id, newest first, at most limit; of coupon campaigns alone where it is asked.
func Newest(ctx context.Context, q store.Queryer, coupons bool, below, limit int64) ([]int64, error) {
	where := ""
	if coupons {
		where = "kind = 'coupon' AND "
	}
	ids, err := store.Column[int64](ctx, q, `SELECT id FROM sales WHERE `+where+`id < ? ORDER BY id DESC LIMIT ?`, below, limit)
	if err != nil {
		return nil, fmt.Errorf("sales: %w", err)
	}
	return ids, nil
}

// Unsold returns the ids of the closed sales above an id that are not archived and have units left, ascending, at most limit.
func Unsold(ctx context.Context, q store.Queryer, above int64, limit int) ([]int64, error) {
	ids, err := store.Column[int64](ctx, q, `SELECT s.id FROM sales s JOIN sale_stock k ON k.sale_id = s.id
		WHERE s.id > ? AND s.closed_at IS NOT NULL AND s.archived_at IS NULL AND k.available > 0 ORDER BY s.id LIMIT ?`, above, limit)
	if err != nil {
		return nil, fmt.Errorf("closed sales with unsold units: %w", err)
	}
	return ids, nil
}

// Over returns the ids of the sales above an id that are not archived and ended at or before at, ascending, at most limit.
func Over(ctx context.Context, q store.Queryer, at time.Time, above int64, limit int) ([]int64, error) {
	ids, err := store.Column[int64](ctx, q, `SELECT id FROM sales WHERE archived_at IS NULL AND id > ? AND (closed_at <= ? OR ends_at <= ?) ORDER BY id LIMIT ?`,
		above, at, at, limit)
	if err != nil {
		return nil, fmt.Errorf("sales that are over: %w", err)
	}
	return ids, nil
}

// Live returns the ids of every sale that is not archived, ascending.
func Live(ctx context.Context, q store.Queryer) ([]int64, error) {
	ids, err := store.Column[int64](ctx, q, `SELECT id FROM sales WHERE archived_at IS NULL ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("live sales: %w", err)
	}
	return ids, nil
}

// LiveByStart returns the ids of every sale that is not archived, those that start first first: on are those that are on or to
// come at now, over those that have ended.
func LiveByStart(ctx context.Context, q store.Queryer, now time.Time) (on, over []int64, err error) {
	err = store.Each(ctx, q, func(rows *sql.Rows) error {
		var id int64
		var ended bool
		if err := rows.Scan(&id, &ended); err != nil {
			return err
		}
		if ended {
			over = append(over, id)
		} else {
			on = append(on, id)
		}
		return nil
	}, `SELECT id, closed_at IS NOT NULL OR ends_at <= ? FROM sales WHERE archived_at IS NULL ORDER BY starts_at, id`, now)
	if err != nil {
		return nil, nil, fmt.Errorf("live sales: %w", err)
	}
	return on, over, nil
}

// IsLive reports whether there is such a sale, and it is not archived.
func IsLive(ctx context.Context, q store.Queryer, id int64) (bool, error) {
	ids, err := store.Column[int64](ctx, q, `SELECT id FROM sales WHERE id = ? AND archived_at IS NULL`, id)
	if err != nil {
		return false, fmt.Errorf("look for sale %d: %w", id, err)
	}
	return len(ids) > 0, nil
}

// Mark is the state of the definitions in short: it is another after each creation, change and archive of a sale.
type Mark struct {
	live, versions, newest int64
}

// ReadMark reads the present Mark. What is read of the sales after it is at least as new.
func ReadMark(ctx context.Context, q store.Queryer) (m Mark, err error) {
	err = store.Each(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&m.live, &m.versions, &m.newest) },
		`SELECT COUNT(*), COALESCE(SUM(version), 0), COALESCE((SELECT MAX(id) FROM sales), 0) FROM sales WHERE archived_at IS NULL`)
	if err != nil {
		return Mark{}, fmt.Errorf("read the mark of the sales: %w", err)
	}
	return m, nil
}

// NewestArchived returns the ids of the sales that were archived last, at most limit, ascending.
func NewestArchived(ctx context.Context, q store.Queryer, limit int) ([]int64, error) {
	ids, err := store.Column[int64](ctx, q, `SELECT id FROM sales WHERE archived_at IS NOT NULL ORDER BY archived_at DESC, id DESC LIMIT `+fmt.Sprint(limit))
	if err != nil {
		return nil, fmt.Errorf("read archived sales: %w", err)
	}
	slices.Sort(ids)
	return ids, nil
}

// ArchivedAfter is a page of the archived sales with an id above last, ascending, with the tokens that their archives took.
func ArchivedAfter(ctx context.Context, q store.Queryer, last int64, limit int) (ids, tokens []int64, err error) {
	err = store.Each(ctx, q, func(rows *sql.Rows) error {
		var id, token int64
		err := rows.Scan(&id, &token)
		ids, tokens = append(ids, id), append(tokens, token)
		return err
	}, `SELECT s.id, k.token FROM sales s JOIN sale_stock k ON k.sale_id = s.id
		WHERE s.id > ? AND s.archived_at IS NOT NULL ORDER BY s.id LIMIT ?`, last, limit)
	if err != nil {
		return nil, nil, fmt.Errorf("read archived sales: %w", err)
	}
	return ids, tokens, nil
}

// Reader reads sales for an intent.Runner.
type Reader struct{ DB *sql.DB }

// Definition implements intent.Sales. *NotFoundError.
func (r Reader) Definition(ctx context.Context, id int64) (reserve.Definition, error) {
	sales, err := Read(ctx, r.DB, id)
	if err == nil && len(sales) == 0 {
		err = &NotFoundError{id}
	}
	if err != nil {
		return reserve.Definition{}, err
	}
	return sales[0].Definition(), nil
}

// ArchiveToken implements intent.Sales: the newest token that the stock row has.
func (r Reader) ArchiveToken(ctx context.Context, id int64) (token int64, archived bool, err error) {
	tokens, err := store.Column[int64](ctx, r.DB, `SELECT k.token FROM sales s JOIN sale_stock k ON k.sale_id = s.id WHERE s.id = ? AND s.archived_at IS NOT NULL`, id)
	if err != nil || len(tokens) == 0 {
		return 0, false, err
	}
	return tokens[0], true, nil
}

// Archived implements intent.Sales.
func (r Reader) Archived(ctx context.Context, ids []int64) ([]int64, error) {
	where, args := in("id", ids)
	archived, err := store.Column[int64](ctx, r.DB, `SELECT id FROM sales WHERE archived_at IS NOT NULL AND `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("look for archived sales: %w", err)
	}
	return archived, nil
}

// in is "column IN (?,?)" and its arguments.
func in(column string, ids []int64) (where string, args []any) {
	return column + " IN (" + store.Marks(len(ids)) + ")", store.Anys(ids)
}
