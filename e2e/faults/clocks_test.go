//go:build servers

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// clockFaults are processes whose wall clock is an hour off, while Redis's, which decides, is right. The binaries are the
// production ones but for the standard library's time.Now.
func clockFaults(t *testing.T, g *ground) {
	bin := filepath.Join(g.Dir, "clocks")
	world.Must(t, world.Build(bin, "-overlay", overlay(t)))
	w := g.system(t, options{bin: bin})
	const hour = 3600
	restart := func(s *trial, wallOff map[string]int) {
		world.Must(s.T, errors.Join(w.Gateway.Stop(s.ctx), w.Backend.Stop(s.ctx)))
		w.wallOff = wallOff
		w.Backend, w.Gateway = w.process("backend", ""), w.process("gateway", "")
		world.Must(s.T, errors.Join(w.Backend.Start(s.ctx), w.Gateway.Start(s.ctx)))
	}
	var all []disorder
	for _, c := range []struct {
		what             string
		backend, gateway int // seconds
	}{
		{"the backend's an hour ahead", hour, 0},
		{"the backend's an hour behind", -hour, 0},
		{"the gateway's an hour ahead", 0, hour},
		{"the gateway's an hour behind", 0, -hour},
		{"the backend's an hour ahead, the gateway's behind", hour, -hour},
	} {
		all = append(all, disorder{
			what: "wall clocks: " + c.what, injected: "restarted so", times: 1,
			strike: func(s *trial) {
				restart(s, map[string]int{"backend": c.backend, "gateway": c.gateway})
				s.more(100)
				s.right()
			},
			heal: func(s *trial) { restart(s, nil) },
		})
	}
	w.group(t, partClocks, all...)
	w.drained(t)
}

// wallVar names the variable by which time.Now is off, in seconds.
const wallVar = "FLOODGATE_WALL_CLOCK_OFF"

// overlay writes a file for go build -overlay, with a time.Now whose wall clock is off and whose monotonic clock is right.
func overlay(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	world.Must(t, err)
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	world.Must(t, err)
	const head = "\nfunc Now() Time {"
	if bytes.Count(text, []byte(head)) != 1 {
		t.Fatalf("%s has no %q: this test replaces that function", source, head)
	}
	off := strings.Replace(string(text), head, "\nfunc rightNow() Time {", 1)
	off = strings.Replace(off, "import (", "import (\n\t\"syscall\"", 1) + `
var wallOff = func() (seconds int64) {
	s, _ := syscall.Getenv("` + wallVar + `")
	for _, c := range s {
		if c >= '0' && c <= '9' {
			seconds = 10*seconds + int64(c-'0')
		}
	}
	if len(s) > 0 && s[0] == '-' {
		seconds = -seconds
	}
	return seconds
}()

func Now() Time {
	t := rightNow()
	t.addSec(wallOff)
	return t
}
`
	dir := t.TempDir()
	changed, list := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	world.Must(t, os.WriteFile(changed, []byte(off), 0o600))
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{source: changed}})
	world.Must(t, err)
	world.Must(t, os.WriteFile(list, b, 0o600))
	return list
}

// right holds what was decided against the right time.
func (s *trial) right() {
	s.Helper()
	var expired, odd int
	world.Must(s.T, s.w.Books.DB.QueryRowContext(s.ctx, `SELECT COALESCE(SUM(status = 'expired'), 0), COALESCE(SUM(ABS(TIMESTAMPDIFF(SECOND, created_at, UTC_TIMESTAMP())) > 600
		OR ABS(TIMESTAMPDIFF(SECOND, created_at, pay_before) - ?) > 600), 0) FROM orders WHERE sale_id = ?`, int(payWithin.Seconds()), s.sale).Scan(&expired, &odd))
	if expired > 0 || odd > 0 {
		s.Errorf("%d orders have expired, %d bear a wrong time; want none", expired, odd)
	}
	now := time.Now()
	for _, c := range []struct {
		state        wire.SaleState
		starts, ends time.Time
		status       int // of an order
		code         string
	}{
		{wire.Upcoming, now.Add(30 * time.Minute), now.Add(2 * time.Hour), 403, "SALE_NOT_STARTED"},
		{wire.Open, now.Add(-30 * time.Minute), now.Add(30 * time.Minute), 202, ""},
	} {
		sale := s.w.create(s.T, "/sales", world.SaleBody("by the clock", 5, c.starts, c.ends, time.Minute))
		s.w.is(s.T, sale, c.state)
		_, tokens, err := s.w.mint(1)
		world.Must(s.T, err)
		s.until("an order is judged by the right time", func(ctx context.Context) error {
			return s.w.do(ctx, "POST", s.w.ordersURL(sale), tokens[0], "by-the-clock", `{"quantity":1}`).Is(c.status, c.code)
		})
	}
}
