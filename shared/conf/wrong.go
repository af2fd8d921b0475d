package conf

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// Wrong is an error of a field's value, for a Validate. The format begins with the field, a colon and a space; if a verb follows at
// once, its argument is the value. File.Explain says where the field stands, and puts the name of a variable in place of a value
// that came from it. Another field's value is given as Of.
func Wrong(format string, args ...any) error { return &wrong{format, args} }

// Of is the value of another field than the one that a Wrong is about.
func Of(field string, value any) any { return other{field, value} }

// Under is an error of Wrong about a field below prefix, which is put before its name.
func Under(prefix string, err error) error {
	var w *wrong
	if !errors.As(err, &w) {
		return err
	}
	return &wrong{strings.ReplaceAll(prefix, "%", "%%") + w.format, w.args}
}

type wrong struct {
	format string
	args   []any
}

type other struct {
	field string
	value any
}

// Error implements error, without a word on where the field stands.
func (w *wrong) Error() string { return w.explain(&File{}) }

// Explain makes the errors of Wrong in err errors of the file. After nil, for a file that is right, it knows no more where fields stand.
func (f *File) Explain(err error) error {
	if err == nil {
		f.fields, f.seen = nil, nil
		return nil
	}
	var all []error
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			all = append(all, f.Explain(e))
		}
		return errors.Join(all...)
	}
	var w *wrong
	if !errors.As(err, &w) {
		return err
	}
	return f.at(f.line(w.field()), "", w.explain(f))
}

// FromEnv reports whether the value of a field, or of one below it, came from the environment.
func (f *File) FromEnv(field string) bool { return f != nil && f.env[field] }

// line is where a field stands, or else the nearest one around it; 0 for none.
func (f *File) line(field string) int {
	for field != "" {
		if p, ok := f.fields[field]; ok {
			return p.line
		}
		field = outer(field)
	}
	return 0
}

// head is the format of the field's name, the number of arguments in it, and the rest of the format.
func (w *wrong) head() (head string, n int, rest string) {
	head, rest, _ = strings.Cut(w.format, ": ")
	return head, strings.Count(strings.ReplaceAll(head, "%%", ""), "%"), rest
}

func (w *wrong) field() string {
	head, n, _ := w.head()
	return fmt.Sprintf(head, w.args[:n]...)
}

func (w *wrong) explain(f *File) string {
	_, n, rest := w.head()
	field, args := w.field(), append([]any(nil), w.args[n:]...)
	if strings.HasPrefix(rest, "%") && len(args) > 0 {
		number := reflect.ValueOf(args[0]).Kind() == reflect.Int
		if text, hidden := f.hidden(field); hidden && !(number && f.fields[field].text) {
			args[0], rest = text, "%s"+rest[2:]
		}
	}
	for i, a := range args {
		if o, ok := a.(other); ok {
			args[i] = fmt.Sprint(o.value)
			if text, hidden := f.hidden(o.field); hidden {
				args[i] = text
			}
		} else if s, ok := a.(string); ok {
			args[i] = strip(s)
		}
	}
	return field + ": " + fmt.Sprintf(rest, args...)
}

// hidden is what stands in place of a field's value that must not be shown.
func (f *File) hidden(field string) (string, bool) {
	p := f.fields[field]
	if len(p.refs) == 0 && f.FromEnv(field) { // of something below it
		return "what is there", true
	}
	return p.instead()
}

func (p place) instead() (string, bool) {
	switch {
	case len(p.refs) > 0:
		return "the value of ${" + strings.Join(p.refs, "} and ${") + "}", true
	case p.secret:
		return "it", true
	}
	return "", false
}

// shown is a value as a message has it.
func (p place) shown(value string, isScalar bool) string {
	if text, hidden := p.instead(); hidden {
		return text
	}
	if !isScalar {
		return "it"
	}
	value = strip(value)
	if len(value) > 64 {
		value = value[:64] + "..."
	}
	return fmt.Sprintf("%q", value)
}

var credentials = regexp.MustCompile(`[^/@\s]*@`)

// strip leaves out what may be a user and a password in an address.
func strip(value string) string { return credentials.ReplaceAllString(value, "...@") }
