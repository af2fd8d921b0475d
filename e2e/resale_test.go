//go:build servers

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// impatient is one of those who keep trying: it presses until the sale is over for it, and pays at once, or never.
type impatient struct {
	w     *system
	sale  int64
	uid   string
	token string
	pays  bool
	over  <-chan struct{} // closed when every unit is paid
	at    chan struct{}   // of so many places: how many press at once
	log   *oracle.Log
	lapse *atomic.Int64 // counts payments that came too late
}

// pace is how long one waits before it presses again, when the answer does not say: between this and twice as long.
const pace = 1500 * time.Millisecond

// run returns when its order is paid, or over is closed.
func (s *impatient) run() {
	wait := rand.N(pace) // they do not come all in one instant
	for s.rest(wait) {
		a := s.press()
		wait = pace + rand.N(pace)
		switch {
		case a.Status == 202:
			if s.pays && s.pay(a.OrderID) {
				return
			}
		case a.Code == "SOLD_OUT", a.Code == "ALREADY_ORDERED":
		case a.AskAgain():
			wait = a.RetryAfter(wait)
		default:
			s.w.t.Errorf("uid %s pressed: got %s", s.uid, a)
			return
		}
	}
}

func (s *impatient) rest(d time.Duration) bool {
	select {
	case <-s.over:
		return false
	case <-s.w.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (s *impatient) press() world.Answer {
	s.at <- struct{}{}
	defer func() { <-s.at }()
	a := s.w.press(s.w.ctx, s.sale, s.token, "")
	s.log.Add(a.To(s.uid, ""))
	return a
}

// pay pays an order as soon as that can be done; false if its time to pay was over first.
func (s *impatient) pay(id string) bool {
	for s.w.ctx.Err() == nil {
		a := s.w.do(s.w.ctx, world.Call{Method: "GET", URL: s.w.Ports.PublicURL() + "/v1/orders/" + id + "?wait_ms=20000", Token: s.token, Quiet: true})
		var o wire.Order
		if a.Status == 200 {
			a.Decode(s.w.t, &o)
		}
		if a.Status != 200 || o.Status == wire.Queued {
			if !s.rest(100 * time.Millisecond) {
				return false
			}
			continue
		}
		a = s.w.do(s.w.ctx, world.Call{Method: "POST", URL: s.w.Ports.PublicURL() + "/v1/orders/" + id + "/payment", Token: s.token, Quiet: true})
		switch {
		case a.Status == 200:
			s.log.End(id, wire.Paid)
			return true
		case a.Code == "ORDER_STATE_CONFLICT":
			s.lapse.Add(1)
			return false
		case !s.rest(100 * time.Millisecond): // busy, or unknown: a payment may be asked for again
			return false
		}
	}
	return false
}

// TestHalfNeverPay: a thousand units, two seconds to pay, and five thousand shoppers of whom every second one orders and
// never pays. They keep trying, and what is not paid comes back, until a thousand are paid and none is locked.
func TestHalfNeverPay(t *testing.T) {
	t.Parallel()
	const stock, shoppers, payWithin = 1000, 5000, 2
	w := newSystem(t, world.Options{Limits: freely})
	sale := w.newSale("A thousand", stock, time.Now().Add(-time.Minute), payWithin)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, shoppers)
	j := oracle.NewLog()
	stop := w.watch(sale, stock)
	over, at := make(chan struct{}), make(chan struct{}, 64)
	var lapse atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for i, token := range tokens {
		s := &impatient{w: w, sale: sale, uid: strconv.Itoa(i + 1), token: token, pays: i%2 == 0, over: over, at: at, log: j, lapse: &lapse}
		all.Go(s.run)
	}
	end := sync.OnceFunc(func() {
		close(over)
		all.Wait()
	})
	defer end() // also where the test gives up
	count := func(query string) (n int64) {
		w.must(w.Books.DB.QueryRowContext(w.ctx, query, sale).Scan(&n))
		return n
	}
	w.until("every unit is paid", 3*time.Minute, func() (bool, string) {
		sold := count(`SELECT sold FROM sale_stock WHERE sale_id = ?`)
		return sold == stock, fmt.Sprintf("%d are, %d of %d orders expired; %s", sold, count(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND status = 'expired'`),
			count(`SELECT COUNT(*) FROM orders WHERE sale_id = ?`), j.Summary())
	})
	took := time.Since(began)
	end()
	o := w.settle(sale, stock, j)
	stop()
	t.Logf("%d units paid after %v: %d orders, %d of them expired, %d payments came too late; %s", o.Row.Sold, took.Round(100*time.Millisecond), len(o.Orders),
		count(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND status = 'expired'`), lapse.Load(), j.Summary())
	if o.Row.Sold != stock || o.Row.Locked != 0 || o.Row.Available != 0 || o.Stock != 0 || o.Reserved != stock {
		t.Errorf("got %+v, stock %d and %d reserved in Redis; want all of %d sold, nothing locked", o.Row, o.Stock, o.Reserved, stock)
	}
	paid := map[string]bool{}
	for _, r := range o.Orders {
		switch r.Status {
		case "paid":
			if n, err := strconv.Atoi(r.UID); err != nil || n%2 == 0 || paid[r.UID] {
				t.Errorf("order %s of %s is paid: by one who never pays, or twice", r.ID, r.UID)
			}
			paid[r.UID] = true
		case "expired":
		default:
			t.Errorf("order %s is %s", r.ID, r.Status)
		}
	}
	if len(paid) != stock {
		t.Errorf("%d shoppers have paid, want %d", len(paid), stock)
	}
	w.state(sale, wire.SoldOut)
	w.drained()
}

// TestReturnedUnitsAreSoldAgain measures how soon: from the answer to a cancellation, and from the end of the time to pay, to
// the next shopper's 202 through the gateway, which knew that all was sold out. What is measured is told, not judged.
//
// Row D9: the sold-out mark clears when stock returns.
func TestReturnedUnitsAreSoldAgain(t *testing.T) {
	t.Attr("row", "D9")
	t.Parallel()
	const rounds = 10
	w := newSystem(t, world.Options{Limits: orders("{rate: 1000, burst: 1000, max_keys: 1000000}")})
	one := w.newSale("One, again and again", 1, time.Now().Add(-time.Minute), 600)
	brief := w.newSale("One, for a second", 1, time.Now().Add(-time.Minute), 1)
	w.state(one, wire.Open)
	w.state(brief, wire.Open)
	tokens := w.tokens(1, 2)
	j := map[int64]*oracle.Log{one: oracle.NewLog(), brief: oracle.NewLog()}
	press := func(sale int64, i int) world.Answer {
		t.Helper()
		a := w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[i%2], "")
		j[sale].Add(a.To(strconv.Itoa(i%2+1), ""))
		return a
	}
	// again has a shopper press until the unit is theirs, and returns when that was.
	again := func(sale int64, i int) (id string, at time.Time) {
		t.Helper()
		w.until("the unit is sold again", patience, func() (bool, string) {
			a := press(sale, i)
			id, at = a.OrderID, time.Now()
			return a.Status == 202, a.String()
		})
		return id, at
	}
	var cancelled, expired []time.Duration
	id := w.want(press(one, 0), 202, "").OrderID
	for i := 1; i <= rounds; i++ {
		w.order(id, tokens[(i-1)%2], wire.PendingPayment)
		w.want(press(one, i), 409, "SOLD_OUT")
		w.want(w.public("POST", "/v1/orders/"+id+"/cancellation", tokens[(i-1)%2], ""), 200, "")
		from := time.Now()
		var at time.Time
		id, at = again(one, i)
		cancelled = append(cancelled, at.Sub(from))
	}
	id = w.want(press(brief, 0), 202, "").OrderID
	for i := 1; i <= rounds; i++ {
		before := id
		var at time.Time
		id, at = again(brief, i)
		o := w.order(before, tokens[(i-1)%2], wire.Expired)
		expired = append(expired, at.Sub(o.PayBefore.Time))
	}
	slices.Sort(cancelled)
	slices.Sort(expired)
	t.Logf("sold again after a cancellation: median %v, at most %v", cancelled[rounds/2].Round(time.Millisecond), cancelled[rounds-1].Round(time.Millisecond))
	t.Logf("sold again after the time to pay: median %v, at most %v", expired[rounds/2].Round(time.Millisecond), expired[rounds-1].Round(time.Millisecond))
	for sale, log := range j {
		w.settle(sale, 1, log)
	}
}
