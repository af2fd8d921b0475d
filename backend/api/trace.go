package api

import (
	"errors"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/wire"
)

// trace is the traceparent of what the request begins: that of its own span, or, where it is not traced here, the gateway's.
func (r *request) trace() string {
	if r.span != nil {
		return r.span.Traceparent()
	}
	return wire.Traceparent(r.Request.Header.Peek("traceparent"))
}

// endSpan ends the span of a request that was answered, if it is traced.
func (r *request) endSpan(result string) {
	if r.span == nil {
		return
	}
	r.span.Name(string(r.Method()) + " " + r.route.path)
	r.span.Text("http.route", r.route.path)
	r.span.Text("request_id", r.id)
	r.span.Text("result", result)
	status := r.Response.StatusCode()
	r.span.Number("http.response.status_code", int64(status))
	var err error
	if status >= 500 {
		err = errors.New(result)
	}
	r.span.End(time.Now(), err)
}

// endReserve ends the span of one decision by Redis, if it is traced.
func endReserve(span *tracing.Span, sale int64, v reserve.Verdict, err error) {
	span.Text("db.system.name", "redis")
	span.Number("sale", sale)
	span.Text("answer", string(v.Answer))
	span.Text("order_id", v.OrderID)
	span.End(time.Now(), tracing.Failed(err, "no verdict"))
}
