package upstream

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	status           [6]prometheus.Counter
	notSent, unknown prometheus.Counter
	refused          [bounds]prometheus.Counter
	latency          latencyVec
}

func newMetrics(p *Pool, reg prometheus.Registerer) metrics {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_upstream_requests_total", Help: "Requests to the backends by what came of them."}, []string{"result"})
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_upstream_refused_total",
		Help: "Requests that were not sent, by the bound that was reached: a class's share of the places (settle, order, page), a sale's orders, those that wait for news."}, []string{"bound"})
	reg.MustRegister(v, refused, perBackend{p},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_upstream_in_flight", Help: "Requests at the backends, without those that wait for news."},
			func() float64 { return float64(p.busy.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_upstream_waiting", Help: "Requests at the backends that wait for news."},
			func() float64 { return float64(p.waiting.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_upstream_backends_lost", Help: "Backends that do not answer."},
			func() float64 { return float64(len(p.Down())) }),
	)
	m := metrics{latency: newLatencyVec(reg), notSent: v.WithLabelValues("not_sent"), unknown: v.WithLabelValues("unknown")}
	for i := range m.status {
		m.status[i] = v.WithLabelValues(fmt.Sprintf("%dxx", i))
	}
	for i, name := range boundNames {
		m.refused[i] = refused.WithLabelValues(name)
	}
	return m
}

func (m *metrics) answered(status int) {
	if i := status / 100; i > 0 && i < len(m.status) {
		m.status[i].Inc()
	}
}

// perBackend is the metrics of each backend in the present configuration.
type perBackend struct{ p *Pool }

var (
	descInFlight  = prometheus.NewDesc("gateway_upstream_backend_in_flight", "Requests at a backend.", []string{"backend"}, nil)
	descUp        = prometheus.NewDesc("gateway_upstream_backend_up", "0 while a backend is passed over because it does not answer.", []string{"backend"}, nil)
	descEjections = prometheus.NewDesc("gateway_upstream_backend_ejections_total", "Times a backend was passed over for failures in a row.", []string{"backend"}, nil)
)

// Describe implements prometheus.Collector.
func (perBackend) Describe(c chan<- *prometheus.Desc) {
	c <- descInFlight
	c <- descUp
	c <- descEjections
}

// Collect implements prometheus.Collector.
func (m perBackend) Collect(c chan<- prometheus.Metric) {
	now := int64(time.Since(epoch))
	for _, b := range m.p.current.Load().backends {
		up := 1.0
		if b.down(now) {
			up = 0
		}
		c <- prometheus.MustNewConstMetric(descInFlight, prometheus.GaugeValue, float64(b.inFlight.Load()), b.addr)
		c <- prometheus.MustNewConstMetric(descUp, prometheus.GaugeValue, up, b.addr)
		c <- prometheus.MustNewConstMetric(descEjections, prometheus.CounterValue, float64(b.ejections.Load()), b.addr)
	}
}
