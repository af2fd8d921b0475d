// Package page holds the shopper page: one HTML document for every path, two scripts and a style sheet, all embedded.
//
// The document is the same bytes for everybody and for every sale; the script reads the sale from the address and asks the
// public API for the rest, so the page can be cached anywhere.
package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"path"
	"strings"
)

// Policy is the Content-Security-Policy under which the page works. Nothing is inline, nothing comes from elsewhere.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Asset is one answer of the page. Body must not be changed.
type Asset struct {
	Body        []byte
	ContentType string
	ETag        string // strong, quoted
}

//go:embed static
var files embed.FS

var (
	document = asset("index.html", "text/html; charset=utf-8")
	assets   = map[string]Asset{
		"/assets/app.js":      asset("app.js", "text/javascript; charset=utf-8"),
		"/assets/core.js":     asset("core.js", "text/javascript; charset=utf-8"),
		"/assets/app.css":     asset("app.css", "text/css; charset=utf-8"),
		"/assets/favicon.svg": asset("favicon.svg", "image/svg+xml"),
	}
)

func asset(name, contentType string) Asset {
	b, err := files.ReadFile(path.Join("static", name))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return Asset{Body: b, ContentType: contentType, ETag: `"` + hex.EncodeToString(sum[:12]) + `"`}
}

// Get returns what a path of the page answers: "/" and "/sales/{id}" are the document, "/assets/..." the files that it
// loads. It is false for every other path, also for an id that is no positive integer.
func Get(path string) (Asset, bool) {
	if path == "/" {
		return document, true
	}
	if id, ok := strings.CutPrefix(path, "/sales/"); ok {
		return document, isID(id)
	}
	a, ok := assets[path]
	return a, ok
}

// isID reports whether s can be a sale id: digits without a leading zero.
func isID(s string) bool {
	if s == "" || len(s) > 19 || s[0] == '0' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
