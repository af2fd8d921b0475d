// Package e2e tests Floodgate as outsiders see it: real servers, real binaries, the files that are shipped.
package e2e

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	composecli "github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

var composeEnv = []string{
	"FLOODGATE_ADMIN_TOKEN=a", "FLOODGATE_OPS_TOKEN=o", "FLOODGATE_SIGNING_KEY=k", "LOGIN_PUBLIC_KEY=p", "LOGIN_AUDIENCE=u",
	"REDIS_PASSWORD=r", "RABBITMQ_PASSWORD=q", "MYSQL_PASSWORD=m", "MYSQL_ROOT_PASSWORD=n",
}

func loadCompose(ctx context.Context, env []string, files ...string) (*types.Project, error) {
	o, err := composecli.NewProjectOptions(files, composecli.WithEnv(env), composecli.WithResolvedPaths(true), composecli.WithProfiles([]string{"observe"}))
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
	if want := []string{"backend", "gateway", "grafana", "migrate", "mysql", "prometheus", "rabbitmq", "redis", "timer", "worker"}; !slices.Equal(names, want) {
		t.Fatalf("services: got %v, want %v", names, want)
	}
	pinned := regexp.MustCompile(`^[a-z0-9./-]+:v?[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9]+)?$`)
	for name, s := range p.Services {
		_, onHost := s.Networks["local"]
		if published := len(s.Ports) > 0; published != (onHost || name == "gateway") {
			t.Errorf("%s publishes ports: %v; it is on the host's network: %v", name, s.Ports, onHost)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" && name != "gateway" {
				t.Errorf("%s publishes %d on %q; only the gateway may beyond this host", name, p.Target, p.HostIP)
			}
		}
		if s.MemLimit < 256<<20 || s.MemLimit > 2<<30 {
			t.Errorf("%s may take %d bytes of memory, want a bound", name, s.MemLimit)
		}
		if observes := slices.Equal(s.Profiles, []string{"observe"}); observes != (name == "prometheus" || name == "grafana") {
			t.Errorf("%s: profiles %v", name, s.Profiles)
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
	if ports := p.Services["timer"].Ports; len(ports) != 1 || ports[0].Target != 9081 {
		t.Errorf("the timer publishes %v, want its admin listener for the console", ports)
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
	var each []string
	for _, name := range []string{"backend", "worker", "timer"} {
		c := p.Services[name].Command
		each = append(each, c[len(c)-1])
	}
	if roles := strings.Join(each, ","); roles != "api,relay,consumer,timer" {
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

// Prometheus asks every process of the system where it tells its metrics, and Grafana asks that Prometheus.
func TestComposeObserves(t *testing.T) {
	p, err := loadCompose(t.Context(), composeEnv, "../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"prometheus", "grafana"} {
		for _, v := range p.Services[name].Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("%s mounts what is not there: %v", name, err)
			}
		}
	}
	var scraped struct {
		Global  map[string]string
		Rules   []string `yaml:"rule_files"`
		Scrapes []struct {
			Job string `yaml:"job_name"`
			DNS []struct {
				Names   []string
				Type    string
				Port    int
				Refresh string `yaml:"refresh_interval"`
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	readStrictly(t, "../deploy/compose/prometheus.yml", &scraped)
	ports := map[string]int{}
	for _, s := range scraped.Scrapes {
		if !strings.Contains(s.Job, "floodgate") {
			t.Errorf("the alerts do not know the job %s", s.Job)
		}
		for _, d := range s.DNS {
			for _, name := range d.Names {
				ports[name] = d.Port
			}
		}
	}
	if want := map[string]int{"gateway": 8081, "backend": 9081, "worker": 9081, "timer": 9081}; !maps.Equal(ports, want) {
		t.Errorf("Prometheus asks %v, want %v", ports, want)
	}
	for _, rules := range scraped.Rules {
		if !slices.ContainsFunc(p.Services["prometheus"].Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == "/etc/prometheus/"+rules }) {
			t.Errorf("Prometheus reads rules that are not mounted: %s", rules)
		}
	}
	var sources struct {
		Version     int `yaml:"apiVersion"`
		Datasources []struct {
			Name, Type, UID, Access, URL string
			Default                      bool `yaml:"isDefault"`
		}
	}
	readStrictly(t, "../deploy/compose/grafana/datasources/prometheus.yaml", &sources)
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("Grafana asks %+v", sources.Datasources)
	}
}

func readStrictly(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Load(text, into, yaml.WithKnownFields()); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
