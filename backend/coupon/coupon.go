// Package coupon keeps what coupon campaigns have issued: one claim for each unit, which its owner uses once, or which
// expires. See docs/coupons.md.
//
// A claim is written in the transaction that issues its order, and never deleted. One conditional UPDATE of its row (...
// WHERE state = 'new') decides whether it is used or expires.
package coupon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

var (
	// ErrNotFound: there is no such claim, or it is somebody else's.
	ErrNotFound = errors.New("no such claim")
	// ErrCursor: the cursor of a list is none that a list gave out.
	ErrCursor = errors.New("no such cursor")
)

// EndedError: the claim was used before, or has expired.
type EndedError struct {
	Claim wire.Claim // as it stands
}

func (e *EndedError) Error() string {
	if at := e.Claim.UsedAt; at != nil {
		return "the coupon was used at " + at.UTC().Format(wire.TimeFormat)
	}
	return "the coupon expired at " + e.Claim.ValidUntil.UTC().Format(wire.TimeFormat)
}

// Claims are the claims in MySQL. It is safe for concurrent use, by any number of processes.
type Claims struct {
	db   *sql.DB
	clk  *clock.Clock
	used prometheus.Counter
	gone prometheus.Counter
}

// Config is what Claims need.
type Config struct {
	DB       *sql.DB
	Clock    *clock.Clock // follows Redis's clock before anything is used or expires
	Register prometheus.Registerer
}

// New makes Claims and registers their metrics.
func New(c Config) *Claims {
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_coupon_claims_total",
		Help: "Claims that this process brought to an end, by their state then: used, expired."}, []string{"state"})
	c.Register.MustRegister(ended)
	return &Claims{db: c.DB, clk: c.Clock, used: ended.WithLabelValues(string(wire.ClaimUsed)), gone: ended.WithLabelValues(string(wire.ClaimExpired))}
}

// now is the time as MySQL keeps it: in milliseconds.
func (c *Claims) now() time.Time { return c.clk.Now().Truncate(time.Millisecond) }

// Issued is an order that is issued: a claim is written for each of its slots.
type Issued struct {
	Order, UID string
	Sale       int64
	Slots      []int
	Until      time.Time // the claims can be used before
}

// Issue writes the claims of orders, in the transaction that inserts them. There must be some.
func Issue(ctx context.Context, tx *sql.Tx, at time.Time, orders []Issued) error {
	var args []any
	for _, o := range orders {
		for _, slot := range o.Slots {
			args = append(args, wire.NewClaimID(o.Order, slot), o.Order, o.Sale, o.UID, string(wire.ClaimNew), at, o.Until)
		}
	}
	const width = 7
	tuples := store.Tuples(len(args)/width, width)
	if _, err := tx.ExecContext(ctx, `INSERT INTO coupon_claims (id, order_id, sale_id, uid, state, claimed_at, valid_until) VALUES `+tuples, args...); err != nil {
		return fmt.Errorf("write the claims of %d orders: %w", len(orders), err)
	}
	return nil
}

// Use marks a claim as used, exactly once. ErrNotFound. An *EndedError if it was used before or has expired.
// store.ErrUnknown: it may be used now or not, which List shows.
func (c *Claims) Use(ctx context.Context, uid, id string) (wire.Claim, error) {
	if !wire.ValidClaimID(id) || uid == "" {
		return wire.Claim{}, ErrNotFound
	}
	now := c.now()
	var claim wire.Claim
	var won bool
	err := store.InTx(ctx, c.db, func(tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, `UPDATE coupon_claims SET state = ?, ended_at = ? WHERE id = ? AND uid = ? AND state = ? AND valid_until > ?`,
			string(wire.ClaimUsed), now, id, uid, string(wire.ClaimNew), now)
		if err != nil {
			return err
		}
		n, err := r.RowsAffected()
		if err != nil {
			return err
		}
		won = n == 1
		found, err := read(ctx, tx, now, `c.id = ? AND c.uid = ?`, id, uid)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return ErrNotFound
		}
		claim = found[0]
		return nil
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return wire.Claim{}, ErrNotFound
	case err != nil:
		return wire.Claim{}, fmt.Errorf("use claim %s: %w", id, err)
	case !won:
		return wire.Claim{}, &EndedError{claim}
	}
	c.used.Inc()
	return claim, nil
}

// List is a page of a user's own claims, newest first. cursor is "" or the Next of the page before. ErrCursor.
func (c *Claims) List(ctx context.Context, uid, cursor string, limit int) (wire.ClaimList, error) {
	where, args := `c.uid = ?`, []any{uid}
	if cursor != "" {
		if !wire.ValidClaimID(cursor) {
			return wire.ClaimList{}, ErrCursor
		}
		where, args = where+` AND c.id < ?`, append(args, cursor)
	}
	list, err := read(ctx, c.db, c.now(), where+fmt.Sprintf(` ORDER BY c.id DESC LIMIT %d`, limit+1), args...)
	if err != nil {
		return wire.ClaimList{}, fmt.Errorf("list claims of uid %s: %w", uid, err)
	}
	if len(list) <= limit {
		return wire.ClaimList{Coupons: list}, nil
	}
	return wire.ClaimList{Coupons: list[:limit], Next: list[limit-1].ClaimID}, nil
}

// read reads claims as they stand at now: one that is due is expired, whether or not the timer has come to it.
func read(ctx context.Context, q store.Queryer, now time.Time, where string, args ...any) ([]wire.Claim, error) {
	list := []wire.Claim{}
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var x wire.Claim
		var claimed, until time.Time
		var ended sql.NullTime
		if err := rows.Scan(&x.ClaimID, &x.OrderID, &x.SaleID, &x.Title, &x.Category, &x.State, &claimed, &until, &ended); err != nil {
			return err
		}
		x.ClaimedAt, x.ValidUntil = wire.At(claimed), wire.At(until)
		if x.State == wire.ClaimNew && !now.Before(until) {
			x.State = wire.ClaimExpired
		}
		if x.State == wire.ClaimUsed && ended.Valid {
			at := wire.At(ended.Time)
			x.UsedAt = &at
		}
		list = append(list, x)
		return nil
	}, `SELECT c.id, c.order_id, c.sale_id, s.title, s.category, c.state, c.claimed_at, c.valid_until, c.ended_at
		FROM coupon_claims c JOIN sales s ON s.id = c.sale_id WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	return list, nil
}

// expireOnce bounds one pass of Expire.
const expireOnce = 500

// Expire is one pass over the claims that were not used in time, the longest overdue first, at most expireOnce of them.
// It finds them by an index and ends them in one transaction. It returns how many it ended: call again at once until that
// is 0. Any number of passes may run at once, in any number of processes.
func (c *Claims) Expire(ctx context.Context) (int, error) {
	now := c.now()
	var n int64
	err := store.InTx(ctx, c.db, func(tx *sql.Tx) error {
		n = 0
		due, err := c.due(ctx, tx, now)
		if err != nil || len(due) == 0 {
			return err
		}
		args := append([]any{string(wire.ClaimExpired), now, string(wire.ClaimNew), now}, due...)
		n, err = store.Changed(tx.ExecContext(ctx, `UPDATE coupon_claims SET state = ?, ended_at = ? WHERE state = ? AND valid_until <= ?
			AND id IN (`+store.Marks(len(due))+`)`, args...))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("expire claims: %w", err)
	}
	c.gone.Add(float64(n))
	return int(n), nil
}

// due are the ids of claims to expire.
func (c *Claims) due(ctx context.Context, tx *sql.Tx, now time.Time) ([]any, error) {
	ids, err := store.Column[string](ctx, tx, fmt.Sprintf(`SELECT id FROM coupon_claims WHERE state = ? AND valid_until <= ? ORDER BY valid_until LIMIT %d`, expireOnce),
		string(wire.ClaimNew), now)
	return store.Anys(ids), err
}
