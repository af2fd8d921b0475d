// Package e2e tests Floodgate as outsiders see it: real servers, real binaries, the files that are shipped.
package e2e

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	composecli "github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

var composeEnv = []string{
	"FLOODGATE_ADMIN_TOKEN=a", "FLOODGATE_OPS_TOKEN=o", "FLOODGATE_SIGNING_KEY=k", "LOGIN_PUBLIC_KEY=p", "LOGIN_AUDIENCE=u",
	"REDIS_PASSWORD=r", "RABBITMQ_PASSWORD=q", "MYSQL_PASSWORD=m", "MYSQL_ROOT_PASSWORD=n",
}

func loadCompose(ctx context.Context, env []string, files ...string) (*types.Project, error) {
	o, err := composecli.NewProjectOptions(files, composecli.WithEnv(env), composecli.WithResolvedPaths(true))
	if err != nil {
		return nil, err
	}
	return o.LoadProject(ctx)
}

func TestComposeFile(t *testing.T) {
	p, err := loadCompose(t.Context(), composeEnv, "../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(p.Services))
	if want := []string{"backend", "gateway", "migrate", "mysql", "rabbitmq", "redis", "worker"}; !slices.Equal(names, want) {
		t.Fatalf("services: got %v, want %v", names, want)
	}
	pinned := regexp.MustCompile(`^[a-z0-9./-]+:[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9]+)?$`)
	for name, s := range p.Services {
		if published := len(s.Ports) > 0; published != (name == "gateway") {
			t.Errorf("%s publishes ports: %v; only the gateway may, and must", name, s.Ports)
		}
		if s.Build == nil && !pinned.MatchString(s.Image) {
			t.Errorf("%s: image %q is not pinned to a version", name, s.Image)
		}
		oneShot := s.Restart == types.RestartPolicyNo
		if checked := s.HealthCheck != nil && !s.HealthCheck.Disable; checked == oneShot {
			t.Errorf("%s: health check %v, one-shot %v; want exactly one of them", name, checked, oneShot)
		}
		if _, public := s.Networks["edge"]; public != (name == "gateway") {
			t.Errorf("%s is on the public network: %v", name, public)
		}
	}
	if ports := p.Services["gateway"].Ports; len(ports) != 1 || ports[0].Target != 8080 {
		t.Errorf("the gateway publishes %v, want its public port 8080 alone", ports)
	}
	if !p.Networks["core"].Internal {
		t.Error("the network of the backend and the servers is not internal")
	}
	for name, volume := range map[string]string{"redis": "/data", "rabbitmq": "/var/lib/rabbitmq", "mysql": "/var/lib/mysql"} {
		v := p.Services[name].Volumes
		if len(v) != 1 || v[0].Type != types.VolumeTypeVolume || v[0].Target != volume {
			t.Errorf("%s: volumes %v, want a named one at %s", name, v, volume)
		}
	}
	redis := strings.Join(p.Services["redis"].Command, " ")
	for _, want := range []string{"--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"} {
		if !strings.Contains(redis, want) {
			t.Errorf("redis runs %q, want %q in it: a 202 stands on it", redis, want)
		}
	}
	roles := p.Services["backend"].Command[len(p.Services["backend"].Command)-1] + "," + p.Services["worker"].Command[len(p.Services["worker"].Command)-1]
	if roles != "api,relay,consumer,timer" {
		t.Errorf("roles: got %s, want each once", roles)
	}
}

func TestComposeFileWantsEverySecret(t *testing.T) {
	for i, e := range composeEnv {
		name, _, _ := strings.Cut(e, "=")
		_, err := loadCompose(t.Context(), slices.Delete(slices.Clone(composeEnv), i, i+1), "../docker-compose.yml")
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: got %v, want an error that names it", name, err)
		}
	}
}
