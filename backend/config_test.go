package backend

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"floodgate.internal/backend/event"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/operator"
)

func setSample(t *testing.T) {
	t.Setenv("FLOODGATE_ADMIN_TOKEN", "an-admin-token-of-some-length")
	t.Setenv("FLOODGATE_SIGNING_KEY", "a-signing-key-of-at-least-32-bytes")
	t.Setenv("REDIS_PASSWORD", "a-password")
	t.Setenv("MYSQL_DSN", "fg:secret@tcp(127.0.0.1:3306)/floodgate")
	t.Setenv("AMQP_URL", "amqp://fg:secret@127.0.0.1:5672/")
}

// The sample loads, and what it shows is what holds where a file says nothing.
func TestSampleLoadsAndShowsTheDefaults(t *testing.T) {
	setSample(t)
	got, err := LoadConfig("../configs/backend.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got.AdminToken.Reveal() != "an-admin-token-of-some-length" || got.TestPayments() {
		t.Errorf("got admin token %q, test payments %v", got.AdminToken.Reveal(), got.TestPayments())
	}
	want := DefaultConfig()
	want.AdminToken, want.SigningKeys, want.MySQL.DSN, want.Queue.URL = got.AdminToken, got.SigningKeys, got.MySQL.DSN, got.Queue.URL
	want.Payments.TestProvider = got.Payments.TestProvider
	want.Operators = []operator.Entry{}
	want.AdminHosts = []string{}
	want.Events.Endpoints = []event.Endpoint{}
	want.Redis.Password = got.Redis.Password
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the sample differs from the defaults (-default +sample):\n%s", diff)
	}
}

func valid() Config {
	c := DefaultConfig()
	c.AdminToken = "an-admin-token-of-some-length"
	c.SigningKeys = []SigningKey{{"gw-1", "a-signing-key-of-at-least-32-bytes"}}
	c.MySQL.DSN = "fg:hunter2@tcp(127.0.0.1:3306)/floodgate"
	c.Queue.URL = "amqp://fg:hunter2@127.0.0.1:5672/"
	return c
}

const someHash = conf.Secret("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")

// With an admin among the operators there need be no admin token.
func TestTheAdminTokenMayBeLeftOut(t *testing.T) {
	c := valid()
	c.AdminToken, c.Operators = "", []operator.Entry{{Name: "anna", Role: operator.Admin, TokenSHA256: someHash}}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// provider has secrets that begin like these.
func provider(name string, secrets ...string) PaymentProvider {
	p := PaymentProvider{Name: name}
	for _, s := range secrets {
		p.Secrets = append(p.Secrets, conf.Secret(s+strings.Repeat("-", 32)))
	}
	return p
}

func TestValidateNamesFieldValueAndBound(t *testing.T) {
	yes := true
	for want, change := range map[string]func(*Config){
		"orders.batch: 0 must be between 1 and 1000":                   func(c *Config) { c.Orders.Batch = 0 },
		"orders.batch: 1001 must be between 1 and 1000":                func(c *Config) { c.Orders.Batch = 1001 },
		"standby.max_line: 0 must be between 1 and 100000":             func(c *Config) { c.Standby.MaxLine = 0 },
		"standby.accept_within: 999ms must be between 1s and 24h0m0s":  func(c *Config) { c.Standby.AcceptWithin = 999 * time.Millisecond },
		"orders.batch_wait: -1ns must be between 0s and 1s":            func(c *Config) { c.Orders.BatchWait = -1 },
		"orders.queued_bound: 0s must be between 1s and 1h":            func(c *Config) { c.Orders.QueuedBound = 0 },
		"orders.max_queued: 0 must be":                                 func(c *Config) { c.Orders.MaxQueued = 0 },
		"orders.max_lag: 500ms must be between 1s and 1h":              func(c *Config) { c.Orders.MaxLag = 500 * time.Millisecond },
		"orders.max_ended: 0 must be between 1 and 1000":               func(c *Config) { c.Orders.MaxEnded = 0 },
		"sales.archive_after: 1ms must be between 1s and 87600h0m0s":   func(c *Config) { c.Sales.ArchiveAfter = time.Millisecond },
		"orders.max_outage: 1s must be between 5s and 1h":              func(c *Config) { c.Orders.MaxOutage = time.Second },
		`accept.after: "publish" must be fsync, confirm or replicas:N`: func(c *Config) { c.Accept.After = "publish" },
		`accept.after: "replicas:0" must be fsync, confirm or replicas:N, where N is the number of replicas of each primary, from 1 to 5`: func(c *Config) { c.Accept.After = "replicas:0" },
		`accept.after: "replicas:6" must be`:                                     func(c *Config) { c.Accept.After = "replicas:6" },
		`accept.after: "replicas:x" must be`:                                     func(c *Config) { c.Accept.After = "replicas:x" },
		`accept.after: "replicas:" must be`:                                      func(c *Config) { c.Accept.After = "replicas:" },
		`accept.after: "replicas:01" must be`:                                    func(c *Config) { c.Accept.After = "replicas:01" },
		"accept.after: confirm takes a broker that confirms":                     func(c *Config) { c.Accept.After, c.Queue.Driver = AfterConfirm, RedisStream },
		"accept.confirm_within: 5s must be between 100ms and 4s":                 func(c *Config) { c.Accept.ConfirmWithin = 5 * time.Second },
		"outbox.claim_idle: 0s must be":                                          func(c *Config) { c.Outbox.ClaimIdle = 0 },
		"outbox.claim_idle: 3s must be at least twice accept.confirm_within, 4s": func(c *Config) { c.Accept.After, c.Outbox.ClaimIdle = AfterConfirm, 3*time.Second },
		"locks.lease: 999ms must be between 1s and 1m0s":                         func(c *Config) { c.Locks.Lease = 999 * time.Millisecond },
		"locks.lease: 1m1s must be between 1s and 1m0s":                          func(c *Config) { c.Locks.Lease = 61 * time.Second },
		"mysql.max_open: 0 must be":                                              func(c *Config) { c.MySQL.MaxOpen = 0 },
		"timeline.keep: 1m0s must be between 1h":                                 func(c *Config) { c.Timeline.Keep = time.Minute },
		"timeline.max_rows_per_sale: 0 must be":                                  func(c *Config) { c.Timeline.MaxRowsPerSale = 0 },
		"queue.partitions: 0 must be":                                            func(c *Config) { c.Queue.Partitions = 0 },
		`queue.driver: "kafka" must be rabbitmq or redis-stream`:                 func(c *Config) { c.Queue.Driver = "kafka" },
		"queue.url: it must be like amqp://":                                     func(c *Config) { c.Queue.URL = "" },
		"queue.management_url: it must be like http://":                          func(c *Config) { c.Queue.Management = "127.0.0.1:15672" },
		"mysql.dsn: it is empty":                                                 func(c *Config) { c.MySQL.DSN = "" },
		"mysql.dsn: it names no database":                                        func(c *Config) { c.MySQL.DSN = "fg:hunter2@tcp(127.0.0.1:3306)/" },
		"mysql.dsn: it cannot be read":                                           func(c *Config) { c.MySQL.DSN = "fg:hunter2@nowhere" },
		"redis.addrs: it is empty":                                               func(c *Config) { c.Redis.Addrs = nil },
		`redis.addrs[0]: "localhost" must be host:port`:                          func(c *Config) { c.Redis.Addrs = []string{"localhost"} },
		`redis.prefix: "{x}" must hold no braces`:                                func(c *Config) { c.Redis.Prefix = "{x}" },
		"admin_token: it is empty":                                               func(c *Config) { c.AdminToken = "" },
		"admin_token: 5 bytes must be at least 16":                               func(c *Config) { c.AdminToken = "short" },
		"admin_session_key: 5 bytes must be at least 32":                         func(c *Config) { c.SessionKey = "short" },
		"admin_session_key: it is a development secret":                          func(c *Config) { c.SessionKey = "dev-session-key-of-at-least-32-bytes" },
		`operators[0].role: "root" must be viewer, operator or admin`:            func(c *Config) { c.Operators = []operator.Entry{{Name: "anna", Role: "root", TokenSHA256: someHash}} },
		"operators[0].token_sha256: it is the hash of another's token, see admin_token": func(c *Config) {
			c.Operators = []operator.Entry{{Name: "anna", Role: operator.Viewer, TokenSHA256: conf.Secret(hashOfToken(c.AdminToken.Reveal()))}}
		},
		"admin_token: it is empty; it must be a secret of at least 16 bytes, unless one of operators has the role admin": func(c *Config) {
			c.AdminToken, c.Operators = "", []operator.Entry{{Name: "anna", Role: operator.Operates, TokenSHA256: someHash}}
		},
		"signing_keys: there is none":                                    func(c *Config) { c.SigningKeys = nil },
		"signing_keys[0].secret: 5 bytes must be at least 32":            func(c *Config) { c.SigningKeys[0].Secret = "short" },
		`signing_keys[1].id: "gw-1" is there twice`:                      func(c *Config) { c.SigningKeys = append(c.SigningKeys, c.SigningKeys[0]) },
		`listen.internal: "9080" must be host:port`:                      func(c *Config) { c.Listen.Internal = "9080" },
		"listen.admin: \"127.0.0.1:9080\" must differ":                   func(c *Config) { c.Listen.Admin = c.Listen.Internal },
		"api.max_in_flight: 0 must be":                                   func(c *Config) { c.API.MaxInFlight = 0 },
		"api.max_waiting: 0 must be":                                     func(c *Config) { c.API.MaxWaiting = 0 },
		"api.max_connections: 0 must be":                                 func(c *Config) { c.API.MaxConnections = 0 },
		"api.max_deciding: -1 must be between 0 and":                     func(c *Config) { c.API.MaxDeciding = -1 },
		"api.max_line: -1 must be":                                       func(c *Config) { c.API.MaxLine = -1 },
		"api.max_line: 24 in line and 1000 being decided":                func(c *Config) { c.API.MaxLine, c.API.MaxDeciding = 24, 1000 },
		"must be less than api.max_in_flight: 100, so":                   func(c *Config) { c.API.MaxInFlight = 100 },
		"api.line_per_unit: 0 must be":                                   func(c *Config) { c.API.LinePerUnit = 0 },
		"api.line_wait: 0s must be between 1ms and 4s":                   func(c *Config) { c.API.LineWait = 0 },
		"drain: -1ns must be":                                            func(c *Config) { c.Drain = -1 },
		`log.level: "loud" must be debug, info, warn, error`:             func(c *Config) { c.Log.Level = "loud" },
		"payments.providers[0].name: \"A\" must be 1 to 32 of [a-z0-9-]": func(c *Config) { c.Payments.Providers = []PaymentProvider{provider("A", "x")} },
		"payments.providers[1].name: \"a\" is there twice":               func(c *Config) { c.Payments.Providers = []PaymentProvider{provider("a", "x"), provider("a", "y")} },
		"events.endpoints[0].url: it must begin with https://": func(c *Config) {
			c.Events.Endpoints = []event.Endpoint{{Name: "shop", URL: "http://shop.example/", Secret: "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="}}
		},
		"events.endpoints[0].secret: it must be whsec_": func(c *Config) {
			c.Events.Endpoints = []event.Endpoint{{Name: "shop", URL: "https://shop.example/", Secret: "hunter2"}}
		},
		"events.keep: 1m0s must be between":                              func(c *Config) { c.Events.Keep = time.Minute },
		"payments.providers[0].secrets: 0 of them, there must be 1 to 8": func(c *Config) { c.Payments.Providers = []PaymentProvider{{Name: "a"}} },
		"payments.providers[0].secrets[1]: 5 bytes must be at least 32": func(c *Config) {
			c.Payments.Providers = []PaymentProvider{provider("a", "x")}
			c.Payments.Providers[0].Secrets = append(c.Payments.Providers[0].Secrets, "short")
		},
		"payments.providers[1].secrets[0]: it is a secret of a, too":           func(c *Config) { c.Payments.Providers = []PaymentProvider{provider("a", "x"), provider("b", "x")} },
		"payments.providers[0].secrets[0]: it is a development secret":         func(c *Config) { c.Payments.Providers = []PaymentProvider{provider("a", "dev-x")} },
		"payments.providers: 33 of them, there must be at most 32":             func(c *Config) { c.Payments.Providers = make([]PaymentProvider, 33) },
		"payments.test_provider: true must be false":                           func(c *Config) { c.Payments.TestProvider = &yes },
		"admin_token: it is a development secret":                              func(c *Config) { c.AdminToken = "dev-admin" },
		"signing_keys[0].secret: it is a development secret":                   func(c *Config) { c.SigningKeys[0].Secret = "dev-signing-key-of-at-least-32-bytes" },
		`listen.internal: "0.0.0.0:9080" must be on loopback with development`: func(c *Config) { c.Development = true; c.Listen.Internal = "0.0.0.0:9080" },
		`listen.admin: ":9081" must be on loopback with development`:           func(c *Config) { c.Development = true; c.Listen.Admin = ":9081" },
	} {
		c := valid()
		change(&c)
		err := c.Validate()
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "debug, info, warn or error", "debug, info, warn, error"), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"as it is": func(*Config) {},
		"redis-stream without a url": func(c *Config) {
			c.Queue.Driver, c.Queue.URL = RedisStream, ""
		},
		"development secrets on loopback": func(c *Config) {
			c.Development, c.AdminToken, c.SigningKeys[0].Secret = true, "dev-admin", "dev-signing-key-of-at-least-32-bytes"
		},
		"two payment providers, one that rotates": func(c *Config) {
			c.Payments.Providers = []PaymentProvider{provider("acme", "a"), provider("acme-2", "b", "c")}
		},
		"a short line": func(c *Config) { c.API.MaxInFlight, c.API.MaxLine = 100, 49 },
		"no line":      func(c *Config) { c.API.MaxInFlight, c.API.MaxDeciding, c.API.MaxLine = 2, 1, 0 },
		"any ports":    func(c *Config) { c.Listen = Listen{Internal: "127.0.0.1:0", Admin: "127.0.0.1:0"} },
	} {
		c := valid()
		change(&c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
	development := valid()
	development.Development = true
	if !development.TestPayments() || valid().TestPayments() {
		t.Errorf("test payments: got %v in development, %v elsewhere", development.TestPayments(), valid().TestPayments())
	}
	no := false
	if development.Payments.TestProvider = &no; development.TestPayments() {
		t.Error("test payments are on though they are turned off")
	}
}

// Row D12: as many orders are decided at once as suits the machine, unless the file says how many.
func TestTheLineIsSizedToTheMachine(t *testing.T) {
	t.Attr("row", "D12")
	for _, c := range []struct{ deciding, inFlight, want int }{
		{7, 1024, 7}, {0, 1 << 20, 256 * runtime.GOMAXPROCS(0)}, {0, 100, 50}, {0, 1, 1},
	} {
		a := API{MaxDeciding: c.deciding, MaxInFlight: c.inFlight}
		if got := a.line().Slots; got != c.want {
			t.Errorf("%+v: got %d slots, want %d", a, got, c.want)
		}
	}
}

func TestAllThatIsWrongIsReportedAtOnce(t *testing.T) {
	c := valid()
	c.Orders.Batch, c.Log.Level = 0, "loud"
	err := c.Validate()
	for _, want := range []string{"orders.batch", "log.level"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to name %s", err, want)
		}
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backend.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsageErrors(t *testing.T) {
	setSample(t)
	sample := "../configs/backend.yaml"
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"--config"}},
		{[]string{"-config", "/nowhere/backend.yaml"}, []string{"-config", "/nowhere/backend.yaml", "no such file", "configs/backend.yaml"}},
		{[]string{"-config", sample, "-roles", "api,worker"}, []string{"-roles", `"worker"`, "api, relay, consumer, timer"}},
		{[]string{"-config", sample, "-roles", ""}, []string{"-roles", `""`, "api, relay, consumer, timer"}},
		{[]string{"-config", sample, "-roles", "api,,timer"}, []string{"-roles", `""`}},
		{[]string{"-config", sample, "-bogus"}, []string{"bogus"}},
		{[]string{"-config", writeConfig(t, "orders:\n  batsch: 3\n")}, []string{"line 2", "batsch"}},
		{[]string{"-config", writeConfig(t, "orders:\n  batch: 0\n")}, []string{"orders.batch: 0 must be between 1 and 1000", "mysql.dsn"}},
		{[]string{"-config", writeConfig(t, "admin_token: ${NOT_SET_ANYWHERE}\n")}, []string{"line 1", "NOT_SET_ANYWHERE"}},
		{[]string{"-config", writeConfig(t, "drain: soon\n")}, []string{"line 1"}},
		{[]string{"migrate"}, []string{"--config"}},
	} {
		err := Run(t.Context(), c.args, &strings.Builder{}, &strings.Builder{})
		if code := cli.ExitCode(err); code != 2 {
			t.Errorf("%q: got exit code %d (%v), want 2", c.args, code, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want it to say %q", c.args, err, want)
			}
		}
	}
}

func TestHelpNamesTheCommands(t *testing.T) {
	var out strings.Builder
	if err := Run(t.Context(), []string{"-help"}, &out, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"serve", "migrate", "sale", "audit", "rebuild", "queue"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want it to name %s", out.String(), want)
		}
	}
}

func TestParseRoles(t *testing.T) {
	for list, want := range map[string]Roles{
		"api,relay,consumer,timer": {true, true, true, true}, "timer": {Timer: true}, "relay, api": {API: true, Relay: true}, "api,api": {API: true},
	} {
		got, err := ParseRoles(list)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", list, got, err, want)
		}
	}
	if got := (Roles{API: true, Timer: true}).String(); got != "api,timer" {
		t.Errorf("got %q", got)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	c := valid()
	var _ conf.Secret = c.MySQL.DSN
	for _, secret := range []string{c.AdminToken.String(), c.SigningKeys[0].Secret.String(), c.MySQL.DSN.String(), c.Queue.URL.String()} {
		if secret != "********" {
			t.Errorf("got %q, want it masked", secret)
		}
	}
}
