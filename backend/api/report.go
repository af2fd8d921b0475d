package api

import (
	"context"
	"errors"
	"fmt"

	"floodgate.internal/backend/gateways"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// postReport keeps what a gateway tells of itself.
func (s *Server) postReport(r *request) string {
	body, p := r.jsonBody()
	if p != nil {
		return r.refuse(p)
	}
	if len(body) > wire.MaxReport {
		return r.refuse(problem.New(problem.PayloadTooLarge, fmt.Sprintf("a report has at most %d bytes", wire.MaxReport)))
	}
	var report wire.GatewayReport
	err := wire.DecodeStrict(body, &report)
	if err == nil {
		err = report.Check()
	}
	if err != nil {
		return r.refuse(badBody(err))
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	if err := s.Gateways.Take(ctx, report); errors.Is(err, gateways.ErrFull) {
		return r.refuse(overloaded(err.Error()))
	} else if err != nil {
		s.sparse.warn("api: a gateway's report could not be kept", r.ids(), "gateway", report.Name, "error", err)
		return r.refuse(overloaded("reports cannot be kept at the moment"))
	}
	r.Response.SetStatusCode(204)
	r.Response.Header.Set("Cache-Control", "no-store")
	return resultOK
}
