package console

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func get(path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if len(header) == 2 {
		r.Header.Set(header[0], header[1])
	}
	w := httptest.NewRecorder()
	ServeHTTP(w, r)
	return w
}

func TestEveryPathIsServed(t *testing.T) {
	if len(Paths) != len(assets) {
		t.Errorf("%d paths, %d files", len(Paths), len(assets))
	}
	for _, path := range Paths {
		path = strings.TrimSuffix(path, "{$}")
		w := get(path)
		if w.Code != http.StatusOK || w.Body.Len() == 0 || w.Header().Get("Content-Type") != assets[path].contentType || w.Header().Get("Cache-Control") != "no-cache" ||
			w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s: got %d, %v", path, w.Code, w.Header())
		}
		if again := get(path, "If-None-Match", w.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s again: got %d, %d bytes", path, again.Code, again.Body.Len())
		}
	}
	if w := get("/console/other.js"); w.Code != http.StatusNotFound {
		t.Errorf("got %d, want 404", w.Code)
	}
}

// The policy forbids what is inline; and what the document loads, and the script takes from it, must be there.
func TestTheDocumentFitsThePolicyAndTheScript(t *testing.T) {
	document, script := get("/").Body.String(), get("/console/app.js").Body.String()
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"]*)"`).FindAllStringSubmatch(document, -1) {
		if _, ok := assets[m[1]]; !ok {
			t.Errorf("the document loads %s, which is not served", m[1])
		}
	}
	if m := regexp.MustCompile(`<style|<script[^>]*>[^<]|\sstyle=|\son[a-z]+=`).FindString(document); m != "" {
		t.Errorf("%q is inline", m)
	}
	for _, m := range regexp.MustCompile(`\bel\('([a-z-]+)'\)|copy\('([a-z-]+)'\)`).FindAllStringSubmatch(script, -1) {
		if id := m[1] + m[2]; !strings.Contains(document, `id="`+id+`"`) {
			t.Errorf("the script takes %q, which the document does not have", id)
		}
	}
	var named []string
	for _, m := range regexp.MustCompile(`data-el="([a-z-]+)"`).FindAllStringSubmatch(document, -1) {
		named = append(named, m[1])
	}
	for _, m := range regexp.MustCompile(`\$\('([a-z-]+)'\)`).FindAllStringSubmatch(script, -1) {
		if !slices.Contains(named, m[1]) {
			t.Errorf("the script takes %q, which no template has", m[1])
		}
	}
	if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`).FindString(script); m != "" {
		t.Errorf("the script uses %s: text from the API could become something else", m)
	}
}
