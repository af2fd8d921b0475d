package backend

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/admission"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/command"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/payment"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/hosts"
	"floodgate.internal/shared/logging"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/wire"
)

// Config is the backend's configuration file; configs/backend.yaml explains each value.
type Config struct {
	Development bool             `yaml:"development"`
	Listen      Listen           `yaml:"listen"`
	AdminToken  conf.Secret      `yaml:"admin_token"`
	Operators   []operator.Entry `yaml:"operators"`         // a change is taken over while the process runs
	SessionKey  conf.Secret      `yaml:"admin_session_key"` // "": one of the process's own
	AdminHosts  []string         `yaml:"admin_hosts"`
	SigningKeys []SigningKey     `yaml:"signing_keys"`
	Redis       Redis            `yaml:"redis"`
	Locks       Locks            `yaml:"locks"`
	MySQL       MySQL            `yaml:"mysql"`
	Queue       Queue            `yaml:"queue"`
	Accept      Accept           `yaml:"accept"`
	Orders      Orders           `yaml:"orders"`
	Sales       Sales            `yaml:"sales"`
	Outbox      Outbox           `yaml:"outbox"`
	Carts       Carts            `yaml:"carts"`
	Standby     Standby          `yaml:"standby"`
	API         API              `yaml:"api"`
	Payments    Payments         `yaml:"payments"`
	Events      Events           `yaml:"events"`
	Timeline    Timeline         `yaml:"timeline"`
	Revocations Revocations      `yaml:"revocations"`
	Drain       time.Duration    `yaml:"drain"`
	Log         Log              `yaml:"log"`

	Tracing tracing.Config `yaml:"tracing"`
}

// Listen is where the process listens.
type Listen struct {
	Internal    string      `yaml:"internal"`
	InternalTLS InternalTLS `yaml:"internal_tls"`
	Admin       string      `yaml:"admin"`
}

// SigningKey is one secret that a gateway may sign with.
type SigningKey struct {
	ID     string      `yaml:"id"`
	Secret conf.Secret `yaml:"secret"`
}

// Locks says how the processes' locks in Redis are held.
type Locks struct {
	Lease time.Duration `yaml:"lease"`
}

// MySQL says where MySQL is.
type MySQL struct {
	DSN     conf.Secret `yaml:"dsn"`
	MaxOpen int         `yaml:"max_open"`
}

// The queue drivers.
const (
	RabbitMQ    = "rabbitmq"
	RedisStream = "redis-stream"
)

// Queue says what carries orders from the outbox to the consumers.
type Queue struct {
	Driver     string      `yaml:"driver" enum:"rabbitmq,redis-stream"`
	URL        conf.Secret `yaml:"url"`
	Management conf.Secret `yaml:"management_url"`
	Partitions int         `yaml:"partitions"`
}

// What an accepted order has waited for.
const (
	AfterFsync   = "fsync"
	AfterConfirm = "confirm"
	// AfterReplicas and a number: so many replicas of Redis have acknowledged the order.
	AfterReplicas = "replicas:"
)

// maxReplicas bounds the number after AfterReplicas.
const maxReplicas = 5

// Accept says when an order is accepted.
type Accept struct {
	After         string        `yaml:"after" enum:"fsync,confirm,replicas:1,replicas:2,replicas:3,replicas:4,replicas:5"`
	ConfirmWithin time.Duration `yaml:"confirm_within"`
}

// replicas is how many replicas of Redis must have acknowledged an order; 0: none must, or it cannot be read.
func (a Accept) replicas() int {
	number, ok := strings.CutPrefix(a.After, AfterReplicas)
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 1 || n > maxReplicas || number != strconv.Itoa(n) {
		return 0
	}
	return n
}

// Orders says how orders are settled.
type Orders struct {
	Batch       int           `yaml:"batch"`
	BatchWait   time.Duration `yaml:"batch_wait"`
	QueuedBound time.Duration `yaml:"queued_bound"`
	MaxQueued   int64         `yaml:"max_queued"`
	MaxLag      time.Duration `yaml:"max_lag"`
	MaxOutage   time.Duration `yaml:"max_outage"`
	MaxEnded    int           `yaml:"max_ended"`
}

// Sales says what becomes of sales that are over.
type Sales struct {
	ArchiveAfter time.Duration `yaml:"archive_after"` // 0: archiveAfter
}

// archiveAfter is when the timer archives a sale that is over, unless sales.archive_after says when.
const archiveAfter = 24 * time.Hour

func (s Sales) archiveAfter() time.Duration { return cmp.Or(s.ArchiveAfter, archiveAfter) }

// Outbox says how the outbox is read.
type Outbox struct {
	ClaimIdle time.Duration `yaml:"claim_idle"`
}

// Carts says how carts are decided.
type Carts struct {
	PayWithin      time.Duration `yaml:"pay_within"`
	AbandonedAfter time.Duration `yaml:"abandoned_after"`
	MaxInFlight    int           `yaml:"max_in_flight"`
}

// Standby says how sold-out sales' standby lines work.
type Standby struct {
	MaxLine      int           `yaml:"max_line"`
	AcceptWithin time.Duration `yaml:"accept_within"`
}

// API bounds the internal listener.
type API struct {
	MaxInFlight    int           `yaml:"max_in_flight"`
	MaxWaiting     int           `yaml:"max_waiting"`
	MaxConnections int           `yaml:"max_connections"`
	MaxDeciding    int           `yaml:"max_deciding"` // 0: decidingPerCPU for each processor, at most half of MaxInFlight
	MaxLine        int           `yaml:"max_line"`
	LinePerUnit    int           `yaml:"line_per_unit"`
	LineWait       time.Duration `yaml:"line_wait"`
}

// decidingPerCPU is how many orders are decided at once for each processor, unless api.max_deciding says how many: fewer, and
// Redis syncs its file for less of them at a time.
const decidingPerCPU = 256

func (a API) line() admission.Limits {
	l := admission.Limits{Slots: a.MaxDeciding, Waiting: a.MaxLine, PerUnit: a.LinePerUnit, Wait: a.LineWait}
	if l.Slots == 0 {
		l.Slots = max(1, min(decidingPerCPU*runtime.GOMAXPROCS(0), a.MaxInFlight/2))
	}
	return l
}

// Payments says who takes payments.
type Payments struct {
	TestProvider *bool             `yaml:"test_provider"` // nil: as development
	Providers    []PaymentProvider `yaml:"providers"`
}

// PaymentProvider is one that may send webhooks.
type PaymentProvider struct {
	Name    string        `yaml:"name"`
	Secrets []conf.Secret `yaml:"secrets"`
}

// Events says whom the shop's own systems are told by what happens.
type Events struct {
	Endpoints []event.Endpoint `yaml:"endpoints"` // a change is taken over while the process runs
	Keep      time.Duration    `yaml:"keep"`
}

// Timeline says how much is kept of what became of users' presses.
type Timeline struct {
	Keep           time.Duration `yaml:"keep"`
	MaxRowsPerSale int64         `yaml:"max_rows_per_sale"`
}

// Revocations says for how long a revocation of tokens is kept.
type Revocations struct {
	Keep time.Duration `yaml:"keep"`
}

// Log says what is logged.
type Log struct {
	Level  string `yaml:"level" enum:"debug,info,warn,error"`
	Format string `yaml:"format" enum:",json,text"`
}

// DefaultConfig is what holds where the file says nothing.
func DefaultConfig() Config {
	return Config{
		Listen: Listen{Internal: "127.0.0.1:9080", Admin: "127.0.0.1:9081"},
		Redis:  Redis{Addrs: []string{"127.0.0.1:6379"}, Prefix: "fg:"},
		Locks:  Locks{Lease: 3 * time.Second},
		MySQL:  MySQL{MaxOpen: 16},
		Queue:  Queue{Driver: RabbitMQ, Partitions: 4},
		Accept: Accept{After: AfterFsync, ConfirmWithin: 2 * time.Second},
		Orders: Orders{Batch: 200, BatchWait: 2 * time.Millisecond, QueuedBound: 30 * time.Second, MaxQueued: 100_000,
			MaxLag: 10 * time.Second, MaxOutage: 10 * time.Second, MaxEnded: 20},
		Sales:    Sales{ArchiveAfter: archiveAfter},
		Outbox:   Outbox{ClaimIdle: 10 * time.Second},
		Carts:    Carts{PayWithin: 15 * time.Minute, AbandonedAfter: 30 * time.Second, MaxInFlight: 64},
		Standby:  Standby{MaxLine: 1000, AcceptWithin: 2 * time.Minute},
		API:      API{MaxInFlight: 1024, MaxWaiting: 65536, MaxConnections: 65536, MaxLine: 256, LinePerUnit: 4, LineWait: time.Second},
		Events:   Events{Keep: 7 * 24 * time.Hour},
		Timeline: Timeline{Keep: 7 * 24 * time.Hour, MaxRowsPerSale: 200_000},
		// Longer than the gateways' default of identity.max_lifetime, with the longest leeway.
		Revocations: Revocations{Keep: 25 * time.Hour},
		Drain:       20 * time.Second,
		Log:         Log{Level: "info"},
	}
}

// LoadConfig reads and validates the file. Its errors are usage errors (exit code 2).
func LoadConfig(path string) (Config, error) {
	c := DefaultConfig()
	file, err := conf.Load(path, &c)
	if errors.Is(err, fs.ErrNotExist) {
		return c, cli.Usage("-config %s: there is no such file; configs/backend.yaml is one to begin with", path)
	} else if err != nil {
		return c, cli.Usage("-config: %w", err) // it names the file
	}
	if err := file.Explain(c.Validate()); err != nil {
		return c, cli.Usage("-config: %w", err)
	}
	return c, nil
}

// TestPayments reports whether the built-in test provider takes payments.
func (c Config) TestPayments() bool {
	if c.Payments.TestProvider != nil {
		return *c.Payments.TestProvider
	}
	return c.Development
}

// providers are the payment providers that may send webhooks.
func (p Payments) providers() []payment.Provider {
	list := make([]payment.Provider, len(p.Providers))
	for i, c := range p.Providers {
		list[i].Name = c.Name
		for _, s := range c.Secrets {
			list[i].Secrets = append(list[i].Secrets, s.Reveal())
		}
	}
	return list
}

// operate is what the operator's commands need. They say what they did themselves: their log tells of trouble alone, or of all
// with log.level debug.
func (c Config) operate(stderr io.Writer) command.Config {
	if c.Log.Level == "info" {
		c.Log.Level = "warn"
	}
	c.Log.Format = logging.Text
	o := command.Config{Admin: c.Listen.Admin, Internal: c.Listen.Internal, System: c.system(), Token: c.AdminToken.Reveal(), MySQL: c.MySQL.DSN.Reveal(), Redis: c.Redis.config(),
		QueuedBound: c.Orders.QueuedBound, Abandoned: c.Carts.AbandonedAfter, Log: c.logger(stderr)}
	if c.Queue.Driver == RabbitMQ {
		b := c.Queue.config()
		o.Broker = &b
	}
	return o
}

// config is where RabbitMQ is and how it is used. Log and Register are for the caller to add.
func (q Queue) config() broker.Config {
	return broker.Config{URL: q.URL.Reveal(), ManagementURL: q.Management.Reveal(), Partitions: q.Partitions}
}

// logger writes what is at least as important as log.level. The configuration is valid.
func (c Config) logger(w io.Writer) *slog.Logger {
	level, err := c.Log.level()
	if err != nil {
		panic("BUG: a configuration that was not validated: " + err.Error())
	}
	return logging.New(w, c.Log.Format, c.Development, level)
}

// Keys are the signing keys.
func (c Config) Keys() []signing.Key {
	keys := make([]signing.Key, len(c.SigningKeys))
	for i, k := range c.SigningKeys {
		keys[i] = signing.Key{ID: k.ID, Secret: k.Secret.Reveal()}
	}
	return keys
}

// Validate returns everything that is wrong, each with its field, its value and its bound.
func (c Config) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, conf.Wrong(format, args...)) }
	c.validateListeners(wrong)
	if _, err := c.Listen.InternalTLS.read(); err != nil {
		errs = append(errs, err)
	}
	c.validateOperators(wrong)
	errs = append(errs, operator.Check(c.Operators, "admin_token", c.AdminToken)...)
	c.validateKeys(wrong)
	errs = append(errs, c.Redis.validate()...)
	c.validateMySQL(wrong)
	c.validateQueue(wrong)
	c.validateAccept(wrong)
	c.Payments.validate(wrong)
	errs = append(errs, event.Check(c.Events.Endpoints, c.Development)...)
	c.validateBounds(wrong)
	if _, err := c.Log.level(); err != nil {
		errs = append(errs, err)
	}
	if !logging.Valid(c.Log.Format) {
		wrong("log.format: %q must be json or text, or be left out", c.Log.Format)
	}
	errs = append(errs, c.Tracing.Check()...)
	c.validateDevelopment(wrong)
	return errors.Join(errs...)
}

func (c Config) validateListeners(wrong func(string, ...any)) {
	for _, l := range c.listeners() {
		if _, _, err := net.SplitHostPort(l.addr); err != nil {
			wrong("%s: %q must be host:port, like 127.0.0.1:9080", l.name, l.addr)
		}
	}
	if c.Listen.Internal == c.Listen.Admin && !strings.HasSuffix(c.Listen.Admin, ":0") {
		wrong("listen.admin: %q must differ from listen.internal", c.Listen.Admin)
	}
}

func (c Config) validateOperators(wrong func(string, ...any)) {
	n := len(c.AdminToken.Reveal())
	administers := slices.ContainsFunc(c.Operators, func(e operator.Entry) bool { return e.Role == operator.Admin })
	switch {
	case n == 0 && !administers:
		wrong("admin_token: it is empty; it must be a secret of at least 16 bytes, unless one of operators has the role admin")
	case n > 0 && n < 16 && !c.AdminToken.Development():
		wrong("admin_token: %d bytes must be at least 16", n)
	}
	if n := len(c.SessionKey.Reveal()); n > 0 && n < signing.MinSecret {
		wrong("admin_session_key: %d bytes must be at least %d; left out, each process makes one of its own", n, signing.MinSecret)
	}
	if n := len(c.AdminHosts); n > maxHosts {
		wrong("admin_hosts: %d of them, there must be at most %d", n, maxHosts)
	}
	for i, h := range c.AdminHosts {
		if !hosts.Valid(h) {
			wrong("admin_hosts[%d]: %q must be a name or an address, with a port or without", i, h)
		}
	}
}

func (c Config) validateKeys(wrong func(string, ...any)) {
	if len(c.SigningKeys) == 0 {
		wrong("signing_keys: there is none; gateways sign with one of them")
	}
	seen := map[string]bool{}
	for i, k := range c.SigningKeys {
		name := fmt.Sprintf("signing_keys[%d]", i)
		if k.ID == "" || len(k.ID) > 64 {
			wrong("%s.id: %q must be 1 to 64 bytes", name, k.ID)
		} else if seen[k.ID] {
			wrong("%s.id: %q is there twice", name, k.ID)
		}
		seen[k.ID] = true
		if n := len(k.Secret.Reveal()); n < signing.MinSecret {
			wrong("%s.secret: %d bytes must be at least %d", name, n, signing.MinSecret)
		}
	}
}

// validateBounds checks what is a number or a time, and those that bound each other.
func (c Config) validateBounds(wrong func(string, ...any)) {
	between := func(name string, v, low, high int64) {
		if v < low || v > high {
			wrong("%s: %d must be between %d and %d", name, v, low, high)
		}
	}
	span := func(name string, v time.Duration, low, high time.Duration) {
		if v < low || v > high {
			wrong("%s: %v must be between %v and %v", name, v, low, high)
		}
	}
	span("locks.lease", c.Locks.Lease, time.Second, time.Minute)
	between("mysql.max_open", int64(c.MySQL.MaxOpen), 1, 1000)
	between("queue.partitions", int64(c.Queue.Partitions), 1, 256)
	between("orders.batch", int64(c.Orders.Batch), 1, 1000)
	span("orders.batch_wait", c.Orders.BatchWait, 0, time.Second)
	span("orders.queued_bound", c.Orders.QueuedBound, time.Second, time.Hour)
	between("orders.max_queued", c.Orders.MaxQueued, 1, 100_000_000)
	span("orders.max_lag", c.Orders.MaxLag, time.Second, time.Hour)
	span("orders.max_outage", c.Orders.MaxOutage, 5*time.Second, time.Hour) // a look at MySQL that fails may take 3.5 s
	between("orders.max_ended", int64(c.Orders.MaxEnded), 1, 1000)
	if c.Sales.ArchiveAfter != 0 {
		span("sales.archive_after", c.Sales.ArchiveAfter, time.Second, 10*365*24*time.Hour)
	}
	span("accept.confirm_within", c.Accept.ConfirmWithin, 100*time.Millisecond, 4*time.Second) // a request has 5 s in all
	span("outbox.claim_idle", c.Outbox.ClaimIdle, time.Second, time.Hour)
	if least := 2 * c.Accept.ConfirmWithin; c.Accept.After == AfterConfirm && c.Outbox.ClaimIdle < least {
		// Else relays take over from each other, again and again, what one of them is about to publish.
		wrong("outbox.claim_idle: %v must be at least twice accept.confirm_within, %v, with accept.after: confirm", c.Outbox.ClaimIdle, conf.Of("accept.confirm_within", least))
	}
	span("carts.pay_within", c.Carts.PayWithin, time.Second, 30*24*time.Hour)
	span("carts.abandoned_after", c.Carts.AbandonedAfter, time.Second, time.Hour)
	between("carts.max_in_flight", int64(c.Carts.MaxInFlight), 1, 100_000)
	between("standby.max_line", int64(c.Standby.MaxLine), 1, 100_000)
	span("standby.accept_within", c.Standby.AcceptWithin, time.Second, 24*time.Hour)
	between("api.max_in_flight", int64(c.API.MaxInFlight), 1, 1_000_000)
	between("api.max_waiting", int64(c.API.MaxWaiting), 1, 1_000_000)
	between("api.max_connections", int64(c.API.MaxConnections), 1, 1_000_000)
	between("api.max_deciding", int64(c.API.MaxDeciding), 0, 1_000_000)
	between("api.max_line", int64(c.API.MaxLine), 0, 1_000_000)
	if n := c.API.line().Slots; n+c.API.MaxLine >= c.API.MaxInFlight {
		wrong("api.max_line: %d in line and %v being decided (api.max_deciding) must be less than api.max_in_flight: %v, so that orders leave room for other requests",
			c.API.MaxLine, conf.Of("api.max_deciding", n), conf.Of("api.max_in_flight", c.API.MaxInFlight))
	}
	between("api.line_per_unit", int64(c.API.LinePerUnit), 1, 1_000_000)
	span("api.line_wait", c.API.LineWait, time.Millisecond, 4*time.Second) // a request has 5 s in all
	span("revocations.keep", c.Revocations.Keep, time.Minute, 3700*24*time.Hour)
	span("events.keep", c.Events.Keep, time.Hour, 365*24*time.Hour)
	span("timeline.keep", c.Timeline.Keep, time.Hour, 365*24*time.Hour)
	between("timeline.max_rows_per_sale", c.Timeline.MaxRowsPerSale, 1, 100_000_000)
	span("drain", c.Drain, time.Second, 10*time.Minute)
}

func (c Config) validateMySQL(wrong func(string, ...any)) {
	d, err := mysql.ParseDSN(c.MySQL.DSN.Reveal())
	switch {
	case c.MySQL.DSN == "":
		wrong("mysql.dsn: it is empty; the form is user:password@tcp(host:3306)/database")
	case err != nil: // the driver's message may quote the password
		wrong("mysql.dsn: it cannot be read; the form is user:password@tcp(host:3306)/database")
	case d.DBName == "":
		wrong("mysql.dsn: it names no database; the form is user:password@tcp(host:3306)/database")
	}
}

func (c Config) validateQueue(wrong func(string, ...any)) {
	switch c.Queue.Driver {
	case RedisStream:
	case RabbitMQ:
		if u := c.Queue.Management.Reveal(); u != "" && !strings.HasPrefix(u, "http://") && !strings.HasPrefix(u, "https://") {
			wrong("queue.management_url: it must be like http://user:password@host:15672, or be left out")
		}
		if _, err := amqp091.ParseURI(c.Queue.URL.Reveal()); err != nil {
			wrong("queue.url: it must be like amqp://user:password@host:5672/vhost (only queue.driver: %s goes without)", RedisStream)
		}
	default:
		wrong("queue.driver: %q must be %s or %s", c.Queue.Driver, RabbitMQ, RedisStream)
	}
}

func (c Config) validateAccept(wrong func(string, ...any)) {
	switch c.Accept.After {
	case AfterFsync:
	case AfterConfirm:
		if c.Queue.Driver != RabbitMQ {
			wrong("accept.after: %s takes a broker that confirms: queue.driver: %s must be %s", AfterConfirm, conf.Of("queue.driver", c.Queue.Driver), RabbitMQ)
		}
	default:
		if c.Accept.replicas() == 0 {
			wrong("accept.after: %q must be %s, %s or %sN, where N is the number of replicas of each primary, from 1 to %d", c.Accept.After, AfterFsync, AfterConfirm, AfterReplicas, maxReplicas)
		}
	}
}

// maxHosts bounds the names of the admin listener.
const maxHosts = 64

// maxProviders bounds the payment providers.
const maxProviders = 32

func (p Payments) validate(wrong func(string, ...any)) {
	if n := len(p.Providers); n > maxProviders {
		wrong("payments.providers: %d of them, there must be at most %d", n, maxProviders)
	}
	names, owners := map[string]bool{}, map[conf.Secret]int{}
	for i, c := range p.Providers {
		field := fmt.Sprintf("payments.providers[%d]", i)
		if !wire.ValidProvider(c.Name) {
			wrong("%s.name: %q must be 1 to %d of [a-z0-9-]: it stands in the webhook's path", field, c.Name, wire.MaxProvider)
		} else if names[c.Name] {
			wrong("%s.name: %q is there twice", field, c.Name)
		}
		names[c.Name] = true
		if n := len(c.Secrets); n < 1 || n > payment.MaxSecrets {
			wrong("%s.secrets: %d of them, there must be 1 to %d", field, n, payment.MaxSecrets)
		}
		for j, s := range c.Secrets {
			name := fmt.Sprintf("%s.secrets[%d]", field, j)
			if n := len(s.Reveal()); n < signing.MinSecret {
				wrong("%s: %d bytes must be at least %d", name, n, signing.MinSecret)
			} else if other, ok := owners[s]; ok && other != i {
				wrong("%s: it is a secret of %s, too: who signs with it could speak for both", name, conf.Of(fmt.Sprintf("payments.providers[%d].name", other), p.Providers[other].Name))
			}
			owners[s] = i
		}
	}
}

// validateDevelopment keeps development secrets, and what else is only for development, off the network.
func (c Config) validateDevelopment(wrong func(string, ...any)) {
	if !c.Development {
		for _, name := range c.developmentSecrets() {
			wrong("%s: it is a development secret; set a secret of your own (or, on a developer's machine, development: true)", name)
		}
		if c.TestPayments() {
			wrong("payments.test_provider: true must be false, or left out, without development: true: it takes any order as paid")
		}
		return
	}
	for _, l := range c.listeners() {
		if !conf.Loopback(l.addr) {
			wrong("%s: %q must be on loopback with development: true", l.name, l.addr)
		}
	}
}

func (c Config) developmentSecrets() (fields []string) {
	if c.AdminToken.Development() {
		fields = append(fields, "admin_token")
	}
	if c.SessionKey.Development() {
		fields = append(fields, "admin_session_key")
	}
	for i, k := range c.SigningKeys {
		if k.Secret.Development() {
			fields = append(fields, fmt.Sprintf("signing_keys[%d].secret", i))
		}
	}
	for i, p := range c.Payments.Providers {
		for j, s := range p.Secrets {
			if s.Development() {
				fields = append(fields, fmt.Sprintf("payments.providers[%d].secrets[%d]", i, j))
			}
		}
	}
	return fields
}

type listener struct{ name, addr string }

func (c Config) listeners() []listener {
	return []listener{{"listen.internal", c.Listen.Internal}, {"listen.admin", c.Listen.Admin}}
}

func (l Log) level() (slog.Level, error) {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[l.Level]
	if !ok {
		return level, conf.Wrong("log.level: %q must be debug, info, warn or error", l.Level)
	}
	return level, nil
}

// Roles are the parts of a backend that one process runs.
type Roles struct{ API, Relay, Consumer, Timer bool }

var roleNames = []string{"api", "relay", "consumer", "timer"}

// ParseRoles reads a list like "api,timer".
func ParseRoles(list string) (Roles, error) {
	var r Roles
	fields := strings.Split(list, ",")
	for _, name := range fields {
		name = strings.TrimSpace(name)
		switch name {
		case "api":
			r.API = true
		case "relay":
			r.Relay = true
		case "consumer":
			r.Consumer = true
		case "timer":
			r.Timer = true
		default:
			return r, cli.Usage("-roles %q: %q is no role; give some of %s, separated by commas, or leave -roles out for all",
				list, name, strings.Join(roleNames, ", "))
		}
	}
	return r, nil
}

// String lists the roles.
func (r Roles) String() string {
	on := []bool{r.API, r.Relay, r.Consumer, r.Timer}
	return strings.Join(slices.DeleteFunc(slices.Clone(roleNames), func(name string) bool { return !on[slices.Index(roleNames, name)] }), ",")
}
