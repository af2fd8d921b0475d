package queued

import (
	"slices"
	"time"

	"floodgate.internal/shared/tracing"
)

// Spans is the spans of a batch's traced entries, by the order's id; nil where none is traced.
type Spans map[string]*tracing.Span

// Trace begins a span for each entry whose trace is sampled. The entries that it returns carry those spans, so that what is next on
// their way is below them. Where none is traced, they are those of the batch itself.
func Trace(t *tracing.Tracer, name string, kind tracing.Kind, batch []Entry) ([]Entry, Spans) {
	if t == nil {
		return batch, nil
	}
	var spans Spans
	now := time.Now()
	traced := batch
	for i, e := range batch {
		if spans[e.ID] != nil { // delivered twice
			continue
		}
		span := t.Follow(e.Trace, name, kind, now)
		if span == nil {
			continue
		}
		if spans == nil {
			spans, traced = Spans{}, slices.Clone(batch)
		}
		spans[e.ID], traced[i].Trace = span, span.Traceparent()
		span.Number("sale", e.Sale)
		span.Text("order_id", e.ID)
		span.Number("batch", int64(len(batch)))
	}
	return traced, spans
}

// Text adds an attribute to the span of an order, if it has one.
func (s Spans) Text(id, key, value string) { s[id].Text(key, value) }

// Step adds a step of a part of the batch, from began until now.
func (s Spans) Step(name string, began time.Time, entries []Entry, err error) {
	if s == nil {
		return
	}
	now := time.Now()
	for _, e := range entries {
		s[e.ID].Child(name, tracing.Client, began).End(now, err)
	}
}

// End ends the spans.
func (s Spans) End(err error) {
	now := time.Now()
	for _, span := range s {
		span.End(now, err)
	}
}
