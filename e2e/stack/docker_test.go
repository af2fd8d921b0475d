package stack

import (
	"path/filepath"
	"strings"
	"testing"

	composecli "github.com/compose-spec/compose-go/v2/cli"
)

// The override must leave a file that compose accepts, with the three servers reachable from here.
func TestComposeOverrideFitsTheFile(t *testing.T) {
	v, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(v.composeFile(), []byte(v.composeOverride())); err != nil {
		t.Fatal(err)
	}
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	env := v.composeCommand(t.Context(), Options{Root: root}).Env
	o, err := composecli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml"), v.composeFile()},
		composecli.WithEnv(env), composecli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p.Networks["core"].Internal {
		t.Error("the network core is internal: published ports would not be reachable")
	}
	for name, ports := range map[string][]int{
		"redis": {v.settings.RedisPort}, "mysql": {v.settings.MySQLPort}, "rabbitmq": {v.settings.AMQPPort, v.settings.ManagementPort},
	} {
		got := p.Services[name].Ports
		if len(got) != len(ports) {
			t.Fatalf("%s publishes %v, want %v", name, got, ports)
		}
		for i, port := range ports {
			if got[i].HostIP+":"+got[i].Published != loopback(port) {
				t.Errorf("%s publishes %s:%s, want %s", name, got[i].HostIP, got[i].Published, loopback(port))
			}
		}
	}
	if c := strings.Join(p.Services["redis"].Command, " "); strings.Contains(c, "requirepass") || !strings.Contains(c, "--appendfsync always") {
		t.Errorf("redis runs %q; want no password (REDIS_ADDR carries none) and appendfsync always", c)
	}
}
