package backendtest

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/certs/certstest"
)

// Secure is how Redis servers of a test are guarded: by TLS alone, with certificates on both sides, and by an ACL file. Its user
// may do what docs/redis.md says and nothing else; the test itself is the default user, who may do all. Nil: by nothing.
type Secure struct {
	t              testing.TB
	CA             *certstest.CA
	server, Client certstest.Pair
	acl            string
	User, Password string
}

// NewSecure reads the rules from the page at path, for keys under prefix.
func NewSecure(t testing.TB, path, prefix string) *Secure {
	t.Helper()
	s := &Secure{t: t, CA: certstest.NewCA(t, "redis-ca"), User: "floodgate", Password: "a-password"}
	s.server, s.Client = s.CA.Issue("redis", nil), s.CA.Issue("client", nil)
	s.acl = filepath.Join(t.TempDir(), "users.acl")
	line := strings.ReplaceAll(strings.ReplaceAll(ACL(t, path), "fg:", prefix), ">PASSWORD", ">"+s.Password)
	if err := os.WriteFile(s.acl, []byte("user default on nopass ~* &* +@all\n"+line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// ACL returns the line of the user floodgate in the page at path, where it is broken into several.
func ACL(t testing.TB, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\nuser floodgate ")
	rule, _, closed := strings.Cut(rest, "\n```")
	if !found || !closed {
		t.Fatalf("%s has no block that begins with: user floodgate", path)
	}
	return "user floodgate " + strings.Join(strings.Fields(rule), " ")
}

func (s *Secure) flags(port int) []string {
	if s == nil {
		return []string{"--port", fmt.Sprint(port)}
	}
	return []string{"--port", "0", "--tls-port", fmt.Sprint(port), "--tls-cluster", "yes", "--tls-replication", "yes", "--tls-auth-clients", "yes",
		"--tls-ca-cert-file", s.CA.File, "--tls-cert-file", s.server.Certificate, "--tls-key-file", s.server.Key, "--aclfile", s.acl}
}

// client is the TLS of the test's own connections.
func (s *Secure) client() *tls.Config {
	if s == nil {
		return nil
	}
	m, err := s.files().Read(time.Now(), x509.ExtKeyUsageClientAuth)
	if err != nil {
		s.t.Fatal(err)
	}
	return &tls.Config{RootCAs: m.Roots, Certificates: m.Pair, MinVersion: tls.VersionTLS12}
}

func (s *Secure) files() certs.Files {
	return certs.Files{CA: s.CA.File, Certificate: s.Client.Certificate, Key: s.Client.Key}
}

// config is c as the user, over TLS.
func (s *Secure) config(c redis.Config) redis.Config {
	if s != nil {
		c.Username, c.Password, c.TLS = s.User, s.Password, &redis.TLS{Files: s.files()}
	}
	return c
}

// Redis starts a server of the test's own, and connects to it as the user.
func (s *Secure) Redis(prefix string) (*Node, *reserve.Store) {
	s.t.Helper()
	n := newNode(s.t, s)
	n.flags = dataFlags()
	n.Start()
	return n, open(s.t, s.config(redis.Config{Addrs: []string{n.Addr}, Prefix: prefix}))
}

// Denied fails the test if the user was denied anything at these nodes.
func (s *Secure) Denied(nodes ...*Node) {
	s.t.Helper()
	for _, n := range nodes {
		entries, err := n.client.Do(s.t.Context(), n.client.B().Arbitrary("ACL", "LOG").Build()).ToArray()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range entries {
			s.t.Errorf("%s: the ACL line lacks something: %v", n.Addr, e.String())
		}
	}
}
