// Package page is the shopper page: one HTML document for every path, and the files that it loads, all embedded.
//
// The document is the same for everybody and for every sale: its script takes the sale from the address and asks the
// public API for the rest. So it can be cached anywhere.
package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"strings"
	"sync"

	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/shared/wire"
)

// Policy is the Content-Security-Policy that the page needs: nothing inline, nothing from elsewhere.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed static
var files embed.FS

// pages is the document under "/", and each file under its path.
var pages = sync.OnceValue(func() map[string]*pagecache.Page {
	all := map[string]*pagecache.Page{}
	for path, file := range map[string][2]string{
		"/":                   {"index.html", "text/html; charset=utf-8"},
		"/assets/app.js":      {"app.js", "text/javascript; charset=utf-8"},
		"/assets/core.js":     {"core.js", "text/javascript; charset=utf-8"},
		"/assets/app.css":     {"app.css", "text/css; charset=utf-8"},
		"/assets/favicon.svg": {"favicon.svg", "image/svg+xml"},
	} {
		b, err := files.ReadFile("static/" + file[0])
		if err != nil {
			panic("BUG: " + err.Error())
		}
		sum := sha256.Sum256(b)
		all[path] = pagecache.NewPage(200, file[1], `"`+hex.EncodeToString(sum[:12])+`"`, b)
	}
	return all
})

// Get returns the page at a path: the document at "/" and "/sales/{id}", a file at "/assets/...". It is false for every
// other path, and for an id that cannot be a sale's.
func Get(path string) (*pagecache.Page, bool) {
	if id, ok := strings.CutPrefix(path, "/sales/"); ok {
		_, ok = wire.ParseID(id)
		return pages()["/"], ok
	}
	p, ok := pages()[path]
	return p, ok
}
