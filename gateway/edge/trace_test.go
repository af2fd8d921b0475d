package edge

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/tracing/tracetest"
)

// With traces on the fast path leaves to the slow path what is to be traced, and that alone.
func TestTheFastPathLeavesTracedRequests(t *testing.T) {
	reg := prometheus.NewRegistry()
	s, _ := refusing(t)
	c := tracetest.New(t)
	var err error
	if s.Tracer, err = tracing.Open(tracing.Config{Endpoint: c.URL}, "gateway", slog.New(slog.DiscardHandler), reg); err != nil {
		t.Fatal(err)
	}
	request := func(id, fields string) []byte {
		return []byte("POST /v1/sales/2/orders HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + id + "\r\n" + fields + "\r\n")
	}
	const trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
	for _, r := range []struct {
		id, fields string
		set        TraceSettings
		taken      int
	}{
		{"no-trace", "", TraceSettings{Max: 10}, 1},
		{"not-sampled", trace + "00\r\n", TraceSettings{Sample: 1, Max: 10}, 1},
		{"sampled-by-the-client", trace + "01\r\n", TraceSettings{Max: 10}, 0},
		{"beyond-the-bound", trace + "01\r\n", TraceSettings{}, 1},
		{"drawn-here", "", TraceSettings{Sample: 1, Max: 10}, 0},
		{"two-traces", trace + "01\r\n" + trace + "01\r\n", TraceSettings{Max: 10}, 0},
	} {
		set := *s.settings.Load()
		set.Traces = r.set
		s.SetSettings(set)
		if got, taken := answers(t, s, request(r.id, r.fields)); taken != r.taken {
			t.Errorf("%s: the fast path took %d, want %d: %s", r.id, taken, r.taken, got)
		}
	}
	if err := s.Tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, span := range c.Spans() {
		got += " " + span.Attributes["request_id"]
	}
	if got != " sampled-by-the-client drawn-here" {
		t.Errorf("got spans of%s", got)
	}
}
