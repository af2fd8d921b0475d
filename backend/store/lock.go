package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// migrationLock lets one migration of a schema run at a time: a named lock of the server, held by the very connection
// that migrates, so that a pool of one connection is enough and the lock ends with its holder.
type migrationLock struct{}

// lockName is the lock's name: one for each schema, within the 64 characters that a name may have.
const lockName = `CONCAT('floodgate:', SHA1(DATABASE()))`

// lockWait is how long one call waits, in seconds: shorter than the connection's read time-out.
const lockWait = 5

// SessionLock waits for the lock until ctx ends.
func (migrationLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	for {
		var got sql.NullInt64
		if err := conn.QueryRowContext(ctx, `SELECT GET_LOCK(`+lockName+`, ?)`, lockWait).Scan(&got); err != nil {
			return fmt.Errorf("wait for the migration lock: %w", err)
		}
		if got.Int64 == 1 {
			return zeroVersion(ctx, conn)
		}
	}
}

// zeroVersion gives the version table its first row, where whoever made the table died before that.
func zeroVersion(ctx context.Context, conn *sql.Conn) error {
	var rows int
	err := conn.QueryRowContext(ctx, `SELECT COUNT(*) FROM goose_db_version`).Scan(&rows)
	if number(err, 1146) { // there is no such table: it is made now
		return nil
	}
	if err == nil && rows == 0 {
		_, err = conn.ExecContext(ctx, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, TRUE)`)
	}
	if err != nil {
		return fmt.Errorf("the version table: %w", err)
	}
	return nil
}

// SessionUnlock gives the lock back.
func (migrationLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	var gave sql.NullInt64
	if err := conn.QueryRowContext(ctx, `SELECT RELEASE_LOCK(`+lockName+`)`).Scan(&gave); err != nil {
		return fmt.Errorf("give the migration lock back: %w", err)
	}
	if gave.Int64 != 1 {
		return errors.New("give the migration lock back: it was not held")
	}
	return nil
}
