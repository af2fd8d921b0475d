//go:build servers

package backend

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/durability"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/logging"
)

// What an accepted order survives is logged when it is new, and never again while it stays the same. A Redis that does not say
// how it is set is unknown, not taken for a good one.
func TestWhatSurvivesIsLoggedOnChange(t *testing.T) {
	admin := backendtest.Redis(t)
	c := admin.Client()
	m, err := c.Do(t.Context(), c.B().ConfigGet().Parameter("appendfsync").Build()).AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s := durabilityLog{log: logging.New(&out, logging.Text, false, slog.LevelInfo)}
	s.read(t.Context(), durability.Stores{Redis: c})
	if got := out.String(); strings.Count(got, "an accepted order survives") != 1 || !strings.Contains(got, "appendfsync="+m["appendfsync"]) {
		t.Errorf("got %s, want one line with appendfsync=%s", got, m["appendfsync"])
	}
	out.Reset()
	s.read(t.Context(), durability.Stores{Redis: c})
	if out.Len() > 0 {
		t.Errorf("nothing has changed, and it says %s", out.String())
	}
	s.read(t.Context(), durability.Stores{Redis: c, Confirm: true})
	if got := out.String(); !strings.Contains(got, "a failover of Redis to an older copy") || !strings.Contains(got, "accept.after=confirm") {
		t.Errorf("got %s, want what a confirm adds", got)
	}

	user := strings.TrimSuffix(admin.Client().Prefix(), ":")
	rules := []string{"on", ">secret", "~*", "&*", "+@all", "-config"}
	if err := c.Do(t.Context(), c.B().AclSetuser().Username(user).Rule(rules...).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	denied, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Username: user, Password: "secret", Prefix: admin.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	r := s.read(t.Context(), durability.Stores{Redis: denied.Client()})
	denied.Close()
	if err := c.Do(t.Context(), c.B().AclDeluser().Username(user).Build()).Error(); err != nil {
		t.Error(err)
	}
	if got := out.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "what is not known") || !strings.Contains(got, "appendfsync=unknown") || r.Evicts() != nil {
		t.Errorf("got %s, %v, want a warning that Redis does not say, and no refusal", got, r.Evicts())
	}
}
