package revocation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// Entry is a revocation as operators see it.
type Entry struct {
	ID     int64      `json:"id"`
	JTI    string     `json:"jti,omitempty"`
	UID    string     `json:"uid,omitempty"`
	Before *wire.Time `json:"before,omitempty"` // of a uid
	Until  wire.Time  `json:"until"`
	MadeAt wire.Time  `json:"made_at"`
	Gone   bool       `json:"gone,omitempty"` // it was taken back
}

var (
	// ErrUnknown: there is no such revocation.
	ErrUnknown = errors.New("there is no such revocation")
	// ErrFull: the list has wire.MaxRevocations entries, those that were taken back and have not expired included.
	ErrFull = errors.New("the list of revoked tokens is full")
)

// Subject is whose tokens are revoked: a jti or a uid, one of them.
type Subject struct{ JTI, UID string }

func (s Subject) key() (kind, subject string) {
	if s.JTI != "" {
		return "jti", s.JTI
	}
	return "uid", s.UID
}

// Add revokes the token with a jti, or a uid's tokens that were issued before a time, until another time. An entry that is there
// is never weakened: the later times hold. before is the entry as it was (nil: there was none), and after as it is; changed says
// whether they differ. ErrFull.
func Add(ctx context.Context, tx *sql.Tx, s Subject, issuedBefore, until, at time.Time) (before *Entry, after Entry, changed bool, err error) {
	version, err := lock(ctx, tx)
	if err != nil {
		return nil, after, false, err
	}
	kind, subject := s.key()
	if s.JTI != "" {
		issuedBefore = at // not read
	}
	old, gone, err := get(ctx, tx, s)
	switch {
	case errors.Is(err, ErrUnknown):
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM revocations`).Scan(&n); err != nil {
			return nil, after, false, fmt.Errorf("count the revocations: %w", err)
		}
		if n >= wire.MaxRevocations {
			return nil, after, false, ErrFull
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO revocations (kind, subject, before_at, until_at, gone, version, made_at) VALUES (?, ?, ?, ?, FALSE, ?, ?)`,
			kind, subject, issuedBefore, until, version+1, at)
	case err != nil:
		return nil, after, false, err
	default:
		if !gone {
			before = &old
			if old.Before != nil && old.Before.After(issuedBefore) {
				issuedBefore = old.Before.Time
			}
			if old.Before == nil || old.Before.Equal(issuedBefore) { // a jti has no time of its own, so it is good as it is
				return before, old, false, nil
			}
		}
		if old.Until.After(until) {
			until = old.Until.Time
		}
		_, err = tx.ExecContext(ctx, `UPDATE revocations SET before_at = ?, until_at = ?, gone = FALSE, version = ?, made_at = ? WHERE kind = ? AND subject = ?`,
			issuedBefore, until, version+1, at, kind, subject)
	}
	if err == nil {
		err = count(ctx, tx, version+1)
	}
	if err == nil {
		after, _, err = get(ctx, tx, s)
	}
	if err != nil {
		return nil, after, false, fmt.Errorf("revoke tokens: %w", err)
	}
	return before, after, true, nil
}

// Remove takes a revocation back, and returns it. ErrUnknown.
func Remove(ctx context.Context, tx *sql.Tx, s Subject) (Entry, error) {
	version, err := lock(ctx, tx)
	if err != nil {
		return Entry{}, err
	}
	e, gone, err := get(ctx, tx, s)
	if err != nil || gone {
		return Entry{}, errors.Join(err, when(gone, ErrUnknown))
	}
	kind, subject := s.key()
	if _, err = tx.ExecContext(ctx, `UPDATE revocations SET gone = TRUE, version = ? WHERE kind = ? AND subject = ?`, version+1, kind, subject); err == nil {
		err = count(ctx, tx, version+1)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("take a revocation back: %w", err)
	}
	return e, nil
}

func when(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// lock returns the version, and keeps others from making changes until the transaction ends.
func lock(ctx context.Context, tx *sql.Tx) (version int64, err error) {
	if err := tx.QueryRowContext(ctx, `SELECT version FROM revocation_versions WHERE only_row = 1 FOR UPDATE`).Scan(&version); err != nil {
		return 0, fmt.Errorf("lock the revocations: %w", err)
	}
	return version, nil
}

func count(ctx context.Context, tx *sql.Tx, version int64) error {
	_, err := tx.ExecContext(ctx, `UPDATE revocation_versions SET version = ? WHERE only_row = 1`, version)
	return err
}

const columns = `id, kind, subject, before_at, until_at, made_at, gone, version`

// scan reads a row of columns.
func scan(row interface{ Scan(...any) error }) (e Entry, gone bool, version int64, err error) {
	var kind, subject string
	var before, until, made time.Time
	if err = row.Scan(&e.ID, &kind, &subject, &before, &until, &made, &gone, &version); err != nil {
		return e, false, 0, err
	}
	e.Until, e.MadeAt = wire.At(until), wire.At(made)
	if kind == "jti" {
		e.JTI = subject
	} else {
		at := wire.At(before)
		e.UID, e.Before = subject, &at
	}
	return e, gone, version, nil
}

// get returns an entry, also one that was taken back. ErrUnknown.
func get(ctx context.Context, q store.Querier, s Subject) (Entry, bool, error) {
	kind, subject := s.key()
	e, gone, _, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM revocations WHERE kind = ? AND subject = ?`, kind, subject))
	if errors.Is(err, sql.ErrNoRows) {
		return e, false, ErrUnknown
	}
	if err != nil {
		return e, false, fmt.Errorf("read a revocation: %w", err)
	}
	return e, gone, nil
}

// Find returns the entry of a subject, one at most: it has none once its time is up at now, or when it was taken back.
func Find(ctx context.Context, db *sql.DB, s Subject, now time.Time) ([]Entry, error) {
	e, gone, err := get(ctx, db, s)
	if errors.Is(err, ErrUnknown) || err == nil && (gone || !e.Until.After(now)) {
		return []Entry{}, nil
	}
	return []Entry{e}, err
}

// Page returns entries with an id below that, the newest first, limit at most.
func Page(ctx context.Context, db *sql.DB, below, limit int64, now time.Time) ([]Entry, error) {
	list := []Entry{}
	err := store.Each(ctx, db, func(rows *sql.Rows) error {
		e, _, _, err := scan(rows)
		list = append(list, e)
		return err
	}, `SELECT `+columns+` FROM revocations WHERE id < ? AND NOT gone AND until_at > ? ORDER BY id DESC LIMIT ?`, below, now, limit)
	if err != nil {
		return nil, fmt.Errorf("read the revocations: %w", err)
	}
	return list, nil
}

// pruneAfter is how long an expired entry stays: clocks differ.
const pruneAfter = time.Minute

// Prune deletes entries whose time was up a minute before now, a bounded number, and says how many: call again at once while that
// is more than none. Who has one in memory forgets it by itself.
func Prune(ctx context.Context, db *sql.DB, now time.Time) (int, error) {
	return store.Prune(ctx, db, `DELETE FROM revocations WHERE until_at < ? ORDER BY until_at`, now.Add(-pruneAfter))
}
