//go:build servers

package e2e

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// axe is axe-core 4.14.1 by Deque Systems, of npm, under the MPL 2.0: it looks for what keeps people out of a page.
//
//go:embed testdata/axe/axe.min.js
var axe string

// screen is a size and what the browser prefers.
type screen struct {
	name   string
	width  int64
	scheme string
}

var screens = []screen{{"narrow-light", 390, "light"}, {"narrow-dark", 390, "dark"}, {"wide-light", 1200, "light"}, {"wide-dark", 1200, "dark"}}

// examined looks at the page as it is, on each screen: axe has no finding, nothing is wider than the screen, and there is a
// picture of it in build/screens.
func (b *browser) examined(state string) {
	b.t.Helper()
	dir := filepath.Join("..", "build", "screens")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if b.is(`!window.axe`) {
		b.run(eval(axe))
	}
	for _, s := range screens {
		b.see(s)
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		found, err := chromedp.Run(ctx, chromedp.Evaluate[string](`axe.run(document, { resultTypes: ['violations'] }).then((r) =>
			r.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html + ' ' + n.failureSummary).join('; ')).join('\n'))`, chromedp.EvalAwaitPromise))
		if err == nil {
			var png []byte
			if png, err = chromedp.Run(ctx, chromedp.FullScreenshot(100)); err == nil {
				err = os.WriteFile(filepath.Join(dir, state+"-"+s.name+".png"), png, 0o644)
			}
		}
		cancel()
		if err != nil {
			b.t.Fatalf("%s, %s: %v", state, s.name, err)
		}
		if found != "" {
			b.t.Errorf("%s, %s: axe finds\n%s", state, s.name, found)
		}
		if b.is(`document.documentElement.scrollWidth > innerWidth`) {
			b.t.Errorf("%s, %s: the page is wider than the screen", state, s.name)
		}
	}
}

func (b *browser) see(s screen) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: s.width, Height: 900, DeviceScaleFactor: 1})
	if err == nil {
		_, err = chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: s.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// tabTo moves the focus by the Tab key alone.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	for range 40 {
		if b.is(`document.activeElement?.matches('` + selector + `')`) {
			return
		}
		b.run(chromedp.KeyEvent(kb.Tab))
	}
	b.t.Fatalf("%s is not reached by the Tab key", selector)
}

// offline takes the tab off the network, or back.
func (b *browser) offline(off bool) {
	b.t.Helper()
	rules := network.EmulateNetworkConditionsByRuleParams{MatchedNetworkConditions: []*network.Conditions{}}
	if off {
		rules.MatchedNetworkConditions = append(rules.MatchedNetworkConditions, &network.Conditions{Offline: true, DownloadThroughput: -1, UploadThroughput: -1})
	}
	_, err := chromedp.Call(b.ctx, network.EmulateNetworkConditionsByRule, rules)
	if err == nil {
		_, err = chromedp.Call(b.ctx, network.OverrideNetworkState, network.OverrideNetworkStateParams{Offline: off, DownloadThroughput: -1, UploadThroughput: -1})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.until(fmt.Sprintf(`navigator.onLine === %v`, !off))
}

// keys are the Idempotency-Keys that tabs sent from these numbers on.
func keys(tabs ...*browser) map[string]int {
	n := map[string]int{}
	for _, b := range tabs {
		for _, o := range b.sent()[b.from:] {
			n[o.key]++
		}
	}
	return n
}

const (
	reserved = status + `?.textContent === 'Reserved for you' && !document.querySelector('[data-el="actions"]').hidden`
	awake    = orderButton + ` && !` + orderButton + `.disabled`
	told     = `document.querySelector('[data-el="message"]').textContent`
	hint     = `document.querySelector('[data-el="hint"]').textContent`
)

// longTitle is 500 characters of right-to-left text, markup, a formula and emoji.
var longTitle = func() string {
	title := []rune(strings.Repeat(`=عرض خاص جدا<b onclick="x()">&amp;</b>👩‍👩‍👧‍👦🎉שלום`+"\u202e", 20))
	return string(title[:500])
}()

// TestThePageInShoppersHands is the shopper page in a real browser: both languages, a title of 500 characters, a picture, two
// tabs, presses without pause, a lost network, a reload, the keyboard alone, sold out while waiting, no storage. In each state
// axe finds nothing.
//
// Row D1: the page greys its buttons by the server's limits.
func TestThePageInShoppersHands(t *testing.T) {
	t.Attr("row", "D1")
	t.Parallel()
	pictures := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/shoe.svg" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "image/svg+xml")
		fmt.Fprint(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 180" width="320" height="180"><rect width="320" height="180" fill="#cde"/><path d="M40 130h230q20 0 20-20-60-10-110-60l-40 20H60z" fill="#357"/></svg>`)
	}))
	t.Cleanup(pictures.Close)
	w := newSystem(t, world.Options{Gateway: `page: {name: "Schuh & <Söhne>"}`})
	sell := func(title string, stock int64, starts time.Time, more string) int64 {
		body := world.SaleBody(title, stock, starts, time.Now().Add(2*time.Hour), 10*time.Minute)
		return w.want(w.admin("POST", "/admin/v1/sales", strings.TrimSuffix(body, "}")+more+"}"), 201, "").ID
	}
	past := time.Now().Add(-time.Minute)
	picture := func(name string) string { return fmt.Sprintf(`,"picture":"%s/%s"`, pictures.URL, name) }
	odd := sell(longTitle, 5, time.Now().Add(30*time.Minute), picture("shoe.svg"))
	shared := sell("Two tabs", 5, past, picture("none.png"))
	lost := sell("Lost on the way", 5, past, "")
	left := sell("Left behind", 5, past, "")
	gone := sell("The last one", 1, past, "")
	bare := sell("Without storage", 5, past, "")
	for _, sale := range []int64{shared, lost, left, gone, bare} {
		w.state(sale, wire.Open)
	}
	at := func(sale int64) string { return fmt.Sprintf("%s/sales/%d", w.Ports.PublicURL(), sale) }
	orders := func(sale int64) int {
		t.Helper()
		o, err := w.look(sale)
		w.must(err)
		return len(o.Orders)
	}

	// The browser's language, then the chosen one. In Chinese no English word is left but names and what operators wrote.
	a := newBrowser(t)
	speaks := func(language string) {
		t.Helper()
		agent, err := chromedp.Run(a.ctx, chromedp.Evaluate[string](`navigator.userAgent`))
		w.must(err)
		_, err = chromedp.Call(a.ctx, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: agent, AcceptLanguage: language})
		w.must(err)
	}
	speaks("zh-CN,zh")
	a.run(chromedp.Navigate(w.Ports.PublicURL() + "/"))
	a.until(`document.documentElement.lang === 'zh-CN' && document.querySelector('h1').textContent === '抢购活动'`)
	speaks("en-GB,en")
	a.run(chromedp.Reload())
	a.until(`document.documentElement.lang === 'en' && document.querySelectorAll('[data-el="link"]').length === 6`)
	if !a.is(`performance.getEntriesByType('resource').every((r) => r.initiatorType === 'fetch' || r.name.endsWith('/favicon.svg'))`) {
		t.Error("the page loads more than its document and what it asks of the API")
	}
	if !a.is(`document.title === 'Schuh & <Söhne>' && document.querySelector('.brand').textContent === 'Schuh & <Söhne>'`) {
		t.Error("the shop's name is not shown as it is")
	}
	a.examined("page-list")

	a.run(chromedp.Navigate(at(odd)))
	a.until(`document.querySelector('[data-el="picture"]').naturalWidth === 320 && !document.querySelector('[data-el="picture"]').hidden`)
	if !a.is(fmt.Sprintf(`document.querySelector('[data-el="title"]').textContent === %q && getComputedStyle(document.querySelector('[data-el="title"]')).direction === 'rtl'`, longTitle)) {
		t.Error("the long title is not shown as it is, from right to left")
	}
	a.examined("page-long-title")
	a.run(chromedp.Click("#lang"))
	a.until(`document.documentElement.lang === 'zh-CN' && ` + orderButton + `.textContent === '立即抢购'`)
	a.run(chromedp.Reload())
	a.until(`document.documentElement.lang === 'zh-CN' && ` + orderButton + `?.textContent === '立即抢购' && ` + hint)
	const words = `(() => { const page = document.body.cloneNode(true); for (const n of page.querySelectorAll('[data-el="title"], .brand, #lang, #clock, #who, script, template, noscript, code')) n.remove();
		return (page.textContent.match(/[A-Za-z]{2,}/g) || []).join(' '); })()`
	if !a.is(words + ` === ''`) {
		text, err := chromedp.Run(a.ctx, chromedp.Evaluate[string](words))
		t.Errorf("in Chinese the page says %q, %v", text, err)
	}
	a.examined("page-chinese")
	a.run(chromedp.Click("#lang"))
	a.until(`document.documentElement.lang === 'en'`)

	// Signing in by the keyboard alone.
	a.run(chromedp.Navigate(at(shared)))
	a.until(`document.querySelector('[data-el="title"]').textContent === 'Two tabs' && !document.querySelector('[data-el="sign-in-row"]').hidden`)
	a.tabTo(`[data-el="sign-in-now"]`)
	a.run(chromedp.KeyEvent(kb.Enter))
	a.until(`document.activeElement?.id === 'sign-in-value'`)
	a.examined("page-sign-in")
	a.run(chromedp.KeyEvent("shopper-1" + kb.Enter))
	a.until(`document.getElementById('who').textContent === 'shopper-1' && ` + awake)

	// Two tabs, pressed at once and without pause: one key, one order, and both show it. The picture that is not there is no hindrance.
	b := a.tab()
	b.run(chromedp.Navigate(at(shared)))
	b.until(`document.getElementById('who').textContent === 'shopper-1' && ` + awake)
	press := eval(orderButton + `.click(); ` + orderButton + `.click();`)
	a.run(press)
	b.run(press)
	for _, tab := range []*browser{a, b} {
		tab.until(reserved)
		if !tab.is(`document.querySelector('[data-el="picture"]').hidden && document.querySelectorAll('[data-el="orders"] > li').length === 1`) {
			t.Error("a picture that is not there, or a second order, is shown")
		}
	}
	if k := keys(a, b); len(k) != 1 || orders(shared) != 1 {
		t.Errorf("two tabs: got the keys %v and %d orders, want one of each", k, orders(shared))
	}
	a.examined("page-reserved")

	// The button that looks for orders pauses. Paying by the keyboard alone is seen in the other tab.
	a.run(eval(`window.refresh = document.querySelector('[data-el="refresh"]'); refresh.click(); window.paused = refresh.disabled`))
	a.until(`window.paused && ` + told + ` === 'Looked just now.' && refresh.disabled`)
	a.until(`!refresh.disabled`)
	a.tabTo(`[data-el="pay"]`)
	a.run(chromedp.KeyEvent(kb.Enter))
	for _, tab := range []*browser{a, b} {
		tab.until(status + `.textContent === 'Paid'`)
	}
	if !a.is(`Object.keys(localStorage).every((k) => !/attempt|order/.test(k))`) {
		t.Error("an order that has ended is still kept")
	}
	a.examined("page-paid")

	// Off the network, and back; a page that is gone before its request: the same key all along, and one order.
	a.from, b.from = len(a.sent()), len(b.sent())
	a.run(chromedp.Navigate(at(lost)))
	a.until(awake)
	a.offline(true)
	a.tabTo(`[data-el="order"]`)
	a.run(chromedp.KeyEvent(kb.Enter))
	a.until(hint + `.startsWith('You are offline')`)
	a.examined("page-offline")
	const stuck = `window.real ??= window.fetch; window.fetch = (url, o) => o.method === 'POST' && url.endsWith('/orders') ? (window.stuck = true, new Promise(() => {})) : real(url, o);`
	a.run(eval(stuck))
	a.offline(false)
	a.until(`window.stuck`)
	a.run(chromedp.Reload())
	a.until(reserved)
	if k := keys(a, b); len(k) != 1 || orders(lost) != 1 {
		t.Errorf("a lost network and a reload: got the keys %v and %d orders, want one of each", k, orders(lost))
	}

	// A tab whose request is on its way holds the others back, whatever the limit says. When it is closed, another asks, with its key.
	a.from, b.from = len(a.sent()), len(b.sent())
	c := a.tab()
	for _, tab := range []*browser{b, c} {
		tab.run(chromedp.Navigate(at(left)))
		tab.until(awake)
	}
	c.run(eval(stuck), eval(orderButton+`.click()`))
	c.until(`window.stuck`)
	b.until(hint + ` === 'Another tab is sending your order…'`)
	b.run(eval(`for (const k of Object.keys(localStorage)) if (/attempt/.test(k)) window.kept = JSON.parse(localStorage[k]).key; localStorage.removeItem('floodgate.pause'); ` + orderButton + `.click()`))
	if n := orders(left); n != 0 {
		t.Errorf("a tab asked for what another is asking for: %d orders", n)
	}
	c.noErrors()
	w.must(chromedp.Cancel(c.ctx))
	b.until(reserved)
	kept, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`window.kept`))
	w.must(err)
	if k := keys(a, b); len(k) != 1 || k[kept] == 0 || orders(left) != 1 {
		t.Errorf("a tab that was closed: got the keys %v and %d orders, want %s alone, and one order", k, orders(left), kept)
	}

	// Sold out while waiting: the page tells at once, and offers the standby line.
	a.run(chromedp.Navigate(at(gone)))
	a.until(`document.querySelector('[data-el="state"]').textContent === 'Open' && !document.querySelector('[data-el="refresh-row"]').hidden`)
	w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", gone), w.tokens(1, 1)[0], ""), 202, "")
	a.until(told + `.startsWith('Sold out right now') && ` + orderButton + `.disabled && document.querySelector('[data-el="standby-join"]').offsetParent`)
	a.tabTo(`[data-el="standby-join"]`)
	a.run(chromedp.KeyEvent(kb.Enter))
	a.until(`document.querySelector('[data-el="standby-text"]').textContent.startsWith('You are number 1')`)
	if !a.is(`document.querySelector('[data-el="standby-estimate"]').hidden`) {
		t.Error("a line that did not move has an estimate")
	}
	a.examined("page-sold-out")

	// Without storage it works in the tab.
	_, err = chromedp.Call(b.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });`})
	w.must(err)
	b.run(chromedp.Navigate(at(bare)))
	b.until(awake)
	b.run(eval(pressing)) // it does not know when another tab pressed: the server may refuse the first
	b.until(reserved)
	if n := orders(bare); n != 1 {
		t.Errorf("without storage: got %d orders, want one", n)
	}
	a.noErrors()
	b.noErrors()
}
