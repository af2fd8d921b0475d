// Package tracing sends spans of traced requests to an OpenTelemetry collector, by OTLP over HTTP. A trace is carried from process to
// process as a W3C traceparent (https://www.w3.org/TR/trace-context/), whatever takes it there: a header, an entry, a message.
//
// Nobody waits for the collector: spans are queued, and dropped and counted where the queue is full or the collector is away.
// Every method of a nil Tracer and a nil Span does nothing, so that whoever traces need not know whether traces are on.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/version"
	"floodgate.internal/shared/wire"
)

// Config says where spans are sent.
type Config struct {
	Endpoint string   `yaml:"endpoint" reload:"restart"` // "": traces are off
	Headers  []Header `yaml:"headers" reload:"restart"`
}

// Header is a header field of each request to the collector.
type Header struct {
	Name  string      `yaml:"name"`
	Value conf.Secret `yaml:"value"`
}

const maxHeaders = 16

// Check returns what is wrong with the section of a configuration called tracing.
func (c Config) Check() (errs []error) {
	if u, err := url.Parse(c.Endpoint); c.Endpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		errs = append(errs, conf.Wrong("tracing.endpoint: %q must be like http://collector:4318, or be left out: then there are no traces", c.Endpoint))
	}
	if n := len(c.Headers); n > maxHeaders {
		errs = append(errs, conf.Wrong("tracing.headers: %d of them, there must be at most %d", n, maxHeaders))
	}
	for i, h := range c.Headers {
		if h.Name == "" || strings.ContainsFunc(h.Name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) {
			errs = append(errs, conf.Wrong("tracing.headers[%d].name: %q must be the name of a header field", i, h.Name))
		}
		if strings.ContainsFunc(h.Value.Reveal(), func(r rune) bool { return r < ' ' || r > '~' }) {
			errs = append(errs, conf.Wrong("tracing.headers[%d].value: it must be visible ASCII and spaces", i))
		}
	}
	return errs
}

// Tracer makes spans. It is safe for concurrent use.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// exportTime bounds one request to the collector.
const exportTime = 5 * time.Second

// Open makes the Tracer of the binary called service, and registers its metrics; nil where c has no endpoint. It does not wait for the
// collector. Close ends it.
func Open(c Config, service string, log *slog.Logger, reg prometheus.Registerer) (*Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	headers := make(map[string]string, len(c.Headers))
	for _, h := range c.Headers {
		headers[h.Name] = h.Value.Reveal()
	}
	endpoint := strings.TrimSuffix(c.Endpoint, "/")
	if u, err := url.Parse(endpoint); err == nil && u.Path == "" {
		endpoint += "/v1/traces" // as the specification of OTLP has it
	}
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(endpoint), otlptracehttp.WithHeaders(headers),
		otlptracehttp.WithTimeout(exportTime), otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false})) // what waits for another try keeps the queue from what is new
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	host, _ := os.Hostname()
	about := resource.NewSchemaless(attribute.String("service.name", "floodgate-"+service), attribute.String("service.version", version.This().Version),
		attribute.String("service.instance.id", fmt.Sprintf("%s-%d", host, os.Getpid())))
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithResource(about),
		sdktrace.WithSpanProcessor(newQueue(exporter, service, log, reg)))
	return &Tracer{provider, provider.Tracer("floodgate")}, nil
}

// Close sends what is queued, for as long as ctx lets it, and ends the Tracer.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Kind is what a span does in its trace.
type Kind = trace.SpanKind

// The kinds.
const (
	Server   = trace.SpanKindServer
	Client   = trace.SpanKindClient
	Producer = trace.SpanKindProducer
	Consumer = trace.SpanKindConsumer
)

// Span is one step of a trace. It is not safe for concurrent use.
type Span struct {
	tracer *Tracer
	span   trace.Span
	ctx    context.Context // that of its children
}

// Begin begins a span at a time, below the one that a valid traceparent names, or the first of a new trace for "".
func (t *Tracer) Begin(traceparent, name string, kind Kind, at time.Time) *Span {
	if t == nil {
		return nil
	}
	ctx := context.Background()
	if traceparent != "" {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parse(traceparent))
	}
	return t.begin(ctx, name, kind, at)
}

// Follow is Begin where the traceparent says that its trace is sampled, and nil otherwise.
func (t *Tracer) Follow(traceparent, name string, kind Kind, at time.Time) *Span {
	if t == nil || !Sampled(traceparent) {
		return nil
	}
	return t.Begin(traceparent, name, kind, at)
}

func (t *Tracer) begin(ctx context.Context, name string, kind Kind, at time.Time) *Span {
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithTimestamp(at))
	return &Span{t, span, ctx}
}

// Sampled reports whether a traceparent is valid and says that its trace is sampled.
func Sampled(traceparent string) bool {
	if wire.Traceparent([]byte(traceparent)) == "" {
		return false
	}
	flags, err := strconv.ParseUint(traceparent[len(traceparent)-2:], 16, 8)
	return err == nil && flags&1 == 1
}

func parse(traceparent string) trace.SpanContext {
	id, err := trace.TraceIDFromHex(traceparent[3:35])
	parent, err2 := trace.SpanIDFromHex(traceparent[36:52])
	if err != nil || err2 != nil {
		panic("BUG: a traceparent that was not checked: " + traceparent)
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: parent, TraceFlags: trace.FlagsSampled, Remote: true})
}

// Child begins a span below s.
func (s *Span) Child(name string, kind Kind, at time.Time) *Span {
	if s == nil {
		return nil
	}
	return s.tracer.begin(s.ctx, name, kind, at)
}

// Traceparent names s to whoever goes on with the trace; "" for nil.
func (s *Span) Traceparent() string {
	if s == nil {
		return ""
	}
	c := s.span.SpanContext()
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-01"
}

// Name names s anew.
func (s *Span) Name(name string) {
	if s != nil {
		s.span.SetName(name)
	}
}

// Text adds an attribute, if it has a value.
func (s *Span) Text(key, value string) {
	if s != nil && value != "" {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// Number adds an attribute.
func (s *Span) Number(key string, value int64) {
	if s != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// Failed is err without its text, which may name a user, and with this one instead; nil for nil.
func Failed(err error, text string) error {
	if err == nil {
		return nil
	}
	return errors.New(text)
}

// End ends s at a time. An error makes it a failed one, with the error's text.
func (s *Span) End(at time.Time, err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End(trace.WithTimestamp(at))
}
