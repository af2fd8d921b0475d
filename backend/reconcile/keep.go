package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
)

const (
	lookEvery    = time.Second
	patience     = 4 * time.Second
	mostPatience = 2 * time.Minute // after many reconcilers took over from each other
)

// Wake makes Keep look at once: Redis was found restarted.
func (r *Reconciler) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Keep runs until ctx is cancelled, and then returns nil. It looks each second, and when woken: a Redis that does not know the
// reserve.lua of the life that MySQL has was started anew, or has taken over from another, so every live sale is reconciled
// and only then the script is loaded, in the name of a new life; and a gate that is not open and has not moved for some
// seconds has lost its reconciler, so that its sale is reconciled.
func (r *Reconciler) Keep(ctx context.Context) error {
	stuck := map[int64]*closed{}
	var running errgroup.Group // of sales that lost their reconciler
	defer running.Wait()       // they return nil
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	told := ""
	for ctx.Err() == nil {
		err := r.look(ctx, stuck, &running)
		if err != nil && ctx.Err() == nil {
			if text := err.Error(); text != told {
				told = text
				r.log.Error("sales cannot be reconciled now; trying again", "error", err)
			}
		} else {
			told = ""
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-r.wake:
		}
	}
	return nil
}

// closed is a gate that is not open: since when it looks as it does, and how often somebody else took over.
type closed struct {
	gate     string
	token    int64
	since    time.Time
	patience time.Duration
	done     chan struct{}
}

func (r *Reconciler) look(ctx context.Context, stuck map[int64]*closed, running *errgroup.Group) error {
	name, err := r.newestLife(ctx)
	if err != nil {
		return err
	}
	r.redis.Believe(name)
	life := r.redis.Life()
	defer life.End()
	armed, err := life.Armed(ctx)
	if err != nil {
		return err
	}
	if !armed {
		return r.afterRestart(ctx, life, name)
	}
	sales, err := r.live(ctx)
	if err != nil || len(sales) == 0 {
		return err
	}
	states, err := r.redis.States(ctx, sales)
	if err != nil {
		return err
	}
	shut := 0
	seen := make(map[int64]bool, len(sales))
	for i, sale := range sales {
		if states[i].Gate == lua.GateOpen {
			continue
		}
		shut++
		seen[sale] = true
		c := stuck[sale]
		if c == nil {
			c = &closed{patience: jitter(r.patience), since: time.Now(), gate: states[i].Gate, token: states[i].Token}
			stuck[sale] = c
		}
		if c.observe(states[i]) {
			c.done = make(chan struct{})
			done := c.done
			running.Go(func() error {
				defer close(done)
				if err := r.Sale(ctx, sale); err != nil && ctx.Err() == nil && !errors.Is(err, ErrArchived) {
					r.log.Error("a sale whose gate stayed closed", "error", err)
				}
				return nil
			})
		}
	}
	for sale := range stuck {
		if !seen[sale] {
			delete(stuck, sale)
		}
	}
	r.notOpen.Set(float64(shut))
	return nil
}

// observe notes how the gate is now, and reports whether it is time to take over.
func (c *closed) observe(s reserve.State) bool {
	if c.done != nil { // this process is at it
		select {
		case <-c.done:
			c.done = nil
			c.since, c.gate, c.token = time.Now(), s.Gate, s.Token
		default:
		}
		return false
	}
	if s.Token != c.token { // a reconciler is at it, after another: two that take over from each other must not do so for ever
		c.patience = min(2*c.patience, mostPatience)
	}
	if s.Token != c.token || s.Gate != c.gate {
		c.since, c.gate, c.token = time.Now(), s.Gate, s.Token
		return false
	}
	return time.Since(c.since) >= c.patience
}

// afterRestart reconciles every live sale and then lets Redis reserve again, in a life that follows the one of this name,
// unless another process has done so. That Redis has not been restarted in between, life says; that nobody else has let it
// reserve in between, MySQL.
func (r *Reconciler) afterRestart(ctx context.Context, life *reserve.Life, before string) error {
	done, err := r.alone(ctx, "recovery")
	if err != nil {
		return err
	}
	defer func() { done() }()
	if newest, err := r.newestLife(ctx); err != nil || newest != before {
		return err
	}
	sales, err := r.live(ctx)
	if err != nil {
		return err
	}
	r.log.Warn("redis was started anew: every live sale is reconciled before it reserves again", "sales", len(sales))
	r.restarts.Inc()
	for pending := sales; len(pending) > 0; {
		if pending, err = r.all(ctx, pending); err == nil {
			break
		}
		r.log.Error("sales cannot be reconciled now; trying again", "sales", pending, "error", err)
		done() // another process may be able to
		done = func() {}
		if err := sleep(ctx, lookEvery); err != nil {
			return err
		}
		if _, err := life.Armed(ctx); err != nil { // restarted again
			return err
		}
		if newest, err := r.newestLife(ctx); err != nil || newest != before { // another process was done sooner
			return err
		}
	}
	name, err := life.Arm(ctx)
	if err != nil {
		return fmt.Errorf("redis was restarted again: %w", err)
	}
	if err := r.follow(ctx, before, name); err != nil {
		return err
	}
	r.redis.Believe(name)
	r.log.Info("redis reserves again", "sales", len(sales), "life", name)
	return nil
}

// newestLife is the name of the life of Redis that was reconciled last, "" where none was.
func (r *Reconciler) newestLife(ctx context.Context) (name string, err error) {
	err = r.db.QueryRowContext(ctx, `SELECT name FROM redis_life WHERE only_row = 1`).Scan(&name)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("read the life of redis: %w", err)
	}
	return name, nil
}

// follow makes a life the newest, if the one before it is that still: a reconciler that slept must not bring back a node of
// which everybody else has taken leave.
func (r *Reconciler) follow(ctx context.Context, before, name string) error {
	return store.InTx(ctx, r.db, func(tx *sql.Tx) error {
		var err error
		var done sql.Result
		if before == "" {
			done, err = tx.ExecContext(ctx, `INSERT INTO redis_life (only_row, name) VALUES (1, ?)`, name)
		} else {
			done, err = tx.ExecContext(ctx, `UPDATE redis_life SET name = ? WHERE only_row = 1 AND name = ?`, name, before)
		}
		if err != nil && !store.Duplicate(err) {
			return fmt.Errorf("note the life of redis: %w", err)
		}
		if err == nil {
			if n, err := done.RowsAffected(); err != nil || n == 1 {
				return err
			}
		}
		return errors.New("another process has reconciled redis")
	})
}

// all reconciles sales, and returns those that failed and why the last of them did.
func (r *Reconciler) all(ctx context.Context, sales []int64) (failed []int64, err error) {
	var g errgroup.Group
	errs := make([]error, len(sales))
	for i, sale := range sales {
		g.Go(func() error { errs[i] = r.Sale(ctx, sale); return nil })
	}
	_ = g.Wait() // the errors are in errs
	for i, sale := range sales {
		if errs[i] != nil && !errors.Is(errs[i], ErrArchived) {
			failed, err = append(failed, sale), errs[i]
		}
	}
	return failed, err
}

// live returns the sales that belong in Redis.
func (r *Reconciler) live(ctx context.Context) ([]int64, error) {
	rows, err := r.db.QueryContext(ctx, `SELECT id FROM sales WHERE archived_at IS NULL ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read the live sales: %w", err)
	}
	defer rows.Close()
	var sales []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("read the live sales: %w", err)
		}
		sales = append(sales, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read the live sales: %w", err)
	}
	return sales, nil
}

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
