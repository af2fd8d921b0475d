package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestNew(t *testing.T) {
	for _, c := range []struct {
		format      string
		development bool
		want        string
	}{
		{"", true, "msg=hello took=1.5s error=broken"},
		{Text, false, "msg=hello took=1.5s error=broken"},
		{"", false, `"msg":"hello","took":1.5,"error":"broken"}`},
		{JSON, true, `"msg":"hello","took":1.5,"error":"broken"}`},
	} {
		var out bytes.Buffer
		log := New(&out, c.format, c.development, slog.LevelInfo)
		log.Debug("not written")
		log.Info("hello", "took", 1500*time.Millisecond, "error", errors.New("broken"))
		if got := strings.TrimSpace(out.String()); !strings.HasSuffix(got, c.want) || strings.Contains(got, "not written") {
			t.Errorf("%q, development %v: got %s, want %s", c.format, c.development, got, c.want)
		}
	}
}

func TestJSONTimesAreUTC(t *testing.T) {
	var out bytes.Buffer
	New(&out, JSON, false, slog.LevelInfo).Info("x", "at", time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.FixedZone("", 3600)))
	var line struct{ Time, At string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.At != "2026-01-02T02:04:05.006Z" || !strings.HasSuffix(line.Time, "Z") {
		t.Errorf("got %s, %v", &out, err)
	}
}

func TestValid(t *testing.T) {
	for format, want := range map[string]bool{"": true, "json": true, "text": true, "JSON": false, "logfmt": false} {
		if Valid(format) != want {
			t.Errorf("%q: got %v", format, !want)
		}
	}
}
