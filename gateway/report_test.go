package gateway

import (
	"strings"
	"testing"

	"floodgate.internal/shared/wire"
)

// A gateway tells the backends each second what it answered, refused and is, and what a reload changed.
func TestReports(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.set(2, func(s *wire.Sale) { s.State = wire.SoldOut })
	g := run(t, []string{p.addr})
	g.do("POST", "/v1/sales/1/orders", g.as("7"))
	g.do("POST", "/v1/sales/2/orders", g.as("8"))
	last := func() wire.GatewayReport {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.report
	}
	g.until("it reports its presses", func() bool { return last().Presses["ok"] == 1 && last().Presses["sold_out"] == 1 })
	r := last()
	_, port, _ := strings.Cut(g.public, ":")
	if r.Generation != 1 || r.Refusals["gate"] != 1 || r.FeedAgeMS < 0 || r.MaxConnections < 1 || r.MaxFiles < r.MaxConnections || len(r.Networks) != 1 ||
		!strings.HasSuffix(r.Name, ":"+port) || r.StartedAt.IsZero() || r.ReloadedAt.IsZero() || r.TLSExpiresAt != nil {
		t.Errorf("got %+v", r)
	}
	g.write(configText([]string{p.addr}, with("burst: 20", "burst: 21")))
	g.until("it reports a reload", func() bool { return last().Generation == 2 && last().Hash != r.Hash && last().Life == r.Life })
}
