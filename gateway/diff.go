package gateway

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
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
			m[v.Type().Field(i).Tag.Get("yaml")] = tree(v.Field(i))
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

// Tree is the configuration for JSON, secrets masked.
func (c Config) Tree() any { return tree(reflect.ValueOf(c)) }

// Diff says in words what changes from c to next, a line for each value, sorted. A changed secret is named and not shown.
func (c Config) Diff(next Config) []string {
	lines := diffTrees(c.Tree(), next.Tree())
	var secrets func(path string, a, b reflect.Value)
	secrets = func(path string, a, b reflect.Value) {
		switch {
		case a.Type() == reflect.TypeFor[conf.Secret]():
			if a.String() != "" && b.String() != "" && a.Interface() != b.Interface() { // set and unset show in the tree
				lines = append(lines, path+": another secret")
			}
		case a.Kind() == reflect.Struct:
			for i := range a.NumField() {
				secrets(strings.TrimPrefix(path+"."+a.Type().Field(i).Tag.Get("yaml"), "."), a.Field(i), b.Field(i))
			}
		case a.Kind() == reflect.Slice:
			for i := range min(a.Len(), b.Len()) {
				secrets(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
			}
		}
	}

	secrets("", reflect.ValueOf(c), reflect.ValueOf(next))
	slices.Sort(lines)
	return lines
}

// restarts names the changed fields that need a restart.
func (c Config) restarts(next Config) []string {
	var fields []string
	var walk func(path string, a, b reflect.Value)
	walk = func(path string, a, b reflect.Value) {
		for i := range a.NumField() {
			f := a.Type().Field(i)
			name := strings.TrimPrefix(path+"."+f.Tag.Get("yaml"), ".")
			switch {
			case f.Tag.Get("reload") == "restart":
				if a.Field(i).Interface() != b.Field(i).Interface() {
					fields = append(fields, name)
				}
			case f.Type.Kind() == reflect.Struct:
				walk(name, a.Field(i), b.Field(i))
			}
		}
	}
	walk("", reflect.ValueOf(c), reflect.ValueOf(next))
	return fields
}

// diffTrees compares two trees, which may have come as JSON.
func diffTrees(a, b any) []string {
	was, is := map[string]string{}, map[string]string{}
	flatten("", roundTrip(a), was)
	flatten("", roundTrip(b), is)
	var lines []string
	for path, old := range was {
		if now, ok := is[path]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s is gone", path, old))
		} else if old != now {
			lines = append(lines, fmt.Sprintf("%s: %s becomes %s", path, old, now))
		}
	}
	for path, now := range is {
		if _, ok := was[path]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s is new", path, now))
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

func flatten(path string, v any, into map[string]string) {
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			flatten(strings.TrimPrefix(path+"."+k, "."), e, into)
		}
	case []any:
		for i, e := range x {
			flatten(fmt.Sprintf("%s[%d]", path, i), e, into)
		}
	case json.Number:
		into[path] = x.String()
	case string:
		into[path] = fmt.Sprintf("%q", x)
	default:
		into[path] = fmt.Sprint(x)
	}
}
