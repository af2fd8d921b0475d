// Package tracetest is an OTLP receiver for tests: what a collector is to the binaries.
package tracetest

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as it was received.
type Span struct {
	Service, Name     string
	Trace, ID, Parent string // hexadecimal; Parent "" for the first of a trace
	Kind              trace.Span_SpanKind
	Begin, End        time.Time
	Attributes        map[string]string
	Failed            bool
	FailedBecause     string
	Headers           http.Header // of the request that brought it
}

// Collector receives spans over HTTP.
type Collector struct {
	URL string

	mu      sync.Mutex // guards what follows
	spans   []Span
	news    chan struct{} // closed and replaced when spans come
	refused error
}

// New starts a Collector that ends with the test.
func New(t testing.TB) *Collector {
	c := &Collector{news: make(chan struct{})}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	spans, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = err
	c.spans = append(c.spans, spans...)
	close(c.news)
	c.news = make(chan struct{})
}

func read(r *http.Request) ([]Span, error) {
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		return nil, fmt.Errorf("%s %s with a body of type %q is no OTLP", r.Method, r.URL, r.Header.Get("Content-Type"))
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		body = z
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	var request collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(b, &request); err != nil {
		return nil, err
	}
	var all []Span
	for _, of := range request.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				span := Span{Service: service, Name: s.Name, Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
					Kind: s.Kind, Begin: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)), Attributes: map[string]string{},
					Failed: s.Status.GetCode() == trace.Status_STATUS_CODE_ERROR, FailedBecause: s.Status.GetMessage(), Headers: r.Header}
				for _, a := range s.Attributes {
					if span.Attributes[a.Key] = a.Value.GetStringValue(); span.Attributes[a.Key] == "" {
						span.Attributes[a.Key] = fmt.Sprint(a.Value.GetIntValue())
					}
				}
				all = append(all, span)
			}
		}
	}
	return all, nil
}

// Spans is what was received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Await waits until what was received is as the caller wants it, and returns it.
func (c *Collector) Await(t testing.TB, what string, ok func([]Span) bool) []Span {
	t.Helper()
	timeout := time.After(60 * time.Second)
	for {
		c.mu.Lock()
		spans, news, err := slices.Clone(c.spans), c.news, c.refused
		c.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if ok(spans) {
			return spans
		}
		select {
		case <-news:
		case <-timeout:
			t.Fatalf("the collector waits for %s, and got\n%s", what, Text(spans))
		}
	}
}

// Of is the spans of one trace, by their beginning.
func Of(spans []Span, id string) []Span {
	of := slices.DeleteFunc(slices.Clone(spans), func(s Span) bool { return s.Trace != id })
	slices.SortFunc(of, func(a, b Span) int { return a.Begin.Compare(b.Begin) })
	return of
}

// Text is spans as lines: what each is below, and how long it took.
func Text(spans []Span) string {
	names := map[string]string{}
	for _, s := range spans {
		names[s.ID] = s.Service + ": " + s.Name
	}
	var b strings.Builder
	for _, s := range spans {
		fmt.Fprintf(&b, "%s %s: %s below %s%s, %v %v %s\n", s.Trace, s.Service, s.Name, s.Parent, " ("+names[s.Parent]+")", s.End.Sub(s.Begin), s.Attributes, s.FailedBecause)
	}
	return b.String()
}
