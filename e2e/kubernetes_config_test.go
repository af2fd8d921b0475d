package e2e

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"floodgate.internal/backend"
	"floodgate.internal/gateway"
	"floodgate.internal/shared/certs/certstest"
)

// The configurations that the chart writes are good ones, without TLS and with it, with the keys that docs/kubernetes.md puts into the
// Secrets. The tests in deploy/ hold these files equal to what the chart renders.
func TestKubernetesConfigs(t *testing.T) {
	for k, v := range map[string]string{
		"FLOODGATE_SIGNING_KEY": strings.Repeat("k", 32), "FLOODGATE_OPS_TOKEN": strings.Repeat("o", 16), "FLOODGATE_ADMIN_TOKEN": strings.Repeat("a", 16),
		"FLOODGATE_SESSION_KEY": strings.Repeat("s", 32), "REDIS_PASSWORD": "r", "MYSQL_DSN": "floodgate:m@tcp(mysql:3306)/floodgate", "AMQP_URL": "amqp://floodgate:q@rabbitmq:5672/",
	} {
		t.Setenv(k, v)
	}
	tls := t.TempDir()
	ca := certstest.NewCA(t, "ca")
	for _, name := range []string{"public", "backend", "client"} {
		pair := ca.Issue(name, func(c *x509.Certificate) { c.DNSNames = []string{"floodgate-backend", "shop.example"} })
		if err := os.Mkdir(filepath.Join(tls, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{pair.Certificate: "tls.crt", pair.Key: "tls.key", ca.File: "ca.crt"} {
			if err := os.Symlink(from, filepath.Join(tls, name, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, file := range []string{"../deploy/kubernetes/config.yaml", "../deploy/testdata/tls-config.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		loaded := 0
		for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var m struct{ Data map[string]string }
			if err := yaml.Unmarshal(doc, &m); err != nil {
				t.Fatal(err)
			}
			for name, config := range m.Data {
				at := filepath.Join(t.TempDir(), name)
				if err := os.WriteFile(at, []byte(strings.ReplaceAll(config, "/etc/floodgate-tls", tls)), 0o644); err != nil {
					t.Fatal(err)
				}
				loaded++
				switch name {
				case "gateway.yaml":
					c, _, err := gateway.Load(at)
					if err != nil {
						t.Errorf("%s: %v", file, err)
					} else if c.Server.ShutdownDelay == 0 || c.Development {
						t.Errorf("%s: got a shutdown delay of %v, development %v", file, c.Server.ShutdownDelay, c.Development)
					}
				case "backend.yaml":
					if _, err := backend.LoadConfig(at); err != nil {
						t.Errorf("%s: %v", file, err)
					}
				default:
					t.Errorf("%s: nobody reads %s", file, name)
				}
			}
		}
		if loaded != 2 {
			t.Errorf("%s: got %d configurations, want two", file, loaded)
		}
	}
}
