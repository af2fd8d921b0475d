package api

import (
	"context"

	"floodgate.internal/backend/eligibility"
	"floodgate.internal/lua"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// ineligible is what those are told who may not buy.
var ineligible = map[eligibility.Refusal]string{
	eligibility.Banned:    "this account may not buy here; orders that it has stand",
	eligibility.NotListed: "this sale is for invited accounts only, and this one is not on its list",
}

var ineligibleRules = map[eligibility.Refusal]verdict.Rule{eligibility.Banned: verdict.Banned, eligibility.NotListed: verdict.NotListed}

// mayBuy refuses who is banned, or not on the list of a sale that has one.
func (s *Server) mayBuy(sale int64, uid string) *problem.Problem {
	if s.Lists == nil {
		return nil
	}
	if !s.Lists.Ready() {
		return overloaded("the lists of who may buy are being read")
	}
	why := s.Lists.Refuse(sale, uid)
	if why == "" {
		return nil
	}
	s.metrics.refused[why].Inc()
	return by(ineligibleRules[why], problem.New(problem.Forbidden, ineligible[why]))
}

// tooLate answers a press on an archived sale, of which MySQL alone knows: an Idempotency-Key that made an order gets it, as
// it does from a sale that has ended and is not archived yet.
func (s *Server) tooLate(ctx context.Context, r *request, sale int64, key string, body []byte) string {
	quantity, _, err := wire.ParseOrderRequest(body, 1<<30)
	if err != nil {
		return r.refuse(badBody(err))
	}
	return s.refuseUnlessRepeated(ctx, r, sale, key, quantity, problem.New(problem.SaleEnded, refusals[lua.Ended].detail), s.Reader.ByKey)
}

// refuseUnlessRepeated refuses with p, but for the repeat of an accepted order: an order is a promise, also to who may not make
// one any more. accepted looks for the order that a key made.
func (s *Server) refuseUnlessRepeated(ctx context.Context, r *request, sale int64, key string, quantity int, p *problem.Problem,
	accepted func(ctx context.Context, sale int64, uid, key string) (orderID string, quantity int, ok bool, err error)) string {
	if key == "" || p.Code == problem.Overloaded {
		return r.refuse(p)
	}
	id, units, ok, err := accepted(ctx, sale, r.uid, key)
	switch {
	case err != nil:
		s.sparse.warn("api: an Idempotency-Key could not be looked up", "sale", sale, "error", err)
		return r.refuse(overloaded("your Idempotency-Key cannot be looked up"))
	case !ok:
		return r.refuse(p)
	case units != quantity:
		reused := problem.New(problem.IdempotencyKeyReused, refusals[lua.KeyReused].detail)
		reused.OrderID = id
		return r.refuse(reused)
	}
	if p := s.confirmedBefore(ctx, r, sale, id); p != nil {
		return r.refuse(p)
	}
	return r.accept(id, resultRepeated)
}
