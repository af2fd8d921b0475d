package cart

import (
	"context"
	"time"

	"floodgate.internal/backend/store"
)

// Kept is how long the request of a cart without an order is remembered: one that was refused or abandoned. No client
// retries for so long, and nothing was taken, so a later repeat is decided again. A request with an order is kept as long
// as the order.
const Kept = 24 * time.Hour

// Prune deletes a bounded number of older requests, and returns how many: call again at once until that is 0. A process
// that still decides on a deleted request finds no row, and decides nothing.
func (c *Carts) Prune(ctx context.Context) (int, error) {
	before := c.now().Add(-Kept)
	n, err := store.Prune(ctx, c.db, `DELETE FROM cart_requests WHERE refused = TRUE AND answered_at < ? ORDER BY answered_at`, before)
	if n > 0 || err != nil {
		return n, err
	}
	return store.Prune(ctx, c.db, `DELETE FROM cart_requests WHERE refused = FALSE AND answered_at IS NULL AND created_at < ? ORDER BY created_at`, before)
}
