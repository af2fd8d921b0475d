// Package standby is the line of users who wait for a unit of a sold-out sale: first come, first served, of bounded
// length. See docs/standby.md.
//
// The line is kept in MySQL. A unit that comes back by a cancellation, an expiry, a restock or a tranche is offered to
// its head. An offer is an order, made by the script, the outbox and the consumer that make every order, with a shorter
// time to pay. Paying accepts it. An offer that lapses is an order that expires, and its unit goes to the next user.
//
// While users wait, the sale's state in Redis says so, and sale_reserve.lua keeps what is available for the line. Any
// number of processes may offer at once. The order id is made at the join, and Redis takes it once, so one head gets one
// unit. A place changes from waiting to offered in the transaction that inserts the order, so MySQL has an offer if and
// only if it has its order.
package standby

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

var (
	// ErrNotInLine: the user has never been in the sale's line.
	ErrNotInLine = errors.New("not in the line")
	// ErrFull: the line has its maximal length.
	ErrFull = errors.New("the line is full")
)

// The states of a row; what became of an offer is the state of its order.
const (
	waiting = "waiting"
	offered = "offered"
	passed  = "passed"
	left    = "left"
	ended   = "ended"
)

// Line is the lines of all sales. It is safe for concurrent use, by any number of processes.
type Line struct {
	db      *sql.DB
	redis   *reserve.Store
	catalog *catalog.Catalog
	clk     *clock.Clock
	log     *slog.Logger
	most    int

	mu    sync.Mutex // guards woken
	woken map[int64]struct{}
	wake  chan struct{} // of one: woken is not empty; never closed

	joined prometheus.Counter
	offers *prometheus.CounterVec
}

// Config is what a Line needs.
type Config struct {
	DB       *sql.DB
	Redis    *reserve.Store
	Catalog  *catalog.Catalog
	Clock    *clock.Clock // follows Redis's clock before anybody joins
	Log      *slog.Logger
	Register prometheus.Registerer

	MaxLine int // users who wait for each sale, at most
}

// New makes a Line and registers its metrics.
func New(c Config) *Line {
	l := &Line{db: c.DB, redis: c.Redis, catalog: c.Catalog, clk: c.Clock, log: c.Log, most: c.MaxLine, woken: map[int64]struct{}{}, wake: make(chan struct{}, 1),
		joined: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_standby_joined_total", Help: "Users who joined a standby line."}),
		offers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_standby_heads_total",
			Help: "What became of heads of standby lines here: offered a unit, or passed over."}, []string{"result"})}
	c.Register.MustRegister(l.joined, l.offers)
	return l
}

// now is the time as MySQL keeps it, in milliseconds.
func (l *Line) now() time.Time { return l.clk.Now().Truncate(time.Millisecond) }

// row is a user's place, with the order of its offer if MySQL has it.
type row struct {
	place         int64
	order         string
	state, reason string
	status        sql.NullString
	payBefore     sql.NullTime
}

// stands is what the row says at now, of a sale that is over or not.
func (r *row) stands(now time.Time, over bool) wire.StandbyState {
	switch status := wire.OrderStatus(r.status.String); {
	case r.state == waiting && over || r.state == ended:
		return wire.StandbyEnded
	case r.state == waiting:
		return wire.StandbyWaiting
	case r.state == left || r.state == offered && status == wire.Cancelled:
		return wire.StandbyLeft
	case r.state == passed:
		return wire.StandbyPassed
	case status == wire.Paid:
		return wire.StandbyAccepted
	case status == wire.PendingPayment && now.Before(r.payBefore.Time):
		return wire.StandbyOffered
	default:
		return wire.StandbyLapsed
	}
}

func (l *Line) read(ctx context.Context, sale int64, uid string) (row, error) {
	var r row
	err := l.db.QueryRowContext(ctx, `SELECT w.place, w.order_id, w.state, w.reason, o.status, o.pay_before FROM standby w
		LEFT JOIN orders o ON o.id = w.order_id WHERE w.sale_id = ? AND w.uid = ?`, sale, uid).
		Scan(&r.place, &r.order, &r.state, &r.reason, &r.status, &r.payBefore)
	if errors.Is(err, sql.ErrNoRows) {
		return r, ErrNotInLine
	}
	if err != nil {
		return r, fmt.Errorf("the place of uid %s in the line of sale %d: %w", uid, sale, err)
	}
	return r, nil
}

// Look is where a user stands. over: the sale sells nothing any more. ErrNotInLine.
func (l *Line) Look(ctx context.Context, sale int64, uid string, over bool) (wire.Standby, error) {
	r, err := l.read(ctx, sale, uid)
	if err != nil {
		return wire.Standby{}, err
	}
	s := wire.Standby{SaleID: sale, State: r.stands(l.now(), over), Reason: r.reason}
	if r.state == offered && r.payBefore.Valid {
		s.Offer = &wire.StandbyOffer{OrderID: r.order, AcceptBefore: wire.At(r.payBefore.Time)}
	}
	if s.State == wire.StandbyWaiting {
		var place int
		if err := l.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM standby WHERE state = ? AND sale_id = ? AND place <= ?`, waiting, sale, r.place).Scan(&place); err != nil {
			return s, fmt.Errorf("the place of uid %s in the line of sale %d: %w", uid, sale, err)
		}
		place = max(place, 1) // it was offered a unit in between
		s.Place = &place
	}
	return s, nil
}

// Again makes sure that Redis notes the line, which Join does last and may have failed to do.
func (l *Line) Again(ctx context.Context, sale int64, uid string) error {
	r, err := l.read(ctx, sale, uid)
	if err != nil || r.state != waiting {
		return err
	}
	return l.announce(ctx, sale, r.place)
}

// Join puts a user at the end of the line, under a new order id. A user who waits already, or has an open offer, keeps
// the place. The caller checks whether the user may join. ErrFull. After store.ErrUnknown and other errors the user may
// be in line or not: join again to see.
func (l *Line) Join(ctx context.Context, sale int64, uid, orderID string) error {
	var n, mine int
	if err := l.db.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(CASE WHEN uid = ? THEN 1 ELSE 0 END), 0) FROM standby WHERE state = ? AND sale_id = ?`,
		uid, waiting, sale).Scan(&n, &mine); err != nil {
		return fmt.Errorf("the length of the line of sale %d: %w", sale, err)
	}
	if n >= l.most && mine == 0 { // answers most of a crowd without a lock
		return ErrFull
	}
	var place int64
	err := store.InTx(ctx, l.db, func(tx *sql.Tx) (err error) {
		place, err = l.join(ctx, tx, sale, uid, orderID)
		return err
	})
	if err != nil {
		return fmt.Errorf("join the line of sale %d: %w", sale, err)
	}
	failpoint.Hit("standby.after-join")
	l.joined.Inc()
	return l.announce(ctx, sale, place)
}

// join returns the user's place. The lock of the line's row makes joins of one sale come one after the other.
func (l *Line) join(ctx context.Context, tx *sql.Tx, sale int64, uid, orderID string) (place int64, err error) {
	if _, err := tx.ExecContext(ctx, `INSERT INTO standby_lines (sale_id, newest) VALUES (?, 1) ON DUPLICATE KEY UPDATE newest = newest + 1`, sale); err != nil {
		return 0, fmt.Errorf("its row: %w", err)
	}
	if err := tx.QueryRowContext(ctx, `SELECT newest FROM standby_lines WHERE sale_id = ?`, sale).Scan(&place); err != nil {
		return 0, fmt.Errorf("its row: %w", err)
	}
	var before int64
	var order, state string
	err = tx.QueryRowContext(ctx, `SELECT place, order_id, state FROM standby WHERE sale_id = ? AND uid = ? FOR UPDATE`, sale, uid).Scan(&before, &order, &state)
	known := err == nil
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("the user's row: %w", err)
	}
	if state == waiting {
		return before, nil
	}
	if state == offered {
		var open int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM orders WHERE id = ? AND status = ?`, order, string(wire.PendingPayment)).Scan(&open); err != nil {
			return 0, fmt.Errorf("the user's offer: %w", err)
		}
		if open > 0 {
			return before, nil
		}
	}
	var n int
	if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM standby WHERE state = ? AND sale_id = ?`, waiting, sale).Scan(&n); err != nil {
		return 0, fmt.Errorf("its length: %w", err)
	}
	if n >= l.most {
		return 0, ErrFull
	}
	now := l.now()
	if known {
		_, err = tx.ExecContext(ctx, `UPDATE standby SET place = ?, order_id = ?, state = ?, reason = '', joined_at = ?, changed_at = ? WHERE sale_id = ? AND uid = ?`,
			place, orderID, waiting, now, now, sale, uid)
	} else {
		_, err = tx.ExecContext(ctx, `INSERT INTO standby (sale_id, uid, place, order_id, state, joined_at, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			sale, uid, place, orderID, waiting, now, now)
	}
	if err != nil {
		return 0, fmt.Errorf("the user's row: %w", err)
	}
	return place, nil
}

// announce notes in Redis that users wait. What became available meanwhile is offered.
func (l *Line) announce(ctx context.Context, sale, place int64) error {
	err := l.redis.Wait(ctx, sale, place)
	if errors.Is(err, reserve.ErrNotLoaded) { // it is read from MySQL when the sale is loaded
		return nil
	}
	l.Wake(sale)
	return err
}

// Leave removes a waiting user from the line. A user with an offer, open or accepted, leaves by cancelling the order that
// it returns, if that is possible. ErrNotInLine.
func (l *Line) Leave(ctx context.Context, sale int64, uid string) (cancel string, err error) {
	n, err := store.Changed(l.db.ExecContext(ctx, `UPDATE standby SET state = ?, changed_at = ? WHERE sale_id = ? AND uid = ? AND state = ?`, left, l.now(), sale, uid, waiting))
	if err != nil {
		return "", fmt.Errorf("leave the line of sale %d: %w", sale, err)
	}
	if n > 0 {
		l.Wake(sale) // perhaps nobody waits now
		return "", nil
	}
	found, err := l.read(ctx, sale, uid)
	if err == nil && found.state == offered && wire.OrderStatus(found.status.String).Live() {
		cancel = found.order
	}
	return cancel, err
}

// Newest is the newest place of those who wait in a sale's line, 0 if nobody waits. It is for loading the sale into
// Redis.
func Newest(ctx context.Context, tx *sql.Tx, sale int64) (place int64, err error) {
	if err := tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(place), 0) FROM standby WHERE state = ? AND sale_id = ?`, waiting, sale).Scan(&place); err != nil {
		return 0, fmt.Errorf("the line of sale %d: %w", sale, err)
	}
	return place, nil
}

// Length is how many wait in a sale's line, and how many offers are open.
type Length struct {
	Waiting int64 `json:"waiting"`
	Offers  int64 `json:"offers"`
}

// Lengths are those of the sales that have a line.
func Lengths(ctx context.Context, q store.Queryer, sales []int64) (map[int64]Length, error) {
	args := []any{string(wire.PendingPayment), waiting, offered}
	for _, id := range sales {
		args = append(args, id)
	}
	lengths := map[int64]Length{}
	err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var sale, n int64
		var state string
		if err := rows.Scan(&sale, &state, &n); err != nil {
			return err
		}
		l := lengths[sale]
		if state == waiting {
			l.Waiting = n
		} else {
			l.Offers = n
		}
		lengths[sale] = l
		return nil
	}, `SELECT w.sale_id, w.state, COUNT(*) FROM standby w LEFT JOIN orders o ON o.id = w.order_id AND o.status = ?
		WHERE (w.state = ? OR w.state = ? AND o.id IS NOT NULL) AND w.sale_id IN (`+store.Marks(len(sales))+`) GROUP BY w.sale_id, w.state`, args...)
	if err != nil {
		return nil, fmt.Errorf("standby lines: %w", err)
	}
	return lengths, nil
}

// Offered notes an offer in the transaction that inserts its order, before that locks anything else. False: its user has
// left the line since the unit was reserved, so the order must end at once.
func Offered(ctx context.Context, tx *sql.Tx, at time.Time, sale int64, uid, orderID string) (bool, error) {
	n, err := store.Changed(tx.ExecContext(ctx, `UPDATE standby SET state = ?, changed_at = ? WHERE sale_id = ? AND uid = ? AND order_id = ? AND state IN (?, ?)`,
		offered, at, sale, uid, orderID, waiting, ended))
	if err != nil {
		return false, fmt.Errorf("note the offer %s: %w", orderID, err)
	}
	return n == 1, nil
}

// Passed notes, in the transaction that rejects the order of an offer, that its user is passed over.
func Passed(ctx context.Context, q store.Querier, at time.Time, sale int64, uid, orderID, reason string) error {
	if _, err := q.ExecContext(ctx, `UPDATE standby SET state = ?, reason = ?, changed_at = ? WHERE sale_id = ? AND uid = ? AND order_id = ? AND state = ?`,
		passed, reason, at, sale, uid, orderID, waiting); err != nil {
		return fmt.Errorf("pass over the offer %s: %w", orderID, err)
	}
	return nil
}
