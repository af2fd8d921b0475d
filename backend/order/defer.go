package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
)

const (
	deferredBatch = 500             // deferred orders that are tried at once
	deferredSales = 4               // sales whose deferred orders are tried at the same time
	deferredClaim = 5 * time.Second // how long a process that died keeps the others from the batch it had
	deferredLook  = 50 * time.Millisecond
)

// A deferred order is tried alone after suspiciousTries attempts in which the process ended, and is a dead letter after
// maxTries.
const (
	suspiciousTries = 3
	maxTries        = 50
)

// SettleOrDefer is Settle for a queue that several sales share. It writes entries of a closed sale into the table
// deferred_orders, behind those of their sale that are there already, so that they do not hold up other sales. A
// *queued.KeptError names them, and may be joined with a *queued.PoisonError. SettleDeferred settles them later. The
// outboxes bound the table: while a sale has deferred orders, no relay publishes its entries again.
func (s *Store) SettleOrDefer(ctx context.Context, batch []queued.Entry) error {
	err := s.settle(ctx, batch, &settling{store: s, behind: true})
	var closed *queued.ClosedError
	if !errors.As(err, &closed) {
		return err
	}
	left := s.Defer(ctx, closed.Entries)
	if kept := (*queued.KeptError)(nil); !errors.As(left, &kept) {
		return errors.Join(left, closed.Err)
	}
	s.log.Info("order: orders of older epochs are deferred until their sale takes them", "orders", len(closed.Entries), "sale", closed.Entries[0].Sale, "error", closed.Err)
	var poison *queued.PoisonError
	if errors.As(err, &poison) {
		left = errors.Join(poison, left)
	}
	return left
}

// Defer writes entries into the table deferred_orders, from which SettleDeferred takes them. It tries one alone that its process
// did not survive. The error is a *queued.KeptError that names them. After any other error call again.
func (s *Store) Defer(ctx context.Context, entries []queued.Entry) error {
	if err := s.deferAll(ctx, entries); err != nil {
		return err
	}
	s.metrics.settled.WithLabelValues("deferred").Add(float64(len(entries)))
	return &queued.KeptError{Entries: entries}
}

// ahead returns the entries of sales that have no deferred orders. The others are deferred behind those.
func (c *settling) ahead(ctx context.Context, entries []queued.Entry) ([]queued.Entry, error) {
	var sales []int64
	for _, e := range entries {
		if !slices.Contains(sales, e.Sale) {
			sales = append(sales, e.Sale)
		}
	}
	waiting, err := deferredOf(ctx, c.store.db, ` WHERE sale_id IN (`+store.Marks(len(sales))+`)`, store.Anys(sales)...)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e queued.Entry) bool {
		if !slices.Contains(waiting, e.Sale) {
			return false
		}
		c.closed, c.why = append(c.closed, e), fmt.Errorf("order %s: orders of its sale are deferred", e.ID)
		return true
	}), nil
}

// deferredOf reads which sales have deferred orders.
func deferredOf(ctx context.Context, q store.Queryer, where string, args ...any) (sales []int64, err error) {
	sales, err = store.Column[int64](ctx, q, `SELECT DISTINCT sale_id FROM deferred_orders`+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read which sales have deferred orders: %w", err)
	}
	return sales, nil
}

// HasDeferred reports whether orders of a sale are deferred.
func HasDeferred(ctx context.Context, db *sql.DB, sale int64) (bool, error) {
	sales, err := deferredOf(ctx, db, ` WHERE sale_id = ?`, sale)
	return len(sales) > 0, err
}

// UntilNoneDeferred waits until no order of a sale is deferred. After a fence of the sale's partition that is exact: what was
// ahead of the fence is settled, or was deferred before the fence was answered.
func UntilNoneDeferred(ctx context.Context, db *sql.DB, sale int64) error {
	for {
		waiting, err := HasDeferred(ctx, db, sale)
		if err != nil || !waiting {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sale %d has deferred orders: %w", sale, ctx.Err())
		case <-time.After(deferredLook):
		}
	}
}

// deferAll writes entries down. One that is written twice does no harm: it is adopted once.
func (s *Store) deferAll(ctx context.Context, entries []queued.Entry) error {
	return store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		now := s.now()
		args := make([]any, 0, 3*len(entries))
		for _, e := range entries {
			args = append(args, e.Sale, string(queued.Encode(e)), now)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO deferred_orders (sale_id, entry, deferred_at) VALUES `+store.Tuples(len(entries), 3), args...); err != nil {
			return fmt.Errorf("defer %d orders: %w", len(entries), err)
		}
		return nil
	})
}

// DeadLetter takes an order that no process can settle: each process that tried it ended, or MySQL takes no row for it.
type DeadLetter func(ctx context.Context, e queued.Entry, tries int64, why error) error

// SettleDeferred tries one batch of each sale that has deferred orders, in the order of their sale, and returns how many
// it has settled. One process at a time tries a batch. A sale that is still closed costs one look at its gate.
func (s *Store) SettleDeferred(ctx context.Context, deadLetter DeadLetter) (n int, err error) {
	sales, err := deferredOf(ctx, s.db, "")
	if err != nil || len(sales) == 0 {
		s.metrics.deferredSales.Set(0)
		return 0, err
	}
	s.metrics.deferredSales.Set(float64(len(sales)))
	counts, errs := make([]int, len(sales)), make([]error, len(sales))
	var g errgroup.Group
	g.SetLimit(deferredSales)
	for i, sale := range sales {
		g.Go(func() error {
			counts[i], errs[i] = s.settleDeferred(ctx, sale, deadLetter)
			return nil
		})
	}
	_ = g.Wait() // always nil: one sale's failure leaves the others alone
	for _, c := range counts {
		n += c
	}
	return n, errors.Join(errs...)
}

// deferredOrder is a row of deferred_orders.
type deferredOrder struct {
	n, tries int64
	entry    queued.Entry
}

func (s *Store) settleDeferred(ctx context.Context, sale int64, deadLetter DeadLetter) (int, error) {
	states, err := s.redis.States(ctx, []int64{sale})
	if err != nil || states[0].Present && states[0].Gate == lua.GateShut {
		return 0, nil // not an error: a Redis that is away adopts nothing, like a closed gate, and the next pass asks again
	}
	batch, err := s.claimDeferred(ctx, sale)
	if err != nil || len(batch) == 0 {
		return 0, err
	}
	if d := batch[0]; d.tries >= maxTries {
		if err := deadLetter(ctx, d.entry, d.tries, fmt.Errorf("tried %d times and never settled: whoever tried it ended", d.tries)); err != nil {
			return 0, err // it keeps its count, and comes again when the claim is over
		}
		return 1, s.dropDeferred(ctx, batch)
	}
	entries := make([]queued.Entry, len(batch))
	for i, d := range batch {
		entries[i] = d.entry
	}
	err = s.Settle(ctx, entries)
	var closed *queued.ClosedError
	var poison *queued.PoisonError
	isClosed, isPoison := errors.As(err, &closed), errors.As(err, &poison)
	if err != nil && !isClosed && !isPoison {
		return 0, errors.Join(err, s.keepDeferred(ctx, batch))
	}
	keep, ended := map[string]bool{}, map[string]bool{}
	if isClosed {
		for _, e := range closed.Entries {
			keep[e.ID] = true
		}
	}
	if isPoison {
		for _, e := range poison.Entries {
			if err := deadLetter(ctx, e, 1, poison.Err); err != nil {
				return 0, errors.Join(err, s.keepDeferred(ctx, batch))
			}
			ended[e.ID] = true
		}
	}
	var kept, done []deferredOrder
	var settled []queued.Entry
	for _, d := range batch {
		if keep[d.entry.ID] {
			kept = append(kept, d)
			continue
		}
		done = append(done, d)
		if !ended[d.entry.ID] {
			settled = append(settled, d.entry)
		}
	}
	if err := s.keepDeferred(ctx, kept); err != nil {
		return 0, err
	}
	if err := s.dropDeferred(ctx, done); err != nil {
		return 0, err
	}
	if err := s.Retire(ctx, settled); err != nil { // they are published again, MySQL knows them, and they are retired then
		s.log.Warn("order: settled orders stay in the outbox for now", "orders", len(settled), "error", err)
	}
	return len(done), nil
}

// claimDeferred takes the first orders of a sale for this process, or none if another process has them. A suspicious
// order gets a batch of its own.
func (s *Store) claimDeferred(ctx context.Context, sale int64) (batch []deferredOrder, err error) {
	err = store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		batch = batch[:0]
		now := s.now().UnixMilli()
		if err := s.readDeferred(ctx, tx, sale, now, &batch); err != nil || len(batch) == 0 {
			return err
		}
		args := []any{now + deferredClaim.Milliseconds()}
		for _, d := range batch {
			args = append(args, d.n)
		}
		_, err := tx.ExecContext(ctx, `UPDATE deferred_orders SET tries = tries + 1, claimed_until = ? WHERE n IN (`+store.Marks(len(batch))+`)`, args...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take deferred orders of sale %d: %w", sale, err)
	}
	return batch, nil
}

func (s *Store) readDeferred(ctx context.Context, tx *sql.Tx, sale, now int64, batch *[]deferredOrder) error {
	rows, err := tx.QueryContext(ctx, `SELECT n, entry, tries, claimed_until FROM deferred_orders WHERE sale_id = ? ORDER BY n LIMIT ? FOR UPDATE`, sale, deferredBatch)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var d deferredOrder
		var text string
		var until int64
		if err := rows.Scan(&d.n, &text, &d.tries, &until); err != nil {
			return err
		}
		if until > now || len(*batch) > 0 && d.tries >= suspiciousTries {
			break // another process has it, or it is to be alone
		}
		if err := json.Unmarshal([]byte(text), &d.entry); err != nil {
			return fmt.Errorf("deferred order %d: %w", d.n, err)
		}
		*batch = append(*batch, d)
		if d.tries >= suspiciousTries {
			break
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// keepDeferred gives orders back that could not be settled now. That somebody says so is no try.
func (s *Store) keepDeferred(ctx context.Context, batch []deferredOrder) error {
	return s.changeDeferred(ctx, `UPDATE deferred_orders SET tries = 0, claimed_until = 0`, batch)
}

func (s *Store) dropDeferred(ctx context.Context, batch []deferredOrder) error {
	return s.changeDeferred(ctx, `DELETE FROM deferred_orders`, batch)
}

func (s *Store) changeDeferred(ctx context.Context, change string, batch []deferredOrder) error {
	if len(batch) == 0 {
		return nil
	}
	args := make([]any, len(batch))
	for i, d := range batch {
		args[i] = d.n
	}
	return store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, change+` WHERE n IN (`+store.Marks(len(batch))+`)`, args...); err != nil {
			return fmt.Errorf("%s, %d of them: %w", change, len(batch), err)
		}
		return nil
	})
}
