package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"
)

// pair is a key pair of a login service.
type pair struct {
	kid, alg string
	private  crypto.Signer
}

// rsaKey is one key for all tests: making one takes long.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newPair(kid, alg string) pair {
	switch alg {
	case "RS256":
		return pair{kid, alg, rsaKey()}
	case "ES256":
		return pair{kid, alg, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	default:
		_, private, err := ed25519.GenerateKey(rand.Reader)
		return pair{kid, alg, must(private, err)}
	}
}

// sign makes a token.
func (p pair) sign(header, claims any) string {
	text := b64(header) + "." + b64(claims)
	sum := sha256.Sum256([]byte(text))
	switch private := p.private.(type) {
	case ed25519.PrivateKey:
		return text + "." + b64(ed25519.Sign(private, []byte(text)))
	case *rsa.PrivateKey:
		return text + "." + b64(must(rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, sum[:])))
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, private, sum[:])
		if err != nil {
			panic(err)
		}
		return text + "." + b64(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
	}
	panic("BUG: a key that does not sign")
}

// token is a good one, for the user 7.
func (p pair) token(now time.Time, more ...any) string {
	claims := m{"sub": "7", "exp": now.Unix() + 60, "iat": now.Unix()}
	for i := 0; i < len(more); i += 2 {
		claims[more[i].(string)] = more[i+1]
	}
	return p.sign(m{"alg": p.alg, "kid": p.kid}, claims)
}

func (p pair) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(p.private.Public()))}))
}

func (p pair) jwk() m {
	k := m{"kid": p.kid, "alg": p.alg, "use": "sig"}
	switch public := p.private.Public().(type) {
	case ed25519.PublicKey:
		k["kty"], k["crv"], k["x"] = "OKP", "Ed25519", b64([]byte(public))
	case *rsa.PublicKey:
		k["kty"], k["n"], k["e"] = "RSA", b64(public.N.Bytes()), b64(big.NewInt(int64(public.E)).Bytes())
	case *ecdsa.PublicKey:
		point := must(public.Bytes())
		k["kty"], k["crv"], k["x"], k["y"] = "EC", "P-256", b64(point[1:33]), b64(point[33:])
	}
	return k
}

func setOf(keys ...m) string { return string(must(json.Marshal(m{"keys": keys}))) }

// A key's algorithm is its own: whatever a token says, no key verifies what another algorithm made of it.
func TestNoTokenChoosesItsAlgorithm(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	pairs := []pair{newPair("rs", "RS256"), newPair("es", "ES256"), newPair("ed", "EdDSA")}
	var keys []Key
	for _, p := range pairs {
		keys = append(keys, Key{KID: p.kid, Alg: p.alg, PublicKey: p.pem()})
	}
	v, err := NewVerifier(append(keys, Key{KID: "hs", Alg: "HS256", Secret: secret}), Rules{}, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	claims := m{"sub": "7", "exp": now.Unix() + 60}
	for _, p := range pairs {
		if who, err := v.Verify([]byte(p.token(now))); err != nil || who.UID != "7" {
			t.Errorf("%s: got %v, %v", p.alg, who, err)
		}
		der := must(x509.MarshalPKIXPublicKey(p.private.Public()))
		bad := map[string]string{
			"HS256 with the key's PEM":     hs(m{"alg": "HS256", "kid": p.kid}, claims, p.pem()),
			"HS256 with the key's DER":     hs(m{"alg": "HS256", "kid": p.kid}, claims, string(der)),
			"HS256 under its own kid":      hs(m{"alg": "HS256", "kid": "hs"}, claims, p.pem()),
			"none":                         b64(m{"alg": "none", "kid": p.kid}) + "." + b64(claims) + ".",
			"none, in capitals":            b64(m{"alg": "NONE", "kid": p.kid}) + "." + b64(claims) + ".",
			"no signature":                 b64(m{"alg": p.alg, "kid": p.kid}) + "." + b64(claims) + ".",
			"crit":                         p.sign(m{"alg": p.alg, "kid": p.kid, "crit": []string{"exp"}}, claims),
			"crit empty":                   p.sign(m{"alg": p.alg, "kid": p.kid, "crit": []string{}}, claims),
			"another alg":                  p.sign(m{"alg": "RS512", "kid": p.kid}, claims),
			"PSS of the same key":          p.sign(m{"alg": "PS256", "kid": p.kid}, claims),
			"no alg":                       p.sign(m{"kid": p.kid}, claims),
			"alg in lower case":            p.sign(m{"alg": strings.ToLower(p.alg), "kid": p.kid}, claims),
			"no kid":                       p.sign(m{"alg": p.alg}, claims),
			"an unknown kid":               p.sign(m{"alg": p.alg, "kid": p.kid + " "}, claims),
			"a key of its own in the head": p.sign(m{"alg": p.alg, "kid": "mine", "jwk": p.jwk()}, claims),
			"kid twice":                    p.sign(json.RawMessage(`{"alg":"`+p.alg+`","kid":"other","kid":"`+p.kid+`"}`), claims),
			"alg twice":                    p.sign(json.RawMessage(`{"alg":"none","alg":"`+p.alg+`","kid":"`+p.kid+`"}`), claims),
			"sub twice":                    p.sign(m{"alg": p.alg, "kid": p.kid}, json.RawMessage(`{"sub":"8","sub":"7","exp":9999999999}`)),
			"a jti that is a number":       p.sign(m{"alg": p.alg, "kid": p.kid}, m{"sub": "7", "exp": now.Unix() + 60, "jti": 7}),
		}
		for _, other := range pairs {
			if other.alg != p.alg {
				bad["signed by the "+other.alg+" key"] = other.sign(m{"alg": p.alg, "kid": p.kid}, claims)
				bad["the algorithm of the "+other.alg+" key"] = other.sign(m{"alg": other.alg, "kid": p.kid}, claims)
				bad["the kid of the "+other.alg+" key"] = p.sign(m{"alg": p.alg, "kid": other.kid}, claims)
			}
		}
		for name, token := range bad {
			if who, err := v.Verify([]byte(token)); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s, %s: got %v, %v, want ErrInvalid", p.alg, name, who, err)
			}
		}
	}
	// An ES256 signature is r and s of 32 bytes each, not ASN.1 (RFC 7518, 3.4).
	es := pairs[1]
	text := b64(m{"alg": "ES256", "kid": "es"}) + "." + b64(claims)
	sum := sha256.Sum256([]byte(text))
	if _, err := v.Verify([]byte(text + "." + b64(must(ecdsa.SignASN1(rand.Reader, es.private.(*ecdsa.PrivateKey), sum[:]))))); !errors.Is(err, ErrInvalid) {
		t.Errorf("a signature in ASN.1: got %v", err)
	}
}

func TestPublicKeysThatAreRefused(t *testing.T) {
	p384 := pair{private: must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))}
	spki := func(public any) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(public))}))
	}
	modulus := func(bits uint) *big.Int { return new(big.Int).SetBit(big.NewInt(1), int(bits)-1, 1) }
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(rsaKey()))}))
	rs, es, ed := newPair("a", "RS256"), newPair("a", "ES256"), newPair("a", "EdDSA")
	for _, c := range []struct{ name, alg, key, want string }{
		{"none", "RS256", "", "must be a PEM block PUBLIC KEY"},
		{"garbage", "ES256", "garbage", "must be a PEM block PUBLIC KEY"},
		{"base64 alone", "ES256", base64.StdEncoding.EncodeToString(must(x509.MarshalPKIXPublicKey(es.private.Public()))), "must be a PEM block PUBLIC KEY"},
		{"a private key", "RS256", private, "it is not one block PUBLIC KEY"},
		{"two keys", "RS256", rs.pem() + rs.pem(), "it is not one block PUBLIC KEY"},
		{"another kind for RS256", "RS256", es.pem(), "RS256 takes an RSA key"},
		{"another kind for ES256", "ES256", ed.pem(), "ES256 takes an EC key on P-256"},
		{"another kind for EdDSA", "EdDSA", rs.pem(), "EdDSA takes an Ed25519 key"},
		{"another curve", "ES256", p384.pem(), "a key on P-384, ES256 takes P-256"},
		{"a short RSA key", "RS256", spki(&rsa.PublicKey{N: modulus(2047), E: 65537}), "an RSA key of 2047 bits, must be 2048 to 8192"},
		{"a huge RSA key", "RS256", spki(&rsa.PublicKey{N: modulus(8193), E: 65537}), "an RSA key of 8193 bits, must be 2048 to 8192"},
		{"an exponent of 3", "RS256", spki(&rsa.PublicKey{N: rsaKey().N, E: 3}), "exponent 3"},
		{"an even exponent", "RS256", spki(&rsa.PublicKey{N: rsaKey().N, E: 65538}), "exponent 65538"},
		{"an even modulus", "RS256", spki(&rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2047), E: 65537}), "even modulus"},
	} {
		err := Key{KID: "a", Alg: c.alg, PublicKey: c.key}.Check()
		if err == nil || !strings.Contains(err.Error(), "public_key: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	for _, p := range []pair{rs, es, ed} {
		if err := (Key{KID: "a", Alg: p.alg, PublicKey: p.pem()}).Check(); err != nil {
			t.Errorf("%s: %v", p.alg, err)
		}
		if err := (Key{KID: "a", Alg: p.alg, PublicKey: p.pem(), Secret: secret}).Check(); err == nil || !strings.Contains(err.Error(), "secret: ") {
			t.Errorf("%s with a secret: %v", p.alg, err)
		}
	}
}

// edit is a JWK with other members; nil takes one away.
func edit(k m, kv ...any) m {
	out := m{}
	for name, v := range k {
		out[name] = v
	}
	for i := 0; i < len(kv); i += 2 {
		if out[kv[i].(string)] = kv[i+1]; kv[i+1] == nil {
			delete(out, kv[i].(string))
		}
	}
	return out
}

func TestSets(t *testing.T) {
	rs, es, ed := newPair("rs", "RS256").jwk(), newPair("es", "ES256").jwk(), newPair("ed", "EdDSA").jwk()
	var many []m
	for i := range maxSetKeys + 1 {
		many = append(many, edit(ed, "kid", fmt.Sprint(i)))
	}
	huge := b64(new(big.Int).SetBit(big.NewInt(1), 100_000, 1).Bytes())
	for _, c := range []struct {
		name, set     string
		keys, ignored int
		want          string // of the error
	}{
		{"all kinds", setOf(rs, es, ed), 3, 0, ""},
		{"no alg, no use", setOf(edit(rs, "alg", nil, "use", nil), edit(es, "alg", nil), edit(ed, "alg", nil)), 3, 0, ""},
		{"Ed25519 by its own name", setOf(edit(ed, "alg", "Ed25519")), 1, 0, ""},
		{"for verifying", setOf(edit(ed, "use", nil, "key_ops", []string{"verify"})), 1, 0, ""},
		{"with members that nobody knows", setOf(edit(rs, "x5c", []string{"A"}, "x5t", "B", "mine", m{"d": 1})), 1, 0, ""},
		{"a modulus with a leading zero", setOf(edit(rs, "n", b64(append([]byte{0}, rsaKey().N.Bytes()...)))), 1, 0, ""},
		{"one for encryption", setOf(edit(rs, "kid", "es", "use", "enc"), es), 1, 1, ""},
		{"one for signing alone", setOf(edit(rs, "key_ops", []string{"sign"}), es), 1, 1, ""},
		{"others' algorithms", setOf(edit(rs, "alg", "RS512"), edit(rs, "alg", "PS256"), edit(rs, "alg", "HS256"), edit(es, "crv", "P-384"), edit(ed, "crv", "X25519"), m{"kty": "new"}, es), 1, 6, ""},
		{"an algorithm of another kind", setOf(edit(rs, "alg", "ES256"), es), 1, 1, ""},
		{"one without kid", setOf(edit(rs, "kid", nil), es), 1, 1, ""},
		{"one with a long kid", setOf(edit(rs, "kid", strings.Repeat("a", maxKID+1)), es), 1, 1, ""},

		{"nothing", "", 0, 0, "not a JWK set"},
		{"garbage", "garbage", 0, 0, "not a JWK set"},
		{"a page", "<html></html>", 0, 0, "not a JWK set"},
		{"cut short", setOf(rs)[:100], 0, 0, "not a JWK set"},
		{"a list", "[]", 0, 0, "not a JWK set"},
		{"another object", "{}", 0, 0, "no key"},
		{"empty", `{"keys":[]}`, 0, 0, "no key"},
		{"null", `{"keys":null}`, 0, 0, "no key"},
		{"no list", `{"keys":{}}`, 0, 0, "not a JWK set"},
		{"a number", `{"keys":[1]}`, 0, 0, "keys[0]: not a JWK"},
		{"a kid that is a number", setOf(edit(rs, "kid", 7)), 0, 0, "keys[0]: not a JWK"},
		{"keys twice", `{"keys":[],"keys":[]}`, 0, 0, "not a JWK set"},
		{"a member twice", strings.Replace(setOf(ed), `"kid"`, `"kid":"other","kid"`, 1), 0, 0, "not a JWK set"},
		{"only of others", setOf(edit(rs, "use", "enc")), 0, 0, "no key"},
		{"two of one kid", setOf(rs, edit(es, "kid", "rs")), 0, 0, "keys[1]: its kid is there twice"},
		{"too many", setOf(many...), 0, 0, "at most 64"},
		{"too large", setOf(edit(rs, "x5c", strings.Repeat("a", maxSet))), 0, 0, "bytes"},
		{"a secret", setOf(rs, m{"kty": "oct", "k": "AAAA", "kid": "a"}), 0, 0, "keys[1]: a secret or private key"},
		{"a secret without one", setOf(rs, m{"kty": "oct"}), 0, 0, "keys[1]: a secret or private key"},
		{"a private RSA key", setOf(edit(rs, "d", "AAAA")), 0, 0, "keys[0]: a secret or private key"},
		{"a prime", setOf(edit(rs, "p", "AAAA")), 0, 0, "keys[0]: a secret or private key"},
		{"a private EC key", setOf(edit(es, "d", "AAAA")), 0, 0, "keys[0]: a secret or private key"},
		{"a private key for encryption", setOf(es, edit(rs, "use", "enc", "d", "AAAA")), 0, 0, "keys[1]: a secret or private key"},
		{"a short modulus", setOf(edit(rs, "n", b64(new(big.Int).SetBit(big.NewInt(1), 1023, 1).Bytes()))), 0, 0, "1024 bits"},
		{"a huge modulus", setOf(edit(rs, "n", huge)), 0, 0, "2048 to 8192 bits"},
		{"a huge exponent", setOf(edit(rs, "e", huge)), 0, 0, "keys[0]"},
		{"no exponent", setOf(edit(rs, "e", nil)), 0, 0, "exponent 0"},
		{"exponent 1", setOf(edit(rs, "e", "AQ")), 0, 0, "exponent 1"},
		{"padded", setOf(edit(ed, "x", ed["x"].(string)+"=")), 0, 0, "unpadded"},
		{"a line end", setOf(edit(ed, "x", ed["x"].(string)+"\n")), 0, 0, "unpadded"},
		{"a point with a short half", setOf(edit(es, "x", "AAAA")), 0, 0, "32 bytes"},
		{"a point elsewhere", setOf(edit(es, "x", b64(make([]byte, 32)), "y", b64(make([]byte, 32)))), 0, 0, "not on P-256"},
		{"a point without y", setOf(edit(es, "y", nil)), 0, 0, "32 bytes"},
	} {
		keys, ignored, err := parseSet([]byte(c.set))
		if c.want == "" {
			if err != nil || len(keys) != c.keys || len(ignored) != c.ignored {
				t.Errorf("%s: got %d keys, ignored %q, %v, want %d and %d", c.name, len(keys), ignored, err, c.keys, c.ignored)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) || len(keys) > 0 {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// Whatever a provider sends, it breaks nothing, and what is taken of it is a key within the bounds.
func FuzzSets(f *testing.F) {
	rs, es, ed := newPair("rs", "RS256").jwk(), newPair("es", "ES256").jwk(), newPair("ed", "EdDSA").jwk()
	for _, set := range []string{setOf(rs, es, ed), setOf(edit(rs, "e", "Aw")), setOf(edit(es, "use", "enc")), setOf(edit(ed, "d", "A")), `{"keys":[{}]}`} {
		f.Add([]byte(set))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, _, err := parseSet(b)
		if (err == nil) != (len(keys) > 0) || len(keys) > maxSetKeys {
			t.Fatalf("%d keys and %v", len(keys), err)
		}
		for kid, k := range keys {
			if kid == "" || len(kid) > maxKID || k.kid != kid || k.alg == "HS256" || fits(k.alg, k.key) != nil || !k.same(k) {
				t.Fatalf("%q: %+v", kid, k)
			}
		}
	})
}

// Whatever stands in public_key, it breaks nothing, and what is taken is a key within the bounds.
func FuzzPublicKeys(f *testing.F) {
	for _, alg := range []string{"RS256", "ES256", "EdDSA"} {
		f.Add(alg, newPair("a", alg).pem())
	}
	f.Fuzz(func(t *testing.T, alg, text string) {
		k, err := Key{KID: "a", Alg: alg, PublicKey: text}.verifying()
		if err == nil && (k.alg != alg || fits(alg, k.key) != nil) {
			t.Fatalf("%q, %q: taken", alg, text)
		}
	})
}
