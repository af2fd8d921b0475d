package standby

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

const (
	page      = 50 // heads that are read at once
	offerTime = 10 * time.Second
)

// reasons are why a user is passed over, by the answer of sale_reserve.lua.
var reasons = map[lua.Answer]string{lua.AlreadyOrdered: "limit", lua.TooMany: "too_many_orders"}

// Wake says that units of a sale may have come back, or that its line has changed: Run looks at once.
func (l *Line) Wake(sale int64) {
	l.mu.Lock()
	l.woken[sale] = struct{}{}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run makes offers in sales that were woken, until ctx ends. Sweep does what it misses.
func (l *Line) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		}
		l.mu.Lock()
		sales := l.woken
		l.woken = map[int64]struct{}{}
		l.mu.Unlock()
		for sale := range sales {
			try, cancel := context.WithTimeout(ctx, offerTime)
			_, err := l.offer(try, sale, true)
			cancel()
			if err != nil && ctx.Err() == nil {
				l.log.Warn("standby: offers are made later, by the timer", "sale", sale, "error", err)
			}
		}
	}
}

// Sweep is one pass over every sale in whose line somebody waits, or where Redis says so. It returns how many users it
// offered a unit or passed over: call again at once until that is 0.
func (l *Line) Sweep(ctx context.Context) (n int, err error) {
	sales := l.catalog.Waited()
	more, err := store.Column[int64](ctx, l.db, `SELECT DISTINCT sale_id FROM standby WHERE state = ?`, waiting)
	if err != nil {
		return 0, fmt.Errorf("sales with a standby line: %w", err)
	}
	sales = append(sales, more...)
	slices.Sort(sales)
	var errs []error
	for _, sale := range slices.Compact(sales) {
		done, err := l.Offer(ctx, sale)
		n += done
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// Offer offers what is available of a sale to the heads of its line, in order, and returns how many users it offered a
// unit or passed over. Concurrent calls do nothing twice. If everybody has an offer, or nobody waits, it notes that in
// Redis.
func (l *Line) Offer(ctx context.Context, sale int64) (n int, err error) {
	return l.offer(ctx, sale, false)
}

// offer is Offer; hasty looks at Redis alone to see whether somebody waits.
func (l *Line) offer(ctx context.Context, sale int64, hasty bool) (n int, err error) {
	states, err := l.redis.States(ctx, []int64{sale})
	if err != nil {
		return 0, err
	}
	st, now := states[0], l.clk.Now()
	over := st.Closed || now.UnixMilli() >= st.Ends
	switch {
	case !st.Present:
		if _, err := l.catalog.Get(ctx, sale); errors.Is(err, catalog.ErrArchived) {
			return 0, l.end(ctx, sale)
		}
		return 0, nil // loading it brings what MySQL says of the line
	case hasty && st.Standby == 0, st.Gate != lua.GateOpen:
		return 0, nil
	case st.Standby > 0 && st.Available(now.UnixMilli()) <= 0 && !over: // already noted, and nothing available
		return 0, nil
	}
	epoch := st.Epoch
	for after, more := int64(0), true; more; {
		heads, err := l.heads(ctx, sale, after)
		if err != nil {
			return n, err
		}
		more = len(heads) == page
		refused, err := eligibility.Among(ctx, l.db, sale, uids(heads))
		if err != nil {
			return n, err
		}
		for _, h := range heads {
			after = h.place
			answer, why := lua.Answer(""), string(refused[h.uid])
			if why == "" {
				answer, err = l.ask(ctx, sale, h, &epoch)
				if errors.Is(err, reserve.ErrGateClosed) || errors.Is(err, reserve.ErrNotLoaded) || errors.Is(err, redis.ErrRestarted) {
					return n, nil // not now; or not by this process, which does not use the newest incarnation
				}
				if err != nil {
					return n, err
				}
			}
			switch {
			case answer == lua.Reserved:
				l.offers.WithLabelValues(offered).Inc()
				n++
			case answer == lua.Repeated: // it is on its way
			case answer == lua.AlreadyOrdered, answer == lua.TooMany, why != "":
				if why == "" {
					why = reasons[answer]
				}
				if err := Passed(ctx, l.db, l.now(), sale, h.uid, h.order, why); err != nil {
					return n, err
				}
				l.offers.WithLabelValues(passed).Inc()
				n++
			case answer == lua.Ended:
				return n, l.end(ctx, sale)
			default: // nothing is left, or it may not be sold now: who is first in line stays so
				if st.Standby > 0 {
					return n, nil
				}
				return n, l.redis.Wait(ctx, sale, h.place)
			}
		}
	}
	if st.Standby == 0 {
		return n, nil
	}
	return n, l.redis.Rest(ctx, sale, st.Standby)
}

// head is a user who waits.
type head struct {
	place      int64
	uid, order string
}

func uids(heads []head) []string {
	list := make([]string, len(heads))
	for i, h := range heads {
		list[i] = h.uid
	}
	return list
}

// heads are the users who wait behind a place, in order, at most a page of them.
func (l *Line) heads(ctx context.Context, sale, after int64) ([]head, error) {
	var list []head
	err := store.Each(ctx, l.db, func(rows *sql.Rows) error {
		var h head
		err := rows.Scan(&h.place, &h.uid, &h.order)
		list = append(list, h)
		return err
	}, fmt.Sprintf(`SELECT place, uid, order_id FROM standby WHERE state = ? AND sale_id = ? AND place > ? ORDER BY place LIMIT %d`, page),
		waiting, sale, after)
	if err != nil {
		return nil, fmt.Errorf("the line of sale %d: %w", sale, err)
	}
	return list, nil
}

// ask reserves a unit for a head, under the order id that was made at the join. It returns an answer of sale_reserve.lua.
// It asks again if Redis has just left the epoch.
func (l *Line) ask(ctx context.Context, sale int64, h head, epoch *int64) (lua.Answer, error) {
	for {
		v, err := l.redis.Reserve(ctx, reserve.Request{Sale: sale, UID: h.uid, Quantity: 1, OrderID: h.order, Key: wire.OfferKey(h.order), Epoch: *epoch, Line: true})
		if err != nil {
			return "", fmt.Errorf("offer to uid %s: %w", h.uid, err)
		}
		failpoint.Hit("standby.after-reserve")
		if v.Answer != lua.StaleEpoch || v.Epoch <= *epoch {
			return v.Answer, nil
		}
		*epoch = v.Epoch
	}
}

// end ends the line of a sale that is over. A user for whom a unit was reserved before still gets the offer.
func (l *Line) end(ctx context.Context, sale int64) error {
	if _, err := l.db.ExecContext(ctx, `UPDATE standby SET state = ?, changed_at = ? WHERE state = ? AND sale_id = ?`, ended, l.now(), waiting, sale); err != nil {
		return fmt.Errorf("end the line of sale %d: %w", sale, err)
	}
	return nil
}
