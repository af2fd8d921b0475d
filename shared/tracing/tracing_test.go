package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/proto/otlp/trace/v1"

	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/tracing/tracetest"
)

const (
	id     = "0af7651916cd43dd8448eb211c80319c"
	parent = "b7ad6b7169203331"
)

func open(t *testing.T, c tracing.Config) (*tracing.Tracer, *prometheus.Registry, *bytes.Buffer) {
	t.Helper()
	reg, log := prometheus.NewPedanticRegistry(), &bytes.Buffer{}
	tracer, err := tracing.Open(c, "test", slog.New(slog.NewTextHandler(log, nil)), reg)
	if err != nil {
		t.Fatal(err)
	}
	return tracer, reg, log
}

// number is what the counter of spans says of a result.
func number(t *testing.T, reg *prometheus.Registry, result string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "test_trace_spans_total" && m.Label[0].GetValue() == result {
				return m.Counter.GetValue()
			}
		}
	}
	t.Fatalf("there is no count of spans %s", result)
	return 0
}

// Spans reach the collector with their parents, their times, and the configured header fields; Close sends what is queued.
func TestSpans(t *testing.T) {
	c := tracetest.New(t)
	tracer, reg, _ := open(t, tracing.Config{Endpoint: c.URL, Headers: []tracing.Header{{Name: "X-Tenant", Value: "shop"}}})
	at := time.Now()
	if s := tracer.Follow("00-"+id+"-"+parent+"-00", "not sampled", tracing.Server, at); s != nil {
		t.Error("a trace that is not sampled is followed")
	}
	if s := tracer.Follow("nonsense", "no trace", tracing.Server, at); s != nil {
		t.Error("what is no trace is followed")
	}
	first := tracer.Follow("00-"+id+"-"+parent+"-01", "first", tracing.Server, at)
	second := first.Child("second", tracing.Client, at.Add(time.Millisecond))
	third := tracer.Follow(second.Traceparent(), "third", tracing.Consumer, at)
	third.Text("sale", "7")
	third.Text("empty", "")
	third.Number("batch", 3)
	third.End(at.Add(time.Second), errors.New("broken"))
	second.End(at.Add(3*time.Millisecond), nil)
	first.Name("named anew")
	first.End(at.Add(time.Second), nil)
	other := tracer.Begin("", "other", tracing.Server, at)
	other.End(at, nil)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := c.Spans()
	byName := map[string]tracetest.Span{}
	for _, s := range spans {
		byName[s.Name] = s
	}
	one, two, three, four := byName["named anew"], byName["second"], byName["third"], byName["other"]
	if len(spans) != 4 || one.Trace != id || two.Trace != id || three.Trace != id || four.Trace == id || four.Parent != "" ||
		one.Parent != parent || two.Parent != one.ID || three.Parent != two.ID {
		t.Errorf("got\n%s", tracetest.Text(spans))
	}
	if two.End.Sub(two.Begin) != 2*time.Millisecond || !two.Begin.Equal(at.Add(time.Millisecond).Truncate(0)) || two.Kind != v1.Span_SPAN_KIND_CLIENT || two.Failed {
		t.Errorf("got %+v", two)
	}
	if !three.Failed || three.FailedBecause != "broken" || fmt.Sprint(three.Attributes) != "map[batch:3 sale:7]" || three.Kind != v1.Span_SPAN_KIND_CONSUMER {
		t.Errorf("got %+v", three)
	}
	if one.Headers.Get("X-Tenant") != "shop" || one.Service != "floodgate-test" {
		t.Errorf("got %+v", one)
	}
	if n := number(t, reg, "exported"); n != 4 {
		t.Errorf("got %v exported, want 4", n)
	}
}

// Without an endpoint there is no tracer, and whoever uses it does nothing.
func TestOff(t *testing.T) {
	tracer, err := tracing.Open(tracing.Config{}, "test", slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil || tracer != nil {
		t.Fatalf("got %v, %v", tracer, err)
	}
	s := tracer.Begin("", "x", tracing.Server, time.Now())
	s.Text("a", "b")
	s.Number("a", 1)
	s.Name("y")
	s.Child("z", tracing.Client, time.Now()).End(time.Now(), nil)
	s.End(time.Now(), nil)
	if s != nil || s.Traceparent() != "" || tracer.Close(t.Context()) != nil {
		t.Error("a tracer that is off does something")
	}
	if n := testing.AllocsPerRun(100, func() {
		tracer.Follow("00-"+id+"-"+parent+"-01", "x", tracing.Server, time.Time{}).End(time.Time{}, nil)
	}); n != 0 {
		t.Errorf("a tracer that is off allocates %v times", n)
	}
}

// A collector that hangs holds up nobody: what does not fit is dropped and counted, at once. One that is back gets what is new.
func TestFullQueue(t *testing.T) {
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-answer }))
	defer s.Close()
	tracer, reg, _ := open(t, tracing.Config{Endpoint: s.URL})
	end := func(n int) {
		for range n {
			tracer.Begin("", "x", tracing.Server, time.Now()).End(time.Now(), nil)
		}
	}
	end(tracing.MaxBatch)
	<-asked // the first batch is with the collector, and the queue is empty
	end(tracing.MaxQueued + 100)
	dropped := number(t, reg, "dropped")
	if dropped < 100 || dropped > 100+tracing.MaxBatch { // where the first batch was not whole the queue held its rest
		t.Errorf("got %v dropped, want 100", dropped)
	}
	close(answer)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, reg, "exported"); n+dropped != tracing.MaxBatch+tracing.MaxQueued+100 {
		t.Errorf("got %v exported and %v dropped, want %d together", n, dropped, tracing.MaxBatch+tracing.MaxQueued+100)
	}
}

// Spans that no collector takes are counted, and the log says it once.
func TestCollectorAway(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) <= 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	tracer, reg, log := open(t, tracing.Config{Endpoint: s.URL + "/"})
	for range 3 * tracing.MaxBatch { // three whole batches
		tracer.Begin("", "x", tracing.Server, time.Now()).End(time.Now(), nil)
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if failed, exported := number(t, reg, "failed"), number(t, reg, "exported"); failed == 0 || exported == 0 || failed+exported != 3*tracing.MaxBatch {
		t.Errorf("got %v failed and %v exported, want some of each, %d together", failed, exported, 3*tracing.MaxBatch)
	}
	if n := strings.Count(log.String(), "traces are lost"); n != 1 || !strings.Contains(log.String(), "takes traces again") {
		t.Errorf("got %s", log)
	}
}

// Close does not wait for a collector that hangs longer than it may.
func TestCloseIsBounded(t *testing.T) {
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-answer }))
	defer s.Close()
	defer close(answer)
	tracer, _, _ := open(t, tracing.Config{Endpoint: s.URL})
	for range tracing.MaxBatch {
		tracer.Begin("", "x", tracing.Server, time.Now()).End(time.Now(), nil)
	}
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tracer.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		config tracing.Config
		want   string
	}{
		{tracing.Config{}, ""},
		{tracing.Config{Endpoint: "http://127.0.0.1:4318"}, ""},
		{tracing.Config{Endpoint: "https://collector.internal/otlp/v1/traces", Headers: []tracing.Header{{Name: "Authorization", Value: "Bearer x"}}}, ""},
		{tracing.Config{Endpoint: "127.0.0.1:4318"}, "tracing.endpoint"},
		{tracing.Config{Endpoint: "grpc://127.0.0.1:4317"}, "tracing.endpoint"},
		{tracing.Config{Endpoint: "http://"}, "tracing.endpoint"},
		{tracing.Config{Endpoint: "http://user:hunter2@host"}, "tracing.endpoint"},
		{tracing.Config{Headers: []tracing.Header{{Name: "a b", Value: "x"}}}, "tracing.headers[0].name"},
		{tracing.Config{Headers: []tracing.Header{{Name: "a", Value: conf.Secret("hunter2\r\nX: y")}}}, "tracing.headers[0].value"},
		{tracing.Config{Headers: make([]tracing.Header, 17)}, "tracing.headers: 17"},
	} {
		err := errors.Join(c.config.Check()...)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%+v: got %v, want %q", c.config, err, c.want)
		}
	}
}

func TestSampled(t *testing.T) {
	for traceparent, want := range map[string]bool{
		"00-" + id + "-" + parent + "-01": true, "00-" + id + "-" + parent + "-03": true, "00-" + id + "-" + parent + "-ff": true,
		"00-" + id + "-" + parent + "-00": false, "00-" + id + "-" + parent + "-02": false, "00-" + id + "-" + parent + "-a": false, "": false,
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01": false,
	} {
		if got := tracing.Sampled(traceparent); got != want {
			t.Errorf("%q: got %v, want %v", traceparent, got, want)
		}
	}
}
