package identity

import (
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"floodgate.internal/shared/wire"
)

// Signer mints test tokens that fulfil the rules.
type Signer struct {
	Key   Key // an HS256 key with sign: true
	Rules Rules
}

// Mint signs a token for uid that lives for life, or for Rules.MaxLifetime where that is less.
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
	// No iat: the clock here may be ahead of the verifier's.
	c := jwt.RegisteredClaims{Subject: uid, ExpiresAt: jwt.NewNumericDate(expires)}
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

// NewSigner returns a signer with the first key that has sign: true; false if none has.
func NewSigner(keys []Key, rules Rules) (Signer, bool) {
	for _, k := range keys {
		if k.Sign {
			return Signer{k, rules}, true
		}
	}
	return Signer{}, false
}
