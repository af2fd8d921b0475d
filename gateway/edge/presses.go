package edge

import (
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
)

// verdictOfRule is what a refusal by a rule of the gateway is recorded as, where its code does not say enough.
var verdictOfRule = [rules]verdict.Rule{
	ruleBan: verdict.Banned, ruleEligible: verdict.NotListed, ruleOrder: verdict.OrderLimit, ruleGlobal: verdict.GlobalLimit,
	ruleInFlight: verdict.InFlight,
}

// verdictOfCode is what an answer is recorded as where nothing names its rule. An answer of another code is not recorded.
var verdictOfCode = map[problem.Code]verdict.Rule{
	problem.SoldOut: verdict.SoldOut, problem.InsufficientStock: verdict.NotEnough, problem.AlreadyOrdered: verdict.AlreadyOrdered,
	problem.TooManyOrders:  verdict.TooManyOrders,
	problem.SaleNotStarted: verdict.NotStarted, problem.SaleEnded: verdict.Ended, problem.Forbidden: verdict.NotAllowed,
	problem.IdempotencyKeyReused: verdict.KeyReused, problem.OrderStateConflict: verdict.Rejected,
	problem.Overloaded: verdict.Overloaded, problem.OutcomeUnknown: verdict.Unconfirmed, problem.Internal: verdict.Internal,
	problem.BadRequest: verdict.BadRequest, problem.UnsupportedMediaType: verdict.BadRequest,
}

var verdictOfResult = func() []verdict.Rule {
	list := make([]verdict.Rule, int(firstCode)+len(codes))
	list[resultOK], list[resultOther] = verdict.Accepted, verdict.Internal
	for code, rule := range verdictOfCode {
		list[resultOf(code)] = rule
	}
	return list
}()

// recordPress counts an answered order of a known user, for their timeline.
func (x *exchange) recordPress(sale int64) {
	rule := x.verdict
	if rule == "" {
		rule = verdictOfResult[x.result]
	}
	if rule != "" {
		x.s.Presses.Record(sale, x.uid, rule, x.s.Clock.NowMillis())
	}
}

// timeline is GET /v1/sales/{sale_id}/timeline.
func (x *exchange) timeline() {
	if !x.user() {
		return
	}
	if x.saleID() == 0 {
		x.refuse(problem.New(problem.SaleNotFound, "there is no such sale"))
		return
	}
	if !x.admitUser(x.uid) || !x.room(0) {
		return
	}
	x.s.Flusher.FlushSoon()
	x.forward(x.request())
}
