// Package logging makes the loggers of both binaries.
package logging

import (
	"io"
	"log/slog"
)

// The formats of a log.
const (
	JSON = "json"
	Text = "text"
)

// Valid reports whether format is one, or "" for the usual one.
func Valid(format string) bool { return format == "" || format == JSON || format == Text }

// New makes a logger that writes lines of at least this level to w. Format "" is Text for a developer, who reads them, and JSON for
// machines otherwise. In JSON, times are UTC and durations are seconds.
func New(w io.Writer, format string, development bool, level slog.Leveler) *slog.Logger {
	if format == Text || format == "" && development {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Value.Kind() {
		case slog.KindDuration:
			a.Value = slog.Float64Value(a.Value.Duration().Seconds())
		case slog.KindTime:
			a.Value = slog.TimeValue(a.Value.Time().UTC())
		}
		return a
	}}))
}
