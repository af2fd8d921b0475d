//go:build servers

package e2e

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/chromedp/chromedp"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/operator"
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

// field is an input of the dialog, by its place in it.
func field(n int) string {
	return fmt.Sprintf(`#ask-fields label:nth-child(%d) :is(input, select, textarea)`, n)
}

// past writes a time that is over into an input of the dialog.
func past(n int) chromedp.Action[chromedp.Void] {
	return eval(fmt.Sprintf(`document.querySelector('%s').value = new Date(%d - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 19)`,
		field(n), time.Now().Add(-time.Minute).UnixMilli()))
}

// open shows a view of the console.
func (b *browser) open(view string, args ...any) {
	b.t.Helper()
	b.run(eval(fmt.Sprintf(`location.hash = '#/`+view+`'`, args...)))
}

// confirm presses a button that the console shows under a name, and says yes to what it asks.
func (b *browser) confirm(name string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	b.click(name)
	b.run(chromedp.WaitVisible("#ask-ok"))
	b.run(append(steps, chromedp.Click("#ask-ok"))...)
}

// TestConsole is an operator's day in a real browser: a wrong token, a new sale, what it sells, a pause, a change that another
// operator was sooner with, a restock, an audit, an order that is cancelled, the end, and the log of it.
func TestConsole(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	b := newBrowser(t)
	b.run(chromedp.Navigate(w.Ports.AdminURL()+"/"), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", "wrong\n"))
	b.shows("error", "This is no operator's token.")
	b.run(set("#token", ""), chromedp.SendKeys("#token", development.AdminToken+"\n"))
	b.until(`document.getElementById('health').textContent === 'Ready'`)

	b.click("new")
	b.run(chromedp.WaitVisible("#ask-ok"), chromedp.Click("#ask-ok"))
	b.until(`document.getElementById('ask-error').textContent === 'Title: it needs one.'`)
	b.run(chromedp.SendKeys(field(1), "A <b>lamp</b>"), set(field(3), "12.50"), set(field(4), "5"), past(7), chromedp.Click("#ask-ok"))
	b.until(`location.hash.startsWith('#/sales/')`)
	b.shows("title", "A <b>lamp</b>")
	b.shows("state", "Open")
	var sale int64
	w.must(w.Books.DB.QueryRow(`SELECT id FROM sales WHERE title = ? AND price = 1250`, "A <b>lamp</b>").Scan(&sale))
	w.state(sale, wire.Open)

	tokens := w.tokens(1, 2)
	var last wire.Accepted
	for i, token := range tokens {
		w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), token, ""), 202, "").Decode(w.t, &last)
		w.order(last.OrderID, token, wire.PendingPayment)
		b.shows("locked", fmt.Sprint(i+1))
	}
	w.want(w.public("POST", "/v1/orders/"+last.OrderID+"/payment", tokens[1], ""), 200, "")
	b.shows("sold", "1")

	// It is told by the stream, not asked for.
	b.until(`document.getElementById('live').textContent === 'Live'`)
	b.until(`document.querySelector('[data-el="chart-words"]').textContent.includes('as backend ')`)

	b.click("preflight") // a development system: its secrets, at least, are a no-go until they are accepted
	b.shows("go", "NO-GO")
	b.until(`(document.querySelector('.checks .no button')?.click(), document.querySelector('[data-el="go"]').textContent === 'GO')`)
	b.confirm("pause")
	b.shows("state", "Paused")
	w.state(sale, wire.Paused)
	b.click("preflight")
	b.shows("go", "NO-GO")
	b.until(`document.querySelector('.checks .no').textContent.includes('sale resume')`)
	b.confirm("resume")
	w.state(sale, wire.Open)
	b.click("preflight")
	b.shows("go", "GO")

	b.click("edit")
	b.run(set(field(1), "A lamp"))
	w.want(w.do(w.ctx, world.Call{Method: "PATCH", URL: fmt.Sprintf("%s/admin/v1/sales/%d", w.Ports.AdminURL(), sale), Token: development.AdminToken,
		Header: map[string]string{"If-Match": "*"}, Body: `{"per_user_limit":2}`}), 200, "")
	b.run(chromedp.Click("#ask-ok"))
	b.until(`document.getElementById('ask-error').textContent.startsWith('If-Match: ')`)
	b.run(chromedp.Click("#ask-no"))
	b.until(`document.querySelector('[data-el="facts"]').textContent.includes(' 2 for each shopper')`)
	b.confirm("edit", set(field(1), "A lamp"))
	b.shows("title", "A lamp")

	b.confirm("restock", set(field(1), "3"))
	b.shows("total", "8")
	b.click("audit")
	b.shows("balanced", "balanced")

	b.click("orders")
	b.until(`document.querySelectorAll('[data-el="rows"] > tr').length === 2`)
	b.run(chromedp.Click(`[data-el="rows"] button`), chromedp.Click("#ask-ok", chromedp.NodeVisible))
	b.until(`[...document.querySelectorAll('[data-el="rows"] .state')].map((s) => s.textContent).sort().join() === 'cancelled: support,paid'`)

	b.open("sales/%d", sale)
	b.shows("locked", "0")
	b.confirm("close")
	b.shows("state", "Closed")
	w.state(sale, wire.Ended)

	b.open("flood")
	b.until(`document.querySelectorAll('[data-el="gateways"] > tr').length === 1`)
	w.until("presses are shown", patience, func() (bool, string) {
		a := w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[0], "")
		return b.is(`[...document.querySelectorAll('[data-el="answers"] > tr')].some((row) => row.innerText.startsWith('sale ended'))`), a.String()
	})
	b.until(`document.querySelectorAll('[data-el="uids"] > tr').length === 2`)

	for view, text := range map[string]string{"queue": "On the way", "letters": "There is none.", "events": "There is none."} {
		b.open(view)
		b.until(fmt.Sprintf(`document.getElementById('main').innerText.includes(%q)`, text))
	}
	b.open("sales")
	b.until(`document.getElementById('main').innerText.includes('A lamp')`)
	b.open("queue")
	b.until(`document.querySelector('[data-el="survives"]')?.textContent.startsWith('With accept.after fsync: the death of every process at once, a power cut')`)
	b.until(`document.querySelector('[data-el="settings"]').innerText.includes('innodb_flush_log_at_trx_commit')`)
	b.open("log")
	b.until(`document.querySelectorAll('[data-el="rows"] > tr').length >= 8`)
	for _, action := range []string{"sale.create", "sale.pause", "sale.resume", "sale.restock", "sale.close", "order.cancel", "title: A <b>lamp</b> → A lamp"} {
		if !b.is(fmt.Sprintf(`document.getElementById('main').innerText.includes(%q)`, action)) {
			t.Errorf("the log does not tell of %q; the page says:\n%s", action, b.text())
		}
	}
	b.run(chromedp.Click("#leave"), chromedp.WaitVisible("#token"), chromedp.Reload(), chromedp.WaitVisible("#token"))
	b.noErrors()
}

// TestConsoleOfStockAndShoppers is another day: a SKU, a sale of it in two parts, for invited shoppers only; one who asks why; a
// ban; coupons that are not told of any more; a refund that is due.
func TestConsoleOfStockAndShoppers(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{Limits: freely})
	b := newBrowser(t)
	b.run(chromedp.Navigate(w.Ports.AdminURL()+"/#/skus"), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", development.AdminToken+"\n"))
	b.until(`document.getElementById('live').textContent === 'Live'`)

	b.confirm("new", set(field(1), "Chair"), set(field(3), "20"), set(field(4), "10"))
	b.until(`location.hash.startsWith('#/skus/')`)
	b.shows("total", "10")
	b.confirm("restock", set(field(1), "5"))
	b.shows("available", "15")
	b.confirm("edit", set(field(2), "21.50"))
	b.until(`document.querySelector('[data-el="facts"]').textContent.includes('21.5')`)
	var sku, price int64
	w.must(w.Books.DB.QueryRow(`SELECT id, price FROM skus WHERE title = 'Chair'`).Scan(&sku, &price))
	if price != 2150 {
		t.Errorf("the price is %d, want 2150", price)
	}

	b.confirm("sale", set(field(1), "7"), past(4), set(field(6), "2"))
	b.until(`location.hash.startsWith('#/sales/')`)
	b.until(`document.querySelector('[data-el="facts"]').textContent.includes('2 tranches')`)
	var sale int64
	w.must(w.Books.DB.QueryRow(`SELECT id FROM sales WHERE sku_id = ?`, sku).Scan(&sale))
	var parts string
	w.must(w.Books.DB.QueryRow(`SELECT GROUP_CONCAT(quantity ORDER BY at) FROM tranches WHERE sale_id = ?`, sale).Scan(&parts))
	if parts != "4,3" {
		t.Errorf("the sale's parts are %s, want 4,3", parts)
	}
	w.state(sale, wire.Open)
	tokens := w.tokens(1, 2)
	var order wire.Accepted
	w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[0], ""), 202, "").Decode(w.t, &order)
	w.order(order.OrderID, tokens[0], wire.PendingPayment)
	b.until(`document.querySelectorAll('[data-el="networks"] > tr').length === 1`)
	b.confirm("invite", set(field(1), "1, 3\n1"))
	b.shows("listed", "invited shoppers only")
	b.shows("list-words", "2 shoppers are on the list.")
	b.confirm("list-change", set(field(1), "4 5"), set(field(2), "no uid!"))
	b.until(`document.getElementById('ask-error').textContent.startsWith('"uid!" is no uid')`)
	b.run(set(field(2), "3"), chromedp.Click("#ask-ok"))
	b.shows("list-words", "3 shoppers are on the list.")
	w.until("uid 2 is turned away", patience, func() (bool, string) {
		a := w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[1], "")
		return a.Status == 403, a.String()
	})
	b.open("skus/%d", sku)
	b.shows("allotted", "7")
	b.click("audit")
	b.shows("balanced", "balanced")

	look := func(uid string) {
		t.Helper()
		b.open("shoppers?uid=%s&sale_id=%d", uid, sale)
		b.shows("name", uid)
	}
	look("1")
	b.until(fmt.Sprintf(`document.querySelector('[data-el="events"]').innerText.includes(%q)`, order.OrderID))
	look("2")
	b.until(`!document.querySelector('[data-el="uninvited"]').hidden && document.querySelector('[data-el="uninvited"]').offsetParent !== null`)
	b.shows("may", "not banned")
	b.confirm("ban")
	b.shows("may", "banned")
	b.until(`document.querySelector('[data-el="banned"]').innerText === '2'`)
	b.confirm("ban")
	b.shows("may", "not banned")

	b.open("sales")
	b.confirm("new-coupons", set(field(1), "Ten off"), set(field(3), "spring"), past(4))
	b.until(`document.querySelector('[data-el="facts"]')?.textContent.includes('coupons of spring.')`)
	b.confirm("edit", set(field(6), "no"))
	b.until(`document.querySelector('[data-el="facts"]').textContent.includes('not published')`)

	w.want(w.public("POST", "/v1/orders/"+order.OrderID+"/cancellation", tokens[0], ""), 200, "")
	w.want(w.do(w.ctx, w.webhook(event{ID: "evt-1", Type: "payment.succeeded", PaymentID: "pay-1", OrderID: order.OrderID, Amount: price, Currency: "EUR"})), 200, "")
	b.open("payments?status=refund_due")
	b.until(`document.querySelector('[data-el="rows"]')?.innerText.includes('refund due: cancelled')`)
	b.noErrors()
}

// TestConsoleOfNamedOperators: the console shows who is logged in, and says why they may not do what their role does not allow; the
// server refuses that in any case. No script sees the token or the session. A change of the list counts at once: a role that rises, an operator who leaves.
func TestConsoleOfNamedOperators(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	sale := w.newSale("Lamp", 5, time.Now().Add(-time.Minute), 600)
	token, hash := operator.Mint()
	stores := w.Stores
	operators := func(list string) {
		t.Helper()
		w.Options.Backend = "operators: [" + list + "]\n"
		w.must(w.WriteBackend("backend", stores))
	}
	line := func(role string) string {
		return fmt.Sprintf("{name: anna, role: %s, token_sha256: %q}", role, hash)
	}
	operators(line("viewer"))
	w.until("anna is known", patience, func() (bool, string) {
		a := w.do(w.ctx, world.Call{Method: "GET", URL: w.Ports.AdminURL() + "/admin/v1/session", Token: token})
		return a.Status == 200, a.String()
	})

	b := newBrowser(t)
	b.run(chromedp.Navigate(w.Ports.AdminURL()+"/"), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", token+"\n"))
	b.until(`document.getElementById('me').textContent === 'anna, viewer'`)
	if !b.is(`document.cookie === '' && localStorage.length === 0 && sessionStorage.length === 0 && !document.documentElement.outerHTML.includes('fgop_')`) {
		t.Error("a script sees the session or the token")
	}
	b.open("sales/%d", sale)
	b.shows("title", "Lamp")
	const may = `(name) => document.querySelector('[data-el=' + name + ']').getAttribute('aria-disabled') !== 'true'`
	for _, name := range []string{"pause", "edit", "restock", "close", "rebuild", "invite"} {
		if b.is(fmt.Sprintf(`(%s)(%q)`, may, name)) {
			t.Errorf("a viewer may press %q", name)
		}
	}
	b.until(fmt.Sprintf(`(%s)('audit')`, may))
	b.click("pause")
	b.until(`document.getElementById('denied').textContent === 'This needs the role operator; you are viewer.' && !document.getElementById('denied').hidden`)
	if b.is(`document.getElementById('ask').open`) {
		t.Error("a viewer is asked whether the sale shall be paused")
	}
	b.run(eval(fmt.Sprintf(`fetch('/admin/v1/sales/%d/pause', { method: 'POST' }).then((r) => r.json()).then((p) => { window.told = p.detail; })`, sale)))
	b.until(`window.told === 'this needs the role operator: anna is viewer'`)

	operators(line("operator"))
	b.until(`document.getElementById('me').textContent === 'anna, operator'`)
	b.until(fmt.Sprintf(`(%s)('pause') && !(%s)('rebuild')`, may, may))
	b.confirm("pause")
	b.shows("state", "Paused")
	b.open("log")
	b.until(`document.getElementById('main').innerText.includes('anna, operator')`)
	b.run(chromedp.Reload())
	b.until(`document.getElementById('me').textContent === 'anna, operator'`)

	operators("")
	b.until(`document.querySelector('[data-el="error"]')?.textContent === 'The session has ended.'`)
	b.noErrors()
}

// enter shows the console to who has a token.
func (b *browser) enter(w *system, token string) {
	b.t.Helper()
	b.run(chromedp.Navigate(w.Ports.AdminURL()+"/"), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", token+"\n"))
	b.until(`document.getElementById('live').textContent === 'Live' && document.getElementById('health').textContent === 'Ready'`)
}

// says is a condition: the view has this text.
func (b *browser) says(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.getElementById('main').innerText.includes(%q)`, text))
}

// TestTheConsoleWithNothingToShow is every view of a new system: a sentence says so, and axe finds nothing.
func TestTheConsoleWithNothingToShow(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	b := newBrowser(t)
	b.run(chromedp.Navigate(w.Ports.AdminURL()+"/"), chromedp.WaitVisible("#token"))
	b.examined("console-enter")
	b.enter(w, development.AdminToken)
	for _, view := range []struct{ name, says string }{
		{"sales", "There is no sale yet."}, {"skus", "There is no SKU yet."}, {"orders", "Search by shopper, sale or status."}, {"payments", "There is none."}, {"shoppers", "Nobody."},
		{"flood", "No gateway refuses anything itself."}, {"queue", "Nothing is on its way."}, {"letters", "There is none."}, {"events", "There is none."}, {"log", "Nothing was changed yet."},
	} {
		b.open(view.name)
		b.says(view.says)
		if b.is(`[...document.querySelectorAll('#main table')].some((table) => table.offsetParent && !table.tBodies[0].rows.length)`) {
			t.Errorf("%s shows a table without rows", view.name)
		}
		b.examined("console-" + view.name + "-empty")
	}
	b.noErrors()
}

// TestTheConsoleWithEverything is every view with something of everything, the strange too, as an admin and as a viewer see it: what
// is written is shown as text, and axe finds nothing.
func TestTheConsoleWithEverything(t *testing.T) {
	t.Parallel()
	token, hash := operator.Mint()
	w := newSystem(t, world.Options{Limits: freely, Backend: fmt.Sprintf("operators: [{name: anna, role: viewer, token_sha256: %q}]\n", hash) +
		"events: {endpoints: [{name: shop, url: 'http://127.0.0.1:9/', secret: whsec_d2ViaG9va3MtdGhhdC1ub2JvZHktdGFrZXM=}]}\n"})
	sale := w.newSale(longTitle, 7, time.Now().Add(-time.Minute), 600)
	over := w.newSale("Over", 3, time.Now().Add(-2*time.Hour), 600)
	w.newSale("Soon", 3, time.Now().Add(time.Hour), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, 4)
	var orders []string
	for _, token := range tokens {
		id := w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), token, ""), 202, "").OrderID
		w.order(id, token, wire.PendingPayment)
		orders = append(orders, id)
	}
	w.want(w.public("POST", "/v1/orders/"+orders[0]+"/payment", tokens[0], ""), 200, "")
	w.want(w.public("POST", "/v1/orders/"+orders[1]+"/cancellation", tokens[1], ""), 200, "")
	w.want(w.do(w.ctx, w.webhook(event{ID: "evt-1", Type: "payment.succeeded", PaymentID: "pay-1", OrderID: orders[1], Amount: 4900, Currency: "EUR"})), 200, "")
	w.must(w.Stores.Manage(w.ctx, "POST", "/exchanges/"+w.Name+"/fg.orders/publish", fmt.Sprintf(`{"properties":{"type":"order"},"routing_key":"0","payload":%q,"payload_encoding":"string"}`,
		`{"title":"`+strings.Repeat("<b>no order", 50)+`"}`), nil))
	var sku int64
	w.must(w.Books.DB.QueryRow(`SELECT sku_id FROM sales WHERE id = ?`, sale).Scan(&sku))

	// The same title breaks no line of what is not a page.
	export, err := csv.NewReader(strings.NewReader(string(w.want(w.admin("GET", fmt.Sprintf("/admin/v1/sales/%d/orders.csv", sale), ""), 200, "").Body))).ReadAll()
	if err != nil || len(export) != len(orders)+1 {
		t.Errorf("the export has %d lines, %v; want a head and %d orders", len(export), err, len(orders))
	}
	list, err := world.Command(w.ctx, filepath.Join(w.Bin, "backend"), "sale", "list", "-config", w.File("backend.yaml"))
	if lines := strings.Count(list, "\n"); err != nil || !strings.Contains(list, longTitle+"\n") || lines != 4 {
		t.Errorf("sale list has %d lines, %v; want a head and three sales, one with the title as it is:\n%s", lines, err, list)
	}
	changes, err := w.command(w.ctx, "audit-log", "--json", "--target", fmt.Sprintf("sale %d", sale))
	var log adminapi.Log
	if err := errors.Join(err, json.Unmarshal([]byte(changes), &log)); err != nil || len(log.Entries) != 1 || !strings.Contains(changes, strings.NewReplacer(`"`, `\"`).Replace(longTitle)) {
		t.Errorf("the log of changes has no such title, %v:\n%s", err, changes)
	}
	for _, p := range []*stack.Process{w.Backend, w.Gateway} {
		text, err := os.ReadFile(p.LogFile())
		w.must(err)
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "time=") || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s's log has the line %q", p.Name(), line)
			}
		}
	}

	b := newBrowser(t)
	b.enter(w, development.AdminToken)
	b.open("sales")
	b.says("Soon")
	b.confirm("new-coupons", set(field(1), "Ten off"), set(field(3), "spring"), past(4))
	b.until(`document.querySelector('[data-el="facts"]')?.textContent.includes('coupons of spring.')`)
	b.examined("console-coupons")
	b.open("shoppers?uid=2&sale_id=%d", sale)
	b.shows("name", "2")
	b.confirm("ban")
	b.shows("may", "banned")

	views := []struct{ name, at, says string }{
		{"flood", "flood", "127.0.0.1"},
		{"sales", "sales", "Soon"},
		{"sale", fmt.Sprintf("sales/%d", sale), "Locked, unpaid"},
		{"sale-over", fmt.Sprintf("sales/%d", over), "Ended"},
		{"skus", "skus", "Soon"},
		{"sku", fmt.Sprintf("skus/%d", sku), "Allotted to sales"},
		{"orders", fmt.Sprintf("orders?sale_id=%d", sale), orders[0]},
		{"payments", "payments", "refund due: cancelled"},
		{"shopper", fmt.Sprintf("shoppers?uid=2&sale_id=%d", sale), orders[1]},
		{"queue", "queue", "innodb_flush_log_at_trx_commit"},
		{"letters", "letters", "no order"},
		{"events", "events", "order.paid"},
		{"log", "log", "sale.create"},
	}
	for _, view := range views {
		b.open("%s", view.at)
		if view.name == "flood" {
			w.until("a press is shown", patience, func() (bool, string) {
				a := w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", over), tokens[0], "")
				return b.is(fmt.Sprintf(`document.getElementById('main').innerText.includes(%q)`, view.says)), a.String()
			})
		}
		b.says(view.says)
		if view.name == "sale" {
			b.click("preflight")
			b.until(`document.querySelector('[data-el="go"]').textContent`)
			b.click("audit")
			b.shows("balanced", "balanced")
		}
		b.examined("console-" + view.name)
	}
	if b.is(`document.querySelector('#main b')`) {
		t.Error("a title became markup")
	}
	b.open("sales/%d", sale)
	b.until(fmt.Sprintf(`document.querySelector('[data-el="title"]')?.textContent === %q`, longTitle))
	b.click("edit")
	b.run(chromedp.WaitVisible("#ask-ok"), set(field(1), ""), chromedp.Click("#ask-ok"))
	b.until(`document.getElementById('ask-error').textContent`)
	b.examined("console-dialog")
	b.run(chromedp.Click("#ask-no"), eval(`for (const id of ['reasons', 'promise', 'stale', 'denied', 'lost']) { document.getElementById(id).textContent = 'It is said here: ' + id; document.getElementById(id).hidden = false; }`))
	b.examined("console-notices")
	b.run(chromedp.Click("#leave"), chromedp.WaitVisible("#token"))

	b.enter(w, token)
	for _, view := range views {
		b.open("%s", view.at)
		b.until(`document.querySelector('#main h1')`)
		if !b.is(`document.querySelector('#main [data-needs]')`) {
			continue // it shows everybody the same
		}
		b.says(view.says)
		b.examined("console-" + view.name + "-viewer")
	}
	b.noErrors()
}
