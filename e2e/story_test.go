//go:build servers

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// TestStory is what a person tries first, through the gateway alone, with production's limits.
//
// Rows A1, D8, D9: one order from the press to the payment.
func TestStory(t *testing.T) {
	t.Attr("row", "A1 D8 D9")
	t.Parallel()
	w := newSystem(t, world.Options{})
	sale := w.newSale("One keyboard", 1, time.Now().Add(-time.Minute), 600)
	soon := w.newSale("Tomorrow", 1, time.Now().Add(24*time.Hour), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, 4)
	path := fmt.Sprintf("/v1/sales/%d/orders", sale)

	// The sales.
	var list wire.SaleList
	w.want(w.public("GET", "/v1/sales", "", ""), 200, "").Decode(w.t, &list)
	var ids []int64
	for _, s := range list.Sales {
		ids = append(ids, s.ID)
	}
	if !slices.Contains(ids, sale) || !slices.Contains(ids, soon) {
		t.Errorf("the list has sales %v, want %d and %d in it", ids, sale, soon)
	}
	var now wire.Now
	w.want(w.public("GET", "/v1/time", "", ""), 200, "").Decode(w.t, &now)
	if d := time.Since(now.Now.Time); d < -time.Second || d > time.Second {
		t.Errorf("the server's clock is %v off this machine's, on which it runs", d)
	}

	// Strangers.
	w.want(w.public("POST", "/v1/sales/999999/orders", tokens[0], ""), 404, "SALE_NOT_FOUND")
	w.want(w.public("POST", path, "", ""), 401, "UNAUTHENTICATED")
	for what, token := range badTokens("1") {
		if a := w.public("POST", path, token, ""); a.Status != 401 || a.Code != "UNAUTHENTICATED" || a.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("a token that is %s: got %s, want 401", what, a)
		}
	}
	early := w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", soon), tokens[0], ""), 403, "SALE_NOT_STARTED")
	if s, _ := strconv.Atoi(early.Header.Get("Retry-After")); s < 1 {
		t.Errorf("SALE_NOT_STARTED: got Retry-After %q", early.Header.Get("Retry-After"))
	}

	// The first shopper orders, sees the verdict, pays.
	first := w.want(w.do(w.ctx, world.Call{Method: "POST", URL: w.Ports.PublicURL() + path, Token: tokens[0], Key: "k1", Body: `{"quantity":1}`}), 202, "")
	if got := first.Header.Get("Location"); got != wire.OrderPath(first.OrderID) {
		t.Errorf("got Location %q, want %q", got, wire.OrderPath(first.OrderID))
	}
	order := w.order(first.OrderID, tokens[0], wire.PendingPayment)
	if order.PayBefore == nil || order.Amount != 4900 || order.SaleID != sale || order.Quantity != 1 {
		t.Errorf("got %+v", order)
	}
	w.want(w.public("GET", "/v1/orders/"+first.OrderID, tokens[1], ""), 404, "ORDER_NOT_FOUND")
	w.want(w.public("POST", "/v1/orders/"+first.OrderID+"/payment", tokens[1], ""), 404, "ORDER_NOT_FOUND")
	w.want(w.public("POST", "/v1/orders/"+first.OrderID+"/cancellation", tokens[1], ""), 404, "ORDER_NOT_FOUND")
	w.want(w.public("GET", "/v1/orders/"+first.OrderID, "", ""), 401, "UNAUTHENTICATED")

	// Faster than the limit: at once, whatever else the sale says; the sale is sold out now, so another one answers.
	two := w.newSale("Two mice", 2, time.Now().Add(-time.Minute), 600)
	w.state(two, "open")
	path2 := fmt.Sprintf("/v1/sales/%d/orders", two)
	second := w.want(w.public("POST", path2, tokens[1], ""), 202, "")
	fast := w.want(w.public("POST", path2, tokens[1], ""), 429, "RATE_LIMITED")
	wait, err := strconv.Atoi(fast.Header.Get("Retry-After"))
	if err != nil || wait < 1 || wait > 10 {
		t.Errorf("429: got Retry-After %q", fast.Header.Get("Retry-After"))
	}
	asked := time.Now()

	var mine wire.OrderList
	w.want(w.public("GET", fmt.Sprintf("/v1/orders?sale_id=%d", two), tokens[1], ""), 200, "").Decode(w.t, &mine)
	if len(mine.Orders) != 1 || mine.Orders[0].OrderID != second.OrderID {
		t.Errorf("own orders: got %+v, want %s", mine, second.OrderID)
	}

	paid := w.want(w.public("POST", "/v1/orders/"+first.OrderID+"/payment", tokens[0], ""), 200, "")
	paid.Decode(w.t, &order)
	if order.Status != wire.Paid {
		t.Errorf("paid: got %s", paid)
	}

	// Ordering again, once Retry-After has passed: the same order.
	var again world.Answer
	w.until("Retry-After has passed", time.Duration(wait+3)*time.Second, func() (bool, string) {
		if time.Since(asked) < time.Duration(wait)*time.Second {
			return false, "too early"
		}
		again = w.public("POST", path2, tokens[1], "")
		return again.Code != "RATE_LIMITED", again.String()
	})
	if w.want(again, 409, "ALREADY_ORDERED"); again.OrderID != second.OrderID {
		t.Errorf("ordered again: got order %s, want %s", again.OrderID, second.OrderID)
	}

	// A second shopper cancels, and the unit is sold again.
	third := w.want(w.public("POST", path2, tokens[2], ""), 202, "")
	w.order(third.OrderID, tokens[2], wire.PendingPayment)
	w.state(two, wire.SoldOut)
	w.want(w.public("POST", path2, tokens[3], ""), 409, "SOLD_OUT")
	w.want(w.public("POST", "/v1/orders/"+third.OrderID+"/cancellation", tokens[2], ""), 200, "").Decode(w.t, &order)
	if order.Status != wire.Cancelled {
		t.Errorf("cancelled: got %+v", order)
	}
	w.state(two, wire.Open)
	var fourth world.Answer
	w.until("the unit is sold again", patience, func() (bool, string) {
		fourth = w.public("POST", path2, tokens[3], "")
		return fourth.Status == 202, fourth.String()
	})
	w.order(fourth.OrderID, tokens[3], wire.PendingPayment)
	w.want(w.public("POST", "/v1/orders/"+third.OrderID+"/payment", tokens[2], ""), 409, "ORDER_STATE_CONFLICT")

	for _, id := range []int64{sale, two} {
		w.until("the audit balances", patience, func() (bool, string) {
			r, a := w.audit(id)
			return r.Balanced && r.Available == 0 && r.Queued == 0, a.String()
		})
	}
}
