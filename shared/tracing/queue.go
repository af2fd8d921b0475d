package tracing

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// The bounds of the queue: spans that wait, spans in one request to the collector, and how long the first of them waits for others.
const (
	MaxQueued = 4096
	MaxBatch  = 512
	batchWait = time.Second
)

// queue is a span processor. The library's own one drops spans, too, where its queue is full, but does not say how many.
type queue struct {
	exporter sdktrace.SpanExporter
	log      *slog.Logger
	spans    chan sdktrace.ReadOnlySpan // never closed
	stopping chan struct{}              // closed by Shutdown
	stop     sync.Once
	ended    chan struct{} // closed when the goroutine that sends is gone
	away     bool          // the last batch was lost; only that goroutine looks at it

	exported, dropped, failed prometheus.Counter
}

func newQueue(exporter sdktrace.SpanExporter, service string, log *slog.Logger, reg prometheus.Registerer) *queue {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: service + "_trace_spans_total",
		Help: "Spans by what became of them: exported; dropped, for the queue was full; failed, for the collector did not take them."}, []string{"result"})
	reg.MustRegister(v)
	q := &queue{exporter: exporter, log: log, spans: make(chan sdktrace.ReadOnlySpan, MaxQueued), stopping: make(chan struct{}), ended: make(chan struct{}),
		exported: v.WithLabelValues("exported"), dropped: v.WithLabelValues("dropped"), failed: v.WithLabelValues("failed")}
	go q.run()
	return q
}

// OnStart implements sdktrace.SpanProcessor.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. It does not wait.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	select {
	case q.spans <- s:
	default:
		q.dropped.Inc()
	}
}

// ForceFlush implements sdktrace.SpanProcessor; nobody calls it.
func (q *queue) ForceFlush(context.Context) error { return nil }

// Shutdown implements sdktrace.SpanProcessor: what is queued is sent until ctx ends, and what ends later is not.
func (q *queue) Shutdown(ctx context.Context) error {
	q.stop.Do(func() { close(q.stopping) })
	select {
	case <-q.ended:
		return q.exporter.Shutdown(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run sends batches until Shutdown, and then what is left.
func (q *queue) run() {
	defer close(q.ended)
	for {
		batch, more := q.collect()
		q.send(batch)
		if !more {
			return
		}
	}
}

// collect waits for a first span and then for a full batch, or not for long. more is false at the end.
func (q *queue) collect() (batch []sdktrace.ReadOnlySpan, more bool) {
	var full <-chan time.Time
	for len(batch) < MaxBatch {
		select {
		case s := <-q.spans:
			if batch = append(batch, s); full == nil {
				t := time.NewTimer(batchWait)
				defer t.Stop()
				full = t.C
			}
		case <-full:
			return batch, true
		case <-q.stopping:
			for len(batch) < MaxBatch {
				select {
				case s := <-q.spans:
					batch = append(batch, s)
				default:
					return batch, false
				}
			}
		}
	}
	return batch, true
}

// send gives a batch to the collector once. It logs when batches begin to be lost, and when they no longer are.
func (q *queue) send(batch []sdktrace.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), exportTime)
	defer cancel()
	err := q.exporter.ExportSpans(ctx, batch)
	if err != nil {
		q.failed.Add(float64(len(batch)))
		if !q.away {
			q.log.Warn("traces are lost: the collector does not take them", "spans", len(batch), "error", err)
		}
	} else {
		q.exported.Add(float64(len(batch)))
		if q.away {
			q.log.Info("the collector takes traces again")
		}
	}
	q.away = err != nil
}
