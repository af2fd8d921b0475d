package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// verdict is why an order is to be rejected.
type verdict struct {
	reason string
	// unless is how many units, were they available in MySQL after all, undo the verdict; 0 for a verdict that does not
	// rest on them.
	unless int64
	gone   bool // there is nothing to release: MySQL does not know the sale, or has archived it
}

// errMoved: the state that a verdict was based on has changed.
var errMoved = errors.New("the sale has moved on")

// reject ends an order by inserting its terminal row under its primary key, with the intent to release it. So it cannot
// race a good delivery: the later of the two finds what the first decided. It reads the stock row under a lock. If the
// epoch is another, or there are units after all, the entry is settled again.
func (c *settling) reject(ctx context.Context, e queued.Entry, f facts, v verdict) error {
	s := c.store
	withKey := e.Key != "" && v.reason != DuplicateKey && wire.ValidIdempotencyKey(e.Key)
	for {
		first, err := s.insertRejected(ctx, e, f, v, withKey)
		switch {
		case err == nil:
			c.notices = append(c.notices, notice{e.ID, wire.Rejected})
			s.metrics.settled.WithLabelValues("rejected").Inc()
			s.metrics.rejected.WithLabelValues(v.reason).Inc()
			s.left(e)
			s.log.Error("order: an accepted order is rejected", "order", e.ID, "sale", e.Sale, "reason", v.reason, "epoch", e.Epoch)
			if !v.gone {
				s.releaseNow(ctx, first, []row{{id: e.ID, sale: e.Sale}})
			}
			return nil
		case errors.Is(err, errMoved):
			return c.settle(ctx, []queued.Entry{e})
		case !store.Refused(err) && !errors.Is(err, store.ErrUnknown):
			return err
		}
		left, lookup := c.missing(ctx, []queued.Entry{e})
		switch {
		case lookup != nil:
			return errors.Join(err, lookup)
		case len(left) == 0:
			return nil
		case errors.Is(err, store.ErrUnknown):
			return err
		case withKey && store.Duplicate(err):
			withKey = false // the key belongs to another order of the buyer
		default:
			c.spoiled(e, err)
			return nil
		}
	}
}

// insertRejected returns the id of the release intent.
func (s *Store) insertRejected(ctx context.Context, e queued.Entry, f facts, v verdict, withKey bool) (release int64, err error) {
	err = store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		now := s.now()
		created, quantity, key := now, min(max(e.Quantity, 0), maxUnits), ""
		if e.At > 0 && e.At <= maxMillis {
			created = time.UnixMilli(e.At).UTC()
		}
		if withKey {
			key = e.Key
		}
		if wire.IsOffer(e.ID, e.Key) {
			if err := standby.Passed(ctx, tx, now, e.Sale, e.UID, e.ID, v.reason); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, reason, idem_key, created_at, decided_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, e.ID, e.Sale, e.UID, quantity, f.price*int64(quantity), string(wire.Rejected), v.reason,
			nullable(key), created, now); err != nil {
			return fmt.Errorf("insert rejected order %s: %w", e.ID, err)
		}
		if err := s.tellRejected(ctx, tx, now, row{id: e.ID, uid: e.UID, sale: e.Sale, quantity: quantity, amount: f.price * int64(quantity), status: wire.Rejected,
			reason: v.reason, created: created}); err != nil {
			return err
		}
		if v.gone {
			return nil
		}
		var epoch, available int64
		err := tx.QueryRowContext(ctx, `SELECT epoch, available FROM sale_stock WHERE sale_id = ? FOR UPDATE`, e.Sale).Scan(&epoch, &available)
		if err != nil {
			return fmt.Errorf("stock of sale %d: %w", e.Sale, err)
		}
		if epoch != f.epoch || v.unless > 0 && available >= v.unless {
			return errMoved
		}
		release, err = intent.Release(ctx, tx, now, intent.Order{ID: e.ID, Sale: e.Sale})
		return err
	})
	return release, err
}

// Reject ends an order that cannot be processed (a dead letter), unless MySQL has decided it already. The errors are those
// of Settle.
func (s *Store) Reject(ctx context.Context, e queued.Entry, reason string) error {
	c := &settling{store: s}
	problem, row := check(e)
	if problem != nil && !row {
		c.spoiled(e, problem)
		return &queued.PoisonError{Entries: c.poison, Err: c.cause}
	}
	sales, err := s.facts(ctx, []queued.Entry{e})
	if err != nil {
		return err
	}
	left, err := c.missing(ctx, []queued.Entry{e})
	if err == nil && len(left) > 0 {
		f, ok := sales[e.Sale]
		err = c.reject(ctx, e, f, verdict{reason: reason, gone: !ok})
	}
	s.notify(ctx, c.notices)
	if err == nil && len(c.poison) > 0 {
		return &queued.PoisonError{Entries: c.poison, Err: c.cause}
	}
	return err
}
