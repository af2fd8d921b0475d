package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"floodgate.internal/gateway/page"
)

// The page follows the file: its colours, name, logo and pauses, as a whole or not at all. What is wrong is named.
func TestReloadChangesThePage(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	before := g.do("GET", "/")
	if !strings.Contains(before.body, "<title>Floodgate</title>") || !strings.Contains(before.body, "&#34;order_pause_ms&#34;:5000") || !strings.Contains(before.header.Get("Content-Security-Policy"), "img-src 'self' https:") {
		t.Fatalf("got %v %v", before.header, before.body[:500])
	}
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	logo := file("logo.svg", "<svg/>")
	text := func(lines string) string {
		return configText([]string{p.addr}, with("rate: 0.2, burst: 1", "rate: 0.5, burst: 1"), with("identity:", "page:\n  "+lines+"\nidentity:"))
	}
	for lines, want := range map[string]string{
		`name: ""`: "page.name:",
		`name: "` + strings.Repeat("ä", 61) + `"`:                            "1 to 60",
		`logo: ` + dir + `/none.png`:                                         "none.png",
		`logo: ` + dir:                                                       "cannot be read: is a directory",
		`logo: ` + file("a.gif", "GIF89a"):                                   "is no PNG, JPEG, WebP or SVG image",
		`logo: ` + file("b.svg", "<svg>"+strings.Repeat(" ", page.MaxLogo)):  "it must have 1 to 16384",
		`theme: {accent: "#0f766e", background: "#fff", text: "#000000"}`:    "page.theme.background:",
		`theme: {accent: "#0f766e", background: "#ffffff", text: "#888888"}`: "has a contrast of 3.54",
		`theme: {accent: "#0f766e"}`:                                         "page.theme.background:",
		`theme: {colour: "#0f766e"}`:                                         "colour",
		`pictures: ["http://cdn.example"]`:                                   "page.pictures[0]:",
		`pictures: ["https://cdn.example/"]`:                                 "page.pictures[0]:",
		`pictures: ["https://*.example"]`:                                    "page.pictures[0]:",
		`pictures: ["https://a.example; script-src 'self'"]`:                 "page.pictures[0]:",
	} {
		g.write(text(lines))
		if a := g.reload(); a.code != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%s: got %v, want 400 and %q", lines, a, want)
		}
	}
	if a := g.do("GET", "/", "If-None-Match: "+before.header.Get("ETag")); a.code != 304 {
		t.Errorf("a refused file changed the page: %v", a)
	}
	g.write(text(`name: "A & B"` + "\n  logo: " + logo + "\n  " + `theme: {accent: "#0f766e", background: "#ffffff", text: "#101010"}` + "\n  " + `pictures: ["https://cdn.example"]`))
	if a := g.reload(); a.code != 200 && g.generation() != 2 {
		t.Fatalf("got %v", a)
	}
	a := g.do("GET", "/", "If-None-Match: "+before.header.Get("ETag"))
	for _, want := range []string{"<title>A &amp; B</title>", "data:image/svg+xml;base64,PHN2Zy8+", "--ink: #101010", "&#34;order_pause_ms&#34;:2000"} {
		if a.code != 200 || !strings.Contains(a.body, want) {
			t.Errorf("the page has no %q: %d", want, a.code)
		}
	}
	if policy := a.header.Get("Content-Security-Policy"); !strings.Contains(policy, "img-src 'self' data: https://cdn.example") {
		t.Errorf("got %s", policy)
	}

	// A logo that was drawn anew is taken by a reload, with the same file of configuration.
	file("logo.svg", "<svg />")
	if r := g.reload(); r.code != 200 || !strings.Contains(r.body, "page.logo: its file has changed") {
		t.Errorf("got %v", r)
	}
	if b := g.do("GET", "/"); strings.Contains(b.body, "base64,PHN2Zy8+") || b.header.Get("ETag") == a.header.Get("ETag") {
		t.Error("the old logo is still there")
	}
}
