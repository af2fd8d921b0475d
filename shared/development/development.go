// Package development is what every development system has in common, embedded or on real servers: its secrets, its two
// configurations, its sample sales, and a client of its admin API. The binaries know nothing of it; they warn when they see
// its secrets, and refuse them on anything but loopback.
package development

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// The secrets.
const (
	AdminToken    = "dev-admin"
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
`, "backend", a.Internal, a.Admin, AdminToken, SigningKeyID, SigningSecret, Provider, PaymentSecret, stores, logLevel)
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

// Admin is a client of the admin API at an address. It keeps no connection.
type Admin string

// Do sends in as JSON, unless it is nil, and reads the answer into out, unless that is nil. An answer outside 2xx is an
// error with its body.
func (a Admin) Do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+string(a)+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+AdminToken)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Close = true // a few calls: no connection is kept that would have to be drained
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.500s", method, path, res.Status, b)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: %w in %.500s", method, path, err, b)
	}
	return nil
}

// NewSale is the body that creates a sale: see the contract.
type NewSale struct {
	Kind         string    `json:"kind"`
	Title        string    `json:"title"`
	Price        int64     `json:"price"`
	Currency     string    `json:"currency"`
	Stock        int       `json:"stock"`
	StartsAt     time.Time `json:"starts_at"`
	EndsAt       time.Time `json:"ends_at"`
	PerUserLimit int       `json:"per_user_limit"`
	PayWithin    int       `json:"pay_within_s,omitempty"` // seconds
}

// CreateSale returns the new sale's id.
func (a Admin) CreateSale(ctx context.Context, n NewSale) (int64, error) {
	var made struct {
		ID int64 `json:"id"`
	}
	if err := a.Do(ctx, http.MethodPost, "/admin/v1/sales", n, &made); err != nil {
		return 0, fmt.Errorf("create sale %q: %w", n.Title, err)
	}
	return made.ID, nil
}

// Samples creates the sales of a first look: one that is open, one that opens in a minute, and a coupon; and two SKUs for
// carts. Where there is a sale already it creates none, and returns none. What it returns are the sales.
func (a Admin) Samples(ctx context.Context) (ids []int64, err error) {
	var list struct {
		Sales []json.RawMessage `json:"sales"`
	}
	if err := a.Do(ctx, http.MethodGet, "/admin/v1/sales", nil, &list); err != nil || len(list.Sales) > 0 {
		return nil, err
	}
	now := time.Now().UTC().Truncate(time.Second)
	end := now.Add(24 * time.Hour)
	for _, n := range []NewSale{
		{Kind: "goods", Title: "Mechanical keyboard", Price: 4900, Currency: "EUR", Stock: 100, PerUserLimit: 1, PayWithin: 600, StartsAt: now, EndsAt: end},
		{Kind: "goods", Title: "Noise-cancelling headphones", Price: 9900, Currency: "EUR", Stock: 50, PerUserLimit: 1, PayWithin: 600, StartsAt: now.Add(time.Minute), EndsAt: end},
		{Kind: "coupon", Title: "10 off your next order", Price: 0, Currency: "EUR", Stock: 200, PerUserLimit: 1, StartsAt: now, EndsAt: end},
	} {
		id, err := a.CreateSale(ctx, n)
		if err != nil {
			return ids, err
		}
		ids = append(ids, id)
	}
	for _, n := range []NewSKU{{"USB-C cable", 900, "EUR", 500}, {"Mouse pad", 1500, "EUR", 80}} {
		if err := a.Do(ctx, http.MethodPost, "/admin/v1/skus", n, nil); err != nil {
			return ids, fmt.Errorf("create SKU %q: %w", n.Title, err)
		}
	}
	return ids, nil
}

// NewSKU is the body that creates a SKU.
type NewSKU struct {
	Title    string `json:"title"`
	Price    int64  `json:"price"`
	Currency string `json:"currency"`
	Stock    int    `json:"stock"`
}
