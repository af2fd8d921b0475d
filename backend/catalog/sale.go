// Package catalog knows every live sale: what operators decided (from MySQL), what is available (from Redis), and what
// the public is told of both, as answers to readers and as the feed that gateways follow.
package catalog

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// MaxArchived is how many archived sales are still told of, as ended: the newest. A sale archived before them is unknown to
// the public; its orders stay.
const MaxArchived = 1000

// MaxLive is how many sales may be live (not archived) at once. Beyond it the oldest stay known and the newest are left
// out, loudly; admin refuses to create one more.
const MaxLive = 2000

// Sale is what operators decided of a sale.
type Sale struct {
	ID, SKU      int64
	Kind         wire.SaleKind
	Title        string
	Price        int64
	Currency     string
	Category     string // of a coupon campaign: a claim may ask for one
	StartsAt     time.Time
	EndsAt       time.Time
	PerUserLimit int
	PayWithin    time.Duration
	Paused       bool
	Hidden       bool // a campaign that is not published: the public knows nothing of it
	ClosedAt     *time.Time
	ArchivedAt   *time.Time
	Version      int64 // counts changes
	Tranches     []Tranche
}

// Tranche is a part of the stock and when it goes on sale.
type Tranche struct {
	At       time.Time
	Quantity int64
}

// Definition is the sale as Redis is told of it. Tranches that are released with the start need no schedule.
func (s Sale) Definition() reserve.Definition {
	d := reserve.Definition{
		Version: s.Version, Starts: s.StartsAt.UnixMilli(), Ends: s.EndsAt.UnixMilli(), Limit: s.PerUserLimit,
		Paused: s.Paused || s.Hidden, Closed: s.ClosedAt != nil,
	}
	for _, t := range s.Tranches {
		if t.At.After(s.StartsAt) {
			d.Later = append(d.Later, reserve.Tranche{At: t.At.UnixMilli(), Units: t.Quantity})
		}
	}
	return d
}

// ended reports whether nothing is sold any more.
func (s *Sale) ended(now time.Time) bool {
	return s.ClosedAt != nil || s.ArchivedAt != nil || !now.Before(s.EndsAt)
}

// unreleased is how many units are in tranches still to come at now.
func (s *Sale) unreleased(now time.Time) (units int64) {
	for _, t := range s.Tranches {
		if t.At.After(now) && t.At.After(s.StartsAt) {
			units += t.Quantity
		}
	}
	return units
}

// nextRelease is when the next tranche after the start comes; nil for never.
func (s *Sale) nextRelease(now time.Time) *wire.Time {
	for _, t := range s.Tranches {
		if t.At.After(now) && t.At.After(s.StartsAt) {
			at := wire.At(t.At)
			return &at
		}
	}
	return nil
}

// nextChange is when time alone next changes what the public is told; the zero time for never.
func (s *Sale) nextChange(now time.Time) time.Time {
	if s.ended(now) {
		return time.Time{}
	}
	next := s.EndsAt
	if s.StartsAt.After(now) {
		next = s.StartsAt
	}
	if r := s.nextRelease(now); r != nil && r.Before(next) {
		next = r.Time
	}
	return next
}

func (s *Sale) equal(o *Sale) bool {
	a, b := *s, *o
	same := slices.EqualFunc(a.Tranches, b.Tranches, func(x, y Tranche) bool { return x.At.Equal(y.At) && x.Quantity == y.Quantity }) &&
		a.StartsAt.Equal(b.StartsAt) && a.EndsAt.Equal(b.EndsAt) && sameTime(a.ClosedAt, b.ClosedAt) && sameTime(a.ArchivedAt, b.ArchivedAt)
	return same && a.ID == b.ID && a.SKU == b.SKU && a.Kind == b.Kind && a.Title == b.Title && a.Price == b.Price &&
		a.Currency == b.Currency && a.Category == b.Category && a.PerUserLimit == b.PerUserLimit && a.PayWithin == b.PayWithin && a.Paused == b.Paused && a.Hidden == b.Hidden && a.Version == b.Version
}

func sameTime(a, b *time.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}

// Queryer is a *sql.DB or a *sql.Tx.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Read reads the sales with these ids (at most MaxLive), archived ones too, or without ids every sale that is not archived
// (at most MaxLive, the oldest). They come by ascending id; what is not there is left out.
//
// The sale is read before its tranches: outside a transaction the tranches may be newer than Version says, never older,
// and then the change that made them brings the rest.
func Read(ctx context.Context, q Queryer, ids ...int64) ([]Sale, error) {
	where, args := "archived_at IS NULL", []any(nil)
	if len(ids) > 0 {
		where, args = in("id", ids)
	}
	rows, err := q.QueryContext(ctx, `SELECT id, sku_id, kind, title, price, currency, category, starts_at, ends_at, per_user_limit, pay_within_s,
		paused, published, closed_at, archived_at, version FROM sales WHERE `+where+fmt.Sprintf(` ORDER BY id LIMIT %d`, MaxLive), args...)
	if err != nil {
		return nil, fmt.Errorf("read sales: %w", err)
	}
	defer rows.Close()
	var sales []Sale
	index := map[int64]int{}
	for rows.Next() {
		var s Sale
		var payWithin int64
		var published bool
		var closed, archived sql.NullTime
		if err := rows.Scan(&s.ID, &s.SKU, &s.Kind, &s.Title, &s.Price, &s.Currency, &s.Category, &s.StartsAt, &s.EndsAt, &s.PerUserLimit,
			&payWithin, &s.Paused, &published, &closed, &archived, &s.Version); err != nil {
			return nil, fmt.Errorf("read sales: %w", err)
		}
		s.PayWithin, s.Hidden = time.Duration(payWithin)*time.Second, !published
		s.ClosedAt, s.ArchivedAt = pointer(closed), pointer(archived)
		index[s.ID] = len(sales)
		sales = append(sales, s)
	}
	if err := closeRows(rows); err != nil {
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
	rows, err = q.QueryContext(ctx, `SELECT sale_id, at, quantity FROM tranches WHERE `+where+` ORDER BY sale_id, at`, args...)
	if err != nil {
		return nil, fmt.Errorf("read tranches: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var t Tranche
		if err := rows.Scan(&id, &t.At, &t.Quantity); err != nil {
			return nil, fmt.Errorf("read tranches: %w", err)
		}
		if i, ok := index[id]; ok {
			sales[i].Tranches = append(sales[i].Tranches, t)
		}
	}
	if err := closeRows(rows); err != nil {
		return nil, fmt.Errorf("read tranches: %w", err)
	}
	return sales, nil
}

// newestArchived returns the ids of the MaxArchived sales that were archived last, ascending.
func newestArchived(ctx context.Context, q Queryer) ([]int64, error) {
	rows, err := q.QueryContext(ctx, fmt.Sprintf(`SELECT id FROM sales WHERE archived_at IS NOT NULL ORDER BY archived_at DESC, id DESC LIMIT %d`, MaxArchived))
	if err != nil {
		return nil, fmt.Errorf("read archived sales: %w", err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("read archived sales: %w", err)
		}
		ids = append(ids, id)
	}
	if err := closeRows(rows); err != nil {
		return nil, fmt.Errorf("read archived sales: %w", err)
	}
	slices.Sort(ids)
	return ids, nil
}

func closeRows(rows *sql.Rows) error {
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}

func in(column string, ids []int64) (where string, args []any) {
	args = make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return column + " IN (" + strings.TrimSuffix(strings.Repeat("?,", len(ids)), ",") + ")", args
}

func pointer(t sql.NullTime) *time.Time {
	if !t.Valid {
		return nil
	}
	return &t.Time
}
