//go:build servers

package e2e

import (
	"fmt"
	"testing"
	"time"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// One who orders and cancels in turn is refused after as many orders as the configuration says. What was accepted is still answered by
// its Idempotency-Key, and nobody else is refused.
func TestOrdersThatEndAreBounded(t *testing.T) {
	t.Parallel()
	const most = 20 // orders.max_ended by default
	w := newSystem(t, world.Options{Limits: orders("{rate: 1000, burst: 1000, max_keys: 1000000}")})
	sale := w.newSale("One, again and again", 1, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, 2)
	press := func(token, key string) world.Answer {
		t.Helper()
		return w.do(w.ctx, world.Call{Method: "POST", URL: fmt.Sprintf("%s/v1/sales/%d/orders", w.Ports.PublicURL(), sale), Token: token, Key: key})
	}
	// free presses when the unit of the order before is back.
	free := func(token, key string) (a world.Answer) {
		t.Helper()
		w.until("the unit is back", patience, func() (bool, string) {
			a = press(token, key)
			return a.Code != "SOLD_OUT" && a.Code != "ALREADY_ORDERED", a.String()
		})
		return a
	}
	var ids []string
	for i := range most {
		id := w.want(free(tokens[0], fmt.Sprint("k", i)), 202, "").OrderID
		w.order(id, tokens[0], wire.PendingPayment)
		w.want(w.public("POST", wire.OrderPath(id)+"/cancellation", tokens[0], ""), 200, "")
		ids = append(ids, id)
	}
	w.want(free(tokens[0], "another"), 409, "TOO_MANY_ORDERS")
	w.want(free(tokens[0], ""), 409, "TOO_MANY_ORDERS")
	for i, id := range ids {
		if a := w.want(press(tokens[0], fmt.Sprint("k", i)), 202, ""); a.OrderID != id {
			t.Errorf("a repeat of order %d got %s, want %s", i, a.OrderID, id)
		}
	}
	w.order(w.want(free(tokens[1], "k0"), 202, "").OrderID, tokens[1], wire.PendingPayment)
	w.audited(sale)
}
