//go:build servers

package backend

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/shared/certs/certstest"
	"floodgate.internal/shared/metricpage"
)

var writeMetrics = flag.Bool("write-metrics", false, "write the backend's table in docs/metrics.md anew")

// Every metric of the backend, whatever its roles and its queue, has its row in docs/metrics.md, and every row its metric.
func TestEveryMetricIsDocumented(t *testing.T) {
	pair := certstest.NewCA(t, "ours").Issue("server", nil)
	var registries []*prometheus.Registry
	for _, queue := range []string{RabbitMQ, RedisStream} {
		more := queueOf(t, queue)
		if queue == RabbitMQ {
			more += "\naccept: {after: confirm}\ntracing: {endpoint: \"http://127.0.0.1:1\"}"
		}
		r := configure(t, os.Getenv("REDIS_ADDR"), backendtest.Redis(t).Client().Prefix(), backendtest.MySQLDSN(t), more)
		if err := r.run(context.Background(), "migrate"); err != nil {
			t.Fatal(err)
		}
		c, err := LoadConfig(r.path)
		if err != nil {
			t.Fatal(err)
		}
		if queue == RabbitMQ {
			c.Listen.InternalTLS = InternalTLS{Certificate: pair.Certificate, Key: pair.Key}
		}
		roles, err := ParseRoles("api,relay,consumer,timer")
		if err != nil {
			t.Fatal(err)
		}
		p, err := newProcess(r.path, c, roles, c.logger(r.log))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("%v; it logged\n%s", err, r.log)
			}
		})
		r.waitReady()
		eventually(t, "backend_ready", func() error {
			families, err := p.reg.Gather()
			if err != nil {
				return err
			}
			for _, f := range families {
				if f.GetName() == "backend_ready" && f.GetMetric()[0].GetGauge().GetValue() == 1 {
					return nil
				}
			}
			return fmt.Errorf("is not 1")
		})
		registries = append(registries, p.reg)
	}
	replicas := prometheus.NewRegistry() // instead of the confirm's
	outbox.NewReplicas(outbox.ReplicasConfig{Register: replicas})
	registries = append(registries, replicas)
	metricpage.Hold(t, "../docs/metrics.md", "backend", *writeMetrics, registries...)
}
