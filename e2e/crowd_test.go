//go:build servers

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// crowd is a number of buyers who press at once, each until told something final.
type crowd struct {
	w       *system
	sale    int64
	journal *oracle.Log
	tokens  []string // of uid first, first+1, ...
	first   int
	presses int           // requests of one buyer at the same time; from the second on repeats: the same key, no key, the same key, ...
	at      chan struct{} // of so many places: how many buyers press at once; nil for all
}

// run returns when every buyer was told something final; that somebody never was fails the test.
func (c *crowd) run() {
	ctx, cancel := context.WithTimeout(c.w.ctx, 3*time.Minute)
	defer cancel()
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, token := range c.tokens {
		uid := strconv.Itoa(c.first + i)
		for n := range c.presses {
			key := "press-of-" + uid
			if n%2 == 1 {
				key = ""
			}
			wg.Go(func() {
				<-start
				if c.at != nil {
					c.at <- struct{}{}
					defer func() { <-c.at }()
				}
				c.press(ctx, uid, token, key)
			})
		}
	}
	close(start)
	wg.Wait()
	if ctx.Err() != nil {
		c.w.t.Errorf("some buyers were never told anything final; answers so far: %s", c.journal.Summary())
	}
}

// press orders until the answer is final: an order, or a refusal that says so. What is not final says when to ask again.
func (c *crowd) press(ctx context.Context, uid, token, key string) {
	for ctx.Err() == nil {
		a := c.w.press(ctx, c.sale, token, key)
		if ctx.Err() != nil {
			return
		}
		c.journal.Add(a.To(uid, key))
		switch {
		case a.Status == 202, a.Code == "ALREADY_ORDERED", a.Code == "SOLD_OUT":
			return
		case a.AskAgain():
			world.Pause(ctx, a.RetryAfter(time.Second)) // the answer said so
		default:
			c.w.t.Errorf("uid %s pressed: got %s", uid, a)
			return
		}
	}
}

// Rows A2, A3, A4, D9: a crowd on the real system, and the books of all three stores.
func TestFiveThousandBuyers(t *testing.T) {
	t.Attr("row", "A2 A3 A4 D9")
	const stock, buyers, late = 200, 5000, 400
	w := newSystem(t, world.Options{Limits: freely})
	sale := w.newSale("Two hundred", stock, time.Now().Add(time.Hour), 600)
	tokens := w.tokens(1, buyers+late)
	j := oracle.NewLog()
	path := fmt.Sprintf("/v1/sales/%d/orders", sale)

	// Before the start nobody gets anything, and a stranger never does.
	w.until("the gateway knows the sale", patience, func() (bool, string) {
		a := w.public("POST", path, tokens[0], "")
		j.Add(a.To("1", ""))
		return a.Code == "SALE_NOT_STARTED" && a.Header.Get("Retry-After") != "", a.String()
	})
	w.begin(sale)
	stop := w.watch(sale, stock)

	strangers := make(chan struct{})
	go func() {
		defer close(strangers)
		bad := badTokens("5001")
		bad["none"] = ""
		for range 20 {
			for what, token := range bad {
				a := w.do(w.ctx, world.Call{Method: "POST", URL: w.Ports.PublicURL() + path, Token: token, Quiet: true})
				if a.Status != 401 && a.Code != "SOLD_OUT" && a.Code != "SALE_NOT_STARTED" { // the gateway may not know yet that it began
					t.Errorf("a stranger (%s) got %s", what, a)
				}
				j.Add(a.To("5001", ""))
			}
		}
	}()
	began := time.Now()
	(&crowd{w: w, sale: sale, journal: j, tokens: tokens[:buyers], first: 1, presses: 3}).run()
	t.Logf("%d buyers, 3 presses each: %v; %s", buyers, time.Since(began).Round(time.Millisecond), j.Summary())
	<-strangers
	if got := j.Promised(); got != stock {
		t.Errorf("%d different orders were promised, want %d", got, stock)
	}
	o := w.settle(sale, stock, j)
	if len(o.Orders) != stock || o.Row.Locked != stock {
		t.Errorf("got %d orders, %d units locked, want %d", len(o.Orders), o.Row.Locked, stock)
	}

	// Half pay; of the rest forty cancel, and those units are sold again.
	paid, cancelled := 0, 0
	for _, r := range o.Orders {
		uid, err := strconv.Atoi(r.UID)
		w.must(err)
		switch {
		case paid < stock/2:
			paid++
			w.want(w.public("POST", "/v1/orders/"+r.ID+"/payment", tokens[uid-1], ""), 200, "")
			w.want(w.public("POST", "/v1/orders/"+r.ID+"/payment", tokens[uid-1], ""), 200, "") // idempotent
			w.want(w.public("POST", "/v1/orders/"+r.ID+"/cancellation", tokens[uid-1], ""), 409, "ORDER_STATE_CONFLICT")
		case cancelled < 40:
			cancelled++
			w.want(w.public("POST", "/v1/orders/"+r.ID+"/cancellation", tokens[uid-1], ""), 200, "")
			w.want(w.public("POST", "/v1/orders/"+r.ID+"/cancellation", tokens[uid-1], ""), 200, "")
			w.want(w.public("POST", "/v1/orders/"+r.ID+"/payment", tokens[uid-1], ""), 409, "ORDER_STATE_CONFLICT")
		}
	}
	w.state(sale, wire.Open)
	(&crowd{w: w, sale: sale, journal: j, tokens: tokens[buyers:], first: buyers + 1, presses: 1}).run()
	o = w.settle(sale, stock, j)
	stop()
	if o.Row.Sold != stock/2 || o.Row.Locked != stock/2 || len(o.Orders) != stock+40 || o.Stock != 0 {
		t.Errorf("got %d sold, %d locked, %d orders, stock %d; want %d, %d, %d, 0", o.Row.Sold, o.Row.Locked, len(o.Orders), o.Stock, stock/2, stock/2, stock+40)
	}
	w.state(sale, wire.SoldOut)
	w.drained()
}

// TestKilledInTheMiddle sells while one process is killed with SIGKILL and started again.
func TestKilledInTheMiddle(t *testing.T) {
	t.Run("backend", func(t *testing.T) {
		killed(t, func(w *system) *stack.Process { return w.Backend }, 0)
	})
	t.Run("rabbitmq", func(t *testing.T) {
		killed(t, func(w *system) *stack.Process { return w.servers.RabbitMQ }, 100)
	})
}

// killed sells 600 units to 1,400 buyers: the first 200 press, and when 100 orders are promised the victim is killed; 200
// more press while it is dead, of whom so many must get an order before it is started again; then all others.
func killed(t *testing.T, victim func(*system) *stack.Process, meanwhile int) {
	const stock, buyers, wave = 600, 1400, 200
	w := newSystem(t, world.Options{Limits: freely})
	sale := w.newSale("Six hundred", stock, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, buyers)
	j := oracle.NewLog()
	stop := w.watch(sale, stock)
	// Small sales beside it, so that every partition of the queue has orders.
	const few = 20
	small := map[int64]*oracle.Log{}
	for range 4 {
		id := w.newSale("Twenty", few, time.Now().Add(-time.Minute), 600)
		w.state(id, wire.Open)
		small[id] = oracle.NewLog()
	}
	var waves sync.WaitGroup
	press := func(from, to int) {
		c := &crowd{w: w, sale: sale, journal: j, tokens: tokens[from:to], first: from + 1, presses: 2, at: make(chan struct{}, 16)}
		waves.Go(c.run)
	}
	press(0, wave)
	w.must(j.Await(w.ctx, wave/2))
	p := victim(w)
	began := time.Now()
	w.must(p.Kill(w.ctx))
	at := j.Promised()
	press(wave, 2*wave)
	for id, log := range small {
		c := &crowd{w: w, sale: id, journal: log, tokens: tokens[:few], first: 1, presses: 1, at: make(chan struct{}, 4)}
		waves.Go(c.run)
	}
	w.must(j.Await(w.ctx, at+meanwhile))
	dead := time.Since(began)
	w.must(p.Start(w.ctx))
	back := time.Since(began)
	t.Logf("killed with %d orders promised (%v), %d promised when it was back (%v)", at, dead.Round(time.Millisecond), j.Promised(), back.Round(time.Millisecond))
	press(2*wave, buyers)
	waves.Wait()
	t.Logf("answers, %v after the kill: %s", time.Since(began).Round(time.Millisecond), j.Summary())
	o := w.settle(sale, stock, j)
	stop()
	for id, log := range small {
		if o := w.settle(id, few, log); o.Row.Locked != few {
			t.Errorf("sale %d beside it: %d of %d units are sold", id, o.Row.Locked, few)
		}
	}
	if len(o.Orders) != stock || o.Row.Locked != stock || o.Stock != 0 {
		t.Errorf("got %d orders, %d units locked, stock %d; want all of %d sold", len(o.Orders), o.Row.Locked, o.Stock, stock)
	}
	w.drained()
}

// TestAuditSeesAStoppedConsumer pauses the only consumer: an order that is queued for too long unbalances the audit, until
// the consumer is back.
func TestAuditSeesAStoppedConsumer(t *testing.T) {
	const stock = 5
	w := newSystem(t, world.Options{Consumer: true, Backend: "orders: {queued_bound: 1s}\n"})
	sale := w.newSale("Five", stock, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	j := oracle.NewLog()
	token := w.tokens(1, 1)[0]
	w.must(w.Consumer.Signal(syscall.SIGSTOP))
	a := w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), token, ""), 202, "")
	j.Add(a.To("1", ""))
	o := w.want(w.public("GET", "/v1/orders/"+a.OrderID, token, ""), 200, "")
	if got := string(o.Body); !strings.Contains(got, `"status":"queued"`) {
		t.Errorf("without a consumer: got %s", got)
	}
	w.until("the audit is not balanced", patience, func() (bool, string) {
		r, a := w.audit(sale)
		return !r.Balanced && r.Queued == 1 && len(r.Findings) > 0 && r.Available+r.Queued+r.Locked+r.Sold == stock, a.String()
	})
	w.must(w.Consumer.Signal(syscall.SIGCONT))
	w.order(a.OrderID, token, "pending_payment")
	w.settle(sale, stock, j)

	// The same where the consumer is gone.
	w.must(w.Consumer.Kill(w.ctx))
	token = w.tokens(2, 2)[0]
	a = w.want(w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), token, ""), 202, "")
	j.Add(a.To("2", ""))
	w.until("the audit is not balanced", patience, func() (bool, string) {
		r, a := w.audit(sale)
		return !r.Balanced && r.Queued == 1, a.String()
	})
	w.must(w.Consumer.Start(w.ctx))
	w.settle(sale, stock, j)
}
