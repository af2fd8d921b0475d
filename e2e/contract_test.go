//go:build servers

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"go.yaml.in/yaml/v4"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/problem"
)

// contract is docs/openapi.yaml, held against every answer that the tests of this package get.
type contract struct {
	doc    *openapi3.T
	routes []route

	mu   sync.Mutex     // guards seen
	seen map[string]int // "operation status code" -> how often
}

type route struct {
	servers []string // base URLs, on the default ports
	path    *regexp.Regexp
	fixed   int // length of what is not a parameter: the longest wins
	kin     routers.Route
}

var readContract = sync.OnceValues(func() (*contract, error) {
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "openapi.yaml"))
	if err != nil {
		return nil, err
	}
	loader := openapi3.NewLoader()
	published, err := loader.LoadFromData(text)
	if err != nil {
		return nil, fmt.Errorf("docs/openapi.yaml: %w", err)
	}
	if err := published.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("docs/openapi.yaml: %w", err)
	}
	// What is published lets answers gain members; here, one that is not documented is an error.
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	closeObjects(tree["components"].(map[string]any)["schemas"])
	closed, err := yaml.Marshal(tree)
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(closed)
	if err != nil {
		return nil, fmt.Errorf("docs/openapi.yaml, its objects closed: %w", err)
	}
	c := &contract{doc: doc, seen: map[string]int{}}
	parameter := regexp.MustCompile(`\{[a-z_]+\}`)
	for path, item := range doc.Paths.Map() {
		servers := item.Servers
		if len(servers) == 0 {
			servers = doc.Servers
		}
		for method, op := range item.Operations() {
			r := route{
				path:  regexp.MustCompile("^" + parameter.ReplaceAllString(path, `([^/]+)`) + "$"),
				fixed: len(parameter.ReplaceAllString(path, "")),
				kin:   routers.Route{Spec: doc, Server: servers[0], Path: path, PathItem: item, Method: method, Operation: op},
			}
			for _, s := range servers {
				r.servers = append(r.servers, s.URL)
			}
			c.routes = append(c.routes, r)
		}
	}
	return c, nil
})

// closeObjects forbids undocumented members wherever a schema lists some.
func closeObjects(node any) {
	switch n := node.(type) {
	case map[string]any:
		_, listed := n["properties"].(map[string]any)
		if _, said := n["additionalProperties"]; listed && !said && n["type"] == "object" {
			n["additionalProperties"] = false
		}
		for _, v := range n {
			closeObjects(v)
		}
	case []any:
		for _, v := range n {
			closeObjects(v)
		}
	}
}

func loadContract(t testing.TB) *contract {
	t.Helper()
	c, err := readContract()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// find returns the operation of a request; nil if there is none, known if the path exists for another method.
func (c *contract) find(server, method, path string) (found *route, known bool) {
	for i := range c.routes {
		r := &c.routes[i]
		if !slices.Contains(r.servers, server) || !r.path.MatchString(path) {
			continue
		}
		known = true
		if r.kin.Method == method && (found == nil || r.fixed > found.fixed) {
			found = r
		}
	}
	if !known && server == stack.DefaultPorts.InternalURL() { // it has the paths of the public API, too
		return c.find(stack.DefaultPorts.PublicURL(), method, path)
	}
	return found, known
}

// hold fails the test if the answer is not what the contract says for this request.
func (c *contract) hold(w *system, req *http.Request, a world.Answer, quiet bool) {
	w.t.Helper()
	r, known := c.find(w.usual(req.URL), req.Method, req.URL.Path)
	name := "unknown path"
	switch {
	case r != nil:
		name = r.kin.Operation.OperationID
	case known:
		name = "unknown method"
	}
	what := fmt.Sprintf("%s %d %s", name, a.Status, a.Code)
	c.mu.Lock()
	c.seen[what]++
	often := c.seen[what]
	c.mu.Unlock()
	if quiet && often > 20 {
		return
	}
	if err := c.check(r, known, req, a); err != nil {
		what, _, _ := strings.Cut(err.Error(), "\nSchema:") // which follows at length
		w.t.Errorf("%s %s does not keep the contract (operation %s): %s\n%s\n%v", req.Method, req.URL, name, what, a, a.Header)
	}
}

// usual is where a URL of this world would be on the contract's default ports.
func (w *system) usual(u *url.URL) string {
	return map[string]string{
		w.Ports.PublicURL(): stack.DefaultPorts.PublicURL(), w.Ports.OpsURL(): stack.DefaultPorts.OpsURL(),
		w.Ports.InternalURL(): stack.DefaultPorts.InternalURL(), w.Ports.AdminURL(): stack.DefaultPorts.AdminURL(),
	}[u.Scheme+"://"+u.Host]
}

func (c *contract) check(r *route, known bool, req *http.Request, a world.Answer) error {
	if strings.HasPrefix(a.Header.Get("Content-Type"), problem.ContentType) {
		usual, ok := problem.Codes()[problem.Code(a.Code)]
		if !ok || usual != a.Status && a.Code != string(problem.BadRequest) {
			return fmt.Errorf("code %q with status %d", a.Code, a.Status)
		}
	}
	// A refusal before any operation is chosen: its schema and headers are the component's.
	component := ""
	switch {
	case a.Code == string(problem.MethodNotAllowed):
		component = "MethodNotAllowed"
	case r == nil && a.Code == string(problem.NotFound):
		component = "NotFound"
	case r == nil && a.Code == string(problem.Unauthenticated):
		component = "Unauthenticated"
	case a.Code == string(problem.BadRequest) && a.Status != http.StatusBadRequest:
		component = "BadRequest"
	case r == nil && a.Code == string(problem.BadRequest):
		component = "BadRequest"
	}
	kin := routers.Route{Spec: c.doc}
	if component != "" {
		kin.Operation = openapi3.NewOperation()
		kin.Operation.AddResponse(a.Status, c.doc.Components.Responses[component].Value)
	} else if r == nil {
		return fmt.Errorf("it answers, but is not in the contract")
	} else {
		kin = r.kin
	}
	if a.Status == http.StatusNotModified {
		if kin.Operation.Responses.Status(304) == nil || len(a.Body) > 0 {
			return fmt.Errorf("a 304 that is not documented, or has a body")
		}
		return nil
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, Route: &kin},
		Status:                 a.Status, Header: a.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	in.SetBodyBytes(a.Body)
	return openapi3filter.ValidateResponse(context.Background(), in)
}

func init() {
	for _, text := range []string{"text/html", "text/javascript", "text/css", "image/svg+xml", "text/csv"} {
		openapi3filter.RegisterBodyDecoder(text, openapi3filter.PlainBodyDecoder)
	}
}

// codes are the problem codes that a response of the contract allows.
func codes(doc *openapi3.T) []string {
	var all []string
	for _, v := range doc.Components.Schemas["Problem"].Value.Properties["code"].Value.Enum {
		all = append(all, v.(string))
	}
	return all
}

func TestContractHasEveryCode(t *testing.T) {
	c := loadContract(t)
	got := codes(c.doc)
	slices.Sort(got)
	var want []string
	for code := range maps.Keys(problem.Codes()) {
		want = append(want, string(code))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("docs/openapi.yaml lists the codes\n%v\nthe table has\n%v", got, want)
	}
}
