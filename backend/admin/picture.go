package admin

import (
	"net"
	"net/url"
	"strings"
)

// picture reads the URL of a picture. Shoppers' browsers load it, so it is https; in development also http from loopback.
func (a *Admin) picture(value *string, into *string) error {
	if value == nil || *value == "" {
		if value != nil {
			*into = ""
		}
		return nil
	}
	s := *value
	u, err := url.Parse(s)
	plain := func() bool {
		ip := net.ParseIP(u.Hostname())
		return a.Development && u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())
	}
	if err != nil || len(s) > maxPicture || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) ||
		u.Hostname() == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && !plain() {
		return misfit("picture", s)
	}
	*into = s
	return nil
}
