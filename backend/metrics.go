package backend

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// watchReady exports the process's roles, and whether it is ready, as /-/ready says it.
func (p *process) watchReady() {
	roles := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "backend_role", Help: "1 for each role that this process has."}, []string{"role"})
	for _, role := range strings.Split(p.roles.String(), ",") {
		roles.WithLabelValues(role).Set(1)
	}
	p.reg.MustRegister(roles, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_ready", Help: "1 while /-/ready answers 200."}, func() float64 {
		if len(p.reasons(context.Background())) > 0 {
			return 0
		}
		return 1
	}))
}
