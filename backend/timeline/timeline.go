// Package timeline answers "why didn't I get one?". It keeps the presses that gateways report, records how each sale's
// state changes, and returns both with what became of the user's orders. See docs/timeline.md.
//
// None of it is on an order's path. A gateway counts its answers and reports them in batches, each of which is taken
// once: the transaction that adds up the records also changes the number of the gateway's last batch. Rows for each sale
// and ages are bounded. The timeline says where records are missing.
//
// A transaction takes its locks in this order: timeline_gateways or timeline_watch, timeline_sales by id, timeline or
// sale_states. It touches no other table.
package timeline

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"floodgate.internal/backend/order"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/verdict"
)

// Config is what a Store needs.
type Config struct {
	DB       *sql.DB
	Orders   *order.Store
	Clock    *clock.Clock
	Log      *slog.Logger
	Register prometheus.Registerer

	// Keep is how long records are kept after the last press of their kind, and a sale's history after its end.
	Keep time.Duration
	// MaxRows bounds the records of a sale. A new one beyond it is dropped; those that are there go on counting.
	MaxRows int64
}

// Store is the timelines. It is safe for concurrent use, by any number of processes.
type Store struct {
	db         *sql.DB
	orderStore *order.Store
	clk        *clock.Clock
	log        *slog.Logger
	keep       time.Duration
	maxRows    int64

	takes   *semaphore.Weighted // one batch at a time: of a few gateways each has one under way
	reads   *semaphore.Weighted
	waiting atomic.Int64 // reads, under way or not

	taken, dropped, pruned, states prometheus.Counter
}

// New makes a Store and registers its metrics.
func New(c Config) *Store {
	counter := func(name, help string) prometheus.Counter {
		n := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		c.Register.MustRegister(n)
		return n
	}
	return &Store{db: c.DB, orderStore: c.Orders, clk: c.Clock, log: c.Log, keep: c.Keep, maxRows: c.MaxRows, takes: semaphore.NewWeighted(1), reads: semaphore.NewWeighted(maxReads),
		taken:   counter("backend_timeline_recorded_total", "Presses that were kept for timelines."),
		dropped: counter("backend_timeline_dropped_total", "Presses that were not kept for timelines, for want of room, here or at a gateway."),
		pruned:  counter("backend_timeline_pruned_total", "Records of timelines that were deleted for their age."),
		states:  counter("backend_timeline_states_total", "Changes of sales' states that were written down."),
	}
}

// now is the time as MySQL keeps it.
func (s *Store) now() time.Time { return s.clk.Now().Truncate(time.Millisecond) }

// takeWait is how long a batch waits for those before it.
const takeWait = time.Second

// Take adds a gateway's batch to the records, once, however often it comes. The batch must pass Check. After an error it
// may have been taken: the gateway sends it again. ErrBusy: it waited longer than takeWait.
func (s *Store) Take(ctx context.Context, b *verdict.Batch) error {
	turn, cancel := context.WithTimeout(ctx, takeWait)
	err := s.takes.Acquire(turn, 1)
	cancel()
	if err != nil {
		return ErrBusy
	}
	defer s.takes.Release(1)
	var taken, dropped int64
	err = store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		taken, dropped = 0, 0
		now := s.now()
		if _, err := tx.ExecContext(ctx, `INSERT INTO timeline_gateways (id, seq, at, ended) VALUES (?, 0, ?, FALSE) ON DUPLICATE KEY UPDATE id = VALUES(id)`,
			b.Gateway, now); err != nil {
			return fmt.Errorf("note gateway %s: %w", b.Gateway, err)
		}
		var seq int64
		if err := tx.QueryRowContext(ctx, `SELECT seq FROM timeline_gateways WHERE id = ? FOR UPDATE`, b.Gateway).Scan(&seq); err != nil {
			return fmt.Errorf("lock gateway %s: %w", b.Gateway, err)
		}
		if seq >= b.Seq {
			return nil // it came before
		}
		if _, err := tx.ExecContext(ctx, `UPDATE timeline_gateways SET seq = ?, at = ?, ended = ? WHERE id = ?`, b.Seq, now, b.Last, b.Gateway); err != nil {
			return fmt.Errorf("note batch %d of gateway %s: %w", b.Seq, b.Gateway, err)
		}
		sales := map[int64]*part{}
		of := func(sale int64) *part {
			p := sales[sale]
			if p == nil {
				p = &part{sale: sale}
				sales[sale] = p
			}
			return p
		}
		for _, r := range b.Records {
			p := of(r.Sale)
			p.records = append(p.records, r)
		}
		for _, d := range b.Dropped {
			of(d.Sale).dropped += d.Count
		}
		if len(sales) == 0 {
			return nil
		}
		if err := lockSales(ctx, tx, sales); err != nil {
			return err
		}
		for _, sale := range sorted(sales) {
			p := sales[sale]
			n, err := p.write(ctx, tx, now, s.maxRows)
			if err != nil {
				return fmt.Errorf("records of sale %d: %w", sale, err)
			}
			taken, dropped = taken+n, dropped+p.dropped
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("batch %d of gateway %s: %w", b.Seq, b.Gateway, err)
	}
	s.taken.Add(float64(taken))
	s.dropped.Add(float64(dropped))
	return nil
}

// part is what a batch has of one sale.
type part struct {
	sale    int64
	records []verdict.Record
	dropped int64
	held    int64        // rows that the sale has
	oldest  sql.NullTime // timeline_sales.oldest_at
}

func sorted[V any](m map[int64]V) []int64 {
	ids := make([]int64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// lockSales locks the sales' rows of timeline_sales, by ascending id. It inserts those that are missing.
func lockSales(ctx context.Context, tx *sql.Tx, sales map[int64]*part) error {
	ids := sorted(sales)
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO timeline_sales (sale_id) VALUES `+store.Tuples(len(ids), 1)+` ON DUPLICATE KEY UPDATE sale_id = VALUES(sale_id)`, args...); err != nil {
		return fmt.Errorf("note %d sales: %w", len(ids), err)
	}
	err := store.Each(ctx, tx, func(rows *sql.Rows) error {
		var id, held int64
		var oldest sql.NullTime
		if err := rows.Scan(&id, &held, &oldest); err != nil {
			return err
		}
		sales[id].held, sales[id].oldest = held, oldest
		return nil
	}, `SELECT sale_id, held, oldest_at FROM timeline_sales WHERE sale_id IN (`+store.Marks(len(ids))+`) ORDER BY sale_id FOR UPDATE`, args...)
	if err != nil {
		return fmt.Errorf("lock %d sales: %w", len(ids), err)
	}
	return nil
}

// write adds up the part as far as the sale has room, and returns how many presses it kept. The sale is locked.
func (p *part) write(ctx context.Context, tx *sql.Tx, now time.Time, most int64) (taken int64, err error) {
	known, err := p.known(ctx, tx)
	if err != nil {
		return 0, err
	}
	fresh := int64(0)
	var args []any
	for _, r := range p.records {
		if !known[name{r.UID, r.Rule}] {
			if p.held+fresh >= most {
				p.dropped += r.Count
				continue
			}
			fresh++
		}
		taken += r.Count
		args = append(args, p.sale, r.UID, string(r.Rule), r.First.Time, r.Last.Time, r.Count)
		if !p.oldest.Valid || r.Last.Before(p.oldest.Time) {
			p.oldest = sql.NullTime{Time: r.Last.Time, Valid: true}
		}
	}
	if len(args) > 0 {
		if _, err := tx.ExecContext(ctx, `INSERT INTO timeline (sale_id, uid, rule, first_at, last_at, times) VALUES `+store.Tuples(len(args)/6, 6)+
			` ON DUPLICATE KEY UPDATE first_at = LEAST(first_at, VALUES(first_at)), last_at = GREATEST(last_at, VALUES(last_at)), times = times + VALUES(times)`, args...); err != nil {
			return 0, err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE timeline_sales SET held = held + ?, oldest_at = ? WHERE sale_id = ?`,
			fresh, p.oldest, p.sale); err != nil {
			return 0, err
		}
	}
	if p.dropped > 0 {
		if _, err := tx.ExecContext(ctx, `UPDATE timeline_sales SET dropped = dropped + ?, dropped_from = COALESCE(dropped_from, ?), dropped_to = ? WHERE sale_id = ?`,
			p.dropped, now, now, p.sale); err != nil {
			return 0, err
		}
	}
	return taken, nil
}

// name is what a record has beside its sale.
type name struct {
	uid  string
	rule verdict.Rule
}

// known is which of the part's records have rows.
func (p *part) known(ctx context.Context, tx *sql.Tx) (map[name]bool, error) {
	if len(p.records) == 0 {
		return nil, nil
	}
	args := []any{p.sale}
	seen := map[string]bool{}
	for _, r := range p.records {
		if !seen[r.UID] {
			seen[r.UID] = true
			args = append(args, r.UID)
		}
	}
	known := map[name]bool{}
	return known, store.Each(ctx, tx, func(rows *sql.Rows) error {
		var n name
		err := rows.Scan(&n.uid, &n.rule)
		known[n] = true
		return err
	}, `SELECT uid, rule FROM timeline WHERE sale_id = ? AND uid IN (`+store.Marks(len(args)-1)+`)`, args...)
}
