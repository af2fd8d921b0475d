package e2e

import (
	"encoding/base64"
	"strings"
	"testing"

	"floodgate.internal/backend"
	"floodgate.internal/gateway"
)

// The configurations that docker-compose.yml mounts are good ones, with the variables that it passes on.
func TestComposeConfigs(t *testing.T) {
	p, err := loadCompose(t.Context(), []string{
		"FLOODGATE_ADMIN_TOKEN=" + strings.Repeat("a", 32), "FLOODGATE_OPS_TOKEN=" + strings.Repeat("o", 32),
		"FLOODGATE_SIGNING_KEY=" + strings.Repeat("k", 64), "LOGIN_AUDIENCE=shop", "LOGIN_PUBLIC_KEY=" + base64.StdEncoding.EncodeToString(make([]byte, 32)),
		"REDIS_PASSWORD=r", "RABBITMQ_PASSWORD=q", "MYSQL_PASSWORD=m", "MYSQL_ROOT_PASSWORD=n",
	}, "../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range p.Services {
		t.Run(name, func(t *testing.T) {
			if s.Build == nil {
				return
			}
			for k, v := range s.Environment {
				t.Setenv(k, *v)
			}
			if name == "gateway" {
				if _, _, err := gateway.Load("../deploy/compose/gateway.yaml"); err != nil {
					t.Fatal(err)
				}
			} else if _, err := backend.LoadConfig("../deploy/compose/backend.yaml"); err != nil {
				t.Fatal(err)
			}
		})
	}
}
