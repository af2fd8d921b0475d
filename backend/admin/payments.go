package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/payment"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// listPayments answers what payment providers took: with ?status=refund_due, what is to be given back.
func (a *Admin) listPayments(r *request) (*answer, error) {
	const most = 200
	below, limit, err := r.page(most, "status", "order_id")
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := payment.Filter{Status: payment.Status(q.Get("status")), OrderID: q.Get("order_id")}
	if q.Has("status") && !slices.Contains(payment.Statuses, f.Status) {
		return nil, problem.Invalid("status", fmt.Sprintf("%q is none of %v", short(string(f.Status)), payment.Statuses))
	}
	if q.Has("order_id") && !wire.ValidOrderID(f.OrderID) {
		return nil, problem.Invalid("order_id", fmt.Sprintf("%q is no order id", short(f.OrderID)))
	}
	list, err := payment.List(r.Context(), a.DB, f, below, limit+1)
	if err != nil {
		return nil, err
	}
	var next string
	if int64(len(list)) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].ID, 10)
	}
	return &answer{status: http.StatusOK, value: adminapi.Payments{Payments: list, Page: adminapi.Page{Next: next}}}, nil
}
