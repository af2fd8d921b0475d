//go:build servers

package cart

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

const (
	ok       = wire.CartCode("")
	less     = wire.LineInsufficient
	unknown  = wire.LineUnknown
	currency = wire.LineCurrency
)

// Row E3, Row E1, Row E5: each line on its own, one order of those that succeed, read by its owner as a whole.
func TestEachLineSucceedsOrFailsOnItsOwn(t *testing.T) {
	t.Attr("row", "E3 E1 E5")
	s := newShop(t)
	a, b, c := s.sku(10), s.sku(2), backendtest.SKU(t, s.db, 5, 250, "EUR")
	answer := s.place("ann", "k", lines(a, 3, b, 3, c, 2, 999, 1))
	s.want(answer, ok, less, ok, unknown)
	s.balanced(a, 7, 3, 0)
	s.balanced(b, 2, 0, 0)
	s.balanced(c, 3, 2, 0)
	id := *answer.OrderID
	o := s.order("ann", id)
	want := wire.Order{OrderID: id, Quantity: 5, Amount: 800, Status: wire.PendingPayment, CreatedAt: o.CreatedAt, PayBefore: o.PayBefore,
		Items: []wire.OrderItem{{SKU: a, Quantity: 3, Price: 100}, {SKU: c, Quantity: 2, Price: 250}}}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("the order: %s", diff)
	}
	if d := o.PayBefore.Sub(o.CreatedAt.Time); d != time.Minute {
		t.Errorf("to be paid within %v", d)
	}
	if _, err := s.reader.Order(t.Context(), "bob", id, 0); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("another's order: got %v", err)
	}
	if _, err := s.reader.Order(t.Context(), "ann", newID(), 0); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("no order: got %v", err)
	}
	list, err := s.reader.List(t.Context(), "ann", 0, nil, "", 10)
	s.must(err)
	if diff := cmp.Diff([]wire.Order{want}, list.Orders); diff != "" {
		t.Errorf("the list: %s", diff)
	}
	if list, err = s.reader.List(t.Context(), "ann", 0, nil, id, 10); err != nil || len(list.Orders) != 0 {
		t.Errorf("after it: got %+v, %v", list, err)
	}

	// No line: no order.
	s.want(s.place("ann", "k2", lines(b, 3, 999, 1)), less, unknown)
	if n := s.count(`SELECT COUNT(*) FROM orders`); n != 1 {
		t.Errorf("%d orders", n)
	}
	s.balanced(b, 2, 0, 0)
}

func TestAnOrderHasOneCurrencyAndAnAmount(t *testing.T) {
	s := newShop(t)
	euro, dollar, free := s.sku(5), backendtest.SKU(t, s.db, 5, 100, "USD"), backendtest.SKU(t, s.db, 5, 0, "EUR")
	dear := backendtest.SKU(t, s.db, 2_000_000_000, 1_000_000_000_000, "EUR")
	s.want(s.place("ann", "1", lines(dollar, 1, euro, 1, free, 1)), ok, currency, currency)
	s.want(s.place("ann", "2", lines(euro, 6, dollar, 1)), less, ok) // a line that fails says nothing of the currency
	s.want(s.place("ann", "3", lines(dear, 1_000_000, free, 1)), ok, ok)
	s.exec(`UPDATE skus SET price = 1000000000000000 WHERE id = ?`, dear)
	s.want(s.place("ann", "4", lines(free, 1, dear, 1_000_000)), ok, wire.LineAmount)
	for _, sku := range []int64{euro, dollar, free, dear} {
		backendtest.SKUBalanced(t, s.db, s.redis.Client(), sku)
	}
}

// Row E7: the first answer, at once, days later, from another process, and from a Redis that lost everything.
func TestOneKeyIsOneCart(t *testing.T) {
	t.Attr("row", "E7")
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	items := lines(a, 2, b, 11)
	first, repeated, err := s.Place(t.Context(), "ann", "k", items)
	if err != nil || repeated {
		t.Fatalf("got %s, %v, %v", first, repeated, err)
	}
	same := func(s *shop) {
		t.Helper()
		again, repeated, err := s.Place(t.Context(), "ann", "k", items)
		if err != nil || !repeated || !bytes.Equal(again, first) {
			t.Errorf("got %s, %v, %v; want %s", again, repeated, err, first)
		}
	}
	same(s)
	other := shopOn(t, s.db, s.redis, config())
	same(other)
	s.exec(`UPDATE cart_requests SET created_at = created_at - INTERVAL 30 DAY, answered_at = answered_at - INTERVAL 30 DAY`)
	if _, err := s.orders.Pay(t.Context(), "ann", *read(t, first).OrderID); err != nil {
		t.Fatal(err)
	}
	same(s)
	s.empty()
	same(s)
	for _, items := range [][]wire.CartItem{lines(a, 2), lines(a, 2, b, 12), lines(b, 11, a, 2)} {
		if _, _, err := s.Place(t.Context(), "ann", "k", items); !errors.Is(err, ErrKeyReused) {
			t.Errorf("other lines %v: got %v", items, err)
		}
	}
	s.want(s.place("bob", "k", items), ok, less) // a key is its user's
	s.balanced(a, 6, 2, 2)
	s.balanced(b, 10, 0, 0)
}

// Row E7: a repeat while the first one is in flight.
func TestOneKeyFromManyProcessesAtOnce(t *testing.T) {
	t.Attr("row", "E7")
	s := newShop(t)
	shops := []*shop{s, shopOn(t, s.db, s.redis, config()), shopOn(t, s.db, s.redis, config())}
	var skus []int64
	var items []wire.CartItem
	for range 5 {
		skus = append(skus, s.sku(4))
		items = append(items, wire.CartItem{SKU: skus[len(skus)-1], Quantity: 3})
	}
	answers := make([]string, 60)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range answers {
		wg.Go(func() {
			<-begin
			b, _, err := shops[i%3].Place(t.Context(), fmt.Sprint("u", i%2), "k", items)
			if err != nil {
				t.Error(err)
			}
			answers[i] = string(b)
		})
	}
	close(begin)
	wg.Wait()
	for i, a := range answers {
		if a != answers[i%2] {
			t.Errorf("answer %d is %s, an earlier one was %s", i, a, answers[i%2])
		}
	}
	s.rest()
	for _, sku := range skus { // each has enough for one of the two
		s.balanced(sku, 1, 3, 0)
	}
	if n := s.count(`SELECT COUNT(*) FROM cart_requests`); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// Row E1, Row D8: paid, cancelled and expired as a whole, each once; whichever is first wins.
func TestACartsOrderEndsAsAWhole(t *testing.T) {
	t.Attr("row", "E1 D8")
	s := newShop(t)
	a, b := s.sku(100), s.sku(100)
	var ids []string
	for i := range 3 {
		ids = append(ids, *s.place("ann", fmt.Sprint(i), lines(a, 2, b, 5)).OrderID)
	}
	s.balanced(a, 94, 6, 0)
	for range 2 { // paying again changes nothing
		o, err := s.orders.Pay(t.Context(), "ann", ids[0])
		if err != nil || o.Status != wire.Paid || len(o.Items) != 2 || o.Amount != 700 {
			t.Errorf("got %+v, %v", o, err)
		}
		o, err = s.orders.Cancel(t.Context(), "ann", ids[1])
		if err != nil || o.Status != wire.Cancelled || len(o.Items) != 2 {
			t.Errorf("got %+v, %v", o, err)
		}
	}
	s.balanced(a, 96, 2, 2) // Redis, too, at once
	s.balanced(b, 90, 5, 5)
	for _, uid := range []string{"bob", ""} {
		if _, err := s.orders.Pay(t.Context(), uid, ids[2]); !errors.Is(err, order.ErrNotFound) {
			t.Errorf("paid by %q: got %v", uid, err)
		}
	}
	if _, err := s.orders.Cancel(t.Context(), "bob", ids[2]); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("cancelled by another: got %v", err)
	}
	if _, err := s.orders.Cancel(t.Context(), "ann", ids[0]); !errors.Is(err, order.ErrState) {
		t.Errorf("cancelled when paid: got %v", err)
	}
	s.exec(`UPDATE orders SET pay_before = created_at WHERE id = ?`, ids[2])
	if _, err := s.orders.Pay(t.Context(), "ann", ids[2]); !errors.Is(err, order.ErrState) {
		t.Errorf("paid too late: got %v", err)
	}
	if n, err := s.orders.Expire(t.Context()); n != 1 || err != nil {
		t.Errorf("expired %d, %v", n, err)
	}
	s.balanced(a, 98, 0, 2)
	s.balanced(b, 95, 0, 5)
	if o := s.order("ann", ids[2]); o.Status != wire.Expired {
		t.Errorf("got %+v", o)
	}
	s.rest()
	s.balanced(a, 98, 0, 2)
}

// An expiry takes carts' orders and sales' in one pass.
func TestExpiryTakesBothKinds(t *testing.T) {
	s := newShop(t)
	sku := s.sku(10)
	s.place("ann", "k", lines(sku, 4))
	sale := backendtest.Sale(t, s.db, backendtest.SaleOptions{})
	backendtest.Load(t, s.db, s.redis, sale)
	s.settle(sale, "bob")
	s.exec(`UPDATE orders SET pay_before = created_at`)
	if n, err := s.orders.Expire(t.Context()); n != 2 || err != nil {
		t.Errorf("expired %d, %v", n, err)
	}
	s.balanced(sku, 10, 0, 0)
	backendtest.Balanced(t, s.db, sale)
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

func TestPaymentCancellationAndExpiryRace(t *testing.T) {
	s := newShop(t)
	a, b := s.sku(1000), s.sku(1000)
	for i := range 20 {
		id := *s.place("ann", fmt.Sprint(i), lines(a, 3, b, 7)).OrderID
		s.exec(`UPDATE orders SET pay_before = created_at + INTERVAL 1 HOUR WHERE id = ?`, id)
		var wg sync.WaitGroup
		won := make([]bool, 4)
		wg.Go(func() { _, err := s.orders.Pay(t.Context(), "ann", id); won[0] = err == nil })
		wg.Go(func() { _, err := s.orders.Cancel(t.Context(), "", id); won[1] = err == nil })
		wg.Go(func() { _, err := s.orders.Pay(t.Context(), "ann", id); won[2] = err == nil })
		wg.Go(func() {
			s.exec(`UPDATE orders SET pay_before = created_at WHERE id = ? AND status = 'pending_payment'`, id)
		})
		wg.Wait()
		if _, err := s.orders.Expire(t.Context()); err != nil {
			t.Error(err)
		}
		if o := s.order("ann", id); (o.Status == wire.Paid) != (won[0] || won[2]) || (o.Status == wire.Cancelled) != won[1] || !o.Status.Terminal() {
			t.Errorf("the order is %s, paid %v and %v, cancelled %v", o.Status, won[0], won[2], won[1])
		}
	}
	s.rest()
	paid := s.count(`SELECT COUNT(*) FROM orders WHERE status = 'paid'`)
	s.balanced(a, 1000-3*paid, 0, 3*paid)
	s.balanced(b, 1000-7*paid, 0, 7*paid)
}

// A process that died, or whose shopper left, before MySQL decided: its units come back, and a repeat decides.
func TestAnAbandonedCartGivesItsUnitsBack(t *testing.T) {
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	items := lines(a, 4, b, 20)
	dead := s.begun("ann", "k", items)
	if n := s.sweep(); n != 1 {
		t.Errorf("swept %d", n)
	}
	s.balanced(a, 10, 0, 0)
	if n := s.sweep(); n != 0 {
		t.Errorf("swept %d more", n)
	}
	answer := s.place("ann", "k", items)
	s.want(answer, ok, less)
	if *answer.OrderID == dead.order {
		t.Errorf("the order has the id whose units were given back")
	}
	s.balanced(a, 6, 4, 0)

	// It was only slow: it finds what was decided since.
	s.must(s.decide(t.Context(), dead))
	if dead.mine || !bytes.Contains(dead.answer, []byte(*answer.OrderID)) {
		t.Errorf("the slow one: mine %v, %s", dead.mine, dead.answer)
	}
	s.balanced(a, 6, 4, 0)
}

// The sweep comes between what a slow one locked and its decision: it goes on with the other order id.
func TestASlowCartIsDecidedUnderANewOrderID(t *testing.T) {
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	slow := s.begun("ann", "k", lines(a, 4, b, 1))
	old := slow.order
	if n := s.sweep(); n != 2 {
		t.Errorf("swept %d", n)
	}
	s.reduce(old, b, 1) // a part of it comes even later
	s.must(s.decide(t.Context(), slow))
	if !slow.mine || !slow.ordered || slow.order == old {
		t.Errorf("mine %v, ordered %v, order %s, before %s", slow.mine, slow.ordered, slow.order, old)
	}
	s.rest()
	s.balanced(a, 6, 4, 0)
	s.balanced(b, 9, 1, 0)
}

// What comes to Redis after everything was over is given back.
func TestLateLocksAreGivenBack(t *testing.T) {
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	paid := *s.place("ann", "1", lines(a, 1, b, 11)).OrderID
	cancelled := *s.place("ann", "2", lines(a, 2)).OrderID
	unpaid := *s.place("ann", "3", lines(a, 3)).OrderID
	for _, end := range []func() (wire.Order, error){
		func() (wire.Order, error) { return s.orders.Pay(t.Context(), "ann", paid) },
		func() (wire.Order, error) { return s.orders.Cancel(t.Context(), "ann", cancelled) },
	} {
		if _, err := end(); err != nil {
			t.Fatal(err)
		}
	}
	s.rest()
	s.reduce(paid, b, 5) // a line that the order does not have
	s.reduce(cancelled, a, 2)
	s.reduce(unpaid, a, 3) // is there
	s.reduce(newID(), a, 1)
	s.rest()
	s.balanced(a, 6, 3, 1)
	s.balanced(b, 10, 0, 0)

	// Of a line that is paid: it is not sold twice.
	s.reduce(paid, a, 1)
	s.rest()
	s.balanced(a, 6, 3, 1)

	// The same, with a payment that is carried out in Redis once more: whoever did it died before it was marked.
	s.reduce(paid, a, 1)
	s.exec(`UPDATE sku_intents SET done_at = NULL`)
	s.rest()
	s.balanced(a, 6, 3, 1)
}

// A SKU is loaded into Redis between the lock there and MySQL's decision: the lock is gone, so it is taken anew.
func TestALoadInBetweenIsNoticed(t *testing.T) {
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	r := s.begun("ann", "k", lines(a, 4, b, 2))
	s.must(s.skus.Rebuild(t.Context(), a))
	if err := s.commit(t.Context(), r); !errors.As(err, new(*movedError)) {
		t.Fatalf("got %v, want that SKU %d was loaded in between", err, a)
	}
	s.must(s.decide(t.Context(), r))
	s.balanced(a, 6, 4, 0)
	s.balanced(b, 8, 2, 0)

	// Forgotten in between, and loaded after the decision.
	r = s.begun("ann", "k2", lines(a, 1, b, 1))
	s.empty()
	s.must(s.decide(t.Context(), r))
	s.must(s.skus.Load(t.Context(), a))
	s.balanced(a, 5, 5, 0)
	s.rest()
	s.balanced(b, 7, 3, 0)
}

// Redis went back to an older copy, and nobody has noticed: MySQL's epoch tells.
func TestAnOlderCopyOfRedisIsNoticed(t *testing.T) {
	s := newShop(t)
	sku := s.sku(10)
	s.place("ann", "1", lines(sku, 2))
	c := s.redis.Client()
	copies := map[string]string{}
	for _, name := range []string{"state", "orders", "open"} {
		key := fmt.Sprintf("%s{sku:%d}:%s", s.redis.Client().Prefix(), sku, name)
		dump, err := c.Do(t.Context(), c.B().Dump().Key(key).Build()).ToString()
		s.must(err)
		copies[key] = dump
	}
	s.must(s.skus.Rebuild(t.Context(), sku))
	s.place("ann", "2", lines(sku, 3))
	s.empty()
	for key, dump := range copies {
		s.must(c.Do(t.Context(), c.B().Restore().Key(key).Ttl(0).SerializedValue(dump).Build()).Error())
	}
	s.want(s.place("ann", "3", lines(sku, 6)), less)
	s.want(s.place("ann", "4", lines(sku, 5)), ok)
	s.rest()
	s.balanced(sku, 0, 10, 0)
}

// Row E6: Redis lost everything, at any time.
func TestAnEmptyRedisIsLoadedWhenItIsAsked(t *testing.T) {
	t.Attr("row", "E6")
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	id := *s.place("ann", "1", lines(a, 2, b, 3)).OrderID
	s.empty()
	if _, err := s.orders.Pay(t.Context(), "ann", id); err != nil {
		t.Fatal(err)
	}
	s.want(s.place("ann", "2", lines(a, 8, b, 8)), ok, less)
	s.rest()
	s.balanced(a, 0, 8, 2)
	s.balanced(b, 7, 0, 3)
}

// The COMMIT was done and its answer lost.
func TestALostCommitIsFoundOut(t *testing.T) {
	s, cut := behind(t)
	sku := s.sku(10)
	s.must(s.skus.Load(t.Context(), sku))
	r := s.begun("ann", "k", lines(sku, 3))
	cut.LoseAnswerTo("\x03COMMIT") // the statement itself: READ COMMITTED has the word, too
	s.must(s.decide(t.Context(), r))
	s.want(read(t, r.answer), ok)
	s.want(s.place("ann", "k", lines(sku, 3)), ok)
	s.balanced(sku, 7, 3, 0)
}

// MySQL is away after it was asked to decide: nobody knows; a repeat does.
func TestAnUndecidedCartSaysSo(t *testing.T) {
	s, cut := behind(t)
	sku := s.sku(10)
	r := s.begun("ann", "k", lines(sku, 3))
	cut.BeforeAnswerTo("\x03COMMIT", func() { cut.Refuse(); cut.Cut() })
	err := s.decide(t.Context(), r)
	if !errors.Is(err, ErrUndecided) {
		t.Fatalf("got %v, want ErrUndecided", err)
	}
	cut.BeforeAnswerTo("", nil)
	cut.Heal()
	s.want(s.place("ann", "k", lines(sku, 3)), ok)
	s.rest()
	s.balanced(sku, 7, 3, 0)
}

// Redis locked the units and its answer was lost.
func TestALostAnswerOfRedisIsAskedForAgain(t *testing.T) {
	s := newShop(t)
	sku := s.sku(10)
	s.must(s.skus.Load(t.Context(), sku))
	redis, cut := slowRedis(t, s)
	far := shopOn(t, s.db, redis, config())
	script := redis.Client().Incarnation().Lock
	cut.LoseAnswerTo(script.SHA)
	if _, _, err := far.Place(t.Context(), "ann", "k", lines(sku, 3)); err == nil || errors.Is(err, ErrUndecided) {
		t.Fatalf("got %v, want an error that says that nothing was decided", err)
	}
	s.want(s.place("ann", "k", lines(sku, 3)), ok)
	s.rest()
	s.balanced(sku, 7, 3, 0)
}

// Carts that name the same SKUs in any order lock them in one.
func TestCartsInAnyOrderDoNotBlockEachOther(t *testing.T) {
	s := newShop(t)
	var skus []int64
	for range 6 {
		skus = append(skus, s.sku(1000))
	}
	var wg sync.WaitGroup
	for i := range 120 {
		wg.Go(func() {
			items := []wire.CartItem{}
			for j := range skus {
				items = append(items, wire.CartItem{SKU: skus[(i+j)%len(skus)], Quantity: 1})
			}
			if i%2 == 0 {
				slices.Reverse(items)
			}
			body, _, err := s.Place(t.Context(), fmt.Sprint("u", i), "k", items)
			if err != nil {
				t.Error(err)
				return
			}
			if a := read(t, body); a.OrderID == nil || slices.ContainsFunc(a.Results, func(r wire.CartResult) bool { return !r.OK }) {
				t.Errorf("got %+v", a)
			} else if _, err := s.orders.Cancel(t.Context(), "", *a.OrderID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.rest()
	for _, sku := range skus {
		s.balanced(sku, 1000, 0, 0)
	}
}

func TestTooManyCartsAtOnce(t *testing.T) {
	s := newShop(t)
	few := shopOn(t, s.db, s.redis, Config{PayWithin: time.Minute, MaxInFlight: 1})
	few.places <- struct{}{}
	if _, _, err := few.Place(t.Context(), "ann", "k", lines(1, 1)); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	<-few.places
	s.want(few.place("ann", "k", lines(s.sku(1), 1)), ok)
	if n := len(few.places); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// What Redis allowed and MySQL refuses: a sale was allotted the units, and Redis has not heard of it.
func TestMySQLIsTheJudge(t *testing.T) {
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	r := s.begun("ann", "k", lines(a, 4, b, 4))
	s.exec(`UPDATE skus SET available = available - 8, allotted = allotted + 8 WHERE id = ?`, a)
	s.must(s.decide(t.Context(), r))
	s.want(read(t, r.answer), less, ok)
	s.balanced(b, 6, 4, 0)
	snap, err := sku.Read(t.Context(), s.redis.Client(), a)
	s.must(err)
	if snap.State.Available != 10 || len(snap.Orders) != 0 || len(snap.Open) != 0 {
		t.Errorf("the refused line's units are not back: %+v", snap)
	}
}

// A loader died, and nobody asks for the SKU: what was decided in MySQL comes to Redis all the same.
func TestASKUWhoseLoaderDiedIsLoaded(t *testing.T) {
	s := newShop(t)
	sku := s.sku(10)
	id := *s.place("ann", "k", lines(sku, 4)).OrderID
	c := s.redis.Client()
	state := fmt.Sprintf("%s{sku:%d}:state", s.redis.Client().Prefix(), sku)
	shut := func(until int64) {
		t.Helper()
		s.must(c.Do(t.Context(), c.B().Hset().Key(state).FieldValue().FieldValue("gate", lua.GateShut).FieldValue("token", "dead").FieldValue("until", fmt.Sprint(until)).Build()).Error())
	}
	shut(time.Now().Add(time.Hour).UnixMilli())
	if _, err := s.orders.Pay(t.Context(), "ann", id); err != nil {
		t.Fatal(err)
	}
	s.rest()
	if n := s.count(`SELECT COUNT(*) FROM sku_intents WHERE done_at IS NULL`); n != 1 {
		t.Errorf("%d intents are open while somebody else may be loading it", n)
	}
	shut(time.Now().Add(-time.Hour).UnixMilli())
	s.rest() // loads it
	s.rest()
	s.balanced(sku, 6, 0, 4)
	if n := s.count(`SELECT COUNT(*) FROM sku_intents WHERE done_at IS NULL`); n != 0 {
		t.Errorf("%d intents are open", n)
	}
}

// A payment provider takes the payment of a cart's order: of its amount, in the currency that it was ordered in.
func TestACartsOrderIsPaidByAProvider(t *testing.T) {
	s := newShop(t)
	a, b := s.sku(10), s.sku(10)
	id := *s.place("ann", "k", lines(a, 2, b, 1)).OrderID
	s.exec(`UPDATE skus SET currency = 'USD', price = 5`)
	bill, err := s.orders.Bill(t.Context(), id)
	if err != nil || bill.Amount != 300 || bill.Currency != "EUR" || bill.Status != wire.PendingPayment {
		t.Errorf("got %+v, %v", bill, err)
	}
	if _, err := s.orders.Bill(t.Context(), newID()); !errors.Is(err, order.ErrNotFound) {
		t.Errorf("no order: got %v", err)
	}
	for _, want := range []bool{true, false} {
		s.must(store.InTx(t.Context(), s.db, func(tx *sql.Tx) error {
			paid, stands, err := s.orders.PayIn(t.Context(), tx, id)
			if paid != want || stands != wire.Paid {
				t.Errorf("got %v, %s", paid, stands)
			}
			return err
		}))
	}
	s.orders.Paid(t.Context(), id)
	s.balanced(a, 8, 0, 2) // Redis, too, at once
	s.balanced(b, 9, 0, 1)
}
