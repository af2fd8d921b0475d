package identity

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"

	"floodgate.internal/shared/conf"
)

// MinSecret is the least length of an HS256 secret, in bytes.
const MinSecret = 32

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
	if k.KID == "" || len(k.KID) > 128 {
		return conf.Wrong("kid: %q must have 1 to 128 characters", k.KID)
	}
	switch k.Alg {
	case "EdDSA":
		if k.Secret != "" {
			return conf.Wrong("secret: an EdDSA key has a public_key, no secret")
		}
		if k.Sign {
			return conf.Wrong("sign: only an HS256 key can sign test tokens")
		}
		_, err := publicKey(k.PublicKey)
		return err
	case "HS256":
		if k.PublicKey != "" {
			return conf.Wrong("public_key: an HS256 key has a secret, no public_key")
		}
		if len(k.Secret) < MinSecret {
			return conf.Wrong("secret: %d bytes, at least %d are needed", len(k.Secret), MinSecret)
		}
		return nil
	default:
		return conf.Wrong("alg: %q must be EdDSA or HS256", k.Alg)
	}
}

func publicKey(s string) (ed25519.PublicKey, error) {
	der := []byte(nil)
	if block, _ := pem.Decode([]byte(s)); block != nil {
		der = block.Bytes
	} else {
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, conf.Wrong("public_key: must be base64 of the 32 bytes, or a PEM block")
		}
		if len(raw) == ed25519.PublicKeySize {
			return raw, nil
		}
		der = raw
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, conf.Wrong("public_key: must be base64 of the 32 bytes, or a PEM block")
	}
	k, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, conf.Wrong("public_key: a %T, must be an Ed25519 key", parsed)
	}
	return k, nil
}
