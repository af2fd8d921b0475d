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

// request is what a backend is sent for this operation: its method, the canonical path, the verified user. The handler
// adds what else it has checked.
func (x *exchange) request() *upstream.Request {
	return &upstream.Request{Method: x.op.method, Target: string(x.path), Class: x.op.class, UID: x.uid}
}

// forward sends r and passes the answer on: its status, body and the headers in passedOn. It returns the status, 0 where
// there was no answer.
func (x *exchange) forward(r *upstream.Request) int {
	r.RequestID, r.Trace = string(x.id), x.traceparent()
	resp := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	began := x.s.Now()
	span := x.askSpan(r, began)
	err := x.s.Backends.Do(r, resp)
	now := x.s.Now()
	x.asked = now.Sub(began)
	span.Text("server.address", r.Backend)
	span.End(now, err)
	if err != nil {
		x.noAnswer(r, err)
		return 0
	}
	code := resp.StatusCode()
	if code == fasthttp.StatusUnauthorized && len(resp.Header.Peek(signing.HeaderTime)) > 0 {
		// The backend refuses this gateway's signature, not the client's token: that refusal names the time to sign by.
		x.s.warn("check the signing keys on both sides", errSignature, r)
		x.unreachable()
		return 0
	}
	if r.Method != fasthttp.MethodGet {
		failpoint.Hit("gateway.before-answer")
	}
	out := &x.ctx.Response
	out.SetStatusCode(code)
	out.Header.Set("Cache-Control", "no-store")
	for _, name := range passedOn {
		if v := resp.Header.Peek(name); len(v) > 0 {
			out.Header.SetBytesV(name, v)
		}
	}
	if after, err := strconv.Atoi(string(out.Header.Peek("Retry-After"))); err == nil && time.Duration(after)*time.Second < x.wait {
		out.Header.Set("Retry-After", itoa(limit.Decision{Wait: x.wait + jitter(time.Second)}.Seconds()))
	}
	out.SetBody(resp.Body())
	x.result = resultOfAnswer(code, resp.Body())
	x.verdict, _ = verdict.Known(resp.Header.Peek(verdict.HeaderRule))
	return code
}

// passedOn is every header of a backend's answer that a client gets.
var passedOn = []string{"Content-Type", "Location", "ETag", "Cache-Control", "Retry-After", "WWW-Authenticate"}

// noAnswer answers a request that a backend did not answer, by what is known of it.
func (x *exchange) noAnswer(r *upstream.Request, err error) {
	switch {
	case r.Method != fasthttp.MethodGet && errors.Is(err, upstream.ErrUnknown):
		x.s.warn("no answer from the backend", err, r)
		detail := "the request was sent on and no answer came: ask again with the same Idempotency-Key, or look at GET /v1/orders?sale_id="
		switch x.op.name {
		case "webhook":
			detail = "the event was sent on and no answer came: deliver it again, it counts once"
		case "coupon_use":
			detail = "the request was sent on and no answer came: look at GET " + wire.CouponsPath
		case "standby":
			detail = "the request was sent on and no answer came: ask again, it is done once; or look at GET " + r.Target
		}
		p := problem.New(problem.OutcomeUnknown, detail)
		p.RetryAfter = time.Second + jitter(2*time.Second)
		x.refuse(p)
		x.verdict = verdict.NoAnswer
	case errors.Is(err, upstream.ErrBusy):
		x.rejectFull()
	default:
		x.s.warn("the backend was not reached", err, r)
		x.unreachable()
	}
}

func (x *exchange) unreachable() {
	x.overloaded("the shop cannot be reached; nothing was done")
	x.verdict = verdict.Unreachable
}
