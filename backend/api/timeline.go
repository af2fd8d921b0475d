package api

import (
	"context"
	"errors"
	"time"

	"floodgate.internal/backend/admission"
	"floodgate.internal/backend/timeline"
	"floodgate.internal/lua"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// recordsYield is how far the consumers may be behind with a sale while records of it are taken: MySQL is for orders first.
const recordsYield = 500 * time.Millisecond

// getTimeline tells a user what became of their presses in a sale.
func (s *Server) getTimeline(r *request) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	id, p := r.saleID()
	if p != nil {
		return r.refuse(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	if _, p := s.sale(ctx, id); p != nil && p.Code != problem.SaleEnded {
		return r.refuse(p)
	}
	t, err := s.Timelines.Of(ctx, uid, id)
	switch {
	case errors.Is(err, timeline.ErrUnknown):
		return r.refuse(noSuchSale())
	case errors.Is(err, timeline.ErrBusy):
		return r.refuse(overloaded("too many timelines are being read"))
	case err != nil:
		s.sparse.warn("api: a timeline could not be read", r.ids(), "error", err)
		return r.refuse(overloaded("timelines cannot be read at the moment"))
	}
	t.UID = ""
	return r.private(t)
}

// postRecords takes what a gateway hands over of users' presses. What is refused stays there, and comes again.
func (s *Server) postRecords(r *request) string {
	body, p := r.jsonBody()
	if p != nil {
		return r.refuse(p)
	}
	var b verdict.Batch
	err := wire.DecodeStrict(body, &b)
	if err == nil {
		err = b.Check()
	}
	if err != nil {
		return r.refuse(badBody(err))
	}
	if s.Outage != nil && s.Outage() != "" {
		return r.refuse(overloaded("records wait while something is away"))
	}
	for _, rec := range b.Records {
		if s.Catalog.Lag(rec.Sale) > recordsYield {
			return r.refuse(overloaded("records wait for orders"))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	if err := s.Timelines.Take(ctx, &b); errors.Is(err, timeline.ErrBusy) {
		return r.refuse(overloaded("other records are being taken"))
	} else if err != nil {
		s.sparse.warn("api: a gateway's records could not be taken", "gateway", b.Gateway, "error", err)
		return r.refuse(overloaded("records cannot be taken at the moment"))
	}
	r.Response.SetStatusCode(204)
	r.Response.Header.Set("Cache-Control", "no-store")
	return resultOK
}

// by names the rule that a refusal is recorded under, where its code does not say enough.
func by(rule verdict.Rule, p *problem.Problem) *problem.Problem {
	p.Rule = string(rule)
	return p
}

// answerRules is what a refusal of the script is recorded as.
var answerRules = map[lua.Answer]verdict.Rule{lua.Paused: verdict.Paused, lua.StaleEpoch: verdict.Checking}

// lineRules is what a refusal of the line is recorded as.
var lineRules = map[error]verdict.Rule{admission.ErrFull: verdict.AdmissionFull, admission.ErrLong: verdict.AdmissionLong, admission.ErrLate: verdict.AdmissionLate}

func lineRule(err error) verdict.Rule {
	for reason, rule := range lineRules {
		if errors.Is(err, reason) {
			return rule
		}
	}
	return verdict.Overloaded
}
