package sale

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
)

// Change is what one transaction did to a sale.
type Change struct {
	Before, After Record          // Before is zero for a new sale
	Nothing       bool            // all was as asked: After is Before
	Intents       []intent.Intent // what Redis is to follow, in this order
	SKU           int64           // a SKU whose intents were written; 0 for none
}

// Every function here takes a sale that Lock has read in the same transaction, and the time as MySQL keeps it, in milliseconds.
// The locks that follow are, in this order: the SKU's row, the stock row.

// Update makes a sale what next says of its title, price, category, picture, publication, window, limit, time to pay and guard. What may
// change is for Allows and AllowsCampaign to say.
func Update(ctx context.Context, tx *sql.Tx, at time.Time, before, next Record) (Change, error) {
	if before.Equal(&next.Sale) && before.Guard == next.Guard {
		return Change{Before: before, After: before, Nothing: true}, nil
	}
	_, err := tx.ExecContext(ctx, `UPDATE sales SET title = ?, price = ?, category = ?, picture = ?, published = ?, starts_at = ?, ends_at = ?,
		per_user_limit = ?, pay_within_s = ?, stock_guard = ? WHERE id = ?`, next.Title, next.Price, next.Category, next.Picture, !next.Hidden,
		next.StartsAt, next.EndsAt, next.PerUserLimit, int64(next.PayWithin/time.Second), next.Guard, before.ID)
	if err != nil {
		return Change{}, fmt.Errorf("update sale %d: %w", before.ID, err)
	}
	return redefine(ctx, tx, at, before)
}

// Pause stops a sale from selling, or lets it go on. *ClosedError.
func Pause(ctx context.Context, tx *sql.Tx, at time.Time, before Record, paused bool) (Change, error) {
	if err := before.Open(); err != nil {
		return Change{}, err
	}
	if before.Paused == paused {
		return Change{Before: before, After: before, Nothing: true}, nil
	}
	if _, err := tx.ExecContext(ctx, `UPDATE sales SET paused = ? WHERE id = ?`, paused, before.ID); err != nil {
		return Change{}, fmt.Errorf("pause sale %d, %t: %w", before.ID, paused, err)
	}
	return redefine(ctx, tx, at, before)
}

// Close ends a sale for good. Orders that were accepted before are honoured. Closing a closed sale changes nothing.
func Close(ctx context.Context, tx *sql.Tx, at time.Time, before Record) (Change, error) {
	if before.ClosedAt != nil {
		return Change{Before: before, After: before, Nothing: true}, nil
	}
	if _, err := tx.ExecContext(ctx, `UPDATE sales SET closed_at = ? WHERE id = ?`, at, before.ID); err != nil {
		return Change{}, fmt.Errorf("close sale %d: %w", before.ID, err)
	}
	return redefine(ctx, tx, at, before)
}

// Restock gives a sale more units, at once on sale: new ones for a SKU of its own, available ones of a shared SKU.
// *ClosedError, *LimitError, *UnitsError.
func Restock(ctx context.Context, tx *sql.Tx, at time.Time, before Record, units int64) (Change, error) {
	if err := before.Open(); err != nil {
		return Change{}, err
	}
	k, err := lockSKU(ctx, tx, before.SKU)
	if err != nil {
		return Change{}, err
	}
	if before.Total+units > MaxUnits {
		return Change{}, &LimitError{before.Total, units}
	}
	if k.Own {
		if k.Total+units > MaxUnits {
			return Change{}, &LimitError{k.Total, units}
		}
		_, err = tx.ExecContext(ctx, `UPDATE skus SET total = total + ?, allotted = allotted + ? WHERE id = ?`, units, units, k.ID)
	} else {
		err = k.allot(ctx, tx, at, units)
	}
	if err != nil {
		return Change{}, err
	}
	adjust, err := moveUnits(ctx, tx, at, before.ID, ledger.Restock, units)
	if err != nil {
		return Change{}, err
	}
	failpoint.Hit("admin.mid-restock")
	c, err := redefine(ctx, tx, at, before, adjust)
	c.SKU = k.ID
	return c, err
}

// redefine counts the version, and intends the definition for Redis after adjusts.
func redefine(ctx context.Context, tx *sql.Tx, at time.Time, before Record, adjusts ...intent.Intent) (Change, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE sales SET version = version + 1 WHERE id = ?`, before.ID); err != nil {
		return Change{}, fmt.Errorf("version of sale %d: %w", before.ID, err)
	}
	define, err := intent.Define(ctx, tx, at, before.ID)
	if err != nil {
		return Change{}, err
	}
	after, err := Get(ctx, tx, before.ID)
	return Change{Before: before, After: after, Intents: append(adjusts, define)}, err
}

// Return gives the available units of a closed sale back to its SKU. It changes nothing where there are none, and where the sale
// is not closed, or archived.
func Return(ctx context.Context, tx *sql.Tx, at time.Time, before Record) (Change, error) {
	k, err := lockSKU(ctx, tx, before.SKU)
	if err != nil {
		return Change{}, err
	}
	var units int64
	if err := tx.QueryRowContext(ctx, `SELECT available FROM sale_stock WHERE sale_id = ? FOR UPDATE`, before.ID).Scan(&units); err != nil {
		return Change{}, fmt.Errorf("stock of sale %d: %w", before.ID, err)
	}
	if units == 0 || before.ClosedAt == nil || before.ArchivedAt != nil {
		return Change{Before: before, After: before, Nothing: true}, nil
	}
	adjust, err := k.giveBack(ctx, tx, at, before.ID, units)
	if err != nil {
		return Change{}, err
	}
	after, err := Get(ctx, tx, before.ID)
	return Change{Before: before, After: after, Intents: []intent.Intent{adjust}, SKU: k.ID}, err
}

// Seen is what a look at a sale saw, that Archive must find unchanged.
type Seen struct {
	Version int64 // of the sale
	Epoch   int64 // of the stock row
	Token   int64 // of the newest reconciler: one that began after it may have moved what was audited
}

// Token is the fencing token of the newest reconciler of a sale.
func Token(ctx context.Context, q store.Queryer, sale int64) (int64, error) {
	tokens, err := store.Column[int64](ctx, q, `SELECT token FROM sale_stock WHERE sale_id = ?`, sale)
	if err == nil && len(tokens) == 0 {
		err = sql.ErrNoRows
	}
	if err != nil {
		return 0, fmt.Errorf("stock of sale %d: %w", sale, err)
	}
	return tokens[0], nil
}

// OpenIntents counts the intents of a sale that are not done.
func OpenIntents(ctx context.Context, q store.Queryer, sale int64) (int64, error) {
	counts, err := store.Column[int64](ctx, q, `SELECT COUNT(*) FROM intents WHERE sale_id = ? AND done_at IS NULL`, sale)
	if err != nil {
		return 0, fmt.Errorf("open intents of sale %d: %w", sale, err)
	}
	return counts[0], nil
}

// Archive takes a sale that is over and settled out of Redis: from then on MySQL alone answers for it. Unsold units go back to
// the SKU. Archiving an archived sale changes nothing. ErrChanged: it is not as it was seen, or an order waits for payment, or
// an intent is open.
func Archive(ctx context.Context, tx *sql.Tx, at time.Time, before Record, seen Seen) (Change, error) {
	if before.ArchivedAt != nil {
		return Change{Before: before, After: before, Nothing: true}, nil
	}
	k, err := lockSKU(ctx, tx, before.SKU)
	if err != nil {
		return Change{}, err
	}
	var units, locked, epoch, token int64
	err = tx.QueryRowContext(ctx, `SELECT available, locked, epoch, token FROM sale_stock WHERE sale_id = ? FOR UPDATE`, before.ID).
		Scan(&units, &locked, &epoch, &token)
	if err != nil {
		return Change{}, fmt.Errorf("stock of sale %d: %w", before.ID, err)
	}
	open, err := OpenIntents(ctx, tx, before.ID)
	if err != nil {
		return Change{}, err
	}
	if (Seen{before.Version, epoch, token}) != seen || locked > 0 || open > 0 {
		return Change{}, ErrChanged
	}
	var todo []intent.Intent
	if units > 0 {
		adjust, err := k.giveBack(ctx, tx, at, before.ID, units)
		if err != nil {
			return Change{}, err
		}
		todo = append(todo, adjust)
	}
	// A reconciler that began before this has an older token, a message that comes later an older epoch.
	if _, err := tx.ExecContext(ctx, `UPDATE sale_stock SET epoch = epoch + 1, token = token + 1 WHERE sale_id = ?`, before.ID); err != nil {
		return Change{}, fmt.Errorf("stock of sale %d: %w", before.ID, err)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE sales SET archived_at = ?, closed_at = COALESCE(closed_at, ?), version = version + 1 WHERE id = ?`, at, at, before.ID); err != nil {
		return Change{}, fmt.Errorf("archive sale %d: %w", before.ID, err)
	}
	if err := eligibility.End(ctx, tx, before.ID); err != nil {
		return Change{}, err
	}
	failpoint.Hit("admin.mid-archive")
	c, err := Forget(ctx, tx, at, before)
	if err != nil {
		return Change{}, err
	}
	c.Intents, c.SKU = append(todo, c.Intents...), k.ID
	c.After, err = Get(ctx, tx, before.ID)
	return c, err
}

// Forget intends that the keys of an archived sale leave Redis: an older copy of Redis may have brought them back.
func Forget(ctx context.Context, tx *sql.Tx, at time.Time, before Record) (Change, error) {
	forget, err := intent.Archive(ctx, tx, at, before.ID)
	return Change{Before: before, After: before, Intents: []intent.Intent{forget}}, err
}
