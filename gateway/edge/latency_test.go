package edge

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What counting the latency of a refusal costs, its second look at the clock included.
func BenchmarkObserve(b *testing.B) {
	s := &Server{Config: Config{Now: time.Now}, metrics: newMetrics(prometheus.NewRegistry())}
	x := &exchange{s: s, now: time.Now(), rule: ruleGate}
	b.ReportAllocs()
	for b.Loop() {
		x.observe(orderRoute.label, 409)
	}
}
