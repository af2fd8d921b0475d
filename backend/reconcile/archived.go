package reconcile

import (
	"context"
	"errors"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
)

// archivedPage is how many archived sales one round trip asks Redis for.
const archivedPage = 500

// shutArchived looks for archived sales in primaries that were started anew or promoted. Their data may be older than the
// archive, with such a sale open. It closes their gates, so that no process that does not know of the archive reserves there.
// The timer removes them.
func (r *Reconciler) shutArchived(ctx context.Context, lost *reserve.Subset) error {
	for last := int64(0); ; {
		ids, tokens, err := sale.ArchivedAfter(ctx, r.db, last, archivedPage)
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
