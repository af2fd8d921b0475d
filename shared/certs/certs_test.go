package certs_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/certs/certstest"
)

func TestRead(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	good := ca.Issue("good", nil)
	other := ca.Issue("other", nil)
	clientOnly := ca.Issue("client", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	expired := ca.Issue("expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	early := ca.Issue("early", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty, text, large := file("empty", ""), file("text", "not PEM"), file("large", strings.Repeat("x", 1<<20+1))
	broken := file("broken", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	for _, c := range []struct {
		name  string
		files certs.Files
		want  string // "": no error
	}{
		{"nothing", certs.Files{}, ""},
		{"all", certs.Files{CA: ca.File, Certificate: good.Certificate, Key: good.Key}, ""},
		{"a CA alone", certs.Files{CA: ca.File}, ""},
		{"no such CA", certs.Files{CA: dir + "/none"}, "cannot be read: no such file"},
		{"a directory", certs.Files{CA: dir}, "cannot be read: is a directory"},
		{"an empty CA", certs.Files{CA: empty}, "holds no certificate in PEM form"},
		{"a CA of text", certs.Files{CA: text}, "holds no certificate in PEM form"},
		{"a broken CA", certs.Files{CA: broken}, "ca: \"" + broken + "\" holds a certificate that cannot be read"},
		{"a huge file", certs.Files{CA: large}, "more than 1048576 bytes"},
		{"a CA that is none", certs.Files{CA: good.Certificate}, "is no authority's (CN=good)"},
		{"a CA's file with a key", certs.Files{CA: good.Key}, "holds no certificate in PEM form"},
		{"no key", certs.Files{Certificate: good.Certificate}, "key: it is not there, and certificate is"},
		{"no certificate", certs.Files{Key: good.Key}, "certificate: it is not there, and key is"},
		{"the key of another", certs.Files{Certificate: good.Certificate, Key: other.Key}, "key: \"" + other.Key + "\" does not hold the private key of the certificate"},
		{"files exchanged", certs.Files{Certificate: good.Key, Key: good.Certificate}, "holds no certificate in PEM form"},
		{"a key of text", certs.Files{Certificate: good.Certificate, Key: text}, "holds no private key in PEM form"},
		{"a broken certificate", certs.Files{Certificate: broken, Key: good.Key}, "holds a certificate that cannot be read"},
		{"expired", certs.Files{Certificate: expired.Certificate, Key: expired.Key}, "expired at 20"},
		{"not yet valid", certs.Files{Certificate: early.Certificate, Key: early.Key}, "is not valid before 20"},
		{"for clients", certs.Files{Certificate: clientOnly.Certificate, Key: clientOnly.Key}, "must have serverAuth"},
	} {
		m, err := c.files.Read(time.Now(), x509.ExtKeyUsageServerAuth)
		if c.want == "" && (err != nil || (m.Roots != nil) != (c.files.CA != "") || (len(m.Pair) == 1) != (c.files.Key != "")) {
			t.Errorf("%s: got %+v, %v", c.name, m, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: a key shows: %v", c.name, err)
		}
	}
	if _, err := (certs.Files{CA: ca.File}).Read(time.Now().Add(48*time.Hour), x509.ExtKeyUsageServerAuth); err == nil || !strings.Contains(err.Error(), "ca: ") || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("a CA that expired: got %v", err)
	}
}

// Sum tells two contents apart, and is the same for one.
func TestSum(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	pair := ca.Issue("pair", nil)
	files := certs.Files{CA: ca.File, Certificate: pair.Certificate, Key: pair.Key}
	read := func() certs.Material {
		m, err := files.Read(time.Now(), x509.ExtKeyUsageClientAuth)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := read()
	if read().Sum != first.Sum {
		t.Error("the same files have another sum")
	}
	ca.Issue("pair", nil)
	if read().Sum == first.Sum {
		t.Error("another pair has the same sum")
	}
}
