package gateway

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"floodgate.internal/shared/certs/certstest"
)

// Whatever is wrong with backend_tls is an error that names the field; a reload changes nothing then.
func TestBackendTLSIsChecked(t *testing.T) {
	ca, other := certstest.NewCA(t, "ca"), certstest.NewCA(t, "other")
	good, foreign := ca.Issue("good", nil), other.Issue("foreign", nil)
	late := ca.Issue("late", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	server := ca.Issue("server", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	edits := func(url, ca string, p certstest.Pair) edit {
		return func(s string) string {
			s = with(`"http://127.0.0.1:1"`, fmt.Sprintf("%q", url))(s)
			return with("signing_key:", fmt.Sprintf("backend_tls: {ca: %q, certificate: %q, key: %q}\nsigning_key:", ca, p.Certificate, p.Key))(s)
		}
	}
	g := launch(t, []string{"127.0.0.1:1"})
	for _, c := range []struct {
		name, url, ca string
		pair          certstest.Pair
		want          string
	}{
		{"no such CA", "https://127.0.0.1:1", filepath.Join(t.TempDir(), "none"), good, "backend_tls.ca: "},
		{"a key as CA", "https://127.0.0.1:1", good.Key, good, "backend_tls.ca: "},
		{"no key", "https://127.0.0.1:1", ca.File, certstest.Pair{Certificate: good.Certificate}, "backend_tls.key: it is not there"},
		{"another's key", "https://127.0.0.1:1", ca.File, certstest.Pair{Certificate: good.Certificate, Key: foreign.Key}, "backend_tls.key: "},
		{"expired", "https://127.0.0.1:1", ca.File, late, "backend_tls.certificate: "},
		{"for servers alone", "https://127.0.0.1:1", ca.File, server, "its extended key usage must have clientAuth"},
		{"nothing to use it for", "http://127.0.0.1:1", ca.File, good, "backend_tls: it is there, but no backend is https://"},
		{"another scheme", "ftp://127.0.0.1:1", ca.File, good, "backends[0]: "},
		{"no port", "https://127.0.0.1", ca.File, good, "backends[0]: "},
	} {
		g.write(configText([]string{"127.0.0.1:1"}, edits(c.url, c.ca, c.pair)))
		if a := g.reload(); a.code != 400 || !strings.Contains(a.body, c.want) || g.generation() != 1 {
			t.Errorf("%s: got %v, generation %d, want %q", c.name, a, g.generation(), c.want)
		}
		if err := runArgs("check", "-config", g.file); exitCode(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: check: got %v, want %q", c.name, err, c.want)
		}
	}

	// Good files are taken over; a reload reads them again although the configuration is the same.
	g.write(configText([]string{"127.0.0.1:1"}, edits("https://127.0.0.1:1", ca.File, good)))
	if a := g.reload(); a.code != 200 || g.generation() != 2 {
		t.Fatalf("got %v", a)
	}
	expires := g.metric("gateway_backend_tls_expiry_timestamp_seconds")
	ca.Issue("good", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	g.reload() // the gateway may have seen it by itself
	if got := g.metric("gateway_backend_tls_expiry_timestamp_seconds"); got == expires {
		t.Errorf("got the expiry %s of the old certificate", got)
	}
	if err := os.WriteFile(good.Key, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.until("the files' change is seen", func() bool { return g.metric("gateway_backend_tls_files_ok") == "0" })
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); !strings.Contains(a.body, "the files of backend_tls have changed and are not used: backend_tls.key: ") {
		t.Errorf("got %v", a)
	}
	ca.Issue("good", nil)
	g.until("the good files are taken over", func() bool { return g.metric("gateway_backend_tls_files_ok") == "1" })
}
