package store

import (
	"context"
	"database/sql"
	"fmt"
)

// Durable returns nil once all that was read from MySQL before is on its disk. InnoDB shows others what a transaction did before
// it has synced its log, for as long as that takes; a server that is killed in between takes it back. So whoever did not commit
// it, or was not told that it is committed, calls this before doing elsewhere what cannot be undone: a commit that follows in the
// log syncs all that is before it. On an error nobody knows.
func Durable(ctx context.Context, db *sql.DB) error {
	done, err := db.ExecContext(ctx, `UPDATE durable SET n = n + 1 WHERE only_row = 1`)
	if err != nil {
		return fmt.Errorf("sync what was read: %w", err)
	}
	n, err := done.RowsAffected()
	if err == nil && n != 1 {
		err = fmt.Errorf("the table durable has %d rows, not the one that backend migrate makes", n)
	}
	if err != nil {
		return fmt.Errorf("sync what was read: %w", err)
	}
	return nil
}
