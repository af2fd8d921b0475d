package lock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// ErrFenced: a later holder of the lock has written already. This holder's lock was lost, and it must stop.
var ErrFenced = errors.New("a later holder of the lock has written already")

// Guard lets a transaction write what a lock protects only while no later holder has written. It is the first statement of each
// such transaction, and an error ends the transaction. table is a constant of the code, and its row id has the column
// `fence BIGINT NOT NULL`, 0 at first. The row stays locked until the transaction ends, so a later holder writes after it.
func Guard(ctx context.Context, tx *sql.Tx, table string, id, fence int64) error {
	r, err := tx.ExecContext(ctx, `UPDATE `+table+` SET fence = ? WHERE id = ? AND fence < ?`, fence, id, fence)
	if err != nil {
		return fmt.Errorf("fence %d of row %d in %s: %w", fence, id, table, err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 1 {
		return err
	}
	var newest int64
	if err := tx.QueryRowContext(ctx, `SELECT fence FROM `+table+` WHERE id = ? FOR UPDATE`, id).Scan(&newest); err != nil {
		return fmt.Errorf("fence %d of row %d in %s: %w", fence, id, table, err)
	}
	if newest > fence {
		return fmt.Errorf("fence %d of row %d in %s, which has %d: %w", fence, id, table, newest, ErrFenced)
	}
	return nil // this holder has written before
}
