// Package conf reads a configuration file: strict YAML, with ${NAME} taken from the environment.
package conf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"
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

// Load reads path into the struct that into points to, over the defaults that it already holds, and returns the hash of
// the file's bytes. Every unknown key, duplicate key and misfit is reported, with its line.
func Load(path string, into any) (hash string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	if err := Parse(b, into); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(sum[:8]), nil
}

// Parse is Load for bytes in hand.
func Parse(b []byte, into any) error {
	var doc yaml.Node
	if err := yaml.Load(b, &doc); err != nil {
		return err
	}
	var errs []error
	expand(&doc, &errs)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return doc.Load(into, yaml.WithKnownFields())
}

var reference = regexp.MustCompile(`\$\$|\$\{[^}]*\}|\$`)

// expand replaces ${NAME} in scalar values, after the file is parsed: so a value cannot change the file's structure.
func expand(n *yaml.Node, errs *[]error) {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "$") {
		plain := n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
		n.Value = reference.ReplaceAllStringFunc(n.Value, func(ref string) string {
			if ref == "$$" {
				return "$"
			}
			name := strings.TrimSuffix(strings.TrimPrefix(ref, "${"), "}")
			value, ok := os.LookupEnv(name)
			switch {
			case ref == "$":
				*errs = append(*errs, fmt.Errorf("line %d: a lone $ in %q: write ${NAME} for the environment's NAME, or $$ for a dollar", n.Line, n.Value))
			case !ok:
				*errs = append(*errs, fmt.Errorf("line %d: the environment has no %s: set it, or write the value here", n.Line, name))
			}
			return value
		})
		if plain {
			n.Tag = "" // let "${PORT}" become a number
		}
	}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			continue // a key
		}
		expand(c, errs)
	}
}

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
