package deadletter

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

// ErrNotFound: there is no such dead letter.
var ErrNotFound = errors.New("no such dead letter")

// Message is a dead letter as operators see it.
type Message struct {
	ID         int64  `json:"id"`
	Queue      string `json:"queue"`
	Reason     string `json:"reason"`
	Payload    string `json:"payload"`  // at most its first 64 KiB
	Encoding   string `json:"encoding"` // utf-8, or base64
	Size       int64  `json:"size"`     // of the payload as it came, in bytes
	Readable   bool   `json:"readable"` // the payload is an order
	OrderID    string `json:"order_id"`
	SaleID     int64  `json:"sale_id"`
	Deliveries int64  `json:"deliveries"` // before it died, of the last time
	Times      int64  `json:"times"`      // that it died
	// Status is the order's in MySQL now; "" while it has no row there.
	Status     wire.OrderStatus `json:"status"`
	FirstAt    wire.Time        `json:"first_at"`
	LastAt     wire.Time        `json:"last_at"`
	ReplayedAt *wire.Time       `json:"replayed_at"`
}

const columns = `d.id, d.queue, d.reason, d.payload, d.size, d.readable, d.order_id, d.sale_id, d.deliveries, d.times, d.first_at, d.last_at, d.replayed_at,
	COALESCE(o.status, '') FROM dead_letters d LEFT JOIN orders o ON o.id = d.order_id`

func (m *Message) scan(from interface{ Scan(...any) error }) error {
	var payload []byte
	var first, last time.Time
	var replayed sql.NullTime
	if err := from.Scan(&m.ID, &m.Queue, &m.Reason, &payload, &m.Size, &m.Readable, &m.OrderID, &m.SaleID, &m.Deliveries, &m.Times,
		&first, &last, &replayed, &m.Status); err != nil {
		return err
	}
	m.Payload, m.Encoding = string(payload), "utf-8"
	if !utf8.Valid(payload) {
		m.Payload, m.Encoding = base64.StdEncoding.EncodeToString(payload), "base64"
	}
	m.FirstAt, m.LastAt = wire.At(first), wire.At(last)
	if replayed.Valid {
		at := wire.At(replayed.Time)
		m.ReplayedAt = &at
	}
	return nil
}

// List returns the newest dead letters with an id below, at most limit. With open, only those that were not replayed yet.
func (s *Store) List(ctx context.Context, below, limit int64, open bool) ([]Message, error) {
	where := ` WHERE d.id < ?`
	if open {
		where += ` AND d.replayed_at IS NULL`
	}
	list := []Message{}
	err := store.Each(ctx, s.db, func(rows *sql.Rows) error {
		var m Message
		err := m.scan(rows)
		list = append(list, m)
		return err
	}, `SELECT `+columns+where+` ORDER BY d.id DESC LIMIT ?`, below, limit)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	return list, nil
}

// Get returns one dead letter, or ErrNotFound.
func (s *Store) Get(ctx context.Context, id int64) (Message, error) {
	var m Message
	err := m.scan(s.db.QueryRowContext(ctx, `SELECT `+columns+` WHERE d.id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return m, ErrNotFound
	}
	if err != nil {
		return m, fmt.Errorf("dead letter %d: %w", id, err)
	}
	return m, nil
}

// Open counts the dead letters that were not replayed yet.
func (s *Store) Open(ctx context.Context) (n int64, err error) {
	if err := s.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM dead_letters WHERE replayed_at IS NULL`).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the dead letters: %w", err)
	}
	return n, nil
}

// Oldest returns the ids of the oldest dead letters that were not replayed yet, at most limit, and how many there are; of one sale, or of
// all (0).
func (s *Store) Oldest(ctx context.Context, sale, limit int64) (ids []int64, open int64, err error) {
	where, args := ` FROM dead_letters WHERE replayed_at IS NULL`, []any{}
	if sale > 0 {
		where, args = where+` AND sale_id = ?`, append(args, sale)
	}
	if ids, err = store.Column[int64](ctx, s.db, `SELECT id`+where+` ORDER BY id LIMIT ?`, append(args, limit)...); err == nil {
		err = s.db.QueryRowContext(ctx, `SELECT COUNT(*)`+where, args...).Scan(&open)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open dead letters: %w", err)
	}
	return ids, open, nil
}

// What a replay did.
const (
	Settled    = "settled"    // the order has a row now
	Queued     = "queued"     // it is in the outbox anew, and has a row soon
	Unchanged  = "unchanged"  // it had a row: nothing was done
	Unreadable = "unreadable" // the payload is no order: nothing can be done
	Refused    = "refused"    // MySQL still takes no row for it
)

// Replayed is what a replay did.
type Replayed struct {
	Message
	Result string `json:"result"`
	Detail string `json:"detail"` // for the operator
}

// Replay settles the order of a dead letter again. An order that has a row is left as it is, so a replay may be repeated.
// It does not mark the dead letter: see Mark. After an error other than ErrNotFound nothing is lost: call again.
func (s *Store) Replay(ctx context.Context, id int64) (Replayed, error) {
	m, err := s.Get(ctx, id)
	if err != nil {
		return Replayed{}, err
	}
	var e queued.Entry
	switch {
	case m.Status != "":
		return Replayed{m, Unchanged, fmt.Sprintf("order %s is %s: what MySQL has decided stands", m.OrderID, m.Status)}, nil
	case !m.Readable || m.OrderID == "":
		return Replayed{m, Unreadable, "the payload is no order, so there is nothing to process"}, nil
	case json.Unmarshal([]byte(m.Payload), &e) != nil || e.ID != m.OrderID:
		return Replayed{m, Unreadable, "the payload is not whole"}, nil
	}
	var poison *queued.PoisonError
	err = s.orders.Settle(ctx, []queued.Entry{e})
	if errors.As(err, &poison) {
		return Replayed{m, Refused, "MySQL takes no row for it: " + poison.Err.Error()}, nil
	}
	if err == nil {
		failpoint.Hit("replay.before-retire")
		err = s.retire(ctx, e)
	}
	if err != nil {
		return Replayed{}, fmt.Errorf("replay dead letter %d: %w", id, err)
	}
	failpoint.Hit("replay.before-mark")
	if m, err = s.Get(ctx, id); err != nil {
		return Replayed{}, err
	}
	if m.Status == "" { // adopted into a newer epoch, under a new entry
		return Replayed{m, Queued, fmt.Sprintf("order %s was taken over into the sale's present epoch and comes through the outbox", m.OrderID)}, nil
	}
	return Replayed{m, Settled, fmt.Sprintf("order %s is %s now", m.OrderID, m.Status)}, nil
}

// Mark notes in an operator's transaction that a dead letter was replayed, unless it was before, and returns when.
func (s *Store) Mark(ctx context.Context, tx *sql.Tx, id int64) (first bool, at wire.Time, err error) {
	now := s.now()
	n, err := store.Changed(tx.ExecContext(ctx, `UPDATE dead_letters SET replayed_at = ? WHERE id = ? AND replayed_at IS NULL`, now, id))
	if err != nil {
		return false, at, fmt.Errorf("mark dead letter %d: %w", id, err)
	}
	if n == 1 {
		return true, wire.At(now), nil
	}
	var before sql.NullTime
	if err := tx.QueryRowContext(ctx, `SELECT replayed_at FROM dead_letters WHERE id = ?`, id).Scan(&before); err != nil {
		return false, at, fmt.Errorf("dead letter %d: %w", id, err)
	}
	return false, wire.At(before.Time), nil
}

func (s *Store) now() time.Time { return s.clk.Now().Truncate(time.Millisecond) }
