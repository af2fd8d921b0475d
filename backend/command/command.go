// Package command is the operator's command line: what the binary does beside serving, as kong commands that backend.Run puts
// into its grammar. Each is run with a context.Context and an *Env bound.
//
// Audit, rebuild and migrate talk to the stores themselves, so that they also work while no backend runs; all others to the
// admin API.
package command

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/preflight"
	"floodgate.internal/backend/redis"
)

// Env is what a command is run with.
type Env struct {
	Stdout, Stderr io.Writer
	// Config reads the file that -config names; its errors are usage errors.
	Config func(path string) (Config, error)
}

// File is the flag that every command has.
type File struct {
	Config string `required:"" placeholder:"FILE" help:"The backend's configuration file."`
}

// Config is what the commands need of the backend's configuration.
type Config struct {
	Admin       string // host:port of the admin listener
	Internal    string // of the internal one
	Token       string // admin token
	MySQL       string // DSN
	Redis       redis.Config
	Broker      *broker.Config // nil: the outbox is the queue
	QueuedBound time.Duration
	Abandoned   time.Duration    // of carts
	System      preflight.System // what is looked at, without its stores
	Log         *slog.Logger
}

// Output is how a command answers.
type Output struct {
	JSON bool `help:"Print JSON, for programs."`
}

// print writes v to w as indented JSON, where that is asked for, or as text does.
func (o Output) print(w io.Writer, v any, text func(*bytes.Buffer)) error {
	var out bytes.Buffer
	if !o.JSON {
		text(&out)
	} else if err := json.MarshalWrite(&out, v, jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("print: %w", err)
	} else {
		out.WriteByte('\n')
	}
	_, err := out.WriteTo(w)
	return err
}

// row is the cells of a line of a table.
type row []any

// table writes rows in columns. A buffer takes all that is written.
func table(w *bytes.Buffer, rows ...row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for i, cell := range r {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// listed is table with a head and a row for each item.
func listed[T any](w *bytes.Buffer, head row, items []T, cells func(T) row) {
	rows := []row{head}
	for _, item := range items {
		rows = append(rows, cells(item))
	}
	table(w, rows...)
}
