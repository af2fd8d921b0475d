package identity

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

type fixture struct {
	*Verifier
	pub  ed25519.PublicKey
	priv ed25519.PrivateKey
	now  time.Time
}

const secret = "0123456789abcdef0123456789abcdef"

func setup(t *testing.T) *fixture {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{pub: pub, priv: priv, now: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)}
	f.Verifier, err = NewVerifier([]Key{
		{KID: "ed", Alg: "EdDSA", PublicKey: base64.StdEncoding.EncodeToString(pub)},
		{KID: "hs", Alg: "HS256", Secret: secret, Sign: true},
	}, 30*time.Second, func() time.Time { return f.now })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func b64(v any) string {
	b, ok := v.([]byte)
	if !ok {
		if s, isText := v.(string); isText {
			b = []byte(s)
		} else {
			b, _ = json.Marshal(v)
		}
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

type m = map[string]any

func hs(header, claims any, key string) string {
	text := b64(header) + "." + b64(claims)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return text + "." + b64(mac.Sum(nil))
}

func (f *fixture) ed(header, claims any) string {
	text := b64(header) + "." + b64(claims)
	return text + "." + b64(ed25519.Sign(f.priv, []byte(text)))
}

// Row D11: only a valid token is a login.
func TestTokens(t *testing.T) {
	f := setup(t)
	unix := f.now.Unix()
	good := m{"sub": "7", "exp": unix + 60}
	hsHead, edHead := m{"alg": "HS256", "kid": "hs"}, m{"alg": "EdDSA", "kid": "ed"}
	with := func(kv ...any) m {
		c := m{"sub": "7", "exp": unix + 60}
		for i := 0; i < len(kv); i += 2 {
			if kv[i+1] == nil {
				delete(c, kv[i].(string))
			} else {
				c[kv[i].(string)] = kv[i+1]
			}
		}
		return c
	}
	pemPub, _ := x509.MarshalPKIXPublicKey(f.pub)
	pemText := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pemPub}))
	parts := strings.Split(hs(hsHead, good, secret), ".")
	cases := []struct {
		name, token string
		want        error
	}{
		{"HS256", hs(hsHead, good, secret), nil},
		{"EdDSA", f.ed(edHead, good), nil},
		{"iat in the past", hs(hsHead, with("iat", unix-5), secret), nil},
		{"expired within the leeway", hs(hsHead, with("exp", unix-29), secret), nil},
		{"nbf within the leeway", hs(hsHead, with("nbf", unix+29), secret), nil},
		{"nothing", "", ErrMissing},
		{"expired", hs(hsHead, with("exp", unix-31), secret), ErrExpired},
		{"nbf", hs(hsHead, with("nbf", unix+31), secret), ErrEarly},
		{"iat to come", hs(hsHead, with("iat", unix+31), secret), ErrEarly},
		{"no exp", hs(hsHead, with("exp", nil), secret), ErrInvalid},
		{"exp a string", hs(hsHead, with("exp", "tomorrow"), secret), ErrInvalid},
		{"no sub", hs(hsHead, with("sub", nil), secret), ErrSubject},
		{"sub empty", hs(hsHead, with("sub", ""), secret), ErrSubject},
		{"sub a number", hs(hsHead, with("sub", 7), secret), ErrInvalid},
		{"sub an array", hs(hsHead, with("sub", []string{"7"}), secret), ErrInvalid},
		{"sub an object", hs(hsHead, with("sub", m{}), secret), ErrInvalid},
		{"sub of 65", hs(hsHead, with("sub", strings.Repeat("a", 65)), secret), ErrSubject},
		{"sub of 2 KB", hs(hsHead, with("sub", strings.Repeat("a", 2<<10)), secret), ErrSubject},
		{"sub of 10 KB", hs(hsHead, with("sub", strings.Repeat("a", 10<<10)), secret), ErrInvalid},
		{"sub with a newline", hs(hsHead, with("sub", "7\n"), secret), ErrSubject},
		{"sub with NUL", hs(hsHead, with("sub", "7\x00"), secret), ErrSubject},
		{"sub with a space", hs(hsHead, with("sub", "7 8"), secret), ErrSubject},
		{"sub a path", hs(hsHead, with("sub", "../7"), secret), ErrSubject},
		{"sub in another script", hs(hsHead, with("sub", "пять"), secret), ErrSubject},
		{"wrong secret", hs(hsHead, good, secret+"x"), ErrInvalid},
		{"HS256 with the public key, base64", hs(m{"alg": "HS256", "kid": "ed"}, good, base64.StdEncoding.EncodeToString(f.pub)), ErrInvalid},
		{"HS256 with the public key, raw", hs(m{"alg": "HS256", "kid": "ed"}, good, string(f.pub)), ErrInvalid},
		{"HS256 with the public key, PEM", hs(m{"alg": "HS256", "kid": "ed"}, good, pemText), ErrInvalid},
		{"EdDSA under the HS256 kid", f.ed(m{"alg": "EdDSA", "kid": "hs"}, good), ErrInvalid},
		{"kid of the other key", hs(m{"alg": "HS256", "kid": "ed"}, good, secret), ErrInvalid},
		{"unknown kid", hs(m{"alg": "HS256", "kid": "other"}, good, secret), ErrInvalid},
		{"no kid", hs(m{"alg": "HS256"}, good, secret), ErrInvalid},
		{"kid empty", hs(m{"alg": "HS256", "kid": ""}, good, secret), ErrInvalid},
		{"kid a number", hs(m{"alg": "HS256", "kid": 1}, good, secret), ErrInvalid},
		{"kid an array", hs(m{"alg": "HS256", "kid": []string{"hs"}}, good, secret), ErrInvalid},
		{"kid a path", hs(m{"alg": "HS256", "kid": "../../dev/null"}, good, secret), ErrInvalid},
		{"kid a path, empty key", hs(m{"alg": "HS256", "kid": "/dev/null"}, good, ""), ErrInvalid},
		{"kid an injection", hs(m{"alg": "HS256", "kid": "hs' OR 1=1"}, good, secret), ErrInvalid},
		{"kid with NUL", hs(m{"alg": "HS256", "kid": "hs\x00"}, good, secret), ErrInvalid},
		{"no alg", hs(m{"kid": "hs"}, good, secret), ErrInvalid},
		{"alg none", hs(m{"alg": "none", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg none, unsigned", b64(m{"alg": "none", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg None", b64(m{"alg": "None", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg nOnE", b64(m{"alg": "nOnE", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg empty", b64(m{"alg": "", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg hs256", hs(m{"alg": "hs256", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg HS384", hs(m{"alg": "HS384", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg HS512", hs(m{"alg": "HS512", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg RS256", hs(m{"alg": "RS256", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg ES256", hs(m{"alg": "ES256", "kid": "ed"}, good, secret), ErrInvalid},
		{"alg a number", hs(m{"alg": 256, "kid": "hs"}, good, secret), ErrInvalid},
		{"jwk in the header", hs(m{"alg": "HS256", "jwk": m{"kty": "oct", "k": b64("k")}}, good, "k"), ErrInvalid},
		{"crit", hs(m{"alg": "HS256", "kid": "hs", "crit": []string{"b64"}, "b64": false}, good, secret), ErrInvalid},
		{"unsigned", parts[0] + "." + parts[1] + ".", ErrInvalid},
		{"two parts", parts[0] + "." + parts[1], ErrInvalid},
		{"four parts", strings.Join(parts, ".") + ".x", ErrInvalid},
		{"dots", "..", ErrInvalid},
		{"one dot", ".", ErrInvalid},
		{"rubbish", "rubbish", ErrInvalid},
		{"padding", strings.Join(parts, ".") + "=", ErrInvalid},
		{"a space at the end", strings.Join(parts, ".") + " ", ErrInvalid},
		{"a newline inside", parts[0] + "." + parts[1] + ".\n" + parts[2], ErrInvalid},
		{"claims of another token", parts[0] + "." + b64(with("sub", "8")) + "." + parts[2], ErrInvalid},
		{"header no JSON", hs("x", good, secret), ErrInvalid},
		{"header an array", hs([]any{}, good, secret), ErrInvalid},
		{"header null", hs("null", good, secret), ErrInvalid},
		{"claims no JSON", hs(hsHead, "x", secret), ErrInvalid},
		{"claims an array", hs(hsHead, []any{}, secret), ErrInvalid},
		{"claims null", hs(hsHead, "null", secret), ErrInvalid},
		{"10 KB", strings.Repeat("a", 10<<10), ErrInvalid},
	}
	for round := range 2 { // the second time from memory
		for _, c := range cases {
			who, err := f.Verify([]byte(c.token))
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || (err == nil && who.UID != "7") {
				t.Errorf("%s, round %d: got %+v, %v; want %v", c.name, round, who, err, c.want)
			}
		}
	}
	t.Logf("%d tokens", len(cases))
}

// Every single-character change of a good token is refused, also when the good one is remembered.
func TestMutations(t *testing.T) {
	f := setup(t)
	for _, good := range []string{
		hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "exp": f.now.Unix() + 60}, secret),
		f.ed(m{"alg": "EdDSA", "kid": "ed"}, m{"sub": "7", "exp": f.now.Unix() + 60}),
	} {
		if _, err := f.Verify([]byte(good)); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range good {
			for _, c := range []byte{'A', 'b', '.', '_', 0} {
				if good[i] == c {
					continue
				}
				bad := []byte(good)
				bad[i] = c
				if who, err := f.Verify(bad); err == nil {
					t.Fatalf("byte %d as %q: got %+v", i, c, who)
				}
				n++
			}
			if _, err := f.Verify([]byte(good[:i])); err == nil {
				t.Fatalf("cut at %d: accepted", i)
			}
		}
		t.Logf("%d mutations", n)
	}
}

func TestRememberedTokenExpires(t *testing.T) {
	f := setup(t)
	token := []byte(hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "exp": f.now.Unix() + 60}, secret))
	if _, err := f.Verify(token); err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(89 * time.Second)
	if _, err := f.Verify(token); err != nil {
		t.Errorf("within the leeway: %v", err)
	}
	f.now = f.now.Add(time.Second)
	if _, err := f.Verify(token); !errors.Is(err, ErrExpired) {
		t.Errorf("got %v, want ErrExpired", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	f := setup(t)
	for i := range shards*perShard + 5000 {
		f.seen.put(fmt.Sprintf("token-%d", i), Who{UID: "7"})
	}
	f.seen.put(strings.Repeat("a", maxSeen+1), Who{UID: "7"})
	n := 0
	for i := range f.seen.shards {
		n += len(f.seen.shards[i].tokens)
	}
	if n > shards*perShard || n < shards*perShard*9/10 {
		t.Errorf("got %d remembered, want at most %d", n, shards*perShard)
	}
	if _, ok := f.seen.get([]byte(strings.Repeat("a", maxSeen+1))); ok {
		t.Error("a long token is remembered")
	}
}

func TestMint(t *testing.T) {
	f := setup(t)
	k, ok := Signing([]Key{{KID: "ed", Alg: "EdDSA"}, {KID: "hs", Alg: "HS256", Secret: secret, Sign: true}})
	if !ok || k.KID != "hs" {
		t.Fatalf("got %+v, %v", k, ok)
	}
	token, expires, err := Mint(k, "alice", f.now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := f.Verify([]byte(token)); err != nil || who.UID != "alice" || !who.Expires.Equal(expires) || !expires.Equal(f.now.Add(24*time.Hour)) {
		t.Errorf("got %+v, %v, %v", who, expires, err)
	}
	if _, _, err := Mint(k, "a b", f.now, time.Hour); err == nil {
		t.Error("minted for a uid that is none")
	}
	k.Sign = false
	if _, _, err := Mint(k, "a", f.now, time.Hour); err == nil {
		t.Error("minted with a key that may not sign")
	}
}

func TestKeyChecks(t *testing.T) {
	pub, _, _ := ed25519.GenerateKey(rand.Reader)
	der, _ := x509.MarshalPKIXPublicKey(pub)
	pemText := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	for _, good := range []string{base64.StdEncoding.EncodeToString(pub), pemText, base64.StdEncoding.EncodeToString(der)} {
		if err := (Key{KID: "a", Alg: "EdDSA", PublicKey: good}).Check(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for want, k := range map[string]Key{
		"kid:":           {Alg: "HS256", Secret: secret},
		"alg: \"RS256\"": {KID: "a", Alg: "RS256"},
		"secret: 5":      {KID: "a", Alg: "HS256", Secret: "short"},
		"public_key:":    {KID: "a", Alg: "EdDSA", PublicKey: "AAAA"},
		"sign:":          {KID: "a", Alg: "EdDSA", PublicKey: pemText, Sign: true},
		"an HS256 key":   {KID: "a", Alg: "HS256", Secret: secret, PublicKey: pemText},
		"an EdDSA key":   {KID: "a", Alg: "EdDSA", Secret: secret, PublicKey: pemText},
	} {
		if err := k.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %s", k, err, want)
		}
	}
	if _, err := NewVerifier([]Key{{KID: "a", Alg: "HS256", Secret: secret}, {KID: "a", Alg: "HS256", Secret: secret}}, 0, time.Now); err == nil {
		t.Error("a kid twice: accepted")
	}
}

func BenchmarkVerifyRemembered(b *testing.B) {
	v, _ := NewVerifier([]Key{{KID: "hs", Alg: "HS256", Secret: secret}}, 0, time.Now)
	token := []byte(hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "exp": time.Now().Unix() + 3600}, secret))
	b.ReportAllocs()
	for b.Loop() {
		v.Verify(token)
	}
}
