package order

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"floodgate.internal/backend/store"
)

// What guards a campaign's units (sales.stock_guard). Everything but GuardVersion works as GuardConditional.
const (
	GuardConditional = "conditional" // the UPDATE's own condition: enough is left
	GuardVersion     = "version"     // the row's version is the one that was read
)

// guard changes one sale's stock row by sum, once, or returns errUnits, errOvertaken, or an error of MySQL. With either
// guard the row's version counts the change.
type guard func(ctx context.Context, tx *sql.Tx, sale int64, sum move) error

var (
	// errUnits: there are too few units, it is another epoch, or there is no such sale.
	errUnits = errors.New("the stock row does not allow it")
	// errOvertaken: each time the stock row was about to be changed, another transaction had changed it since it was
	// read. The units may still be there: roll back and begin again.
	errOvertaken = errors.New("the stock row was changed by others each time")
)

// conditional decides in the UPDATE itself, under the row's lock: enough must be left.
func conditional(ctx context.Context, tx *sql.Tx, sale int64, sum move) error {
	query := `UPDATE sale_stock SET available = available + ?, locked = locked + ?, sold = sold + ?, version = version + 1
		WHERE sale_id = ? AND available >= ? AND locked >= ?`
	args := []any{sum.available, sum.locked, sum.sold, sale, max(0, -sum.available), max(0, -sum.locked)}
	if sum.epoch != anyEpoch {
		query += ` AND epoch = ?`
		args = append(args, sum.epoch)
	}
	n, err := store.Changed(tx.ExecContext(ctx, query, args...))
	if err == nil && n != 1 {
		err = errUnits
	}
	return err
}

const (
	versionAttempts = 8
	versionPause    = 2 * time.Millisecond // before the second attempt, at most; each further one may take that much longer
)

// byVersion is optimistic. It reads the row without a lock, decides, and changes the row only if its version is still the
// one that was read (Kung and Robinson, "On Optimistic Methods for Concurrency Control", 1981). A version is never used
// again, so a row whose units went and came back is not taken for unchanged (the ABA problem of comparing the units). An
// overtaken transaction reads again after a short random pause, a bounded number of times, and then returns errOvertaken.
// READ COMMITTED makes each read see what was committed before it.
func (s *Store) byVersion(ctx context.Context, tx *sql.Tx, sale int64, sum move) error {
	for attempt := 1; ; attempt++ {
		var available, locked, epoch, version int64
		err := tx.QueryRowContext(ctx, `SELECT available, locked, epoch, version FROM sale_stock WHERE sale_id = ?`, sale).Scan(&available, &locked, &epoch, &version)
		if errors.Is(err, sql.ErrNoRows) {
			return errUnits
		}
		if err != nil {
			return err
		}
		if sum.epoch != anyEpoch && epoch != sum.epoch || available+sum.available < 0 || locked+sum.locked < 0 {
			return errUnits
		}
		n, err := store.Changed(tx.ExecContext(ctx, `UPDATE sale_stock SET available = available + ?, locked = locked + ?, sold = sold + ?, version = version + 1
			WHERE sale_id = ? AND version = ? AND epoch = ?`, sum.available, sum.locked, sum.sold, sale, version, epoch))
		if err != nil || n == 1 {
			return err
		}
		s.metrics.overtaken.Inc()
		if attempt == versionAttempts {
			return errOvertaken
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(time.Duration(attempt) * versionPause)):
		}
	}
}
