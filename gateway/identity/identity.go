// Package identity says who a request is from: a JWT signed by a key that the configuration pins, algorithm included.
package identity

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/golang-jwt/jwt/v5"

	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/wire"
)

// MinSecret is the least length of an HS256 secret, in bytes.
const MinSecret = 32

// MaxToken is the longest token that is looked at, in bytes.
const MaxToken = 4096

// Key is one key that may have signed a token.
type Key struct {
	KID       string      `yaml:"kid"`
	Alg       string      `yaml:"alg"`
	PublicKey string      `yaml:"public_key"`
	Secret    conf.Secret `yaml:"secret"`
	Sign      bool        `yaml:"sign"`
}

// Check says what is wrong with the key, naming the field.
func (k Key) Check() error {
	if k.KID == "" || len(k.KID) > 128 {
		return fmt.Errorf("kid: %q must have 1 to 128 characters", k.KID)
	}
	switch k.Alg {
	case "EdDSA":
		if k.Secret != "" {
			return errors.New("secret: an EdDSA key has a public_key, no secret")
		}
		if k.Sign {
			return errors.New("sign: only an HS256 key can sign test tokens")
		}
		_, err := publicKey(k.PublicKey)
		return err
	case "HS256":
		if k.PublicKey != "" {
			return errors.New("public_key: an HS256 key has a secret, no public_key")
		}
		if len(k.Secret) < MinSecret {
			return fmt.Errorf("secret: %d bytes, at least %d are needed", len(k.Secret), MinSecret)
		}
		return nil
	default:
		return fmt.Errorf("alg: %q must be EdDSA or HS256", k.Alg)
	}
}

func publicKey(s string) (ed25519.PublicKey, error) {
	der := []byte(nil)
	if block, _ := pem.Decode([]byte(s)); block != nil {
		der = block.Bytes
	} else {
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, errors.New("public_key: must be base64 of the 32 bytes, or a PEM block")
		}
		if len(raw) == ed25519.PublicKeySize {
			return raw, nil
		}
		der = raw
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("public_key: must be base64 of the 32 bytes, or a PEM block: %w", err)
	}
	k, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("public_key: a %T, must be an Ed25519 key", parsed)
	}
	return k, nil
}

// Why a token was refused. Their texts are for the shopper and tell nothing about the keys.
var (
	ErrMissing = errors.New("no token: send Authorization: Bearer followed by one, or sign in on the page")
	ErrExpired = errors.New("the token has expired: sign in again")
	ErrEarly   = errors.New("the token is not valid yet")
	ErrSubject = errors.New("the token's sub must be a user id: 1 to 64 letters, digits, dots, dashes and underscores")
	ErrInvalid = errors.New("the token is not valid here")
)

// Who is the user that a token names, until it expires.
type Who struct {
	UID     string
	Expires time.Time
}

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	keys   map[string]verifyKey
	leeway time.Duration
	now    func() time.Time
	parser *jwt.Parser
	seen   *seen
}

type verifyKey struct {
	alg string
	key any // what golang-jwt takes for alg
}

// NewVerifier makes a verifier of checked keys. now is the clock that decides about expiry.
func NewVerifier(keys []Key, leeway time.Duration, now func() time.Time) (*Verifier, error) {
	v := &Verifier{keys: map[string]verifyKey{}, leeway: leeway, now: now, seen: newSeen()}
	for i, k := range keys {
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("identity.keys[%d].%w", i, err)
		}
		if _, twice := v.keys[k.KID]; twice {
			return nil, fmt.Errorf("identity.keys[%d].kid: %q is there twice", i, k.KID)
		}
		vk := verifyKey{alg: k.Alg, key: []byte(k.Secret.Reveal())}
		if k.Alg == "EdDSA" {
			vk.key, _ = publicKey(k.PublicKey) // checked above
		}
		v.keys[k.KID] = vk
	}
	v.parser = jwt.NewParser(jwt.WithValidMethods([]string{"EdDSA", "HS256"}), jwt.WithLeeway(leeway), jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(), jwt.WithTimeFunc(now), jwt.WithStrictDecoding())
	return v, nil
}

// Verify returns the user whom the token names. A token that was good once is remembered until it expires, in bounded
// memory, by all of its bytes.
func (v *Verifier) Verify(token []byte) (Who, error) {
	if len(token) == 0 {
		return Who{}, ErrMissing
	}
	if len(token) > MaxToken {
		return Who{}, ErrInvalid
	}
	if who, ok := v.seen.get(token); ok {
		if !v.now().Before(who.Expires.Add(v.leeway)) {
			v.seen.forget(token)
			return Who{}, ErrExpired
		}
		return who, nil
	}
	for _, c := range token { // base64 decoders skip line ends: then one token would have many spellings
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return Who{}, ErrInvalid
		}
	}
	text := string(token)
	who, err := v.parse(text)
	if err != nil {
		return Who{}, err
	}
	v.seen.put(text, who)
	return who, nil
}

// claims are those that count here, by their exact names, each once. encoding/json would take "Sub" for "sub", and the last of
// two: where an issuer lets users name claims of their own, a user could be anybody.
type claims struct{ jwt.RegisteredClaims }

// UnmarshalJSON implements json.Unmarshaler.
func (c *claims) UnmarshalJSON(b []byte) error {
	var in struct {
		Subject   string   `json:"sub"`
		Expires   *float64 `json:"exp"`
		NotBefore *float64 `json:"nbf"`
		IssuedAt  *float64 `json:"iat"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	c.Subject = in.Subject
	for _, date := range []struct {
		seconds *float64
		into    **jwt.NumericDate
	}{{in.Expires, &c.ExpiresAt}, {in.NotBefore, &c.NotBefore}, {in.IssuedAt, &c.IssuedAt}} {
		if date.seconds == nil {
			continue
		}
		if *date.seconds < 0 || *date.seconds > maxSeconds {
			return errDate
		}
		*date.into = jwt.NewNumericDate(time.Unix(int64(*date.seconds), 0))
	}
	return nil
}

// maxSeconds is the end of the year 9999, past which a time can neither be counted nor written everywhere.
const maxSeconds = 253402300799

var errDate = errors.New("a time that is none")

func (v *Verifier) parse(text string) (Who, error) {
	var c claims
	t, err := v.parser.ParseWithClaims(text, &c, v.key)
	switch {
	case err == nil && t.Valid:
	case errors.Is(err, jwt.ErrTokenExpired):
		return Who{}, ErrExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return Who{}, ErrEarly
	default:
		return Who{}, ErrInvalid
	}
	if !wire.ValidUID(c.Subject) {
		return Who{}, ErrSubject
	}
	return Who{c.Subject, c.ExpiresAt.Time}, nil
}

var errKey = errors.New("no such key")

// key chooses the key by the token's kid; the algorithm must be the key's own.
func (v *Verifier) key(t *jwt.Token) (any, error) {
	kid, ok := t.Header["kid"].(string)
	if !ok {
		return nil, errKey
	}
	if _, critical := t.Header["crit"]; critical {
		return nil, errKey // an extension that must be understood: none is
	}
	k, ok := v.keys[kid]
	if !ok || t.Method.Alg() != k.alg {
		return nil, errKey
	}
	return k.key, nil
}

// Mint signs a token for uid with k, which must be an HS256 key with sign: true.
func Mint(k Key, uid string, now time.Time, life time.Duration) (token string, expires time.Time, err error) {
	if !k.Sign || k.Alg != "HS256" {
		return "", time.Time{}, fmt.Errorf("mint a token with key %s: the key is not an HS256 key with sign: true", k.KID)
	}
	if !wire.ValidUID(uid) {
		return "", time.Time{}, fmt.Errorf("mint a token for %q: a uid is 1 to %d of [A-Za-z0-9._-]", uid, wire.MaxUID)
	}
	expires = now.Add(life).Truncate(time.Second)
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Subject: uid, ExpiresAt: jwt.NewNumericDate(expires), // no iat: the clock here may be ahead of the one that judges
	})
	t.Header["kid"] = k.KID
	token, err = t.SignedString([]byte(k.Secret.Reveal()))
	if err != nil {
		return "", time.Time{}, fmt.Errorf("mint a token for %s: %w", uid, err)
	}
	return token, expires, nil
}

// Signing returns the first key that may mint test tokens.
func Signing(keys []Key) (Key, bool) {
	for _, k := range keys {
		if k.Sign {
			return k, true
		}
	}
	return Key{}, false
}
