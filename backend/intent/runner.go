package intent

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
)

const (
	page        = 200                // intents that are read at once, and about the most that one pass does
	atOnce      = 16                 // calls to Redis under way at once: they share its pipeline and its fsync
	retireBatch = 500                // entries of an archived sale that are looked up and retired at once
	kept        = 7 * 24 * time.Hour // how long an intent is kept after it was done, for people to look at
)

// Runner carries intents out in Redis and marks them done. It is safe for concurrent use, by any number of processes.
type Runner struct {
	db       *sql.DB
	sales    Sales
	redis    *reserve.Store
	clk      *clock.Clock
	log      *slog.Logger
	returned func(sale int64)
	tried    *prometheus.CounterVec
}

// Sales is what a Runner asks MySQL of sales: sale.Reader.
type Sales interface {
	// Definition is the sale as Redis is told of it.
	Definition(ctx context.Context, id int64) (reserve.Definition, error)
	// ArchiveToken is the fencing token under which an archived sale leaves Redis; false for a sale that is not archived.
	ArchiveToken(ctx context.Context, id int64) (token int64, archived bool, err error)
	// Archived returns those of the sales that are archived.
	Archived(ctx context.Context, ids []int64) ([]int64, error)
}

// Config is what a Runner needs.
type Config struct {
	DB       *sql.DB
	Sales    Sales
	Redis    *reserve.Store
	Clock    *clock.Clock // follows Redis's clock
	Log      *slog.Logger
	Register prometheus.Registerer

	// Returned is told, at once, when a sale may have units to offer to its standby line. Nil: nobody is.
	Returned func(sale int64)
}

// New makes a Runner and registers its metrics.
func New(c Config) *Runner {
	if c.Returned == nil {
		c.Returned = func(int64) {}
	}
	r := &Runner{db: c.DB, sales: c.Sales, redis: c.Redis, clk: c.Clock, log: c.Log, returned: c.Returned,
		tried: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_intents_total",
			Help: "Intents tried in Redis, by kind and result: done, or kept for later."}, []string{"kind", "result"})}
	c.Register.MustRegister(r.tried)
	return r
}

// Now carries out intents of sales that the caller has written and committed, those of one sale in this order. The error says
// why some of them are left to the timer.
func (r *Runner) Now(ctx context.Context, intents ...Intent) error {
	done, _, err := r.try(ctx, ofSales, intents)
	if err == nil && done < len(intents) {
		err = fmt.Errorf("redis takes %d of %d changes later: the sale is closed for reconciling, or not loaded, or has too few units", len(intents)-done, len(intents))
	}
	return err
}

// Released carries out what Release wrote for these orders, after the COMMIT. What Redis does not take now is left to the timer.
func (r *Runner) Released(ctx context.Context, first int64, orders []string) error {
	return r.tryOpen(ctx, ofSales, ` AND id >= ? AND order_id IN (`+store.Marks(len(orders))+`)`, append([]any{first}, store.Anys(orders)...)...)
}

// LocksEnded carries out what EndLocks wrote for these orders, after the COMMIT. What Redis does not take now is left to the
// timer.
func (r *Runner) LocksEnded(ctx context.Context, orders []string) error {
	return r.tryOpen(ctx, ofSKUs, ` AND order_id IN (`+store.Marks(len(orders))+`)`, store.Anys(orders)...)
}

// OfSKU carries out the open intents of a SKU. Those of one that is being loaded are left to the timer.
func (r *Runner) OfSKU(ctx context.Context, skuID int64) error {
	list, err := ofSKUs.open(ctx, r.db, ` AND sku_id = ?`, skuID)
	if err == nil && len(list) > 0 { // others may have written some
		err = store.Durable(ctx, r.db)
	}
	if err != nil {
		return err
	}
	_, _, err = r.try(ctx, ofSKUs, list)
	return err
}

func (r *Runner) tryOpen(ctx context.Context, t *table, where string, args ...any) error {
	list, err := t.open(ctx, r.db, where, args...)
	if err != nil {
		return err
	}
	_, _, err = r.try(ctx, t, list)
	return err
}

// Run is one pass over the open intents of sales, oldest first, and returns how many it did, about 200 at most. An intent stays
// whose sale is closed for reconciling or not in Redis, and so do the sale's other ones for this pass: they keep no other sale
// waiting. Those of an archived sale that is not in Redis are done.
func (r *Runner) Run(ctx context.Context) (n int, err error) { return r.run(ctx, ofSales) }

// RunSKUs is Run for the intents of SKUs: those of a SKU that is being loaded stay.
func (r *Runner) RunSKUs(ctx context.Context) (n int, err error) { return r.run(ctx, ofSKUs) }

func (r *Runner) run(ctx context.Context, t *table) (n int, err error) {
	after := int64(0)
	var blocked []int64
	for n < page {
		where, args := ` AND id > ?`, []any{after}
		if len(blocked) > 0 {
			where += ` AND ` + t.of + ` NOT IN (` + store.Marks(len(blocked)) + `)`
			args = append(args, store.Anys(blocked)...)
		}
		list, err := t.open(ctx, r.db, where+fmt.Sprintf(` ORDER BY id LIMIT %d`, page), args...)
		if err == nil && len(list) > 0 { // whoever wrote them may be about to commit them
			err = store.Durable(ctx, r.db)
		}
		if err != nil {
			return n, err
		}
		done, more, err := r.try(ctx, t, list)
		n += done
		if err != nil || len(list) < page {
			return n, err
		}
		blocked = append(blocked, more...)
		after = list[len(list)-1].ID
	}
	return n, nil
}

// try carries intents out in Redis and marks them done. blocked are the sales, or SKUs, that Redis lets nobody change now.
func (r *Runner) try(ctx context.Context, t *table, list []Intent) (done int, blocked []int64, err error) {
	if len(list) == 0 {
		return 0, nil, nil
	}
	var mu sync.Mutex // guards what follows
	var finished []int64
	absent := map[int64][]int64{} // intents of sales that are not in Redis
	one := func(i Intent) error {
		mu.Lock()
		skip := slices.Contains(blocked, i.Of)
		mu.Unlock()
		if skip {
			return nil
		}
		err := t.do(r, ctx, i)
		r.tried.WithLabelValues(i.Kind, outcome(err)).Inc()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			finished = append(finished, i.ID)
		case errors.Is(err, reserve.ErrGateClosed), errors.Is(err, reserve.ErrNotLoaded), errors.Is(err, sku.ErrLoading):
			if errors.Is(err, reserve.ErrNotLoaded) {
				absent[i.Of] = append(absent[i.Of], i.ID)
			}
			if !slices.Contains(blocked, i.Of) {
				blocked = append(blocked, i.Of)
			}
		case errors.Is(err, reserve.ErrNotEnough): // only this one waits, for units to come back
		case errors.Is(err, reserve.ErrQueued): // the same, for orders that MySQL does not have: the audit names them
		default:
			return fmt.Errorf("intent %d (%s, %s %d): %w", i.ID, i.Kind, t.what, i.Of, err)
		}
		return nil
	}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, row := range rows(list) {
		g.Go(func() error {
			for _, i := range row {
				if err := one(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	if len(absent) > 0 {
		archived, e := r.sales.Archived(ctx, slices.Collect(maps.Keys(absent)))
		err = errors.Join(err, e)
		for _, id := range archived {
			finished = append(finished, absent[id]...)
			blocked = slices.DeleteFunc(blocked, func(b int64) bool { return b == id })
		}
	}
	if len(finished) > 0 {
		slices.Sort(finished)
		err = errors.Join(err, t.done(ctx, r.db, r.now(), finished))
	}
	return len(finished), blocked, err
}

// rows parts intents into what may be done at once: those of orders each by itself, an operator's of one sale or SKU in a row.
func rows(list []Intent) (all [][]Intent) {
	at := map[int64]int{}
	for _, i := range list {
		n, ok := at[i.Of]
		switch {
		case i.Order == "" && ok:
			all[n] = append(all[n], i)
			continue
		case i.Order == "":
			at[i.Of] = len(all)
		}
		all = append(all, []Intent{i})
	}
	return all
}

func (r *Runner) ofSale(ctx context.Context, i Intent) error {
	switch i.Kind {
	case release:
		if _, err := r.redis.Release(ctx, i.Of, i.Order); err != nil {
			return err
		}
		failpoint.Hit("timer.before-done")
	case adjust:
		if err := r.redis.Adjust(ctx, i.Of, i.ID, i.Units); err != nil {
			return err
		}
		failpoint.Hit("admin.before-done")
	case define:
		d, err := r.sales.Definition(ctx, i.Of)
		if err != nil {
			return err
		}
		if err := r.redis.Define(ctx, i.Of, d); err != nil {
			return err
		}
	case archive:
		failpoint.Hit("admin.before-archive")
		err := r.forget(ctx, i.Of)
		failpoint.Hit("admin.after-archive")
		return err
	default:
		return unknown(release, adjust, define, archive)
	}
	r.returned(i.Of)
	return nil
}

func (r *Runner) ofSKU(ctx context.Context, i Intent) error {
	switch i.Kind {
	case lua.ToSold, lua.ToBack:
		if err := sku.EndLock(ctx, r.redis.Client(), sku.Hold{SKU: i.Of, Order: i.Order, Lock: i.Lock}, i.Kind); err != nil {
			return err
		}
		failpoint.Hit("cart.before-done")
		return nil
	case adjust:
		return sku.Adjust(ctx, r.redis.Client(), i.Of, i.ID, i.Units)
	default:
		return unknown(lua.ToSold, lua.ToBack, adjust)
	}
}

func unknown(known ...string) error {
	return fmt.Errorf("no such kind of intent; known: %s", strings.Join(known, ", "))
}

// forget takes an archived sale out of Redis. A Redis that came back from an older copy may have outbox entries that were retired
// since: those whose orders MySQL has are retired again.
func (r *Runner) forget(ctx context.Context, id int64) error {
	token, archived, err := r.sales.ArchiveToken(ctx, id)
	if err == nil && !archived {
		r.log.Error("order: a sale that was archived is not any more: it stays in redis", "sale", id)
		return nil
	}
	if err != nil {
		return err
	}
	err = r.redis.Forget(ctx, id, token)
	if !errors.Is(err, reserve.ErrQueued) {
		return err
	}
	queued, _, err := r.redis.Outbox(ctx, id)
	if err != nil {
		return err
	}
	entries := map[string][]string{} // by order
	for _, e := range queued {
		entries[e.ID] = append(entries[e.ID], e.Entry)
	}
	for orders := range slices.Chunk(slices.Sorted(maps.Keys(entries)), retireBatch) {
		settled, err := r.known(ctx, orders)
		if err == nil && len(settled) > 0 {
			err = store.Durable(ctx, r.db)
		}
		if err != nil {
			return err
		}
		var retire []string
		for _, order := range settled {
			retire = append(retire, entries[order]...)
		}
		if err := r.redis.Retire(ctx, id, retire); err != nil {
			return err
		}
	}
	return r.redis.Forget(ctx, id, token)
}

// known returns those of the orders that MySQL has.
func (r *Runner) known(ctx context.Context, orders []string) (known []string, err error) {
	known, err = store.Column[string](ctx, r.db, `SELECT id FROM orders WHERE id IN (`+store.Marks(len(orders))+`)`, store.Anys(orders)...)
	if err != nil {
		return nil, fmt.Errorf("look for %d orders: %w", len(orders), err)
	}
	return known, nil
}

// Prune forgets intents of sales that were done long ago, a bounded number, and says how many: call again at once while that is
// more than none. Those that adjust stay, as few as operators' changes: whoever reconciles their sale names them to Redis, so
// that none is ever applied again.
func (r *Runner) Prune(ctx context.Context) (int, error) { return r.prune(ctx, ofSales) }

// PruneSKUs is Prune for the intents of SKUs. The newest adjust of a SKU is the floor of its next load.
func (r *Runner) PruneSKUs(ctx context.Context) (int, error) { return r.prune(ctx, ofSKUs) }

func (r *Runner) prune(ctx context.Context, t *table) (int, error) {
	return store.Prune(ctx, r.db, `DELETE FROM `+t.name+` WHERE done_at < ? AND kind <> ? ORDER BY done_at`, r.now().Add(-kept), adjust)
}

// now is the time as MySQL keeps it, in milliseconds: by a finer one it does not search an index.
func (r *Runner) now() time.Time { return r.clk.Now().Truncate(time.Millisecond) }

func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return "kept"
}
