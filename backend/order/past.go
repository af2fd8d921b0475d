package order

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// Past is what became of an order, and when. A queued order has only ID, Quantity and Created.
type Past struct {
	ID        string
	Quantity  int
	Status    wire.OrderStatus
	Reason    string
	Created   time.Time // the press
	Decided   time.Time // it left queued
	PayBefore time.Time // zero: it waits, or waited, for no payment
	Ended     time.Time // paid, cancelled or expired; zero: none of these
}

// PastOf is what became of a user's orders in a sale: the newest that MySQL has, at most limit, and those that are
// queued. queued is why the latter could not be read. more says that there are older ones.
func (s *Store) PastOf(ctx context.Context, uid string, sale int64, most int) (list []Past, more bool, queued, err error) {
	held, queued := s.heldBy(ctx, uid, sale) // Redis before MySQL: an order that is settled in between is found in MySQL
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf(`SELECT id, quantity, status, reason, created_at, decided_at, pay_before, ended_at
		FROM orders FORCE INDEX (orders_idem) WHERE sale_id = ? AND uid = ? ORDER BY id DESC LIMIT %d`, most+1), sale, uid)
	if err != nil {
		return nil, false, nil, fmt.Errorf("orders of uid %s in sale %d: %w", uid, sale, err)
	}
	defer rows.Close()
	known := map[string]bool{}
	for rows.Next() {
		var p Past
		var payBefore, ended sql.NullTime
		if err := rows.Scan(&p.ID, &p.Quantity, &p.Status, &p.Reason, &p.Created, &p.Decided, &payBefore, &ended); err != nil {
			return nil, false, nil, fmt.Errorf("orders of uid %s in sale %d: %w", uid, sale, err)
		}
		p.PayBefore, p.Ended = payBefore.Time, ended.Time
		known[p.ID] = true
		if len(list) == most {
			more = true
			break
		}
		list = append(list, p)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, false, nil, fmt.Errorf("orders of uid %s in sale %d: %w", uid, sale, err)
	}
	for _, p := range held {
		if !known[p.ID] && (!more || p.ID > list[len(list)-1].ID) { // what is older than the list may be settled, too
			list = append(list, p)
		}
	}
	return list, more, queued, nil
}

// heldBy is what a user's slots in a sale hold in Redis: live orders, queued ones among them.
func (s *Store) heldBy(ctx context.Context, uid string, sale int64) (list []Past, err error) {
	ids, unsure, err := s.redis.OrdersOf(ctx, []int64{sale}, uid)
	if err == nil && len(unsure) > 0 {
		var missing error
		missing, err = uncertain(ctx, s.db, sale, reserve.ErrNotLoaded)
		err = cmp.Or(err, missing)
	}
	if err != nil {
		return nil, err
	}
	for _, id := range ids[sale] {
		h, ok, err := s.redis.Lookup(ctx, sale, id)
		if err != nil {
			return nil, err
		}
		if ok {
			list = append(list, Past{ID: id, Quantity: h.Quantity, Status: wire.Queued, Created: time.UnixMilli(h.At).UTC()})
		}
	}
	return list, nil
}
