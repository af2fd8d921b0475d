package api

import (
	"context"
	"errors"
	"fmt"

	"floodgate.internal/backend/coupon"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func (s *Server) getCoupons(r *request) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	list, err := s.Claims.List(ctx, uid, r.query["cursor"], pageSize)
	switch {
	case err == nil:
		return r.private(list)
	case errors.Is(err, coupon.ErrCursor):
		return r.refuse(problem.Invalid("cursor", "it must be the next of an earlier answer"))
	default:
		s.sparse.warn("api: coupons could not be read", r.ids(), "error", err)
		return r.refuse(overloaded("coupons cannot be read at the moment"))
	}
}

// postUse uses a coupon: once, whoever asks again.
func (s *Server) postUse(r *request) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	if !wire.ValidClaimID(r.arg) {
		return r.refuse(noSuchCoupon())
	}
	if p := r.noBody(); p != nil {
		return r.refuse(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	claim, err := s.Claims.Use(ctx, uid, r.arg)
	var ended *coupon.EndedError
	switch {
	case err == nil:
		return r.private(claim)
	case errors.Is(err, coupon.ErrNotFound):
		return r.refuse(noSuchCoupon())
	case errors.As(err, &ended):
		p := problem.New(problem.OrderStateConflict, fmt.Sprintf("%s: it cannot be used", ended))
		p.OrderID = ended.Claim.OrderID
		return r.refuse(p)
	default:
		s.sparse.warn("api: a coupon could not be used", r.ids(), "error", err)
		return r.refuse(unknownOutcome("the coupon may or may not have been used: see GET " + wire.CouponsPath))
	}
}

func noSuchCoupon() *problem.Problem {
	return problem.New(problem.NotFound, "you have no coupon with this id")
}
