package store

import (
	"context"
	"database/sql"
	"fmt"
)

// pruneOnce bounds the rows of one Prune.
const pruneOnce = 1000

// Prune runs a DELETE (without a LIMIT) for at most pruneOnce rows, and says how many it deleted: call again at once while that
// is more than none. It is a READ COMMITTED transaction, whose locks keep nobody from inserting between what it deletes.
func Prune(ctx context.Context, db *sql.DB, statement string, args ...any) (n int, err error) {
	err = InTx(ctx, db, func(tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, statement+fmt.Sprintf(` LIMIT %d`, pruneOnce), args...)
		if err != nil {
			return err
		}
		rows, err := r.RowsAffected()
		n = int(rows)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", statement, err)
	}
	return n, nil
}
