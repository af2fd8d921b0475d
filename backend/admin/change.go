package admin

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// change is what one transaction decided.
type change struct {
	status  int
	action  string // for the audit log: "sale.pause"
	target  string // "sale 7"
	before  any
	after   any // also the answer
	nothing bool
	then    func(ctx context.Context) // carries on in Redis, beside the intents; nil for nothing
	intents []intent.Intent
	load    int64 // a new sale, to be loaded into Redis; 0 for none
	sku     int64 // a SKU whose intents were written, see moveSKU; 0 for none
}

// Who is in the audit log.
const (
	who   = "admin"
	timer = "timer"
)

// errRepeat: the Idempotency-Key is in admin_requests already.
var errRepeat = errors.New("the Idempotency-Key was used before")

// change runs f in a transaction, with the audit log and the Idempotency-Key in it, and applies what it decided to Redis.
// f may run several times.
func (a *Admin) change(r *request, f func(ctx context.Context, tx *sql.Tx) (change, error)) (*answer, error) {
	key, err := r.idempotencyKey()
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	var done change
	var body []byte
	err = store.InTx(ctx, a.DB, func(tx *sql.Tx) error {
		if key != "" {
			_, err := tx.ExecContext(ctx, `INSERT INTO admin_requests (idem_key, request, status, answer, created_at) VALUES (?, ?, 0, '', ?)`,
				key, r.hash(), a.now())
			if store.Duplicate(err) {
				return errRepeat
			}
			if err != nil {
				return fmt.Errorf("admin_requests: %w", err)
			}
		}
		var err error
		if done, err = f(ctx, tx); err != nil {
			return err
		}
		if body, err = json.Marshal(done.after); err != nil {
			panic("BUG: an answer that does not marshal: " + err.Error())
		}
		if !done.nothing {
			if err := a.record(ctx, tx, who, done); err != nil {
				return err
			}
		}
		if key != "" {
			if _, err := tx.ExecContext(ctx, `UPDATE admin_requests SET status = ?, answer = ? WHERE idem_key = ?`, done.status, string(body), key); err != nil {
				return fmt.Errorf("admin_requests: %w", err)
			}
		}
		return nil
	})
	if errors.Is(err, errRepeat) {
		return a.repeat(ctx, r, key)
	}
	if err != nil {
		return nil, err
	}
	if !done.nothing {
		a.Log.Info("admin change", "request_id", r.id, "action", done.action, "target", done.target)
		failpoint.Hit("admin.after-commit")
		a.apply(ctx, done)
	}
	return &answer{status: done.status, raw: body}, nil
}

// record writes the audit log's row of a change.
func (a *Admin) record(ctx context.Context, tx *sql.Tx, who string, c change) error {
	before, err1 := json.Marshal(c.before)
	after, err2 := json.Marshal(c.after)
	if err := errors.Join(err1, err2); err != nil {
		panic("BUG: an audit value that does not marshal: " + err.Error())
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO audit_log (at, who, action, target, before_value, after_value) VALUES (?, ?, ?, ?, ?, ?)`,
		a.now(), who, c.action, c.target, string(before), string(after)); err != nil {
		return fmt.Errorf("audit_log: %w", err)
	}
	return nil
}

// repeat answers what the first request under this key was answered.
func (a *Admin) repeat(ctx context.Context, r *request, key string) (*answer, error) {
	var hash, body string
	var status int
	err := a.DB.QueryRowContext(ctx, `SELECT request, status, answer FROM admin_requests WHERE idem_key = ?`, key).Scan(&hash, &status, &body)
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
	return store.Prune(ctx, a.DB, `DELETE FROM admin_requests WHERE created_at < ? ORDER BY created_at`, a.now().Add(-keysKept))
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

// applyTimeout bounds what is tried at once after a COMMIT; the timer does the rest.
const applyTimeout = 10 * time.Second

// apply brings a committed change to Redis and to the feed, whether or not the operator is still there to hear of it.
func (a *Admin) apply(ctx context.Context, c change) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTimeout)
	defer cancel()
	later := func(err error) {
		a.Log.Warn("a change is in MySQL and not in Redis yet: the timer goes on with it", "action", c.action, "target", c.target, "error", err)
	}
	if c.load != 0 {
		if err := a.Reconcile(ctx, c.load); err != nil {
			later(err)
		}
		failpoint.Hit("admin.after-load")
	}
	if c.then != nil {
		c.then(ctx)
	}
	if err := a.Intents.Now(ctx, c.intents...); err != nil {
		later(err)
	}
	if c.sku != 0 {
		if err := a.Intents.OfSKU(ctx, c.sku); err != nil {
			later(err)
		}
	}
	if err := a.Changed(ctx); err != nil {
		later(err)
	}
}

// book writes a ledger row for a change of a sale's available units, after the stock row was updated: available and
// locked are what it has now.
func (a *Admin) book(ctx context.Context, tx *sql.Tx, sale int64, kind, ref string, units, available, locked int64) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after,
		locked_before, locked_change, locked_after, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?)`,
		sale, kind, ref, available-units, units, available, locked, locked, a.now())
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// moveSKU writes the ledger row, and the intent for Redis, of a change of a SKU's available units. k is as it was before,
// and its row is locked.
func (a *Admin) moveSKU(ctx context.Context, tx *sql.Tx, k adminapi.SKU, kind string, units int64) error {
	i, err := intent.AdjustSKU(ctx, tx, a.now(), k.ID, units)
	if err != nil {
		return err
	}
	return sku.Record(ctx, tx, a.now(), sku.Change{SKU: k.ID, Kind: kind, Ref: i.Ref(), Available: units}, k.Available, k.Locked)
}

func (a *Admin) now() time.Time { return a.Clock.Now().Truncate(time.Millisecond) }
