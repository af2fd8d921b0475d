// Package console holds the operator's console: one HTML document, a script and a style sheet, embedded. They are the same
// bytes for everybody and tell nothing: the script asks for the admin token and then uses the admin API, like any client.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
)

// policy is the Content-Security-Policy under which the console works. Nothing is inline, nothing comes from elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed static
var files embed.FS

type asset struct {
	name, contentType, etag string
}

// Paths is what the console serves; each is a path of its own.
var Paths = []string{"/{$}", "/console/app.js", "/console/app.css", "/console/favicon.svg"}

var assets = map[string]asset{
	"/":                    read("index.html", "text/html; charset=utf-8"),
	"/console/app.js":      read("app.js", "text/javascript; charset=utf-8"),
	"/console/app.css":     read("app.css", "text/css; charset=utf-8"),
	"/console/favicon.svg": read("favicon.svg", "image/svg+xml"),
}

func read(name, contentType string) asset {
	b, err := files.ReadFile("static/" + name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return asset{"static/" + name, contentType, `"` + hex.EncodeToString(sum[:12]) + `"`}
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
