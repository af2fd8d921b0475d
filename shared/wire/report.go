package wire

import (
	"fmt"
	"net/netip"
)

// ReportPath, on a backend's internal listener, takes a gateway's report: POST, signed, answered 204.
const ReportPath = "/internal/v1/gateways"

// Bounds of a gateway's report.
const (
	MaxReport      = 32 << 10 // bytes
	MaxTopClients  = 10
	maxReportNames = 64        // counters in one map
	maxReportCount = 1<<53 - 1 // what every reader of JSON counts exactly
)

// GatewayReport is how a gateway is, as it tells a backend about once a second. Counters count since StartedAt; Life tells one
// start of a gateway from the next.
type GatewayReport struct {
	Name       string `json:"name"` // its host and the port of its public listener, host:port
	Life       string `json:"life"`
	Version    string `json:"version"`
	At         Time   `json:"at"`         // by the time that it has from the backends
	StartedAt  Time   `json:"started_at"` // this and ReloadedAt by its machine's clock
	Generation int64  `json:"generation"` // of the configuration, from 1 at each start
	Hash       string `json:"hash"`       // of the configuration's file
	ReloadedAt Time   `json:"reloaded_at"`
	FeedAgeMS  int64  `json:"feed_age_ms"` // -1: it never received the feed

	Presses  map[string]int64 `json:"presses"`  // answers to orders: ok, or the problem's code in lower case
	Refusals map[string]int64 `json:"refusals"` // requests that it refused itself, by rule

	Connections    int64 `json:"connections"`
	MaxConnections int64 `json:"max_connections"`
	MaxFiles       int64 `json:"max_files"` // file descriptors that the system allows it

	// When the first certificate expires of the public listener, and of those for the backends; null: there is none.
	TLSExpiresAt        *Time `json:"tls_expires_at"`
	BackendTLSExpiresAt *Time `json:"backend_tls_expires_at"`
	// JWKSKeys is how many keys its JWK set has, JWKSReadAt when that was last read well; null: it has no set, or never read it.
	JWKSKeys   int64 `json:"jwks_keys"`
	JWKSReadAt *Time `json:"jwks_read_at"`

	TopSince Time        `json:"top_since"` // what UIDs and Networks count began then
	UIDs     []TopClient `json:"uids"`
	Networks []TopClient `json:"networks"`
}

// TopClient is a uid or an address (IPv6: its network) that sent many requests. Where there were many the counts are estimates.
type TopClient struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Refused  int64  `json:"refused"`
}

// Check says what is wrong with a report; the error names the member.
func (r *GatewayReport) Check() error {
	for _, f := range []struct {
		member, value string
		most          int
	}{{"name", r.Name, 120}, {"life", r.Life, 64}, {"version", r.Version, 100}, {"hash", r.Hash, 100}} {
		if !plain(f.value, f.most) {
			return fmt.Errorf("%s: it must be 1 to %d of [A-Za-z0-9._:+-]", f.member, f.most)
		}
	}
	for _, f := range []struct {
		member       string
		least, value int64
	}{{"generation", 1, r.Generation}, {"feed_age_ms", -1, r.FeedAgeMS}, {"connections", 0, r.Connections}, {"max_connections", 0, r.MaxConnections},
		{"max_files", 0, r.MaxFiles}, {"jwks_keys", 0, r.JWKSKeys}} {
		if f.value < f.least || f.value > maxReportCount {
			return fmt.Errorf("%s: %d is not from %d to %d", f.member, f.value, f.least, int64(maxReportCount))
		}
	}
	for member, counts := range map[string]map[string]int64{"presses": r.Presses, "refusals": r.Refusals} {
		if len(counts) > maxReportNames {
			return fmt.Errorf("%s: %d of them, at most %d are taken", member, len(counts), maxReportNames)
		}
		for name, n := range counts {
			if !plain(name, 40) || n < 0 || n > maxReportCount {
				return fmt.Errorf("%s: a counter has no plain name, or is not from 0 to %d", member, int64(maxReportCount))
			}
		}
	}
	network := func(s string) bool {
		_, addrErr := netip.ParseAddr(s)
		_, prefixErr := netip.ParsePrefix(s)
		return addrErr == nil || prefixErr == nil
	}
	for _, f := range []struct {
		member string
		list   []TopClient
		valid  func(string) bool
	}{{"uids", r.UIDs, ValidUID}, {"networks", r.Networks, network}} {
		if len(f.list) > MaxTopClients {
			return fmt.Errorf("%s: %d of them, at most %d are taken", f.member, len(f.list), MaxTopClients)
		}
		for i, c := range f.list {
			if !f.valid(c.Name) || c.Requests < 0 || c.Requests > maxReportCount || c.Refused < 0 || c.Refused > c.Requests {
				return fmt.Errorf("%s/%d: it is none, or its counts are not from 0 to %d", f.member, i, int64(maxReportCount))
			}
		}
	}
	return nil
}

// plain reports whether s is 1 to most of [A-Za-z0-9._:+-].
func plain(s string, most int) bool {
	if len(s) == 0 || len(s) > most {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == ':' || c == '+' || c == '-') {
			return false
		}
	}
	return true
}
