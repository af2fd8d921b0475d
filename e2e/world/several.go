package world

import (
	"context"
	"fmt"
	"testing"

	"floodgate.internal/e2e/stack"
)

// apis is how many processes of the role api there are where there are several of each.
const apis = 3

// Part is the processes that do the same.
type Part struct {
	Name    string
	Members []Member
}

// Member is one of several processes that do the same.
type Member struct {
	*stack.Process
	metrics string // where its metrics are
	works   string // the one that grows when it works
}

// Worked is how much a member has worked since it was started. A paused or dead one does not say.
func (w *World) Worked(ctx context.Context, m Member) (float64, error) {
	return w.metric(ctx, m.metrics, m.works)
}

// member is the name of the i-th process of a part, from 0 on. The first api and the first gateway are the world's own.
func member(part string, i int) string {
	switch {
	case i > 0 || part != "api" && part != "gateway":
		return fmt.Sprintf("%s-%d", part, i+1)
	case part == "api":
		return "backend"
	default:
		return part
	}
}

// several makes more processes.
func (w *World) several(t testing.TB) {
	t.Helper()
	for _, role := range []struct {
		name  string
		n     int
		works string
	}{
		{"api", apis, "backend_reserve_duration_seconds_count"},
		{"relay", 2, `backend_broker_published_total{result="confirmed"}`},
		{"consumer", 2, "backend_broker_settled_total"},
		{"timer", 2, `backend_order_changes_total{status="expired"}`},
	} {
		part := Part{Name: role.name}
		for i := range role.n {
			name, p := member(role.name, i), w.Backend
			if name != w.Backend.Name() {
				p = w.addBackend(t, name, role.name)
				w.others = append(w.others, p)
			}
			part.Members = append(part.Members, Member{p, w.ports[name].AdminURL(), role.works})
		}
		w.Parts = append(w.Parts, part)
	}
	second := member("gateway", 1)
	var err error
	w.ports[second], err = stack.FreeSystemPorts()
	Must(t, err)
	Must(t, w.WriteGateway())
	gateways := Part{Name: "gateway"}
	for _, p := range []*stack.Process{w.Gateway, w.Process(second, nil)} {
		at := w.ports[p.Name()]
		gateways.Members = append(gateways.Members, Member{p, at.OpsURL(), "gateway_requests_total"})
		w.Fronts = append(w.Fronts, at.PublicURL())
	}
	w.others = append(w.others, gateways.Members[1].Process)
	w.Parts = append(w.Parts, gateways)
}
