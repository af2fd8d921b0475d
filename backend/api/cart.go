package api

import (
	"context"
	"errors"

	"floodgate.internal/backend/cart"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// postCart makes an order of several SKUs. MySQL decides, so the answer is final.
func (s *Server) postCart(r *request) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	key, p := r.idempotencyKey()
	if p != nil {
		return r.refuse(p)
	}
	if key == "" {
		return r.refuse(problem.Invalid("Idempotency-Key", "missing: a cart needs one, so that asking again is never ordering again"))
	}
	body, p := r.jsonBody()
	if p != nil {
		return r.refuse(p)
	}
	items, err := wire.ParseCart(body)
	if err != nil {
		return r.refuse(badBody(err))
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	banned := s.mayBuy(eligibility.Bans, uid)
	var answer []byte
	repeated := banned != nil
	if banned == nil {
		answer, repeated, err = s.Carts.Place(ctx, uid, key, items)
	} else if banned.Code != problem.Overloaded {
		answer, err = s.Carts.First(ctx, uid, key, items) // an order is a promise, also to who may make no new one
	}
	switch {
	case errors.Is(err, cart.ErrKeyReused):
		return r.refuse(problem.New(problem.IdempotencyKeyReused, "this Idempotency-Key was used for another cart; use a new key for another order"))
	case errors.Is(err, cart.ErrBusy):
		return r.refuse(overloaded("too many carts are being decided"))
	case errors.Is(err, cart.ErrUndecided):
		s.sparse.warn("api: the outcome of a cart is unknown", r.ids(), "error", err)
		return r.refuse(unknownOutcome("your cart may have been ordered: ask again with the same Idempotency-Key"))
	case err != nil:
		s.sparse.warn("api: a cart could not be decided", r.ids(), "error", err)
		return r.refuse(overloaded("carts cannot be decided at the moment"))
	case answer == nil:
		return r.refuse(banned)
	}
	r.Response.Header.Set("Cache-Control", "no-store")
	r.Response.Header.SetContentType("application/json")
	r.Response.SetBodyRaw(answer)
	if repeated {
		return resultRepeated
	}
	return resultOK
}

func (s *Server) getSKUs(r *request) string {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	list, err := s.SKUs.List(ctx)
	if err != nil {
		s.sparse.warn("api: SKUs could not be listed", r.ids(), "error", err)
		return r.refuse(overloaded("the SKUs cannot be read at the moment"))
	}
	answer := wire.SKUList{SKUs: list}
	return r.page(answer, answer)
}
