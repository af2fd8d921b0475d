package timeline

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/store"
)

// pruneOnce bounds the users whose records one pass deletes.
const pruneOnce = 1000

// Prune is one pass over what is older than Config.Keep, each kind by a range of an index: records of up to pruneOnce
// users in one sale, the history of one sale that has ended, and gateways that are gone. It returns how much there was:
// call again at once until that is 0.
func (s *Store) Prune(ctx context.Context) (n int, err error) {
	before := s.now().Add(-s.keep)
	for _, one := range []struct {
		find string
		do   func(tx *sql.Tx, sale int64) (int, error)
	}{
		{`SELECT sale_id FROM timeline_sales WHERE oldest_at < ? ORDER BY oldest_at LIMIT 1`, func(tx *sql.Tx, sale int64) (int, error) {
			gone, err := deleteOld(ctx, tx, sale, before)
			if err != nil {
				return 0, err
			}
			var oldest sql.NullTime // exact again: it is a lower bound, for records live on while they are added to
			if err := tx.QueryRowContext(ctx, `SELECT MIN(last_at) FROM timeline WHERE sale_id = ?`, sale).Scan(&oldest); err != nil {
				return 0, err
			}
			set, args := "", []any{gone, oldest}
			if gone > 0 {
				set, args = ", pruned_to = ?", append(args, before)
			}
			_, err = tx.ExecContext(ctx, `UPDATE timeline_sales SET held = held - ?, oldest_at = ?`+set+` WHERE sale_id = ?`, append(args, sale)...)
			return int(gone), err
		}},
		{`SELECT sale_id FROM timeline_sales WHERE state = 'ended' AND state_at < ? ORDER BY state_at LIMIT 1`, func(tx *sql.Tx, sale int64) (int, error) {
			if _, err := tx.ExecContext(ctx, `DELETE FROM sale_states WHERE sale_id = ?`, sale); err != nil {
				return 0, err
			}
			_, err := tx.ExecContext(ctx, `UPDATE timeline_sales SET state = 'gone', changes = 0, unlisted = 0 WHERE sale_id = ? AND state = 'ended'`, sale)
			return 0, err
		}},
	} {
		var sale int64
		if err := s.db.QueryRowContext(ctx, one.find, before).Scan(&sale); errors.Is(err, sql.ErrNoRows) {
			continue
		} else if err != nil {
			return n, fmt.Errorf("prune timelines: %w", err)
		}
		gone := 0
		err := store.InTx(ctx, s.db, func(tx *sql.Tx) (err error) {
			if err := lockSales(ctx, tx, map[int64]*part{sale: {}}); err != nil {
				return err
			}
			gone, err = one.do(tx, sale)
			return err
		})
		if err != nil {
			return n, fmt.Errorf("prune the timelines of sale %d: %w", sale, err)
		}
		s.pruned.Add(float64(gone))
		n += max(gone, 1)
	}
	gateways, err := store.Prune(ctx, s.db, `DELETE FROM timeline_gateways WHERE at < ?`, before)
	return n + gateways, err
}

// deleteOld deletes the old records of the users of a sale that have the oldest. It first finds these along the index
// made for it: a DELETE by age would read all of the sale's rows.
func deleteOld(ctx context.Context, tx *sql.Tx, sale int64, before time.Time) (gone int64, err error) {
	seen, args := map[string]bool{}, []any{sale, before}
	err = store.Each(ctx, tx, func(rows *sql.Rows) error {
		var uid string
		err := rows.Scan(&uid)
		if !seen[uid] {
			seen[uid] = true
			args = append(args, uid)
		}
		return err
	}, fmt.Sprintf(`SELECT uid FROM timeline FORCE INDEX (timeline_age) WHERE sale_id = ? AND last_at < ? ORDER BY last_at LIMIT %d`, pruneOnce), sale, before)
	if err != nil || len(seen) == 0 {
		return 0, err
	}
	r, err := tx.ExecContext(ctx, `DELETE FROM timeline WHERE sale_id = ? AND last_at < ? AND uid IN (`+store.Marks(len(seen))+`)`, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
