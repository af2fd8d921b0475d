package gateway

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/metricpage"
	"floodgate.internal/shared/version"
)

var writeMetrics = flag.Bool("write-metrics", false, "write the gateway's table in docs/metrics.md anew")

// Every metric of the gateway has its row in docs/metrics.md, and every row its metric.
func TestEveryMetricIsDocumented(t *testing.T) {
	g := &gw{t: t}
	c, hash, err := Load(g.fileOf(configText([]string{"127.0.0.1:9080"}, with("limits:", "tracing: {endpoint: \"http://127.0.0.1:1\"}\nlimits:"))))
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(version.This().Metric("gateway"))
	p, err := newProcess("gateway.yaml", c, hash, time.Now, slog.New(slog.DiscardHandler), new(slog.LevelVar), reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cache.Close()
		p.pool.Close()
		if err := p.tracer.Close(context.Background()); err != nil {
			t.Log(err)
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.listen(ln, reg).Close()
	ops.Handler(p.opsConfig(), reg, p.log)
	metricpage.Hold(t, "../docs/metrics.md", "gateway", *writeMetrics, reg)
}
