// Package development is what every development system has in common, embedded or on real servers: its secrets and its two
// configurations. The binaries know nothing of it; they warn when they see its secrets, and refuse them on anything but
// loopback.
package development

import "fmt"

// The secrets.
const (
	AdminToken    = "dev-admin"
	SessionKey    = "dev-session-key-for-loopback-only-00001" // so that a console outlives the backend's restart
	SigningKeyID  = "dev-gw"
	SigningSecret = "dev-signing-secret-for-loopback-only-0001"
	LoginKeyID    = "dev-login"
	LoginSecret   = "dev-login-secret-for-loopback-only-000001"
	Provider      = "test" // of payments, by webhook
	PaymentSecret = "dev-payment-secret-for-loopback-only-0001"
)

// Addrs are where the two processes listen, as host:port.
type Addrs struct{ Public, Ops, Internal, Admin string }

// DefaultAddrs are those of the contract.
var DefaultAddrs = Addrs{Public: "127.0.0.1:8080", Ops: "127.0.0.1:8081", Internal: "127.0.0.1:9080", Admin: "127.0.0.1:9081"}

const head = `# The %s of a development system, written at every start. What every key means stands in configs/%[1]s.yaml;
# what is not here has its default.
development: true
`

// Backend is the backend's configuration. Stores is the redis, mysql and queue sections, as YAML.
func Backend(a Addrs, stores, logLevel string) []byte {
	return fmt.Appendf(nil, head+`
listen:
  internal: %s
  admin: %s

admin_token: %s
admin_session_key: %s

signing_keys:
  - id: %s
    secret: %s

payments:
  providers:
    - name: %s
      secrets: [%s]

%s
log:
  level: %s
`, "backend", a.Internal, a.Admin, AdminToken, SessionKey, SigningKeyID, SigningSecret, Provider, PaymentSecret, stores, logLevel)
}

// Gateway is the gateway's configuration: with the limits of production, but for loopback, so that a crowd on one machine
// is not one client.
func Gateway(a Addrs, logLevel string) []byte {
	return fmt.Appendf(nil, head+`
listen:
  public: %s
  ops: %s

backends: ["http://%s"]
signing_key:
  id: %s
  secret: %s

identity:
  keys:
    - kid: %s
      alg: HS256
      secret: %s
      sign: true # gateway token may mint with it

# The limits of production, but for loopback: a crowd on one machine is not one client.
limits:
  order: {rate: 0.2, burst: 1, max_keys: 1000000}
  read: {rate: 10, burst: 20, max_keys: 1000000}
  ip: {rate: 50, burst: 100, max_keys: 1000000}
  ip_exempt: ["127.0.0.0/8", "::1/128"]

log:
  level: %s
`, "gateway", a.Public, a.Ops, a.Internal, SigningKeyID, SigningSecret, LoginKeyID, LoginSecret, logLevel)
}
