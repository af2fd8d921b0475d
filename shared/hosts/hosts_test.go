package hosts

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOnly(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, c := range []struct {
		listen, here string // where the listener listens, and where the request arrived
		listed       []string
		host         string
		taken        bool
	}{
		{"127.0.0.1:8081", "127.0.0.1", nil, "127.0.0.1:8081", true},
		{"127.0.0.1:8081", "127.0.0.1", nil, "127.0.0.1", true},
		{"127.0.0.1:8081", "127.0.0.1", nil, "127.0.0.1:19999", true}, // a forwarded port
		{"127.0.0.1:8081", "127.0.0.1", nil, "localhost:8081", true},
		{"127.0.0.1:8081", "127.0.0.1", nil, "LocalHost.", true},
		{"127.0.0.1:8081", "127.0.0.1", nil, "127.1.2.3:8081", true},
		{"[::1]:8081", "::1", nil, "[::1]:8081", true},
		{"[::1]:8081", "::1", nil, "[::1]", true},
		{"[::1]:8081", "::1", nil, "[0:0::1]:1", true},
		{"[::1]:8081", "::1", nil, "[::ffff:127.0.0.1]:1", true},
		{"127.0.0.1:8081", "127.0.0.1", nil, "evil.example:8081", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "127.0.0.1.evil.example", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "localhost.evil.example:8081", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "evil.example:127.0.0.1", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "127.0.0.1:8081@evil.example", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "10.0.0.7:8081", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, ":8081", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "[::1", false},
		{"127.0.0.1:8081", "127.0.0.1", nil, "[evil.example]:8081", false},
		{"0.0.0.0:8081", "10.0.0.7", nil, "10.0.0.7:8081", true}, // a probe of the pod
		{"0.0.0.0:8081", "::ffff:10.0.0.7", nil, "10.0.0.7:8081", true},
		{":8081", "fd00::7", nil, "[fd00::7]:8081", true},
		{":8081", "10.0.0.7", nil, "10.0.0.8:8081", false},
		{":8081", "10.0.0.7", nil, "", false},
		{"0.0.0.0:8081", "10.0.0.7", nil, "0.0.0.0:8081", true}, // who asks at the address of the configuration
		{"ops.internal:8081", "10.0.0.7", nil, "OPS.internal:8081", true},
		{"ops.internal:8081", "10.0.0.7", nil, "gateway:8081", false},
		{"0.0.0.0:8081", "10.0.0.7", []string{"gateway"}, "gateway:8081", true},
		{"0.0.0.0:8081", "10.0.0.7", []string{"other", "gateway:8081"}, "Gateway:8081", true},
		{"0.0.0.0:8081", "10.0.0.7", []string{"gateway:8081"}, "gateway:8082", false},
		{"0.0.0.0:8081", "10.0.0.7", []string{"gateway:8081"}, "gateway", false},
		{"0.0.0.0:8081", "10.0.0.7", []string{"fd00::9"}, "[fd00::9]:8081", true},
		{"0.0.0.0:8081", "10.0.0.7", []string{"gateway"}, "gateway.evil.example", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = c.host
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(c.here), Port: 8081}))
		w := httptest.NewRecorder()
		Only(c.listen, func() []string { return c.listed }, next).ServeHTTP(w, r)
		if taken := w.Code == http.StatusNoContent; taken != c.taken {
			t.Errorf("%q at %s of %s with %v: got %d, want taken: %v", c.host, c.here, c.listen, c.listed, w.Code, c.taken)
		} else if !taken && (w.Code != 421 || !strings.Contains(w.Body.String(), "BAD_REQUEST")) {
			t.Errorf("%q: got %d %s", c.host, w.Code, w.Body)
		}
	}
	for host, want := range map[string]bool{"ops.example": true, "ops.example:8081": true, "[::1]:1": true, "::1": true, "10.0.0.1": true, "": false, "a b": false, "http://a": false, "a:b": false, "a:123456": false, "*": false} {
		if Valid(host) != want {
			t.Errorf("Valid(%q): got %v", host, !want)
		}
	}
}
