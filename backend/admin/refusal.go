package admin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-sql-driver/mysql"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/closing"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/problem"
)

// refusal turns an error into what the operator is told.
func (a *Admin) refusal(r *request, err error) *problem.Problem {
	if p := ruled(err); p != nil {
		return p
	}
	var p *problem.Problem
	var refused *mysql.MySQLError
	later := time.Second + time.Duration(rand.Int64N(int64(2*time.Second)))
	switch {
	case errors.Is(err, store.ErrUnknown):
		p = problem.New(problem.OutcomeUnknown, "MySQL did not say whether it was done: look, or send it again with the same Idempotency-Key if it had one")
		p.RetryAfter = later
	case errors.As(err, &refused) && !store.Retryable(err):
		a.Log.Error("admin request failed", "request_id", r.id, "method", r.Method, "path", r.URL.Path, "error", err)
		return problem.New(problem.Internal, "see the backend's log under this request_id")
	case errors.Is(err, audit.ErrBusy):
		p = problem.New(problem.Overloaded, "another sale is being audited, which takes a minute where it has a million orders: send it again later")
		p.RetryAfter = later
	default:
		p = problem.New(problem.Overloaded, "nothing was done: MySQL or Redis does not answer, /-/ready says which; send it again later")
		p.RetryAfter = later
	}
	a.Log.Warn("admin request failed", "request_id", r.id, "method", r.Method, "path", r.URL.Path, "error", err)
	return p
}

// ruled is the problem of a request that breaks a rule; nil for any other error.
func ruled(err error) *problem.Problem {
	var (
		p        *problem.Problem
		notFound *sale.NotFoundError
		noSKU    *sale.NoSKUError
		closed   *sale.ClosedError
		units    *sale.UnitsError
		limit    *sale.LimitError
		field    *sale.FieldError
		refused  *closing.RefusedError
		member   *fieldError
	)
	name := ""
	if errors.As(err, &member) {
		name = member.field
	}
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &notFound):
		return problem.New(problem.SaleNotFound, fmt.Sprintf("no sale %d: GET /admin/v1/sales lists them", notFound.Sale))
	case errors.As(err, &noSKU):
		return problem.Invalid("sku_id", fmt.Sprintf("there is no SKU %d: POST /admin/v1/skus makes one, or leave it out for a SKU of the sale's own", noSKU.SKU))
	case errors.As(err, &closed):
		return problem.New(problem.SaleEnded, closed.Error()+": make another sale")
	case errors.As(err, &units):
		p = problem.New(problem.InsufficientStock, fmt.Sprintf("%s: %v: POST /admin/v1/skus/%d/restock adds some", name, units, units.SKU))
		p.Field = name
		return p
	case errors.As(err, &limit):
		return problem.Invalid(name, limit.Error())
	case errors.As(err, &field):
		return problem.Invalid(field.Field, field.Detail())
	case errors.As(err, &refused):
		return problem.New(problem.SaleStateConflict, refused.Error())
	case errors.Is(err, sale.ErrTooMany):
		p = problem.New(problem.Overloaded, sale.ErrTooMany.Error()+": archive some")
		p.RetryAfter = time.Minute
		return p
	}
	return nil
}

// fieldError says which member of the request an error is about.
type fieldError struct {
	field string
	error
}

func (e *fieldError) Unwrap() error { return e.error }

// asSent puts the value of a field into the error as it was sent.
func asSent(err error, field string, sent *string) error {
	var e *sale.FieldError
	if errors.As(err, &e) && e.Field == field && e.Value != "" && sent != nil {
		e.Value = short(*sent)
	}
	return err
}

func inField(field string, err error) error {
	if err == nil {
		return nil
	}
	return &fieldError{field, err}
}
