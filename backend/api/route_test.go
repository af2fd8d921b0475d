package api

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// Of the paths under /v1 these are the gateway's own; it asks its backend for all the others.
var gatewaysOwn = []string{"/v1/session", "/v1/dev/session"}

// docs/openapi.yaml documents each route of the table with its query parameters, and no other route of the internal listener.
func TestTheContractDocumentsEachRoute(t *testing.T) {
	text, err := os.ReadFile("../../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{} // query parameters, by method and path
	for path, item := range doc.Paths {
		if !strings.HasPrefix(path, "/v1/") && !strings.HasPrefix(path, "/internal/") || slices.Contains(gatewaysOwn, path) {
			continue
		}
		for method, v := range item {
			operation, ok := v.(map[string]any)
			if !ok {
				continue // the servers or parameters of all methods
			}
			params := []string{}
			list, _ := operation["parameters"].([]any)
			for _, v := range list {
				if p, ok := v.(map[string]any); ok && p["in"] == "query" {
					params = append(params, p["name"].(string))
				}
			}
			documented[strings.ToUpper(method)+" "+path] = params
		}
	}
	served := map[string][]string{}
	for _, rt := range routes {
		served[rt.method+" "+rt.path] = rt.params
	}
	if len(served) != len(routes) {
		t.Errorf("the table has %d rows for %d routes", len(routes), len(served))
	}
	for _, name := range slices.Sorted(maps.Keys(served)) {
		params, ok := documented[name]
		if !ok {
			t.Errorf("%s is served, and not documented", name)
		} else if got, want := slices.Sorted(slices.Values(params)), slices.Sorted(slices.Values(served[name])); !slices.Equal(got, want) {
			t.Errorf("%s: the document has the query parameters %v, the table %v", name, got, want)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, ok := served[name]; !ok {
			t.Errorf("%s is documented, and not served", name)
		}
	}
}

// Each row's path, with something for its parameter, leads to that row, and what only looks like a path to none.
func TestEachRouteIsFound(t *testing.T) {
	for i := range routes {
		rt := &routes[i]
		path, want := rt.path, ""
		if before, rest, ok := strings.Cut(rt.path, "{"); ok {
			_, after, _ := strings.Cut(rest, "}")
			path, want = before+"acme-1"+after, "acme-1"
		}
		if found, arg := match(path); !slices.Contains(found, rt) || arg != want {
			t.Errorf("%s: got %v, %q", path, found, arg)
		}
	}
	for _, path := range []string{"", "/", "/v1/sales/", "/v1/sales//orders", "/v1/sales/1/", "/v1/sales/1/orders/", "/v1/sales/1/2/orders", "/v1/orders/", "/v1/orders/a/b",
		"/v1/coupons/", "/v1/coupons//use", "/v1/coupons/1", "/v1/payments/webhook/", "/v1/payments/webhook/Acme", "/v1/payments/webhook/a/b", "/v1/time/", "/internal/v1/feed/"} {
		if found, arg := match(path); found != nil {
			t.Errorf("%q: got %s, %q; want no route", path, found[0].name, arg)
		}
	}
}
