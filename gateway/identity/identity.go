// Package identity says who a request is from: a JWT signed by a key that the configuration pins, algorithm included.
package identity

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// Rules are what a token must say besides whose it is. A login service signs tokens for other purposes with the same keys.
type Rules struct {
	Issuers   []string // iss must be one of these, where there are any
	Audiences []string // aud must hold one of these, where there are any
	Types     []string // typ must be one of these, where there are any: media types, in any case, with or without application/
	// MaxLifetime bounds exp - iat, or exp - now where the token has no iat; 0 bounds nothing.
	MaxLifetime time.Duration
	Leeway      time.Duration // for exp, nbf and iat
}

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	keys   map[string]verifyKey
	rules  Rules
	now    func() time.Time
	parser *jwt.Parser
	seen   *seen
}

type verifyKey struct {
	alg string
	key any // what golang-jwt takes for alg
}

// NewVerifier makes a verifier of checked keys. now is the clock that decides about expiry.
func NewVerifier(keys []Key, rules Rules, now func() time.Time) (*Verifier, error) {
	v := &Verifier{keys: map[string]verifyKey{}, rules: rules, now: now, seen: newSeen()}
	v.rules.Types = nil
	for _, t := range rules.Types {
		v.rules.Types = append(v.rules.Types, mediaType(t))
	}
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
	v.parser = jwt.NewParser(jwt.WithValidMethods([]string{"EdDSA", "HS256"}), jwt.WithLeeway(rules.Leeway), jwt.WithExpirationRequired(),
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
		if !v.now().Before(who.Expires.Add(v.rules.Leeway)) {
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
		Issuer    jsontext.Value `json:"iss"`
		Subject   string         `json:"sub"`
		Audience  jsontext.Value `json:"aud"`
		Expires   *float64       `json:"exp"`
		NotBefore *float64       `json:"nbf"`
		IssuedAt  *float64       `json:"iat"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	c.Subject = in.Subject
	if issuer, ok := texts(in.Issuer); ok && len(issuer) == 1 && in.Issuer.Kind() == '"' {
		c.Issuer = issuer[0]
	}
	if list, ok := texts(in.Audience); ok {
		c.Audience = list
	}
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

// texts is a text, or a list of nothing else: an audience is either (RFC 7519, 4.1.3). Where no rule asks for it, it may be anything.
func texts(v jsontext.Value) (list []string, ok bool) {
	if v.Kind() != '"' {
		return list, len(v) > 0 && json.Unmarshal(v, &list) == nil
	}
	list = make([]string, 1)
	return list, json.Unmarshal(v, &list[0]) == nil
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
	if !v.meant(t, &c) {
		return Who{}, ErrInvalid
	}
	if !wire.ValidUID(c.Subject) {
		return Who{}, ErrSubject
	}
	return Who{c.Subject, c.ExpiresAt.Time}, nil
}

// meant reports whether a token that is well signed and in its time is one for shopping here.
func (v *Verifier) meant(t *jwt.Token, c *claims) bool {
	r := v.rules
	if len(r.Issuers) > 0 && !slices.Contains(r.Issuers, c.Issuer) {
		return false
	}
	if len(r.Audiences) > 0 && !slices.ContainsFunc(c.Audience, func(a string) bool { return slices.Contains(r.Audiences, a) }) {
		return false
	}
	if len(r.Types) > 0 {
		typ, ok := t.Header["typ"].(string)
		if !ok || !slices.Contains(r.Types, mediaType(typ)) {
			return false
		}
	}
	if r.MaxLifetime == 0 {
		return true
	}
	if c.IssuedAt != nil {
		return c.ExpiresAt.Sub(c.IssuedAt.Time) <= r.MaxLifetime
	}
	return c.ExpiresAt.Sub(v.now()) <= r.MaxLifetime+r.Leeway
}

// mediaType is a typ as it compares with others: in any case, and without a slash it stands for one of application/ (RFC 7515, 4.1.9).
func mediaType(typ string) string {
	if !strings.Contains(typ, "/") {
		typ = "application/" + typ
	}
	return strings.ToLower(typ)
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

// Signer mints test tokens that fulfil the rules.
type Signer struct {
	Key   Key // an HS256 key with sign: true
	Rules Rules
}

// Mint signs a token for uid, for as long as life, or Rules.MaxLifetime where that is less.
func (s Signer) Mint(uid string, now time.Time, life time.Duration) (token string, expires time.Time, err error) {
	k := s.Key
	if !k.Sign || k.Alg != "HS256" {
		return "", time.Time{}, fmt.Errorf("mint a token with key %s: the key is not an HS256 key with sign: true", k.KID)
	}
	if !wire.ValidUID(uid) {
		return "", time.Time{}, fmt.Errorf("mint a token for %q: a uid is 1 to %d of [A-Za-z0-9._-]", uid, wire.MaxUID)
	}
	if s.Rules.MaxLifetime > 0 {
		life = min(life, s.Rules.MaxLifetime)
	}
	expires = now.Add(life).Truncate(time.Second)
	c := jwt.RegisteredClaims{Subject: uid, ExpiresAt: jwt.NewNumericDate(expires)} // no iat: the clock here may be ahead of the one that judges
	if len(s.Rules.Issuers) > 0 {
		c.Issuer = s.Rules.Issuers[0]
	}
	if len(s.Rules.Audiences) > 0 {
		c.Audience = s.Rules.Audiences[:1]
	}
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, c)
	t.Header["kid"] = k.KID
	if len(s.Rules.Types) > 0 {
		t.Header["typ"] = s.Rules.Types[0]
	}
	token, err = t.SignedString([]byte(k.Secret.Reveal()))
	if err != nil {
		return "", time.Time{}, fmt.Errorf("mint a token for %s: %w", uid, err)
	}
	return token, expires, nil
}

// Signing returns a signer with the first key that may mint test tokens.
func Signing(keys []Key, rules Rules) (Signer, bool) {
	for _, k := range keys {
		if k.Sign {
			return Signer{k, rules}, true
		}
	}
	return Signer{}, false
}
