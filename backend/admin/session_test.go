package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
)

// desk is an offline Admin with operators that change and a clock that is set.
type desk struct {
	*Admin
	t    *testing.T
	now  time.Time
	list *operator.List
}

// These are well-formed tokens that nobody drew by lot.
const (
	annas = "fgop_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	bobs  = "fgop_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"
)

func named(name string, role operator.Role, token string) operator.Entry {
	return operator.Entry{Name: name, Role: role, TokenSHA256: conf.Secret(hexHash(token))}
}

func newDesk(t *testing.T, key string, secure bool) *desk {
	t.Helper()
	d := &desk{Admin: offline(t), t: t, now: time.Unix(1_700_000_000, 0)}
	d.set(named("anna", operator.Admin, annas), named("bob", operator.Viewer, bobs))
	d.Operators = func() *operator.List { return d.list }
	d.auth = operator.NewAuthenticator(d.Operators, "test", d.Log, d.Register)
	d.sessions = newSessions([]byte(key), secure, func() time.Time { return d.now })
	return d
}

func (d *desk) set(entries ...operator.Entry) { d.list = operator.NewList("admin", "", entries) }

// page sends a request as a browser does for a page of this origin, or of another.
func (d *desk) page(method, path, body, cookie, site string) *http.Response {
	header := []string{"Authorization: ", "Sec-Fetch-Site: " + site}
	if cookie != "" {
		header = append(header, "Cookie: "+cookie)
	}
	return send(d.Admin, method, path, body, header...)
}

// login returns the cookie of a new session, as a browser sends it.
func (d *desk) login(token string) (cookie string) {
	d.t.Helper()
	r := d.page("POST", "/admin/v1/session", fmt.Sprintf(`{"token":%q}`, token), "", "same-origin")
	cookies := r.Cookies()
	if r.StatusCode != 200 || len(cookies) != 1 {
		d.t.Fatalf("login: got %d, %v", r.StatusCode, cookies)
	}
	return cookies[0].Name + "=" + cookies[0].Value
}

// holds reports whether a session does, and the cookie that the browser has afterwards.
func (d *desk) holds(cookie string) (bool, string) {
	d.t.Helper()
	r := d.page("GET", "/admin/v1/session", "", cookie, "same-origin")
	if r.StatusCode != 200 && r.StatusCode != 401 {
		d.t.Errorf("got %d", r.StatusCode)
	}
	for _, c := range r.Cookies() {
		cookie = c.Name + "=" + c.Value
	}
	return r.StatusCode == 200, cookie
}

func TestLoginMakesASession(t *testing.T) {
	for secure, want := range map[bool]string{
		true:  "__Host-floodgate_console=%s; Path=/; HttpOnly; Secure; SameSite=Strict",
		false: "floodgate_console=%s; Path=/; HttpOnly; SameSite=Strict",
	} {
		d := newDesk(t, "", secure)
		r := d.page("POST", "/admin/v1/session", `{"token":" `+bobs+` "}`, "", "same-origin")
		s := read[adminapi.Session](t, r)
		set := r.Header.Get("Set-Cookie")
		if r.StatusCode != 200 || s.Name != "bob" || s.Role != "viewer" || s.IdleAfter != 1800 || !s.ExpiresAt.Equal(d.now.Add(12*time.Hour)) || strings.Contains(set, bobs) {
			t.Errorf("got %d %+v, %s", r.StatusCode, s, set)
		}
		value := r.Cookies()[0].Value
		if want := fmt.Sprintf(want, value); set != want {
			t.Errorf("got %s, want %s", set, want)
		}
		again := read[adminapi.Session](t, d.page("GET", "/admin/v1/session", "", r.Cookies()[0].Name+"="+value, "same-origin"))
		if again.Name != "bob" || !again.ExpiresAt.Equal(s.ExpiresAt.Time) {
			t.Errorf("got %+v", again)
		}
	}
	d := newDesk(t, "", true)
	if s := read[adminapi.Session](t, send(d.Admin, "GET", "/admin/v1/session", "", "Authorization: Bearer "+bobs)); s.Name != "bob" || s.ExpiresAt != nil {
		t.Errorf("by the token: got %+v", s)
	}
}

func TestLoginIsRefused(t *testing.T) {
	d := newDesk(t, "", true)
	for body, field := range map[string]string{`{}`: "token", `{"token":""}`: "token", `{"token":"  "}`: "token", `{"token":7}`: "token", `{"token":null}`: "token",
		`{"token":"x","name":"bob"}`: "name", ``: "", `[]`: ""} {
		refused(t, d.page("POST", "/admin/v1/session", body, "", "same-origin"), problem.BadRequest, field)
	}
	for _, site := range []string{"cross-site", "same-site"} {
		refused(t, d.page("POST", "/admin/v1/session", `{"token":"`+bobs+`"}`, "", site), problem.Forbidden, "")
	}
	refused(t, send(d.Admin, "POST", "/admin/v1/session", `{"token":"`+bobs+`"}`, "Authorization: "), problem.Forbidden, "")
	for range 10 {
		r := d.page("POST", "/admin/v1/session", `{"token":"guess"}`, "", "same-origin")
		refused(t, r, problem.Unauthenticated, "")
		if r.Header.Get("Set-Cookie") != "" {
			t.Error("a wrong token got a cookie")
		}
	}
	r := d.page("POST", "/admin/v1/session", `{"token":"guess"}`, "", "same-origin")
	refused(t, r, problem.RateLimited, "")
	if r.Header.Get("Retry-After") == "" || r.Header.Get("RateLimit") == "" {
		t.Errorf("got %v", r.Header)
	}
}

// A session ends by logout, idle time, age, the operator's removal, another token, another key; nothing forged is one.
func TestSessionsEnd(t *testing.T) {
	d := newDesk(t, "", true)
	ends := func(what string, act func(cookie string)) {
		t.Helper()
		d.set(named("anna", operator.Admin, annas), named("bob", operator.Viewer, bobs))
		cookie := d.login(bobs)
		if ok, _ := d.holds(cookie); !ok {
			t.Fatalf("%s: it did not begin", what)
		}
		act(cookie)
		if ok, _ := d.holds(cookie); ok {
			t.Errorf("%s: it goes on", what)
		}
	}
	ends("logout", func(cookie string) {
		r := d.page("DELETE", "/admin/v1/session", "", cookie, "same-origin")
		if set := r.Header.Get("Set-Cookie"); r.StatusCode != 200 || !strings.HasPrefix(set, "__Host-floodgate_console=;") || !strings.Contains(set, "Max-Age=0") {
			t.Errorf("got %d, %s", r.StatusCode, set)
		}
	})
	ends("idle", func(string) { d.now = d.now.Add(sessionIdle) })
	ends("removal", func(string) { d.set(named("anna", operator.Admin, annas)) })
	ends("another token", func(string) { d.set(named("bob", operator.Viewer, annas)) })
	ends("restart without a key", func(string) { d.sessions = newSessions(nil, true, d.sessions.now) })

	cookie := d.login(bobs)
	for began := d.now; d.now.Sub(began) < sessionMost; d.now = d.now.Add(sessionIdle / 2) {
		var ok bool
		if ok, cookie = d.holds(cookie); !ok {
			t.Fatalf("it ended after %v, in use", d.now.Sub(began))
		}
	}
	if ok, _ := d.holds(cookie); ok {
		t.Error("it outlives its age")
	}
	d.login(bobs)
	if ok, _ := d.holds("__Host-floodgate_console="); ok {
		t.Error("an empty cookie is a session")
	}
}

// A role is the list's, at each request.
func TestASessionsRoleIsTheLists(t *testing.T) {
	d := newDesk(t, "", true)
	cookie := d.login(annas)
	path := "/admin/v1/skus/x/rebuild"
	refused(t, d.page("POST", path, "", cookie, "same-origin"), problem.NotFound, "")
	d.set(named("anna", operator.Operates, annas))
	refused(t, d.page("POST", path, "", cookie, "same-origin"), problem.Forbidden, "")
}

// Another page than the console changes nothing by a session, whatever the browser says of it.
func TestForeignPagesChangeNothing(t *testing.T) {
	d := newDesk(t, "", true)
	cookie := "Cookie: " + d.login(annas)
	const path = "/admin/v1/skus/x/restock"
	for _, c := range []struct {
		header []string
		taken  bool
	}{
		{[]string{"Sec-Fetch-Site: same-origin"}, true},
		{[]string{"Origin: http://example.com"}, true}, // httptest's host
		{[]string{"Sec-Fetch-Site: same-site"}, false},
		{[]string{"Sec-Fetch-Site: cross-site"}, false},
		{[]string{"Sec-Fetch-Site: cross-site", "Origin: http://example.com"}, false},
		{[]string{"Origin: http://example.com:8080"}, false},
		{[]string{"Origin: http://evil.example"}, false},
		{[]string{"Origin: null"}, false},
		{nil, false},
	} {
		for _, method := range []string{"POST", "DELETE"} {
			at := path
			if method == "DELETE" {
				at = "/admin/v1/sales/x/eligibility"
			}
			r := send(d.Admin, method, at, "", append([]string{"Authorization: ", cookie}, c.header...)...)
			if got := r.StatusCode != 403; got != c.taken {
				t.Errorf("%s with %q: got %d, want taken: %v", method, c.header, r.StatusCode, c.taken)
			}
		}
		if r := send(d.Admin, "GET", "/admin/v1/session", "", append([]string{"Authorization: ", cookie}, c.header...)...); r.StatusCode != 200 {
			t.Errorf("a read with %q: got %d", c.header, r.StatusCode)
		}
		refused(t, send(d.Admin, "DELETE", "/admin/v1/session", "", "Authorization: ", cookie, "Sec-Fetch-Site: cross-site"), problem.Forbidden, "")
	}
	// A program's token is no browser's: nothing forges it.
	refused(t, send(d.Admin, "POST", path, "", "Authorization: Bearer "+annas), problem.NotFound, "")
}

// No character of a cookie can be another.
func TestForgedSessions(t *testing.T) {
	d := newDesk(t, strings.Repeat("k", 32), true)
	cookie := d.login(bobs)
	name, value, _ := strings.Cut(cookie, "=")
	for i := range value {
		for _, c := range []string{"a", "0", "~"} {
			if forged := value[:i] + c + value[i+1:]; forged != value {
				if ok, _ := d.holds(name + "=" + forged); ok {
					t.Errorf("%s is a session like %s", forged, value)
				}
			}
		}
		if ok, _ := d.holds(name + "=" + value[:i]); ok {
			t.Errorf("%s is a session", value[:i])
		}
	}
	if ok, _ := d.holds("floodgate_console=" + value); ok {
		t.Error("the cookie's name does not matter")
	}
	shared := newDesk(t, strings.Repeat("k", 32), true)
	if ok, _ := shared.holds(cookie); !ok {
		t.Error("another process with the key does not take it")
	}
	other := newDesk(t, strings.Repeat("j", 32), true)
	if ok, _ := other.holds(cookie); ok {
		t.Error("another key takes it")
	}
}

// The memory of logouts has a bound; what is forgotten first would have ended first.
func TestLogoutsAreForgottenInTheEnd(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	s := newSessions(nil, true, func() time.Time { return now })
	one := s.begin(operator.Operator{Name: "bob"})
	s.end(one)
	now = now.Add(time.Second)
	for range maxEnded {
		s.end(s.begin(operator.Operator{Name: "bob"}))
	}
	if _, ok := s.ended[one.id]; ok || len(s.ended) != maxEnded {
		t.Errorf("%d are remembered, the first one: %v", len(s.ended), ok)
	}
	now = now.Add(sessionMost)
	s.end(s.begin(operator.Operator{Name: "bob"}))
	if len(s.ended) != 1 {
		t.Errorf("%d are remembered after all have ended", len(s.ended))
	}
}

func hexHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
