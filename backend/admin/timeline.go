package admin

import (
	"errors"
	"fmt"
	"net/http"

	"floodgate.internal/backend/timeline"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// timeline tells what became of a user's presses in a sale.
func (a *Admin) timeline(r *request) (*answer, error) {
	q := r.URL.Query()
	for name, values := range q {
		if name != "uid" && name != "sale_id" {
			return nil, problem.Invalid(short(name), "unknown parameter: there are uid and sale_id")
		}
		if len(values) > 1 {
			return nil, problem.Invalid(name, "it is there more than once")
		}
	}
	uid := q.Get("uid")
	if !wire.ValidUID(uid) {
		return nil, problem.Invalid("uid", fmt.Sprintf("%q is none: a uid is 1 to %d of [A-Za-z0-9._-]", short(uid), wire.MaxUID))
	}
	sale, ok := wire.ParseID(q.Get("sale_id"))
	if !ok {
		return nil, problem.Invalid("sale_id", fmt.Sprintf("%q is none: a sale's id is a positive integer", short(q.Get("sale_id"))))
	}
	t, err := a.Timeline(r.Context(), uid, sale)
	switch {
	case errors.Is(err, timeline.ErrUnknown):
		return nil, problem.New(problem.SaleNotFound, fmt.Sprintf("there is no sale %d", sale))
	case errors.Is(err, timeline.ErrBusy):
		return nil, problem.New(problem.Overloaded, err.Error())
	case err != nil:
		return nil, err
	}
	return &answer{status: http.StatusOK, value: t}, nil
}
