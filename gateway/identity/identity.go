// Package identity finds the user of a request: a JWT, signed by a key whose algorithm the configuration pins.
package identity

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"

	"floodgate.internal/shared/wire"
)

// MaxToken is the length of the longest token that is verified, in bytes.
const MaxToken = 4096

// Why a token was refused. Their texts are for the shopper and tell nothing about the keys.
var (
	ErrMissing = errors.New("no token: send Authorization: Bearer followed by one, or sign in on the page")
	ErrExpired = errors.New("the token has expired: sign in again")
	ErrEarly   = errors.New("the token is not valid yet")
	ErrSubject = errors.New("the token's sub must be a user id: 1 to 64 letters, digits, dots, dashes and underscores")
	ErrInvalid = errors.New("the token is not valid here")
)

// User is the user that a token names, until it expires.
type User struct {
	UID     string
	Expires time.Time
}

// Rules are what a token must say besides its user: a login service signs tokens for other purposes with the same keys. An
// empty list allows anything.
type Rules struct {
	Issuers   []string // iss must be one of these
	Audiences []string // aud must hold one of these
	Types     []string // typ must be one of these media types, in any case, with or without application/
	// MaxLifetime bounds exp - iat, or exp - now where the token has no iat. 0 is no bound.
	MaxLifetime time.Duration
	Leeway      time.Duration // for exp, nbf and iat
}

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	keys   map[string]verifyKey
	rules  Rules
	now    func() time.Time
	parser *jwt.Parser
	cache  *tokenCache
}

type verifyKey struct {
	alg string
	key any // what golang-jwt takes for alg
}

// NewVerifier makes a verifier. Its errors name the key and the field. now is the clock that decides about expiry.
func NewVerifier(keys []Key, rules Rules, now func() time.Time) (*Verifier, error) {
	v := &Verifier{keys: map[string]verifyKey{}, rules: rules, now: now, cache: newTokenCache()}
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

// Verify returns the user that the token names, or one of the errors above. A good token is remembered until it expires,
// in bounded memory, so that its signature is checked once.
func (v *Verifier) Verify(token []byte) (User, error) {
	if len(token) == 0 {
		return User{}, ErrMissing
	}
	if len(token) > MaxToken {
		return User{}, ErrInvalid
	}
	if user, ok := v.cache.get(token); ok {
		if v.expired(user) {
			v.cache.remove(token)
			return User{}, ErrExpired
		}
		return user, nil
	}
	for _, c := range token { // base64 decoders skip line ends, so one token could be written in many ways
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return User{}, ErrInvalid
		}
	}
	text := string(token)
	user, err := v.parse(text)
	if err != nil {
		return User{}, err
	}
	v.cache.put(text, user)
	return user, nil
}

// Remembered is Verify for a good token that was verified before. False: Verify may know more.
func (v *Verifier) Remembered(token []byte) (User, bool) {
	user, ok := v.cache.get(token)
	return user, ok && !v.expired(user)
}

func (v *Verifier) expired(u User) bool { return !v.now().Before(u.Expires.Add(v.rules.Leeway)) }

// claims are those that count here, by their exact names, each once. encoding/json would take "Sub" for "sub", and the
// last of two. Where an issuer lets users add claims, a user could then name anybody.
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

// texts reads a string or a list of strings: an audience is either (RFC 7519, 4.1.3).
func texts(v jsontext.Value) (list []string, ok bool) {
	if v.Kind() != '"' {
		return list, len(v) > 0 && json.Unmarshal(v, &list) == nil
	}
	list = make([]string, 1)
	return list, json.Unmarshal(v, &list[0]) == nil
}

// maxSeconds is the end of the year 9999. Not everything can count or write later times.
const maxSeconds = 253402300799

var errDate = errors.New("a time out of range")

func (v *Verifier) parse(text string) (User, error) {
	var c claims
	t, err := v.parser.ParseWithClaims(text, &c, v.key)
	switch {
	case err == nil && t.Valid:
	case errors.Is(err, jwt.ErrTokenExpired):
		return User{}, ErrExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return User{}, ErrEarly
	default:
		return User{}, ErrInvalid
	}
	if !v.fulfils(t, &c) {
		return User{}, ErrInvalid
	}
	if !wire.ValidUID(c.Subject) {
		return User{}, ErrSubject
	}
	return User{c.Subject, c.ExpiresAt.Time}, nil
}

// fulfils reports whether a token, whose signature and times are good, is as the rules say.
func (v *Verifier) fulfils(t *jwt.Token, c *claims) bool {
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

// mediaType is a typ in the form that is compared: lower case, and with application/ where it has no slash (RFC 7515, 4.1.9).
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
		return nil, errKey // an extension that must be understood; none is known here
	}
	k, ok := v.keys[kid]
	if !ok || t.Method.Alg() != k.alg {
		return nil, errKey
	}
	return k.key, nil
}
