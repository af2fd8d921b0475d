//go:build servers

package backend

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/redis"
	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/certs/certstest"
)

// A whole backend over TLS, as the ACL user of docs/redis.md: it is denied nothing, not even when Redis starts anew. A client
// without the right certificate, name or password gets nowhere.
func TestRedisOverTLSAsAnACLUser(t *testing.T) {
	s := backendtest.NewSecure(t, "../docs/redis.md", "s:")
	node, _ := s.Redis("s:")
	r := configure(t, node.Addr, "s:", backendtest.MySQLDSN(t), queueOf(t, RabbitMQ))
	file, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	secured := strings.Replace(string(file), `prefix: "s:"`, fmt.Sprintf(`prefix: "s:", username: %q, password: %q, tls: {enabled: true, ca: %q, certificate: %q, key: %q}`,
		s.User, s.Password, s.CA.File, s.Client.Certificate, s.Client.Key), 1)
	if err := os.WriteFile(r.path, []byte(secured), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.waitReady()
	const stock = 3
	sale := r.createSale(t, stock)
	orders := fmt.Sprintf("/v1/sales/%d/orders", sale)
	if res := r.call("alice", "POST", orders, "k", "", nil); res.StatusCode() != 202 {
		t.Fatalf("got %d %s", res.StatusCode(), res.Body())
	}
	node.Kill()
	node.Start()
	eventually(t, "the same again, of the Redis that was started anew", func() error {
		if res := r.call("alice", "POST", orders, "k", "", nil); res.StatusCode() != 202 {
			return fmt.Errorf("got %d %s", res.StatusCode(), res.Body())
		}
		return nil
	})
	r.sellOut(t, sale, stock-1)
	r.audited(t, sale, 0, stock)
	for _, command := range [][]string{{"queue"}, {"doctor"}, {"preflight", "--sale", fmt.Sprint(sale)}} {
		if err := r.run(t.Context(), command...); err != nil { // as every development system, on any machine
			t.Logf("%v: %v", command, err)
		}
	}
	s.Denied(node)

	right := redis.TLS{Files: certs.Files{CA: s.CA.File, Certificate: s.Client.Certificate, Key: s.Client.Key}}
	alien := certstest.NewCA(t, "alien")
	theirs := alien.Issue("client", nil)
	for name, refused := range map[string]struct {
		change func(*redis.Config)
		says   string // "": which end notices first decides what is said
	}{
		"without TLS":           {func(c *redis.Config) { c.TLS = nil }, ""},
		"of another CA":         {func(c *redis.Config) { c.TLS.Files.CA = alien.File }, "unknown authority"},
		"for another name":      {func(c *redis.Config) { c.TLS.ServerName = "redis.internal" }, "is valid for"},
		"without a certificate": {func(c *redis.Config) { c.TLS.Files.Certificate, c.TLS.Files.Key = "", "" }, ""},
		"with an alien one":     {func(c *redis.Config) { c.TLS.Files.Certificate, c.TLS.Files.Key = theirs.Certificate, theirs.Key }, ""},
		"with another password": {func(c *redis.Config) { c.Password = "hunter2" }, "WRONGPASS"},
	} {
		files := right
		c := redis.Config{Addrs: []string{node.Addr}, Prefix: "s:", Username: s.User, Password: s.Password, TLS: &files}
		refused.change(&c)
		client, err := redis.Open(c)
		if err == nil {
			client.Close()
			t.Errorf("%s: it was let in", name)
		} else if text := err.Error(); !strings.Contains(text, refused.says) || strings.Contains(text, "hunter2") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
