package edge

import (
	"encoding/json"
	"time"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// testTokenLife is how long a token lives that is minted in development.
const testTokenLife = 24 * time.Hour

// sessionInfo is what the page learns of a session.
type sessionInfo struct {
	UID       string    `json:"uid"`
	ExpiresAt wire.Time `json:"expires_at"`
}

// session is GET, POST and DELETE /v1/session: who am I, keep my token as a cookie, forget it.
func (x *exchange) session() {
	h := &x.ctx.Request.Header
	if h.IsDelete() {
		if _, byCookie := x.token(); byCookie && !x.sameOrigin() {
			x.reject(ruleOrigin, problem.New(problem.Forbidden, "a request by cookie must come from this site's own page"))
			return
		}
		x.setCookie("", -1)
		x.ctx.Response.SetStatusCode(204)
		x.ctx.Response.Header.Set("Cache-Control", "no-store")
		x.result = resultOK
		return
	}
	if !x.admit(ruleIP, x.takeAddress(x.s.ips, x.set.IP)) {
		return
	}
	token, byCookie := x.token()
	if h.IsPost() {
		if byCookie {
			token = nil // a cookie cannot renew itself
		}
		if body := x.ctx.Request.Body(); len(body) > 0 {
			var in struct {
				Token string `json:"token"`
			}
			if !x.isJSON(body) {
				return
			}
			if err := wire.DecodeStrict(body, &in); err != nil {
				x.reject(ruleBody, problem.New(problem.BadRequest, err.Error()))
				return
			}
			if in.Token != "" {
				token = []byte(in.Token)
			}
		}
	}
	who, err := x.set.Verifier.Verify(token)
	if err != nil {
		x.reject(ruleIdentity, problem.New(problem.Unauthenticated, err.Error()))
		return
	}
	if !x.takeOwn(who.UID) {
		return
	}
	if h.IsPost() {
		x.setCookie(string(token), who.Expires.Sub(x.s.Clock.Now()))
	}
	x.tell(who)
}

// devSession is POST /v1/dev/session: in development anybody may be anybody.
func (x *exchange) devSession() {
	if !x.admit(ruleIP, x.takeAddress(x.s.ips, x.set.IP)) {
		return
	}
	var in struct {
		UID string `json:"uid"`
	}
	body := x.ctx.Request.Body()
	if !x.isJSON(body) {
		return
	}
	if err := wire.DecodeStrict(body, &in); err != nil {
		x.reject(ruleBody, problem.New(problem.BadRequest, err.Error()))
		return
	}
	if !wire.ValidUID(in.UID) {
		x.reject(ruleBody, problem.Invalid("uid", "it must be 1 to 64 letters, digits, dots, dashes and underscores"))
		return
	}
	token, expires, err := x.set.Sign.Mint(in.UID, x.s.Clock.Now(), testTokenLife)
	if err != nil {
		panic("BUG: " + err.Error()) // the key and the uid are checked
	}
	x.setCookie(token, testTokenLife)
	x.tell(identity.Who{UID: in.UID, Expires: expires})
}

func (x *exchange) tell(who identity.Who) {
	body, err := json.Marshal(sessionInfo{who.UID, wire.At(who.Expires)})
	if err != nil {
		panic("BUG: a session that does not marshal: " + err.Error())
	}
	x.json(200, body)
}

func (x *exchange) setCookie(token string, life time.Duration) {
	x.ctx.Response.Header.Set("Set-Cookie", sessionCookie+"="+token+"; Max-Age="+itoa(max(0, int(life/time.Second)))+x.set.cookieAttributes)
}
