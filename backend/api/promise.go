package api

import (
	"context"
	"errors"

	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// Why requests are not begun, for the metrics.
const (
	shedQueued = "queued"
	shedLag    = "lag"
	shedOutage = "outage"
	shedLate   = "late"
)

// pressure refuses an order that could not be finished soon. Those that were accepted are finished.
func (s *Server) pressure(sale int64) *problem.Problem {
	if s.Catalog.Queued(sale) > s.Limits.Queued {
		s.metrics.shed[shedQueued].Inc()
		return by(verdict.QueueFull, overloaded("too many orders of this sale are queued"))
	}
	if s.Catalog.Lag(sale) > s.Limits.Lag {
		s.metrics.shed[shedLag].Inc()
		return by(verdict.QueueSlow, overloaded("orders of this sale have been queued for too long"))
	}
	if s.Outage != nil {
		if what := s.Outage(); what != "" {
			s.metrics.shed[shedOutage].Inc()
			s.sparse.warn("api: no orders are taken while something is away", "what", what)
			return by(verdict.Outage, overloaded("orders cannot be finished at the moment"))
		}
	}
	return nil
}

// confirmed returns once the order that was just made may be promised: with a Confirmer, when the broker or Redis's replicas
// have it as well, or when MySQL has it already. The order stands either way, and a relay publishes it.
func (s *Server) confirmed(ctx context.Context, r *request, e queued.Entry) *problem.Problem {
	if s.Confirmer == nil {
		return nil
	}
	err := s.Confirmer.Confirm(ctx, e)
	if err == nil {
		return nil
	}
	if errors.Is(err, outbox.ErrMoved) {
		if known, p := s.decided(ctx, r, e.ID); known {
			return p
		}
	}
	return s.unconfirmed(r, e.Sale, err)
}

// confirmedBefore is confirmed for an order that was made before, by a press whose answer may have been anything: MySQL has
// it, or it is confirmed now. MySQL is asked once more after the confirm: an order of an older epoch may have been
// rejected before it was adopted.
func (s *Server) confirmedBefore(ctx context.Context, r *request, sale int64, orderID string) *problem.Problem {
	if s.Confirmer == nil {
		return nil
	}
	if known, p := s.decided(ctx, r, orderID); known {
		return p
	}
	if err := s.Confirmer.Again(ctx, sale, orderID); err != nil && !errors.Is(err, outbox.ErrMoved) && !errors.Is(err, outbox.ErrNotQueued) {
		return s.unconfirmed(r, sale, err)
	} else if known, p := s.decided(ctx, r, orderID); known {
		return p
	} else if err != nil {
		return s.unconfirmed(r, sale, err)
	}
	return nil
}

// decided reports whether the order's promise is settled by MySQL: it has the order, and p says if it was rejected; or it
// cannot be asked, and p says that nothing is known.
func (s *Server) decided(ctx context.Context, r *request, orderID string) (known bool, p *problem.Problem) {
	o, err := s.Reader.Order(ctx, r.uid, orderID, 0)
	sale, _ := wire.SaleOfOrder(orderID)
	switch {
	case err != nil:
		return true, s.unconfirmed(r, sale, err)
	case o.Status == wire.Queued:
		return false, nil
	case o.Status == wire.Rejected:
		p := problem.New(problem.OrderStateConflict, "this order was rejected: "+o.Reason)
		p.OrderID = orderID
		return true, p
	default:
		return true, nil
	}
}

func (s *Server) unconfirmed(r *request, sale int64, err error) *problem.Problem {
	s.sparse.warn("api: an order is made and not confirmed yet", "sale", sale, r.ids(), "error", err)
	return maybeAccepted(sale)
}
