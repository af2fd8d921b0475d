package edge

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/timeline"
)

// ruleRecords is what a refusal by a rule of the gateway's own is recorded as, where its code does not say enough.
var ruleRecords = [rules]timeline.Rule{
	ruleBan: timeline.Banned, ruleEligible: timeline.NotListed, ruleOrder: timeline.OrderLimit, ruleGlobal: timeline.GlobalLimit,
	ruleInFlight: timeline.InFlight,
}

// codeRecords is what an answer is recorded as where nothing names its rule. An answer of another code is not recorded.
var codeRecords = map[problem.Code]timeline.Rule{
	problem.SoldOut: timeline.SoldOut, problem.InsufficientStock: timeline.NotEnough, problem.AlreadyOrdered: timeline.AlreadyOrdered,
	problem.TooManyOrders:  timeline.TooManyOrders,
	problem.SaleNotStarted: timeline.NotStarted, problem.SaleEnded: timeline.Ended, problem.Forbidden: timeline.NotAllowed,
	problem.IdempotencyKeyReused: timeline.KeyReused, problem.OrderStateConflict: timeline.Rejected,
	problem.Overloaded: timeline.Overloaded, problem.OutcomeUnknown: timeline.Unconfirmed, problem.Internal: timeline.Broken,
	problem.BadRequest: timeline.BadRequest, problem.UnsupportedMediaType: timeline.BadRequest,
}

var resultRecords = func() []timeline.Rule {
	list := make([]timeline.Rule, int(firstCode)+len(codes))
	list[resultOK], list[resultOther] = timeline.Accepted, timeline.Broken
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
