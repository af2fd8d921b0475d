package edge

import (
	"bytes"
	"errors"
	"time"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/shared/problem"
)

// The session cookie's name: over plain HTTP in development, and elsewhere. Browsers take the latter over HTTPS only, from this very
// host and for all of it, so no other host of the domain can set it (RFC 6265bis, 4.1.3.2).
const (
	sessionCookie = "floodgate_session"
	secureCookie  = "__Host-" + sessionCookie
)

var bearer = []byte("Bearer ")

// token returns the request's token, and whether it is the session cookie, which browsers send by themselves.
func (x *exchange) token() (token []byte, byCookie bool) {
	h := &x.ctx.Request.Header
	if auth := h.Peek("Authorization"); len(auth) > 0 {
		return bearerToken(auth), false // of another scheme: then the cookie does not count either
	}
	c := h.Cookie(x.set.cookie)
	return c, len(c) > 0
}

// bearerToken is the token of an Authorization field (RFC 6750, 2.1); nil if it is of another scheme.
func bearerToken(auth []byte) []byte {
	if len(auth) > len(bearer) && bytes.EqualFold(auth[:len(bearer)], bearer) {
		return bytes.Trim(auth[len(bearer):], " ")
	}
	return nil
}

// hasToken reports whether the request has a token, good or not.
func (x *exchange) hasToken() bool {
	token, _ := x.token()
	return len(token) > 0
}

// user finds the user, or answers 429, 401 or 403. The address's bucket comes before the token, so that nobody has more
// signatures checked than their address has tokens.
func (x *exchange) user() bool { return x.admitAddress() && x.identify(salegate.Verdict{}) }

// identify finds the user, or answers 401 or 403. An order that the gate would refuse gets the gate's refusal instead of
// a 401.
func (x *exchange) identify(v salegate.Verdict) bool {
	token, byCookie := x.token()
	if h := &x.ctx.Request.Header; byCookie && (h.IsPost() || h.IsDelete()) && !x.sameOrigin() {
		x.rejectOrigin()
		return false
	}
	who, err := x.verified(token)
	if err != nil && v.Refusal != nil {
		x.rejectPrepared(ruleGate, v.Refusal, v.RetryAfter)
		return false
	}
	if err != nil {
		x.unknownUser(err)
		return false
	}
	x.uid = who.UID
	return true
}

// unknownUser answers 401, or 503 as long as nobody has told this gateway the time: by its own clock a good token may look bad.
func (x *exchange) unknownUser(err error) {
	if !errors.Is(err, identity.ErrMissing) && !x.s.Clock.Synced() {
		x.rejectPrepared(ruleIdentity, justStarted, time.Second)
		return
	}
	x.reject(ruleIdentity, problem.New(problem.Unauthenticated, err.Error()))
}

// sameOrigin reports whether the browser says that a page of this host sent the request.
func (x *exchange) sameOrigin() bool {
	h := &x.ctx.Request.Header
	if site := h.Peek("Sec-Fetch-Site"); len(site) > 0 {
		return string(site) == "same-origin"
	}
	scheme, host, ok := bytes.Cut(h.Peek("Origin"), []byte("://"))
	return ok && len(host) > 0 && bytes.EqualFold(host, h.Host()) && (x.set.InsecureCookies || string(scheme) == "https")
}

func (x *exchange) rejectOrigin() {
	x.reject(ruleOrigin, problem.New(problem.Forbidden, "a request by cookie must come from this site's own page"))
}

// mayBuy reports whether the lists of the configuration let the user order, or answers 403. Backends have lists of their own.
func (x *exchange) mayBuy() bool {
	if x.set.mayOrder(x.uid) {
		return true
	}
	if _, banned := x.set.BannedUsers[x.uid]; banned {
		x.rejectPrepared(ruleBan, bannedUser, 0)
	} else {
		x.rejectPrepared(ruleEligible, notEligible, 0)
	}
	return false
}

func (s *Settings) mayOrder(uid string) bool {
	_, banned := s.BannedUsers[uid]
	_, eligible := s.EligibleUsers[uid]
	return !banned && (eligible || len(s.EligibleUsers) == 0)
}
