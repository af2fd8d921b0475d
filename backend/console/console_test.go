package console

import (
	"net/http"
	"net/http/httptest"
	"regexp"
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

// The policy forbids what is inline; and what the document loads, and a script takes from it or from another, must be there.
func TestTheDocumentFitsThePolicyAndTheScripts(t *testing.T) {
	document := get("/").Body.String()
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"]*)"`).FindAllStringSubmatch(document, -1) {
		if _, ok := assets[m[1]]; !ok {
			t.Errorf("the document loads %s, which is not served", m[1])
		}
	}
	if m := regexp.MustCompile(`<style|<script[^>]*>[^<]|\sstyle=|\son[a-z]+=`).FindString(document); m != "" {
		t.Errorf("%q is inline", m)
	}
	templates := map[string]string{}
	for _, m := range regexp.MustCompile(`(?s)<template id="([a-z-]+)">(.*?)</template>`).FindAllStringSubmatch(document, -1) {
		templates[m[1]] = m[2]
	}
	scripts := 0
	for _, path := range Paths {
		if !strings.HasSuffix(path, ".js") {
			continue
		}
		scripts++
		script := get(path).Body.String()
		for _, m := range regexp.MustCompile(`\bel\('([a-z-]+)'\)`).FindAllStringSubmatch(script, -1) {
			if !strings.Contains(document, `id="`+m[1]+`"`) {
				t.Errorf("%s takes %q, which the document does not have", path, m[1])
			}
		}
		var named string
		for _, m := range regexp.MustCompile(`\bcopy\('([a-z-]+)'\)`).FindAllStringSubmatch(script, -1) {
			if templates[m[1]] == "" {
				t.Errorf("%s copies %q, which is no template", path, m[1])
			}
			named += templates[m[1]]
		}
		for _, m := range regexp.MustCompile(`\$\('([a-z-]+)'\)`).FindAllStringSubmatch(script, -1) {
			if named != "" && !strings.Contains(named, `data-el="`+m[1]+`"`) {
				t.Errorf("%s takes %q, which its templates do not have", path, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`import \{ ([^}]+) \} from '\./([a-z]+\.js)'`).FindAllStringSubmatch(script, -1) {
			other := get("/console/" + m[2]).Body.String()
			for name := range strings.SplitSeq(m[1], ", ") {
				if !regexp.MustCompile(`(?m)^export (async function|function|const|let) ` + name + `\b`).MatchString(other) {
					t.Errorf("%s imports %s, which %s does not export", path, name, m[2])
				}
				if n := len(regexp.MustCompile(`\b`+name+`\b`).FindAllString(script, -1)); n < 2 {
					t.Errorf("%s imports %s and does not use it", path, name)
				}
			}
		}
		if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`).FindString(script); m != "" {
			t.Errorf("%s uses %s: text from the API could become something else", path, m)
		}
	}
	if scripts < 2 {
		t.Errorf("%d scripts: nothing was looked at", scripts)
	}
}
