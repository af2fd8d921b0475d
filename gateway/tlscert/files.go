// Package tlscert holds the gateway's certificates and the keys of its session tickets. Files is where they are, Material what
// was read of them, Store what handshakes use and what follows the files when they change.
package tlscert

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"time"

	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/conf"
)

// Bounds of what is read.
const (
	MaxCertificates = 64
	MaxTicketKeys   = 16
)

// Files is what the gateway's TLS is made of. Without certificates there is none.
type Files struct {
	Certificates []Pair `yaml:"certificates"`
	MinVersion   string `yaml:"min_version"`
	TicketKeys   string `yaml:"ticket_keys"`
}

// Pair is the files, in PEM, of a certificate with its chain and of its private key.
type Pair struct {
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
}

// Material is what the files held when they were read, each checked.
type Material struct {
	pairs   []*loaded
	tickets *tickets // nil: none are configured
}

// loaded is a pair that is good.
type loaded struct {
	content [sha256.Size]byte // of both files
	tls.Certificate
}

type tickets struct {
	content [sha256.Size]byte
	keys    [][32]byte // the newest first
}

// versions is what min_version may be.
var versions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// Read reads and checks the files. Each error is a conf.Wrong of the field, by its name within Files.
func (f Files) Read(now time.Time) (*Material, []error) {
	var errs []error
	m := &Material{}
	if versions[f.MinVersion] == 0 {
		errs = append(errs, conf.Wrong(`min_version: %q must be "1.2" or "1.3"`, f.MinVersion))
	}
	if n := len(f.Certificates); n > MaxCertificates {
		return nil, append(errs, conf.Wrong("certificates: %d of them, at most %d are taken", n, MaxCertificates))
	}
	for i, p := range f.Certificates {
		l, err := p.read(now, nil)
		if err == nil && i > 0 && len(l.Leaf.DNSNames)+len(l.Leaf.IPAddresses) == 0 {
			err = conf.Wrong("certificate: %q names no host, so it is never chosen: put it first, or take another", p.Certificate)
		}
		if err != nil {
			errs = append(errs, conf.Under(fmt.Sprintf("certificates[%d].", i), err))
			continue
		}
		m.pairs = append(m.pairs, l)
	}
	if f.TicketKeys != "" {
		if len(f.Certificates) == 0 {
			errs = append(errs, conf.Wrong("ticket_keys: %q is of no use without certificates", f.TicketKeys))
		}
		var err error
		if m.tickets, err = readTickets(f.TicketKeys); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return m, nil
}

// read reads a pair that is valid at that time. What is as known, which may be nil, is known, also when it has expired since.
func (p Pair) read(now time.Time, known *loaded) (*loaded, error) {
	if p.Certificate == "" && p.Key == "" {
		return nil, conf.Wrong("certificate: it is missing: name the file")
	}
	m, err := certs.Files{Certificate: p.Certificate, Key: p.Key}.Read(now, x509.ExtKeyUsageServerAuth)
	if known != nil && m.Sum == known.content {
		return known, nil
	}
	if err != nil {
		return nil, err
	}
	return &loaded{content: m.Sum, Certificate: m.Pair[0]}, nil
}

// readTickets reads keys of tickets: 32 bytes each in base64, a line each. Empty lines and those that begin with # do not count.
// No error holds a part of a key.
func readTickets(path string) (*tickets, error) {
	b, err := certs.ReadFile(path)
	if err != nil {
		return nil, conf.Wrong("ticket_keys: %q cannot be read: %v", path, err)
	}
	t := &tickets{content: sha256.Sum256(b)}
	n := 0
	for line := range bytes.Lines(b) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(string(line))
		if err != nil || len(key) != 32 {
			return nil, conf.Wrong("ticket_keys: %q, line %d, must be 32 bytes in base64: make one with openssl rand -base64 32", path, n)
		}
		t.keys = append(t.keys, [32]byte(key))
	}
	if len(t.keys) < 1 || len(t.keys) > MaxTicketKeys {
		return nil, conf.Wrong("ticket_keys: %q holds %d keys, there must be 1 to %d", path, len(t.keys), MaxTicketKeys)
	}
	return t, nil
}
