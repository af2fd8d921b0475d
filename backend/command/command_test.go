package command

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"floodgate.internal/shared/cli"
)

// commands is the part of the backend's command line that is here.
type commands struct {
	Sale    Sale    `cmd:""`
	Coupon  Coupon  `cmd:""`
	Audit   Audit   `cmd:""`
	Rebuild Rebuild `cmd:""`
	Migrate Migrate `cmd:""`
	Queue   Queue   `cmd:""`

	DeadLetters DeadLetters `cmd:""`
	Orders      Orders      `cmd:""`
	Bans        Bans        `cmd:""`
	Eligible    Eligible    `cmd:""`
	Revocation  Revocation  `cmd:""`
	AuditLog    AuditLog    `cmd:""`
}

// run is a command line, and what it printed.
func run(ctx context.Context, c Config, args ...string) (stdout string, err error) {
	var g commands
	var out, errs bytes.Buffer
	kc, err := cli.Parse(&g, args, &out, &errs)
	if err != nil || kc == nil {
		return out.String(), err
	}
	kc.BindTo(ctx, (*context.Context)(nil))
	err = kc.Run(&Env{Stdout: &out, Stderr: &errs, Config: func(string) (Config, error) { return c, nil }})
	return out.String(), err
}

func TestWhen(t *testing.T) {
	asked := 0
	now := func() (time.Time, error) {
		asked++
		return time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC), nil
	}
	for typed, want := range map[string]string{
		"now":                       "2026-07-01T10:00:00.000Z",
		"+1h30m":                    "2026-07-01T11:30:00.000Z",
		"-5m":                       "2026-07-01T09:55:00.000Z",
		"+1.5s":                     "2026-07-01T10:00:01.500Z",
		"2026-07-01T10:00:00+02:00": "2026-07-01T10:00:00+02:00",
	} {
		if got, err := when("--at", typed, now); got != want || err != nil {
			t.Errorf("%s: got %s, %v; want %s", typed, got, err, want)
		}
	}
	if asked != 4 {
		t.Errorf("the time was asked for %d times, want 4: not for what is RFC 3339 already", asked)
	}
	for _, typed := range []string{"", "tomorrow", "+1 h", "1h", "+", "2026-07-01", "10:00"} {
		if got, err := when("--at", typed, now); cli.ExitCode(err) != 2 || !strings.Contains(err.Error(), "--at") {
			t.Errorf("%q: got %s, %v; want a usage error that names the flag", typed, got, err)
		}
	}
}

func TestWrongCommandLinesAreUsageErrors(t *testing.T) {
	for _, line := range []string{
		"sale", "sale create -config f", "sale create -config f --stock 1", "sale create -config f --stock x --ends-at +1h",
		"sale create -config f --stock 1 --ends-at +1h --kind service", "sale create -config f --stock 1 --ends-at soon --starts-at 2026-07-01T10:00:00Z",
		"sale create -config f --stock 1 --ends-at 2026-07-01T10:00:00Z --starts-at 2026-07-01T09:00:00Z --tranche 5",
		"sale create -config f --stock 1 --ends-at 2026-07-01T10:00:00Z --pay-within 1500ms",
		"coupon", "coupon create -config f --title x --total 1", "coupon create -config f --title x --valid-until +1h", "coupon create -config f --total 1 --valid-until +1h",
		"coupon create -config f --title x --total x --valid-until +1h", "coupon create -config f --title x --total 1 --valid-until +1h --guard luck",
		"coupon create -config f --title x --total 1 --valid-until soon --valid-from 2026-07-01T10:00:00Z", "coupon publish -config f", "coupon get -config f x", "coupon list",
		"sale get -config f", "sale get -config f x", "sale restock -config f 7", "sale list", "audit -config f",
		"audit -config f --sale 7 --all", "audit -config f --sale 7 --sku 3", "rebuild -config f", "rebuild -config f --sale 7 --sku 3", "migrate", "sale list -config f --admin nowhere", "sale list -config f --admin 127.0.0.1:0",
		"sale archive -config f", "sale archive -config f x", "sale concentration -config f", "orders", "orders cancel -config f", "orders export -config f",
		"orders search -config f --limit 0", "orders search -config f --sale x", "orders export -config f 7 --to /nowhere/at/all.csv",
		"bans add -config f", "bans add -config f a/b", "bans remove -config f --file /nowhere", "eligible set -config f", "eligible set -config f 7",
		"eligible add -config f 7 ä", "eligible lift -config f", "audit-log -config f --limit 0", "audit-log",
	} {
		if _, err := run(t.Context(), Config{Admin: "127.0.0.1:1"}, strings.Fields(line)...); cli.ExitCode(err) != 2 {
			t.Errorf("%s: got %v, want a usage error", line, err)
		}
	}
}

func TestNobodyThereIsSaid(t *testing.T) {
	_, err := run(t.Context(), Config{Admin: "127.0.0.1:1", Token: "dev-admin"}, "sale", "list", "-config", "f")
	if cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), "http://127.0.0.1:1") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run(ctx, Config{Admin: ":1", Token: "dev-admin"}, "queue", "-config", "f"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestATokenIsNeeded(t *testing.T) {
	_, err := run(t.Context(), Config{Admin: "127.0.0.1:1"}, "sale", "list", "-config", "f")
	if cli.ExitCode(err) != 2 || !strings.Contains(err.Error(), "FLOODGATE_OPERATOR_TOKEN") {
		t.Errorf("got %v", err)
	}
}

func TestHelpHasExamples(t *testing.T) {
	for _, line := range []string{"sale create", "sale restock", "coupon create", "audit", "rebuild", "migrate", "queue", "sale archive", "sale concentration", "orders search", "orders cancel", "orders export",
		"bans add", "eligible set", "audit-log"} {
		out, err := run(t.Context(), Config{}, append(strings.Fields(line), "--help")...)
		if err != nil || !strings.Contains(out, "Example") || !strings.Contains(out, "backend "+line) {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Hour: "1h", 90 * time.Minute: "1h30m", 45 * time.Second: "45s", 10 * time.Minute: "10m", 0: "0s", 100 * time.Second: "1m40s"} {
		if got := span(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}
