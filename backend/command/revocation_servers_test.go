//go:build servers

package command

import (
	"strings"
	"testing"

	"floodgate.internal/shared/cli"
)

func TestRevocationCommands(t *testing.T) {
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	c.steps(t, [][2]string{
		{"revocation list -config f", "KIND"},
		{"revocation add -config f --uid bob --key k", "bob"},
		{"revocation add -config f --uid bob --key k", "bob"}, // the first answer
		{"revocation add -config f --uid ann --before=-1h", "uid"},
		{"revocation add -config f --uid ann --before 2020-01-01T00:00:00Z --json", `"uid": "ann"`},
		{"revocation add -config f --jti 6f1c2a", "jti"},
		{"revocation list -config f", "6f1c2a"},
		{"revocation list -config f --limit 2", "ann"},
		{"revocation list -config f --uid bob --json", `"bob"`},
		{"revocation list -config f --jti nobody --json", `"revocations": []`},
		{"revocation remove -config f --jti 6f1c2a", "6f1c2a"},
	})
	if got := must(t, c, strings.Fields("revocation list -config f")...); strings.Contains(got, "6f1c2a") || !strings.Contains(got, "bob") {
		t.Errorf("got %s", got)
	}
	for line, exit := range map[string]int{
		"revocation remove -config f --jti 6f1c2a":                1,
		"revocation remove -config f":                             2,
		"revocation add -config f":                                2,
		"revocation add -config f --uid bob --jti a":              2,
		"revocation add -config f --uid b/b":                      2,
		"revocation add -config f --jti a --before now":           2,
		"revocation add -config f --uid bob --before +1h":         2,
		"revocation add -config f --uid bob --before yesterday":   2,
		"revocation list -config f --limit 0":                     2,
		"revocation list -config f --limit 1001":                  2,
		"revocation add -config f --uid bob --before 2020-01-01T": 2,
	} {
		if out, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != exit {
			t.Errorf("%s: got %v, exit code %d, want %d\n%s", line, err, cli.ExitCode(err), exit, out)
		}
	}
}
