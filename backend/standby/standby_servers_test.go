//go:build servers

package standby_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// Row D9, beyond it: what comes back is offered to those who wait, in the order in which they came, and passes on.
func TestTheLineIsServedInOrder(t *testing.T) {
	t.Attr("row", "D9")
	s := newShop(t, backendtest.SaleOptions{Stock: 2})
	ids := s.buy("ann", "bob")
	s.join("cyd", "dan", "eve")
	s.join("cyd") // again
	s.want(map[string]string{"cyd": "waiting 1", "dan": "waiting 2", "eve": "waiting 3"})
	s.offer()
	s.want(map[string]string{"cyd": "waiting 1", "dan": "waiting 2", "eve": "waiting 3"})

	s.cancel("ann", ids[0])
	if v := s.press("zoe"); v.Answer != lua.SoldOut || s.state().Stock != 1 {
		t.Fatalf("the public, with a unit for the line: got %s, stock %d", v.Answer, s.state().Stock)
	}
	s.offer()
	s.want(map[string]string{"cyd": "offered", "dan": "waiting 1", "eve": "waiting 2"})
	at := s.look("cyd")
	if d := s.stood("cyd"); d != accept {
		t.Errorf("the offer stands for %v, want %v", d, accept)
	}
	s.join("cyd")
	if again := s.look("cyd"); *again.Offer != *at.Offer {
		t.Errorf("joining with an open offer: got %+v, want %+v", again.Offer, at.Offer)
	}
	s.balanced()

	s.expire(2 * accept) // and no longer: bob has 15 minutes
	s.offer()
	s.want(map[string]string{"cyd": "lapsed", "dan": "offered", "eve": "waiting 1"})
	if _, err := s.orders.Pay(t.Context(), "cyd", at.Offer.OrderID); err == nil {
		t.Error("an offer that lapsed was accepted")
	}
	s.join("cyd")
	s.want(map[string]string{"eve": "waiting 1", "cyd": "waiting 2"})
	if _, err := s.orders.Pay(t.Context(), "dan", s.look("dan").Offer.OrderID); err != nil {
		t.Fatal(err)
	}
	s.want(map[string]string{"dan": "accepted"})

	// Leaving: with an open offer, its unit passes on at once; without, the line closes up.
	s.cancel("bob", ids[1])
	s.offer()
	s.want(map[string]string{"eve": "offered", "cyd": "waiting 1"})
	s.leave("eve")
	s.offer()
	s.want(map[string]string{"eve": "left", "cyd": "offered"})
	s.leave("cyd")
	s.leave("cyd")
	s.offer()
	s.want(map[string]string{"cyd": "left"})
	if st := s.state(); st.Standby != 0 || st.Stock != 1 {
		t.Fatalf("nobody waits: got %+v", st)
	}
	s.balanced()
	s.buy("zoe")
	s.balanced()
}

// The line is bounded, and what is full is told so; who left, was passed over or served makes room.
func TestTheLineIsBounded(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 1})
	ids := s.buy("ann")
	for i := range most {
		s.join(fmt.Sprint("u", i))
	}
	full := func() {
		t.Helper()
		if err := s.line.Join(t.Context(), s.sale, "too late", s.newID()); !errors.Is(err, standby.ErrFull) {
			t.Errorf("got %v, want %v", err, standby.ErrFull)
		}
	}
	full()
	s.join("u3") // who is in it may ask again
	if _, err := s.line.Look(t.Context(), s.sale, "late", false); !errors.Is(err, standby.ErrNotInLine) {
		t.Errorf("got %v, want %v", err, standby.ErrNotInLine)
	}
	s.leave("u3")
	s.join("late")
	full()
	s.cancel("ann", ids[0])
	s.offer()
	s.want(map[string]string{"u0": "offered", "u1": "waiting 1", "u4": "waiting 3", "late": "waiting 7"})
	s.join("u3") // at the end now

	// Any number at once: not one more than may.
	s.leave("u5")
	var all sync.WaitGroup
	begin := make(chan struct{})
	errs := make([]error, 16)
	for i := range errs {
		all.Go(func() {
			<-begin
			errs[i] = s.line.Join(context.Background(), s.sale, fmt.Sprint("crowd", i), s.newID())
		})
	}
	close(begin)
	all.Wait()
	joined := 0
	for _, err := range errs {
		if err == nil {
			joined++
		} else if !errors.Is(err, standby.ErrFull) {
			t.Error(err)
		}
	}
	var waiting int
	s.must(s.db.QueryRow(`SELECT COUNT(*) FROM standby WHERE state = 'waiting'`).Scan(&waiting))
	if joined != 1 || waiting != most {
		t.Errorf("%d of a crowd joined, %d wait; want one, and %d", joined, waiting, most)
	}
}

// Row D13: one at the limit, or who may not buy any more, is passed over, and told why; the unit goes to the next one.
func TestWhoMayNotHaveItIsPassedOver(t *testing.T) {
	t.Attr("row", "D13")
	s := newShop(t, backendtest.SaleOptions{Stock: 2})
	ids := s.buy("ann", "bob")
	s.join("bob", "cyd", "dan", "eve") // bob's limit is for the caller to see; it may also be reached after the join
	s.must(store.InTx(t.Context(), s.db, func(tx *sql.Tx) error {
		_, _, err := eligibility.Change(t.Context(), tx, eligibility.Bans, s.clk.Now(), []string{"cyd"}, nil)
		return err
	}))
	s.must(store.InTx(t.Context(), s.db, func(tx *sql.Tx) error {
		_, _, err := eligibility.Replace(t.Context(), tx, s.sale, s.clk.Now(), []string{"bob", "cyd", "eve"})
		return err
	}))
	s.cancel("ann", ids[0])
	s.offer()
	s.want(map[string]string{"bob": "passed limit", "cyd": "passed banned", "dan": "passed not_listed", "eve": "offered"})
	s.balanced()
}

// One of whose orders as many have ended as may is passed over, too, and keeps nobody from what comes back.
func TestWhoHasEndedTooManyOrdersIsPassedOver(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 1})
	few, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: s.redis.Client().Prefix()}, 1)
	s.must(err)
	t.Cleanup(few.Close)
	s.must(few.Client().Begin(t.Context()))
	s.cancel("bob", s.buy("bob")[0])
	ids := s.buy("ann")
	s.join("bob", "eve")
	s.cancel("ann", ids[0])
	s.redis = few
	s.line, _ = s.process(s.clk)
	s.offer()
	s.want(map[string]string{"bob": "passed too_many_orders", "eve": "offered"})
	s.balanced()
}

// With the sale ends its line: those who wait are told so; an offer that was made stands.
func TestTheLineEndsWithTheSale(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 2})
	ids := s.buy("ann", "bob")
	s.join("cyd", "dan", "eve")
	s.cancel("ann", ids[0])
	s.offer()
	s.exec(`UPDATE sales SET closed_at = ?, version = version + 1 WHERE id = ?`, s.clk.Now(), s.sale)
	s.reconcile()
	if at, err := s.line.Look(t.Context(), s.sale, "dan", true); err != nil || at.State != wire.StandbyEnded || at.Place != nil {
		t.Errorf("before anybody swept: got %+v, %v", at, err)
	}
	s.cancel("bob", ids[1])
	if n, err := s.line.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("a sweep of a closed sale: got %d, %v", n, err)
	}
	s.settle()
	s.want(map[string]string{"cyd": "offered", "dan": "ended", "eve": "ended"})
	if _, err := s.orders.Pay(t.Context(), "cyd", s.look("cyd").Offer.OrderID); err != nil {
		t.Error(err)
	}
	s.balanced()
}

// Who leaves between the reservation of his unit and its order's row gets an order that is due at once: no unit is lost, and none
// is kept for him.
func TestWhoLeavesWithTheOfferOnItsWay(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 1, PayWithin: accept / 2})
	ids := s.buy("ann")
	s.join("bob", "cyd")
	s.cancel("ann", ids[0])
	if n, err := s.line.Offer(t.Context(), s.sale); n != 1 || err != nil {
		t.Fatalf("got %d, %v, want one offer", n, err)
	}
	s.leave("bob")
	s.settle()
	s.want(map[string]string{"bob": "left", "cyd": "waiting 1"})
	s.expire(time.Millisecond)
	s.offer()
	s.want(map[string]string{"bob": "left", "cyd": "offered"})
	if d := s.stood("cyd"); d != accept/2 {
		t.Errorf("an offer stands for %v, where any order of the sale stands for %v", d, accept/2)
	}
	s.balanced()
}

// An offer that the consumer must reject passes its head over: nothing waits for ever.
func TestARejectedOfferIsPassedOver(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 1})
	ids := s.buy("ann")
	s.join("bob", "cyd")
	s.cancel("ann", ids[0])
	if _, err := s.line.Offer(t.Context(), s.sale); err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES (?, 'bob', 1, ?)`, s.sale, s.newID()) // as if he had an order
	s.settle()
	s.want(map[string]string{"bob": "passed limit", "cyd": "waiting 1"})
	s.exec(`DELETE FROM order_slots WHERE uid = 'bob'`)
	s.offer()
	s.want(map[string]string{"bob": "passed limit", "cyd": "offered"})
}

// Eight processes offer at once, while units come back and consumers settle: one offer a unit, to those in front.
func TestManyProcessesOfferOnce(t *testing.T) {
	const units = 5
	s := newShop(t, backendtest.SaleOptions{Stock: units})
	var buyers []string
	for i := range units {
		buyers = append(buyers, fmt.Sprint("buyer", i))
	}
	ids := s.buy(buyers...)
	for i := range most {
		s.join(fmt.Sprint("u", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 8 {
		line, orders := s.process(s.clk)
		all.Go(func() {
			for ctx.Err() == nil {
				_, err := line.Sweep(context.Background())
				entries, _, err2 := s.redis.Outbox(context.Background(), s.sale)
				if err := errors.Join(err, err2, orders.Settle(context.Background(), entries), orders.Retire(context.Background(), entries)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i, id := range ids {
		s.cancel(buyers[i], id)
		if v := s.press("zoe"); v.Answer != lua.SoldOut { // the crowd
			t.Errorf("the public got what the line waits for: %s", v.Answer)
		}
	}
	for deadline := time.Now().Add(time.Minute); s.stands(fmt.Sprint("u", units-1)) != "offered" && time.Now().Before(deadline) && !t.Failed(); {
		if v := s.press("zoe"); v.Answer != lua.SoldOut {
			t.Errorf("the public got what the line waits for: %s", v.Answer)
		}
	}
	stop()
	all.Wait()
	s.settle()
	want := map[string]string{}
	for i := range most {
		if want[fmt.Sprint("u", i)] = "offered"; i >= units {
			want[fmt.Sprint("u", i)] = fmt.Sprintf("waiting %d", i-units+1)
		}
	}
	s.want(want)
	s.balanced()
}

// A Redis that was emptied knows from MySQL that somebody waits, before it sells anything.
func TestTheLineOutlivesRedis(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 2})
	ids := s.buy("ann", "bob")
	s.join("cyd", "dan")
	s.cancel("ann", ids[0])
	if _, err := s.line.Offer(t.Context(), s.sale); err != nil { // reserved, not settled
		t.Fatal(err)
	}
	s.must(s.redis.Client().Do(t.Context(), s.redis.Client().B().Del().Key(s.keys()...).Build()).Error())
	if _, err := s.line.Offer(t.Context(), s.sale); err != nil {
		t.Fatalf("an offer in a sale that is not loaded: %v", err)
	}
	s.reconcile()
	if v := s.press("zoe"); v.Answer != lua.SoldOut || s.state().Standby == 0 {
		t.Errorf("the public, after Redis was emptied: got %s, %+v", v.Answer, s.state())
	}
	s.offer() // what was lost is reserved again, under the same order
	s.want(map[string]string{"cyd": "offered", "dan": "waiting 1"})
	s.reconcile() // with a line standing, and nothing lost
	s.cancel("bob", ids[1])
	s.offer()
	s.want(map[string]string{"cyd": "offered", "dan": "offered"})
	if st := s.state(); st.Standby != 0 {
		t.Errorf("everybody has an offer: got %+v", st)
	}
	s.balanced()
}

func (s *shop) keys() (keys []string) {
	for _, name := range []string{"state", "orders", "buyers", "idem", "outbox", "applied", "gone"} {
		keys = append(keys, fmt.Sprintf("%s{sale:%d}:%s", s.redis.Client().Prefix(), s.sale, name))
	}
	return keys
}

// What a process leaves undone when it dies, the next sweep of any other does; and an offerer that slept does no harm.
func TestASweepFinishesWhatAnotherBegan(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 1})
	ids := s.buy("ann")
	sweep := func() {
		t.Helper()
		other, _ := s.process(s.clk)
		_, err := other.Sweep(t.Context())
		s.must(err)
	}
	// It joined in MySQL, and died before it told Redis.
	s.join("bob")
	s.must(s.redis.Rest(t.Context(), s.sale, s.state().Standby))
	sweep()
	if s.state().Standby == 0 {
		t.Fatal("nobody told Redis that somebody waits")
	}
	// Everybody has left, and it died before it told Redis.
	s.must(s.redis.Wait(t.Context(), s.sale, 99))
	s.leave("bob")
	s.cancel("ann", ids[0])
	sweep()
	if st := s.state(); st.Standby != 0 || st.Stock != 1 {
		t.Fatalf("nobody told Redis that nobody waits: got %+v", st)
	}
	// It found nobody in line, and slept; somebody joined meanwhile.
	ids = s.buy("cyd")
	s.must(s.redis.Wait(t.Context(), s.sale, 1))
	known := s.state().Standby
	s.join("bob")
	s.must(s.redis.Rest(t.Context(), s.sale, known))
	if s.state().Standby == 0 {
		t.Fatal("who has just joined is not known to Redis any more")
	}
	// It read who is first and slept; meanwhile the offer was made, and lapsed.
	s.cancel("cyd", ids[0])
	s.offer()
	offer := s.look("bob").Offer.OrderID
	s.expire(2 * accept)
	v, err := s.redis.Reserve(t.Context(), request(s.sale, s.state().Epoch, "bob", offer))
	if err != nil || v.Answer != lua.Repeated {
		t.Errorf("an offer that has lapsed, made again: got %+v, %v", v, err)
	}
	s.reconcile()
	v, err = s.redis.Reserve(t.Context(), request(s.sale, s.state().Epoch, "bob", offer))
	if err != nil || v.Answer != lua.Repeated {
		t.Errorf("the same in a Redis that was loaded since: got %+v, %v", v, err)
	}
	sweep()
	s.balanced()
}

// The auditor finds a line that nobody serves, one that Redis does not know of, and an offer without its order.
func TestTheAuditorSeesTheLine(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 2})
	ids := s.buy("ann", "bob")
	s.join("cyd", "dan")
	sees := func(want string) { // at first it may be so young that it is under way
		t.Helper()
		var found []audit.Finding
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			found = s.findings()
			if slices.ContainsFunc(found, func(f audit.Finding) bool { return strings.Contains(f.String(), want) }) {
				return
			}
		}
		t.Errorf("the audit does not find %q: %v", want, found)
	}
	s.balanced()
	place := s.state().Standby
	s.must(s.redis.Rest(t.Context(), s.sale, place))
	sees("Redis does not know")
	s.must(s.redis.Wait(t.Context(), s.sale, place))
	s.cancel("ann", ids[0])
	sees("1 units are available")
	s.offer()
	s.balanced()
	s.leave("dan")
	s.cancel("bob", ids[1])
	sees("in which nobody waits")
	s.offer()
	s.balanced()
	s.exec(`UPDATE standby SET order_id = ? WHERE uid = 'cyd'`, s.newID())
	sees("was offered an order that MySQL does not have")
}
