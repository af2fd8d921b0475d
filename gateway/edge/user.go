package edge

import (
	"bytes"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/shared/problem"
)

const sessionCookie = "floodgate_session"

var bearer = []byte("Bearer ")

// token returns the request's token, and whether the browser sent it by itself, as a cookie.
func (x *exchange) token() (token []byte, byCookie bool) {
	h := &x.ctx.Request.Header
	if auth := h.Peek("Authorization"); len(auth) > 0 {
		if len(auth) > len(bearer) && bytes.EqualFold(auth[:len(bearer)], bearer) {
			return bytes.Trim(auth[len(bearer):], " "), false
		}
		return nil, false // of another scheme, or of none: nobody's, whatever the cookie says
	}
	c := h.Cookie(sessionCookie)
	return c, len(c) > 0
}

// identify returns the user, or answers 401 or 403; where the gate refused in doubt, it tells who is not known no more than that.
func (x *exchange) identify(v salegate.Verdict) (identity.Who, bool) {
	token, byCookie := x.token()
	if h := &x.ctx.Request.Header; byCookie && (h.IsPost() || h.IsDelete()) && !x.sameOrigin() {
		x.reject(ruleOrigin, problem.New(problem.Forbidden, "a request by cookie must come from this site's own page"))
		return identity.Who{}, false
	}
	who, err := x.set.Verifier.Verify(token)
	if err != nil && v.Refusal != nil {
		x.prepared(ruleGate, v.Refusal, v.RetryAfter)
		return identity.Who{}, false
	}
	if err != nil {
		x.reject(ruleIdentity, problem.New(problem.Unauthenticated, err.Error()))
		return identity.Who{}, false
	}
	x.uid = who.UID
	return who, true
}

// named reports whether the request has a token, good or not.
func (x *exchange) named() bool {
	token, _ := x.token()
	return len(token) > 0
}

// sameOrigin reports whether a browser says that its request comes from a page of this host.
func (x *exchange) sameOrigin() bool {
	h := &x.ctx.Request.Header
	if site := h.Peek("Sec-Fetch-Site"); len(site) > 0 {
		return string(site) == "same-origin"
	}
	scheme, host, ok := bytes.Cut(h.Peek("Origin"), []byte("://"))
	return ok && len(host) > 0 && bytes.EqualFold(host, h.Host()) && (x.set.InsecureCookies || string(scheme) == "https")
}

// user is what every request in a user's name goes through: the address's buckets and the token, in this order, so that nobody
// has more signatures checked than their address has tokens.
func (x *exchange) user() (identity.Who, bool) { return x.buyer(salegate.Verdict{}) }

// buyer is user for an order on which the gate gave a verdict.
func (x *exchange) buyer(v salegate.Verdict) (identity.Who, bool) {
	if !x.admit(ruleIP, x.takeAddress(x.s.ips, x.set.IP)) {
		return identity.Who{}, false
	}
	return x.identify(v)
}

// mayBuy reports that the user may order here, or answers 403. Backends have lists of their own, which change while they run; who
// is refused here costs them nothing.
func (x *exchange) mayBuy(uid string) bool {
	if _, banned := x.set.BannedUsers[uid]; banned {
		x.prepared(ruleBan, bannedUser, 0)
		return false
	}
	if _, eligible := x.set.EligibleUsers[uid]; !eligible && len(x.set.EligibleUsers) > 0 {
		x.prepared(ruleEligible, notEligible, 0)
		return false
	}
	return true
}
