package page

import (
	"regexp"
	"strings"
	"testing"

	"floodgate.internal/gateway/pagecache"
)

func body(p *pagecache.Page) []byte { return p.Body(pagecache.Identity) }

func TestGet(t *testing.T) {
	for path, want := range map[string]string{
		"/": "text/html; charset=utf-8", "/sales/1": "text/html; charset=utf-8", "/sales/9223372036854775807": "text/html; charset=utf-8",
		"/assets/app.js": "text/javascript; charset=utf-8", "/assets/core.js": "text/javascript; charset=utf-8", "/assets/app.css": "text/css; charset=utf-8", "/assets/favicon.svg": "image/svg+xml",
	} {
		a, ok := Get(path)
		if !ok || a.ContentType != want || len(body(a)) == 0 || !regexp.MustCompile(`^W/"[0-9a-f]{24}"$`).MatchString(a.ETag) {
			t.Errorf("%s: got %v, %q, %d bytes, ETag %s; want %q", path, ok, a.ContentType, len(body(a)), a.ETag, want)
		}
	}
	for _, path := range []string{"", "/index.html", "/sales", "/sales/", "/sales/0", "/sales/01", "/sales/-1", "/sales/1/", "/sales/x",
		"/sales/12345678901234567890", "/assets/", "/assets/index.html", "/assets/../page.go", "//", "/sales/1?x"} {
		if a, ok := Get(path); ok {
			t.Errorf("%q: got %s, want none", path, a.ContentType)
		}
	}
}

// The page must work under Policy, and must never turn what the API answers into markup.
func TestNothingInlineNothingForeign(t *testing.T) {
	const markup = `innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.style\b|https?://|setAttribute\(['"](on|style)`
	for name, bad := range map[string]string{
		"/":               `(?i)<style|\sstyle=|\son[a-z]+=|javascript:|(src|href)="(https?:)?//|<script(?:>| [^>]*>[^<])`,
		"/assets/app.js":  markup,
		"/assets/core.js": markup,
		"/assets/app.css": `@import|url\(`,
	} {
		a, _ := Get(name)
		if m := regexp.MustCompile(bad).FindString(string(body(a))); m != "" {
			t.Errorf("%s holds %q", name, m)
		}
	}
}

// Every element that the script looks up by name must be in the document.
func TestScriptFindsItsElements(t *testing.T) {
	doc, _ := Get("/")
	js, _ := Get("/assets/app.js")
	names := regexp.MustCompile(`(?:\$|el)\('([a-z-]+)'\)`).FindAllStringSubmatch(string(body(js)), -1)
	if len(names) < 10 {
		t.Fatalf("only %d lookups found in the script", len(names))
	}
	for _, m := range names {
		if !strings.Contains(string(body(doc)), `data-el="`+m[1]+`"`) && !strings.Contains(string(body(doc)), `id="`+m[1]+`"`) {
			t.Errorf("the script wants %q, which the document does not have", m[1])
		}
	}
}
