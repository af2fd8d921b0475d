//go:build servers

package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/durability"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/ports"
)

func redisOf(t *testing.T, v *stack.Servers) rueidis.Client {
	t.Helper()
	if err := v.Redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := world.OpenRedis(v.RedisAddr())
	world.Must(t, err)
	t.Cleanup(c.Close)
	return c
}

// Each setting is read from the servers themselves: what is said changes with it, and changes back.
func TestEachSettingChangesWhatIsSaid(t *testing.T) {
	t.Parallel()
	v := world.OpenServers(t, filepath.Join(t.TempDir(), "servers"))
	if err := v.MySQL.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	redis := redisOf(t, v)
	db, err := sql.Open("mysql", v.MySQLDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	read := func(confirm bool) durability.Report {
		return durability.Read(t.Context(), durability.Stores{Redis: redis, DB: db, Confirm: confirm})
	}
	const whole = "the death of every process at once, a power cut"
	good := read(false)
	if good.Weak || !strings.HasPrefix(good.Survives, whole) || len(good.Settings) != 9 {
		t.Fatalf("as the servers are started: got %+v", good)
	}
	config := func(name, value string) func() error {
		return func() error {
			return redis.Do(t.Context(), redis.B().ConfigSet().ParameterValue().ParameterValue(name, value).Build()).Error()
		}
	}
	global := func(name, value string) func() error {
		return func() error {
			_, err := db.ExecContext(t.Context(), "SET GLOBAL "+name+" = "+value)
			return err
		}
	}
	for _, c := range []struct {
		setting        string // and its value, as the advice begins
		set, reset     func() error
		fsync, confirm string // how what is said begins then
	}{
		{"appendonly no", config("appendonly", "no"), config("appendonly", "yes"), "the death of any process but Redis", whole},
		{"appendfsync everysec", config("appendfsync", "everysec"), config("appendfsync", "always"), "the death of any process, a wiped broker; not a power cut of redis", whole},
		{"appendfsync no", config("appendfsync", "no"), config("appendfsync", "always"), "the death of any process, a wiped broker; not a power cut of redis", whole},
		{"no-appendfsync-on-rewrite yes", config("no-appendfsync-on-rewrite", "yes"), config("no-appendfsync-on-rewrite", "no"), "the death of any process, a wiped broker; not a power cut of redis", whole},
		{"maxmemory-policy allkeys-lru", config("maxmemory-policy", "allkeys-lru"), config("maxmemory-policy", "noeviction"), "nothing for certain", "nothing for certain"},
		{"innodb_flush_log_at_trx_commit 2", global("innodb_flush_log_at_trx_commit", "2"), global("innodb_flush_log_at_trx_commit", "1"),
			"the death of any process, a wiped broker; not a power cut of mysql", "the death of any process, a wiped broker; not a power cut of mysql"},
		{"innodb_flush_log_at_trx_commit 0", global("innodb_flush_log_at_trx_commit", "0"), global("innodb_flush_log_at_trx_commit", "1"),
			"the death of any process, a wiped broker; not a power cut of mysql", "the death of any process, a wiped broker; not a power cut of mysql"},
	} {
		if err := c.set(); err != nil {
			t.Fatalf("%s: %v", c.setting, err)
		}
		for confirm, want := range map[bool]string{false: c.fsync, true: c.confirm} {
			r := read(confirm)
			weak := want != whole
			if !strings.HasPrefix(r.Survives, want) || r.Weak != weak || strings.Contains(r.Advice(), c.setting+": ") != weak {
				t.Errorf("%s, confirm %t: got %s; %s; want %s", c.setting, confirm, r.Survives, r.Advice(), want)
			}
			if evicts := strings.HasPrefix(want, "nothing"); (r.Evicts() != nil) != evicts {
				t.Errorf("%s: got %v", c.setting, r.Evicts())
			}
		}
		if err := c.reset(); err != nil {
			t.Fatal(err)
		}
	}
	if r := read(false); !r.Same(good) {
		t.Errorf("with every setting back: got %+v, want %+v", r, good)
	}

	// sync_binlog matters with a binary log only; the servers have none.
	if err := global("sync_binlog", "0")(); err != nil {
		t.Fatal(err)
	}
	if r := read(false); r.Weak || r.Same(good) && r.Settings[7].Value != "0" {
		t.Errorf("sync_binlog 0 without a binary log: got %+v", r)
	}
	v.MySQL.With(nil, []string{"--log-bin=binlog", "--sync-binlog=0"}, nil)
	if err := v.MySQL.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := read(false); !strings.Contains(r.Survives, "not a power cut of mysql") || !strings.Contains(r.Advice(), "sync_binlog 0: ") {
		t.Errorf("sync_binlog 0 with a binary log: got %+v", r)
	}
	if err := global("sync_binlog", "1")(); err != nil {
		t.Fatal(err)
	}

	// A replica: asked of the primary, and never itself.
	other := world.OpenServers(t, filepath.Join(t.TempDir(), "servers"))
	replica := redisOf(t, other)
	host, port, _ := strings.Cut(v.RedisAddr(), ":")
	if err := replica.Do(t.Context(), replica.B().Arbitrary("REPLICAOF", host, port).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	world.Until(t, t.Context(), "the primary has a replica", patience, func(context.Context) error {
		if r := read(false); !strings.Contains(r.Survives, "not a failover of Redis") || !strings.Contains(r.Advice(), "replicas 1: ") {
			return fmt.Errorf("got %+v", r)
		}
		return nil
	})
	if r := read(true); r.Weak {
		t.Errorf("a replica, with confirm: got %+v", r)
	}
	replicated := func(n int) durability.Report {
		return durability.Read(t.Context(), durability.Stores{Redis: redis, DB: db, Replicas: n})
	}
	for n, want := range map[int]string{1: "set min-replicas-to-write 1", 2: "connect as many"} {
		if r := replicated(n); !r.Weak || !strings.Contains(r.Advice(), want) {
			t.Errorf("a replica, with replicas:%d: got %+v; want %s", n, r, want)
		}
	}
	if err := config("min-replicas-to-write", "1")(); err != nil {
		t.Fatal(err)
	}
	if r := replicated(1); r.Weak || !strings.Contains(r.Survives, "when its replica takes over") {
		t.Errorf("a replica, with replicas:1 and min-replicas-to-write 1: got %+v", r)
	}
	if r := durability.Read(t.Context(), durability.Stores{Redis: replica}); len(r.Settings) != 0 {
		t.Errorf("a replica was asked: got %+v", r)
	}

	// What does not answer is not known.
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if r := read(true); !strings.HasPrefix(r.Survives, "what is not known") || !strings.Contains(r.Advice(), "innodb_flush_log_at_trx_commit unknown: it cannot be read") {
		t.Errorf("a MySQL that does not answer: got %+v", r)
	}
}

// Outside development a backend does not start on a Redis that may drop reservations, and says which setting it is.
func TestEvictionIsRefused(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	redis := redisOf(t, world.OpenServers(t, filepath.Join(t.TempDir(), "servers")))
	var addr string
	for addr = range redis.Nodes() {
	}
	if err := redis.Do(t.Context(), redis.B().ConfigSet().ParameterValue().ParameterValue("maxmemory-policy", "volatile-lru").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	port, err := ports.Free(2)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backend.yaml")
	config := fmt.Sprintf(`listen: {internal: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
admin_token: %s
signing_keys: [{id: gw-1, secret: %s}]
redis: {addrs: ["%s"]}
mysql: {dsn: "%s"}
queue: {driver: rabbitmq, url: "%s"}
`, port[0], port[1], strings.Repeat("a", 32), strings.Repeat("s", 32), addr, w.servers.MySQLDSN(), w.servers.AMQPURL())
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(w.ctx, filepath.Join(w.Bin, "backend"), "-config", file)
	cmd.Stderr = &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(stderr.String(), "redis "+addr+": maxmemory-policy volatile-lru") || !strings.Contains(stderr.String(), "set maxmemory-policy noeviction") {
		t.Errorf("got %v, want exit code 1 and the setting by name: %s", err, stderr.String())
	}
}

// /-/ready tells it to whoever asks, while everything works.
func TestReadySaysWhatSurvives(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	w.until("it is said, and the broker is asked, too", patience, func() (bool, string) {
		a := w.do(w.ctx, world.Call{Method: "GET", URL: w.Ports.AdminURL() + "/-/ready"})
		text := string(a.Body)
		return a.Status == 200 && strings.Contains(text, `"survives":"the death of every process at once, a power cut`) &&
			strings.Contains(text, `"setting":"queue type","value":"quorum","weak":false`) && strings.Contains(text, `"setting":"appendfsync","value":"always","weak":false`), text
	})
}
