package standby

import (
	"context"
	"time"

	"floodgate.internal/backend/store"
)

// kept is how long a place is remembered after it came to its end, as long as a user's presses by default: so long one can see why there
// was no offer, or what became of it. After that the user has never been in the line. The offer's order is kept like any order.
const kept = 7 * 24 * time.Hour

// Prune forgets places of those who do not wait any more, a bounded number, and says how many: call again at once while that is more
// than none.
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
