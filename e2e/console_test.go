//go:build servers

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// shows waits until an element of the console has a text.
func (b *browser) shows(name, text string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.querySelector('[data-el=%q]')?.textContent === %q`, name, text))
}

// click presses what the console shows under a name.
func (b *browser) click(name string) {
	b.t.Helper()
	b.run(chromedp.Click(`[data-el="`+name+`"]`, chromedp.NodeVisible))
}

// set writes a value into an input, whatever was in it.
func set(selector, value string) chromedp.Action[chromedp.Void] {
	return eval(fmt.Sprintf(`document.querySelector(%q).value = %q;`, selector, value))
}

// TestConsole is an operator's day in a real browser: a wrong token, a new sale, what it sells, a pause, a change that another
// operator was sooner with, a restock, an audit, an order that is cancelled, the end, and the log of it.
func TestConsole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	b := newBrowser(t)
	b.run(chromedp.Navigate(w.ports.AdminURL()+"/"), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", "wrong\n"))
	b.shows("error", "This is not the admin token.")
	b.run(set("#token", ""), chromedp.SendKeys("#token", development.AdminToken+"\n"))
	b.until(`document.getElementById('health').textContent === 'Ready'`)

	b.click("new")
	b.run(chromedp.WaitVisible("#ask-ok"), chromedp.Click("#ask-ok"))
	b.until(`document.getElementById('ask-error').textContent === 'Title: it needs one.'`)
	field := func(n int) string { return fmt.Sprintf(`#ask-fields label:nth-child(%d) input`, n) }
	local := func(at time.Time) string {
		return fmt.Sprintf(`new Date(%d - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 19)`, at.UnixMilli())
	}
	b.run(chromedp.SendKeys(field(1), "A <b>lamp</b>"), set(field(3), "12.50"), set(field(4), "5"),
		eval(`document.querySelector('`+field(7)+`').value = `+local(time.Now().Add(-time.Minute))),
		chromedp.Click("#ask-ok"))
	b.until(`location.hash.startsWith('#/sales/')`)
	b.shows("title", "A <b>lamp</b>")
	b.shows("state", "Open")
	var sale int64
	w.must(w.db.QueryRow(`SELECT id FROM sales WHERE title = ? AND price = 1250`, "A <b>lamp</b>").Scan(&sale))
	w.state(sale, wire.Open)

	tokens := w.tokens(1, 2)
	var last wire.Accepted
	for i, token := range tokens {
		w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), token, ""), 202, "").decode(w, &last)
		w.order(last.OrderID, token, wire.PendingPayment)
		b.shows("locked", fmt.Sprint(i+1))
	}
	w.want(w.public("POST", "/v1/orders/"+last.OrderID+"/payment", tokens[1], ""), 200, "")
	b.shows("sold", "1")

	b.click("pause")
	b.run(chromedp.Click("#ask-ok", chromedp.NodeVisible))
	b.shows("state", "Paused")
	w.state(sale, wire.Paused)
	b.click("resume")
	b.run(chromedp.Click("#ask-ok", chromedp.NodeVisible))
	w.state(sale, wire.Open)

	b.click("edit")
	b.run(set(field(1), "A lamp"))
	w.want(w.do(w.ctx, call{method: "PATCH", url: fmt.Sprintf("%s/admin/v1/sales/%d", w.ports.AdminURL(), sale), token: development.AdminToken,
		header: map[string]string{"If-Match": "*"}, body: `{"per_user_limit":2}`}), 200, "")
	b.run(chromedp.Click("#ask-ok"))
	b.until(`document.getElementById('ask-error').textContent.startsWith('If-Match: ')`)
	b.run(chromedp.Click("#ask-no"))
	b.until(`document.querySelector('[data-el="facts"]').textContent.includes(' 2 for each shopper')`)
	b.click("edit")
	b.run(set(field(1), "A lamp"), chromedp.Click("#ask-ok"))
	b.shows("title", "A lamp")

	b.click("restock")
	b.run(set(field(1), "3"), chromedp.Click("#ask-ok"))
	b.shows("total", "8")
	b.click("audit")
	b.shows("balanced", "balanced")

	b.click("orders")
	b.until(`document.querySelectorAll('[data-el="rows"] > tr').length === 2`)
	b.run(chromedp.Click(`[data-el="rows"] button`), chromedp.Click("#ask-ok", chromedp.NodeVisible))
	b.until(`[...document.querySelectorAll('[data-el="rows"] .state')].map((s) => s.textContent).sort().join() === 'cancelled: support,paid'`)

	b.run(eval(fmt.Sprintf(`location.hash = '#/sales/%d'`, sale)))
	b.shows("locked", "0")
	b.click("close")
	b.run(chromedp.Click("#ask-ok", chromedp.NodeVisible))
	b.shows("state", "Closed")
	w.state(sale, wire.Ended)

	for view, text := range map[string]string{"queue": "On the way", "letters": "There is none."} {
		b.run(eval(`location.hash = '#/` + view + `'`))
		b.until(fmt.Sprintf(`document.getElementById('main').innerText.includes(%q)`, text))
	}
	b.run(eval(`location.hash = '#/log'`))
	b.until(`document.querySelectorAll('[data-el="rows"] > tr').length >= 8`)
	for _, action := range []string{"sale.create", "sale.pause", "sale.resume", "sale.restock", "sale.close", "order.cancel", "title: A <b>lamp</b> → A lamp"} {
		if !b.is(fmt.Sprintf(`document.getElementById('main').innerText.includes(%q)`, action)) {
			t.Errorf("the log does not tell of %q; the page says:\n%s", action, b.text())
		}
	}
	b.run(chromedp.Click("#leave"), chromedp.WaitVisible("#token"), chromedp.Reload(), chromedp.WaitVisible("#token"))
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errors) > 0 {
		t.Errorf("the script failed: %v", b.errors)
	}
}
