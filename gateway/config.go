package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/hosts"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// Config is the gateway's configuration file; configs/gateway.yaml explains every key. Fields tagged reload:"restart"
// cannot change while the gateway runs.
type Config struct {
	Development bool             `yaml:"development" reload:"restart"`
	Listen      ListenConfig     `yaml:"listen"`
	OpsToken    conf.Secret      `yaml:"ops_token"`
	OpsHosts    []string         `yaml:"ops_hosts"`
	Trusted     []string         `yaml:"trusted_proxies"`
	Backends    []string         `yaml:"backends"`
	SigningKey  SigningKeyConfig `yaml:"signing_key"`
	Identity    IdentityConfig   `yaml:"identity"`
	Limits      LimitsConfig     `yaml:"limits"`
	Server      ServerConfig     `yaml:"server"`
	Upstream    UpstreamConfig   `yaml:"upstream"`
	Feed        FeedConfig       `yaml:"feed"`
	Cache       CacheConfig      `yaml:"cache"`
	Timeline    TimelineConfig   `yaml:"timeline"`
	Log         LogConfig        `yaml:"log"`

	// File is where the configuration was read.
	File *conf.File `yaml:"-"`
}

// ListenConfig is where the gateway listens.
type ListenConfig struct {
	Public string `yaml:"public" reload:"restart"`
	Ops    string `yaml:"ops" reload:"restart"`
}

// SigningKeyConfig is the key that signs what is sent to the backends.
type SigningKeyConfig struct {
	ID     string      `yaml:"id"`
	Secret conf.Secret `yaml:"secret"`
}

// IdentityConfig is whose tokens are taken.
type IdentityConfig struct {
	Issuer      []string       `yaml:"issuer"`
	Audience    []string       `yaml:"audience"`
	Types       []string       `yaml:"types"`
	MaxLifetime time.Duration  `yaml:"max_lifetime"`
	Leeway      time.Duration  `yaml:"leeway"`
	Keys        []identity.Key `yaml:"keys"`
}

func (c IdentityConfig) rules() identity.Rules {
	return identity.Rules{Issuers: c.Issuer, Audiences: c.Audience, Types: c.Types, MaxLifetime: c.MaxLifetime, Leeway: c.Leeway}
}

// LimitsConfig is the token buckets, and who has none or is turned away.
type LimitsConfig struct {
	Order          RuleConfig   `yaml:"order"`
	Payment        RuleConfig   `yaml:"payment"`
	Read           RuleConfig   `yaml:"read"`
	IP             RuleConfig   `yaml:"ip"`
	Webhook        RuleConfig   `yaml:"webhook"`
	Global         GlobalConfig `yaml:"global"`
	IPExempt       []string     `yaml:"ip_exempt"`
	UIDExempt      []string     `yaml:"uid_exempt"`
	BannedNetworks []string     `yaml:"banned_networks"`
	BannedUIDs     []string     `yaml:"banned_uids"`
	EligibleUIDs   []string     `yaml:"eligible_uids"`
}

// LawConfig is one law of a rule.
type LawConfig struct {
	Rate   float64 `yaml:"rate"`
	Burst  int     `yaml:"burst"`
	Shadow bool    `yaml:"shadow"`
}

// RuleConfig is one rule: its first law, and those that hold as well.
type RuleConfig struct {
	LawConfig `yaml:",inline"`
	MaxKeys   int         `yaml:"max_keys"`
	Also      []LawConfig `yaml:"also"`
}

// GlobalConfig is the bucket that all orders draw on.
type GlobalConfig struct {
	LawConfig  `yaml:",inline"`
	MaxWait    time.Duration `yaml:"max_wait"`
	MaxWaiting int           `yaml:"max_waiting"`
}

// Bounds of each list of networks and of each list of uids.
const (
	maxNetworks = 10_000
	maxUIDs     = 100_000
)

// What the ops listener takes: the least length of its token where it is not on loopback, and how many names.
const (
	minOpsToken = 16
	maxHosts    = 64
)

// ServerConfig bounds the public listener.
type ServerConfig struct {
	ReadTimeout         time.Duration `yaml:"read_timeout" reload:"restart"`
	WriteTimeout        time.Duration `yaml:"write_timeout" reload:"restart"`
	IdleTimeout         time.Duration `yaml:"idle_timeout" reload:"restart"`
	MaxHeader           int           `yaml:"max_header" reload:"restart"`
	MaxBody             int           `yaml:"max_body" reload:"restart"`
	MaxConnections      int           `yaml:"max_connections"`
	MaxConnectionsPerIP int           `yaml:"max_connections_per_ip"`
	Drain               time.Duration `yaml:"drain"`
}

// UpstreamConfig bounds what goes to the backends.
type UpstreamConfig struct {
	Timeout     time.Duration `yaml:"timeout"`
	MaxInFlight int           `yaml:"max_in_flight"`
	MaxPerSale  int           `yaml:"max_per_sale"`
	MaxWaiting  int           `yaml:"max_waiting"`
}

// FeedConfig is about the sale-state feed.
type FeedConfig struct {
	StaleAfter time.Duration `yaml:"stale_after"`
}

// CacheConfig is about the page cache.
type CacheConfig struct {
	MaxBytes int64         `yaml:"max_bytes"`
	TTL      time.Duration `yaml:"ttl"`
	Stale    time.Duration `yaml:"stale"`
}

// TimelineConfig is about the records of what became of each user's presses.
type TimelineConfig struct {
	MaxRecords int           `yaml:"max_records"`
	FlushEvery time.Duration `yaml:"flush_every"`
}

// LogConfig is about the log.
type LogConfig struct {
	Level       slog.Level `yaml:"level"`
	AccessEvery int        `yaml:"access_every"`
}

func rule(rate float64, burst, maxKeys int) RuleConfig {
	return RuleConfig{LawConfig: LawConfig{Rate: rate, Burst: burst}, MaxKeys: maxKeys}
}

// DefaultConfig is what holds where the file says nothing. Keys and secrets have no default.
func DefaultConfig() Config {
	return Config{
		Listen:   ListenConfig{Public: "127.0.0.1:8080", Ops: "127.0.0.1:8081"},
		Backends: []string{"http://127.0.0.1:9080"},
		Identity: IdentityConfig{MaxLifetime: 24 * time.Hour, Leeway: 30 * time.Second},
		Limits: LimitsConfig{
			Order: rule(0.2, 1, 1_000_000), Payment: rule(10, 20, 1_000_000), Read: rule(10, 20, 1_000_000), IP: rule(50, 100, 1_000_000),
			Webhook: rule(200, 1000, 10_000),
			Global:  GlobalConfig{LawConfig{10_000, 20_000, false}, 200 * time.Millisecond, 1000},
		},
		Server: ServerConfig{
			ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second,
			MaxHeader: 8192, MaxBody: 65536, MaxConnections: 65536, MaxConnectionsPerIP: 512, Drain: 20 * time.Second,
		},
		Upstream: UpstreamConfig{Timeout: 3 * time.Second, MaxInFlight: 1024, MaxPerSale: 768, MaxWaiting: 16384},
		Feed:     FeedConfig{StaleAfter: 5 * time.Second},
		Cache:    CacheConfig{MaxBytes: 64 << 20, TTL: time.Second, Stale: 30 * time.Second},
		Timeline: TimelineConfig{MaxRecords: 100_000, FlushEvery: 2 * time.Second},
		Log:      LogConfig{AccessEvery: 1000},
	}
}

// Load reads, expands and validates a configuration file.
func Load(path string) (c Config, hash string, err error) {
	c = DefaultConfig()
	if c.File, err = conf.Load(path, &c); err != nil {
		return c, "", err
	}
	if err := c.File.Explain(c.Validate()); err != nil {
		return c, "", err
	}
	return c, c.File.Hash, nil
}

// Validate names every field that is out of its bounds.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, conf.Wrong("%s: "+format, append([]any{field}, args...)...))
	}
	duration := func(field string, d, least, most time.Duration) {
		if d < least || d > most {
			bad(field, "%v must be %v to %v", d, least, most)
		}
	}
	number := func(field string, n, least, most int64) {
		if n < least || n > most {
			bad(field, "%d must be %d to %d", n, least, most)
		}
	}
	secret := func(field string, s conf.Secret) {
		if s.Development() && !c.Development {
			bad(field, "a development secret (dev-...) is accepted only with development: true")
		}
	}

	for _, l := range []struct{ field, addr string }{{"listen.public", c.Listen.Public}, {"listen.ops", c.Listen.Ops}} {
		if _, _, err := net.SplitHostPort(l.addr); err != nil {
			bad(l.field, "%q must be host:port", l.addr)
		} else if c.Development && !conf.Loopback(l.addr) {
			bad(l.field, "%q must be on loopback with development: true", l.addr)
		}
	}
	secret("ops_token", c.OpsToken)
	if n := len(c.OpsToken); n < minOpsToken && !c.Development && !conf.Loopback(c.Listen.Ops) {
		bad("ops_token", "%d bytes, at least %d are needed where listen.ops is not on loopback", n, minOpsToken)
	}
	if len(c.OpsHosts) > maxHosts {
		bad("ops_hosts", "%d of them, at most %d are taken", len(c.OpsHosts), maxHosts)
	}
	for i, h := range c.OpsHosts {
		if !hosts.Valid(h) {
			bad(fmt.Sprintf("ops_hosts[%d]", i), "%q must be a name or an address, with a port or without", h)
		}
	}
	if len(c.Backends) < 1 || len(c.Backends) > 64 {
		bad("backends", "%d of them, there must be 1 to 64", len(c.Backends))
	}
	seen := map[string]bool{}
	for i, b := range c.Backends {
		field := fmt.Sprintf("backends[%d]", i)
		if u, err := url.Parse(b); err != nil || u.Scheme != "http" || u.Port() == "" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.User != nil || u.Fragment != "" {
			bad(field, "%q must be http://host:port", b)
		} else if seen[u.Host] {
			bad(field, "%q is there twice", b)
		} else {
			seen[u.Host] = true
		}
	}
	if c.SigningKey.ID == "" || !plain(c.SigningKey.ID) {
		bad("signing_key.id", "%q must be 1 or more of [A-Za-z0-9._-]", c.SigningKey.ID)
	}
	if n := len(c.SigningKey.Secret); n < signing.MinSecret {
		bad("signing_key.secret", "%d bytes, at least %d are needed", n, signing.MinSecret)
	}
	secret("signing_key.secret", c.SigningKey.Secret)

	for _, l := range []struct {
		field string
		texts []string
	}{{"identity.issuer", c.Identity.Issuer}, {"identity.audience", c.Identity.Audience}, {"identity.types", c.Identity.Types}} {
		if n := len(l.texts); n > 64 {
			bad(l.field, "%d of them, at most 64 are taken", n)
		}
		for i, text := range l.texts {
			if text == "" || len(text) > 256 {
				bad(fmt.Sprintf("%s[%d]", l.field, i), "%q must have 1 to 256 bytes", text)
			}
		}
	}
	if len(c.Identity.Audience) == 0 && !c.Development {
		bad("identity.audience", "it is empty; without development: true it must name whom tokens are for, so that none for another purpose is taken")
	}
	duration("identity.max_lifetime", c.Identity.MaxLifetime, time.Minute, 10*365*24*time.Hour)
	duration("identity.leeway", c.Identity.Leeway, 0, 5*time.Minute)
	if len(c.Identity.Keys) < 1 || len(c.Identity.Keys) > 64 {
		bad("identity.keys", "%d of them, there must be 1 to 64", len(c.Identity.Keys))
	}
	kids := map[string]bool{}
	for i, k := range c.Identity.Keys {
		field := fmt.Sprintf("identity.keys[%d]", i)
		if err := k.Check(); err != nil {
			errs = append(errs, conf.Under(field+".", err))
		}
		if kids[k.KID] {
			bad(field+".kid", "%q is there twice", k.KID)
		}
		kids[k.KID] = true
		secret(field+".secret", k.Secret)
		if k.Sign && !c.Development {
			bad(field+".sign", "a key that signs test tokens is accepted only with development: true")
		}
	}

	law := func(field string, l LawConfig) {
		if !(l.Rate > 0) {
			bad(field+".rate", "%v must be positive", l.Rate)
		} else if l.Rate > 1e6 || l.Rate < 1e-4 {
			bad(field+".rate", "%v must be 0.0001 to 1000000", l.Rate)
		}
		number(field+".burst", int64(l.Burst), 1, 1_000_000)
		if l.Rate > 0 && float64(l.Burst)/l.Rate > limit.MaxFill.Seconds() {
			bad(field+".burst", "%d tokens at %v a second fill in more than %v", l.Burst, conf.Of(field+".rate", l.Rate), limit.MaxFill)
		}
	}
	for _, r := range []struct {
		field string
		RuleConfig
	}{{"limits.order", c.Limits.Order}, {"limits.payment", c.Limits.Payment}, {"limits.read", c.Limits.Read}, {"limits.ip", c.Limits.IP}, {"limits.webhook", c.Limits.Webhook}} {
		law(r.field, r.LawConfig)
		number(r.field+".max_keys", int64(r.MaxKeys), 1, 100_000_000)
		if len(r.Also) >= limit.MaxLaws {
			bad(r.field+".also", "%d laws, a rule has at most %d more than its first", len(r.Also), limit.MaxLaws-1)
		}
		for i, l := range r.Also {
			law(fmt.Sprintf("%s.also[%d]", r.field, i), l)
		}
	}
	law("limits.global", c.Limits.Global.LawConfig)
	duration("limits.global.max_wait", c.Limits.Global.MaxWait, 0, 10*time.Second)
	number("limits.global.max_waiting", int64(c.Limits.Global.MaxWaiting), 0, 1<<20)
	for _, l := range []struct {
		field    string
		networks []string
	}{{"trusted_proxies", c.Trusted}, {"limits.ip_exempt", c.Limits.IPExempt}, {"limits.banned_networks", c.Limits.BannedNetworks}} {
		if len(l.networks) > maxNetworks {
			bad(l.field, "%d networks, at most %d are taken", len(l.networks), maxNetworks)
		} else if _, err := network.Parse(l.networks); err != nil {
			errs = append(errs, conf.Under(l.field, err))
		}
	}
	for _, l := range []struct {
		field, more string
		uids        []string
	}{
		{"limits.uid_exempt", "", c.Limits.UIDExempt},
		{"limits.banned_uids", ": ban more at the backend", c.Limits.BannedUIDs},
		{"limits.eligible_uids", ": give the sale a list at the backend for more", c.Limits.EligibleUIDs},
	} {
		if n := len(l.uids); n > maxUIDs {
			bad(l.field, "%d uids, at most %d are taken%s", n, maxUIDs, l.more)
		}
		for i, uid := range l.uids {
			if !wire.ValidUID(uid) {
				bad(fmt.Sprintf("%s[%d]", l.field, i), "%q must be 1 to %d of [A-Za-z0-9._-]", uid, wire.MaxUID)
				break
			}
		}
	}

	s := c.Server
	duration("server.read_timeout", s.ReadTimeout, 100*time.Millisecond, time.Minute)
	duration("server.write_timeout", s.WriteTimeout, 100*time.Millisecond, 10*time.Minute)
	duration("server.idle_timeout", s.IdleTimeout, 100*time.Millisecond, 10*time.Minute)
	number("server.max_header", int64(s.MaxHeader), 1024, 1<<20)
	number("server.max_body", int64(s.MaxBody), 64, 16<<20)
	number("server.max_connections", int64(s.MaxConnections), 1, edge.MostConnections)
	number("server.max_connections_per_ip", int64(s.MaxConnectionsPerIP), 1, edge.MostConnections)
	duration("server.drain", s.Drain, 0, 10*time.Minute)
	duration("upstream.timeout", c.Upstream.Timeout, 10*time.Millisecond, time.Minute)
	number("upstream.max_in_flight", int64(c.Upstream.MaxInFlight), 1, 1<<20)
	number("upstream.max_per_sale", int64(c.Upstream.MaxPerSale), 1, 1<<20)
	number("upstream.max_waiting", int64(c.Upstream.MaxWaiting), 1, 1<<20)
	duration("feed.stale_after", c.Feed.StaleAfter, 100*time.Millisecond, 5*time.Minute)
	number("cache.max_bytes", c.Cache.MaxBytes, 64<<10, 64<<30)
	duration("cache.ttl", c.Cache.TTL, time.Millisecond, time.Minute)
	duration("cache.stale", c.Cache.Stale, 0, time.Hour)
	number("timeline.max_records", int64(c.Timeline.MaxRecords), 1, 10_000_000)
	duration("timeline.flush_every", c.Timeline.FlushEvery, 100*time.Millisecond, time.Minute)
	number("log.access_every", int64(c.Log.AccessEvery), 0, 1_000_000_000)
	return errors.Join(errs...)
}

func plain(s string) bool {
	for _, c := range s {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// uids is a list of uids as a set.
func uids(list []string) map[string]struct{} {
	set := make(map[string]struct{}, len(list))
	for _, uid := range list {
		set[uid] = struct{}{}
	}
	return set
}

// networks is a list of networks that was validated.
func networks(list []string) network.Set {
	s, err := network.Parse(list)
	if err != nil {
		panic("BUG: networks that were not validated: " + err.Error())
	}
	return s
}

// backends is the backends' addresses, host:port.
func (c *Config) backends() []string {
	var addrs []string
	for _, b := range c.Backends {
		u, err := url.Parse(b)
		if err != nil {
			panic("BUG: a backend that was not validated: " + b)
		}
		addrs = append(addrs, u.Host)
	}
	return addrs
}

// developmentSecrets names the fields that hold one.
func (c *Config) developmentSecrets() []string {
	var fields []string
	if c.OpsToken.Development() {
		fields = append(fields, "ops_token")
	}
	if c.SigningKey.Secret.Development() {
		fields = append(fields, "signing_key.secret")
	}
	for i, k := range c.Identity.Keys {
		if k.Secret.Development() || k.Sign {
			fields = append(fields, fmt.Sprintf("identity.keys[%d]", i))
		}
	}
	return fields
}
