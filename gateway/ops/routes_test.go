package ops

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"floodgate.internal/shared/operator"
)

// docs/openapi.yaml documents each route of the table with the role that it needs.
func TestTheContractDocumentsEachRouteAndItsRole(t *testing.T) {
	text, err := os.ReadFile("../../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]yaml.Node `yaml:"paths"`
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	documented := map[string]operator.Role{}
	for path, item := range doc.Paths {
		if !strings.HasPrefix(path, "/-/") && path != "/metrics" && path != "/debug/pprof/" {
			continue
		}
		for method, node := range item {
			if method != "get" && method != "post" {
				continue
			}
			var operation struct {
				Security []map[string][]operator.Role `yaml:"security"`
			}
			if err := node.Load(&operation); err != nil {
				t.Fatal(err)
			}
			role := operator.Anybody
			for _, way := range operation.Security {
				if roles := way["ops"]; len(roles) == 1 {
					role = roles[0]
				}
			}
			documented[strings.ToUpper(method)+" "+path] = role
		}
	}
	served := map[string]operator.Role{}
	for _, rt := range routes {
		if strings.HasPrefix(rt.path, "/debug/pprof/") && rt.path != "/debug/pprof/" { // a profile of its own
			continue
		}
		served[rt.method+" "+rt.path] = rt.role
	}
	if !maps.Equal(served, documented) {
		t.Errorf("the table has\n%v\nthe document has\n%v", slices.Sorted(maps.Keys(served)), slices.Sorted(maps.Keys(documented)))
		for name, role := range served {
			if documented[name] != role {
				t.Errorf("%s: the table has the role %q, the document %q", name, role, documented[name])
			}
		}
	}
}

func TestFind(t *testing.T) {
	for _, c := range []struct{ method, path, want, allow string }{
		{"GET", "/-/healthy", "/-/healthy", "GET, HEAD"},
		{"HEAD", "/-/config", "/-/config", "GET, HEAD"},
		{"GET", "/-/reload", "", "POST"},
		{"POST", "/metrics", "", "GET, HEAD"},
		{"GET", "/debug/pprof/goroutine", "/debug/pprof/", "GET, HEAD"},
		{"GET", "/debug/pprof/trace", "/debug/pprof/trace", "GET, HEAD"},
		{"POST", "/debug/pprof/symbol", "/debug/pprof/symbol", "GET, HEAD, POST"},
		{"GET", "/debug/pprof", "", ""},
		{"GET", "/-/healthy/", "", ""},
		{"GET", "//metrics", "", ""},
		{"GET", "/", "", ""},
	} {
		got := ""
		rt, allow := find(c.method, c.path)
		if rt != nil {
			got = rt.path
		}
		if got != c.want || allow != c.allow {
			t.Errorf("%s %s: got %q, Allow %q", c.method, c.path, got, allow)
		}
	}
}
