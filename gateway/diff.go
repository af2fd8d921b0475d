package gateway

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"floodgate.internal/shared/conf"
)

// tree is a configuration as plain maps and lists under its YAML keys: durations as text, secrets masked.
func tree(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case conf.Secret:
		return x.String()
	case time.Duration:
		return x.String()
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		if err != nil {
			panic("BUG: a configuration value that does not marshal: " + err.Error())
		}
		return string(b)
	}
	switch v.Kind() {
	case reflect.Struct:
		m := map[string]any{}
		for i := range v.NumField() {
			name := key(v.Type().Field(i))
			if name == "-" {
				continue
			}
			e := tree(v.Field(i))
			if inline, ok := e.(map[string]any); ok && name == "" {
				maps.Copy(m, inline)
				continue
			}
			m[name] = e
		}
		return m
	case reflect.Slice:
		list := make([]any, 0, v.Len())
		for i := range v.Len() {
			list = append(list, tree(v.Index(i)))
		}
		return list
	default:
		return v.Interface()
	}
}

// key is a field's YAML key, "" for an inline struct.
func key(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// join is the path of a key below path.
func join(path, key string) string {
	if path == "" || key == "" {
		return path + key
	}
	return path + "." + key
}

// Tree is the configuration for JSON, secrets masked.
func (c Config) Tree() any { return tree(reflect.ValueOf(c)) }

// Diff describes what changes from c to next, a line for each value, sorted. A secret, or a value from the environment, is
// named and not shown.
func (c Config) Diff(next Config) []string {
	lines := diffTrees(c.Tree(), next.Tree())
	var secrets func(path string, a, b reflect.Value)
	secrets = func(path string, a, b reflect.Value) {
		switch {
		case a.Type() == reflect.TypeFor[conf.Secret]():
			if a.String() != "" && b.String() != "" && a.Interface() != b.Interface() { // the tree shows one that was set or removed
				lines = append(lines, path+": another secret")
			}
		case a.Kind() == reflect.Struct:
			for i := range a.NumField() {
				if key(a.Type().Field(i)) == "-" {
					continue
				}
				secrets(join(path, key(a.Type().Field(i))), a.Field(i), b.Field(i))
			}
		case a.Kind() == reflect.Slice:
			for i := range min(a.Len(), b.Len()) {
				secrets(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
			}
		}
	}

	secrets("", reflect.ValueOf(c), reflect.ValueOf(next))
	return maskEnvironment(lines, c.File, next.File)
}

// maskEnvironment removes the values from a diff's lines about fields that one of the files takes from the environment.
func maskEnvironment(lines []string, files ...*conf.File) []string {
	for i, line := range lines {
		field, _, _ := strings.Cut(line, ": ")
		if slices.ContainsFunc(files, func(f *conf.File) bool { return f.FromEnv(field) }) {
			lines[i] = field + ": another value, from the environment"
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// restartFields names the fields of a diff that a reload refuses.
func restartFields(diff []string) []string {
	restart := restartNames(reflect.TypeFor[Config](), "", map[string]bool{})
	var fields []string
	for _, line := range diff {
		field, _, _ := strings.Cut(line, ": ")
		if list, _, _ := strings.Cut(field, "["); restart[list] {
			field = list
		}
		if restart[field] && !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	return fields
}

// restartNames adds the fields below t that are tagged reload:"restart".
func restartNames(t reflect.Type, path string, names map[string]bool) map[string]bool {
	for i := range t.NumField() {
		f := t.Field(i)
		name := join(path, key(f))
		switch {
		case f.Tag.Get("reload") == "restart":
			names[name] = true
		case f.Type.Kind() == reflect.Struct:
			restartNames(f.Type, name, names)
		}
	}
	return names
}

// diffTrees compares two trees, which may have come as JSON.
func diffTrees(a, b any) []string {
	was, is := map[place]string{}, map[place]string{}
	flatten("", roundTrip(a), was)
	flatten("", roundTrip(b), is)
	var lines []string
	for p, old := range was {
		if now, ok := is[p]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s is gone", p.path, old))
		} else if old != now {
			lines = append(lines, fmt.Sprintf("%s: %s becomes %s", p.path, old, now))
		}
	}
	for p, now := range is {
		if _, ok := was[p]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s is new", p.path, now))
		}
	}
	slices.Sort(lines)
	return lines
}

func roundTrip(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a configuration that does not marshal: " + err.Error())
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var out any
	if err := d.Decode(&out); err != nil {
		panic("BUG: " + err.Error())
	}
	return out
}

// place is the path of a value. Texts of one list have the same path and differ in text, so that their order does not count.
type place struct{ path, text string }

func flatten(path string, v any, into map[place]string) {
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			flatten(join(path, k), e, into)
		}
	case []any:
		for i, e := range x {
			if text, ok := e.(string); ok {
				into[place{path, text}] = fmt.Sprintf("%q", text)
				continue
			}
			flatten(fmt.Sprintf("%s[%d]", path, i), e, into)
		}
	case json.Number:
		into[place{path: path}] = x.String()
	case string:
		into[place{path: path}] = fmt.Sprintf("%q", x)
	default:
		into[place{path: path}] = fmt.Sprint(x)
	}
}
