package admin

import (
	"fmt"
	"net/http"
	"strings"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// preflight answers go or no-go for a sale. What is named in accept does not stand in the way.
func (a *Admin) preflight(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	for name, values := range q {
		if name != "accept" && name != "shoppers" {
			return nil, problem.Invalid(short(name), "unknown parameter: there are accept and shoppers")
		}
		if len(values) > 1 {
			return nil, problem.Invalid(name, "it is there more than once: accept takes a list with commas")
		}
	}
	shoppers, ok := wire.ParseID(q.Get("shoppers"))
	if q.Has("shoppers") && !ok {
		return nil, problem.Invalid("shoppers", fmt.Sprintf("%q is no positive number", short(q.Get("shoppers"))))
	}
	report, err := a.Preflight(r.Context(), id, shoppers)
	if err != nil {
		return nil, err
	}
	var accept []string
	if q.Has("accept") {
		accept = strings.Split(q.Get("accept"), ",")
	}
	if err := report.Decide(accept); err != nil {
		return nil, problem.Invalid("accept", short(err.Error()))
	}
	return &answer{status: http.StatusOK, value: report}, nil
}
