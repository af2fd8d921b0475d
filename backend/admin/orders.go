package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/order"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

const orderColumns = `id, sale_id, uid, quantity, amount, status, reason, COALESCE(idem_key, ''), created_at, decided_at, pay_before, ended_at`

func readOrders(ctx context.Context, q *sql.DB, where string, args ...any) ([]adminapi.Order, error) {
	rows, err := q.QueryContext(ctx, `SELECT `+orderColumns+` FROM orders `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	defer rows.Close()
	list := []adminapi.Order{}
	for rows.Next() {
		var o adminapi.Order
		var created, decided time.Time
		var payBefore, ended sql.NullTime
		if err := rows.Scan(&o.OrderID, &o.SaleID, &o.UID, &o.Quantity, &o.Amount, &o.Status, &o.Reason, &o.Key, &created, &decided, &payBefore, &ended); err != nil {
			return nil, fmt.Errorf("orders: %w", err)
		}
		o.CreatedAt, o.DecidedAt, o.PayBefore, o.EndedAt = wire.At(created), wire.At(decided), optional(payBefore), optional(ended)
		list = append(list, o)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	return list, nil
}

func optional(t sql.NullTime) *wire.Time {
	if !t.Valid {
		return nil
	}
	at := wire.At(t.Time)
	return &at
}

const (
	orderPage = 200  // orders in a page of the search, at most
	orderScan = 5000 // orders that a page looks at, at most
)

// settledStatuses are those that an order in MySQL can have.
var settledStatuses = []string{string(wire.PendingPayment), string(wire.Paid), string(wire.Issued), string(wire.Cancelled), string(wire.Expired), string(wire.Rejected)}

// search is what support looks for.
type search struct {
	uid    string // "" for anybody
	sale   int64  // 0 for any
	status string // "" for any
	below  string // an order id; "" for the newest
	limit  int64
}

// searchOrders lists orders that MySQL has, newest first: those of a uid, of a sale, in a status, or all of these. A page
// looks at no more than orderScan orders of the uid, or of the sale: of a rare status it may hold few orders, or none, and
// yet have a next. Orders that are still queued are in GET /admin/v1/queue, and in their owners' lists.
func (a *Admin) searchOrders(r *request) (*answer, error) {
	q := r.URL.Query()
	known := []string{"uid", "sale_id", "status", "cursor", "limit"}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, problem.Invalid(short(name), "unknown parameter: there are "+strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return nil, problem.Invalid(name, "it is there more than once")
		}
	}
	s := search{uid: q.Get("uid"), status: q.Get("status"), below: q.Get("cursor"), limit: orderPage}
	if q.Has("uid") && !wire.ValidUID(s.uid) {
		return nil, problem.Invalid("uid", fmt.Sprintf("%q is none: a uid is 1 to %d of [A-Za-z0-9._-]", short(s.uid), wire.MaxUID))
	}
	if q.Has("sale_id") {
		var ok bool
		if s.sale, ok = wire.ParseID(q.Get("sale_id")); !ok {
			return nil, problem.Invalid("sale_id", fmt.Sprintf("%q is none: a sale's id is a positive integer", short(q.Get("sale_id"))))
		}
	}
	switch {
	case s.status == string(wire.Queued):
		return nil, problem.Invalid("status", "queued orders are not in MySQL yet: GET /admin/v1/queue counts them")
	case q.Has("status") && !slices.Contains(settledStatuses, s.status):
		return nil, problem.Invalid("status", fmt.Sprintf("%q is none: give %s", short(s.status), strings.Join(settledStatuses, ", ")))
	}
	if q.Has("cursor") {
		if !wire.ValidOrderID(s.below) {
			return nil, problem.Invalid("cursor", short(s.below)+": take it from the page before, as it is")
		}
	}
	if q.Has("limit") {
		n, ok := wire.ParseID(q.Get("limit"))
		if !ok || n > orderPage {
			return nil, problem.Invalid("limit", fmt.Sprintf("%s is not from 1 to %d", short(q.Get("limit")), orderPage))
		}
		s.limit = n
	}
	list, next, err := a.findOrders(r.Context(), s)
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: adminapi.Orders{Orders: list, Page: adminapi.Page{Next: next}}}, nil
}

// findOrders reads a page. Both queries go along one index, (uid, id), (sale_id, id) or the primary key, from the cursor on:
// the first finds where the page's look ends, the second what is asked for in between. The index is forced: for a rare status
// the planner may take the one of statuses and sort, which is as slow as it is wrong about how rare it is.
func (a *Admin) findOrders(ctx context.Context, s search) (list []adminapi.Order, next string, err error) {
	where, args := s.along()
	var end string // the last order that this page looks at; "" if there are fewer
	if s.status != "" || s.uid != "" && s.sale != 0 {
		err := a.DB.QueryRowContext(ctx, `SELECT id FROM orders `+where+fmt.Sprintf(` ORDER BY id DESC LIMIT 1 OFFSET %d`, orderScan-1), args...).Scan(&end)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, "", fmt.Errorf("orders: %w", err)
		}
	}
	where, args = s.within(where, args, end)
	if list, err = readOrders(ctx, a.DB, where, args...); err != nil {
		return nil, "", err
	}
	if int64(len(list)) > s.limit {
		list = list[:s.limit]
		return list, list[s.limit-1].OrderID, nil
	}
	return list, end, nil
}

// along is the index and its condition: all orders from the cursor on of a uid, of a sale, or of anybody.
func (s search) along() (where string, args []any) {
	where = "FORCE INDEX (`PRIMARY`) WHERE TRUE"
	switch {
	case s.uid != "":
		where, args = "FORCE INDEX (orders_uid) WHERE uid = ?", []any{s.uid}
	case s.sale != 0:
		where, args = "FORCE INDEX (orders_sale) WHERE sale_id = ?", []any{s.sale}
	}
	if s.below != "" {
		where, args = where+" AND id < ?", append(args, s.below)
	}
	return where, args
}

// within narrows along to what is asked for, down to the order end.
func (s search) within(where string, args []any, end string) (string, []any) {
	if end != "" {
		where, args = where+" AND id >= ?", append(args, end)
	}
	if s.uid != "" && s.sale != 0 {
		where, args = where+" AND sale_id = ?", append(args, s.sale)
	}
	if s.status != "" {
		where, args = where+" AND status = ?", append(args, s.status)
	}
	return where + fmt.Sprintf(" ORDER BY id DESC LIMIT %d", s.limit+1), args
}

// cancelOrder ends an unpaid order for support: its unit is back on sale, its reason is "support". Cancelling again changes
// nothing; a paid order is not cancelled: it would have to be refunded.
func (a *Admin) cancelOrder(r *request) (*answer, error) {
	id := r.PathValue("id")
	noOrder := problem.New(problem.OrderNotFound, fmt.Sprintf("no order %q: GET /admin/v1/orders?uid= lists a buyer's", short(id)))
	if !wire.ValidOrderID(id) {
		return nil, noOrder
	}
	if err := r.noBody(); err != nil {
		return nil, err
	}
	done, err := a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		before, after, release, err := a.Orders.CancelIn(ctx, tx, id)
		return change.Change{Action: "order.cancel", Target: "order " + id, Before: before, After: after, Nothing: release == nil, Then: release}, err
	})
	if errors.Is(err, order.ErrNotFound) { // not in MySQL: it may be queued
		o, e := a.Orders.Stands(r.Context(), id)
		switch {
		case errors.Is(e, order.ErrNotFound):
			return nil, noOrder
		case e != nil:
			return nil, e
		}
		err = &order.StateError{Order: o, Detail: "it is not settled yet: ask again in a moment"}
	}
	var state *order.StateError
	if errors.As(err, &state) {
		p := problem.New(problem.OrderStateConflict, fmt.Sprintf("the order is %s: %s", state.Order.Status, state.Detail))
		p.OrderID = id
		return nil, p
	}
	return done, err
}
