package edge

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/openapi.yaml documents each operation of the table, and no other one of the public server. Paths that have servers
// of their own are other listeners'.
func TestOpenAPIDocumentsTheTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	var path string
	var methods []string
	line := regexp.MustCompile(`^(?:  (/\S*)|    (get|post|put|patch|delete|servers)):`)
	end := func() {
		if !slices.Contains(methods, "SERVERS") {
			for _, m := range methods {
				documented[m+" "+path] = true
			}
		}
		methods = nil
	}
	_, paths, ok := strings.Cut(string(text), "\npaths:\n")
	if !ok {
		t.Fatal("no paths in docs/openapi.yaml")
	}
	for l := range strings.Lines(paths) {
		if l[0] != ' ' && l[0] != '\n' && l[0] != '#' {
			break
		}
		if m := line.FindStringSubmatch(l); m != nil && m[1] != "" {
			end()
			path = m[1]
		} else if m != nil {
			methods = append(methods, strings.ToUpper(m[2]))
		}
	}
	end()
	for _, op := range table {
		if !documented[op.method+" "+op.path] {
			t.Errorf("docs/openapi.yaml does not have %s %s", op.method, op.path)
		}
		delete(documented, op.method+" "+op.path)
	}
	for _, op := range slices.Sorted(maps.Keys(documented)) {
		t.Errorf("docs/openapi.yaml has %s, the table does not", op)
	}
}

// Each path of the table leads to its operations, and no other path does.
func TestMatch(t *testing.T) {
	for _, op := range table {
		path := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(op.path, "bank")
		r, param := match([]byte(path))
		if got := map[string]*operation{"GET": r.get, "POST": r.post, "DELETE": r.delete}[op.method]; got == nil || got.path != op.path || r.name() != op.name {
			t.Errorf("%s %s: got the route %s", op.method, path, r.name())
		}
		if strings.Contains(op.path, "{") != (string(param) == "bank") {
			t.Errorf("%s: got %q for the open part", path, param)
		}
	}
	for path, allow := range map[string]string{"/v1/time": "GET, HEAD", "/v1/sales/1/standby": "GET, HEAD, POST, DELETE", "/v1/session": "GET, HEAD, POST, DELETE", "/v1/cart/orders": "POST"} {
		if r, _ := match([]byte(path)); r.allow != allow {
			t.Errorf("%s: got Allow %q, want %q", path, r.allow, allow)
		}
	}
	for _, path := range []string{"/v1/sales/7/orders", "/v1/sales/x/orders", "/v1/sales//orders", "/v1/sales/orders", "/v1/sales/7/8/orders", "/v1/sales/7", "/v1/sales/7/orders/", "/v1/skus/7/orders"} {
		r, param := match([]byte(path))
		if id, ok := orderedSale([]byte(path)); ok != (r == orderRoute) || ok && string(id) != string(param) {
			t.Errorf("%s: got %q, %v for an order; match got %s, %q", path, id, ok, r.name(), param)
		}
	}
	for _, path := range []string{"/v1", "/v1/", "/v1/sales/", "/v1/sales/1/", "/v1/sales/1/orders/", "/v1/sales/1/other", "/v1/orders/", "/v1/orders/1/use", "/v1/payments/webhook/", "/v1/payments/webhook/a.b",
		"/v1/coupons/1", "/v1/coupons//use", "/v1/skus/1", "/sales", "/sales/1/x", "/assets/", "/x", "/v1/time/"} {
		if r, _ := match([]byte(path)); r != unknownPath {
			t.Errorf("%s: got the route %s", path, r.name())
		}
	}
}

// BenchmarkMatch is the way of an order's path to its route.
func BenchmarkMatch(b *testing.B) {
	path := []byte("/v1/sales/6/orders")
	b.ReportAllocs()
	for b.Loop() {
		if r, _ := match(path); r != orderRoute {
			b.Fatal("another route")
		}
	}
}
