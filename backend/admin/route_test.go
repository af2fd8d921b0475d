package admin

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/operator"
)

var parameter = regexp.MustCompile(`\{\w+\}`)

// docs/openapi.yaml documents each route of the admin API with the role that it needs, by token and by session, and no other route.
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
	documented := map[string]string{} // how it is allowed, by method and path
	for path, item := range doc.Paths {
		if !strings.HasPrefix(path, "/admin/") && path != "/debug/pprof/" {
			continue
		}
		for method, node := range item {
			if !slices.Contains([]string{"get", "post", "put", "patch", "delete"}, method) {
				continue
			}
			var operation struct {
				Security  []map[string][]operator.Role `yaml:"security"`
				Responses map[string]any               `yaml:"responses"`
			}
			if err := node.Load(&operation); err != nil {
				t.Fatal(err)
			}
			name := strings.ToUpper(method) + " " + parameter.ReplaceAllString(path, "{id}")
			for _, way := range operation.Security {
				for scheme, roles := range way {
					if scheme != "ops" {
						documented[name] += fmt.Sprint(scheme, roles)
					}
				}
			}
			documented[name] += ""
			for _, status := range []string{"401", "403", "429"} {
				if operation.Responses[status] == nil && len(operation.Security) > 0 {
					t.Errorf("%s: the document has no %s", name, status)
				}
			}
		}
	}
	served := map[string]string{}
	for _, rt := range routes {
		if rt.role == operator.Anybody && !strings.HasPrefix(rt.path, "/admin/") || strings.HasPrefix(rt.path, "/debug/pprof/") && rt.path != "/debug/pprof/" {
			continue // documented for both listeners; or a profile of its own
		}
		how := ""
		if rt.role != operator.Anybody {
			how = fmt.Sprintf("admin[%s]console[%s]", rt.role, rt.role)
		}
		served[rt.method+" "+rt.path] = how
	}
	for _, name := range slices.Sorted(maps.Keys(served)) {
		if how, ok := documented[name]; !ok || how != served[name] {
			t.Errorf("%s: the document has %q, %v, the table %q", name, how, ok, served[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, ok := served[name]; !ok {
			t.Errorf("%s is documented, and not served", name)
		}
	}
}

// Each route refuses every role below its own, by its name, and nobody's token opens more than one route's role says.
func TestEachRouteNeedsItsRole(t *testing.T) {
	a := offline(t)
	all := map[operator.Role]string{}
	var entries []operator.Entry
	for _, role := range operator.Roles {
		token, hash := operator.Mint()
		all[role] = token
		entries = append(entries, operator.Entry{Name: "the-" + string(role), Role: role, TokenSHA256: conf.Secret(hash)})
	}
	list := operator.NewList("admin", token, entries)
	a.Operators = func() *operator.List { return list }
	a.auth = operator.NewAuthenticator(a.Operators, "test", a.Log, a.Register)
	for _, rt := range routes {
		if rt.path == "/debug/pprof/profile" || rt.path == "/debug/pprof/trace" { // they take their time
			continue
		}
		path := parameter.ReplaceAllString(rt.path, "x") // nothing that exists
		if rt.path == v1+"/live" {                       // its body has no end
			rt.method = "HEAD"
		}
		for role, token := range all {
			r := send(a, rt.method, path, "", "Authorization: Bearer "+token)
			if !role.Covers(rt.role) {
				p := refused(t, r, "FORBIDDEN", "")
				if want := fmt.Sprintf("this needs the role %s: the-%s is %s", rt.role, role, role); p.Detail != want {
					t.Errorf("%s %s: got %q, want %q", rt.method, rt.path, p.Detail, want)
				}
			} else if r.StatusCode == 401 || r.StatusCode == 403 && rt.path != v1+"/session" { // a session is begun by a page alone
				t.Errorf("%s %s for a %s: got %d", rt.method, rt.path, role, r.StatusCode)
			}
		}
		if r := send(a, rt.method, path, "", "Authorization: "); (r.StatusCode == 401) != (rt.role != operator.Anybody) {
			t.Errorf("%s %s for nobody: got %d", rt.method, rt.path, r.StatusCode)
		}
	}
	// A coupon campaign is made and changed by an admin, by whichever path.
	refused(t, send(a, "POST", "/admin/v1/sales", with(`"kind":"coupon"`), "Authorization: Bearer "+all[operator.Operates]), "FORBIDDEN", "")
	for _, path := range []string{"/admin/v1/nothing", "/admin/v1/sales/1/nothing"} {
		refused(t, send(a, "GET", path, "", "Authorization: Bearer "+all[operator.Viewer]), "NOT_FOUND", "")
		refused(t, send(a, "GET", path, "", "Authorization: "), "UNAUTHENTICATED", "")
	}
}
