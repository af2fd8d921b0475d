package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of a JWK set.
const (
	maxSet     = 256 << 10 // bytes
	maxSetKeys = 64
)

// jwk is what is read of a key of a JWK set (RFC 7517; the members of each kind: RFC 7518, 6, and RFC 8037, 2).
type jwk struct {
	Kind  string    `json:"kty"`
	Use   string    `json:"use"`
	Ops   *[]string `json:"key_ops"`
	Alg   string    `json:"alg"`
	KID   string    `json:"kid"`
	Curve string    `json:"crv"`
	N     string    `json:"n"`
	E     string    `json:"e"`
	X     string    `json:"x"`
	Y     string    `json:"y"`

	// What no public key has.
	D     jsontext.Value `json:"d"`
	P     jsontext.Value `json:"p"`
	Q     jsontext.Value `json:"q"`
	DP    jsontext.Value `json:"dp"`
	DQ    jsontext.Value `json:"dq"`
	QI    jsontext.Value `json:"qi"`
	Other jsontext.Value `json:"oth"`
	K     jsontext.Value `json:"k"`
}

// parseSet reads a JWK set. It returns the keys that can verify tokens here, by kid, and why it leaves out others: a key of
// another kind, algorithm or use is nothing wrong (RFC 7517, 5). A set with a secret in it is refused as a whole, and so is one
// with a key that is not what it says, with two keys of one kid, or without a key of use.
//
// A key's algorithm is its alg or, where it has none, the only one here for its kind. A token never chooses.
func parseSet(b []byte) (keys map[string]*verifyKey, ignored []string, err error) {
	if len(b) > maxSet {
		return nil, nil, fmt.Errorf("more than %d bytes", maxSet)
	}
	var set struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil {
		return nil, nil, errors.New("not a JWK set: a JSON object with the member keys, a list of objects, and no member twice")
	}
	if n := len(set.Keys); n > maxSetKeys {
		return nil, nil, fmt.Errorf("%d keys, at most %d are taken", n, maxSetKeys)
	}
	keys = map[string]*verifyKey{}
	for i, raw := range set.Keys {
		var k jwk
		if err := json.Unmarshal(raw, &k); err != nil {
			return nil, nil, fmt.Errorf("keys[%d]: not a JWK", i)
		}
		if k.secret() {
			return nil, nil, fmt.Errorf("keys[%d]: a secret or private key: whoever published it must replace it", i)
		}
		alg, why := k.alg()
		if why == "" && (k.KID == "" || len(k.KID) > maxKID) {
			why = fmt.Sprintf("its kid must have 1 to %d characters", maxKID)
		}
		if why != "" {
			ignored = append(ignored, fmt.Sprintf("keys[%d]: %s", i, why))
			continue
		}
		public, err := k.public(alg)
		if err != nil {
			return nil, nil, fmt.Errorf("keys[%d] (%s): %w", i, alg, err)
		}
		if keys[k.KID] != nil {
			return nil, nil, fmt.Errorf("keys[%d]: its kid is there twice", i)
		}
		keys[k.KID] = &verifyKey{kid: k.KID, alg: alg, key: public}
	}
	if len(keys) == 0 {
		return nil, nil, fmt.Errorf("no key of %v to verify with among %d", algorithms[:3], len(set.Keys))
	}
	return keys, ignored, nil
}

// secret reports whether the key is symmetric, or the private half of a pair.
func (k *jwk) secret() bool {
	for _, v := range []jsontext.Value{k.D, k.P, k.Q, k.DP, k.DQ, k.QI, k.Other, k.K} {
		if len(v) > 0 {
			return true
		}
	}
	return k.Kind == "oct"
}

// alg is the key's algorithm, or why it is not for the tokens here.
func (k *jwk) alg() (alg, why string) {
	switch {
	case k.Use != "" && k.Use != "sig":
		return "", "it is not for signatures"
	case k.Ops != nil && !slices.Contains(*k.Ops, "verify"):
		return "", "it is not for verifying"
	case k.Kind == "RSA":
		alg = "RS256"
	case k.Kind == "EC" && k.Curve == "P-256":
		alg = "ES256"
	case k.Kind == "OKP" && k.Curve == "Ed25519":
		alg = "EdDSA"
	default:
		return "", "its kind or curve is none that is taken"
	}
	if k.Alg != "" && k.Alg != alg && !(k.Alg == "Ed25519" && alg == "EdDSA") { // its name by RFC 9864
		return "", "its algorithm is none that is taken"
	}
	return alg, ""
}

// public is the key as golang-jwt takes it.
func (k *jwk) public(alg string) (any, error) {
	switch alg {
	case "RS256":
		n, err1 := raw(k.N)
		e, err2 := raw(k.E)
		if err := errors.Join(err1, err2); err != nil || len(n) > MaxRSABits/8+1 || len(e) > 4 {
			return nil, fmt.Errorf("n and e must be unpadded base64url, n of %d to %d bits", MinRSABits, MaxRSABits)
		}
		public := &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
		return public, fitsRSA(public)
	case "ES256":
		x, err1 := raw(k.X)
		y, err2 := raw(k.Y)
		if err := errors.Join(err1, err2); err != nil || len(x) != 32 || len(y) != 32 {
			return nil, errors.New("x and y must be unpadded base64url of 32 bytes each")
		}
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
		if err != nil {
			return nil, errors.New("its point is not on P-256")
		}
		return public, nil
	default:
		x, err := raw(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("x must be unpadded base64url of %d bytes", ed25519.PublicKeySize)
		}
		return ed25519.PublicKey(x), nil
	}
}

// raw decodes base64url without padding, in its one form (RFC 7515, 2).
func raw(s string) ([]byte, error) {
	for _, c := range []byte(s) { // the decoder would skip line ends
		if c == '\r' || c == '\n' {
			return nil, errors.New("a line end")
		}
	}
	return base64.RawURLEncoding.Strict().DecodeString(s)
}
