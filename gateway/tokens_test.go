package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/wire"
)

// revocations answers for the list of revoked tokens.
func (p *peer) revocations(ctx *fasthttp.RequestCtx) {
	since, err := ctx.QueryArgs().GetUint("since")
	waitMS, _ := ctx.QueryArgs().GetUint("wait_ms")
	timeout := time.NewTimer(time.Duration(max(0, waitMS)) * time.Millisecond)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		list, news, off := wire.Revocations{Version: int64(len(p.revoked)), Full: err != nil, KeepMS: p.keepMS, Now: wire.At(p.now())}, p.news, p.silent || p.server == nil
		if list.KeepMS == 0 {
			list.KeepMS = (20 * 365 * 24 * time.Hour).Milliseconds()
		}
		list.Entries = p.revoked[min(max(since, 0), len(p.revoked)):]
		p.mu.Unlock()
		if off {
			ctx.SetStatusCode(503)
			return
		}
		if !list.Full && len(list.Entries) == 0 {
			select {
			case <-news:
				continue
			case <-timeout.C:
			}
		}
		b, _ := json.Marshal(list)
		ctx.SetBody(b)
		return
	}
}

// revoke adds an entry, and tells who waits for news.
func (p *peer) revoke(r wire.Revocation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Until.IsZero() {
		r.Until = wire.At(p.now().Add(time.Hour))
	}
	p.revoked = append(p.revoked, r)
	close(p.news)
	p.news = make(chan struct{})
}

// login is a login service with a key pair that it publishes.
type login struct {
	*httptest.Server
	key *ecdsa.PrivateKey
	set atomic.Pointer[string]
}

func newLogin(t *testing.T) *login {
	l := &login{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, *l.set.Load()) }))
	t.Cleanup(l.Close)
	l.rotate(t, "first")
	return l
}

func (l *login) rotate(t *testing.T, kid string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	l.key = key
	b64 := base64.RawURLEncoding.EncodeToString
	set := fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","use":"sig","kid":%q,"x":%q,"y":%q}]}`, kid, b64(point[1:33]), b64(point[33:]))
	l.set.Store(&set)
}

func TestKeysOfALoginService(t *testing.T) {
	p := newPeer(t)
	p.on(echo)
	l := newLogin(t)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	t.Cleanup(broken.Close)
	text := func(jwks string) string {
		return configText([]string{p.addr}, with("identity:\n", "identity:\n  jwks: "+jwks+"\n"))
	}
	g := run(t, []string{p.addr}, func(string) string { return text(fmt.Sprintf("{url: %q}", l.URL)) })
	claims := jwt.MapClaims{"sub": "9", "exp": p.now().Add(time.Hour).Unix()}
	first := signed(t, jwt.SigningMethodES256, "first", l.key, claims)
	if a := g.do("GET", "/v1/orders", first); a.code != 200 {
		t.Fatalf("a token of the login service: got %v", a)
	}
	if a := g.do("GET", "/v1/orders", g.as("7")); a.code != 200 {
		t.Errorf("a token of the configuration's key: got %v", a)
	}
	// A change beside the keys leaves the set; one of its place needs a set there.
	g.write(strings.Replace(text(fmt.Sprintf("{url: %q}", l.URL)), "rate: 0.2", "rate: 0.3", 1))
	if a := g.reload(); a.code != 200 {
		t.Errorf("another limit: got %v", a)
	}
	generation := g.generation()
	for _, bad := range []string{fmt.Sprintf("{url: %q}", broken.URL), `{url: "http://127.0.0.1:1/"}`, "{file: nowhere.json}"} {
		g.write(text(bad))
		if a := g.reload(); a.code != 400 || !strings.Contains(a.body, "identity.jwks") || g.generation() != generation {
			t.Errorf("%s: got %v", bad, a)
		}
		if a := g.do("GET", "/v1/orders", first); a.code != 200 {
			t.Errorf("%s: the keys are gone: got %v", bad, a)
		}
	}
	if err := checkFile(t, text(fmt.Sprintf("{url: %q}", broken.URL))); err == nil || !strings.Contains(err.Error(), "identity.jwks.url: the keys cannot be read: it answers with status 500") {
		t.Errorf("gateway check: got %v", err)
	}
	if err := checkFile(t, text(fmt.Sprintf("{url: %q}", l.URL))); err != nil {
		t.Errorf("gateway check: got %v", err)
	}
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, []byte(*l.set.Load()), 0o600); err != nil {
		t.Fatal(err)
	}
	g.write(text(fmt.Sprintf("{file: %q}", file)))
	g.until("the file is taken over", func() bool { return g.reload().code == 200 })
	if a := g.do("GET", "/v1/orders", first); a.code != 200 {
		t.Errorf("by a file: got %v", a)
	}
	l.rotate(t, "second")
	if err := os.WriteFile(file, []byte(*l.set.Load()), 0o600); err != nil {
		t.Fatal(err)
	}
	second := signed(t, jwt.SigningMethodES256, "second", l.key, claims)
	g.until("the changed file is read", func() bool { return g.do("GET", "/v1/orders", second).code == 200 })
	if a := g.do("GET", "/v1/orders", first); a.code != 401 {
		t.Errorf("a token of the key that went: got %v", a)
	}
	g.write(configText([]string{p.addr}))
	g.until("the set goes", func() bool { return g.reload().code == 200 })
	if a := g.do("GET", "/v1/orders", second); a.code != 401 {
		t.Errorf("a token of the set that went: got %v", a)
	}
	if metrics := g.do("GET", "http://"+g.ops+"/metrics").body; !strings.Contains(metrics, "gateway_jwks_keys 0") || !strings.Contains(metrics, "gateway_jwks_age_seconds -1") ||
		strings.Contains(metrics, `gateway_jwks_reads_total{result="failed"} 0`) {
		t.Error("the metrics of the set are wrong")
	}
}

func checkFile(t *testing.T, text string) error {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return checkCommand{Config: file}.run(t.Context(), io.Discard)
}

// A gateway whose login service cannot be asked at the start is not ready, and becomes so.
func TestALoginServiceThatComesLater(t *testing.T) {
	p := newPeer(t)
	p.on(echo)
	l := newLogin(t)
	good := *l.set.Load()
	bad := `{"keys":[]}`
	l.set.Store(&bad)
	g := launch(t, []string{p.addr}, with("identity:\n", fmt.Sprintf("identity:\n  jwks: {url: %q}\n", l.URL)))
	ready := func() answer { return g.do("GET", "http://"+g.ops+"/-/ready") }
	g.until("it says why it is not ready", func() bool { return strings.Contains(ready().body, "identity.jwks were never read: no key") })
	if a := ready(); a.code != 503 {
		t.Errorf("got %v", a)
	}
	l.set.Store(&good)
	g.until("it is ready", func() bool { return ready().code == 200 })
	if a := g.do("GET", "/v1/orders", signed(t, jwt.SigningMethodES256, "first", l.key, jwt.MapClaims{"sub": "9", "exp": p.now().Add(time.Hour).Unix()})); a.code != 200 {
		t.Errorf("got %v", a)
	}
}

// A revocation counts for tokens that were verified before, by the API of the backends and by the configuration.
func TestTokensAreRevoked(t *testing.T) {
	p := newPeer(t)
	p.on(echo)
	p.revoke(wire.Revocation{JTI: "gone-before"})
	g := run(t, []string{p.addr})
	key := []byte("dev-login-secret-for-tests-only-000001")
	token := func(uid, jti string) string {
		return signed(t, jwt.SigningMethodHS256, "dev-login", key, jwt.MapClaims{"sub": uid, "jti": jti, "iat": p.now().Unix(), "exp": p.now().Add(time.Hour).Unix()})
	}
	a, b, c := token("7", "a"), token("7", "b"), token("8", "c")
	code := func(token string) int { return g.do("GET", "/v1/orders", token).code }
	for _, t1 := range []string{a, b, c} {
		if code(t1) != 200 {
			t.Fatal("a good token is refused")
		}
	}
	if got := g.do("GET", "/v1/orders", token("7", "gone-before")); got.code != 401 || !strings.Contains(got.body, "revoked") || got.problem() != "UNAUTHENTICATED" {
		t.Errorf("revoked before the gateway began: got %v", got)
	}
	p.revoke(wire.Revocation{JTI: "a"})
	g.until("the token is revoked", func() bool { return code(a) == 401 })
	if code(b) != 200 || code(c) != 200 {
		t.Error("another token is refused")
	}
	p.revoke(wire.Revocation{UID: "7", Before: wire.At(p.now().Add(time.Second))})
	g.until("the user's tokens are revoked", func() bool { return code(b) == 401 })
	p.revoke(wire.Revocation{UID: "7", Until: wire.At(p.now().Add(time.Hour)), Gone: true})
	g.until("that is taken back", func() bool { return code(b) == 200 })
	if code(a) != 401 || code(c) != 200 {
		t.Error("the other revocation was taken back, too")
	}
	g.write(configText([]string{p.addr}, with("identity:\n", "identity:\n  revoked: [{jti: c}, {uid: \"7\", before: 2100-01-01T00:00:00Z}]\n")))
	g.until("the configuration is taken over", func() bool { return g.reload().code == 200 && code(c) == 401 })
	if code(b) != 401 || g.do("GET", "/v1/orders", g.as("9")).code != 200 {
		t.Error("the configuration's list does not hold for a user, or holds for all")
	}
	g.write(configText([]string{p.addr}))
	g.until("the configuration's list is empty", func() bool { return g.reload().code == 200 && code(c) == 200 })
}

// What an operator must know of the list is in /-/ready.
func TestReadinessTellsOfTheRevocations(t *testing.T) {
	p := newPeer(t)
	p.keepMS = time.Hour.Milliseconds()
	g := run(t, []string{p.addr})
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 200 || !strings.Contains(a.body, "the backends keep revocations for 1h0m0s, and tokens live for up to 8760h0m30s") {
		t.Errorf("got %v", a)
	}
	if metrics := g.do("GET", "http://"+g.ops+"/metrics").body; !strings.Contains(metrics, "gateway_revocations 0") || strings.Contains(metrics, "gateway_revocations_age_seconds -1") {
		t.Error("the metrics of the list are wrong")
	}
}

// A page of an origin of the list can read every answer, refusals included; nobody else's can read any.
func TestOrigins(t *testing.T) {
	p := newPeer(t)
	p.set(1, func(s *wire.Sale) { s.State = wire.SoldOut })
	p.on(echo)
	const shop = "Origin: https://shop.example"
	g := run(t, []string{p.addr}, with("feed: {", "cors: {origins: [\"https://shop.example\", \"http://127.0.0.1:99\"], max_age: 5m}\nfeed: {"))
	for _, c := range []struct {
		method, path string
		extra        []string
		code         int
	}{
		{"GET", "/v1/orders", []string{g.as("7")}, 200},
		{"GET", "/v1/orders", nil, 401},
		{"POST", "/v1/sales/1/orders", []string{g.as("7")}, 409},
		{"POST", "/v1/sales/1/orders", nil, 409},
		{"GET", "/v1/sales/1", nil, 0},
		{"GET", "/nowhere", nil, 404},
		{"PUT", "/v1/orders", nil, 405},
		{"GET", "/v1/%6frders", nil, 400},
	} {
		for _, o := range []struct {
			origin string
			ok     bool
		}{{shop, true}, {"Origin: http://127.0.0.1:99", true}, {"Origin: https://shop.example.evil.example", false}, {"Origin: https://SHOP.example", false}, {"Origin: http://shop.example", false},
			{"Origin: null", false}, {"Origin: ", false}, {"X-Other: https://shop.example", false}} {
			a := g.do(c.method, c.path, append([]string{o.origin}, c.extra...)...)
			got := a.header.Get("Access-Control-Allow-Origin")
			if c.code != 0 && a.code != c.code || (got != "") != o.ok || o.ok && "Origin: "+got != o.origin {
				t.Errorf("%s %s, %s: got %v with %q", c.method, c.path, o.origin, a, got)
			}
			if o.ok && (!strings.Contains(a.header.Get("Vary"), "Origin") || !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "X-Request-Id") || !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "Retry-After")) {
				t.Errorf("%s %s, %s: got %v", c.method, c.path, o.origin, a.header)
			}
			if a.header.Get("Access-Control-Allow-Credentials") != "" {
				t.Errorf("%s %s: credentials are allowed", c.method, c.path)
			}
		}
	}
	// What caches keep varies by the origin, whoever asks.
	if a := g.do("GET", "/"); a.header.Get("Vary") != "Accept-Encoding, Origin" || a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a page: got %v", a.header)
	}
	// The session cookie stays this site's own.
	cookie, _, _ := strings.Cut(g.do("POST", "/v1/dev/session", `{"uid":"7"}`).header.Get("Set-Cookie"), ";")
	for _, site := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "X-None: 1"} {
		if a := g.do("POST", "/v1/orders/"+orderID+"/payment", "Cookie: "+cookie, shop, site); a.code != 403 {
			t.Errorf("a write by cookie from a page of the list, %s: got %v", site, a)
		}
	}
}

func TestPreflight(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	asks := []string{"Origin: https://shop.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,idempotency-key"}
	g := run(t, []string{p.addr}, with("feed: {", "cors: {origins: [\"https://shop.example\"], max_age: 5m}\nfeed: {"))
	a := g.do("OPTIONS", "/v1/sales/1/orders", asks...)
	h := a.header
	if a.code != 204 || a.body != "" || h.Get("Access-Control-Allow-Origin") != "https://shop.example" || h.Get("Access-Control-Allow-Methods") != "POST" ||
		!strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "Idempotency-Key") ||
		h.Get("Access-Control-Max-Age") != "300" || h.Get("Access-Control-Allow-Credentials") != "" || !strings.Contains(h.Get("Vary"), "Origin") {
		t.Errorf("got %v %v", a, h)
	}
	if a := g.do("OPTIONS", "/v1/sales/1/standby", asks...); a.header.Get("Access-Control-Allow-Methods") != "GET, POST, DELETE" {
		t.Errorf("got %v %v", a, a.header)
	}
	for what, c := range map[string]struct {
		path  string
		extra []string
		code  int
	}{
		"another origin":         {"/v1/sales/1/orders", []string{"Origin: https://evil.example", asks[1]}, 405},
		"no origin":              {"/v1/sales/1/orders", asks[1:], 405},
		"no method asked for":    {"/v1/sales/1/orders", asks[:1], 405},
		"a body":                 {"/v1/sales/1/orders", append([]string{`{"a":1}`}, asks...), 405},
		"no such path":           {"/v1/nowhere", asks, 404},
		"a path that is no path": {"/v1//orders", asks, 400},
	} {
		if a := g.do("OPTIONS", c.path, c.extra...); a.code != c.code || a.header.Get("Access-Control-Allow-Methods") != "" {
			t.Errorf("%s: got %v %v, want %d", what, a, a.header, c.code)
		}
	}
	// It draws on the address's bucket, and on nothing else.
	g.write(configText([]string{p.addr}, with("feed: {", "cors: {origins: [\"https://shop.example\"]}\nfeed: {"), with(`ip_exempt: ["127.0.0.0/8"]`, "ip_exempt: []"), with("burst: 100", "burst: 3")))
	g.until("the address has limits", func() bool { return g.reload().code == 200 && g.generation() > 1 })
	g.until("preflights are refused", func() bool {
		a := g.do("OPTIONS", "/v1/sales/1/orders", asks...)
		return a.problem() == "RATE_LIMITED" && a.header.Get("Access-Control-Allow-Origin") != "" && a.header.Get("RateLimit") != ""
	})
}
