package sku

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
)

const (
	adjusts     = "adjust" // the kind of an operator's intent; the others are lua.ToSold and lua.ToBack
	intentPage  = 200      // intents that are read at once, and the most that one pass of Run does
	intentsOnce = 16       // calls to Redis under way at once
)

// Intend writes, in a transaction that has locked the SKU's row and changed what is available by units, that Redis is to
// follow, and returns the intent's id.
func Intend(ctx context.Context, tx *sql.Tx, at time.Time, sku, units int64) (int64, error) {
	r, err := tx.ExecContext(ctx, `INSERT INTO sku_intents (sku_id, kind, quantity, created_at) VALUES (?, ?, ?, ?)`, sku, adjusts, units, at)
	if err != nil {
		return 0, fmt.Errorf("intent for SKU %d: %w", sku, err)
	}
	return r.LastInsertId()
}

// Intents carries out in Redis what was decided in MySQL. Each has its effect once, however many carry it out, and
// wherever they end.
type Intents struct {
	DB    *sql.DB
	Redis *redis.Client
	Clock *clock.Clock
}

type intent struct {
	id, sku, quantity int64
	kind, order, lock string
}

// OfOrders carries out the open intents of carts' orders, after the COMMIT that wrote them.
func (i Intents) OfOrders(ctx context.Context, orders []string) error {
	if len(orders) == 0 {
		return nil
	}
	list, err := i.read(ctx, ` AND order_id IN (`+marks(len(orders))+`)`, anys(orders)...)
	if err != nil {
		return err
	}
	_, _, err = i.try(ctx, list)
	return err
}

// OfSKU carries out the open intents of a SKU.
func (i Intents) OfSKU(ctx context.Context, sku int64) error {
	list, err := i.read(ctx, ` AND sku_id = ?`, sku)
	if err == nil && len(list) > 0 {
		err = store.Durable(ctx, i.DB)
	}
	if err != nil {
		return err
	}
	_, _, err = i.try(ctx, list)
	return err
}

// Run is one pass over the open intents, oldest first, at most about intentPage of them, and returns how many it carried
// out. Those of a SKU that is being loaded stay for another pass, so that they keep nobody else waiting.
func (i Intents) Run(ctx context.Context) (n int, err error) {
	after := int64(0)
	var blocked []int64
	for n < intentPage {
		where, args := ` AND id > ?`, []any{after}
		if len(blocked) > 0 {
			where += ` AND sku_id NOT IN (` + marks(len(blocked)) + `)`
			args = append(args, anys(blocked)...)
		}
		page, err := i.read(ctx, where+fmt.Sprintf(` ORDER BY id LIMIT %d`, intentPage), args...)
		if err == nil && len(page) > 0 { // whoever wrote them may be about to commit them
			err = store.Durable(ctx, i.DB)
		}
		if err != nil {
			return n, err
		}
		done, more, err := i.try(ctx, page)
		n += done
		if err != nil || len(page) < intentPage {
			return n, err
		}
		blocked = append(blocked, more...)
		after = page[len(page)-1].id
	}
	return n, nil
}

// kept is how long an intent is kept after it was done, for people to look at.
const kept = 7 * 24 * time.Hour

// Prune forgets intents that were done long ago, a bounded number, and says how many: call again at once while that is more
// than none. Operators' stay: the newest of a SKU's is the floor of its next load. They are as few as operators' changes.
func (i Intents) Prune(ctx context.Context) (int, error) {
	return store.Prune(ctx, i.DB, `DELETE FROM sku_intents WHERE done_at < ? AND kind <> ? ORDER BY done_at`, i.Clock.Now().Add(-kept).Truncate(time.Millisecond), adjusts)
}

func (i Intents) read(ctx context.Context, where string, args ...any) ([]intent, error) {
	rows, err := i.DB.QueryContext(ctx, `SELECT id, sku_id, kind, order_id, lock_id, quantity FROM sku_intents WHERE done_at IS NULL`+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read intents of SKUs: %w", err)
	}
	defer rows.Close()
	var list []intent
	for rows.Next() {
		var x intent
		if err := rows.Scan(&x.id, &x.sku, &x.kind, &x.order, &x.lock, &x.quantity); err != nil {
			return nil, fmt.Errorf("read intents of SKUs: %w", err)
		}
		list = append(list, x)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read intents of SKUs: %w", err)
	}
	return list, nil
}

// try carries intents out and marks them done. blocked are the SKUs that are being loaded.
func (i Intents) try(ctx context.Context, list []intent) (done int, blocked []int64, err error) {
	if len(list) == 0 {
		return 0, nil, nil
	}
	var mu sync.Mutex // guards finished and blocked
	var finished []int64
	var g errgroup.Group
	g.SetLimit(intentsOnce)
	for _, x := range list {
		g.Go(func() error {
			err := i.carryOut(ctx, x)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				finished = append(finished, x.id)
			case errors.Is(err, errLoading):
				if !slices.Contains(blocked, x.sku) {
					blocked = append(blocked, x.sku)
				}
			default:
				return fmt.Errorf("intent %d (%s, SKU %d): %w", x.id, x.kind, x.sku, err)
			}
			return nil
		})
	}
	err = g.Wait()
	if len(finished) > 0 {
		failpoint.Hit("cart.before-done")
		slices.Sort(finished)
		args := append([]any{i.Clock.Now().Truncate(time.Millisecond)}, anys(finished)...)
		if _, e := i.DB.ExecContext(ctx, `UPDATE sku_intents SET done_at = ? WHERE done_at IS NULL AND id IN (`+marks(len(finished))+`)`, args...); e != nil {
			err = errors.Join(err, fmt.Errorf("mark %d intents of SKUs done: %w", len(finished), e))
		}
	}
	return len(finished), blocked, err
}

func (i Intents) carryOut(ctx context.Context, x intent) error {
	switch x.kind {
	case lua.ToSold, lua.ToBack:
		return unlock(ctx, i.Redis, Hold{x.sku, x.order, x.lock}, x.kind)
	case adjusts:
		return adjust(ctx, i.Redis, x.sku, x.id, x.quantity)
	default:
		return fmt.Errorf("no such kind of intent; known: %s, %s, %s", lua.ToSold, lua.ToBack, adjusts)
	}
}
