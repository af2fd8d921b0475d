package admin

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/change"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// errRepeat: the Idempotency-Key is in admin_requests already.
var errRepeat = errors.New("the Idempotency-Key was used before")

// change makes a change in one transaction with its Idempotency-Key, and applies it to Redis. f may run several times.
func (a *Admin) change(r *request, f func(ctx context.Context, tx *sql.Tx) (change.Change, error)) (*answer, error) {
	key, err := r.idempotencyKey()
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	var ans *answer
	done, err := a.Changes.InTx(ctx, change.Author{Name: r.by.Name, Role: string(r.by.Role)}, func(ctx context.Context, tx *sql.Tx) (c change.Change, err error) {
		if err := a.take(ctx, tx, r, key); err != nil {
			return c, err
		}
		if c, err = f(ctx, tx); err != nil {
			return c, err
		}
		ans = answered(c)
		return c, a.keep(ctx, tx, r, key, ans)
	})
	if errors.Is(err, errRepeat) {
		return a.repeat(ctx, r, key)
	}
	if err != nil {
		return nil, err
	}
	if !done.Nothing {
		a.Log.Info("admin change", "request_id", r.id, "operator", r.by.Name, "action", done.Action, "target", done.Target)
		failpoint.Hit("admin.after-commit")
		a.Changes.Apply(ctx, done)
	}
	return ans, nil
}

// answered is the answer of a change: what is after it, as new where there was nothing before.
func answered(c change.Change) *answer {
	body, err := json.Marshal(c.After)
	if err != nil {
		panic("BUG: an answer that does not marshal: " + err.Error())
	}
	if c.Before == nil && !c.Nothing {
		return &answer{status: http.StatusCreated, raw: body}
	}
	return &answer{status: http.StatusOK, raw: body}
}

// take notes that an operator used a key; errRepeat. Another operator's key is another key, whatever it says.
func (a *Admin) take(ctx context.Context, tx *sql.Tx, r *request, key string) error {
	if key == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO admin_requests (idem_key, who, request, status, answer, created_at) VALUES (?, ?, ?, 0, '', ?)`,
		key, r.by.Name, r.hash(), a.Changes.Now())
	if store.Duplicate(err) {
		return errRepeat
	}
	if err != nil {
		return fmt.Errorf("admin_requests: %w", err)
	}
	return nil
}

// keep notes what the request of a key was answered.
func (a *Admin) keep(ctx context.Context, tx *sql.Tx, r *request, key string, ans *answer) error {
	if key == "" {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `UPDATE admin_requests SET status = ?, answer = ? WHERE idem_key = ? AND who = ?`, ans.status, string(ans.raw), key, r.by.Name); err != nil {
		return fmt.Errorf("admin_requests: %w", err)
	}
	return nil
}

// repeat answers what the operator's first request under this key was answered.
func (a *Admin) repeat(ctx context.Context, r *request, key string) (*answer, error) {
	var hash, body string
	var status int
	err := a.DB.QueryRowContext(ctx, `SELECT request, status, answer FROM admin_requests WHERE idem_key = ? AND who = ?`, key, r.by.Name).Scan(&hash, &status, &body)
	if err != nil {
		return nil, fmt.Errorf("admin_requests: %w", err)
	}
	if hash != r.hash() {
		p := problem.New(problem.IdempotencyKeyReused, "this Idempotency-Key was used for another request: take a new key for a new request")
		p.Field = "Idempotency-Key"
		return nil, p
	}
	return &answer{status: status, raw: []byte(body)}, nil
}

// keysKept is how long an Idempotency-Key is remembered; after that the same request is a new one.
const keysKept = 30 * 24 * time.Hour

// PruneKeys forgets Idempotency-Keys that are older than that, a bounded number, and says how many: call again at once while
// that is more than none.
func (a *Admin) PruneKeys(ctx context.Context) (int, error) {
	return store.Prune(ctx, a.DB, `DELETE FROM admin_requests WHERE created_at < ? ORDER BY created_at`, a.Changes.Now().Add(-keysKept))
}

func (r *request) idempotencyKey() (string, error) {
	values := r.Header.Values("Idempotency-Key")
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || !wire.ValidIdempotencyKey(values[0]):
		return "", problem.Invalid("Idempotency-Key", fmt.Sprintf("give one, of 1 to %d visible ASCII characters", wire.MaxIdempotencyKey))
	}
	return values[0], nil
}

// hash tells requests under one key apart: by method, path and body.
func (r *request) hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", r.Method, r.URL.Path)
	h.Write(r.body)
	return hex.EncodeToString(h.Sum(nil))
}
