package conf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Reference writes a table of every key of the files that Load takes into a struct like defaults, in Markdown: type, default, and what the
// comments of a sample say (see WriteSchema).
func Reference(w io.Writer, defaults any, comments string) error {
	var text bytes.Buffer
	var s schema
	if err := WriteSchema(&text, "", defaults, comments); err != nil {
		return err
	}
	if err := json.Unmarshal(text.Bytes(), &s); err != nil {
		return fmt.Errorf("the schema: %w", err)
	}
	var b strings.Builder
	b.WriteString("| key | type | default | |\n|---|---|---|---|\n")
	s.keys(&b, "")
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *schema) keys(b *strings.Builder, path string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		k, at := s.Properties[name], strings.TrimPrefix(path+"."+name, ".")
		if k.Items != nil { // of what a list holds
			fmt.Fprintf(b, "| `%s` | list of %s | | %s |\n", at, k.Items.kind(), cell(k.Description))
			k.Items.keys(b, at+"[]")
			continue
		}
		if k.Properties != nil {
			if k.Description != "" {
				fmt.Fprintf(b, "| `%s` | section | | %s |\n", at, cell(k.Description))
			}
			k.keys(b, at)
			continue
		}
		value := ""
		if k.Default != nil {
			value = fmt.Sprintf("`%v`", k.Default)
			if n, ok := k.Default.(float64); ok {
				value = "`" + strconv.FormatFloat(n, 'f', -1, 64) + "`"
			}
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", at, k.kind(), value, cell(k.Description))
	}
}

// kind is the type of a value in words.
func (s *schema) kind() string {
	name, _ := s.Type.(string)
	if list, ok := s.Type.([]any); ok && len(list) > 0 {
		name, _ = list[0].(string)
	}
	switch {
	case s.WriteOnly:
		return "secret"
	case len(s.AnyOf) > 0 && len(s.AnyOf[0].Enum) > 0:
		return "one of " + strings.Join(slices.DeleteFunc(slices.Clone(s.AnyOf[0].Enum), func(v string) bool { return v == "" }), ", ")
	case strings.HasPrefix(s.Pattern, durationPattern):
		return "duration"
	case name == "object":
		return "sections"
	case name == "string":
		return "text"
	}
	return name
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
