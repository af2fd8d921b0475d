//go:build servers

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// browser is one tab, and the orders that it sent.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex // guards orders and errors
	orders []sentOrder
	errors []string
	from   int // the first of the orders that keys counts
}

type sentOrder struct {
	at  float64 // seconds by the browser's monotonic clock
	key string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.WindowSize(420, 900))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	return openTab(t, ctx)
}

// tab opens another tab of the same browser.
func (b *browser) tab() *browser {
	b.t.Helper()
	return openTab(b.t, b.ctx)
}

func openTab(t *testing.T, parent context.Context) *browser {
	t.Helper()
	ctx, cancel := chromedp.NewContext(parent)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	err := chromedp.Listen(ctx, func(ev any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch ev := ev.(type) {
		case *network.EventRequestWillBeSent:
			if ev.Request.Method == "POST" && strings.HasSuffix(ev.Request.URL, "/orders") {
				key, _ := ev.Request.Headers["Idempotency-Key"].(string)
				b.orders = append(b.orders, sentOrder{ev.Timestamp.Float64(), key})
			}
		case *runtime.EventExceptionThrown:
			b.errors = append(b.errors, ev.ExceptionDetails.Text)
		}
	})
	if err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, runtime.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// run does one step after the other, with a time-out for each.
func (b *browser) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for i, step := range steps {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		err := chromedp.Do(ctx, step)
		cancel()
		if err != nil {
			b.t.Fatalf("browser, step %d: %v; the page says:\n%s", i, err, b.text())
		}
	}
}

func (b *browser) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// until waits for a JavaScript condition, on this page or on the one that it leads to. While it throws it does not hold: chromedp's
// loop in the page would end without a word, and its answer would never come.
func (b *browser) until(js string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	for {
		_, err := chromedp.Run(ctx, chromedp.Poll[bool](`(() => { try { return Boolean(`+js+`) } catch { return false } })()`,
			chromedp.WithPollingTimeout(patience), chromedp.WithPollingInterval(20*time.Millisecond)))
		if err == nil {
			return
		}
		if !left.MatchString(err.Error()) {
			b.t.Fatalf("waiting for %s: %v; the page says:\n%s", js, err, b.text())
		}
	}
}

// left is what the browser says of a question whose page was left meanwhile.
var left = regexp.MustCompile(`Cannot find context|context was destroyed|target navigated or closed`)

func (b *browser) is(js string) bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`Boolean(`+js+`)`))
	if err != nil {
		b.t.Fatalf("%s: %v", js, err)
	}
	return ok
}

// eval runs JavaScript for what it does.
func eval(js string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](`{ ` + js + ` } undefined`)
}

// signIn signs in by name, as a shopper of a development system does, on a sale's page: once that shows the sale, nothing on it
// moves away from under the pointer.
func (b *browser) signIn(name string) {
	b.t.Helper()
	b.until(`!['', '…'].includes(document.querySelector('[data-el="title"]')?.textContent ?? '')`)
	b.run(chromedp.WaitVisible(`[data-el="sign-in-now"]`), chromedp.Click(`[data-el="sign-in-now"]`), chromedp.WaitVisible("#sign-in-value"),
		chromedp.SendKeys("#sign-in-value", name+"\n"), chromedp.WaitNotVisible("#sign-in-value"))
	b.until(`document.getElementById('who').textContent === '` + name + `'`)
}

// sent is the orders that left the browser so far.
func (b *browser) sent() []sentOrder {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]sentOrder(nil), b.orders...)
}

// asked is the orders that the page asked for, each by its first request and the number of its requests: one that gets no answer, or is
// told to come back, is sent again with its key.
func (b *browser) asked() (first []sentOrder, requests []int) {
	for _, o := range b.sent() {
		i := slices.IndexFunc(first, func(f sentOrder) bool { return f.key == o.key })
		if i < 0 {
			i, first, requests = len(first), append(first, o), append(requests, 0)
		}
		requests[i]++
	}
	return first, requests
}

// noErrors fails the test where a script failed.
func (b *browser) noErrors() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errors) > 0 {
		b.t.Errorf("a script failed: %v", b.errors)
	}
}

const (
	orderButton = `document.querySelector('[data-el="order"]')`
	status      = `document.querySelector('[data-el="status"]')`
	// pressing presses the button each 10 ms, even where it is greyed, from now on.
	pressing = `window.pressing = setInterval(() => { const b = ` + orderButton + `; b.click(); b.dispatchEvent(new MouseEvent('click', {bubbles: true})); }, 10);`
)

// TestShopperPage is row D1 in a real browser whose clock is an hour fast: the button sleeps until the server's start,
// sends one order however often it is pressed and not more than one in 5 s, and the rest of the order's way is there.
//
// Row D1: the page greys its button, sends one order per x seconds, and counts by the server's clock.
func TestShopperPage(t *testing.T) {
	t.Attr("row", "D1")
	t.Parallel()
	w := newSystem(t, world.Options{})
	b := newBrowser(t)
	sale := w.newSale("A <b>keyboard</b> & more", 3, time.Now().Add(30*time.Minute), 600)
	w.state(sale, wire.Upcoming)
	_, err := chromedp.Call(b.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `{ const now = Date.now; Date.now = () => now() + 3600000; }`,
	})
	w.must(err)
	b.run(chromedp.Navigate(w.Ports.PublicURL() + "/"))
	b.until(`document.querySelector('[data-el="link"]') !== null`)
	b.run(chromedp.Click(`[data-el="link"]`))
	b.until(`location.pathname.startsWith('/sales/')`)
	b.signIn("browser-1")
	if !b.is(`document.querySelector('[data-el="title"]').textContent === 'A <b>keyboard</b> & more'`) {
		t.Error("the title is not shown as it is")
	}
	if !b.is(orderButton + `.disabled && /^(2[0-9]|30):[0-5][0-9]$/.test(document.querySelector('[data-el="count-digits"]').textContent)`) {
		t.Errorf("before the start the button must be greyed and the countdown be there; the page says:\n%s", b.text())
	}

	// Pressed without pause from before the start on, which is moved to a moment from now.
	b.run(eval(pressing))
	w.want(w.do(w.ctx, world.Call{Method: "PATCH", URL: fmt.Sprintf("%s/admin/v1/sales/%d", w.Ports.AdminURL(), sale), Token: development.AdminToken,
		Header: map[string]string{"If-Match": `"1"`}, Body: fmt.Sprintf(`{"starts_at":%q}`, time.Now().Add(5*time.Second).UTC().Format(wire.TimeFormat))}), 200, "")
	b.until(orderButton + ` && document.querySelector('[data-el="pay"]') && !document.querySelector('[data-el="actions"]').hidden`)
	b.run(eval(`clearInterval(window.pressing)`))
	if orders, _ := b.asked(); len(orders) != 1 || orders[0].key == "" {
		t.Fatalf("orders asked for by a button that was pressed without pause: got %v, want one with a key", orders)
	}
	// It was the first one, and it was accepted: so it was not sent before the start.

	// A reload finds the order; a cancelled one frees the button, after the 5 s since the last press.
	b.run(chromedp.Reload())
	b.until(status + ` && ` + status + `.textContent === 'Reserved for you' && !document.querySelector('[data-el="pay-count"]').hidden`)
	b.run(chromedp.Click(`[data-el="cancel"]`), chromedp.Click(`[data-el="cancel"]`))
	b.until(status + `.textContent === 'Cancelled'`)
	b.run(eval(pressing))
	b.until(`[...document.querySelectorAll('[data-el="status"]')].some((s) => s.textContent === 'Reserved for you')`)
	b.run(eval(`clearInterval(window.pressing)`))
	if orders, _ := b.asked(); len(orders) != 2 || orders[1].at-orders[0].at < 5 {
		t.Errorf("a second order: got %v, want two with different keys, 5 s apart", orders)
	}
	b.run(chromedp.Click(`[data-el="orders"] > li:first-child [data-el="pay"]`, chromedp.NodeVisible))
	b.until(status + `.textContent === 'Paid'`)
	if b.is(orderButton + `.offsetParent !== null`) {
		t.Error("the button is still there for a shopper who has all they may have")
	}

	// Another shopper, whose answer gets lost on the way: the page asks again with the same key, and it is one order.
	_, err = chromedp.Call(b.ctx, network.ClearBrowserCookies, cdp.Empty{})
	w.must(err)
	b.run(eval(`localStorage.clear(); sessionStorage.clear();`), chromedp.Reload())
	b.signIn("browser-2")
	b.until(`!` + orderButton + `.disabled`)
	// The first answer is thrown away after the server gave it.
	b.run(eval(`const real = window.fetch; let lost = false; window.fetch = async (url, o) => { const r = await real(url, o);
		if (!lost && o.method === 'POST' && url.endsWith('/orders')) { lost = true; throw new TypeError('lost'); } return r; };`))
	b.run(chromedp.Click(`[data-el="order"]`))
	b.until(status + ` && ` + status + `.textContent === 'Reserved for you'`)
	w.until("the page asks again with the third key", patience, func() (bool, string) {
		orders, requests := b.asked()
		return len(orders) == 3 && requests[2] >= 2, fmt.Sprint(b.sent())
	})
	o, err := w.look(sale)
	w.must(err)
	if len(o.Orders) != 3 { // one cancelled, one paid, one of the second shopper
		t.Errorf("got %d orders, want 3: %v", len(o.Orders), o.Orders)
	}

	// Who has none asks why.
	if b.is(`!document.querySelector('[data-el="why"]').hidden`) {
		t.Error("who has an order is asked why they have none")
	}
	b.run(chromedp.Click(`[data-el="orders"] > li:first-child [data-el="cancel"]`), chromedp.Click(`[data-el="orders"] > li:first-child [data-el="cancel"]`))
	b.until(status + `.textContent === 'Cancelled'`)
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/close", sale), ""), 200, "")
	b.run(chromedp.Click(`[data-el="why"] summary`, chromedp.NodeVisible))
	for _, words := range []string{"You cancelled the order", "The sale was over", "Your order was accepted"} {
		b.until(`document.querySelector('[data-el="events"]').innerText.includes('` + words + `')`)
	}
	b.noErrors()
}

// TestStandbyPage is the standby line in a real browser: a button where a sale is sold out, the place, and an offer that is paid.
func TestStandbyPage(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	b := newBrowser(t)
	sale := w.newSale("The last one", 1, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	token := w.tokens(1, 1)[0]
	id := w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), token, ""), 202, "").OrderID
	w.order(id, token, wire.PendingPayment)
	w.state(sale, wire.SoldOut)

	says := func(text string) string {
		return `document.querySelector('[data-el="standby-text"]') && document.querySelector('[data-el="standby-text"]').textContent.startsWith('` + text + `')`
	}
	b.run(chromedp.Navigate(fmt.Sprintf("%s/sales/%d", w.Ports.PublicURL(), sale)))
	b.signIn("browser-3")
	b.run(chromedp.Click(`[data-el="standby-join"]`, chromedp.NodeVisible))
	b.until(says("You are number 1 in the standby line"))
	if b.is(`document.querySelector('[data-el="standby-join"]').offsetParent !== null`) {
		t.Error("the way into the line is still there for one who is in it")
	}
	b.run(chromedp.Click(`[data-el="standby-leave"]`, chromedp.NodeVisible))
	b.until(says("Wait in line"))
	b.run(chromedp.Click(`[data-el="standby-join"]`, chromedp.NodeVisible), chromedp.Reload())
	b.until(says("You are number 1 in the standby line"))
	w.want(w.public("POST", "/v1/orders/"+id+"/cancellation", token, ""), 200, "")
	b.until(says("Something came back") + ` && ` + status + `.textContent === 'Reserved for you' && !document.querySelector('[data-el="pay-count"]').hidden`)
	b.run(chromedp.Click(`[data-el="pay"]`, chromedp.NodeVisible))
	b.until(status + `.textContent === 'Paid'`)
	b.noErrors()
	if sent := b.sent(); len(sent) > 0 {
		t.Errorf("the page ordered: %v", sent)
	}
}
