package gateway

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	firstKey  = "    - {kid: dev-login, alg: HS256, secret: dev-login-secret-for-tests-only-000001, sign: true}\n"
	secondKey = "    - {kid: dev-next, alg: HS256, secret: dev-login-secret-for-tests-only-000002, sign: true}\n"
)

// signed is the header with a token of these claims.
func signed(t *testing.T, method jwt.SigningMethod, kid string, key any, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = kid
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return "Authorization: Bearer " + text
}

// Keys come and go by reload. While both are there both sign; when one is gone its tokens are worth nothing, remembered ones
// included, and a kid that comes back with another key or algorithm is another key.
func TestKeysRotate(t *testing.T) {
	p := newPeer(t)
	p.on(echo)
	g := run(t, []string{p.addr})
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	edKey := func(kid string) string {
		return fmt.Sprintf("    - {kid: %s, alg: EdDSA, public_key: %q}\n", kid, base64.StdEncoding.EncodeToString(public))
	}
	generation := 1
	keys := func(list string) {
		t.Helper()
		g.write(configText([]string{p.addr}, with(firstKey, list)))
		g.reload()
		generation++
		g.until("the keys are taken over", func() bool { return g.generation() == generation })
	}
	check := func(when, token string, code int) {
		t.Helper()
		for range 2 { // the second time from memory, where there is one
			if a := g.do("GET", "/v1/orders", token); a.code != code {
				t.Errorf("%s: got %v, want %d", when, a, code)
			}
		}
	}
	soon := p.now().Add(time.Hour).Unix()
	first := g.as("7")
	edFirst := signed(t, jwt.SigningMethodEdDSA, "dev-login", private, jwt.MapClaims{"sub": "9", "exp": soon})
	check("the first key alone", first, 200)

	keys(secondKey + firstKey)
	second := g.as("8")
	check("both: the first's", first, 200)
	check("both: the second's", second, 200)

	keys(secondKey + edKey("dev-ed"))
	check("the first is gone", first, 401)
	check("the second stays", second, 200)
	check("an EdDSA key comes", signed(t, jwt.SigningMethodEdDSA, "dev-ed", private, jwt.MapClaims{"sub": "9", "exp": soon}), 200)
	check("its token under the other's kid", signed(t, jwt.SigningMethodEdDSA, "dev-next", private, jwt.MapClaims{"sub": "9", "exp": soon}), 401)

	keys(edKey("dev-login") + secondKey)
	check("the first's kid is an EdDSA key's now", first, 401)
	check("the EdDSA key under its new kid", edFirst, 200)

	keys(firstKey)
	check("the first is back", first, 200)
	check("the second is gone", second, 401)
	check("the EdDSA key is gone", edFirst, 401)
}

// Tokens end, and begin, by the shop's clock and not the machine's, which is an hour ahead here.
func TestTokensGoByTheShopsClock(t *testing.T) {
	p := newPeer(t)
	p.on(echo)
	g := run(t, []string{p.addr}) // with the default leeway of 30 s
	key := []byte("dev-login-secret-for-tests-only-000001")
	token := func(claims jwt.MapClaims) string {
		claims["sub"] = "7"
		return signed(t, jwt.SigningMethodHS256, "dev-login", key, claims)
	}
	now, later := p.now(), p.now().Add(24*time.Hour).Unix()
	for what, c := range map[string]struct {
		claims jwt.MapClaims
		code   int
	}{
		"expired on the machine's clock alone":        {jwt.MapClaims{"exp": now.Add(30 * time.Minute).Unix()}, 200},
		"expired":                                     {jwt.MapClaims{"exp": now.Add(-time.Minute).Unix()}, 401},
		"begun on the machine's clock alone":          {jwt.MapClaims{"exp": later, "nbf": now.Add(30 * time.Minute).Unix()}, 401},
		"issued now on the machine's clock":           {jwt.MapClaims{"exp": later, "iat": time.Now().Unix()}, 401},
		"issued a moment ahead, within the leeway":    {jwt.MapClaims{"exp": later, "iat": now.Add(20 * time.Second).Unix()}, 200},
		"begun long ago, and expires in a day's time": {jwt.MapClaims{"exp": later, "nbf": 1, "iat": now.Add(-24 * time.Hour).Unix()}, 200},
	} {
		if a := g.do("GET", "/v1/orders", token(c.claims)); a.code != c.code {
			t.Errorf("%s: got %v, want %d", what, a, c.code)
		}
	}
}

// What a token must say besides whose it is comes and goes by reload, for tokens that are remembered, too; the tokens of
// "gateway token" follow.
func TestRulesOfTokensAreReloaded(t *testing.T) {
	p := newPeer(t)
	p.on(echo)
	g := run(t, []string{p.addr})
	generation := 1
	rules := func(more string) {
		t.Helper()
		g.write(configText([]string{p.addr}, with("identity:\n", "identity:\n"+more)))
		g.reload()
		generation++
		g.until("the rules are taken over", func() bool { return g.generation() == generation })
	}
	plain := g.as("7")
	reset := signed(t, jwt.SigningMethodHS256, "dev-login", []byte("dev-login-secret-for-tests-only-000001"),
		jwt.MapClaims{"sub": "7", "aud": "password-reset", "exp": p.now().Add(time.Hour).Unix()})
	check := func(when, token string, code int) {
		t.Helper()
		for range 2 { // the second time from memory, where there is one
			if a := g.do("GET", "/v1/orders", token); a.code != code {
				t.Errorf("%s: got %v, want %d", when, a, code)
			}
		}
	}
	check("a token without an audience, without rules", plain, 200)
	check("a password reset, without rules", reset, 200)
	rules("  audience: [shop]\n")
	check("a token without an audience", plain, 401)
	check("a password reset", reset, 401)
	check("a minted token", g.as("7"), 200)
	rules("  issuer: [https://login.example]\n  audience: [shop, app]\n  types: [at+jwt]\n")
	check("a password reset, with all rules", reset, 401)
	check("a minted token, with all rules", g.as("7"), 200)
	if a := g.do("POST", "/v1/dev/session", `{"uid":"7"}`); a.code != 200 {
		t.Errorf("a session: got %v", a)
	} else {
		check("a session's token", "Cookie: "+strings.Split(a.header.Get("Set-Cookie"), ";")[0], 200)
	}
	rules("")
	check("without rules again", reset, 200)
}
