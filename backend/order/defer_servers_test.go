//go:build servers

package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// closedSale is a sale of which Redis is in an older epoch than MySQL, and what is in its outbox.
func (s *shop) closedSale(uids ...string) (sale int64, old []queued.Entry) {
	s.t.Helper()
	sale = s.sale(backendtest.SaleOptions{Stock: 100})
	for _, uid := range uids {
		s.press(sale, uid, 1, "")
	}
	old = s.outbox(sale)
	s.exec(`UPDATE sale_stock SET epoch = epoch + 1, token = token + 1 WHERE sale_id = ?`, sale)
	return sale, old
}

// deferred calls SettleOrDefer, which must defer exactly these.
func (s *shop) deferred(batch []queued.Entry, want ...queued.Entry) {
	s.t.Helper()
	err := s.orders.SettleOrDefer(s.t.Context(), batch)
	var d *queued.KeptError
	if !errors.As(err, &d) || !slices.Equal(idsOf(d.Entries), idsOf(want)) {
		s.t.Fatalf("got %v, want %d orders deferred", err, len(want))
	}
}

// resume reloads a sale with everything of old reserved, and opens it.
func (s *shop) resume(sale int64, old []queued.Entry) {
	s.t.Helper()
	var held []reserve.Held
	for _, e := range old {
		held = append(held, reserve.Held{ID: e.ID, UID: e.UID, Quantity: 1, Slots: e.Slots, Entry: e.Entry, At: e.At, Key: e.Key})
	}
	s.reload(sale, held, 100-int64(len(held)), true)
}

func idsOf(es []queued.Entry) []string {
	ids := make([]string, len(es))
	for i, e := range es {
		ids[i] = e.ID
	}
	return ids
}

// nobodyBuries is for tests without dead letters.
func (s *shop) nobodyBuries(_ context.Context, e queued.Entry, tries int64, why error) error {
	s.t.Errorf("order %s became a dead letter after %d tries: %v", e.ID, tries, why)
	return nil
}

func (s *shop) settleDeferred(want int) {
	s.t.Helper()
	if n, err := s.orders.SettleDeferred(s.t.Context(), s.nobodyBuries); n != want || err != nil {
		s.t.Errorf("deferred orders: got %d settled, %v; want %d", n, err, want)
	}
}

func TestOrdersOfAClosedSaleAreDeferredInOrder(t *testing.T) {
	s := newShop(t)
	sale, old := s.closedSale("a", "b", "c", "d", "e")
	open := s.sale(backendtest.SaleOptions{})
	other := s.press(open, "x", 1, "")
	s.deferred(append(s.outbox(open), old[:3]...), old[:3]...)
	if got := s.stands(other); got != string(wire.PendingPayment) {
		t.Errorf("the order of the other sale, in the same batch: got %q, want it settled", got)
	}
	s.deferred(old[:1], old[0]) // delivered once more: whoever had deferred it died before it acknowledged it
	s.settleDeferred(0)         // still closed
	if got := s.outbox(sale); !slices.Equal(idsOf(got), idsOf(old)) {
		t.Errorf("the closed sale's outbox: got %d entries, want all %d", len(got), len(old))
	}
	s.resume(sale, old)
	s.deferred(old[3:4], old[3]) // it would be adopted, but three that came earlier are not yet
	// Four processes go on with them.
	var wg sync.WaitGroup
	var mu sync.Mutex // guards settled
	settled := 0
	for range 4 {
		wg.Go(func() {
			n, err := s.ordersAt(s.clk).SettleDeferred(t.Context(), s.nobodyBuries)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			settled += n
			mu.Unlock()
		})
	}
	wg.Wait()
	if settled != 5 {
		t.Errorf("four processes settled %d deferred messages, want each of 5 once", settled)
	}
	if err := s.orders.SettleOrDefer(t.Context(), old[4:]); err != nil {
		t.Errorf("one that comes when none is deferred: %v, want it adopted", err)
	}
	now := s.outbox(sale)
	if !slices.Equal(idsOf(now), idsOf(old)) {
		t.Errorf("adopted: got %v, want %v in this order", idsOf(now), idsOf(old))
	}
	for _, e := range now {
		if e.Epoch != s.epoch(sale) {
			t.Errorf("order %s is of epoch %d, want it adopted", e.ID, e.Epoch)
		}
	}
	if waits, err := HasDeferred(t.Context(), s.db, sale); waits || err != nil {
		t.Errorf("deferred orders: got %v, %v; want none", waits, err)
	}
	s.settle(sale)
	if got := s.count(sale, wire.PendingPayment); got != 5 {
		t.Errorf("got %d orders, want 5", got)
	}
	if err := s.orders.SettleOrDefer(t.Context(), old); err != nil {
		t.Errorf("messages of an older epoch whose orders MySQL has all: %v, want them known", err)
	}
	s.settle(open)
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

// A process died over a batch: nobody waits longer than its claim, and what several died over is tried alone, at last buried.
func TestTheCulpritAmongDeferredOrdersDiesAlone(t *testing.T) {
	s := newShop(t)
	sale, old := s.closedSale("a", "b", "c", "d")
	s.deferred(old, old...)
	s.resume(sale, old)
	if batch, err := s.orders.claimDeferred(t.Context(), sale); len(batch) != 4 || err != nil { // and it dies
		t.Fatalf("got %d, %v; want 4", len(batch), err)
	}
	s.settleDeferred(0)
	s.exec(`UPDATE deferred_orders SET tries = ? ORDER BY n LIMIT 2`, suspiciousTries)
	s.exec(`UPDATE deferred_orders SET tries = ? ORDER BY n DESC LIMIT 1`, maxTries)
	s.orders = s.ordersAt(s.clockAhead(2 * deferredClaim)) // two clocks differ by as long as Redis takes to tell its time
	for _, want := range []int{1, 1, 1} {                  // a, b, c
		s.settleDeferred(want)
	}
	refuse := errors.New("no room")
	buried := 0
	bury := func(_ context.Context, e queued.Entry, tries int64, why error) error {
		if buried++; buried == 1 {
			return refuse
		}
		if e.ID != old[3].ID || tries != maxTries+1 {
			t.Errorf("buried: got %s after %d tries (%v), want %s", e.ID, tries, why, old[3].ID)
		}
		return nil
	}
	if n, err := s.orders.SettleDeferred(t.Context(), bury); n != 0 || !errors.Is(err, refuse) {
		t.Errorf("got %d, %v; want the dead letter refused", n, err)
	}
	s.orders = s.ordersAt(s.clockAhead(4 * deferredClaim))
	if n, err := s.orders.SettleDeferred(t.Context(), bury); n != 1 || err != nil {
		t.Errorf("got %d, %v; want one dead letter", n, err)
	}
	s.settleDeferred(0)
	s.settle(sale) // the three that were adopted; the fourth, whose entry never left the outbox, is adopted now
	s.settle(sale)
	if got := s.count(sale, wire.PendingPayment); got != 4 {
		t.Errorf("got %d orders, want 4", got)
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

// An order that MySQL has by the time that its sale opens is not brought back, and one that no row fits is a dead letter.
func TestDeferredOrdersThatAreOver(t *testing.T) {
	s := newShop(t)
	sale, old := s.closedSale("a", "b")
	s.deferred(old, old...)
	s.resume(sale, old)
	// Both are adopted by somebody else, settled and retired, and one is cancelled.
	if err := s.orders.Settle(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	s.settle(sale)
	if _, err := s.orders.Cancel(t.Context(), "a", old[0].ID); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(forged(sale, "w", queued.Entry{ID: "no order id"}))
	if err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO deferred_orders (sale_id, entry, deferred_at) VALUES (?, ?, ?)`, sale, string(text), time.Now())
	var buried []string
	n, err := s.orders.SettleDeferred(t.Context(), func(_ context.Context, e queued.Entry, tries int64, why error) error {
		buried = append(buried, fmt.Sprint(e.ID, tries))
		return nil
	})
	if n != 3 || err != nil || !slices.Equal(buried, []string{"no order id1"}) {
		t.Errorf("got %d, %v, buried %q; want all three done, one buried", n, err, buried)
	}
	if got := s.outbox(sale); len(got) != 0 || s.stock(sale) != 99 {
		t.Errorf("got %d entries, stock %d; want none, 99", len(got), s.stock(sale))
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}
