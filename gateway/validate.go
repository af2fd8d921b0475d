package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/hosts"
	"floodgate.internal/shared/logging"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

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

// Validate returns an error for every field that is out of its bounds. Each names the field, its value and the bound.
func (c *Config) Validate() error {
	v := &validator{Config: c}
	v.listeners()
	v.transport()
	v.backendsAndKey()
	v.identity()
	v.cors()
	v.page()
	v.limits()
	v.lists()
	v.canary()
	v.sizes()
	return errors.Join(v.errs...)
}

// validator collects what is wrong with a Config.
type validator struct {
	*Config
	errs []error
}

func (v *validator) bad(field, format string, args ...any) {
	v.errs = append(v.errs, conf.Wrong("%s: "+format, append([]any{field}, args...)...))
}

func (v *validator) duration(field string, d, least, most time.Duration) {
	if d < least || d > most {
		v.bad(field, "%v must be %v to %v", d, least, most)
	}
}

func (v *validator) number(field string, n, least, most int64) {
	if n < least || n > most {
		v.bad(field, "%d must be %d to %d", n, least, most)
	}
}

func (v *validator) secret(field string, s conf.Secret) {
	if s.Development() && !v.Development {
		v.bad(field, "a development secret (dev-...) is accepted only with development: true")
	}
}

func (v *validator) listeners() {
	for _, l := range []struct{ field, addr string }{{"listen.public", v.Listen.Public}, {"listen.ops", v.Listen.Ops}} {
		if _, _, err := net.SplitHostPort(l.addr); err != nil {
			v.bad(l.field, "%q must be host:port", l.addr)
		} else if v.Development && !conf.Loopback(l.addr) {
			v.bad(l.field, "%q must be on loopback with development: true", l.addr)
		}
	}
	v.secret("ops_token", v.OpsToken)
	if n := len(v.OpsToken); n < minOpsToken && !v.Development && !conf.Loopback(v.Listen.Ops) && (n > 0 || len(v.Operators) == 0) {
		v.bad("ops_token", "%d bytes, at least %d are needed where listen.ops is not on loopback, or operators without an ops_token", n, minOpsToken)
	}
	v.errs = append(v.errs, operator.Check(v.Operators, "ops_token", v.OpsToken)...)
	if len(v.OpsHosts) > maxHosts {
		v.bad("ops_hosts", "%d of them, at most %d are taken", len(v.OpsHosts), maxHosts)
	}
	for i, h := range v.OpsHosts {
		if !hosts.Valid(h) {
			v.bad(fmt.Sprintf("ops_hosts[%d]", i), "%q must be a name or an address, with a port or without", h)
		}
	}
}

func (v *validator) backendsAndKey() {
	if len(v.Backends) < 1 || len(v.Backends) > 64 {
		v.bad("backends", "%d of them, there must be 1 to 64", len(v.Backends))
	}
	seen := map[string]bool{}
	for i, b := range v.Backends {
		field := fmt.Sprintf("backends[%d]", i)
		if u, err := url.Parse(b); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.User != nil || u.Fragment != "" {
			v.bad(field, "%q must be http://host:port or https://host:port", b)
		} else if seen[u.Host] {
			v.bad(field, "%q is there twice", b)
		} else {
			seen[u.Host] = true
		}
	}
	v.backendTLS()
	if v.SigningKey.ID == "" || !plain(v.SigningKey.ID) {
		v.bad("signing_key.id", "%q must be 1 or more of [A-Za-z0-9._-]", v.SigningKey.ID)
	}
	if n := len(v.SigningKey.Secret); n < signing.MinSecret {
		v.bad("signing_key.secret", "%d bytes, at least %d are needed", n, signing.MinSecret)
	}
	v.secret("signing_key.secret", v.SigningKey.Secret)
}

func (v *validator) identity() {
	for _, l := range []struct {
		field string
		texts []string
	}{{"identity.issuer", v.Identity.Issuer}, {"identity.audience", v.Identity.Audience}, {"identity.types", v.Identity.Types}} {
		if n := len(l.texts); n > 64 {
			v.bad(l.field, "%d of them, at most 64 are taken", n)
		}
		for i, text := range l.texts {
			if text == "" || len(text) > 256 {
				v.bad(fmt.Sprintf("%s[%d]", l.field, i), "%q must have 1 to 256 bytes", text)
			}
		}
	}
	if len(v.Identity.Audience) == 0 && !v.Development {
		v.bad("identity.audience", "it is empty; without development: true it must name whom tokens are for, so that none for another purpose is taken")
	}
	v.duration("identity.max_lifetime", v.Identity.MaxLifetime, time.Minute, 10*365*24*time.Hour)
	v.duration("identity.leeway", v.Identity.Leeway, 0, 5*time.Minute)
	if n := len(v.Identity.Keys); n > 64 || n < 1 && !v.Identity.JWKS.Used() {
		v.bad("identity.keys", "%d of them, there must be 1 to 64, or identity.jwks", n)
	}
	v.tokens()
	kids := map[string]bool{}
	for i, k := range v.Identity.Keys {
		field := fmt.Sprintf("identity.keys[%d]", i)
		if err := k.Check(); err != nil {
			v.errs = append(v.errs, conf.Under(field+".", err))
		}
		if kids[k.KID] {
			v.bad(field+".kid", "%q is there twice", k.KID)
		}
		kids[k.KID] = true
		v.secret(field+".secret", k.Secret)
		if k.Sign && !v.Development {
			v.bad(field+".sign", "a key that signs test tokens is accepted only with development: true")
		}
	}
}

func (v *validator) limits() {
	for _, r := range []struct {
		field string
		RuleConfig
	}{{"limits.order", v.Limits.Order}, {"limits.payment", v.Limits.Payment}, {"limits.read", v.Limits.Read}, {"limits.ip", v.Limits.IP}, {"limits.ip_users", v.Limits.IPUsers}, {"limits.webhook", v.Limits.Webhook}} {
		v.law(r.field, r.LawConfig)
		v.number(r.field+".max_keys", int64(r.MaxKeys), 1, 100_000_000)
		if len(r.Also) >= limit.MaxLaws {
			v.bad(r.field+".also", "%d laws, a rule has at most %d more than its first", len(r.Also), limit.MaxLaws-1)
		}
		for i, l := range r.Also {
			v.law(fmt.Sprintf("%s.also[%d]", r.field, i), l)
		}
	}
	v.law("limits.global", v.Limits.Global.LawConfig)
	v.duration("limits.global.max_wait", v.Limits.Global.MaxWait, 0, 10*time.Second)
	v.number("limits.global.max_waiting", int64(v.Limits.Global.MaxWaiting), 0, 1<<20)
}

func (v *validator) lists() {
	for _, l := range []struct {
		field    string
		networks []string
	}{{"trusted_proxies", v.Trusted}, {"limits.ip_exempt", v.Limits.IPExempt}, {"limits.banned_networks", v.Limits.BannedNetworks}} {
		if len(l.networks) > maxNetworks {
			v.bad(l.field, "%d networks, at most %d are taken", len(l.networks), maxNetworks)
		} else if _, err := network.Parse(l.networks); err != nil {
			v.errs = append(v.errs, conf.Under(l.field, err))
		}
	}
	for _, l := range []struct {
		field, more string
		uids        []string
	}{
		{"limits.uid_exempt", "", v.Limits.UIDExempt},
		{"limits.banned_uids", ": ban more at the backend", v.Limits.BannedUIDs},
		{"limits.eligible_uids", ": give the sale a list at the backend for more", v.Limits.EligibleUIDs},
	} {
		if n := len(l.uids); n > maxUIDs {
			v.bad(l.field, "%d uids, at most %d are taken%s", n, maxUIDs, l.more)
		}
		for i, uid := range l.uids {
			if !wire.ValidUID(uid) {
				v.bad(fmt.Sprintf("%s[%d]", l.field, i), "%q must be 1 to %d of [A-Za-z0-9._-]", uid, wire.MaxUID)
				break
			}
		}
	}
}

func (v *validator) sizes() {
	s := v.Server
	v.duration("server.read_timeout", s.ReadTimeout, 100*time.Millisecond, time.Minute)
	v.duration("server.write_timeout", s.WriteTimeout, 100*time.Millisecond, 10*time.Minute)
	v.duration("server.idle_timeout", s.IdleTimeout, 100*time.Millisecond, 10*time.Minute)
	v.number("server.max_header", int64(s.MaxHeader), 1024, 1<<20)
	v.number("server.max_body", int64(s.MaxBody), 64, 16<<20)
	v.number("server.max_connections", int64(s.MaxConnections), 1, edge.MaxConnections)
	v.number("server.max_connections_per_ip", int64(s.MaxConnectionsPerIP), 1, edge.MaxConnections)
	v.number("server.max_body_memory", s.MaxBodyMemory, int64(s.MaxBody), 64<<30)
	if s.MaxConnectionAge != 0 {
		v.duration("server.max_connection_age", s.MaxConnectionAge, time.Second, 30*24*time.Hour)
	}
	v.number("server.max_requests_per_connection", int64(s.MaxRequests), 0, 1_000_000_000)
	v.duration("server.shutdown_delay", s.ShutdownDelay, 0, 10*time.Minute)
	v.duration("server.drain", s.Drain, 0, 10*time.Minute)
	v.duration("upstream.timeout", v.Upstream.Timeout, 10*time.Millisecond, time.Minute)
	v.number("upstream.max_in_flight", int64(v.Upstream.MaxInFlight), 1, 1<<20)
	v.number("upstream.max_per_sale", int64(v.Upstream.MaxPerSale), 1, 1<<20)
	v.number("upstream.max_waiting", int64(v.Upstream.MaxWaiting), 1, 1<<20)
	v.duration("feed.stale_after", v.Feed.StaleAfter, 100*time.Millisecond, 5*time.Minute)
	v.number("cache.max_bytes", v.Cache.MaxBytes, 64<<10, 64<<30)
	v.duration("cache.ttl", v.Cache.TTL, time.Millisecond, time.Minute)
	v.duration("cache.stale", v.Cache.Stale, 0, time.Hour)
	v.number("timeline.max_records", int64(v.Timeline.MaxRecords), 1, 10_000_000)
	v.duration("timeline.flush_every", v.Timeline.FlushEvery, 100*time.Millisecond, time.Minute)
	v.number("log.access_every", int64(v.Log.AccessEvery), 0, 1_000_000_000)
	v.number("log.refused_every", int64(v.Log.RefusedEvery), 0, 1_000_000_000)
	v.number("log.access_max", int64(v.Log.AccessMax), 0, 1_000_000)
	v.errs = append(v.errs, v.Tracing.Check()...)
	if r := v.Tracing.Sample; !(r >= 0 && r <= 1) {
		v.bad("tracing.sample", "%v must be 0 to 1", r)
	}
	v.number("tracing.max_per_second", int64(v.Tracing.MaxPerSecond), 0, 1_000_000)
	if !logging.Valid(v.Log.Format) {
		v.bad("log.format", "%q must be json or text, or be left out", v.Log.Format)
	}
}

func (v *validator) law(field string, l LawConfig) {
	if !(l.Rate > 0) {
		v.bad(field+".rate", "%v must be positive", l.Rate)
	} else if l.Rate > 1e6 || l.Rate < 1e-4 {
		v.bad(field+".rate", "%v must be 0.0001 to 1000000", l.Rate)
	}
	v.number(field+".burst", int64(l.Burst), 1, 1_000_000)
	if l.Rate > 0 && float64(l.Burst)/l.Rate > limit.MaxFill.Seconds() {
		v.bad(field+".burst", "%d tokens at %v a second fill in more than %v", l.Burst, conf.Of(field+".rate", l.Rate), limit.MaxFill)
	}
}

func plain(s string) bool {
	for _, c := range s {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}
