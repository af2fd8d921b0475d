// Package page is the shopper page: one HTML document for every path and every language, with all that it needs inline, and
// its icon.
//
// The document is the same for everybody and for every sale: its script takes the sale from the address and the language
// from the browser, and asks the public API for the rest. So it can be cached anywhere. docs/page.md says what it promises.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"strings"
	"time"

	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/shared/wire"
)

// Look is what a shop decides of the page. The zero Look is Floodgate's own.
type Look struct {
	Name     string   // of the shop; "" is Floodgate
	Logo     []byte   // an image that Logo accepts; nil: none
	Theme    Theme    // zero: light and dark, as the browser prefers
	Pictures []string // origins that sales' pictures come from; none: any https
	Loopback bool     // pictures may come from this machine by plain HTTP
	// OrderPause and LookPause are for how long the buttons pause after a press, as the limits say.
	OrderPause, LookPause time.Duration
}

// Site is the page of a configuration. It does not change.
type Site struct {
	// Policy is the Content-Security-Policy that goes with each of its files: the document's own script and style, and
	// nothing from elsewhere but pictures.
	Policy string
	pages  map[string]*pagecache.Page
}

//go:embed static
var files embed.FS

func file(name string) string {
	b, err := files.ReadFile("static/" + name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

// New makes the page. The theme must be valid.
func New(look Look) *Site {
	if look.Name == "" {
		look.Name = "Floodgate"
	}
	var words map[string][2]string
	table := new(bytes.Buffer)
	if err := json.Unmarshal([]byte(file("strings.json")), &words); err != nil {
		panic("BUG: strings.json: " + err.Error())
	}
	if err := json.Compact(table, []byte(file("strings.json"))); err != nil {
		panic("BUG: strings.json: " + err.Error())
	}
	script := "const STRINGS = " + table.String() + ";\n" + squeeze(file("core.js")) + squeeze(file("app.js"))
	style := squeeze(look.Theme.style(file("app.css")))
	var logo, types string
	if len(look.Logo) > 0 {
		kind, _ := logoType(look.Logo)
		logo, types = `<img src="data:`+kind+";base64,"+base64.StdEncoding.EncodeToString(look.Logo)+`" alt="">`, " data:"
	}
	data, err := json.Marshal(map[string]int64{"order_pause_ms": millis(look.OrderPause), "look_pause_ms": millis(look.LookPause)})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	document := strings.NewReplacer(
		"{{name}}", html.EscapeString(look.Name), "{{logo}}", logo, "{{data}}", html.EscapeString(string(data)), "{{style}}", style, "{{script}}", script,
		"{{noscript}}", html.EscapeString(words["noscript"][0])+`<br><span lang="zh-CN">`+html.EscapeString(words["noscript"][1])+"</span>",
	).Replace(squeeze(file("index.html")))

	sources := "https:"
	if len(look.Pictures) > 0 {
		sources = strings.Join(look.Pictures, " ")
	}
	if look.Loopback {
		sources += " http://127.0.0.1:* http://localhost:*"
	}
	icon := file("favicon.svg")
	return &Site{
		Policy: "default-src 'none'; script-src " + hashSource(script) + "; style-src " + hashSource(style) + "; img-src 'self'" + types + " " + sources +
			"; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		pages: map[string]*pagecache.Page{
			"/":                   newPage("text/html; charset=utf-8", document),
			"/assets/favicon.svg": newPage("image/svg+xml", icon),
		},
	}
}

func newPage(contentType, body string) *pagecache.Page {
	sum := sha256.Sum256([]byte(body))
	return pagecache.NewPage(200, contentType, `"`+hex.EncodeToString(sum[:12])+`"`, []byte(body))
}

// Get returns the page at a path: the document at "/" and "/sales/{id}", a file at "/assets/...". It is false for every
// other path, and for an id that cannot be a sale's.
func (s *Site) Get(path string) (*pagecache.Page, bool) {
	if id, ok := strings.CutPrefix(path, "/sales/"); ok {
		_, ok = wire.ParseID(id)
		return s.pages["/"], ok
	}
	p, ok := s.pages[path]
	return p, ok
}

func millis(d time.Duration) int64 { return int64(math.Ceil(float64(d) / float64(time.Millisecond))) }

// hashSource lets a policy allow exactly this inline text.
func hashSource(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// squeeze leaves out indentation, empty lines and comments to the end of a line. The files hold no text that spans lines, and
// none with " // " in it.
func squeeze(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(" "+strings.TrimSpace(line), " // ")
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// MaxLogo bounds a logo, in bytes: it is part of the document, which every shopper loads.
const MaxLogo = 16 << 10

// CheckLogo says what is wrong with a logo's file.
func CheckLogo(b []byte) error {
	if len(b) == 0 || len(b) > MaxLogo {
		return fmt.Errorf("has %d bytes, it must have 1 to %d: every shopper loads it with the page", len(b), MaxLogo)
	}
	if _, ok := logoType(b); !ok {
		return fmt.Errorf("is no PNG, JPEG, WebP or SVG image")
	}
	return nil
}

// logoType tells an image's media type by how it begins. An SVG in an img runs no script (HTML, 4.8.3).
func logoType(b []byte) (string, bool) {
	switch head := bytes.TrimSpace(b); {
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png", true
	case bytes.HasPrefix(b, []byte("\xff\xd8\xff")):
		return "image/jpeg", true
	case len(b) > 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP":
		return "image/webp", true
	case bytes.HasPrefix(head, []byte("<svg")), bytes.HasPrefix(head, []byte("<?xml")) && bytes.Contains(head, []byte("<svg")):
		return "image/svg+xml", true
	}
	return "", false
}
