package gateway

import (
	"strings"
	"testing"

	"go.opentelemetry.io/proto/otlp/trace/v1"

	"floodgate.internal/shared/tracing/tracetest"
)

const traceID, clientSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

// runTraced is a gateway with its traces on.
func runTraced(t *testing.T, p *peer, c *tracetest.Collector, tracing string) *gw {
	t.Helper()
	return run(t, []string{p.addr}, func(s string) string { return s + "tracing: {endpoint: \"" + c.URL + "\", " + tracing + "}\n" })
}

// A request that was sent on has a span, and what the backend is asked has one below it, which the backend is told. Both are below the
// client's, which the log names, too.
func TestTracedRequest(t *testing.T) {
	p, c := newPeer(t), tracetest.New(t)
	p.set(7, nil)
	g := runTraced(t, p, c, `sample: 0, headers: [{name: X-Tenant, value: shop}]`)
	g.do("POST", "/v1/sales/7/orders", g.as("ann"), "X-Request-Id: the-first", "traceparent: 00-"+traceID+"-"+clientSpan+"-01")
	g.do("POST", "/v1/sales/7/orders", g.as("ann"), "X-Request-Id: the-second", "traceparent: 00-"+traceID+"-"+clientSpan+"-01")
	spans := tracetest.Of(c.Await(t, "three spans", func(s []tracetest.Span) bool { return len(s) >= 3 }), traceID)
	if len(spans) != 3 {
		t.Fatalf("got\n%s", tracetest.Text(spans))
	}
	one, ask, refused := spans[0], spans[1], spans[2]
	if one.Name != "POST /v1/sales/{sale_id}/orders" || one.Parent != clientSpan || one.Kind != v1.Span_SPAN_KIND_SERVER || one.Service != "floodgate-gateway" ||
		one.Attributes["request_id"] != "the-first" || one.Attributes["http.response.status_code"] != "202" || one.Failed {
		t.Errorf("got %+v", one)
	}
	if ask.Name != "ask a backend" || ask.Parent != one.ID || ask.Kind != v1.Span_SPAN_KIND_CLIENT || ask.Attributes["server.address"] != p.addr ||
		ask.Begin.Before(one.Begin) || ask.End.After(one.End) {
		t.Errorf("got %+v below %+v", ask, one)
	}
	if refused.Attributes["rule"] != "order" || refused.Attributes["code"] != "RATE_LIMITED" || refused.Parent != clientSpan || refused.Attributes["request_id"] != "the-second" {
		t.Errorf("got %+v", refused)
	}
	if one.Headers.Get("X-Tenant") != "shop" {
		t.Errorf("the collector got %v", one.Headers)
	}
	calls := p.got("/v1/sales/7/orders")
	if len(calls) != 1 || field(calls[0].Header, "Traceparent") != "00-"+traceID+"-"+ask.ID+"-01" {
		t.Errorf("the backend got %v, want the span %s", calls, ask.ID)
	}
}

// What no client asks to trace is traced by the share that is configured, and the backend is told; a reload changes the share. What a
// client asks for is bounded, and what is beyond is counted.
func TestWhatIsTraced(t *testing.T) {
	p, c := newPeer(t), tracetest.New(t)
	g := runTraced(t, p, c, `sample: 1`)
	g.do("GET", "/v1/orders", g.as("ann"), "X-Request-Id: all-of-them")
	g.do("GET", "/v1/orders", g.as("ann"), "X-Request-Id: not-this-one", "traceparent: 00-"+traceID+"-"+clientSpan+"-00")
	g.do("GET", "/no/such/path", "X-Request-Id: of-no-route")
	reload := func(tracing, generation string) {
		g.write(configText([]string{p.addr}) + "tracing: {endpoint: \"" + c.URL + "\", " + tracing + "}\n")
		g.log.await(t, `generation=`+generation)
	}
	reload("sample: 0", "2")
	g.do("GET", "/v1/orders", g.as("ann"), "X-Request-Id: none-of-them")
	reload("sample: 1, max_per_second: 0", "3")
	g.do("GET", "/v1/orders", g.as("ann"), "X-Request-Id: beyond-the-bound", "traceparent: 00-"+traceID+"-"+clientSpan+"-01")
	if n := g.number("gateway_traces_dropped_total"); n != 1 {
		t.Errorf("got %v dropped, want 1", n)
	}
	reload("sample: 0", "4")
	g.do("GET", "/v1/orders", g.as("ann"), "X-Request-Id: the-last-one", "traceparent: 00-"+traceID+"-"+clientSpan+"-01")
	spans := c.Await(t, "the last one", func(s []tracetest.Span) bool { return strings.Contains(tracetest.Text(s), "the-last-one") })
	var got []string
	for _, s := range spans {
		if id := s.Attributes["request_id"]; id != "" {
			got = append(got, id)
		}
	}
	if want := "all-of-them of-no-route the-last-one"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	flags := ""
	for _, call := range p.got("/v1/orders") {
		flags += " " + field(call.Header, "Traceparent")[53:]
	}
	if flags != " 01 00 00 00 01" {
		t.Errorf("the backend got the flags%s", flags)
	}
	g.write(configText([]string{p.addr}) + "tracing: {endpoint: \"http://127.0.0.1:1\"}\n")
	g.log.await(t, `a change of tracing.endpoint needs a restart`)
	g.write(configText([]string{p.addr}) + "tracing: {endpoint: \"" + c.URL + "\", headers: [{name: A, value: b}]}\n")
	g.log.await(t, `a change of tracing.headers needs a restart`)
}

// A gateway whose collector is away answers as ever, counts what is lost, and ends.
func TestCollectorIsAway(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, func(s string) string { return s + "tracing: {endpoint: \"http://127.0.0.1:1\", sample: 1}\n" })
	if a := g.do("GET", "/v1/orders", g.as("ann")); a.code != 202 {
		t.Errorf("got %v", a)
	}
	g.log.await(t, `traces are lost: the collector does not take them`)
	if n := g.number(`gateway_trace_spans_total{result="failed"}`); n < 2 {
		t.Errorf("got %v spans lost, want 2", n)
	}
}

func TestTracingIsChecked(t *testing.T) {
	for section, want := range map[string]string{
		`{endpoint: "collector:4318"}`: "tracing.endpoint", `{sample: 1.5}`: "tracing.sample: 1.5 must be 0 to 1", `{sample: .nan}`: "tracing.sample",
		`{max_per_second: -1}`: "tracing.max_per_second", `{headers: [{name: "", value: x}]}`: "tracing.headers[0].name", `{endpint: x}`: "endpint",
	} {
		err := runOnce(t, configText([]string{"127.0.0.1:1"})+"tracing: "+section+"\n", "-config")
		if exitCode(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", section, err, want)
		}
	}
}
