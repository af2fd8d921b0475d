package gateway

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"time"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/tlscert"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/tracing"
)

// Config is the gateway's configuration file; configs/gateway.yaml explains every key. Fields tagged reload:"restart"
// cannot change while the gateway runs.
type Config struct {
	Development bool             `yaml:"development" reload:"restart"`
	Listen      ListenConfig     `yaml:"listen"`
	OpsToken    conf.Secret      `yaml:"ops_token"`
	Operators   []operator.Entry `yaml:"operators"`
	OpsHosts    []string         `yaml:"ops_hosts"`
	Trusted     []string         `yaml:"trusted_proxies"`
	IPv6Prefix  int              `yaml:"ipv6_prefix" reload:"restart"`
	Backends    []string         `yaml:"backends"`
	BackendTLS  BackendTLSConfig `yaml:"backend_tls"`
	SigningKey  SigningKeyConfig `yaml:"signing_key"`
	Identity    IdentityConfig   `yaml:"identity"`
	CORS        CORSConfig       `yaml:"cors"`
	Page        PageConfig       `yaml:"page"`
	Limits      LimitsConfig     `yaml:"limits"`
	Reload      ReloadConfig     `yaml:"reload"`
	Server      ServerConfig     `yaml:"server"`
	Upstream    UpstreamConfig   `yaml:"upstream"`
	Feed        FeedConfig       `yaml:"feed"`
	Cache       CacheConfig      `yaml:"cache"`
	Timeline    TimelineConfig   `yaml:"timeline"`
	Log         LogConfig        `yaml:"log"`
	Tracing     TracingConfig    `yaml:"tracing"`

	// File is where the configuration was read from.
	File *conf.File `yaml:"-"`

	material *tlscert.Material `yaml:"-"` // what the files of listen.tls held
	logo     []byte            `yaml:"-"` // what page.logo held
}

// ListenConfig is where the gateway listens.
type ListenConfig struct {
	Public        string    `yaml:"public" reload:"restart"`
	Ops           string    `yaml:"ops" reload:"restart"`
	Redirect      string    `yaml:"redirect" reload:"restart"`
	TLS           TLSConfig `yaml:"tls"`
	ProxyProtocol bool      `yaml:"proxy_protocol"`
}

// SigningKeyConfig is the key that signs what is sent to the backends.
type SigningKeyConfig struct {
	ID     string      `yaml:"id"`
	Secret conf.Secret `yaml:"secret"`
}

// IdentityConfig is which tokens are accepted.
type IdentityConfig struct {
	Issuer      []string       `yaml:"issuer"`
	Audience    []string       `yaml:"audience"`
	Types       []string       `yaml:"types"`
	MaxLifetime time.Duration  `yaml:"max_lifetime"`
	Leeway      time.Duration  `yaml:"leeway"`
	Keys        []identity.Key `yaml:"keys"`

	JWKS    identity.JWKSConfig   `yaml:"jwks"`
	Revoked []identity.Revocation `yaml:"revoked"`
}

func (c IdentityConfig) rules() identity.Rules {
	return identity.Rules{Issuers: c.Issuer, Audiences: c.Audience, Types: c.Types, MaxLifetime: c.MaxLifetime, Leeway: c.Leeway}
}

// CORSConfig is which other sites' pages may use the API.
type CORSConfig struct {
	Origins []string      `yaml:"origins"`
	MaxAge  time.Duration `yaml:"max_age"`
}

// LimitsConfig is the rules of token buckets, who is exempt from them, and who may not order.
type LimitsConfig struct {
	Order          RuleConfig   `yaml:"order"`
	Payment        RuleConfig   `yaml:"payment"`
	Read           RuleConfig   `yaml:"read"`
	IP             RuleConfig   `yaml:"ip"`
	IPUsers        RuleConfig   `yaml:"ip_users"`
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

// RuleConfig is one rule: its first law, and the others.
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

// ServerConfig bounds the public listener.
type ServerConfig struct {
	ReadTimeout         time.Duration `yaml:"read_timeout" reload:"restart"`
	WriteTimeout        time.Duration `yaml:"write_timeout" reload:"restart"`
	IdleTimeout         time.Duration `yaml:"idle_timeout" reload:"restart"`
	MaxHeader           int           `yaml:"max_header" reload:"restart"`
	MaxBody             int           `yaml:"max_body" reload:"restart"`
	MaxBodyMemory       int64         `yaml:"max_body_memory"`
	MaxConnections      int           `yaml:"max_connections"`
	MaxConnectionsPerIP int           `yaml:"max_connections_per_ip"`
	MaxConnectionAge    time.Duration `yaml:"max_connection_age"`
	MaxRequests         int           `yaml:"max_requests_per_connection"`
	ShutdownDelay       time.Duration `yaml:"shutdown_delay"`
	Drain               time.Duration `yaml:"drain"`
	FastPath            bool          `yaml:"fast_path"`
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

// TimelineConfig is about the records for users' timelines.
type TimelineConfig struct {
	MaxRecords int           `yaml:"max_records"`
	FlushEvery time.Duration `yaml:"flush_every"`
}

// LogConfig is about the log.
type LogConfig struct {
	Level        slog.Level `yaml:"level"`
	Format       string     `yaml:"format" enum:",json,text" reload:"restart"`
	AccessEvery  int        `yaml:"access_every"`
	RefusedEvery int        `yaml:"refused_every"`
	AccessMax    int        `yaml:"access_max"`
}

// settings is what the access log is kept by. The key of its hashes is made of the signing key, so it is the same on every gateway.
func (c LogConfig) settings(key conf.Secret) edge.LogSettings {
	hash := sha256.Sum256([]byte("access log " + key.Reveal()))
	return edge.LogSettings{Every: c.AccessEvery, RefusedEvery: c.RefusedEvery, Max: c.AccessMax, Key: hash[:]}
}

// TracingConfig is about traces.
type TracingConfig struct {
	tracing.Config `yaml:",inline"`
	Sample         float64 `yaml:"sample"`
	MaxPerSecond   int     `yaml:"max_per_second"`
}

func rule(rate float64, burst, maxKeys int) RuleConfig {
	return RuleConfig{LawConfig: LawConfig{Rate: rate, Burst: burst}, MaxKeys: maxKeys}
}

// DefaultConfig is the values of keys that the file leaves out. Keys and secrets have none.
func DefaultConfig() Config {
	return Config{
		Listen: ListenConfig{
			Public: "127.0.0.1:8080", Ops: "127.0.0.1:8081",
			TLS: TLSConfig{Files: tlscert.Files{MinVersion: "1.2"}, MaxHandshakes: 64},
		},
		IPv6Prefix: network.DefaultPrefix,
		Backends:   []string{"http://127.0.0.1:9080"},
		Identity:   IdentityConfig{MaxLifetime: 24 * time.Hour, Leeway: 30 * time.Second, JWKS: identity.JWKSConfig{Refresh: 10 * time.Minute}},
		CORS:       CORSConfig{MaxAge: 10 * time.Minute},
		Page:       PageConfig{Name: "Floodgate"},
		Limits: LimitsConfig{
			Order: rule(0.2, 1, 1_000_000), Payment: rule(10, 20, 1_000_000), Read: rule(10, 20, 1_000_000), IP: rule(50, 100, 1_000_000), IPUsers: rule(2000, 4000, 1_000_000),
			Webhook: rule(200, 1000, 10_000),
			Global:  GlobalConfig{LawConfig{10_000, 20_000, false}, 200 * time.Millisecond, 1000},
		},
		Reload: ReloadConfig{CanaryConfig{Watch: 2 * time.Minute, MaxMoreRefused: 0.1, MaxMoreErrors: 0.01, MinRequests: 500}},
		Server: ServerConfig{
			ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second,
			MaxHeader: 8192, MaxBody: 65536, MaxBodyMemory: 64 << 20, MaxConnections: 65536, MaxConnectionsPerIP: 512,
			MaxConnectionAge: time.Hour, MaxRequests: 100_000, Drain: 20 * time.Second, FastPath: true,
		},
		Upstream: UpstreamConfig{Timeout: 3 * time.Second, MaxInFlight: 1024, MaxPerSale: 768, MaxWaiting: 16384},
		Feed:     FeedConfig{StaleAfter: 5 * time.Second},
		Cache:    CacheConfig{MaxBytes: 64 << 20, TTL: time.Second, Stale: 30 * time.Second},
		Timeline: TimelineConfig{MaxRecords: 100_000, FlushEvery: 2 * time.Second},
		Log:      LogConfig{AccessEvery: 1000, RefusedEvery: 1000, AccessMax: 100},
		Tracing:  TracingConfig{Sample: 0.001, MaxPerSecond: 100},
	}
}

// Load reads, expands and validates a configuration file. hash is that of the file's content.
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

// operators are those who may use the ops listener.
func (c *Config) operators() *operator.List { return operator.NewList("ops", c.OpsToken, c.Operators) }

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
