package command

import (
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
	var err error
	switch {
	case typed == "now":
	case strings.HasPrefix(typed, "+") || strings.HasPrefix(typed, "-"):
		shift, err = time.ParseDuration(typed)
	default:
		if err = new(wire.Time).UnmarshalText([]byte(typed)); err == nil {
			return typed, nil
		}
	}
	if err != nil {
		return "", cli.Usage("%s %q: give an RFC 3339 time like 2026-07-01T10:00:00Z, now, or a time from now like +90s, +1h30m", flag, typed)
	}
	at, err := now()
	if err != nil {
		return "", err
	}
	return at.Add(shift).UTC().Format(wire.TimeFormat), nil
}

// shown is a time to the second; none is "-".
func shown(t *wire.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.DateTime)
}

// span is a duration that is shown shortly: "2h30m", "45s".
func span(d time.Duration) string {
	s := d.Round(time.Second).String()
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
