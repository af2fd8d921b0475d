package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// drainTime bounds how long an archive waits for the queue.
const drainTime = 10 * time.Second

// archiveSale takes a sale that is over out of Redis: its keys leave, and from then on MySQL alone answers for it. It must
// have ended, by its window or by close; every order must be terminal and settled, no change under way, and the audit must
// balance: else the refusal names all that is in the way. Unsold units go back to the SKU, as when a sale is closed.
//
// Two looks, each of which may refuse: the queue is drained and the audit read without any lock; then, under the locks of
// the sale and of its stock row, that nothing has changed since. Nothing can be accepted in between, for the sale is over in
// Redis as well; and who comes later, with whatever, finds it archived.
//
// Archiving an archived sale changes nothing, but takes out again what a Redis from an older copy brought back.
func (a *Admin) archiveSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	before, s, err := a.readSale(r.Context(), a.DB, id)
	if err != nil {
		return nil, err
	}
	if before.ArchivedAt != nil {
		return a.archiveAgain(r, id)
	}
	decide, err := a.archiving(r.Context(), before, s)
	if err != nil {
		return nil, err
	}
	return a.change(r, decide)
}

// archiving is the first look at a sale as it was read before; what it returns is the second look, and the archive. The refusal of either
// is a problem.SaleStateConflict.
func (a *Admin) archiving(ctx context.Context, before adminapi.Sale, def sale.Record) (func(context.Context, *sql.Tx) (change, error), error) {
	id := before.ID
	var token int64 // of the newest reconciler: one that begins from here on may move what is audited
	if err := a.DB.QueryRowContext(ctx, `SELECT token FROM sale_stock WHERE sale_id = ?`, id).Scan(&token); err != nil {
		return nil, fmt.Errorf("stock of sale %d: %w", id, err)
	}
	audited, err := a.over(ctx, before, def)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx *sql.Tx) (change, error) {
		now, s, err := a.lockSale(ctx, tx, id)
		if err != nil {
			return change{}, err
		}
		if now.ArchivedAt != nil {
			return change{status: http.StatusOK, after: now, nothing: true}, nil
		}
		sku, err := readSKU(ctx, tx, s.SKU, forUpdate)
		if err != nil {
			return change{}, err
		}
		var units, locked, epoch, last, open int64
		if err := tx.QueryRowContext(ctx, `SELECT available, locked, epoch, token FROM sale_stock WHERE sale_id = ? FOR UPDATE`, id).Scan(&units, &locked, &epoch, &last); err != nil {
			return change{}, fmt.Errorf("stock of sale %d: %w", id, err)
		}
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM intents WHERE sale_id = ? AND done_at IS NULL`, id).Scan(&open); err != nil {
			return change{}, fmt.Errorf("open intents of sale %d: %w", id, err)
		}
		if now.Version != before.Version || locked > 0 || epoch != audited.MySQL.Epoch || last != token || open > 0 {
			return change{}, inTheWay(id, "it was changed while it was audited: ask again")
		}
		var todo []intent.Intent
		if units > 0 {
			adjust, err := a.giveBack(ctx, tx, s, sku, units)
			if err != nil {
				return change{}, err
			}
			todo = append(todo, adjust)
		}
		// A reconciler that began before this has an older token, a message that comes later an older epoch.
		if _, err := tx.ExecContext(ctx, `UPDATE sale_stock SET epoch = epoch + 1, token = token + 1 WHERE sale_id = ?`, id); err != nil {
			return change{}, fmt.Errorf("stock of sale %d: %w", id, err)
		}
		at := a.now()
		if _, err := tx.ExecContext(ctx, `UPDATE sales SET archived_at = ?, closed_at = COALESCE(closed_at, ?), version = version + 1 WHERE id = ?`, at, at, id); err != nil {
			return change{}, fmt.Errorf("archive sale %d: %w", id, err)
		}
		if err := eligibility.End(ctx, tx, id); err != nil {
			return change{}, err
		}
		failpoint.Hit("admin.mid-archive")
		forget, err := intent.Archive(ctx, tx, a.now(), id)
		if err != nil {
			return change{}, err
		}
		after, _, err := a.readSale(ctx, tx, id)
		return change{status: http.StatusOK, action: "sale.archive", target: saleName(id), before: now, after: after, intents: append(todo, forget), sku: s.SKU}, err
	}, nil
}

// archiveAgain answers with the sale as it is; keys that are in Redis again leave it.
func (a *Admin) archiveAgain(r *request, id int64) (*answer, error) {
	snap, err := a.Redis.Snapshot(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		now, _, err := a.lockSale(ctx, tx, id)
		if err != nil {
			return change{}, err
		}
		c := change{status: http.StatusOK, action: "sale.forget", target: saleName(id), before: now, after: now, nothing: snap.Keys == 0}
		if !c.nothing {
			forget, err := intent.Archive(ctx, tx, a.now(), id)
			if err != nil {
				return change{}, err
			}
			c.intents = []intent.Intent{forget}
		}
		return c, nil
	})
}

// archiveRetry is how long ArchiveOver leaves a sale alone that could not be archived.
const archiveRetry = 10 * time.Minute

// ArchiveOver archives one of the sales that are over for longer than after, as an operator would, and says how many it looked at: call
// again at once while that is more than none. A sale that cannot be archived yet is named in the log once, counted by
// backend_sales_unarchived, and looked at again after archiveRetry. One call at a time; any number of processes.
func (a *Admin) ArchiveOver(ctx context.Context, after time.Duration) (n int, err error) {
	now := a.now()
	var over []int64 // live sales are bounded by sale.MaxLive
	for last, more := int64(0), true; more; {
		ids, err := sale.Over(ctx, a.DB, now.Add(-after), last, returnPage)
		if err != nil {
			return 0, err
		}
		if more = len(ids) == returnPage; more {
			last = ids[len(ids)-1]
		}
		over = append(over, ids...)
	}
	maps.DeleteFunc(a.unarchived, func(id int64, _ time.Time) bool { return !slices.Contains(over, id) })
	defer func() { a.stuck.Set(float64(len(a.unarchived))) }()
	for _, id := range over {
		again, refused := a.unarchived[id]
		if refused && now.Before(again) {
			continue
		}
		err := a.archiveOver(ctx, id)
		if err == nil {
			delete(a.unarchived, id)
			return 1, nil
		}
		a.unarchived[id] = now.Add(archiveRetry)
		var p *problem.Problem
		if !errors.As(err, &p) {
			return 1, fmt.Errorf("archive sale %d: %w", id, err)
		}
		if !refused {
			a.Log.Warn("a sale that is over cannot be archived: it is tried again now and then", "sale", id, "why", p.Detail, "every", archiveRetry)
		}
		return 1, nil
	}
	return 0, nil
}

func (a *Admin) archiveOver(ctx context.Context, id int64) error {
	before, def, err := a.readSale(ctx, a.DB, id)
	if err != nil || before.ArchivedAt != nil {
		return err
	}
	decide, err := a.archiving(ctx, before, def)
	done := change{nothing: true}
	if err == nil {
		err = store.InTx(ctx, a.DB, func(tx *sql.Tx) error {
			if done, err = decide(ctx, tx); err != nil || done.nothing {
				return err
			}
			return a.record(ctx, tx, timer, done)
		})
	}
	if err != nil {
		if now, _, e := a.readSale(ctx, a.DB, id); e == nil && now.ArchivedAt != nil {
			return nil // another process was faster, and the looks of this one were at a sale that was leaving
		}
		return err
	}
	if !done.nothing {
		a.Log.Info("a sale that is over is archived", "sale", id)
		a.apply(ctx, done)
	}
	return nil
}

func inTheWay(sale int64, what ...string) error {
	return problem.New(problem.SaleStateConflict, fmt.Sprintf("sale %d cannot be archived yet: %s", sale, strings.Join(what, "; ")))
}

// over refuses with all that is in the way of archiving a sale, the cheap looks first; else it returns the audit.
func (a *Admin) over(ctx context.Context, s adminapi.Sale, def sale.Record) (audit.Result, error) {
	var way []string
	if s.ClosedAt == nil && a.Clock.Now().Before(def.EndsAt) {
		way = append(way, fmt.Sprintf("it is %s until %s: close it first", s.State, s.EndsAt.Format(wire.TimeFormat)))
	}
	if s.Locked > 0 {
		orders, last, err := a.unpaid(ctx, s.ID)
		if err != nil {
			return audit.Result{}, err
		}
		way = append(way, fmt.Sprintf("%d orders are pending_payment, the last until %s: wait, or cancel them", orders, last.Format(wire.TimeFormat)))
	}
	var intents int64
	if err := a.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM intents WHERE sale_id = ? AND done_at IS NULL`, s.ID).Scan(&intents); err != nil {
		return audit.Result{}, fmt.Errorf("open intents of sale %d: %w", s.ID, err)
	}
	if intents > 0 {
		way = append(way, fmt.Sprintf("%d open intents: changes and releases that Redis is still to be told, see /-/ready of a process with the role timer", intents))
	}
	if len(way) > 0 {
		return audit.Result{}, inTheWay(s.ID, way...)
	}
	if a.Fence != nil {
		limited, cancel := context.WithTimeout(ctx, drainTime)
		err := a.Fence(limited, s.ID)
		cancel()
		if err != nil {
			a.Log.Warn("archive: the queue is not drained", "sale", s.ID, "error", err)
			return audit.Result{}, inTheWay(s.ID, "what is queued was not settled in time: see GET /admin/v1/queue, and ask again")
		}
	}
	r, err := a.Audit.Sale(ctx, s.ID)
	if errors.Is(err, audit.ErrUnknownSale) {
		return r, noSale(s.ID)
	}
	if err != nil {
		return r, err
	}
	if s.ClosedAt == nil && r.CheckedAt.Before(def.EndsAt) { // by Redis's own clock, before it was read
		way = append(way, "it ends at this very moment: ask again")
	}
	if r.Redis.Outbox > 0 {
		way = append(way, fmt.Sprintf("%d orders are in the outbox: they are settled and retired soon", r.Redis.Outbox))
	}
	if n := len(r.Findings); n > 0 {
		f := r.Findings[0]
		way = append(way, fmt.Sprintf("the audit has %d findings, the first: %s", n, f))
	}
	if len(way) > 0 {
		return r, inTheWay(s.ID, way...)
	}
	return r, nil
}

// unpaid counts the orders of a sale that wait for payment, and says until when the last of them does.
func (a *Admin) unpaid(ctx context.Context, sale int64) (orders int64, last time.Time, err error) {
	var until sql.NullTime
	err = a.DB.QueryRowContext(ctx, `SELECT COUNT(*), MAX(pay_before) FROM orders WHERE sale_id = ? AND status = 'pending_payment'`, sale).Scan(&orders, &until)
	if err != nil {
		return 0, last, fmt.Errorf("unpaid orders of sale %d: %w", sale, err)
	}
	return orders, until.Time, nil
}
