package conf

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// File is a configuration file that was read: where each field stands, and which of them the environment gave.
type File struct {
	// Hash is of the file's bytes.
	Hash string

	path   string
	fields map[string]place
	env    map[string]bool         // fields that the environment gave, and those around them
	seen   map[*yaml.Node][]string // the names in those whose references are replaced: an alias leads to a node again
	errs   []error
}

// place is where a field stands, and what may be said of its value.
type place struct {
	line   int
	refs   []string // the names of the environment that its value holds
	secret bool
	text   bool // a text or a list: a number that a message has is not the value
}

// Load reads path into the struct that into points to, over the defaults that it already holds. Every unknown key, duplicate key
// and misfit is reported.
func Load(path string, into any) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(path, b, into)
}

// Parse is Load for bytes in hand.
func Parse(b []byte, into any) error {
	_, err := parse("", b, into)
	return err
}

func parse(path string, b []byte, into any) (*File, error) {
	sum := sha256.Sum256(b)
	f := &File{Hash: hex.EncodeToString(sum[:8]), path: path, fields: map[string]place{}, env: map[string]bool{}, seen: map[*yaml.Node][]string{}}
	var doc yaml.Node
	if err := yaml.Load(hideBraces(b), &doc); err != nil {
		return nil, f.syntax(err)
	}
	if len(doc.Content) == 0 {
		return f, nil // an empty file
	}
	f.walk(doc.Content[0], reflect.TypeOf(into).Elem(), "", nil)
	if len(f.errs) > 0 {
		return nil, errors.Join(f.errs...)
	}
	if err := doc.Load(into, yaml.WithKnownFields()); err != nil {
		return nil, f.syntax(err)
	}
	return f, nil
}

// syntax is an error of the YAML library. It may quote the file, so no more of it is said than is known to be a fixed text.
func (f *File) syntax(err error) error {
	text, line := "this is not YAML that can be read here", 0
	var many *yaml.LoadErrors
	if errors.As(err, &many) && len(many.Errors) > 0 {
		line = many.Errors[0].Mark.Line
	}
	var one *yaml.LoadError
	if errors.As(err, &one) {
		line = one.Mark.Line
		if fixed := !strings.Contains(one.Message, "found character '"); fixed && (one.Stage == "scanner" || one.Stage == "parser") {
			text = one.Message
		} else if one.Stage == "composer" {
			text = "an alias, *name, of what no &name marks; a text that begins with * or & stands in quotes"
		}
	}
	return f.at(line, "", text)
}

func (f *File) at(line int, field, text string) error {
	var b strings.Builder
	if f.path != "" {
		b.WriteString(f.path + ": ")
	}
	if line > 0 {
		fmt.Fprintf(&b, "line %d: ", line)
	}
	if field != "" {
		b.WriteString(field + ": ")
	}
	return errors.New(b.String() + text)
}

func (f *File) fail(n *yaml.Node, field, format string, args ...any) {
	f.errs = append(f.errs, f.at(n.Line, field, fmt.Sprintf(format, args...)))
}

// walk replaces the references below n, notes where each field stands, and reports what does not fit t. refs are the names of the
// environment that n came from, if it did.
func (f *File) walk(n *yaml.Node, t reflect.Type, path string, refs []string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if earlier, again := f.seen[n]; len(refs) > 0 || again {
		refs = append(slices.Clip(refs), earlier...)
	} else if n.Kind == yaml.ScalarNode {
		var ok bool
		refs, ok = f.expand(n, t, path)
		if f.seen[n] = refs; !ok {
			return
		}
	}
	p := place{line: n.Line, refs: refs, secret: t == reflect.TypeFor[Secret](), text: t.Kind() == reflect.String || t.Kind() == reflect.Slice}
	f.fields[path] = p
	if len(refs) > 0 {
		for around := path; around != "" && !f.env[around]; around = outer(around) {
			f.env[around] = true
		}
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null" && len(refs) == 0: // as if it were not there
	case scalar(t):
		if t.Kind() == reflect.String && !isText(t) && n.Kind == yaml.ScalarNode && plainTag[n.Tag] { // it is as it stands
			return
		}
		if n.Kind != yaml.ScalarNode || n.Load(reflect.New(t).Interface()) != nil {
			f.fail(n, path, "%s must be %s", p.shown(n.Value, n.Kind == yaml.ScalarNode), kind(t))
		}
	case t.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			f.fail(n, path, "it must be a list, like [a, b]")
			return
		}
		for i, e := range n.Content {
			f.walk(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i), refs)
		}
	default:
		if n.Kind != yaml.MappingNode {
			f.fail(n, path, "there must be keys: %s", strings.Join(keys(t), ", "))
			return
		}
		f.walkKeys(n, t, path, refs)
	}
}

var plainTag = map[string]bool{"!!str": true, "!!int": true, "!!float": true, "!!bool": true}

// outer is the field around one, "" for none.
func outer(field string) string { return field[:max(0, strings.LastIndexAny(field, ".["))] }

func (f *File) walkKeys(n *yaml.Node, t reflect.Type, path string, refs []string) {
	first := map[string]int{} // where a key stands
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		k.Value = showBraces(k.Value)
		if k.Tag == "!!merge" {
			merged := []*yaml.Node{v}
			if v.Kind == yaml.SequenceNode {
				merged = v.Content
			}
			for _, m := range merged {
				f.walk(m, t, path, refs)
			}
			continue
		}
		at, known := field(t, k.Value)
		if !known {
			name := ""
			if plainKey.MatchString(k.Value) && v.Tag != "!!null" && len(refs) == 0 { // else it may be a secret that slipped
				name = " " + k.Value
			}
			f.fail(k, path, "the key%s is not known: the keys here are %s", name, strings.Join(keys(t), ", "))
			continue
		}
		name := k.Value
		if path != "" {
			name = path + "." + k.Value
		}
		if line, twice := first[k.Value]; twice {
			f.fail(k, name, "it is there twice, in line %d first", line)
			continue
		}
		first[k.Value] = k.Line
		f.walk(v, at, name, refs)
	}
}

// plainKey is what a key looks like that somebody misspelled, and few secrets do.
var plainKey = regexp.MustCompile(`^[a-z]+(_[a-z]+){0,5}$`)

// A ${NAME} may stand in a flow mapping or list, where braces have a meaning of their own. So while YAML reads the file these two
// characters stand for them; they are private to whoever uses them.
const opened, closed = "\ue000", "\ue001"

var braces = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

func hideBraces(b []byte) []byte {
	if !bytes.Contains(b, []byte("${")) {
		return b
	}
	return braces.ReplaceAll(b, []byte("$$"+opened+"$1"+closed))
}

func showBraces(s string) string {
	return strings.NewReplacer(opened, "{", closed, "}").Replace(s)
}

var reference = regexp.MustCompile(`\$\$|\$` + opened + `[^` + closed + `]*` + closed + `|\$`)

// expand replaces the references in a scalar, after the file is parsed: so a value cannot change what is around it. It returns
// their names. The value then means what t says, in quotes or not: a number, true or false; for a list or keys, those of YAML;
// for a text, always a text.
func (f *File) expand(n *yaml.Node, t reflect.Type, path string) (refs []string, ok bool) {
	ok = true
	value := reference.ReplaceAllStringFunc(n.Value, func(ref string) string {
		if ref == "$$" {
			return "$"
		}
		if ref == "$" {
			f.fail(n, path, "a lone $: write ${NAME} for the environment's NAME, or $$ for a dollar")
			ok = false
			return ""
		}
		name := strings.TrimSuffix(strings.TrimPrefix(ref, "$"+opened), closed)
		value, set := os.LookupEnv(name)
		if !set {
			f.fail(n, path, "the environment has no %s: set it, or write the value here", name)
			ok = false
		} else if strings.TrimSpace(value) == "" {
			f.fail(n, path, "the environment's %s is empty: set it, or take this field out of the file", name)
			ok = false
		}
		if !slices.Contains(refs, name) {
			refs = append(refs, name)
		}
		// What it holds is taken as it is, whatever characters that are.
		return value
	})
	if len(refs) == 0 {
		value = showBraces(value)
	}
	if n.Value = value; !ok || len(refs) == 0 {
		return refs, ok
	}
	switch {
	case scalar(t) && (t.Kind() == reflect.String || t == reflect.TypeFor[time.Duration]() || isText(t)):
		n.Tag, n.Style = "!!str", yaml.DoubleQuotedStyle
	case scalar(t):
		n.Tag, n.Style, n.Value = "", 0, strings.TrimSpace(value)
	default:
		var doc yaml.Node
		if yaml.Load([]byte(value), &doc) == nil && len(doc.Content) == 1 && doc.Content[0].Kind != yaml.ScalarNode {
			line := n.Line
			*n = *doc.Content[0]
			relocate(n, line)
		}
	}
	return refs, true
}

// relocate puts all of a value from the environment into the line of its reference.
func relocate(n *yaml.Node, line int) {
	n.Line = line
	for _, c := range n.Content {
		relocate(c, line)
	}
}

func isText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// scalar reports whether a value of t is one scalar.
func scalar(t reflect.Type) bool {
	return isText(t) || t.Kind() != reflect.Struct && t.Kind() != reflect.Slice && t.Kind() != reflect.Map
}

// kind says what a scalar of t must be.
func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a time, like 250ms or 5s"
	case isText(t):
		return "one of the words for it"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	}
	return "a whole number"
}

// field is the type of the field that a key of t names.
func field(t reflect.Type, key string) (reflect.Type, bool) {
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if options == "inline" {
			if at, ok := field(t.Field(i).Type, key); ok {
				return at, true
			}
		} else if name == key && name != "" && name != "-" {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}

// keys lists the keys of t.
func keys(t reflect.Type) (list []string) {
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if options == "inline" {
			list = append(list, keys(t.Field(i).Type)...)
		} else if name != "" && name != "-" {
			list = append(list, name)
		}
	}
	return list
}
