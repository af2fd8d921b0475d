//go:build servers

package backend

import (
	"os"
	"strings"
	"testing"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reserve"
)

// The start says what an accepted order survives, by what Redis itself says; or that Redis does not say.
func TestWhatSurvivesIsRedissOwnWord(t *testing.T) {
	admin := backendtest.Redis(t)
	c := admin.Client()
	settings := map[string]string{}
	for _, name := range []string{"appendonly", "appendfsync"} {
		m, err := c.Do(t.Context(), c.B().ConfigGet().Parameter(name).Build()).AsStrMap()
		if err != nil {
			t.Fatal(err)
		}
		settings[name] = m[name]
	}
	var out strings.Builder
	sayWhatSurvives(t.Context(), admin, AfterFsync, valid().logger(&out))
	want := "level=WARN"
	if settings["appendonly"] == "yes" && settings["appendfsync"] == "always" {
		want = "level=INFO msg=\"an accepted order survives the death of every process at once, a power cut"
	}
	if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "appendfsync="+settings["appendfsync"]) {
		t.Errorf("got %s with %v, want %s", out.String(), settings, want)
	}

	out.Reset()
	sayWhatSurvives(t.Context(), admin, AfterConfirm, valid().logger(&out))
	if got := out.String(); !strings.Contains(got, "level=INFO") || !strings.Contains(got, "a failover to an older copy") || !strings.Contains(got, "accept.after=confirm") {
		t.Errorf("got %s, want what a confirm adds", got)
	}

	user := strings.TrimSuffix(admin.Prefix(), ":")
	rules := []string{"on", ">secret", "~*", "&*", "+@all", "-config"}
	if err := c.Do(t.Context(), c.B().AclSetuser().Username(user).Rule(rules...).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	denied, err := reserve.Open(reserve.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Username: user, Password: "secret", Prefix: admin.Prefix()})
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	sayWhatSurvives(t.Context(), denied, AfterFsync, valid().logger(&out))
	denied.Close()
	if err := c.Do(t.Context(), c.B().AclDeluser().Username(user).Build()).Error(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "level=WARN") || !strings.Contains(out.String(), "redis does not say") || !strings.Contains(out.String(), "NOPERM") {
		t.Errorf("got %s, want a warning that redis does not say", out.String())
	}
}
