// Package certs reads certificates, keys and certificate authorities from PEM files, and says what is wrong with them before
// a peer does.
package certs

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"floodgate.internal/shared/conf"
)

// Files names PEM files: the authorities that a peer's certificate must come from, and a certificate, with its intermediate
// ones behind it, and its key. "" is none.
type Files struct{ CA, Certificate, Key string }

// Material is what Files hold.
type Material struct {
	Roots *x509.CertPool    // nil: no CA is named
	Pair  []tls.Certificate // at most one
	// Expires is when the first of these certificates does; zero: there are none.
	Expires time.Time
	// Sum is of the files' content, with which two readings are compared.
	Sum [sha256.Size]byte
}

// maxFile bounds a file, in bytes.
const maxFile = 1 << 20

// Read reads the files. The certificate must be good now, for use, and fit its key; at least one of the authorities must be
// good now. An error is one of conf.Wrong about ca, certificate or key; it holds nothing of a file's content. Once all files were
// read there is Sum, also with an error.
func (f Files) Read(now time.Time, use x509.ExtKeyUsage) (Material, error) {
	var m Material
	if (f.Certificate == "") != (f.Key == "") {
		is, missing := "key", "certificate"
		if f.Key == "" {
			is, missing = missing, is
		}
		return m, conf.Wrong("%s: it is not there, and %s is: a certificate needs its key", missing, is)
	}
	sum := sha256.New()
	content := map[string][]byte{}
	for _, x := range []struct{ field, path string }{{"ca", f.CA}, {"certificate", f.Certificate}, {"key", f.Key}} {
		if x.path == "" {
			continue
		}
		b, err := ReadFile(x.path)
		if err != nil {
			return m, conf.Wrong("%s: %q cannot be read: %v", x.field, x.path, err)
		}
		content[x.field] = b
		fmt.Fprintf(sum, "%s %d\n", x.field, len(b))
		sum.Write(b)
	}
	sum.Sum(m.Sum[:0])
	if f.CA != "" {
		if err := m.addRoots(content["ca"], now); err != nil {
			return m, conf.Wrong("%s: %q %v", "ca", f.CA, err)
		}
	}
	if f.Certificate != "" {
		if err := f.addPair(&m, content["certificate"], content["key"], now, use); err != nil {
			return m, err
		}
	}
	return m, nil
}

// ReadFile reads a file of at most 1 MiB. An error does not name the file.
func ReadFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	var b []byte
	if err == nil {
		defer file.Close()
		b, err = io.ReadAll(io.LimitReader(file, maxFile+1))
	}
	var at *fs.PathError
	switch {
	case errors.As(err, &at): // without the path, which the caller names
		return nil, at.Err
	case err != nil:
		return nil, err
	case len(b) > maxFile:
		return nil, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return b, nil
}

// addRoots makes Roots of a file's certificates.
func (m *Material) addRoots(b []byte, now time.Time) error {
	m.Roots = x509.NewCertPool()
	var last error
	good := false
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return errors.New("holds a certificate that cannot be read")
		case !c.IsCA:
			return fmt.Errorf("holds a certificate that is no authority's (%s): it must hold the CA that signs the peers' certificates", c.Subject)
		}
		if last = valid(c, now); last != nil {
			continue // it vouches for nobody
		}
		good = true
		m.Roots.AddCert(c)
		m.expires(c)
	}
	switch {
	case last == nil && !good:
		return errors.New("holds no certificate in PEM form")
	case !good:
		return last
	}
	return nil
}

func (f Files) addPair(m *Material, certificate, key []byte, now time.Time, use x509.ExtKeyUsage) error {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		block, _ := pem.Decode(certificate)
		if block == nil || block.Type != "CERTIFICATE" {
			return conf.Wrong("%s: %q holds no certificate in PEM form", "certificate", f.Certificate)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return conf.Wrong("%s: %q holds a certificate that cannot be read", "certificate", f.Certificate)
		}
		if block, _ := pem.Decode(key); block == nil {
			return conf.Wrong("%s: %q holds no private key in PEM form", "key", f.Key)
		}
		return conf.Wrong("%s: %q does not hold the private key of the certificate", "key", f.Key)
	}
	leaf := pair.Leaf
	if err := valid(leaf, now); err != nil {
		return conf.Wrong("%s: %q %v", "certificate", f.Certificate, err)
	}
	if len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 && !slices.Contains(leaf.ExtKeyUsage, use) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return conf.Wrong("%s: %q is not for this: its extended key usage must have %s", "certificate", f.Certificate, usage[use])
	}
	m.Pair = []tls.Certificate{pair}
	m.expires(leaf)
	return nil
}

var usage = map[x509.ExtKeyUsage]string{x509.ExtKeyUsageServerAuth: "serverAuth", x509.ExtKeyUsageClientAuth: "clientAuth"}

func valid(c *x509.Certificate, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("expired at %s: renew it", c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("is not valid before %s: is this machine's clock right?", c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

func (m *Material) expires(c *x509.Certificate) {
	if m.Expires.IsZero() || c.NotAfter.Before(m.Expires) {
		m.Expires = c.NotAfter
	}
}
