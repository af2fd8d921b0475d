// Package hosts refuses requests to an operators' listener that were addressed to somebody else. A page of a foreign site can
// have its own name resolve to this machine (DNS rebinding); the browser then takes the listener for that site, and lets the
// page read its answers. The Host of such a request is still the foreign name.
package hosts

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"floodgate.internal/shared/problem"
)

// Only lets a request through to next where its Host is the address on which it arrived, the host that listen names, localhost,
// a loopback address, or one of those that listed returns. To any other it answers 421. Ports do not matter, but for those of
// listed: behind a forwarded port the Host names another one.
func Only(listen string, listed func() []string, next http.Handler) http.Handler {
	own, _, _ := split(listen)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host, port, ok := split(r.Host); ok && (host == own || local(r.Context(), host) || contains(listed(), host, port)) {
			next.ServeHTTP(w, r)
			return
		}
		p := problem.New(problem.BadRequest, "this listener is not for that Host: ask it by its address, or list the name in its configuration")
		p.Status = http.StatusMisdirectedRequest
		id := w.Header().Get("X-Request-Id")
		if id == "" {
			id = rand.Text()
			w.Header().Set("X-Request-Id", id)
		}
		w.Header().Set("Content-Type", problem.ContentType)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(p.Status)
		w.Write(p.JSON(id))
	})
}

// Valid reports whether a text can be listed: a name or an address, with a port or without.
func Valid(host string) bool {
	_, _, ok := split(host)
	return ok && len(host) <= 255
}

func local(ctx context.Context, host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if addr = addr.Unmap(); addr.IsLoopback() {
		return true
	}
	here, ok := ctx.Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && here.AddrPort().Addr().Unmap().WithZone("") == addr
}

func contains(listed []string, host, port string) bool {
	for _, l := range listed {
		if h, p, ok := split(l); ok && h == host && (p == "" || p == port) {
			return true
		}
	}
	return false
}

// split parses a host and an optional port: a name, an IPv4 address, an IPv6 address with brackets, or without where there is no
// port. Names come back in lower case and without the dot at their end, addresses in their canonical form.
func split(s string) (host, port string, ok bool) {
	host = s
	if addr, err := netip.ParseAddr(s); err == nil { // an IPv6 address without brackets has colons of its own
		return addr.Unmap().WithZone("").String(), "", true
	}
	if inner, found := strings.CutPrefix(s, "["); found {
		inner, rest, closed := strings.Cut(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !closed || err != nil || !addr.Is6() || rest != "" && rest[0] != ':' {
			return "", "", false
		}
		return addr.Unmap().WithZone("").String(), strings.TrimPrefix(rest, ":"), digits(strings.TrimPrefix(rest, ":"))
	}
	host, port, _ = strings.Cut(s, ":")
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	for _, c := range host {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_') {
			return "", "", false
		}
	}
	return host, port, host != "" && digits(port)
}

func digits(port string) bool {
	return len(port) <= 5 && strings.Trim(port, "0123456789") == ""
}
