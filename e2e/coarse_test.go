//go:build servers

package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// Row D7: readers learn "available" or "sold out", and no answer to the public carries a count that the stock has, or had:
// every operation of the contract is asked, in every state of a sale, by strangers, buyers and owners.
func TestNoAnswerCarriesACount(t *testing.T) {
	t.Attr("row", "D7")
	t.Parallel()
	w := newSystem(t, world.Options{Limits: freely})
	c := &coarse{w: w, counts: map[string]string{}, asked: map[string]bool{}}
	// Numbers that are nothing else's.
	large := c.newSale("Large", 48611, time.Now().Add(-time.Minute), 100)
	small := c.newSale("Small", 83, time.Now().Add(-time.Minute), 100)
	soon := c.newSale("Soon", 57731, time.Now().Add(time.Hour), 100)
	over := c.newSale("Over", 65537, time.Now().Add(-2*time.Hour), 100)
	paused := c.newSale("Paused", 62191, time.Now().Add(-time.Minute), 100)
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/pause", paused), ""), 200, "")
	for sale, state := range map[int64]wire.SaleState{large: wire.Open, small: wire.Open, soon: wire.Upcoming, over: wire.Ended, paused: wire.Paused} {
		w.state(sale, state)
	}
	tokens := w.tokens(1, 20)

	// An order of each kind.
	press := func(sale int64, token, key, body string, status int, code string) world.Answer {
		t.Helper()
		return w.want(c.do(world.Call{Method: "POST", URL: fmt.Sprintf("%s/v1/sales/%d/orders", w.Ports.PublicURL(), sale), Token: token, Key: key, Body: body}), status, code)
	}
	order := press(large, tokens[0], "k", `{"quantity":97}`, 202, "").OrderID
	w.order(order, tokens[0], wire.PendingPayment)
	press(large, tokens[0], "k", `{"quantity":97}`, 202, "")
	press(large, tokens[0], "k", `{"quantity":3}`, 422, "IDEMPOTENCY_KEY_REUSED")
	press(large, tokens[0], "", `{"quantity":97}`, 409, "ALREADY_ORDERED")
	press(large, tokens[1], "", `{"quantity":101}`, 400, "BAD_REQUEST")
	press(small, tokens[2], "", `{"quantity":89}`, 409, "INSUFFICIENT_STOCK")
	paid := press(large, tokens[3], "", `{"quantity":96}`, 202, "").OrderID
	w.order(paid, tokens[3], wire.PendingPayment)
	c.ask("POST", "/v1/orders/"+paid+"/payment", tokens[3], "")
	gone := press(large, tokens[4], "", `{"quantity":95}`, 202, "").OrderID
	w.order(gone, tokens[4], wire.PendingPayment)
	c.ask("POST", "/v1/orders/"+gone+"/cancellation", tokens[4], "")
	c.learn(large)
	everything := func(sales ...int64) {
		t.Helper()
		for _, sale := range sales {
			for _, token := range []string{"", tokens[0], tokens[19]} {
				c.everything(sale, order, token)
			}
		}
	}
	everything(large, small, soon, over, paused, 999999)

	// Sold out, with 82 of 83 units in one order; then some come back, and more are put on sale.
	all := press(small, tokens[5], "", `{"quantity":82}`, 202, "").OrderID
	press(small, tokens[6], "", "", 202, "")
	w.order(all, tokens[5], wire.PendingPayment)
	c.learn(small)
	w.state(small, wire.SoldOut)
	press(small, tokens[7], "", "", 409, "SOLD_OUT")
	everything(small)
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/restock", large), `{"quantity":27449}`), 200, "")
	c.learn(large)
	c.ask("POST", "/v1/orders/"+all+"/cancellation", tokens[5], "")
	w.state(small, wire.Open)
	everything(large, small)

	for _, r := range w.contract.routes {
		if slices.Contains(r.servers, stack.DefaultPorts.PublicURL()) && !c.asked[r.kin.Operation.OperationID] {
			t.Errorf("%s %s was never asked", r.kin.Method, r.kin.Path)
		}
	}
	if len(c.counts) < 9 {
		t.Errorf("only %d counts were looked for: %v", len(c.counts), c.counts)
	}
	t.Logf("%d answers were looked through for %d counts", c.answers, len(c.counts))
}

// coarse looks through answers for counts.
type coarse struct {
	w       *system
	counts  map[string]string // a count, as text, and what it counts
	asked   map[string]bool   // operations
	answers int
}

func (c *coarse) newSale(title string, stock int, starts time.Time, limit int) int64 {
	c.w.t.Helper()
	var s struct{ ID int64 }
	c.w.want(c.w.admin("POST", "/admin/v1/sales", fmt.Sprintf(`{"title":%q,"price":4900,"currency":"EUR","stock":%d,"starts_at":%q,"ends_at":%q,"per_user_limit":%d}`,
		title, stock, starts.UTC().Format(wire.TimeFormat), starts.Add(90*time.Minute).UTC().Format(wire.TimeFormat), limit)), 201, "").Decode(c.w.t, &s)
	c.learn(s.ID)
	return s.ID
}

// learn adds the counts that a sale's stock has now, once all is settled, but for those that are also something else.
func (c *coarse) learn(sale int64) {
	c.w.t.Helper()
	c.w.until("the sale is settled", patience, func() (bool, string) {
		o, err := c.w.look(sale)
		c.w.must(err)
		if len(o.Outbox) > 0 || o.OpenIntents > 0 || o.Gate != "open" {
			return false, fmt.Sprintf("%+v", o)
		}
		for what, n := range map[string]int64{"stock": o.Stock, "total": o.Total, "reserved": o.Reserved, "available": o.Row.Available, "locked": o.Row.Locked, "sold": o.Row.Sold} {
			if n > 70 && !slices.Contains([]int64{97, 96, 95}, n) { // those are the quantities of orders, which their owners are told
				c.counts[fmt.Sprint(n)] = fmt.Sprintf("%s of sale %d", what, sale)
			}
		}
		return true, ""
	})
}

// do sends a request and looks through all of its answer.
func (c *coarse) do(x world.Call) world.Answer {
	c.w.t.Helper()
	a := c.w.do(c.w.ctx, x)
	req, err := http.NewRequest(x.Method, x.URL, nil)
	c.w.must(err)
	if r, _ := c.w.contract.find(c.w.usual(req.URL), x.Method, req.URL.Path); r != nil {
		c.asked[r.kin.Operation.OperationID] = true
	}
	c.answers++
	body := string(a.Body)
	if id := a.Header.Get("X-Request-Id"); id != "" { // it is in problems, too
		body = strings.ReplaceAll(body, id, "")
	}
	text := a.Header.Clone()
	for _, name := range []string{"Date", "Content-Length", "X-Request-Id", "Set-Cookie"} { // of the answer itself, and a signed token
		text.Del(name)
	}
	said := numbers.FindAllString(fmt.Sprint(text)+"\n"+body, -1)
	for _, n := range said {
		if what, ok := c.counts[n]; ok && !strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
			c.w.t.Errorf("%s %s is answered with %s, the %s:\n%s\n%v", x.Method, x.URL, n, what, a, text)
		}
	}
	return a
}

// numbers are whole numbers that are no part of a word.
var numbers = regexp.MustCompile(`\b[0-9]+\b`)

func (c *coarse) ask(method, path, token, body string) world.Answer {
	c.w.t.Helper()
	return c.do(world.Call{Method: method, URL: c.w.Ports.PublicURL() + path, Token: token, Body: body, Quiet: true})
}

// everything asks every public operation of the contract about a sale or an order.
func (c *coarse) everything(sale int64, order, token string) {
	c.w.t.Helper()
	fill := strings.NewReplacer("{sale_id}", fmt.Sprint(sale), "{order_id}", order, "{name}", "app.js")
	for _, r := range c.w.contract.routes {
		if !slices.Contains(r.servers, stack.DefaultPorts.PublicURL()) {
			continue
		}
		id := r.kin.Operation.OperationID
		path := unknownParameter.ReplaceAllString(fill.Replace(r.kin.Path), "1")
		body := ""
		switch {
		case r.kin.Method == http.MethodPost && strings.HasSuffix(path, "/payment"), r.kin.Method == http.MethodPost && strings.HasSuffix(path, "/cancellation"):
			if token != "" {
				continue // owners' have had their turn: these would change the counts
			}
		case id == "order":
			if token != "" && sale != 999999 {
				body = `{"quantity":0}` // is refused wherever it gets to
			}
		case r.kin.Method == http.MethodPost:
			body = "{}"
		}
		c.ask(r.kin.Method, path, token, body)
	}
}

var unknownParameter = regexp.MustCompile(`\{[a-z_]+\}`)
