package api

import (
	"context"
	"errors"
	"fmt"

	"floodgate.internal/backend/order"
	"floodgate.internal/backend/payment"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// postWebhook takes what a payment provider says. Nobody's name is needed: the provider signs.
func (s *Server) postWebhook(r *request) string {
	body, p := r.jsonBody()
	if p != nil {
		return r.refuse(p)
	}
	if len(body) > wire.MaxWebhook {
		return r.refuse(problem.New(problem.PayloadTooLarge, fmt.Sprintf("%d bytes, at most %d are taken", len(body), wire.MaxWebhook)))
	}
	signature := ""
	if all := r.Request.Header.PeekAll(wire.PaymentSignature); len(all) == 1 {
		signature = string(all[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	receipt, err := s.Webhooks.Take(ctx, r.arg, signature, body)
	if err != nil {
		return r.refuse(s.webhookRefused(r, err))
	}
	return r.private(receipt)
}

// webhookRefused maps the errors of payment.Webhooks.Take.
func (s *Server) webhookRefused(r *request, err error) *problem.Problem {
	var body *payment.BodyError
	var mismatch *payment.MismatchError
	switch {
	case errors.Is(err, payment.ErrProvider):
		return problem.New(problem.NotFound, "there is no such payment provider")
	case errors.Is(err, payment.ErrUnsigned), errors.Is(err, payment.ErrForged), errors.Is(err, payment.ErrAge):
		p := problem.New(problem.Unauthenticated, "the signature: "+err.Error())
		p.Field = wire.PaymentSignature
		return p
	case errors.As(err, &body):
		return badBody(body)
	case errors.Is(err, order.ErrNotFound):
		s.sparse.warn("api: a payment provider names an order that does not exist", r.ids(), "error", err)
		return problem.New(problem.OrderNotFound, "there is no order with this id; nothing was recorded")
	case errors.Is(err, payment.ErrQueued):
		return overloaded("the order is still queued and waits for no payment yet")
	case errors.Is(err, payment.ErrReused):
		p := problem.New(problem.IdempotencyKeyReused, "an event with this id came before and said something else; nothing was changed")
		p.Field = "id"
		return p
	case errors.As(err, &mismatch):
		return problem.New(problem.PaymentMismatch, mismatch.Detail)
	default:
		s.sparse.warn("api: a payment event could not be taken", r.ids(), "error", err)
		return unknownOutcome("the event may or may not have been recorded: deliver it again, it counts once")
	}
}
