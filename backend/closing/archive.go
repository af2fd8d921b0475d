package closing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/wire"
)

// ArchiveRetry is how long ArchiveOver leaves a sale alone that could not be archived.
const ArchiveRetry = 10 * time.Minute

const drainTime = 10 * time.Second // how long an archive waits for the queue, at most

// RefusedError says all that is in the way of archiving a sale.
type RefusedError struct {
	Sale int64
	Why  []string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("sale %d cannot be archived yet: %s", e.Sale, strings.Join(e.Why, "; "))
}

// Archive is the decision to archive a sale: the second look at it, and the change, in one transaction.
type Archive func(ctx context.Context, tx *sql.Tx) (change.Change, error)

// Archive looks whether a sale can leave Redis, so that from then on MySQL alone answers for it. It must have ended, by its window
// or by close; every order must be terminal and settled, no change under way, and the audit must balance: else *RefusedError.
//
// There are two looks, each of which may refuse. This one drains the queue and reads the audit without any lock. The second, in
// what is returned, finds under the locks of the sale and of its stock row that nothing has changed since. Nothing can be accepted
// in between, for the sale is over in Redis as well; and what comes later finds it archived.
//
// Archiving an archived sale changes nothing, but takes out again what a Redis from an older copy brought back.
func (s *Sales) Archive(ctx context.Context, id int64) (Archive, error) {
	r, err := sale.Get(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	if r.ArchivedAt != nil {
		return s.archiveAgain(ctx, id)
	}
	return s.look(ctx, r)
}

// look is the first look at a sale; what it returns is the second.
func (s *Sales) look(ctx context.Context, r sale.Record) (Archive, error) {
	id := r.ID
	token, err := sale.Token(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	audited, err := s.over(ctx, r)
	if err != nil {
		return nil, err
	}
	seen := sale.Seen{Version: r.Version, Epoch: audited.MySQL.Epoch, Token: token}
	return func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		before, err := sale.Lock(ctx, tx, id)
		if err != nil {
			return change.Change{}, err
		}
		c, err := sale.Archive(ctx, tx, s.Maker.Now(), before, seen)
		if errors.Is(err, sale.ErrChanged) {
			err = &RefusedError{id, []string{"it was changed while it was audited: ask again"}}
		}
		if err != nil {
			return change.Change{}, err
		}
		return s.Maker.OfSale(ctx, tx, "sale.archive", c)
	}, nil
}

// archiveAgain takes keys of an archived sale out of Redis, where they are in it again.
func (s *Sales) archiveAgain(ctx context.Context, id int64) (Archive, error) {
	snap, err := s.Redis.Snapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		now, err := sale.Lock(ctx, tx, id)
		if err != nil {
			return change.Change{}, err
		}
		c := sale.Change{Before: now, After: now, Nothing: true}
		if snap.Keys > 0 {
			if c, err = sale.Forget(ctx, tx, s.Maker.Now(), now); err != nil {
				return change.Change{}, err
			}
		}
		return s.Maker.OfSale(ctx, tx, "sale.forget", c)
	}, nil
}

// ArchiveOver archives one of the sales that are over for longer than after, as an operator would, and says how many it looked at:
// call again at once while that is more than none. A sale that cannot be archived yet is named in the log once, counted by
// backend_sales_unarchived, and looked at again after ArchiveRetry. One call at a time; any number of processes.
func (s *Sales) ArchiveOver(ctx context.Context, after time.Duration) (n int, err error) {
	now := s.Maker.Now()
	var over []int64 // live sales are bounded by sale.MaxLive
	for last, more := int64(0), true; more; {
		ids, err := sale.Over(ctx, s.DB, now.Add(-after), last, page)
		if err != nil {
			return 0, err
		}
		if more = len(ids) == page; more {
			last = ids[len(ids)-1]
		}
		over = append(over, ids...)
	}
	maps.DeleteFunc(s.refused, func(id int64, _ time.Time) bool { return !slices.Contains(over, id) })
	defer func() { s.stuck.Set(float64(len(s.refused))) }()
	for _, id := range over {
		again, before := s.refused[id]
		if before && now.Before(again) {
			continue
		}
		err := s.archive(ctx, id)
		if err == nil {
			delete(s.refused, id)
			return 1, nil
		}
		s.refused[id] = now.Add(ArchiveRetry)
		var refused *RefusedError
		if !errors.As(err, &refused) {
			return 1, fmt.Errorf("archive sale %d: %w", id, err)
		}
		if !before {
			s.Log.Warn("a sale that is over cannot be archived: it is tried again now and then", "sale", id, "why", refused.Error(), "every", ArchiveRetry)
		}
		return 1, nil
	}
	return 0, nil
}

// archive archives a sale, for the timer.
func (s *Sales) archive(ctx context.Context, id int64) error {
	r, err := sale.Get(ctx, s.DB, id)
	if err != nil || r.ArchivedAt != nil {
		return err
	}
	done := change.Change{Nothing: true}
	decide, err := s.look(ctx, r)
	if err == nil {
		done, err = s.Maker.InTx(ctx, change.Timer, decide)
	}
	if err != nil {
		if now, e := sale.Get(ctx, s.DB, id); e == nil && now.ArchivedAt != nil {
			return nil // another process was faster, and the looks of this one were at a sale that was leaving
		}
		return err
	}
	if !done.Nothing {
		s.Log.Info("a sale that is over is archived", "sale", id)
		s.Maker.Apply(ctx, done)
	}
	return nil
}

// over refuses with all that is in the way of archiving a sale, the cheap looks first; else it returns the audit.
func (s *Sales) over(ctx context.Context, r sale.Record) (audit.Result, error) {
	way, err := s.unsettled(ctx, r)
	if err != nil {
		return audit.Result{}, err
	}
	if len(way) > 0 {
		return audit.Result{}, &RefusedError{r.ID, way}
	}
	if s.Fence != nil {
		limited, cancel := context.WithTimeout(ctx, drainTime)
		err := s.Fence(limited, r.ID)
		cancel()
		if err != nil {
			s.Log.Warn("archive: the queue is not drained", "sale", r.ID, "error", err)
			return audit.Result{}, &RefusedError{r.ID, []string{"what is queued was not settled in time: see GET /admin/v1/queue, and ask again"}}
		}
	}
	a, err := s.Audit.Sale(ctx, r.ID)
	if errors.Is(err, audit.ErrUnknownSale) {
		return a, &sale.NotFoundError{Sale: r.ID}
	}
	if err != nil {
		return a, err
	}
	if r.ClosedAt == nil && a.CheckedAt.Before(r.EndsAt) { // by Redis's own clock, before it was read
		way = append(way, "it ends at this very moment: ask again")
	}
	if a.Redis.Outbox > 0 {
		way = append(way, fmt.Sprintf("%d orders are in the outbox: they are settled and retired soon", a.Redis.Outbox))
	}
	if n := len(a.Findings); n > 0 {
		way = append(way, fmt.Sprintf("the audit has %d findings, the first: %s", n, a.Findings[0]))
	}
	if len(way) > 0 {
		return a, &RefusedError{r.ID, way}
	}
	return a, nil
}

// unsettled says what MySQL has that is in the way.
func (s *Sales) unsettled(ctx context.Context, r sale.Record) (way []string, err error) {
	if now := s.Clock.Now(); r.ClosedAt == nil && now.Before(r.EndsAt) {
		way = append(way, fmt.Sprintf("it is %s until %s: close it first", r.State(now), r.EndsAt.Format(wire.TimeFormat)))
	}
	if r.Locked > 0 {
		var orders int64
		var last sql.NullTime
		err := s.DB.QueryRowContext(ctx, `SELECT COUNT(*), MAX(pay_before) FROM orders WHERE sale_id = ? AND status = 'pending_payment'`, r.ID).Scan(&orders, &last)
		if err != nil {
			return nil, fmt.Errorf("unpaid orders of sale %d: %w", r.ID, err)
		}
		way = append(way, fmt.Sprintf("%d orders are pending_payment, the last until %s: wait, or cancel them", orders, last.Time.Format(wire.TimeFormat)))
	}
	intents, err := sale.OpenIntents(ctx, s.DB, r.ID)
	if err == nil && intents > 0 {
		way = append(way, fmt.Sprintf("%d open intents: changes and releases that Redis is still to be told, see /-/ready of a process with the role timer", intents))
	}
	return way, err
}
