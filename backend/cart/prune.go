package cart

import (
	"context"
	"time"

	"floodgate.internal/backend/store"
)

// Kept is how long the request of a cart without an order is remembered: one that was refused, or that nobody went on with. No client
// retries for so long, and nothing was taken: a later repeat is decided anew. A request that has an order is kept with it.
const Kept = 24 * time.Hour

// Prune forgets requests that are older than that, a bounded number, and says how many: call again at once while that is more than none.
// Whoever still decides on one that is forgotten finds no row, and decides nothing.
func (c *Carts) Prune(ctx context.Context) (int, error) {
	before := c.now().Add(-Kept)
	n, err := store.Prune(ctx, c.db, `DELETE FROM cart_requests WHERE refused = TRUE AND answered_at < ? ORDER BY answered_at`, before)
	if n > 0 || err != nil {
		return n, err
	}
	return store.Prune(ctx, c.db, `DELETE FROM cart_requests WHERE refused = FALSE AND answered_at IS NULL AND created_at < ? ORDER BY created_at`, before)
}
