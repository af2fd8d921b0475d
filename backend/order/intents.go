package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
)

// Kinds of intent: what is decided in MySQL and still to be done in Redis.
const (
	intentRelease = "release" // of an order that ended
	intentAdjust  = "adjust"  // the stock, by quantity
	intentDefine  = "define"  // the sale, as MySQL has it by now
	intentArchive = "archive" // the sale's keys leave Redis
)

const (
	intentPage  = 200 // intents that are read at once, and the most that one pass of RunIntents does
	intentsOnce = 16  // calls to Redis under way at once: they share its pipeline and its fsync
)

type intent struct {
	id, sale int64
	kind     string
	order    string
	quantity int64
}

// writeReleases writes the intents that give the orders' units back in Redis, and returns the first one's id: the others
// have higher ones.
func writeReleases(ctx context.Context, tx *sql.Tx, at time.Time, orders []row) (first int64, err error) {
	args := make([]any, 0, 4*len(orders))
	for _, o := range orders {
		args = append(args, o.sale, intentRelease, o.id, at)
	}
	r, err := tx.ExecContext(ctx, `INSERT INTO intents (sale_id, kind, order_id, created_at) VALUES `+tuples(len(orders), 4), args...)
	if err != nil {
		return 0, fmt.Errorf("write %d release intents: %w", len(orders), err)
	}
	return r.LastInsertId()
}

// releaseNow tries the intents that writeReleases wrote, after their COMMIT. What cannot be done now, RunIntents does.
func (b *Store) releaseNow(ctx context.Context, first int64, orders []row) {
	ids := make([]string, len(orders))
	for i, o := range orders {
		ids[i] = o.id
	}
	open, err := readIntents(ctx, b.db, ` AND id >= ? AND order_id IN (`+marks(len(ids))+`)`, append([]any{first}, anys(ids)...)...)
	if err == nil {
		_, _, err = b.try(ctx, open)
	}
	if err != nil {
		b.log.Warn("order: units are given back later, by the timer", "orders", len(orders), "error", err)
	}
}

// releaseAgain gives back what orders that ended in MySQL may have been given in Redis since: a consumer that slept
// between reading MySQL and adopting an order does that. It costs nothing where there is nothing to give back; those of a sale
// whose gate is closed are left to the timer, all of them by one statement: they may be thousands, and the reconciler waits for them.
func (b *Store) releaseAgain(ctx context.Context, ended []row) error {
	closed := map[int64]bool{}
	later := map[string]row{}
	for _, o := range ended {
		if !closed[o.sale] {
			released, err := b.redis.Release(ctx, o.sale, o.id)
			if released {
				b.log.Warn("order: an order that ended held units in redis again; they are back", "order", o.id, "status", o.status)
			}
			if err == nil {
				continue
			}
			closed[o.sale] = true // whatever it was: the others would meet the same
		}
		later[o.id] = o
	}
	if len(later) == 0 {
		return nil
	}
	open, err := readIntents(ctx, b.db, ` AND order_id IN (`+marks(len(later))+`)`, anys(slices.Sorted(maps.Keys(later)))...)
	if err != nil {
		return err
	}
	for _, i := range open {
		delete(later, i.order)
	}
	if len(later) == 0 {
		return nil
	}
	return store.InTx(ctx, b.db, func(tx *sql.Tx) error {
		_, err := writeReleases(ctx, tx, b.now(), slices.Collect(maps.Values(later)))
		return err
	})
}

func readIntents(ctx context.Context, q querier, where string, args ...any) ([]intent, error) {
	rows, err := q.QueryContext(ctx, `SELECT id, sale_id, kind, order_id, quantity FROM intents WHERE done_at IS NULL`+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read intents: %w", err)
	}
	defer rows.Close()
	var list []intent
	for rows.Next() {
		var i intent
		if err := rows.Scan(&i.id, &i.sale, &i.kind, &i.order, &i.quantity); err != nil {
			return nil, fmt.Errorf("read intents: %w", err)
		}
		list = append(list, i)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read intents: %w", err)
	}
	return list, nil
}

// RunIntents is one pass over the intents that are open, oldest first, and returns how many it did: at most about
// intentPage. An intent whose sale is closed or not in Redis (but for an archived one's: there is nothing left to do) stays, and so do the other ones of that sale for this pass, so
// that they keep nobody else waiting. Each has its effect once, however many run them.
func (b *Store) RunIntents(ctx context.Context) (n int, err error) {
	after := int64(0)
	var blocked []int64
	for n < intentPage {
		where, args := ` AND id > ?`, []any{after}
		if len(blocked) > 0 {
			where += ` AND sale_id NOT IN (` + marks(len(blocked)) + `)`
			args = append(args, anys(blocked)...)
		}
		page, err := readIntents(ctx, b.db, where+fmt.Sprintf(` ORDER BY id LIMIT %d`, intentPage), args...)
		if err == nil && len(page) > 0 { // whoever wrote them may be about to commit them
			err = store.Durable(ctx, b.db)
		}
		if err != nil {
			return n, err
		}
		done, more, err := b.try(ctx, page)
		n += done
		if err != nil || len(page) < intentPage {
			return n, err
		}
		blocked = append(blocked, more...)
		after = page[len(page)-1].id
	}
	return n, nil
}

// try carries intents out in Redis and marks them done. blocked are the sales that Redis does not let anybody change at
// the moment.
func (b *Store) try(ctx context.Context, list []intent) (done int, blocked []int64, err error) {
	if len(list) == 0 {
		return 0, nil, nil
	}
	defined := map[int64]catalog.Sale{}
	var define []int64
	for _, i := range list {
		if i.kind == intentDefine && !slices.Contains(define, i.sale) {
			define = append(define, i.sale)
		}
	}
	if len(define) > 0 {
		sales, err := catalog.Read(ctx, b.db, define...)
		if err != nil {
			return 0, nil, err
		}
		for _, s := range sales {
			defined[s.ID] = s
		}
	}
	var mu sync.Mutex // guards what follows
	var finished []int64
	absent := map[int64][]int64{} // intents of sales that are not in Redis
	var g errgroup.Group
	g.SetLimit(intentsOnce)
	for _, i := range list {
		mu.Lock()
		skip := slices.Contains(blocked, i.sale)
		mu.Unlock()
		if skip {
			continue
		}
		g.Go(func() error {
			err := b.carryOut(ctx, i, defined)
			b.metrics.releases.WithLabelValues(i.kind, outcome(err)).Inc()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				finished = append(finished, i.id)
				if i.kind != intentArchive {
					b.returned(i.sale)
				}
			case errors.Is(err, reserve.ErrGateClosed) || errors.Is(err, reserve.ErrNotLoaded):
				if errors.Is(err, reserve.ErrNotLoaded) {
					absent[i.sale] = append(absent[i.sale], i.id)
				}
				if !slices.Contains(blocked, i.sale) {
					blocked = append(blocked, i.sale)
				}
			case errors.Is(err, reserve.ErrNotEnough): // only this one waits, for units to come back
			case errors.Is(err, reserve.ErrQueued): // the same, for orders that MySQL does not have: the audit names them
			default:
				return fmt.Errorf("intent %d (%s, sale %d): %w", i.id, i.kind, i.sale, err)
			}
			return nil
		})
	}
	err = g.Wait()
	if len(absent) > 0 {
		archived, e := archivedOf(ctx, b.db, slices.Collect(maps.Keys(absent)))
		err = errors.Join(err, e)
		for _, sale := range archived {
			finished = append(finished, absent[sale]...)
			blocked = slices.DeleteFunc(blocked, func(id int64) bool { return id == sale })
		}
	}
	if len(finished) > 0 {
		failpoint.Hit("timer.before-done")
		slices.Sort(finished)
		args := append([]any{b.now()}, anys(finished)...)
		if _, e := b.db.ExecContext(ctx, `UPDATE intents SET done_at = ? WHERE done_at IS NULL AND id IN (`+marks(len(finished))+`)`, args...); e != nil {
			err = errors.Join(err, fmt.Errorf("mark %d intents done: %w", len(finished), e))
		}
	}
	return len(finished), blocked, err
}

func (b *Store) carryOut(ctx context.Context, i intent, defined map[int64]catalog.Sale) error {
	switch i.kind {
	case intentRelease:
		_, err := b.redis.Release(ctx, i.sale, i.order)
		return err
	case intentAdjust:
		return b.redis.Adjust(ctx, i.sale, i.id, i.quantity)
	case intentDefine:
		s, ok := defined[i.sale]
		if !ok {
			return fmt.Errorf("sale %d is not in MySQL", i.sale)
		}
		return b.redis.Define(ctx, i.sale, s.Definition())
	case intentArchive:
		return b.forget(ctx, i.sale)
	default:
		return fmt.Errorf("no such kind of intent; known: %s", strings.Join([]string{intentRelease, intentAdjust, intentDefine, intentArchive}, ", "))
	}
}

// forget takes an archived sale out of Redis. A Redis that came back from an older copy may have entries in the outbox that
// were retired since: those whose orders MySQL has are retired again.
func (b *Store) forget(ctx context.Context, sale int64) error {
	token, err := catalog.ArchiveToken(ctx, b.db, sale)
	if errors.Is(err, catalog.ErrNoArchive) {
		b.log.Error("order: a sale that was archived is not any more: it stays in redis", "sale", sale)
		return nil
	}
	if err != nil {
		return err
	}
	err = b.redis.Forget(ctx, sale, token)
	if !errors.Is(err, reserve.ErrQueued) {
		return err
	}
	entries, _, err := b.redis.Outbox(ctx, sale)
	if err != nil {
		return err
	}
	for chunk := range slices.Chunk(entries, maxBatch) {
		ids := make([]string, len(chunk))
		for i, e := range chunk {
			ids[i] = e.ID
		}
		known, err := find(ctx, b.db, ids)
		if err == nil && len(known) > 0 {
			err = store.Durable(ctx, b.db)
		}
		if err != nil {
			return err
		}
		settled := slices.DeleteFunc(slices.Clone(chunk), func(e queued.Entry) bool { _, ok := known[e.ID]; return !ok })
		if err := b.Retire(ctx, settled); err != nil {
			return err
		}
	}
	return b.redis.Forget(ctx, sale, token)
}

// archivedOf are those of the sales that are archived.
func archivedOf(ctx context.Context, q querier, sales []int64) (archived []int64, err error) {
	rows, err := q.QueryContext(ctx, `SELECT id FROM sales WHERE archived_at IS NOT NULL AND id IN (`+marks(len(sales))+`)`, anys(sales)...)
	if err != nil {
		return nil, fmt.Errorf("look for archived sales: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("look for archived sales: %w", err)
		}
		archived = append(archived, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("look for archived sales: %w", err)
	}
	return archived, nil
}

// intentsKept is how long an intent is kept after it was done, for people to look at.
const intentsKept = 7 * 24 * time.Hour

// PruneIntents forgets intents that were done long ago, a bounded number, and says how many: call again at once while that is
// more than none. Those that adjust a stock stay: whoever reconciles their sale names them to Redis, so that none is
// ever applied again. They are as few as operators' changes.
func (b *Store) PruneIntents(ctx context.Context) (int, error) {
	return store.Prune(ctx, b.db, `DELETE FROM intents WHERE done_at < ? AND kind <> ? ORDER BY done_at`, b.now().Add(-intentsKept), intentAdjust)
}

func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return "kept"
}
