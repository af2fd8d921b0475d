package upstream

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is what came of one attempt to ask a backend, as its latency is counted.
type outcome int

const (
	outcomeOK      outcome = iota // 2xx and 3xx
	outcomeDenied                 // 4xx
	outcomeFailed                 // 5xx
	outcomeNotSent                // no byte of it
	outcomeUnknown                // sent, and no answer came
	outcomes
)

var outcomeNames = [outcomes]string{"ok", "denied", "failed", "not_sent", "unknown"}

func ofStatus(status int) outcome {
	switch {
	case status >= 500:
		return outcomeFailed
	case status >= 400:
		return outcomeDenied
	}
	return outcomeOK
}

// latencies is one backend's histograms.
type latencies [outcomes]prometheus.Observer

// latencyVec is those of all backends in the configuration.
type latencyVec struct{ *prometheus.HistogramVec }

func newLatencyVec(reg prometheus.Registerer) latencyVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gateway_upstream_duration_seconds",
		Help:    "From an attempt to ask a backend to what came of it, by backend and result: ok, denied (4xx), failed (5xx), not_sent, unknown. Without requests that wait for news (wait_ms).",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20}}, []string{"backend", "result"})
	reg.MustRegister(v)
	return latencyVec{v}
}

func (v latencyVec) of(addr string) *latencies {
	var l latencies
	for o, name := range outcomeNames {
		l[o] = v.WithLabelValues(addr, name)
	}
	return &l
}

// forget takes a backend that left the configuration off the metrics.
func (v latencyVec) forget(addr string) { v.DeletePartialMatch(prometheus.Labels{"backend": addr}) }

// observe counts how long an attempt took.
func (b *backend) observe(r *Request, o outcome, took time.Duration) {
	if r.Wait == 0 {
		b.latency[o].Observe(took.Seconds())
	}
}
