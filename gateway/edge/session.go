package edge

import (
	"encoding/json"
	"time"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/shared/wire"
)

// testTokenLife is the lifetime of a token that is minted in development.
const testTokenLife = 24 * time.Hour

// session is GET /v1/session: whose token is this?
func (x *exchange) session() {
	if !x.admitAddress() {
		return
	}
	token, _ := x.token()
	if user, ok := x.verify(token); ok {
		x.answerSession(user)
	}
}

// signIn is POST /v1/session: it sets the token of the header or the body as the session cookie.
func (x *exchange) signIn() {
	if !x.admit(x.takeAddressBy(ruleIP)) { // the body's token may be another than the header's
		return
	}
	token, byCookie := x.token()
	if byCookie {
		token = nil // a cookie cannot renew itself
	}
	if len(x.ctx.Request.Body()) > 0 {
		var in struct {
			Token string `json:"token"`
		}
		if !x.decode(&in) {
			return
		}
		if in.Token != "" {
			token = []byte(in.Token)
		}
	}
	if user, ok := x.verify(token); ok {
		x.setCookie(string(token), user.Expires.Sub(x.s.Clock.Now()))
		x.answerSession(user)
	}
}

// verify finds the user of a token and draws on their bucket, or answers 401 or 429.
func (x *exchange) verify(token []byte) (identity.User, bool) {
	user, err := x.set.Verifier.Verify(token)
	if err != nil {
		x.unknownUser(err)
		return identity.User{}, false
	}
	return user, x.admitUser(user.UID)
}

// signOut is DELETE /v1/session: it removes the cookie.
func (x *exchange) signOut() {
	if _, byCookie := x.token(); byCookie && !x.sameOrigin() {
		x.rejectOrigin()
		return
	}
	x.setCookie("", -1)
	x.ctx.Response.SetStatusCode(204)
	x.ctx.Response.Header.Set("Cache-Control", "no-store")
	x.result = resultOK
}

// devSession is POST /v1/dev/session: in development anybody may sign in as anybody.
func (x *exchange) devSession() {
	if !x.admitAddress() {
		return
	}
	var in struct {
		UID string `json:"uid"`
	}
	if !x.decode(&in) {
		return
	}
	if !wire.ValidUID(in.UID) {
		x.badField("uid", "it must be 1 to 64 letters, digits, dots, dashes and underscores")
		return
	}
	token, expires, err := x.set.Sign.Mint(in.UID, x.s.Clock.Now(), testTokenLife)
	if err != nil {
		panic("BUG: " + err.Error()) // the key and the uid are checked
	}
	x.setCookie(token, testTokenLife)
	x.answerSession(identity.User{UID: in.UID, Expires: expires})
}

func (x *exchange) answerSession(user identity.User) {
	body, err := json.Marshal(struct {
		UID       string    `json:"uid"`
		ExpiresAt wire.Time `json:"expires_at"`
	}{user.UID, wire.At(user.Expires)})
	if err != nil {
		panic("BUG: a session that does not marshal: " + err.Error())
	}
	x.json(body)
}

func (x *exchange) setCookie(token string, life time.Duration) {
	x.ctx.Response.Header.Set("Set-Cookie", x.set.cookie+"="+token+"; Max-Age="+itoa(max(0, int(life/time.Second)))+x.set.cookieAttributes)
}

// json answers 200 with a body that must not be cached.
func (x *exchange) json(body []byte) {
	x.ctx.Response.SetStatusCode(200)
	x.ctx.Response.Header.SetContentType("application/json")
	x.ctx.Response.Header.Set("Cache-Control", "no-store")
	x.ctx.Response.SetBodyRaw(body)
	x.result = resultOK
}
