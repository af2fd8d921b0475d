package salegate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	errors, resyncs prometheus.Counter
	probes          [probes]prometheus.Counter
}

func newMetrics(g *Gate, reg prometheus.Registerer) metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_feed_age_seconds", Help: "Time since the last news of the sale-state feed."},
			func() float64 { return g.Age(time.Now()).Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_feed_fresh", Help: "1 while the feed's news is fresh enough to refuse by."},
			func() float64 {
				if g.Fresh(time.Now()) {
					return 1
				}
				return 0
			}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_gate_sales", Help: "Sales that the gate knows."},
			func() float64 { return float64(g.Known()) }),
	)
	m := metrics{
		errors:  counter("gateway_feed_errors_total", "Attempts to get the feed that failed."),
		resyncs: counter("gateway_feed_resyncs_total", "Times the whole feed was asked for because a part did not fit."),
	}
	asked := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_gate_asked_total",
		Help: "Orders let through though the gate would refuse them, by why: the news is stale, a backend's own word is old (mark), the feed's word is old (probe)."}, []string{"why"})
	reg.MustRegister(asked)
	for p := noProbe + 1; p < probes; p++ {
		m.probes[p] = asked.WithLabelValues(probeNames[p])
	}
	return m
}
