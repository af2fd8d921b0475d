package api

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/standby"
	"floodgate.internal/lua"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Who asks about standby lines asks MySQL, and a crowd that is told of a sold-out sale comes all at once: so many are answered at
// a time, and one who has waited so long for his turn is OVERLOADED, so that the crowd keeps no consumer from its connections.
const (
	standbyAtOnce = 8
	standbyWait   = time.Second
)

// inLine is what a request about a standby line is about.
type inLine struct {
	uid  string
	sale int64
	over bool // the sale is
	kind wire.SaleKind
	done func() // gives the turn back
}

// atLine reads the request and waits for its turn. A problem: there is nothing to give back.
func (s *Server) atLine(ctx context.Context, r *request) (inLine, *problem.Problem) {
	uid, p := r.user()
	if p != nil {
		return inLine{}, p
	}
	id, p := r.saleID()
	if p != nil {
		return inLine{}, p
	}
	if p := r.noBody(); p != nil {
		return inLine{}, p
	}
	sale, p := s.sale(ctx, id)
	if p != nil && p.Code != problem.SaleEnded {
		return inLine{}, p
	}
	now, known := s.Catalog.Public(id)
	l := inLine{uid: uid, sale: id, over: p != nil || known && now.State == wire.Ended, kind: sale.Kind, done: func() { <-s.standing }}
	turn := time.NewTimer(standbyWait)
	defer turn.Stop()
	select {
	case s.standing <- struct{}{}:
		return l, nil
	case <-turn.C:
	case <-ctx.Done():
	}
	return inLine{}, overloaded("too many ask about standby lines")
}

func (s *Server) getStandby(r *request) string {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	l, p := s.atLine(ctx, r)
	if p != nil {
		return r.refuse(p)
	}
	defer l.done()
	return s.tellPlace(ctx, r, l, s.unread)
}

// tellPlace answers with where the user stands, or with what failed makes of an error.
func (s *Server) tellPlace(ctx context.Context, r *request, l inLine, failed func(error, *request, int64) *problem.Problem) string {
	at, err := s.Standby.Look(ctx, l.sale, l.uid, l.over)
	switch {
	case err == nil:
		return r.private(at)
	case errors.Is(err, standby.ErrNotInLine):
		return r.refuse(problem.New(problem.NotInLine, "POST joins the standby line of this sale"))
	default:
		return r.refuse(failed(err, r, l.sale))
	}
}

// unread is what is told when nothing was done, for the place could not be read.
func (s *Server) unread(err error, r *request, sale int64) *problem.Problem {
	s.sparse.warn("api: a place in a standby line could not be read", "sale", sale, r.ids(), "error", err)
	return overloaded("your place cannot be read at the moment")
}

// postStandby puts the user at the end of the line, where it makes sense. Who is in it already stays where he is.
func (s *Server) postStandby(r *request) string {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	l, p := s.atLine(ctx, r)
	if p != nil {
		return r.refuse(p)
	}
	defer l.done()
	at, err := s.Standby.Look(ctx, l.sale, l.uid, l.over)
	switch {
	case err == nil && at.State == wire.StandbyWaiting:
		if err := s.Standby.Again(ctx, l.sale, l.uid); err != nil {
			return r.refuse(s.unjoined(err, r, l.sale))
		}
		return r.private(at)
	case err == nil && at.State == wire.StandbyOffered:
		return r.private(at)
	case err != nil && !errors.Is(err, standby.ErrNotInLine):
		return r.refuse(s.unread(err, r, l.sale))
	}
	if p := s.mayJoin(ctx, l); p != nil {
		return r.refuse(p)
	}
	orderID, err := uuid.NewV7()
	if err != nil {
		return r.refuse(problem.New(problem.Internal, "no order id could be made; nothing was done"))
	}
	if err := s.Standby.Join(ctx, l.sale, l.uid, wire.NewOrderID(orderID.String(), l.sale)); err != nil {
		return r.refuse(s.unjoined(err, r, l.sale))
	}
	return s.tellPlace(ctx, r, l, s.unjoined)
}

// mayJoin refuses who has no use for a place in the line, or no right to one.
func (s *Server) mayJoin(ctx context.Context, l inLine) *problem.Problem {
	if l.over {
		return problem.New(problem.SaleEnded, refusals[lua.Ended].detail)
	}
	if l.kind == wire.Coupon {
		return problem.New(problem.SaleStateConflict, "a coupon campaign has no standby line: what was issued does not come back")
	}
	if p := s.mayBuy(l.sale, l.uid); p != nil {
		return p
	}
	verdict, err := s.lookStandby(ctx, l)
	switch {
	case err != nil:
		s.sparse.warn("api: a standby line could not be looked at", "sale", l.sale, "error", err)
		return overloaded("the standby line cannot be joined at the moment")
	case verdict.Answer == lua.Joinable:
		return nil
	case verdict.Answer == lua.Available:
		return problem.New(problem.UnitsAvailable, "something is available, and nobody waits for it: order it instead")
	default:
		return s.refusal(l.sale, verdict)
	}
}

// lookStandby asks Redis, once more after loading a sale that is not there.
func (s *Server) lookStandby(ctx context.Context, l inLine) (reserve.Verdict, error) {
	finished := s.loads.finished.Load()
	verdict, err := s.Redis.LookStandby(ctx, l.sale, l.uid)
	if !errors.Is(err, reserve.ErrNotLoaded) && !errors.Is(err, reserve.ErrGateClosed) {
		return verdict, err
	}
	if running := s.load(l.sale, finished); running != nil {
		if err := s.await(ctx, running); err != nil {
			return verdict, err
		}
	}
	return s.Redis.LookStandby(ctx, l.sale, l.uid)
}

// unjoined is what is told when a join came to no good end.
func (s *Server) unjoined(err error, r *request, sale int64) *problem.Problem {
	if errors.Is(err, standby.ErrFull) {
		return problem.New(problem.StandbyFull, "as many wait for this sale as may; a place becomes free when somebody leaves or is offered a unit")
	}
	s.sparse.warn("api: a join of a standby line came to no end", "sale", sale, r.ids(), "error", err)
	return unknownOutcome("you may be in the standby line: ask again, it gives the same place, or see GET " + wire.StandbyPath(sale))
}

// deleteStandby takes the user out of the line, or cancels the offer that he has.
func (s *Server) deleteStandby(r *request) string {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	l, p := s.atLine(ctx, r)
	if p != nil {
		return r.refuse(p)
	}
	defer l.done()
	offer, err := s.Standby.Leave(ctx, l.sale, l.uid)
	if err == nil && offer != "" {
		_, err = s.Orders.Cancel(ctx, l.uid, offer)
	}
	var state *order.StateError
	switch {
	case errors.As(err, &state) && state.Order.Status == wire.Paid:
		p := problem.New(problem.OrderStateConflict, "the offer was accepted: its order is paid")
		p.OrderID = offer
		return r.refuse(p)
	case err == nil, errors.Is(err, standby.ErrNotInLine), errors.As(err, &state):
		return s.tellPlace(ctx, r, l, s.unleft)
	default:
		return r.refuse(s.unleft(err, r, l.sale))
	}
}

// unleft is what is told when leaving came to no good end.
func (s *Server) unleft(err error, r *request, sale int64) *problem.Problem {
	s.sparse.warn("api: a leave of a standby line came to no end", "sale", sale, r.ids(), "error", err)
	return unknownOutcome("you may or may not have left: ask again, or see GET " + wire.StandbyPath(sale))
}
