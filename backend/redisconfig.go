package backend

import (
	"crypto/x509"
	"net"
	"strings"
	"time"

	"floodgate.internal/backend/redis"
	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/conf"
)

// Redis says where Redis is.
type Redis struct {
	Addrs    []string      `yaml:"addrs"`
	Username string        `yaml:"username"`
	Password conf.Secret   `yaml:"password"`
	Prefix   string        `yaml:"prefix"`
	TLS      RedisTLS      `yaml:"tls"`
	Sentinel RedisSentinel `yaml:"sentinel"`
}

// RedisTLS says how connections to Redis and to its sentinels are made secure. The files are PEM files.
type RedisTLS struct {
	Enabled     bool   `yaml:"enabled"`
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	ServerName  string `yaml:"server_name"`
}

// RedisSentinel says that redis.addrs are sentinels.
type RedisSentinel struct {
	Primary  string      `yaml:"primary"`
	Username string      `yaml:"username"`
	Password conf.Secret `yaml:"password"`
}

func (r Redis) config() redis.Config {
	c := redis.Config{Addrs: r.Addrs, Username: r.Username, Password: r.Password.Reveal(), Prefix: r.Prefix,
		Sentinel: redis.Sentinel{Primary: r.Sentinel.Primary, Username: r.Sentinel.Username, Password: r.Sentinel.Password.Reveal()}}
	if r.TLS.Enabled {
		c.TLS = &redis.TLS{Files: r.TLS.files(), ServerName: r.TLS.ServerName}
	}
	return c
}

func (t RedisTLS) files() certs.Files {
	return certs.Files{CA: t.CA, Certificate: t.Certificate, Key: t.Key}
}

func (r Redis) validate() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, conf.Wrong(format, args...)) }
	if len(r.Addrs) == 0 {
		wrong("redis.addrs: it is empty; name one server, several nodes of a cluster, or sentinels")
	}
	for i, a := range r.Addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			wrong("redis.addrs[%d]: %q must be host:port", i, a)
		}
	}
	if strings.ContainsAny(r.Prefix, "{} \t\r\n") {
		wrong("redis.prefix: %q must hold no braces and no spaces", r.Prefix)
	}
	if s := r.Sentinel; s.Primary == "" && (s.Username != "" || s.Password != "") {
		wrong("redis.sentinel.primary: it is empty, and username or password is there; name the primary that the sentinels watch")
	}
	if !r.TLS.Enabled && r.TLS != (RedisTLS{}) {
		wrong("redis.tls.enabled: it is false, and other keys of redis.tls are there; set it to true, or leave them out")
	}
	if _, err := r.TLS.files().Read(time.Now(), x509.ExtKeyUsageClientAuth); err != nil {
		errs = append(errs, conf.Under("redis.tls.", err))
	}
	return errs
}
