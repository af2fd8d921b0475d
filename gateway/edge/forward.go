package edge

import (
	"errors"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// forward sends r and passes the answer on: its status, body and the headers that are allowed. It returns the status, 0
// where there was no answer.
func (x *exchange) forward(r *upstream.Request) int {
	r.RequestID, r.Trace = string(x.id), x.traceparent()
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	err := x.s.Pool.Do(r, resp)
	if err != nil {
		x.unanswered(r, err)
		return 0
	}
	code := resp.StatusCode()
	if code == fasthttp.StatusUnauthorized && len(resp.Header.Peek(signing.HeaderTime)) > 0 {
		// It is this gateway that the backend does not know, not the client: that refusal names the time to sign by.
		x.s.warn("check the signing keys on both sides", errSignature, r)
		x.overloaded("the shop cannot be reached; nothing was done")
		x.rule = verdict.Unreachable
		return 0
	}
	if r.Method != fasthttp.MethodGet {
		failpoint.Hit("gateway.before-answer")
	}
	out := &x.ctx.Response
	out.SetStatusCode(code)
	out.Header.Set("Cache-Control", "no-store")
	for _, name := range passed {
		if v := resp.Header.Peek(name); len(v) > 0 {
			out.Header.SetBytesV(name, v)
		}
	}
	if after, err := strconv.Atoi(string(out.Header.Peek("Retry-After"))); err == nil && time.Duration(after)*time.Second < x.wait {
		out.Header.Set("Retry-After", itoa(limit.Decision{Wait: x.wait + jitter(time.Second)}.Seconds()))
	}
	out.SetBody(resp.Body())
	x.result = resultOfAnswer(code, resp.Body())
	x.rule, _ = verdict.Known(resp.Header.Peek(verdict.HeaderRule))
	return code
}

// passed is every header of a backend's answer that a client sees.
var passed = []string{"Content-Type", "Location", "ETag", "Cache-Control", "Retry-After", "WWW-Authenticate"}

// unanswered says what is known of a request that got no answer.
func (x *exchange) unanswered(r *upstream.Request, err error) {
	if r.Method != fasthttp.MethodGet && errors.Is(err, upstream.ErrUnknown) {
		x.s.warn("no answer from the backend", err, r)
		detail := "the request was sent on and no answer came: ask again with the same Idempotency-Key, or look at GET /v1/orders?sale_id="
		switch x.route {
		case routeWebhook:
			detail = "the event was sent on and no answer came: deliver it again, it counts once"
		case routeUse:
			detail = "the request was sent on and no answer came: look at GET " + wire.CouponsPath
		case routeStandby:
			detail = "the request was sent on and no answer came: ask again, it is done once; or look at GET " + r.Target
		}
		p := problem.New(problem.OutcomeUnknown, detail)
		p.RetryAfter = time.Second + jitter(2*time.Second)
		x.refuse(p)
		x.rule = verdict.NoAnswer
		return
	}
	if errors.Is(err, upstream.ErrBusy) {
		x.busy()
		return
	}
	x.rule = verdict.Unreachable
	x.s.warn("the backend was not reached", err, r)
	x.overloaded("the shop cannot be reached; nothing was done")
}
