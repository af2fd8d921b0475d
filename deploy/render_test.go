package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

type object = map[string]any

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir("chart")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func parseValues(t *testing.T, text string) (v object) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// over returns under with what is in values over it, as Helm lays values over a chart's.
func over(under, values object) object {
	all := maps.Clone(under)
	for k, v := range values {
		if a, ok := all[k].(object); ok {
			if b, ok := v.(object); ok {
				v = over(a, b)
			}
		}
		all[k] = v
	}
	return all
}

// render does what `helm template floodgate chart --namespace shop` does with these values, as far as the chart uses Helm: Helm's loader,
// templates and functions, without its engine, which takes two minutes of processor to compile. TestHelm compares the two.
// It returns what each template renders to.
func render(t *testing.T, values object) (map[string]string, error) {
	t.Helper()
	c := loadChart(t)
	all := over(c.Values, values)
	if err := checkSchema(c, all); err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, f := range c.Files {
		files[f.Name] = string(f.Data)
	}
	root := template.New("").Option("missingkey=zero")
	funcs := sprig.TxtFuncMap()
	funcs["toYaml"] = func(v any) (string, error) {
		b, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(b), "\n"), err
	}
	funcs["fromYaml"] = func(text string) (v object, err error) { return v, yaml.Unmarshal([]byte(text), &v) }
	funcs["include"] = func(name string, data any) (string, error) {
		var b strings.Builder
		err := root.ExecuteTemplate(&b, name, data)
		return b.String(), err
	}
	funcs["required"] = func(what string, v any) (any, error) {
		if v == nil || v == "" {
			return nil, errors.New(what)
		}
		return v, nil
	}
	funcs["fail"] = func(what string) (string, error) { return "", errors.New(what) }
	root.Funcs(funcs)
	for _, f := range c.Templates {
		if _, err := root.New(f.Name).Parse(string(f.Data)); err != nil {
			return nil, err
		}
	}
	data := object{
		"Values": all, "Files": fileSet(files),
		"Chart":   object{"Name": c.Metadata.Name, "Version": c.Metadata.Version, "AppVersion": c.Metadata.AppVersion},
		"Release": object{"Name": "floodgate", "Namespace": "shop", "Service": "Helm"},
	}
	out := map[string]string{}
	for _, f := range c.Templates {
		if strings.HasPrefix(path.Base(f.Name), "_") {
			continue
		}
		var b bytes.Buffer
		if err := root.ExecuteTemplate(&b, f.Name, data); err != nil {
			return nil, err
		}
		out[path.Base(f.Name)] = strings.ReplaceAll(b.String(), "<no value>", "")
	}
	return out, nil
}

type fileSet map[string]string

// Get is .Files.Get.
func (f fileSet) Get(name string) string { return f[name] }

func checkSchema(c *chart.Chart, values object) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Schema))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("values.schema.json", doc); err != nil {
		return err
	}
	schema, err := compiler.Compile("values.schema.json")
	if err != nil {
		return err
	}
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	if err := schema.Validate(instance); err != nil {
		return fmt.Errorf("values: %w", err)
	}
	return nil
}

// documents are the YAML documents of a file that are not empty.
func documents(text string) (all []string) {
	for _, d := range strings.Split("\n"+text, "\n---") {
		var v any
		if yaml.Unmarshal([]byte(d), &v) != nil || v != nil {
			all = append(all, d)
		}
	}
	return all
}
