//go:build servers

package event_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

var anywhere = event.Endpoint{Name: "shop", URL: "https://shop.example/hook", Secret: secret}

// provider delivers a webhook of the payment provider.
func (s *shop) provider(body string) {
	s.t.Helper()
	stamp := strconv.FormatInt(s.clk.Now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(providerSecret))
	mac.Write([]byte(stamp + "." + body))
	if _, err := s.payments.Take(s.t.Context(), "acme", "t="+stamp+",v1="+hex.EncodeToString(mac.Sum(nil)), []byte(body)); err != nil {
		s.t.Fatal(err)
	}
}

// everything makes each change that is an event, and returns the refs of what changed, and the events of each.
func (s *shop) everything() map[string]string {
	t := s.t
	want := map[string]string{}
	goods := s.sale(backendtest.SaleOptions{Stock: 4, PayWithin: time.Hour})
	ids := s.ordered(goods, 3)
	s.pay(ids[0])
	want[ids[0]] = "order.created order.paid"
	s.cancel(ids[1])
	want[ids[1]] = "order.created order.cancelled"
	s.exec(`UPDATE orders SET pay_before = created_at WHERE id = ?`, ids[2])
	if n, err := s.orders.Expire(t.Context()); n != 1 || err != nil {
		t.Fatalf("expire: got %d, %v", n, err)
	}
	want[ids[2]] = "order.created order.expired"
	s.provider(fmt.Sprintf(`{"id":"e1","type":"payment.succeeded","payment_id":"p1","order_id":%q,"amount":100,"currency":"EUR"}`, ids[1]))
	want[ids[1]] += " refund.due"

	more := s.ordered(goods, 3) // the last units: 1 is paid
	s.provider(fmt.Sprintf(`{"id":"e2","type":"payment.succeeded","payment_id":"p2","order_id":%q,"amount":100,"currency":"EUR"}`, more[0]))
	want[more[0]], want[more[1]], want[more[2]] = "order.created order.paid", "order.created", "order.created"
	want[event.SaleRef(goods)] = "sale.opened sale.sold_out"
	late := queued.Entry{ID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), goods), Sale: goods, UID: "late", Quantity: 1, Slots: "1", Epoch: 1, At: time.Now().UnixMilli()}
	if err := s.orders.Settle(t.Context(), []queued.Entry{late}); err != nil {
		t.Fatal(err)
	}
	want[late.ID] = "order.rejected"
	s.cancel(more[1]) // its unit is sold again
	want[more[1]] += " order.cancelled"
	again := s.ordered(goods, 1)[0]
	want[again] = "order.created"
	want[event.SaleRef(goods)] += " sale.sold_out"

	coupons := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Stock: 5})
	want[s.ordered(coupons, 1)[0]] = "order.created"
	want[event.SaleRef(coupons)] = "sale.opened"

	skuID := backendtest.SKU(t, s.db, 5, 100, "EUR")
	answer, _, err := s.carts.Place(t.Context(), "carla", "k1", []wire.CartItem{{SKU: skuID, Quantity: 2}})
	if err != nil {
		t.Fatal(err)
	}
	id := orderOf(t, answer)
	s.cancel(id)
	want[id] = "order.created order.cancelled"

	now := s.clk.Now().UTC().Truncate(time.Millisecond)
	over := s.sale(backendtest.SaleOptions{StartsAt: now.Add(-2 * time.Hour), EndsAt: now.Add(-time.Hour)})
	want[event.SaleRef(over)] = "sale.opened sale.ended"
	closed := s.sale(backendtest.SaleOptions{})
	s.exec(`UPDATE sales SET closed_at = ? WHERE id = ?`, now, closed)
	want[event.SaleRef(closed)] = "sale.opened sale.ended"
	want[event.SaleRef(s.sale(backendtest.SaleOptions{StartsAt: now.Add(time.Hour), EndsAt: now.Add(2 * time.Hour)}))] = ""
	old := s.sale(backendtest.SaleOptions{StartsAt: now.Add(-200 * time.Hour), EndsAt: now.Add(-100 * time.Hour)})
	s.exec(`UPDATE sales SET created_at = starts_at WHERE id = ?`, old)
	want[event.SaleRef(old)] = "" // too long ago to be news
	s.moments()
	s.moments()
	return want
}

// Every change is written with its event, once, with what the page says that it holds.
func TestEachChangeIsWrittenWithItsEvent(t *testing.T) {
	s := newShop(t, anywhere, event.Endpoint{Name: "money", URL: anywhere.URL, Secret: secret, Types: []event.Type{event.OrderPaid, event.RefundDue}})
	for ref, types := range s.everything() {
		twice := ""
		list, err := store.Column[string](t.Context(), s.db, `SELECT type FROM events WHERE ref = ? AND endpoint = 'shop' ORDER BY id`, ref)
		for i, one := range list {
			if i > 0 {
				twice += " "
			}
			twice += one
		}
		if err != nil || twice != types {
			t.Errorf("%s: got %q, %v; want %q", ref, twice, err, types)
		}
	}
	if n, err := store.Column[string](t.Context(), s.db, `SELECT DISTINCT type FROM events WHERE endpoint = 'money' ORDER BY type`); err != nil || fmt.Sprint(n) != "[order.paid refund.due]" {
		t.Errorf("the endpoint of some types: got %v, %v", n, err)
	}
	examples := documented(t)
	if len(examples) != len(event.Types) {
		t.Errorf("docs/events.md has %d examples, want %d", len(examples), len(event.Types))
	}
	for _, what := range event.Types {
		bodies, err := store.Column[string](t.Context(), s.db, `SELECT body FROM events WHERE type = ? AND endpoint = 'shop' ORDER BY id`, string(what))
		if err != nil || len(bodies) == 0 {
			t.Fatalf("%s: got %d, %v", what, len(bodies), err)
		}
		if got, want := shape(t, bodies[0]), shape(t, examples[string(what)]); got != want {
			t.Errorf("%s: docs/events.md shows\n%s\nand it is\n%s", what, want, got)
		}
	}
}

// A change that does not happen is no event.
func TestWhatIsRolledBackIsNoEvent(t *testing.T) {
	s := newShop(t, anywhere)
	id := s.ordered(s.sale(backendtest.SaleOptions{}), 1)[0]
	wrong := func(query string) { s.exec(query) }
	wrong(`UPDATE sale_stock SET available = available + 1, locked = locked - 1`) // the order does not fit it any more
	if _, err := s.orders.Cancel(t.Context(), "", id); err == nil {
		t.Error("an order that does not fit its stock row was cancelled")
	}
	if _, err := s.orders.Pay(t.Context(), "u"+id[:30], id); err == nil || errors.Is(err, order.ErrState) {
		t.Errorf("an order that does not fit its stock row was paid: %v", err)
	}
	s.exec(`UPDATE orders SET pay_before = created_at WHERE id = ?`, id)
	if _, err := s.orders.Expire(t.Context()); err != nil {
		t.Error(err)
	}
	if got := s.written(id); got != "order.created" {
		t.Errorf("got %q, want order.created alone", got)
	}
	wrong(`UPDATE sale_stock SET available = available - 1, locked = locked + 1`)
	s.cancel(id)
	if got := s.written(id); got != "order.created order.cancelled" {
		t.Errorf("got %q, want it cancelled", got)
	}
}

// Without an endpoint no statement names the tables of events: every change works where they are not there.
func TestWithoutAnEndpointNothingIsWritten(t *testing.T) {
	s := newShop(t)
	s.exec(`DROP TABLE events, event_marks`)
	s.everything()
	with := newShop(t, anywhere)
	with.exec(`DROP TABLE events, event_marks`)
	sale := with.sale(backendtest.SaleOptions{})
	e := queued.Entry{ID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Sale: sale, UID: "u", Quantity: 1, Slots: "1", Epoch: 1, At: time.Now().UnixMilli()}
	if err := with.orders.Settle(t.Context(), []queued.Entry{e}); err == nil {
		t.Error("with an endpoint an order was settled without its event")
	}
}
