package backend

import (
	"github.com/prometheus/client_golang/prometheus"
)

// watchQueued exports how long the oldest accepted order has been queued, and whether that is past the stated bound.
func (p *process) watchQueued() {
	bound := p.config.Orders.QueuedBound
	gauge := func(name, help string, value func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	p.reg.MustRegister(
		gauge("backend_queued_oldest_seconds", "Age of the oldest accepted order that is in an outbox, of all sales.",
			func() float64 { return p.catalog.Oldest().Seconds() }),
		gauge("backend_queued_bound_seconds", "Within this an accepted order must leave the status queued (orders.queued_bound).",
			func() float64 { return bound.Seconds() }),
		gauge("backend_queued_past_bound", "1 while an accepted order has been queued for longer than the bound: alert on it.",
			func() float64 {
				if p.catalog.Oldest() > bound {
					return 1
				}
				return 0
			}))
}
