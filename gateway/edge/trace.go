package edge

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/tracing"
)

// TraceSettings is which requests are traced, where there is a Tracer: those whose client says so, and some of those whose client
// sends no trace.
type TraceSettings struct {
	Sample float64 // the share of the latter, from 0 to 1
	Max    int     // traced requests a second, of both: a client may say what it likes
}

func newTraceBudget(reg prometheus.Registerer) budget {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_traces_dropped_total", Help: "Requests that were to be traced and were not, for tracing.max_per_second."})
	reg.MustRegister(c)
	return budget{dropped: c}
}

func (t *TraceSettings) draw() bool { return t.Sample > 0 && rand.Float64() < t.Sample }

// toBeTraced reports whether a refusal on the fast path must take the slow path, because it is to be traced.
func (x *exchange) toBeTraced(h *head) bool {
	switch {
	case len(h.trace) > 0:
		return tracing.Sampled(string(h.trace)) && x.s.traces.available(x.now, x.set.Traces.Max)
	case x.set.Traces.draw() && x.s.traces.available(x.now, x.set.Traces.Max):
		x.conn.traced = true
		return true
	}
	return false
}

// isTraced decides, once, whether the request is traced.
func (x *exchange) isTraced() bool {
	if x.s.Tracer == nil {
		return false
	}
	if x.traced == undecided {
		x.traced = notInSample
		given := x.givenTrace()
		wanted := tracing.Sampled(given) || given == "" && (x.conn.traced || x.set.Traces.draw())
		if x.conn.traced = false; wanted && x.s.traces.take(x.now, x.set.Traces.Max) {
			x.traced = inSample
		}
	}
	return x.traced == inSample
}

// requestSpan is the span of a traced request, below the client's where it sent one.
func (x *exchange) requestSpan() *tracing.Span {
	if x.span == nil {
		x.span = x.s.Tracer.Begin(x.givenTrace(), "request", tracing.Server, x.now)
	}
	return x.span
}

// askSpan begins the span of what a backend is asked, which the backend's own is below. It is nil where the request is not traced.
func (x *exchange) askSpan(r *upstream.Request, now time.Time) *tracing.Span {
	if !x.isTraced() {
		return nil
	}
	s := x.requestSpan().Child("ask a backend", tracing.Client, now)
	r.Trace = []byte(s.Traceparent())
	return s
}

// endSpan ends the span of a request that was answered.
func (x *exchange) endSpan() {
	s := x.requestSpan()
	method := string(x.ctx.Request.Header.Method())
	if s.Name(x.route.name()); x.op != nil {
		s.Name(method + " " + x.op.path)
		s.Text("http.route", x.op.path)
	}
	status := x.ctx.Response.StatusCode()
	s.Text("http.request.method", method)
	s.Number("http.response.status_code", int64(status))
	s.Text("request_id", string(x.id))
	code := string(codeOf(x.result))
	s.Text("code", code)
	if x.rule < rules {
		s.Text("rule", ruleNames[x.rule])
	}
	var err error
	if status >= 500 {
		err = errors.New(code)
	}
	s.End(x.s.Now(), err)
	x.trace = append(x.traceRoom[:0], s.Traceparent()...) // for the log
}
