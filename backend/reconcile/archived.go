package reconcile

import (
	"context"
	"errors"
	"fmt"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/reserve"
)

// archivedPage is how many archived sales one round trip asks Redis for.
const archivedPage = 500

// shutArchived looks for archived sales in primaries that were started anew or promoted. Their data may be older than the
// archive, with such a sale open. It closes their gates, so that no process that does not know of the archive reserves there.
// The timer removes them.
func (r *Reconciler) shutArchived(ctx context.Context, lost *reserve.Subset) error {
	for last := int64(0); ; {
		ids, tokens, err := r.archivedAfter(ctx, last)
		if err != nil || len(ids) == 0 {
			return err
		}
		last = ids[len(ids)-1]
		present, err := lost.Present(ctx, ids)
		if err != nil {
			return err
		}
		for i, sale := range ids {
			if !present[sale] {
				continue
			}
			r.log.Warn("an archived sale is in redis again: it is taken out", "sale", sale)
			if _, err := lost.Shut(ctx, sale, tokens[i]); err != nil && !errors.Is(err, reserve.ErrLost) {
				return err
			}
			if err := r.forgetLater(ctx, []int64{sale}); err != nil {
				return err
			}
		}
	}
}

// archivedAfter returns a page of the archived sales, ascending, with the tokens that their archives took.
func (r *Reconciler) archivedAfter(ctx context.Context, last int64) (ids, tokens []int64, err error) {
	rows, err := r.db.QueryContext(ctx, `SELECT s.id, k.token FROM sales s JOIN sale_stock k ON k.sale_id = s.id
		WHERE s.id > ? AND s.archived_at IS NOT NULL ORDER BY s.id LIMIT ?`, last, archivedPage)
	if err != nil {
		return nil, nil, fmt.Errorf("read the archived sales: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, token int64
		if err := rows.Scan(&id, &token); err != nil {
			return nil, nil, fmt.Errorf("read the archived sales: %w", err)
		}
		ids, tokens = append(ids, id), append(tokens, token)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, nil, fmt.Errorf("read the archived sales: %w", err)
	}
	return ids, tokens, nil
}

// forgetLater writes intents for the timer to remove archived sales that are in Redis. A reconciler that slept through the archive
// may have closed a gate that was gone.
func (r *Reconciler) forgetLater(ctx context.Context, sales []int64) error {
	states, err := r.redis.States(ctx, sales)
	if err != nil {
		return err
	}
	for i, sale := range sales {
		if !states[i].Present {
			continue
		}
		now, err := r.redis.Client().Now(ctx)
		if err != nil {
			return err
		}
		if _, err := intent.Archive(ctx, r.db, now, sale); err != nil {
			return err
		}
	}
	return nil
}
