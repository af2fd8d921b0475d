// Package identity finds the user of a request: a JWT, signed by a key whose algorithm the configuration pins.
package identity

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"reflect"
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
	ErrRevoked = errors.New("the token was revoked: sign in again")
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
	keys    map[string]*verifyKey // of the configuration, by kid; they come before those of jwks
	jwks    *JWKS                 // nil: none
	revoked map[revokedKey]int64  // by the configuration: tokens issued before that time, in milliseconds
	live    *Revoked              // nil: none
	rules   Rules
	now     func() time.Time
	parser  *jwt.Parser
	cache   *tokenCache
}

// Config is what a Verifier works with.
type Config struct {
	Keys    []Key
	JWKS    *JWKS // more keys; nil: none
	Rules   Rules
	Revoked []Revocation
	Live    *Revoked         // what the backends have revoked; nil: nothing
	Now     func() time.Time // the clock that decides about expiry
	// Before is the verifier that this one takes the place of; nil: none. Under the same rules its verified tokens stay
	// cached, but for those of keys that are gone.
	Before *Verifier
}

// NewVerifier makes a verifier of keys alone. Its errors name the key and the field.
func NewVerifier(keys []Key, rules Rules, now func() time.Time) (*Verifier, error) {
	return New(Config{Keys: keys, Rules: rules, Now: now})
}

// New makes a verifier. Its errors name the entry and the field.
func New(c Config) (*Verifier, error) {
	v := &Verifier{keys: map[string]*verifyKey{}, jwks: c.JWKS, revoked: map[revokedKey]int64{}, live: c.Live, rules: c.Rules, now: c.Now, cache: newTokenCache()}
	v.rules.Types = nil
	for _, t := range c.Rules.Types {
		v.rules.Types = append(v.rules.Types, mediaType(t))
	}
	for i, k := range c.Keys {
		key, err := k.verifying()
		if err != nil {
			return nil, fmt.Errorf("identity.keys[%d].%w", i, err)
		}
		if v.keys[k.KID] != nil {
			return nil, fmt.Errorf("identity.keys[%d].kid: %q is there twice", i, k.KID)
		}
		if c.Before != nil {
			if old := c.Before.keys[k.KID]; old != nil && old.same(key) {
				key = old
			}
		}
		v.keys[k.KID] = key
	}
	for i, r := range c.Revoked {
		key, before, err := r.entry()
		if err != nil {
			return nil, fmt.Errorf("identity.revoked[%d].%w", i, err)
		}
		v.revoked[key] = max(v.revoked[key], before)
	}
	if c.Before != nil && reflect.DeepEqual(v.rules, c.Before.rules) {
		v.cache = c.Before.cache
	}
	v.parser = jwt.NewParser(jwt.WithValidMethods(algorithms), jwt.WithLeeway(v.rules.Leeway), jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(), jwt.WithTimeFunc(v.now), jwt.WithStrictDecoding())
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
	if t := v.cache.get(token); t != nil {
		switch {
		case v.find(t.key.kid) != t.key: // the key is gone; whether the token is good under another is decided below
			v.cache.remove(token)
		case v.expired(t.User):
			v.cache.remove(token)
			return User{}, ErrExpired
		case v.isRevoked(t):
			return User{}, ErrRevoked
		default:
			return t.User, nil
		}
	}
	for _, c := range token { // base64 decoders skip line ends, so one token could be written in many ways
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return User{}, ErrInvalid
		}
	}
	text := string(token)
	t, err := v.parse(text)
	if err != nil {
		return User{}, err
	}
	v.cache.put(text, t)
	if v.isRevoked(t) {
		return User{}, ErrRevoked
	}
	return t.User, nil
}

// Remembered is Verify for a good token that was verified before. False: Verify may know more.
func (v *Verifier) Remembered(token []byte) (User, bool) {
	t := v.cache.get(token)
	if t == nil || v.find(t.key.kid) != t.key || v.expired(t.User) || v.isRevoked(t) {
		return User{}, false
	}
	return t.User, true
}

func (v *Verifier) expired(u User) bool { return !v.now().Before(u.Expires.Add(v.rules.Leeway)) }

// JWKS is the set that the verifier takes keys from; nil: none.
func (v *Verifier) JWKS() *JWKS { return v.jwks }

// find is the key with this id; nil: there is none.
func (v *Verifier) find(kid string) *verifyKey {
	if k := v.keys[kid]; k != nil || v.jwks == nil {
		return k
	}
	return v.jwks.find(kid)
}

// isRevoked reports whether a token is on one of the lists, by its id or as one that its user got before a time.
func (v *Verifier) isRevoked(t *verified) bool {
	if len(v.revoked) > 0 {
		if before, ok := v.revoked[t.uid]; ok && t.issued < before {
			return true
		}
		if _, ok := v.revoked[t.jti]; ok && t.hasJTI {
			return true
		}
	}
	return v.live != nil && v.live.Len() > 0 && (t.hasJTI && v.live.hits(&t.jti, t.issued) || v.live.hits(&t.uid, t.issued))
}

// claims are those that count here, by their exact names, each once. encoding/json would take "Sub" for "sub", and the
// last of two. Where an issuer lets users add claims, a user could then name anybody.
type claims struct{ jwt.RegisteredClaims }

// UnmarshalJSON implements json.Unmarshaler.
func (c *claims) UnmarshalJSON(b []byte) error {
	var in struct {
		Issuer    jsontext.Value `json:"iss"`
		Subject   string         `json:"sub"`
		ID        string         `json:"jti"` // one that is no text could not be revoked, so it is refused
		Audience  jsontext.Value `json:"aud"`
		Expires   *float64       `json:"exp"`
		NotBefore *float64       `json:"nbf"`
		IssuedAt  *float64       `json:"iat"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	c.Subject, c.ID = in.Subject, in.ID
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

func (v *Verifier) parse(text string) (*verified, error) {
	if !plainHeader(text) {
		return nil, ErrInvalid
	}
	var c claims
	var key *verifyKey
	t, err := v.parser.ParseWithClaims(text, &c, func(t *jwt.Token) (any, error) {
		if key = v.choose(t); key == nil {
			return nil, errKey
		}
		return key.key, nil
	})
	switch {
	case err == nil && t.Valid:
	case errors.Is(err, jwt.ErrTokenExpired):
		return nil, ErrExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return nil, ErrEarly
	default:
		return nil, ErrInvalid
	}
	if !v.fulfils(t, &c) {
		return nil, ErrInvalid
	}
	if !wire.ValidUID(c.Subject) {
		return nil, ErrSubject
	}
	out := &verified{User: User{c.Subject, c.ExpiresAt.Time}, key: key, uid: uidKey(c.Subject), issued: math.MinInt64}
	if c.IssuedAt != nil {
		out.issued = c.IssuedAt.UnixMilli()
	}
	if c.ID != "" {
		out.jti, out.hasJTI = jtiKey(c.ID), true
	}
	return out, nil
}

// plainHeader reports whether a token's header is a JSON object with no member twice: golang-jwt would take the last one.
func plainHeader(text string) bool {
	header, _, _ := strings.Cut(text, ".")
	b, err := base64.RawURLEncoding.Strict().DecodeString(header)
	var members map[string]jsontext.Value
	return err == nil && json.Unmarshal(b, &members) == nil
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

// choose is the key that the token's kid names, if the token's algorithm is the key's own; nil: there is none.
func (v *Verifier) choose(t *jwt.Token) *verifyKey {
	kid, ok := t.Header["kid"].(string)
	if !ok || kid == "" || len(kid) > maxKID {
		return nil
	}
	if _, critical := t.Header["crit"]; critical {
		return nil // an extension that must be understood; none is known here
	}
	if k := v.find(kid); k != nil && t.Method.Alg() == k.alg {
		return k
	}
	return nil
}
