// Package certtest makes certificates for tests, each its own authority.
package certtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Cert is a certificate and its key, in PEM.
type Cert struct{ Certificate, Key []byte }

// New makes one for the hosts, names or addresses, that is valid for that long from an hour ago on, under a new key.
func New(t testing.TB, life time.Duration, hosts ...string) Cert {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return Under(t, key, life, hosts...)
}

// Under is New under this key.
func Under(t testing.TB, key crypto.Signer, life time.Duration, hosts ...string) Cert {
	t.Helper()
	from := time.Now().Add(-time.Hour)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, NotBefore: from, NotAfter: from.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Cert{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// Pool trusts the certificates.
func Pool(certs ...Cert) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AppendCertsFromPEM(c.Certificate)
	}
	return pool
}

// Write puts the pair into dir, each file at once, and returns their paths.
func (c Cert) Write(t testing.TB, dir, name string) (certificate, key string) {
	t.Helper()
	certificate, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	Replace(t, certificate, c.Certificate)
	Replace(t, key, c.Key)
	return certificate, key
}

// Replace writes a file in the way of tools that renew certificates: all of it, or what was there before.
func Replace(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
