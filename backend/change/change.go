// Package change makes the changes of operators and of the timer.
//
// A change is one MySQL transaction: the change itself, the sale's next version, the intents that carry it to Redis, and a row
// of the audit log. After the COMMIT it is applied to Redis at once. What fails there is left to the timer, which goes on with it.
package change

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
)

// Author is who made a change, in the audit log.
type Author struct {
	Name string
	Role string // of an operator; "" for the timer
}

// Timer is the author of what nobody asked for.
var Timer = Author{Name: "timer"}

// Change is what one transaction decided.
type Change struct {
	Action  string // for the audit log: "sale.pause"
	Target  string // "sale 7"
	Before  any    // nil: it was made
	After   any
	Nothing bool                      // nothing was changed: the audit log gets no row
	Then    func(ctx context.Context) // carries on in Redis, beside the intents; nil for nothing
	Intents []intent.Intent           // of one sale, in order
	Load    int64                     // a new sale, to be loaded into Redis; 0 for none
	SKU     int64                     // a SKU whose intents were written; 0 for none
}

// Maker makes changes. All of it is needed. It is safe for concurrent use.
type Maker struct {
	DB      *sql.DB
	Clock   *clock.Clock
	Intents *intent.Runner
	// Reconcile writes one sale into Redis from MySQL and the outbox: reconcile.Reconciler.Sale.
	Reconcile func(ctx context.Context, sale int64) error
	// Changed is called after each change, so that the feed has it at once: catalog.Catalog.Refresh.
	Changed func(ctx context.Context) error
	Log     *slog.Logger
}

// Now is the time as MySQL keeps it, in milliseconds.
func (m *Maker) Now() time.Time { return m.Clock.Now().Truncate(time.Millisecond) }

// InTx runs f in a transaction, and writes the audit log's row of what f decided. f may run several times.
func (m *Maker) InTx(ctx context.Context, by Author, f func(ctx context.Context, tx *sql.Tx) (Change, error)) (c Change, err error) {
	err = store.InTx(ctx, m.DB, func(tx *sql.Tx) error {
		var err error
		if c, err = f(ctx, tx); err != nil || c.Nothing {
			return err
		}
		return m.log(ctx, tx, by, c)
	})
	return c, err
}

func (m *Maker) log(ctx context.Context, tx *sql.Tx, by Author, c Change) error {
	before, err1 := json.Marshal(c.Before)
	after, err2 := json.Marshal(c.After)
	if err := errors.Join(err1, err2); err != nil {
		panic("BUG: an audit value that does not marshal: " + err.Error())
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO audit_log (at, who, role, action, target, before_value, after_value) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		m.Now(), by.Name, by.Role, c.Action, c.Target, string(before), string(after)); err != nil {
		return fmt.Errorf("audit_log: %w", err)
	}
	return nil
}

// applyTimeout bounds what is tried at once after a COMMIT; the timer does the rest.
const applyTimeout = 10 * time.Second

// Apply brings a committed change to Redis and to the feed, whether or not ctx ends. What fails is logged, and left to the timer.
func (m *Maker) Apply(ctx context.Context, c Change) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTimeout)
	defer cancel()
	later := func(err error) {
		if err != nil {
			m.Log.Warn("a change is in MySQL and not in Redis yet: the timer goes on with it", "action", c.Action, "target", c.Target, "error", err)
		}
	}
	if c.Load != 0 {
		later(m.Reconcile(ctx, c.Load))
		failpoint.Hit("admin.after-load")
	}
	if c.Then != nil {
		c.Then(ctx)
	}
	later(m.Intents.Now(ctx, c.Intents...))
	if c.SKU != 0 {
		later(m.Intents.OfSKU(ctx, c.SKU))
	}
	later(m.Changed(ctx))
}

// OfSale is a change of a sale as the audit log and operators see it.
func (m *Maker) OfSale(ctx context.Context, tx *sql.Tx, action string, c sale.Change) (Change, error) {
	views, err := m.Sales(ctx, tx, c.After, c.Before)
	if err != nil {
		return Change{}, err
	}
	out := Change{Action: action, Target: Sale(c.After.ID), After: views[0], Nothing: c.Nothing, Intents: c.Intents, SKU: c.SKU}
	if c.Before.ID == 0 {
		out.Load = c.After.ID
	} else {
		out.Before = views[1]
	}
	return out, nil
}

// Sale is a sale's name in the audit log.
func Sale(id int64) string { return "sale " + strconv.FormatInt(id, 10) }

// SKU is a SKU's name in the audit log.
func SKU(id int64) string { return "sku " + strconv.FormatInt(id, 10) }
