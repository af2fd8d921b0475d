package timeline

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"floodgate.internal/backend/order"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

var (
	// ErrUnknown: there is no such sale.
	ErrUnknown = errors.New("no such sale")
	// ErrBusy: too many reads are under way. Nothing was done.
	ErrBusy = errors.New("too many timelines are being read or written")
)

const (
	maxOrders = 50 // that a timeline tells of: the newest
	// silentAfter is how long ago a gateway that has not ended may have reported; it does each 10 s.
	silentAfter = time.Minute
	// lostAfter is how long after its last report a gateway may have gone on answering.
	lostAfter = 10 * time.Minute

	maxReads   = 4  // timelines that a process reads at once: each takes a MySQL connection
	maxWaiting = 64 // that wait for their turn, those included; one more is ErrBusy
)

// telling is a timeline while it is put together.
type telling struct {
	verdict.Timeline
	now, starts, ends time.Time
	keep              time.Duration
}

func (t *telling) add(e verdict.Event) { t.Events = append(t.Events, e) }

func (t *telling) miss(format string, args ...any) {
	t.Missing = append(t.Missing, fmt.Sprintf(format, args...))
}

// Of returns a user's timeline in a sale. Entries of the same time come in this order: the sale's history, presses,
// orders. ErrUnknown, ErrBusy.
func (s *Store) Of(ctx context.Context, uid string, sale int64) (verdict.Timeline, error) {
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > maxWaiting {
		return verdict.Timeline{}, ErrBusy
	}
	if err := s.reads.Acquire(ctx, 1); err != nil {
		return verdict.Timeline{}, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	defer s.reads.Release(1)
	t := telling{Timeline: verdict.Timeline{Sale: sale, UID: uid, Missing: []string{}, Note: verdict.Note, Events: []verdict.Event{}}, now: s.now(), keep: s.keep}
	var closed sql.NullTime
	err := s.db.QueryRowContext(ctx, `SELECT starts_at, ends_at, closed_at FROM sales WHERE id = ?`, sale).Scan(&t.starts, &t.ends, &closed)
	if errors.Is(err, sql.ErrNoRows) {
		return t.Timeline, ErrUnknown
	}
	if closed.Valid && closed.Time.Before(t.ends) {
		t.ends = closed.Time
	}
	for _, read := range []func(context.Context, *telling) error{s.history, s.presses, s.orders, s.silent} {
		if err == nil {
			err = read(ctx, &t)
		}
	}
	if err != nil {
		return t.Timeline, fmt.Errorf("timeline of uid %s in sale %d: %w", uid, sale, err)
	}
	slices.SortStableFunc(t.Events, func(a, b verdict.Event) int { return a.At.Compare(b.At.Time) })
	t.Complete = len(t.Missing) == 0
	return t.Timeline, nil
}

// stateDetails is what a timeline says about a sale in a state.
var stateDetails = map[string]string{
	string(wire.Upcoming): "The sale was announced and had not started. Whoever pressed was told so at once, before we looked at who it was: such presses are not counted.",
	string(wire.Open):     "The sale was open.",
	string(wire.SoldOut):  "Nothing was available. Whoever pressed was told so at once, before we looked at who it was: such presses are not counted.",
	string(wire.Paused):   "The sale was paused by the shop. Whoever pressed was told so at once, before we looked at who it was: such presses are not counted.",
	string(wire.Ended):    "The sale was over. Whoever pressed was told so at once, before we looked at who it was: such presses are not counted.",
}

// history adds how the sale's state changed, and which of the sale's records are known to be missing.
func (s *Store) history(ctx context.Context, t *telling) error {
	var dropped, unlisted int64
	var from, to, pruned, stateAt sql.NullTime
	var state string
	err := s.db.QueryRowContext(ctx, `SELECT dropped, dropped_from, dropped_to, pruned_to, state, state_at, unlisted FROM timeline_sales WHERE sale_id = ?`, t.Sale).
		Scan(&dropped, &from, &to, &pruned, &state, &stateAt, &unlisted)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if dropped > 0 {
		t.miss("%d presses in this sale were not kept, for want of room, from %s to %s; yours may be among them", dropped, at(from.Time), at(to.Time))
	}
	if pruned.Valid {
		t.miss("presses of before %s are not kept any more", at(pruned.Time))
	}
	switch {
	case state == gone:
		t.miss("the sale ended at %s, and its own history is not kept any more", at(stateAt.Time))
	case state == "":
		t.miss("the sale's own history has not been written down")
	case unlisted > 0:
		t.miss("the sale's state changed %d more times, up to %s, than are listed", unlisted, at(stateAt.Time))
	}
	last, unsure := -1, 0
	err = store.Each(ctx, s.db, func(rows *sql.Rows) error {
		var began time.Time
		var state string
		var sure bool
		if err := rows.Scan(&began, &state, &sure); err != nil {
			return err
		}
		e := verdict.Event{At: wire.At(began), Count: 1, What: verdict.Sale, Rule: state, Detail: stateDetails[state]}
		if !sure {
			unsure++
			e.Detail += " (It may have begun earlier: nobody watched just before.)"
		}
		if last >= 0 {
			t.Events[last].Until = &e.At
		}
		last = len(t.Events)
		t.add(e)
		return nil
	}, `SELECT at, state, sure FROM sale_states WHERE sale_id = ? ORDER BY n`, t.Sale)
	if unsure > 0 {
		t.miss("the sale's own history may lack changes: nobody watched just before %d of those that are listed", unsure)
	}
	return err
}

// presses adds what gateways answered to the user.
func (s *Store) presses(ctx context.Context, t *telling) error {
	var all verdict.Event
	var list []verdict.Event
	err := store.Each(ctx, s.db, func(rows *sql.Rows) error {
		var rule verdict.Rule
		var first, last time.Time
		var n int64
		if err := rows.Scan(&rule, &first, &last, &n); err != nil {
			return err
		}
		until := wire.At(last)
		list = append(list, verdict.Event{At: wire.At(first), Until: &until, Count: n, What: rule.What(), Rule: string(rule), Detail: rule.Detail()})
		if all.Count == 0 {
			all.At, all.Until = wire.At(first), &until
		}
		if last.After(all.Until.Time) {
			all.Until = &until
		}
		all.Count += n
		return nil
	}, `SELECT rule, first_at, last_at, times FROM timeline WHERE sale_id = ? AND uid = ? ORDER BY first_at, rule`, t.Sale, t.UID)
	if all.Count > 0 {
		all.What, all.Detail = verdict.Arrived, "Your presses reached us and were looked at; what became of them is told below."
		t.add(all)
	}
	t.Events = append(t.Events, list...)
	return err
}

// reasons is why an order was rejected, for its owner.
var reasons = map[string]string{
	order.OutOfStock: "nothing was left for it", order.OverLimit: "you already had as many as one account may have",
	order.DuplicateKey: "another order of yours had its Idempotency-Key",
}

// orders adds what became of the user's orders.
func (s *Store) orders(ctx context.Context, t *telling) error {
	list, more, queued, err := s.orderStore.PastOf(ctx, t.UID, t.Sale, maxOrders)
	if err != nil {
		return err
	}
	if queued != nil {
		t.miss("orders that are still in the queue cannot be asked for at the moment")
	}
	if more {
		t.miss("of your orders in this sale only the newest %d are listed", maxOrders)
	}
	slices.Reverse(list)
	for _, o := range list {
		event := func(when time.Time, what wire.OrderStatus, rule, detail string) {
			moment := wire.At(when)
			e := verdict.Event{At: moment, Until: &moment, Count: 1, What: string(what), Rule: rule, Detail: detail, OrderID: o.ID}
			if what == o.Status && (what == wire.Queued || what == wire.PendingPayment) {
				e.Until = nil
			}
			t.add(e)
		}
		event(o.Created, wire.Queued, "", "Your order was accepted and stood in the queue.")
		switch {
		case o.Status == wire.Queued:
			continue
		case o.Status == wire.Rejected:
			why, ok := reasons[o.Reason]
			if !ok {
				why = "it could not be made"
			}
			event(o.Decided, wire.Rejected, o.Reason, "Your order was rejected: "+why+".")
			continue
		case o.Status == wire.Issued:
			event(o.Decided, wire.Issued, "", "Your coupon was issued.")
			continue
		}
		event(o.Decided, wire.PendingPayment, "", "It was reserved for you, to be paid before "+at(o.PayBefore)+".")
		switch o.Status {
		case wire.Paid:
			event(o.Ended, wire.Paid, "", "Your payment came in: it is yours.")
		case wire.Cancelled:
			detail := "You cancelled the order, and it went back into the sale."
			if o.Reason == order.Support {
				detail = "The shop's support cancelled the order, and it went back into the sale."
			}
			event(o.Ended, wire.Cancelled, o.Reason, detail)
		case wire.Expired:
			event(o.Ended, wire.Expired, o.Reason, "No payment came in time, and it went back into the sale.")
		}
	}
	return nil
}

// silent adds gateways that may have answered presses in the sale, and have not reported since.
func (s *Store) silent(ctx context.Context, t *telling) error {
	var n int64
	var since sql.NullTime
	err := s.db.QueryRowContext(ctx, `SELECT COUNT(*), MIN(at) FROM timeline_gateways WHERE at > ? AND at < ? AND at < ? AND ended = FALSE`,
		t.starts.Add(-lostAfter), t.ends, t.now.Add(-silentAfter)).Scan(&n, &since)
	if err == nil && n > 0 {
		t.miss("%d gateways have not reported since %s or later: what they answered after that is not here", n, at(since.Time))
	}
	return err
}

func at(t time.Time) string { return t.UTC().Format(wire.TimeFormat) }
