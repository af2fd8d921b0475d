package timeline

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

const (
	watchEvery = 2 * time.Second
	lease      = 3 * watchEvery // of the process that records the histories
	// unwatched is how long no process may have watched so that a change found then still counts as seen.
	unwatched = lease
	// maxChanges bounds a sale's history. Later changes are only counted, except its end.
	maxChanges = 500
	// maxForgotten bounds the sales that are no longer reported and whose states a process remembers.
	maxForgotten = 1000
	// gone is the state of a sale whose history was deleted for its age: it had ended.
	gone = "gone"
)

// Watch records how the states of sales change, until ctx ends. feed is catalog.Catalog.Feed.
//
// Any number of processes may watch. The one that holds the row of timeline_watch writes. Another takes over when it has
// ended, or has not renewed its hold for lease. Each transaction that writes also renews the hold, so each change is
// written once. A time is when the process saw the change, except for changes by the sale's own window. A process with
// the role timer alone looks at Redis ten times a second. What had changed while nobody watched is marked as not sure.
func (s *Store) Watch(feed func(ctx context.Context, instance string, since uint64, wait time.Duration) wire.Feed) func(context.Context) error {
	return func(ctx context.Context) error {
		w := watch{Store: s, holder: uuid.NewString()}
		sales := map[int64]wire.Sale{}
		instance, since, failing := "", uint64(0), false
		for {
			news := feed(ctx, instance, since, watchEvery)
			if ctx.Err() != nil {
				return w.end()
			}
			instance, since = news.Instance, news.Version
			if news.Full {
				clear(sales)
			}
			for _, sale := range news.Sales {
				sales[sale.ID] = sale
			}
			for _, id := range news.Removed {
				delete(sales, id)
			}
			try, cancel := context.WithTimeout(ctx, 10*time.Second)
			err := w.write(try, sales, news.Now.Time)
			cancel()
			switch {
			case ctx.Err() != nil:
				return w.end()
			case err != nil:
				if !failing {
					s.log.Warn("timeline: the sales' states are not written down, and tried again", "error", err)
				}
				failing = true
				select {
				case <-ctx.Done():
					return w.end()
				case <-time.After(watchEvery):
				}
			case failing:
				s.log.Info("timeline: the sales' states are written down again")
				failing = false
			}
		}
	}
}

// watch is one process's.
type watch struct {
	*Store
	holder string
	leads  bool
	known  map[int64]written // of sales that were looked at while it leads, as MySQL has them
	said   time.Time         // when it last asked which process watches
}

// written is the last of a sale's history; the zero one is of a sale that has none.
type written struct {
	state   string
	at      time.Time
	changes int
}

// write renews this process's hold, if no other has it, and records what has changed by now.
func (w *watch) write(ctx context.Context, sales map[int64]wire.Sale, now time.Time) error {
	if now.Sub(w.said) < watchEvery && !(w.leads && len(changed(sales, w.known)) > 0) {
		return nil
	}
	known := w.known
	if !w.leads || len(known) > len(sales)+maxForgotten {
		known = nil
	}
	w.leads, w.known = false, nil // until the COMMIT
	leads, n := false, 0
	err := store.InTx(ctx, w.db, func(tx *sql.Tx) error {
		leads, n = false, 0
		if _, err := tx.ExecContext(ctx, `INSERT INTO timeline_watch (only_row, holder, said_at) VALUES (1, '', '2000-01-01') ON DUPLICATE KEY UPDATE only_row = VALUES(only_row)`); err != nil {
			return fmt.Errorf("note who watches: %w", err)
		}
		var holder string
		var said time.Time
		if err := tx.QueryRowContext(ctx, `SELECT holder, said_at FROM timeline_watch WHERE only_row = 1 FOR UPDATE`).Scan(&holder, &said); err != nil {
			return fmt.Errorf("ask who watches: %w", err)
		}
		if holder != w.holder {
			if holder != "" && now.Sub(said) < lease {
				return nil
			}
			known = nil
		}
		leads = true
		sure := now.Sub(said) <= unwatched
		next, err := withKnown(ctx, tx, sales, known)
		if err != nil {
			return err
		}
		for _, id := range changed(sales, next) {
			if next[id], err = advance(ctx, tx, sales[id], next[id], now, sure); err != nil {
				return fmt.Errorf("state of sale %d: %w", id, err)
			}
			n++
		}
		known = next
		if _, err := tx.ExecContext(ctx, `UPDATE timeline_watch SET holder = ?, said_at = ? WHERE only_row = 1`, w.holder, now); err != nil {
			return fmt.Errorf("note who watches: %w", err)
		}
		return nil
	})
	if err != nil {
		w.said = time.Time{}
		return err
	}
	w.said = now
	if w.leads = leads; leads {
		w.known = known
	}
	w.states.Add(float64(n))
	return nil
}

// end lets another process take over at once. If it fails, another takes over after lease.
func (w *watch) end() error {
	if w.leads {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := w.db.ExecContext(ctx, `UPDATE timeline_watch SET holder = '' WHERE only_row = 1 AND holder = ?`, w.holder); err != nil {
			w.log.Info("timeline: another process takes over a little later", "error", err)
		}
	}
	return nil
}

// changed is which sales are in another state than was written last, ascending.
func changed(sales map[int64]wire.Sale, known map[int64]written) (ids []int64) {
	for id, s := range sales {
		if k := known[id]; k.state != string(s.State) && !(k.state == gone && s.State == wire.Ended) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// withKnown is a copy of known, and what MySQL has of those of the sales that are not in it.
func withKnown(ctx context.Context, tx *sql.Tx, sales map[int64]wire.Sale, known map[int64]written) (map[int64]written, error) {
	next := make(map[int64]written, len(sales))
	maps.Copy(next, known)
	var ids []any
	for _, id := range sorted(sales) {
		if _, ok := next[id]; !ok {
			next[id] = written{}
			ids = append(ids, id)
		}
	}
	for part := range slices.Chunk(ids, 500) {
		err := store.Each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			var k written
			var at sql.NullTime
			err := rows.Scan(&id, &k.state, &at, &k.changes)
			k.at = at.Time
			next[id] = k
			return err
		}, `SELECT sale_id, state, state_at, changes FROM timeline_sales WHERE sale_id IN (`+store.Marks(len(part))+`)`, part...)
		if err != nil {
			return nil, fmt.Errorf("read the states of %d sales: %w", len(part), err)
		}
	}
	return next, nil
}

// advance writes a sale's present state, which is another one than before.
func advance(ctx context.Context, tx *sql.Tx, s wire.Sale, before written, now time.Time, sure bool) (written, error) {
	at, exact := began(s, before, now)
	if err := lockSales(ctx, tx, map[int64]*part{s.ID: {}}); err != nil {
		return before, err
	}
	after := written{string(s.State), at, before.changes}
	unlisted := 1
	if before.changes < maxChanges || s.State == wire.Ended {
		if _, err := tx.ExecContext(ctx, `INSERT INTO sale_states (sale_id, n, at, state, sure) VALUES (?, ?, ?, ?, ?)`,
			s.ID, before.changes+1, at, after.state, sure || exact); err != nil {
			return before, err
		}
		after.changes, unlisted = before.changes+1, 0
	}
	_, err := tx.ExecContext(ctx, `UPDATE timeline_sales SET state = ?, state_at = ?, changes = ?, unlisted = unlisted + ? WHERE sale_id = ?`,
		after.state, at, after.changes, unlisted, s.ID)
	return after, err
}

// began is when the current state began. exact: the sale's window gives the time.
func began(s wire.Sale, before written, now time.Time) (at time.Time, exact bool) {
	window := func(at time.Time) bool { return !at.After(now) && at.After(before.at) }
	switch {
	case s.State == wire.Ended && window(s.EndsAt.Time):
		return s.EndsAt.Time, true
	case s.State == wire.Open && before.state == string(wire.Upcoming) && window(s.StartsAt.Time):
		return s.StartsAt.Time, true
	case now.Before(before.at):
		return before.at, false
	}
	return now, false
}
