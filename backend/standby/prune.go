package standby

import (
	"context"
	"time"

	"floodgate.internal/backend/store"
)

// kept is how long a place is remembered after it ended, by default as long as a user's presses. Until then the user can
// see why there was no offer, or what became of it. The offer's order is kept like any order.
const kept = 7 * 24 * time.Hour

// Prune deletes a bounded number of places that no longer wait, and returns how many: call again at once until that is 0.
func (l *Line) Prune(ctx context.Context) (n int, err error) {
	before := l.now().Add(-kept)
	for _, state := range []string{offered, passed, left, ended} {
		n, err = store.Prune(ctx, l.db, `DELETE FROM standby WHERE state = ? AND changed_at < ? ORDER BY changed_at`, state, before)
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}
