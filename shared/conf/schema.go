package conf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// schema is what is used of JSON Schema 2020-12 (https://json-schema.org/draft/2020-12). A keyword for one type says nothing of
// values of another, so a number that may come from the environment has the types number and string, and a pattern for the latter.
type schema struct {
	Dialect     string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        any                `json:"type,omitempty"` // a name, or a list of them
	Pattern     string             `json:"pattern,omitempty"`
	AnyOf       []*schema          `json:"anyOf,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Default     any                `json:"default,omitempty"`
	WriteOnly   bool               `json:"writeOnly,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Additional  *bool              `json:"additionalProperties,omitempty"`
}

const (
	referencePattern = `\$\{[A-Za-z_][A-Za-z0-9_]*\}`
	durationPattern  = `^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
)

// WriteSchema writes a JSON Schema of the files that Load takes into a struct like defaults. comments names a file of that kind whose
// comments become the descriptions; "": there are none. A field may list what it takes in its tag: enum:"a,b".
//
// The schema is stricter than Load in two things: a text that looks like a number must stand in quotes, and no value is null.
func WriteSchema(w io.Writer, title string, defaults any, comments string) error {
	said := map[string]string{}
	if comments != "" {
		b, err := os.ReadFile(comments)
		if err != nil {
			return err
		}
		var doc yaml.Node
		if err := yaml.Load(hideBraces(b), &doc); err != nil {
			return (&File{path: comments}).syntax(err)
		}
		if len(doc.Content) > 0 {
			collect(doc.Content[0], "", said)
		}
	}
	v := reflect.Indirect(reflect.ValueOf(defaults))
	s := schemaOf(v.Type(), v, "", "", said)
	s.Dialect, s.Title, s.Type, s.Pattern = "https://json-schema.org/draft/2020-12/schema", title, "object", ""
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// schemaOf is the schema of a value of t. v is its default, or not valid.
func schemaOf(t reflect.Type, v reflect.Value, enum, path string, said map[string]string) *schema {
	s := &schema{Description: said[path]}
	for t.Kind() == reflect.Pointer {
		if t = t.Elem(); v.IsValid() {
			v = v.Elem() // not valid for nil
		}
	}
	or := func(name string) {
		s.Type, s.Pattern = []string{name, "string"}, referencePattern
		if v.IsValid() && t.Kind() != reflect.Struct && t.Kind() != reflect.Slice {
			s.Default = v.Interface()
		}
	}
	switch {
	case t == reflect.TypeFor[Secret]():
		s.Type, s.WriteOnly = "string", true
	case t == reflect.TypeFor[time.Duration]():
		s.Type, s.Pattern = "string", durationPattern+"|"+referencePattern
		if v.IsValid() {
			s.Default = fmt.Sprint(v.Interface())
		}
	case t.Kind() == reflect.Struct && !isText(t):
		or("object")
		s.Properties, s.Additional = map[string]*schema{}, new(bool)
		s.addKeys(t, v, path, said)
	case t.Kind() == reflect.Slice && !isText(t):
		or("array")
		s.Items = schemaOf(t.Elem(), reflect.Value{}, "", path+"[]", said)
	case isText(t), t.Kind() == reflect.String:
		s.Type = "string"
		if enum != "" {
			s.AnyOf = []*schema{{Enum: strings.Split(enum, ",")}, {Pattern: referencePattern}}
		}
		if text := fmt.Sprint(v); v.IsValid() && text != "" {
			s.Default = text
		}
	case t.Kind() == reflect.Bool:
		or("boolean")
	case t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		or("number")
	case reflect.Int <= t.Kind() && t.Kind() <= reflect.Uint64:
		or("integer")
	default:
		panic("BUG: a configuration has a " + t.String())
	}
	return s
}

func (s *schema) addKeys(t reflect.Type, v reflect.Value, path string, said map[string]string) {
	for i := range t.NumField() {
		f, at := t.Field(i), reflect.Value{}
		if v.IsValid() {
			at = v.Field(i)
		}
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			s.addKeys(f.Type, at, path, said)
		case name != "" && name != "-":
			s.Properties[name] = schemaOf(f.Type, at, f.Tag.Get("enum"), strings.TrimPrefix(path+"."+name, "."), said)
		}
	}
}

// collect notes the comments of the keys below n: those above a key, and the one behind it or its value.
func collect(n *yaml.Node, path string, said map[string]string) {
	switch n.Kind {
	case yaml.SequenceNode:
		for _, e := range n.Content {
			collect(e, path+"[]", said)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			at := strings.TrimPrefix(path+"."+k.Value, ".")
			said[at] = cmp.Or(said[at], plainComment(k.HeadComment, k.LineComment, v.HeadComment, v.LineComment))
			collect(v, at, said)
		}
	}
}

// plainComment is comments as one line of text.
func plainComment(comments ...string) string {
	var words []string
	for _, c := range comments {
		for line := range strings.Lines(c) {
			words = append(words, strings.Fields(strings.TrimLeft(line, "#"))...)
		}
	}
	return showBraces(strings.Join(words, " "))
}
