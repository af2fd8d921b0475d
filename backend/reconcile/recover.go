package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
)

// recover lets primaries of Redis that were started anew or promoted reserve again, unless another process has done so. It closes
// the gate of every live sale that they have, and begins an incarnation that follows before. Then reopen reconciles the sales, each
// of which opens as soon as it is done itself. The incarnation makes sure that no primary went back in between, and MySQL that
// no other process has begun one. docs/reconciling.md has the steps.
func (k *keeper) recover(ctx context.Context, lost *reserve.Subset, before string) error {
	r := k.r
	done, err := r.alone(ctx, "recovery")
	if err != nil {
		return err
	}
	defer func() { done() }()
	if newest, err := r.newestIncarnation(ctx); err != nil || newest != before {
		r.Wake() // to use it
		return err
	}
	on, over, err := r.live(ctx)
	if err != nil {
		return err
	}
	for sale, end := range k.ends { // this recovery takes over what an earlier one has left to do there
		if lost.HasSale(sale) || !slices.Contains(on, sale) && !slices.Contains(over, sale) {
			end()
			delete(k.ends, sale)
		}
	}
	elsewhere := func(sale int64) bool { return !lost.HasSale(sale) }
	on, over = slices.DeleteFunc(on, elsewhere), slices.DeleteFunc(over, elsewhere)
	if before != "" { // else it was never used
		r.log.Warn("redis was started anew, or a replica was promoted: its live sales are closed before it reserves again, and reconciled",
			"nodes", lost.Addrs(), "sales", len(on)+len(over))
	}
	r.restarts.Inc()
	shut := make(map[int64]*attempt, len(on)+len(over))
	defer func() { k.reopen(ctx, on, over, shut) }() // also if another process was sooner: it has lost them
	for pending := slices.Concat(on, over); len(pending) > 0; {
		if pending, err = r.close(ctx, lost, pending, shut); err == nil {
			break
		}
		r.log.Error("sales cannot be closed now; trying again", "sales", pending, "error", err)
		done() // another process may be able to
		done = func() {}
		if err := sleep(ctx, lookEvery); err != nil {
			return err
		}
		if err := lost.Unchanged(ctx); err != nil { // restarted or demoted
			return err
		}
		if newest, err := r.newestIncarnation(ctx); err != nil || newest != before { // another process was done sooner
			r.Wake()
			return err
		}
	}
	if err := r.shutArchived(ctx, lost); err != nil {
		return err
	}
	name, err := lost.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin a new incarnation of redis: %w", err)
	}
	if err := r.follow(ctx, before, name); err != nil {
		return err
	}
	r.redis.Client().Use(name)
	r.log.Info("redis reserves again", "sales", len(on)+len(over), "incarnation", name)
	return nil
}

// close closes the gates of sales, and adds to shut the attempts that this process continues. It returns the sales whose gates
// may still be open, and the error of the last of them.
func (r *Reconciler) close(ctx context.Context, lost *reserve.Subset, sales []int64, shut map[int64]*attempt) (open []int64, err error) {
	var all sync.WaitGroup
	attempts, errs := make([]*attempt, len(sales)), make([]error, len(sales))
	for i, sale := range sales {
		attempts[i] = &attempt{r: r, sale: sale, gates: lost}
		all.Go(func() { errs[i] = attempts[i].close(ctx) })
	}
	all.Wait()
	for i, sale := range sales {
		switch e := errs[i]; {
		case e == nil:
			shut[sale] = attempts[i]
		case errors.Is(e, reserve.ErrLost): // to one that began later: it has closed the gate
		case errors.Is(e, ErrArchived): // shutArchived closes it
		default:
			open, err = append(open, sale), e
		}
	}
	return open, err
}

// reopen reconciles, beside the looks, the sales that recover has closed: those that are on or to come at once, then those that
// are over, one after the other. Nobody waits for the latter, and there may be many, with many orders.
func (k *keeper) reopen(ctx context.Context, on, over []int64, shut map[int64]*attempt) {
	start := func(sale int64, after []<-chan struct{}) []<-chan struct{} {
		a := shut[sale]
		if a == nil {
			return nil
		}
		ctx, end := context.WithCancel(ctx)
		k.ends[sale] = end
		c := k.r.closed(reserve.State{Gate: lua.GateShut, Token: a.token})
		k.shut[sale] = c
		k.start(ctx, c, a, after)
		return []<-chan struct{}{c.done}
	}
	var before []<-chan struct{}
	for _, sale := range on {
		before = append(before, start(sale, nil)...)
	}
	for _, sale := range over {
		if last := start(sale, before); last != nil {
			before = last
		}
	}
}

// newestIncarnation is the name of the incarnation of Redis that began last, "" for none.
func (r *Reconciler) newestIncarnation(ctx context.Context) (name string, err error) {
	err = r.db.QueryRowContext(ctx, `SELECT name FROM redis_life WHERE only_row = 1`).Scan(&name)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("read the incarnation of redis: %w", err)
	}
	return name, nil
}

// follow makes an incarnation the newest, if before still is: a reconciler that slept must not bring back a node that all others
// have given up.
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
			return fmt.Errorf("note the incarnation of redis: %w", err)
		}
		if err == nil {
			if n, err := done.RowsAffected(); err != nil || n == 1 {
				return err
			}
		}
		return errors.New("another process has reconciled redis")
	})
}

// live returns the sales that belong in Redis: those that are on or to come, and those that are over.
func (r *Reconciler) live(ctx context.Context) (on, over []int64, err error) {
	now, err := r.redis.Client().Now(ctx)
	if err != nil {
		return nil, nil, err
	}
	return sale.LiveByStart(ctx, r.db, now)
}
