package broker

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	published, failed    prometheus.Counter
	consumed, unreadable prometheus.Counter
	rerouted, stalled    prometheus.Counter
	settleErrors         prometheus.Counter
	connects             *prometheus.CounterVec
	held                 prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	published := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_broker_published_total",
		Help: "Orders published to RabbitMQ: confirmed, or of unknown outcome."}, []string{"result"})
	m := metrics{
		published:    published.WithLabelValues("confirmed"),
		failed:       published.WithLabelValues("unconfirmed"),
		consumed:     counter("backend_broker_settled_total", "Orders taken from RabbitMQ, settled and acknowledged."),
		unreadable:   counter("backend_broker_unreadable_total", "Messages that are no orders, sent to the dead letters."),
		rerouted:     counter("backend_broker_rerouted_total", "Orders that had found their queue missing, published again."),
		stalled:      counter("backend_broker_stalled_total", "Consumers that got nothing though their queue was not empty, and began anew; one that stands by counts, too."),
		settleErrors: counter("backend_broker_settle_errors_total", "Attempts to settle a batch that failed; the batch is held."),
		connects: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_broker_connects_total",
			Help: "Attempts to connect to RabbitMQ."}, []string{"role", "result"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_broker_held_batches",
			Help: "Batches held now because they cannot be settled."}),
	}
	reg.MustRegister(published, m.consumed, m.unreadable, m.rerouted, m.stalled, m.settleErrors, m.connects, m.held)
	return m
}
