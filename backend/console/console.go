// Package console holds the operator's console: one HTML document, its scripts and a style sheet, embedded. They are the same
// bytes for everybody and tell nothing: the scripts ask for an operator's token once, and then use the admin API in a session.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
)

// policy is the Content-Security-Policy under which the console works. Nothing is inline, nothing comes from elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed static
var files embed.FS

type asset struct {
	name, contentType, etag string
}

var assets = load()

// Paths is what the console serves; each is a path of its own. The document is "/".
var Paths = slices.Sorted(maps.Keys(assets))

func load() map[string]asset {
	types := map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	names, err := fs.Glob(files, "static/*")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	assets := map[string]asset{}
	for _, name := range names {
		b, err := files.ReadFile(name)
		contentType, known := types[path.Ext(name)]
		if err != nil || !known {
			panic(fmt.Sprintf("BUG: %s: %v, or of no known type", name, err))
		}
		at := "/console/" + path.Base(name)
		if path.Base(name) == "index.html" {
			at = "/"
		}
		sum := sha256.Sum256(b)
		assets[at] = asset{name, contentType, `"` + hex.EncodeToString(sum[:12]) + `"`}
	}
	return assets
}

// ServeHTTP answers GET and HEAD for Paths. A browser asks each time whether what it has is still right.
func ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, ok := assets[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("ETag", a.etag)
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	http.ServeFileFS(w, r, fs.FS(files), a.name)
}
