//go:build servers

package timeline

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// A timeline has a user's own presses and orders in this sale, in the order of time, and nobody else's.
func TestATimelineIsOnesOwn(t *testing.T) {
	d := newDesk(t, 100)
	base := d.now().Add(-time.Minute)
	after := func(seconds int) time.Time { return base.Add(time.Duration(seconds) * time.Second) }
	sale, other := backendtest.Sale(t, d.db, backendtest.SaleOptions{Limit: 9}), backendtest.Sale(t, d.db, backendtest.SaleOptions{})
	n := 0
	id := func(sale int64) string {
		n++
		return wire.NewOrderID(fmt.Sprintf("0190163d-8694-739b-aea5-%012d", n), sale)
	}
	settled := func(sale int64, uid string, status wire.OrderStatus, reason string, at int, payBefore, ended any) (orderID string) {
		t.Helper()
		orderID = id(sale)
		if _, err := d.db.ExecContext(t.Context(), `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, reason, created_at, decided_at, pay_before, ended_at)
			VALUES (?, ?, ?, 1, 100, ?, ?, ?, ?, ?, ?)`, orderID, sale, uid, string(status), reason, after(at), after(at+1), payBefore, ended); err != nil {
			t.Fatal(err)
		}
		return orderID
	}
	cancelled := settled(sale, "ann", wire.Cancelled, "", 1, after(100), after(3))
	settled(sale, "ann", wire.Expired, "", 5, after(7), after(8))
	settled(sale, "ann", wire.Rejected, "out_of_stock", 9, nil, nil)
	settled(sale, "ann", wire.Paid, "", 11, after(100), after(13))
	settled(sale, "ann", wire.PendingPayment, "", 14, after(100), nil)
	settled(sale, "bob", wire.Paid, "", 2, after(100), after(4))
	settled(other, "ann", wire.Issued, "", 2, nil, nil)
	backendtest.Load(t, d.db, d.redis, sale)
	queued := id(sale)
	if v, err := d.redis.Reserve(t.Context(), reserve.Request{Sale: sale, UID: "ann", Quantity: 1, OrderID: queued, Epoch: 1}); err != nil || v.OrderID != queued {
		t.Fatalf("got %+v, %v", v, err)
	}
	d.take(&verdict.Batch{Gateway: "g", Seq: 1, Records: []verdict.Record{
		record(sale, "ann", verdict.OrderLimit, after(0), after(20), 40), record(sale, "ann", verdict.Accepted, after(1), after(15), 5),
		record(sale, "ann", verdict.NoAnswer, after(10), after(10), 1),
		record(sale, "bob", verdict.Banned, after(0), after(0), 1), record(other, "ann", verdict.SoldOut, after(0), after(0), 1)}})
	w := &watch{Store: d.Store, holder: "w"}
	for _, sales := range []map[int64]wire.Sale{{}, {sale: {ID: sale, State: wire.Open}, other: {ID: other, State: wire.Open}}} {
		if err := w.write(t.Context(), sales, after(0)); err != nil {
			t.Fatal(err)
		}
	}
	tl := d.of("ann", sale)
	want := []string{"sale open 1", "arrived  46", "limited order_limit 40",
		"accepted accepted 5", "queued  1", "pending_payment  1", "cancelled  1",
		"queued  1", "pending_payment  1", "expired  1",
		"queued  1", "unknown no_answer 1", "rejected out_of_stock 1",
		"queued  1", "pending_payment  1", "paid  1",
		"queued  1", "pending_payment  1", "queued  1"}
	if got := events(tl); !slices.Equal(got, want) || !tl.Complete || len(tl.Missing) != 0 || tl.UID != "ann" || tl.Sale != sale {
		t.Errorf("got  %q, complete: %v, %v\nwant %q", got, tl.Complete, tl.Missing, want)
	}
	for i, e := range tl.Events {
		if e.Detail == "" || i > 0 && e.At.Before(tl.Events[i-1].At.Time) {
			t.Errorf("event %d: got %+v", i, e)
		}
	}
	last := tl.Events[len(tl.Events)-1]
	if last.OrderID != queued || last.Until != nil || tl.Events[4].OrderID != cancelled || tl.Events[17].Until != nil || !tl.Events[1].Until.Equal(after(20)) {
		t.Errorf("got %+v", tl.Events)
	}
	if got := events(d.of("bob", sale)); !slices.Equal(got, []string{"sale open 1", "arrived  1", "refused banned 1", "queued  1", "pending_payment  1", "paid  1"}) {
		t.Errorf("bob's: got %q", got)
	}
	if got := events(d.of("ann", other)); !slices.Equal(got, []string{"sale open 1", "arrived  1", "refused sold_out 1", "queued  1", "issued  1"}) {
		t.Errorf("in another sale: got %q", got)
	}
	if got := d.of("nobody", sale); !slices.Equal(events(got), []string{"sale open 1"}) || !got.Complete {
		t.Errorf("who never came: got %+v", got)
	}
	if _, err := d.Of(t.Context(), "ann", 999999); err != ErrUnknown {
		t.Errorf("no such sale: got %v", err)
	}

	// Without Redis nobody knows what is queued.
	away, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: d.redis.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	away.Close()
	d.redis = away
	d.Store = d.another(d.db, 100)
	if tl = d.of("ann", sale); tl.Complete || !strings.Contains(tl.Missing[0], "still in the queue") || len(tl.Events) != len(want)-1 {
		t.Errorf("without Redis: got %+v", tl)
	}

	// Of very many orders the newest are told.
	for range maxOrders {
		settled(sale, "many", wire.Rejected, "limit", 1, nil, nil)
	}
	if tl = d.of("many", sale); len(tl.Events) != 1+2*maxOrders || strings.Contains(strings.Join(tl.Missing, ""), "newest") {
		t.Errorf("%d orders: got %d events, %v", maxOrders, len(tl.Events), tl.Missing)
	}
	settled(sale, "many", wire.Rejected, "limit", 2, nil, nil)
	if tl = d.of("many", sale); len(tl.Events) != 1+2*maxOrders || !strings.Contains(strings.Join(tl.Missing, ""), "only the newest 50") {
		t.Errorf("one more: got %d events, %v", len(tl.Events), tl.Missing)
	}
}
