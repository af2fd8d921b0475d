package edge

import (
	"math/rand/v2"
	"strconv"
	"time"

	"floodgate.internal/shared/problem"
)

// Refusals whose bytes are made in advance, so that they allocate nothing.
var (
	bannedNetwork    = problem.Prepare(problem.New(problem.Forbidden, "requests from this network are not taken; nothing was done"))
	bannedUser       = problem.Prepare(problem.New(problem.Forbidden, "this account may not buy here; orders that it has stand"))
	notEligible      = problem.Prepare(problem.New(problem.Forbidden, "ordering here is for invited accounts only, and this one is not on the list; orders that it has stand"))
	ordersWaiting    = problem.Prepare(problem.New(problem.Overloaded, "too many orders are waiting; nothing was done"))
	backendsFull     = problem.Prepare(problem.New(problem.Overloaded, "the shop is busy; nothing was done"))
	justStarted      = problem.Prepare(problem.New(problem.Overloaded, "this gateway has just started and does not know the time yet; nothing was done"))
	tooManyDelivered = problem.Prepare(problem.New(problem.Overloaded, "too many deliveries at once; nothing was done"))

	overLimit = func() (l [rules]*problem.Prepared) {
		for by, detail := range map[rule]string{
			ruleIP:      "too many requests from your address; nothing was done",
			ruleIPUsers: "too many requests of users at your address; nothing was done",
			ruleWebhook: "too many deliveries from your address; nothing was done, deliver it again",
			ruleOrder:   "one order at a time; nothing was done",
			rulePayment: "too many changes of your orders; nothing was done",
			ruleRead:    "too many requests; nothing was done",
			ruleGlobal:  "too many orders are coming in; nothing was done",
		} {
			l[by] = problem.Prepare(problem.New(problem.RateLimited, detail))
		}
		return l
	}()
)

// refuse answers with p.
func (x *exchange) refuse(p *problem.Problem) {
	if p.Code == problem.Overloaded && p.RetryAfter == 0 {
		p.RetryAfter = time.Second + jitter(2*time.Second)
	}
	if p.RetryAfter > 0 {
		p.RetryAfter = max(p.RetryAfter, x.wait+jitter(time.Second))
	}
	p.WriteTo(x.ctx, string(x.id))
	x.result = resultOf(p.Code)
}

// refusedBy notes which rule of the gateway refuses the request.
func (x *exchange) refusedBy(by rule) {
	x.s.metrics.refusals[by].Inc()
	x.rule, x.verdict = by, verdictOfRule[by]
}

// reject is refuse by a rule of the gateway.
func (x *exchange) reject(by rule, p *problem.Problem) {
	x.refusedBy(by)
	x.refuse(p)
}

// rejectPrepared is reject without an allocation. Retry-After is the longer of after and x.wait, with jitter; after = 0
// sends none.
func (x *exchange) rejectPrepared(by rule, r *problem.Prepared, after time.Duration) {
	x.refusedBy(by)
	x.result = resultOf(r.Code)
	resp := &x.ctx.Response
	resp.SetStatusCode(r.Status)
	resp.Header.SetContentType(problem.ContentType)
	resp.Header.SetCanonical(headerCache, noStore)
	if after > 0 {
		resp.Header.SetCanonical(headerRetryAfter, x.retryAfter(max(after, x.wait)))
	}
	x.body = r.AppendBody(x.body[:0], x.id)
	resp.SetBodyRaw(x.body)
}

// rejectFull answers 503 because every place at the backends is taken.
func (x *exchange) rejectFull() {
	x.rejectPrepared(ruleInFlight, backendsFull, time.Second+jitter(time.Second))
}

func (x *exchange) overloaded(detail string) { x.refuse(problem.New(problem.Overloaded, detail)) }

func (x *exchange) notFound() {
	x.refuse(problem.New(problem.NotFound, "there is no such path"))
}

// badBody refuses a body, or a field of the query or the header, that cannot be read.
func (x *exchange) badBody(err error) {
	x.reject(ruleBody, problem.New(problem.BadRequest, err.Error()))
}

// badField refuses the value of one field.
func (x *exchange) badField(name, detail string) {
	x.reject(ruleBody, problem.Invalid(name, detail))
}

// badRequest is BAD_REQUEST under another status than 400.
func badRequest(status int, detail string) *problem.Problem {
	p := problem.New(problem.BadRequest, detail)
	p.Status = status
	return p
}

func tooLarge() *problem.Problem {
	return problem.New(problem.PayloadTooLarge, "the body is too large")
}

// retryAfter is a Retry-After in whole seconds, with jitter.
func (x *exchange) retryAfter(after time.Duration) []byte {
	seconds := (after + jitter(time.Second) + time.Second - 1) / time.Second
	return strconv.AppendInt(x.retryRoom[:0], int64(seconds), 10)
}

// jitter is 0 to d. It is only ever added, so that nobody is told to come back too early.
func jitter(d time.Duration) time.Duration { return rand.N(d) }
