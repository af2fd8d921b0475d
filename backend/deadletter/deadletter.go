// Package deadletter keeps messages that no consumer can process, for operators: in the MySQL table dead_letters, with
// payload and reason. A readable order also gets its terminal row, and its units are given back once. It is the same with
// both queue drivers. See docs/rabbitmq.md.
//
// A dead letter is keyed by its queue and payload, and an order by its id. So a message that dies again, or is taken
// twice, changes nothing.
package deadletter

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// Undeliverable is the reason of an order that was rejected because no consumer could process it.
const Undeliverable = "undeliverable"

// Bounds of what is kept.
const (
	maxPayload = 64 << 10 // bytes of one payload
	maxReason  = 1000     // characters
	maxQueue   = 64       // characters
	keep       = 100_000  // dead letters, about: the oldest are deleted first
)

// Orders is what order.Store does for a dead letter.
type Orders interface {
	Reject(ctx context.Context, e queued.Entry, reason string) error
	Settle(ctx context.Context, batch []queued.Entry) error
	Retire(ctx context.Context, batch []queued.Entry) error
}

// Store keeps the dead letters. It is safe for concurrent use, by any number of processes.
type Store struct {
	db     *sql.DB
	orders Orders
	clk    *clock.Clock
	log    *slog.Logger
	taken  *prometheus.CounterVec
}

// Config is what a Store needs.
type Config struct {
	DB       *sql.DB
	Orders   Orders
	Clock    *clock.Clock
	Log      *slog.Logger
	Register prometheus.Registerer
}

// NewStore makes a Store and registers its metrics.
func NewStore(c Config) *Store {
	s := &Store{db: c.DB, orders: c.Orders, clk: c.Clock, log: c.Log, taken: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "backend_dead_letters_total", Help: "Messages that became dead letters, by what was done: ended (its order has a row now), " +
			"kept (MySQL takes no row for its order, which stays in the outbox), unreadable."}, []string{"result"})}
	for _, result := range []string{"ended", "kept", "unreadable"} { // so that the first is an increase, too
		s.taken.WithLabelValues(result)
	}
	c.Register.MustRegister(s.taken)
	return s
}

// Take keeps a message. If it is an order that MySQL has not decided, Take rejects the order and retires its outbox
// entry. An order for which MySQL takes no row at all stays in its outbox, with its units, until MySQL takes it. After
// nil the message may be removed from its queue. After an error call again.
func (s *Store) Take(ctx context.Context, m queued.DeadMessage) error {
	id, err := s.record(ctx, m)
	if err != nil {
		return err
	}
	result := "unreadable"
	if m.Entry != nil {
		var poison *queued.PoisonError
		switch err := s.orders.Reject(ctx, *m.Entry, Undeliverable); {
		case errors.As(err, &poison):
			result = "kept"
		case err != nil:
			return fmt.Errorf("dead letter %d: %w", id, err)
		default:
			result = "ended"
			if err := s.retire(ctx, *m.Entry); err != nil {
				return fmt.Errorf("dead letter %d: %w", id, err)
			}
		}
	}
	s.taken.WithLabelValues(result).Inc()
	s.log.Error("a message is a dead letter", "letter", id, "queue", m.Queue, "reason", m.Reason, "result", result)
	return nil
}

// retire removes the outbox entry of an order that has a row. A message from outside may name no entry.
func (s *Store) retire(ctx context.Context, e queued.Entry) error {
	ms, n, ok := strings.Cut(e.Entry, "-")
	_, err1 := strconv.ParseUint(ms, 10, 64)
	_, err2 := strconv.ParseUint(n, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return nil
	}
	return s.orders.Retire(ctx, []queued.Entry{e})
}

// Poison takes the entries of a queued.PoisonError that a consumer of the outbox met.
func (s *Store) Poison(ctx context.Context, queue string, poison *queued.PoisonError) error {
	for _, e := range poison.Entries {
		if err := s.Take(ctx, queued.DeadMessage{Queue: queue, Reason: poison.Err.Error(), Payload: queued.Encode(e), Deliveries: 1, Entry: &e}); err != nil {
			return err
		}
	}
	return nil
}

// Deferred takes a deferred order that no process can settle (order.DeadLetter).
func (s *Store) Deferred(ctx context.Context, e queued.Entry, tries int64, why error) error {
	return s.Take(ctx, queued.DeadMessage{Queue: "deferred_orders", Reason: why.Error(), Payload: queued.Encode(e), Deliveries: tries, Entry: &e})
}

// record writes the dead letter, or that it died once more.
func (s *Store) record(ctx context.Context, m queued.DeadMessage) (id int64, err error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n", m.Queue)
	sum.Write(m.Payload)
	digest := hex.EncodeToString(sum.Sum(nil))
	var orderID string
	var sale int64
	if m.Entry != nil {
		if _, ok := wire.SaleOfOrder(m.Entry.ID); ok {
			orderID, sale = m.Entry.ID, m.Entry.Sale
		}
	}
	now, reason := s.now(), clip(m.Reason, maxReason)
	err = store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		n, err := store.Changed(tx.ExecContext(ctx, `UPDATE dead_letters SET times = times + 1, last_at = ?, reason = ?, deliveries = ? WHERE digest = ?`,
			now, reason, m.Deliveries, digest))
		if err != nil {
			return err
		}
		if n == 0 {
			if _, err := tx.ExecContext(ctx, `INSERT INTO dead_letters (digest, queue, reason, payload, size, readable, order_id, sale_id, deliveries, first_at, last_at)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, digest, clip(m.Queue, maxQueue), reason, m.Payload[:min(len(m.Payload), maxPayload)], len(m.Payload),
				m.Entry != nil, orderID, sale, m.Deliveries, now, now); err != nil {
				return err
			}
		}
		if err := tx.QueryRowContext(ctx, `SELECT id FROM dead_letters WHERE digest = ?`, digest).Scan(&id); err != nil {
			return err
		}
		if n == 0 && id > keep {
			_, err = tx.ExecContext(ctx, `DELETE FROM dead_letters WHERE id <= ?`, id-keep)
		}
		return err
	})
	if store.Duplicate(err) { // another process has just written the same dead letter
		err = s.db.QueryRowContext(ctx, `SELECT id FROM dead_letters WHERE digest = ?`, digest).Scan(&id)
	}
	if err != nil {
		return 0, fmt.Errorf("write a dead letter of %s: %w", m.Queue, err)
	}
	return id, nil
}

// clip makes text fit: valid UTF-8, at most n characters.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for utf8.RuneCountInString(s) > n {
		_, last := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-last]
	}
	return s
}
