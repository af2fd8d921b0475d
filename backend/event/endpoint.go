package event

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"floodgate.internal/shared/conf"
)

// Bounds of what is configured.
const (
	MaxEndpoints = 16
	minSecret    = 24 // bytes, by the standard
	maxSecret    = 64
	maxURL       = 2048
)

// Endpoint is one of the shop's that takes webhooks.
type Endpoint struct {
	Name   string      `yaml:"name"`
	URL    string      `yaml:"url"`
	Secret conf.Secret `yaml:"secret"` // whsec_ and base64
	Types  []Type      `yaml:"types"`  // none: all
}

func (e *Endpoint) wants(t Type) bool { return len(e.Types) == 0 || slices.Contains(e.Types, t) }

// ValidName reports whether a name may be an endpoint's.
func ValidName(name string) bool { return plain.MatchString(name) }

var plain = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// Check returns what is wrong with the endpoints of a file, each with its field and the way out; never a secret, nor a URL, which may
// hold one.
func Check(endpoints []Endpoint, development bool) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, conf.Wrong(format, args...)) }
	if n := len(endpoints); n > MaxEndpoints {
		wrong("events.endpoints: %d of them, there must be at most %d", n, MaxEndpoints)
	}
	names := map[string]bool{}
	for i, e := range endpoints {
		field := fmt.Sprintf("events.endpoints[%d]", i)
		if !ValidName(e.Name) {
			wrong("%s.name: %q must be 1 to 32 of [a-z0-9-]", field, e.Name)
		} else if names[e.Name] {
			wrong("%s.name: %q is there twice", field, e.Name)
		}
		names[e.Name] = true
		u, err := url.Parse(e.URL)
		switch {
		case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || len(e.URL) > maxURL:
			wrong("%s.url: it must be like https://shop.example/webhooks, of at most %d bytes", field, maxURL)
		case u.Scheme != "https" && !development:
			wrong("%s.url: it must begin with https:// (only development: true takes http)", field)
		case u.User != nil || u.Fragment != "":
			wrong("%s.url: it must have no user, password or fragment; the signature tells the shop who sends", field)
		}
		if _, err := key(e.Secret); err != nil {
			wrong("%s.secret: %v", field, err)
		}
		for j, t := range e.Types {
			if !slices.Contains(Types, t) {
				wrong("%s.types[%d]: %q must be one of %v", field, j, string(t), Types)
			}
		}
	}
	return errs
}

// key is the secret's bytes. The error does not quote it.
func key(s conf.Secret) ([]byte, error) {
	text, prefixed := strings.CutPrefix(s.Reveal(), "whsec_")
	b, err := base64.StdEncoding.DecodeString(text)
	if !prefixed || err != nil || len(b) < minSecret || len(b) > maxSecret {
		return nil, fmt.Errorf(`it must be whsec_ and the base64 of %d to %d bytes; make one with: echo "whsec_$(openssl rand -base64 32)"`, minSecret, maxSecret)
	}
	return b, nil
}
