package page

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
)

func body(p *pagecache.Page) string { return string(p.Body(pagecache.Identity)) }

func document(t *testing.T, look Look) string {
	t.Helper()
	p, ok := New(look).Get("/")
	if !ok {
		t.Fatal("no document")
	}
	return body(p)
}

func TestGet(t *testing.T) {
	s := New(Look{})
	for path, want := range map[string]string{
		"/": "text/html; charset=utf-8", "/sales/1": "text/html; charset=utf-8", "/sales/9223372036854775807": "text/html; charset=utf-8",
		"/assets/favicon.svg": "image/svg+xml",
	} {
		a, ok := s.Get(path)
		if !ok || a.ContentType != want || len(body(a)) == 0 || !regexp.MustCompile(`^W/"[0-9a-f]{24}"$`).MatchString(a.ETag) {
			t.Errorf("%s: got %v, %q, %d bytes, ETag %s; want %q", path, ok, a.ContentType, len(body(a)), a.ETag, want)
		}
	}
	for _, path := range []string{"", "/index.html", "/sales", "/sales/", "/sales/0", "/sales/01", "/sales/-1", "/sales/1/", "/sales/x",
		"/sales/12345678901234567890", "/assets/", "/assets/index.html", "/assets/app.js", "/assets/../page.go", "//", "/sales/1?x"} {
		if a, ok := s.Get(path); ok {
			t.Errorf("%q: got %s, want none", path, a.ContentType)
		}
	}
}

// The page is at most 60 KB, and its first paint needs one request: nothing but the icon has an address. With the largest logo
// it is at most 60 KB on the wire.
func TestThePageIsSmallAndOneRequest(t *testing.T) {
	const most = 60_000
	s := New(Look{})
	total := 0
	for _, path := range slices.Sorted(maps.Keys(s.pages)) {
		p := s.pages[path]
		total += len(body(p))
		t.Logf("%s: %d bytes, gzip %d, br %d", path, len(body(p)), len(p.Body(pagecache.Gzip)), len(p.Body(pagecache.Brotli)))
	}
	if total > most {
		t.Errorf("the page has %d bytes, want at most %d", total, most)
	}
	doc := document(t, Look{})
	for _, m := range regexp.MustCompile(`(?:src|href|srcset|data|action)="([^"]*)"`).FindAllStringSubmatch(doc, -1) {
		if link := m[1]; link != "/" && link != "#main" && link != "/assets/favicon.svg" {
			t.Errorf("the document names %q", link)
		}
	}
	logo := append([]byte("\x89PNG\r\n\x1a\n"), make([]byte, MaxLogo-8)...)
	for i := range logo[8:] { // does not compress
		logo[8+i] = byte(i * i >> 3 * 2654435761 >> 7)
	}
	p, _ := New(Look{Logo: logo}).Get("/")
	if n := len(p.Body(pagecache.Gzip)); n > most {
		t.Errorf("with the largest logo it has %d bytes on the wire, want at most %d", n, most)
	}
}

// The policy allows this very script and style and nothing else that is inline; neither turns what the API answers into markup.
func TestOnlyItsOwnScriptRuns(t *testing.T) {
	s := New(Look{Theme: Theme{"#0a5c55", "#ffffff", "#111111"}})
	p, _ := s.Get("/")
	doc := body(p)
	for tag, directive := range map[string]string{"script": "script-src ", "style": "style-src "} {
		m := regexp.MustCompile(`(?s)<`+tag+`[^>]*>(.*?)</`+tag+`>`).FindAllStringSubmatch(doc, -1)
		if len(m) != 1 || !strings.Contains(s.Policy, directive+hashSource(m[0][1])+";") {
			t.Errorf("%d of %s, and the policy %s", len(m), tag, s.Policy)
		}
	}
	if m := regexp.MustCompile(`(?i)\sstyle=|\son[a-z]+=|javascript:|(?:src|href)="(?:https?:)?//`).FindString(regexp.MustCompile(`(?s)<(script|style).*?</(script|style)>`).ReplaceAllString(doc, "")); m != "" {
		t.Errorf("the document holds %q", m)
	}
	if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.style\b|https?://|setAttribute\(['"](on|style)`).FindString(file("core.js") + file("app.js")); m != "" {
		t.Errorf("the script holds %q", m)
	}
	if m := regexp.MustCompile(`@import|url\(`).FindString(file("app.css")); m != "" {
		t.Errorf("the style holds %q", m)
	}
	for look, want := range map[string]string{
		"any https": "img-src 'self' https:;", "named": "img-src 'self' https://cdn.example https://b.example:8443;", "loopback": "img-src 'self' https: http://127.0.0.1:* http://localhost:*;", "a logo": "img-src 'self' data: https:;",
	} {
		l := map[string]Look{"named": {Pictures: []string{"https://cdn.example", "https://b.example:8443"}}, "loopback": {Loopback: true}, "a logo": {Logo: []byte("<svg/>")}}[look]
		if got := New(l).Policy; !strings.Contains(got, want) || strings.Contains(got, "unsafe") {
			t.Errorf("%s: got %s", look, got)
		}
	}
}

// Every element that the script looks up by name must be in the document.
func TestScriptFindsItsElements(t *testing.T) {
	doc := document(t, Look{})
	names := regexp.MustCompile(`(?:\$|el|part|view)\('([a-z-]+)'\)`).FindAllStringSubmatch(file("app.js")+file("core.js"), -1)
	if len(names) < 50 {
		t.Fatalf("only %d lookups found in the script", len(names))
	}
	for _, m := range names {
		if !strings.Contains(doc, `data-el="`+m[1]+`"`) && !strings.Contains(doc, `id="`+m[1]+`"`) {
			t.Errorf("the script wants %q, which the document does not have", m[1])
		}
	}
}

func table(t *testing.T) map[string][]string {
	t.Helper()
	var words map[string][]string
	if err := json.Unmarshal([]byte(file("strings.json")), &words); err != nil {
		t.Fatal(err)
	}
	return words
}

// Each string is there in both languages, with the same values in it; each that is used is in the table, and the other way round.
func TestNoStringIsMissing(t *testing.T) {
	words := table(t)
	values := regexp.MustCompile(`\{\w+\}`)
	han := regexp.MustCompile(`\p{Han}`)
	for key, w := range words {
		if len(w) != 2 || strings.TrimSpace(w[0]) == "" || strings.TrimSpace(w[1]) == "" {
			t.Errorf("%s: got %q, want it in English and in Chinese", key, w)
			continue
		}
		if key != "lang.other" && (han.MatchString(w[0]) || !han.MatchString(w[1])) {
			t.Errorf("%s: got %q: English and Chinese, in this order", key, w)
		}
		a, b := values.FindAllString(w[0], -1), values.FindAllString(w[1], -1)
		slices.Sort(a)
		slices.Sort(b)
		if !slices.Equal(a, b) {
			t.Errorf("%s: %q has other values than %q", key, w[1], w[0])
		}
		if strings.Contains(w[0]+w[1], "</") {
			t.Errorf("%s: %q would end the script", key, w)
		}
	}
	if n := strings.Count(file("strings.json"), `": [`); n != len(words) {
		t.Errorf("the table has %d lines for %d keys: one is there twice", n, len(words))
	}

	code := file("core.js") + file("app.js")
	used := map[string]bool{"noscript": true}
	for _, m := range regexp.MustCompile(`data-t="([^"]*)"`).FindAllStringSubmatch(file("index.html"), -1) {
		used[m[1]] = true
	}
	families := map[string]bool{}
	for _, m := range regexp.MustCompile("['`]([a-z_]+(?:\\.[a-zA-Z_]+)*\\.?)(['`$])").FindAllStringSubmatch(code, -1) {
		if strings.HasSuffix(m[1], ".") {
			families[m[1]] = true
		} else if m[2] != "$" {
			used[m[1]] = true
		}
	}
	for _, m := range regexp.MustCompile(`\b(?:t|tell|worded)\('([a-z][\w.]*[\w])'`).FindAllStringSubmatch(code, -1) {
		if _, ok := words[m[1]]; !ok {
			t.Errorf("the script says %q, which is not in the table", m[1])
		}
	}
	for key := range used {
		if _, ok := words[key]; !ok && strings.Contains(key, ".") && !strings.Contains(key, "floodgate") && key != "attempt." && key != "order." {
			t.Errorf("%q is used, and not in the table", key)
		}
	}
	for key := range words {
		ok := used[key]
		for f := range families {
			ok = ok || strings.HasPrefix(key, f)
		}
		if !ok {
			t.Errorf("%q is in the table, and not used", key)
		}
	}
	for _, key := range slices.Concat(
		each("problem.", slices.Collect(maps.Keys(problem.Codes()))), each("why.rule.", verdict.Rules()),
		each("phase.", []string{"upcoming", "open", "sold_out", "paused", "ended"}), each("why.sale.", []string{"upcoming", "open", "sold_out", "paused", "ended"}),
		each("status.", statuses), each("explain.", statuses), each("why.", statuses), each("line.", []string{"waiting", "offered", "lapsed", "passed", "ended"}),
		[]string{"problem.NO_ANSWER", "why.arrived", "explain.rejected.out_of_stock", "explain.rejected.limit", "hint.upcoming", "hint.paused"}) {
		if _, ok := words[key]; !ok {
			t.Errorf("%q is not in the table", key)
		}
	}
}

var statuses = []string{"queued", "pending_payment", "paid", "issued", "cancelled", "expired", "rejected"}

func each[S ~string](prefix string, names []S) (keys []string) {
	for _, n := range names {
		keys = append(keys, prefix+string(n))
	}
	return keys
}

// No visible string stands outside the table: none in the document, and nothing in the script that could be read by a shopper.
func TestNoStringStandsOutsideTheTable(t *testing.T) {
	doc := regexp.MustCompile(`(?s)<style>.*?</style>|<script.*?</script>|\{\{\w+\}\}`).ReplaceAllString(file("index.html"), "")
	for _, m := range regexp.MustCompile(`>([^<]*)`).FindAllStringSubmatch(doc, -1) {
		if text := strings.TrimSpace(m[1]); text != "" && text != "…" {
			t.Errorf("the document says %q", text)
		}
	}
	for _, m := range regexp.MustCompile(`\b(?:title|alt|placeholder|aria-label|aria-description|value)="([^"]+)"`).FindAllString(doc, -1) {
		t.Errorf("the document says %q", m)
	}
	code := regexp.MustCompile(`(?m)(^|\s)//.*$`).ReplaceAllString(file("core.js")+file("app.js"), "")
	code = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(code, "")
	for _, m := range regexp.MustCompile("'[^'\n]*'|`[^`\n]*`|\"[^\"\n]*\"").FindAllString(code, -1) {
		words := regexp.MustCompile(`\$\{[^}]*\}`).ReplaceAllString(m, "")
		if regexp.MustCompile(`\p{Han}|[A-Z][a-z]+ |[a-z]+ [a-z]+|^.[A-Z][a-z]{3,}.$`).MatchString(words) && !slices.Contains(allowed, m) {
			t.Errorf("the script says %s: put it into strings.json", m)
		}
	}
}

// allowed is what only looks like words: classes, and names of fields.
var allowed = []string{`'Accept'`, `'notice '`}

// Titles and names are data: the script hands them over as text, and the direction is the browser's to find.
func TestNamesAreData(t *testing.T) {
	doc := document(t, Look{Name: `<b>&"Shop"</b>`})
	if strings.Contains(doc, "<b>&") || !strings.Contains(doc, "&lt;b&gt;&amp;&#34;Shop&#34;&lt;/b&gt;") {
		t.Error("the shop's name is markup")
	}
	if strings.Count(doc, `dir="auto"`) < 3 {
		t.Error("a title's direction is not found by the browser")
	}
}

func TestPauses(t *testing.T) {
	doc := document(t, Look{OrderPause: time.Second / 3, LookPause: 2 * time.Second})
	if !strings.Contains(doc, `content="{&#34;look_pause_ms&#34;:2000,&#34;order_pause_ms&#34;:334}"`) {
		t.Error("the document does not say for how long its buttons pause")
	}
}

func TestLogo(t *testing.T) {
	png := []byte("\x89PNG\r\n\x1a\n...")
	for _, good := range [][]byte{png, []byte("\xff\xd8\xff\xe0"), []byte("RIFF....WEBPVP8 "), []byte("\n<svg/>"), []byte(`<?xml version="1.0"?><svg/>`)} {
		if err := CheckLogo(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range [][]byte{nil, []byte("GIF89a"), []byte("<html><svg/>"), []byte("<?xml?><html/>"), append(bytes.Clone(png), make([]byte, MaxLogo)...)} {
		if err := CheckLogo(bad); err == nil {
			t.Errorf("%.10q of %d bytes is taken", bad, len(bad))
		}
	}
	if doc := document(t, Look{Logo: png}); !strings.Contains(doc, `<img src="data:image/png;base64,`+base64.StdEncoding.EncodeToString(png)+`" alt="">`) {
		t.Error("the document does not have the logo")
	}
}

func TestTheme(t *testing.T) {
	for _, good := range []Theme{{}, {"#0f766e", "#ffffff", "#1c1e21"}, {"#ffd400", "#000000", "#FFFFFF"}, {"#000000", "#767676", "#000000"}} {
		if wrong := good.Check(); wrong != nil {
			t.Errorf("%v: %v", good, wrong)
		}
	}
	for _, c := range []struct {
		Theme
		field, why string
	}{
		{Theme{"#0f766e", "", ""}, "background", "give all three"}, {Theme{"0f766e", "#ffffff", "#000000"}, "accent", `"0f766e"`},
		{Theme{"#0f7", "#ffffff", "#000000"}, "accent", `"#0f7"`}, {Theme{"#0f766g", "#ffffff", "#000000"}, "accent", `"#0f766g"`},
		{Theme{"#+f766e", "#ffffff", "#000000"}, "accent", `"#+f766e"`}, {Theme{"red", "#ffffff", "#000000"}, "accent", `"red"`},
		{Theme{"#000000", "#ffffff", "#777777"}, "text", "a contrast of 4.47"}, {Theme{"#ffd400", "#ffffff", "#000000"}, "accent", "a contrast of 1."},
		{Theme{"#000000", "#ffffff", "#ffffff"}, "text", "a contrast of 1.00"},
	} {
		wrong := c.Check()
		if len(wrong) == 0 || !slices.ContainsFunc(wrong, func(p Problem) bool { return p.Field == c.field && strings.Contains(p.Why, c.why) }) {
			t.Errorf("%v: got %v, want %s: %s", c.Theme, wrong, c.field, c.why)
		}
	}
	dark := document(t, Look{Theme: Theme{"#ffd400", "#101010", "#f0f0f0"}})
	for _, want := range []string{"@media all {", ":root { color-scheme: dark; --bg: #101010; --panel: #101010; --ink: #f0f0f0;", "--accent: #ffd400; --accent-ink: #000000;"} {
		if !strings.Contains(dark, want) {
			t.Errorf("a dark theme has no %q", want)
		}
	}
	if light := document(t, Look{Theme: Theme{"#0f766e", "#ffffff", "#000000"}}); !strings.Contains(light, "@media not all {") || !strings.Contains(light, "color-scheme: light; --bg: #ffffff") {
		t.Error("a light theme is not in force where the browser prefers dark")
	}
	if doc := document(t, Look{}); !strings.Contains(doc, "@media (prefers-color-scheme: dark) {") || !strings.Contains(doc, "@media (prefers-reduced-motion: no-preference) {") {
		t.Error("without a theme the browser's preferences do not count")
	}
}
