// Package cli is how both binaries read their command line: kong, with Go's single-dash flags accepted too.
package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// UsageError is a wrong command line or configuration: exit code 2.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usage makes a UsageError.
func Usage(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// ExitCode is 0 without an error, 2 for a UsageError, 1 for any other.
func ExitCode(err error) int {
	var u *UsageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &u):
		return 2
	default:
		return 1
	}
}

type exited struct{}

// Parse reads args into the struct that grammar points to (see kong) and returns the chosen command, for Run. A nil
// context with a nil error means that help was asked for and has been printed.
func Parse(grammar any, args []string, stdout, stderr io.Writer, options ...kong.Option) (kc *kong.Context, err error) {
	options = append([]kong.Option{
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { panic(exited{}) }),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	}, options...)
	parser, err := kong.New(grammar, options...)
	if err != nil {
		panic("BUG: the command line's grammar: " + err.Error())
	}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(exited); !ok {
				panic(r)
			}
			kc, err = nil, nil
		}
	}()
	kc, err = parser.Parse(normalize(args))
	if err != nil {
		return nil, Usage("%w (--help shows what there is)", err)
	}
	return kc, nil
}

// normalize turns -config into --config; what follows "--" is left as it is.
func normalize(args []string) []string {
	out := make([]string, len(args))
	copy(out, args)
	for i, a := range out {
		if a == "--" {
			break
		}
		if len(a) > 2 && a[0] == '-' && a[1] >= 'a' && a[1] <= 'z' {
			out[i] = "-" + a
		}
	}
	return out
}
