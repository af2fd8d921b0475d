package admin

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// The console's sessions end after so long without a request, and after so long in any case.
const (
	sessionIdle = 30 * time.Minute
	sessionMost = 12 * time.Hour
	renewEvery  = time.Minute // how often a session's cookie is replaced by one with a later idle time
	maxEnded    = 10_000      // sessions whose logout is remembered
)

// sessions makes and reads the cookies of the console's sessions.
//
// A cookie holds all there is of a session, and an HMAC-SHA256 over it and over the hash of the operator's token. So there is no
// store: any process with the key reads it, also while Redis and MySQL are away, and it is worth nothing once the operator is off
// the list or has another token. The role is not in it; it is the list's, at each request. Only a logout must be remembered, in this process.
type sessions struct {
	key    []byte
	name   string // of the cookie
	secure bool
	now    func() time.Time

	mu    sync.Mutex           // guards ended
	ended map[string]time.Time // ids of sessions that were logged out, until they end in any case
}

func newSessions(key []byte, secure bool, now func() time.Time) *sessions {
	if len(key) == 0 {
		key = make([]byte, sha256.Size)
		rand.Read(key) // it never fails
	}
	s := &sessions{key: key, name: "floodgate_console", secure: secure, now: now, ended: map[string]time.Time{}}
	if secure { // the prefix has browsers refuse one of another host, of a subdomain, or without Secure
		s.name = "__Host-" + s.name
	}
	return s
}

// session is one that was read from a cookie.
type session struct {
	by          operator.Operator
	id          string
	began, used time.Time
}

func (s session) until() time.Time { return s.began.Add(sessionMost) }

func (s *sessions) begin(by operator.Operator) session {
	now := s.now()
	return session{by: by, id: rand.Text(), began: now, used: now}
}

// text is a session as a cookie holds it: the operator's name, the id, when it began and when it was last used, and the signature.
func (s *sessions) text(of session) string {
	text := strings.Join([]string{of.by.Name, of.id, strconv.FormatInt(of.began.Unix(), 10), strconv.FormatInt(of.used.Unix(), 10)}, "~")
	return text + "~" + s.sign(text, of.by)
}

func (s *sessions) sign(text string, by operator.Operator) string {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte("floodgate console session\n" + text + "\n"))
	h.Write(by.Hash[:])
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// cookie is what sets a session.
func (s *sessions) cookie(value string) string {
	c := &http.Cookie{Name: s.name, Value: value, Path: "/", HttpOnly: true, Secure: s.secure, SameSite: http.SameSiteStrictMode}
	if value == "" {
		c.MaxAge = -1
	}
	return c.String()
}

// read returns the session of a request; not ok: there is none that holds.
func (s *sessions) read(r *http.Request, list *operator.List) (of session, ok bool) {
	c, err := r.Cookie(s.name)
	if err != nil {
		return session{}, false
	}
	fields := strings.Split(c.Value, "~")
	if len(fields) != 5 {
		return session{}, false
	}
	by, known := list.Named(fields[0])
	if !known || !hmac.Equal([]byte(fields[4]), []byte(s.sign(strings.Join(fields[:4], "~"), by))) {
		return session{}, false
	}
	began, err1 := strconv.ParseInt(fields[2], 10, 64)
	used, err2 := strconv.ParseInt(fields[3], 10, 64)
	if err1 != nil || err2 != nil {
		panic("BUG: a session was signed that cannot be read")
	}
	of = session{by: by, id: fields[1], began: time.Unix(began, 0), used: time.Unix(used, 0)}
	now := s.now()
	s.mu.Lock()
	_, ended := s.ended[of.id]
	s.mu.Unlock()
	return of, !ended && now.Before(of.until()) && now.Sub(of.used) < sessionIdle
}

// end has a session be refused from now on. Where too many were ended, the one that would have ended next is forgotten.
func (s *sessions) end(of session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if len(s.ended) >= maxEnded {
		next := ""
		for id, until := range s.ended {
			if !now.Before(until) {
				delete(s.ended, id)
			} else if next == "" || until.Before(s.ended[next]) {
				next = id
			}
		}
		if len(s.ended) >= maxEnded {
			delete(s.ended, next)
		}
	}
	s.ended[of.id] = of.until()
}

// who returns the operator of a request: by its token, or by the console's session, whose idle time begins anew.
func (a *Admin) who(w http.ResponseWriter, r *http.Request) (operator.Operator, error) {
	if r.Header.Get("Authorization") != "" || len(r.CookiesNamed(a.sessions.name)) == 0 {
		by, p := a.auth.Bearer(r)
		if p != nil {
			return by, p
		}
		return by, nil
	}
	of, ok := a.sessions.read(r, a.Operators())
	if !ok {
		return operator.Operator{}, problem.New(problem.Unauthenticated, "the session has ended: log in again")
	}
	if err := a.sameOrigin(r); err != nil {
		return operator.Operator{}, err
	}
	if now := a.sessions.now(); now.Sub(of.used) >= renewEvery {
		of.used = now
		w.Header().Set("Set-Cookie", a.sessions.cookie(a.sessions.text(of)))
	}
	return of.by, nil
}

// sameOrigin refuses a change that another page than the console asks for in an operator's browser. SameSite=Strict keeps the cookie
// from other sites; this keeps out other origins of the same site, too: another port, another name of the domain. Browsers say where
// a request is from, in Sec-Fetch-Site or Origin, and no page can forge either; so no secret token needs to go through the page.
func (a *Admin) sameOrigin(r *http.Request) error {
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead
	said := r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != ""
	if err := a.origin.Check(r); err != nil || !safe && !said {
		return problem.New(problem.Forbidden, "this does not come from the console's own page: programs send Authorization: Bearer TOKEN")
	}
	return nil
}

func told(of session) adminapi.Session {
	until := wire.At(of.until())
	return adminapi.Session{Name: of.by.Name, Role: string(of.by.Role), ExpiresAt: &until, IdleAfter: int64(sessionIdle / time.Second)}
}

// getSession answers who the request is from.
func (a *Admin) getSession(r *request) (*answer, error) {
	v := adminapi.Session{Name: r.by.Name, Role: string(r.by.Role)}
	if r.Header.Get("Authorization") == "" {
		if of, ok := a.sessions.read(r.Request, a.Operators()); ok {
			v = told(of)
		}
	}
	return &answer{status: http.StatusOK, value: v}, nil
}

// login turns a token into a session of the console.
func (a *Admin) login(r *request) (*answer, error) {
	if err := a.sameOrigin(r.Request); err != nil {
		return nil, err
	}
	var in adminapi.Credentials
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	token := strings.TrimSpace(in.Token)
	if token == "" {
		return nil, problem.Invalid("token", "missing: give an operator's token")
	}
	by, p := a.auth.Token(r.RemoteAddr, token)
	if p != nil {
		return nil, p
	}
	of := a.sessions.begin(by)
	a.Log.Info("an operator logged in", "request_id", r.id, "operator", by.Name, "role", by.Role, "address", r.RemoteAddr)
	return &answer{status: http.StatusOK, value: told(of), header: map[string]string{"Set-Cookie": a.sessions.cookie(a.sessions.text(of))}}, nil
}

// logout ends the session of the request, if it has one, and has the browser forget it.
func (a *Admin) logout(r *request) (*answer, error) {
	if err := first(r.noBody(), a.sameOrigin(r.Request)); err != nil {
		return nil, err
	}
	if of, ok := a.sessions.read(r.Request, a.Operators()); ok {
		a.sessions.end(of)
		a.Log.Info("an operator logged out", "request_id", r.id, "operator", of.by.Name)
	}
	return &answer{status: http.StatusOK, value: struct{}{}, header: map[string]string{"Set-Cookie": a.sessions.cookie("")}}, nil
}
