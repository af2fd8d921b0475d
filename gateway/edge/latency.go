package edge

import (
	"github.com/prometheus/client_golang/prometheus"
)

// outcome is how a request ended, as its latency is counted.
type outcome int

const (
	outcomeOK      outcome = iota // 2xx and 3xx
	outcomeRefused                // by a rule of the gateway
	outcomeDenied                 // any other 4xx
	outcomeFailed                 // any other 5xx
	outcomes
)

var outcomeNames = [outcomes]string{"ok", "refused", "denied", "failed"}

// latencies has a histogram for each route's label and outcome, resolved in advance.
type latencies [][outcomes]prometheus.Observer

func newLatencies(reg prometheus.Registerer) latencies {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gateway_request_duration_seconds",
		Help:    "From the request in hand to its answer, waits (wait_ms) included, by route and result: ok, refused (by a rule of the gateway), denied (other 4xx), failed (other 5xx).",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20}}, []string{"route", "result"})
	reg.MustRegister(v)
	l := make(latencies, len(labels))
	for i, label := range labels {
		for o, name := range outcomeNames {
			l[i][o] = v.WithLabelValues(label, name)
		}
	}
	return l
}

// observe counts the time that the request has taken.
func (x *exchange) observe(label, status int) {
	o := outcomeOK
	switch {
	case x.rule < rules:
		o = outcomeRefused
	case status >= 500:
		o = outcomeFailed
	case status >= 400:
		o = outcomeDenied
	}
	x.s.metrics.latency[label][o].Observe(x.s.Now().Sub(x.now).Seconds())
}
