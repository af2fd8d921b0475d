package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"floodgate.internal/backend"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/gateway"
)

// runs is the two programs.
var runs = map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) error{"gateway": gateway.Run, "backend": backend.Run}

// schemaOf is what `NAME schema` prints, as text and compiled.
func schemaOf(t *testing.T, name string) (string, *jsonschema.Schema) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := runs[name](t.Context(), []string{"schema", "--comments", "../configs/" + name + ".yaml"}, &out, &errs); err != nil {
		t.Fatalf("%s schema: %v, %s", name, err, &errs)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("%s schema: %v", name, err)
	}
	if got := compiled.DraftVersion; got != 2020 {
		t.Errorf("%s schema: got draft %d, want 2020", name, got)
	}
	return out.String(), compiled
}

// validate holds a YAML file against a schema.
func validate(t *testing.T, s *jsonschema.Schema, file []byte) error {
	t.Helper()
	var v any
	if err := yaml.Load(file, &v); err != nil {
		t.Fatalf("%v in\n%s", err, file)
	}
	j, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(j))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The samples, what containers mount and what `make up` writes are what the schema describes.
func TestSchemasTakeTheConfigurations(t *testing.T) {
	dir := t.TempDir()
	servers, err := stack.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	system, err := stack.NewSystem(dir, dir, servers, stack.DefaultPorts, nil)
	if err == nil {
		err = system.WriteConfigs()
	}
	if err != nil {
		t.Fatal(err)
	}
	for name := range runs {
		_, s := schemaOf(t, name)
		for _, path := range []string{"../configs/" + name + ".yaml", "../deploy/compose/" + name + ".yaml", filepath.Join(dir, name+".yaml")} {
			if err := validate(t, s, read(t, path)); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		if !strings.Contains(string(read(t, "../configs/"+name+".yaml")), "# yaml-language-server: $schema=../build/"+name+".schema.json\n") {
			t.Errorf("configs/%s.yaml does not name its schema", name)
		}
	}
}

// A wrong key or type is refused where it stands, and what may come from the environment is taken.
func TestSchemasRefuse(t *testing.T) {
	_, g := schemaOf(t, "gateway")
	_, b := schemaOf(t, "backend")
	for _, c := range []struct {
		schema *jsonschema.Schema
		file   string
		where  string // "": it is taken
	}{
		{g, "listen: {public: 127.0.0.1:1}", ""},
		{g, "listen: {pubic: 127.0.0.1:1}", "/listen"},
		{g, "lissen: {}", "''"},
		{g, "listen: {public: 8080}", "/listen/public"},
		{g, "listen: [a]", "/listen"},
		{g, "limits: {order: {rate: 0.2, burst: 1, also: [{rate: 1, burst: 5}]}}", ""},
		{g, "limits: {order: {rate: 0.2, burst: 1, also: [{rate: 1, brust: 5}]}}", "/limits/order/also/0"},
		{g, "limits: {order: {rate: fast}}", "/limits/order/rate"},
		{g, "limits: {order: {burst: 1.5}}", "/limits/order/burst"},
		{g, "limits: {order: {shadow: 1}}", "/limits/order/shadow"},
		{g, "limits: {ip_exempt: 10.0.0.0/8}", "/limits/ip_exempt"},
		{g, "identity: {keys: [{kid: a, algo: HS256}]}", "/identity/keys/0"},
		{g, "server: {drain: 20s}", ""},
		{g, "server: {drain: 1h2m3.5s}", ""},
		{g, "server: {drain: 20}", "/server/drain"},
		{g, "server: {drain: 20 s}", "/server/drain"},
		{g, "server: {drain: soon}", "/server/drain"},
		{b, "orders: {batch: 3}", ""},
		{b, "orders: {batsch: 3}", "/orders"},
		{b, "orders: {batch: '3'}", "/orders/batch"},
		{b, "queue: {driver: redis-stream}", ""},
		{b, "queue: {driver: kafka}", "/queue/driver"},
		{b, "payments: {test_provider: 'yes'}", "/payments/test_provider"},
		{b, "events: {endpoints: [{name: a, typs: [order.paid]}]}", "/events/endpoints/0"},
		{b, "payments: {providers: [{name: a, secrets: b}]}", "/payments/providers/0/secrets"},
		{b, "admin_token: 7", "/admin_token"},

		{g, "ops_token: ${A}\nlisten: ${B}\nlimits: {order: {rate: '${C}', shadow: '1${C}'}, ip_exempt: '${D}'}\nserver: {drain: '${E}s'}", ""},
		{b, "queue: {driver: '${A}', partitions: '${B}'}\npayments: {test_provider: '${C}'}", ""},
		{b, "queue: {partitions: '$B'}", "/queue/partitions"},
	} {
		err := validate(t, c.schema, []byte(c.file))
		if c.where == "" && err != nil || c.where != "" && (err == nil || !strings.Contains(err.Error(), "at '"+strings.Trim(c.where, "'"))) {
			t.Errorf("%s: got %v, want a refusal at %q", c.file, err, c.where)
		}
	}
}

// What a sample says of a key is the description that an editor shows.
func TestSchemasDescribe(t *testing.T) {
	text, _ := schemaOf(t, "gateway")
	type node struct {
		Description string
		Default     any
		Items       *node
		Properties  map[string]*node
	}
	var root node
	if err := json.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
	p := root.Properties
	for got, want := range map[string]string{
		p["ops_token"].Description: "The bearer token of the ops listener",
		p["limits"].Properties["global"].Properties["max_wait"].Default.(string): "200ms",
		p["listen"].Properties["ops"].Description:                                "restart. Never public: metrics, pprof, reload",
		p["identity"].Properties["keys"].Items.Properties["alg"].Description:     "or ES256 (P-256), RS256",
		p["signing_key"].Properties["id"].Description:                            "",
	} {
		if !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
