package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"

	"floodgate.internal/shared/conf"
)

// Bounds of keys. A larger RSA key would make the verification of a forged token dear.
const (
	MinSecret  = 32   // bytes of an HS256 secret
	MinRSABits = 2048 // RFC 7518, 3.3
	MaxRSABits = 8192
	maxKID     = 128 // bytes
)

// algorithms are those that tokens may be signed with. A key has one of them.
var algorithms = []string{"EdDSA", "ES256", "RS256", "HS256"}

// Key is a key that tokens may be signed with.
type Key struct {
	KID       string      `yaml:"kid"`
	Alg       string      `yaml:"alg"`
	PublicKey string      `yaml:"public_key"`
	Secret    conf.Secret `yaml:"secret"`
	Sign      bool        `yaml:"sign"`
}

// Check says what is wrong with the key; the error names the field.
func (k Key) Check() error {
	_, err := k.verifying()
	return err
}

// verifying is the key as tokens are verified with it.
func (k Key) verifying() (*verifyKey, error) {
	if k.KID == "" || len(k.KID) > maxKID {
		return nil, conf.Wrong("kid: %q must have 1 to %d characters", k.KID, maxKID)
	}
	switch k.Alg {
	case "EdDSA", "RS256", "ES256":
		if k.Secret != "" {
			return nil, conf.Wrong("secret: an %s key has a public_key, no secret", k.Alg)
		}
		if k.Sign {
			return nil, conf.Wrong("sign: only an HS256 key can sign test tokens")
		}
		public, err := k.public()
		return &verifyKey{kid: k.KID, alg: k.Alg, key: public}, err
	case "HS256":
		if k.PublicKey != "" {
			return nil, conf.Wrong("public_key: an HS256 key has a secret, no public_key")
		}
		if len(k.Secret) < MinSecret {
			return nil, conf.Wrong("secret: %d bytes, at least %d are needed", len(k.Secret), MinSecret)
		}
		return &verifyKey{kid: k.KID, alg: k.Alg, key: []byte(k.Secret.Reveal())}, nil
	default:
		return nil, conf.Wrong("alg: %q must be EdDSA, ES256, RS256 or HS256", k.Alg)
	}
}

// verifyKey is a key as tokens are verified with it. It never changes, so the same pointer is the same key.
type verifyKey struct {
	kid, alg string
	key      any // what golang-jwt takes for alg: ed25519.PublicKey, *ecdsa.PublicKey, *rsa.PublicKey or []byte
}

// same reports whether both verify the same tokens.
func (k *verifyKey) same(o *verifyKey) bool {
	if k.kid != o.kid || k.alg != o.alg {
		return false
	}
	if secret, ok := k.key.([]byte); ok {
		return bytes.Equal(secret, o.key.([]byte))
	}
	return k.key.(interface{ Equal(crypto.PublicKey) bool }).Equal(o.key)
}

// public reads public_key, which must be a key for Alg.
func (k Key) public() (any, error) {
	form := "a PEM block PUBLIC KEY"
	if k.Alg == "EdDSA" {
		form = "base64 of the 32 bytes, or " + form
	}
	der := []byte(nil)
	if block, rest := pem.Decode([]byte(k.PublicKey)); block != nil {
		if block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
			return nil, conf.Wrong("public_key: it is not one block PUBLIC KEY; must be %s", form)
		}
		der = block.Bytes
	} else {
		raw, err := base64.StdEncoding.DecodeString(k.PublicKey)
		if err != nil || k.Alg != "EdDSA" {
			return nil, conf.Wrong("public_key: must be %s", form)
		}
		if len(raw) == ed25519.PublicKeySize {
			return ed25519.PublicKey(raw), nil
		}
		der = raw
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, conf.Wrong("public_key: must be %s", form)
	}
	if err := fits(k.Alg, parsed); err != nil {
		return nil, conf.Wrong("public_key: %v", err)
	}
	return parsed, nil
}

// fits says why a public key is none for alg.
func fits(alg string, public any) error {
	switch k := public.(type) {
	case ed25519.PublicKey:
		if alg == "EdDSA" {
			return nil
		}
	case *ecdsa.PublicKey:
		if alg == "ES256" && k.Curve == elliptic.P256() {
			return nil
		}
		if alg == "ES256" {
			return fmt.Errorf("a key on %s, ES256 takes P-256", k.Curve.Params().Name)
		}
	case *rsa.PublicKey:
		if alg == "RS256" {
			return fitsRSA(k)
		}
	}
	return fmt.Errorf("a %T, %s takes %s", public, alg, map[string]string{"EdDSA": "an Ed25519 key", "ES256": "an EC key on P-256", "RS256": "an RSA key"}[alg])
}

// fitsRSA bounds the modulus, and the exponent: verifying costs as much as it has bits.
func fitsRSA(k *rsa.PublicKey) error {
	if n := k.N.BitLen(); n < MinRSABits || n > MaxRSABits {
		return fmt.Errorf("an RSA key of %d bits, must be %d to %d", n, MinRSABits, MaxRSABits)
	}
	if k.N.Bit(0) == 0 {
		return fmt.Errorf("an RSA key with an even modulus")
	}
	if k.E < 65537 || k.E%2 == 0 || int64(k.E) > 1<<31-1 {
		return fmt.Errorf("an RSA key with the exponent %d, must be odd and from 65537 to 2147483647", k.E)
	}
	return nil
}
