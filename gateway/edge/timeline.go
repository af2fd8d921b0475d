package edge

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
)

// ruleRecords is what a refusal by a rule of the gateway's own is recorded as, where its code does not say enough.
var ruleRecords = [rules]verdict.Rule{
	ruleBan: verdict.Banned, ruleEligible: verdict.NotListed, ruleOrder: verdict.OrderLimit, ruleGlobal: verdict.GlobalLimit,
	ruleInFlight: verdict.InFlight,
}

// codeRecords is what an answer is recorded as where nothing names its rule. An answer of another code is not recorded.
var codeRecords = map[problem.Code]verdict.Rule{
	problem.SoldOut: verdict.SoldOut, problem.InsufficientStock: verdict.NotEnough, problem.AlreadyOrdered: verdict.AlreadyOrdered,
	problem.TooManyOrders:  verdict.TooManyOrders,
	problem.SaleNotStarted: verdict.NotStarted, problem.SaleEnded: verdict.Ended, problem.Forbidden: verdict.NotAllowed,
	problem.IdempotencyKeyReused: verdict.KeyReused, problem.OrderStateConflict: verdict.Rejected,
	problem.Overloaded: verdict.Overloaded, problem.OutcomeUnknown: verdict.Unconfirmed, problem.Internal: verdict.Broken,
	problem.BadRequest: verdict.BadRequest, problem.UnsupportedMediaType: verdict.BadRequest,
}

var resultRecords = func() []verdict.Rule {
	list := make([]verdict.Rule, int(firstCode)+len(codes))
	list[resultOK], list[resultOther] = verdict.Accepted, verdict.Broken
	for code, rule := range codeRecords {
		list[resultOf(code)] = rule
	}
	return list
}()

// record counts a press of a known user for their timeline, once it is answered.
func (x *exchange) record(sale int64, uid string) {
	rule := x.rule
	if rule == "" {
		rule = resultRecords[x.result]
	}
	if rule != "" {
		x.s.Records.Record(sale, uid, rule, x.s.Clock.NowMillis())
	}
}

// timeline is GET /v1/sales/{id}/timeline.
func (x *exchange) timeline(sale int64) {
	who, ok := x.user()
	if !ok {
		return
	}
	if sale == 0 {
		x.refuse(problem.New(problem.SaleNotFound, "there is no such sale"))
		return
	}
	if !x.takeOwn(who.UID) || !x.room(upstream.Page, 0) {
		return
	}
	x.s.Handover.Soon()
	x.forward(&upstream.Request{Method: fasthttp.MethodGet, Class: upstream.Page, Target: "/v1/sales/" + strconv.FormatInt(sale, 10) + "/timeline", UID: who.UID})
}
