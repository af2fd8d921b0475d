// Package conf reads a configuration file: strict YAML, with ${NAME} taken from the environment. Its errors name the file, the line
// and the field. They never hold a value that came from the environment, nor one of a Secret.
package conf

import (
	"log/slog"
	"net"
	"strings"
)

// Secret is a value that is never printed: not in logs, not in JSON, not in YAML.
type Secret string

const masked = "********"

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer, masked.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// GoString implements fmt.GoStringer, masked.
func (s Secret) GoString() string { return s.String() }

// MarshalText implements encoding.TextMarshaler, masked: for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer, masked.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Development reports whether the secret is one of those that development configurations carry.
func (s Secret) Development() bool { return strings.HasPrefix(string(s), "dev-") }

// Loopback reports whether a host:port listens or connects on this machine alone.
func Loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
