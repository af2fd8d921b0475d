package edge

import (
	"strings"
	"testing"
)

// Outside development the session cookie is one that browsers take from this very host alone, over HTTPS (RFC 6265bis, 4.1.3.2), and
// no other name is read. In development over plain HTTP it would not be taken so.
func TestTheSessionCookieIsThisHostsOwn(t *testing.T) {
	s, tokens := refusing(t)
	set := *s.settings.Load()
	ask := func(insecure bool, method, fields string) string {
		set.InsecureCookies = insecure
		s.SetSettings(set)
		got, _ := answers(t, s, []byte(method+" /v1/session HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n"+fields+"\r\n"))
		return got
	}
	bearer, token := "Authorization: Bearer "+tokens["8"]+"\r\n", tokens["8"]
	for _, c := range []struct {
		insecure      bool
		name, another string
	}{{false, "__Host-floodgate_session", "floodgate_session"}, {true, "floodgate_session", "__Host-floodgate_session"}} {
		in := ask(c.insecure, "POST", bearer)
		set := "\r\nSet-Cookie: " + c.name + "=" + token + "; Max-Age="
		if !strings.Contains(in, set) || strings.Contains(in, "Domain") || !strings.Contains(in, "; Path=/; HttpOnly; SameSite=Strict") || strings.Contains(in, "; Secure\r\n") == c.insecure {
			t.Errorf("signing in: got %q, want %q", in, set)
		}
		if got := ask(c.insecure, "GET", "Cookie: "+c.name+"="+token+"\r\n"); !strings.Contains(got, "200 OK") {
			t.Errorf("by %s: got %q", c.name, got)
		}
		if got := ask(c.insecure, "GET", "Cookie: "+c.another+"="+token+"\r\n"); !strings.Contains(got, "401 Unauthorized") {
			t.Errorf("by %s: got %q", c.another, got)
		}
		if got := ask(c.insecure, "DELETE", ""); !strings.Contains(got, "\r\nSet-Cookie: "+c.name+"=; Max-Age=0; Path=/") || strings.Contains(got, "; Secure\r\n") == c.insecure {
			t.Errorf("signing out: got %q", got)
		}
	}
}
