package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"time"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// What becomes of the orders of the first round, by the order in which they were accepted: of each ten, one is cancelled
// and one is never paid. Their units are sold again, and those who get them pay.
const (
	outOf   = 10
	cancels = 3
	leaves  = 7
)

// crowd is everybody at the shop window of one sale.
type crowd struct {
	client *client
	tally  *tally
	sale   int64
	stock  int
	over   chan struct{} // closed by whoever pays for the last unit
}

func (c *crowd) path() string { return fmt.Sprintf("/v1/sales/%d/orders", c.sale) }

// shopper is one person with a token. Every tenth is patient: told that it is sold out, they watch the sale and press again
// when units come back. Every fourth presses twice, and once more when units come back, though they hold an order.
type shopper struct {
	n     int
	token string
}

func (s shopper) patient() bool  { return s.n%10 == 0 }
func (s shopper) nervous() bool  { return s.n%4 == 1 }
func (s shopper) stubborn() bool { return s.n%2 == 0 } // comes back after a 429 or 503, when told to

// shop is a shopper's day; it ends with the sale, or earlier.
func (c *crowd) shop(ctx context.Context, s shopper) {
	got, outcome := c.press(ctx, s, s.nervous())
	for outcome == refused && s.patient() && c.untilOpen(ctx, 400*time.Millisecond) {
		got, outcome = c.press(ctx, s, false)
	}
	for outcome == won {
		c.follow(ctx, s, got)
		if !s.nervous() || !c.untilOpen(ctx, 50*time.Millisecond) {
			return
		}
		got, outcome = c.press(ctx, s, false) // "did I really get one?"
	}
}

type outcome int

const (
	refused outcome = iota
	won             // a new order
	holding         // an order that was there before
)

type accepted struct {
	id    string
	index int // how many were accepted before
}

// press presses the button, twice at once when told to, and again when a refusal says when and the shopper is stubborn. One
// Idempotency-Key stands for all of it. Of two presses at once either may win; the second follows its order by itself.
func (c *crowd) press(ctx context.Context, s shopper, twice bool) (accepted, outcome) {
	var raw [12]byte
	rand.Read(raw[:])
	key := hex.EncodeToString(raw[:])
	if twice {
		second := make(chan struct{})
		defer func() { <-second }()
		go func() {
			defer close(second)
			if got, _, o := c.pressOnce(ctx, s, key); o == won {
				c.follow(ctx, s, got)
			}
		}()
	}
	for range 5 {
		got, a, o := c.pressOnce(ctx, s, key)
		if o != refused {
			return got, o
		}
		unknown := a.problem.Code == problem.OutcomeUnknown
		later := a.problem.Code == problem.RateLimited || a.problem.Code == problem.Overloaded
		if !(unknown || later && s.stubborn()) || !c.pause(ctx, a.retryAfter) {
			break
		}
	}
	return accepted{}, refused
}

func (c *crowd) pressOnce(ctx context.Context, s shopper, key string) (accepted, answer, outcome) {
	began := time.Now()
	a, err := c.client.do(ctx, http.MethodPost, c.path(), s.token, key)
	if err != nil {
		if ctx.Err() == nil {
			c.tally.fail()
			c.tally.say("order of shopper %d: %v", s.n, err)
		}
		return accepted{}, a, refused
	}
	var got wire.Accepted
	if a.status == http.StatusAccepted {
		if err := a.read(&got); err != nil || got.OrderID == "" {
			c.tally.say("a 202 without an order: %v", err)
			return accepted{}, a, refused
		}
	}
	before, isNew := c.tally.pressed(a, got.OrderID, time.Since(began))
	switch a.problem.Code {
	case "", problem.SoldOut, problem.RateLimited, problem.Overloaded, problem.OutcomeUnknown:
	case problem.AlreadyOrdered:
		if a.problem.OrderID == "" {
			c.tally.say("ALREADY_ORDERED without the order's id")
		}
	default:
		c.tally.say("order of shopper %d: %d %s %s", s.n, a.status, a.problem.Code, a.problem.Detail)
	}
	if (a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable) && a.retryAfter <= 0 {
		c.tally.say("%d %s without Retry-After", a.status, a.problem.Code)
	}
	switch {
	case isNew:
		return accepted{got.OrderID, before}, a, won
	case a.status == http.StatusAccepted || a.problem.Code == problem.AlreadyOrdered:
		return accepted{}, a, holding
	}
	return accepted{}, a, refused
}

// follow waits for the verdict on an order and pays, cancels or walks away.
func (c *crowd) follow(ctx context.Context, s shopper, o accepted) {
	order, ok := c.ask(ctx, s, http.MethodGet, "/v1/orders/"+o.id+"?wait_ms=10000", func(w wire.Order) bool { return w.Status != wire.Queued })
	if !ok {
		return
	}
	if order.Status == wire.Expired { // on a slow machine
		c.tally.leave()
		return
	}
	if order.Status != wire.PendingPayment {
		c.tally.say("order %s became %s %s, not pending_payment", o.id, order.Status, order.Reason)
		return
	}
	action, want := "/payment", wire.Paid
	if o.index < c.stock {
		switch o.index % outOf {
		case cancels:
			action, want = "/cancellation", wire.Cancelled
		case leaves:
			c.tally.leave()
			return
		}
	}
	order, ok = c.ask(ctx, s, http.MethodPost, "/v1/orders/"+o.id+action, func(wire.Order) bool { return true })
	if !ok {
		return
	}
	if order.Status != want {
		c.tally.say("order %s is %s after %s, not %s", o.id, order.Status, action, want)
		return
	}
	if c.tally.became(want) == c.stock && want == wire.Paid {
		close(c.over)
	}
}

// ask asks about an order until the answer is good; it honours Retry-After. false: the time is over, or it cannot be.
func (c *crowd) ask(ctx context.Context, s shopper, method, path string, good func(wire.Order) bool) (order wire.Order, ok bool) {
	for ctx.Err() == nil {
		a, err := c.client.do(ctx, method, path, s.token, "")
		switch {
		case err != nil:
			if !c.pause(ctx, time.Second) {
				return order, false
			}
		case a.status == http.StatusOK:
			if err := a.read(&order); err != nil {
				c.tally.say("%s %s: %v", method, path, err)
				return order, false
			}
			if good(order) {
				return order, true
			}
		case a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable:
			c.tally.refuse(a.problem.Code)
			if !c.pause(ctx, a.retryAfter) {
				return order, false
			}
		case a.problem.Code == problem.OrderStateConflict: // too late to pay: it expired
			c.tally.leave()
			return order, false
		default:
			c.tally.say("%s %s: %d %s %s", method, path, a.status, a.problem.Code, a.problem.Detail)
			return order, false
		}
	}
	return order, false
}

// untilOpen watches the sale until it is open, looking about so often; false: all is sold and paid, or the time is over.
func (c *crowd) untilOpen(ctx context.Context, every time.Duration) bool {
	for {
		if !c.pause(ctx, every/2+mathrand.N(every)) {
			return false
		}
		s, err := c.client.sale(ctx, c.sale)
		if err == nil && s.State == wire.Open {
			return true
		}
	}
}

// pause waits; false: all is sold and paid, or the time is over.
func (c *crowd) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.over:
		return false
	case <-ctx.Done():
		return false
	}
}

// stranger has no token, or one that is forged, and must not get anything.
func (c *crowd) stranger(ctx context.Context, n int, forged string) {
	token := ""
	if n%2 == 0 {
		token = forged
	}
	a, err := c.client.do(ctx, http.MethodPost, c.path(), token, "")
	if err != nil {
		if ctx.Err() == nil {
			c.tally.fail()
		}
		return
	}
	c.tally.pressed(a, "", 0)
	// Sold out is told before anybody is asked who they are.
	if a.problem.Code != problem.Unauthenticated && a.problem.Code != problem.SoldOut {
		c.tally.say("a stranger was answered %d %s", a.status, a.problem.Code)
	}
}
