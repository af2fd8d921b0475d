package gateway

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"floodgate.internal/gateway/page"
)

// PageConfig is how the shopper page looks.
type PageConfig struct {
	Name     string     `yaml:"name"`
	Logo     string     `yaml:"logo"`
	Theme    page.Theme `yaml:"theme"`
	Pictures []string   `yaml:"pictures"`
}

// Bounds of what a shop may give.
const (
	maxShopName = 60 // characters
	maxPictures = 16 // origins of pictures: they are in a header of every page
)

// page checks how the page looks, and reads the logo.
func (v *validator) page() {
	p := &v.Page
	if n := utf8.RuneCountInString(p.Name); n < 1 || n > maxShopName || strings.TrimSpace(p.Name) == "" || strings.ContainsFunc(p.Name, unicode.IsControl) {
		v.bad("page.name", "%q must have 1 to %d characters", p.Name, maxShopName)
	}
	v.logo = nil
	if p.Logo != "" {
		b, err := readLogo(p.Logo)
		if err == nil {
			err = page.CheckLogo(b)
		}
		if err != nil {
			v.bad("page.logo", "%q %v", p.Logo, err)
		}
		v.logo = b
	}
	for _, wrong := range p.Theme.Check() {
		v.bad("page.theme."+wrong.Field, "%s", wrong.Why)
	}
	if len(p.Pictures) > maxPictures {
		v.bad("page.pictures", "%d of them, at most %d are taken", len(p.Pictures), maxPictures)
	}
	for i, o := range p.Pictures {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || "https://"+u.Host != o || strings.ContainsAny(o, " ;,'*") || strings.ContainsFunc(o, func(r rune) bool { return r > '~' }) {
			v.bad(fmt.Sprintf("page.pictures[%d]", i), "%q must be an origin like https://cdn.example, with nothing after it", o)
		}
	}
}

// readLogo reads at most as much of a file as shows that it is too large. Its errors are without the path, which may come from
// the environment.
func readLogo(file string) (b []byte, err error) {
	f, err := os.Open(file)
	if err == nil {
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, page.MaxLogo+1))
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	return b, nil
}

// site makes the page of a configuration. Its order button pauses for as long as the limit of a user takes to earn one order,
// its look for orders until all that reading takes at once is earned again.
func (c *Config) site() *page.Site {
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	look := page.Look{Name: c.Page.Name, Logo: c.logo, Theme: c.Page.Theme, Pictures: c.Page.Pictures, Loopback: c.Development}
	if l := c.Limits.Order.LawConfig; !l.Shadow {
		look.OrderPause = seconds(1 / l.Rate)
	}
	if l := c.Limits.Read.LawConfig; !l.Shadow {
		look.LookPause = seconds(float64(l.Burst) / l.Rate)
	}
	return page.New(look)
}
