package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// when turns what an operator typed into an RFC 3339 time: one already, "now", or "+1h30m" and "-5m" from now. Now is asked
// only when it is needed.
func when(flag, typed string, now func() (time.Time, error)) (string, error) {
	var shift time.Duration
	switch {
	case typed == "now":
	case strings.HasPrefix(typed, "+") || strings.HasPrefix(typed, "-"):
		var err error
		if shift, err = time.ParseDuration(typed); err != nil {
			return "", cli.Usage("%s %q: give an RFC 3339 time like 2026-07-01T10:00:00Z, now, or a time from now like +90s, +1h30m", flag, typed)
		}
	default:
		var t wire.Time
		if err := t.UnmarshalText([]byte(typed)); err != nil {
			return "", cli.Usage("%s %q: give an RFC 3339 time like 2026-07-01T10:00:00Z, now, or a time from now like +90s, +1h30m", flag, typed)
		}
		return typed, nil
	}
	at, err := now()
	if err != nil {
		return "", err
	}
	return at.Add(shift).UTC().Format(wire.TimeFormat), nil
}

// nowOnce asks at most once, so that all times of one command count from the same moment.
func (c *client) nowOnce(ctx context.Context) func() (time.Time, error) {
	var at time.Time
	return func() (time.Time, error) {
		if !at.IsZero() {
			return at, nil
		}
		var err error
		at, err = c.now(ctx)
		return at, err
	}
}

// span is a duration that is shown shortly: "2h30m", "45s".
func span(d time.Duration) string {
	d = d.Round(time.Second)
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func millis(ms int64) string {
	if ms < 10_000 {
		return fmt.Sprintf("%d ms", ms)
	}
	return span(time.Duration(ms) * time.Millisecond)
}
