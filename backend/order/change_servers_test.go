//go:build servers

package order

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

func TestPayIsIdempotentAndRefusesWhatEnded(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 10, Price: 300, PayWithin: time.Minute})
	ctx := t.Context()
	id := s.ordered(sale, "u")
	var g errgroup.Group
	for range 20 {
		g.Go(func() error {
			o, err := s.orders.Pay(ctx, "u", id)
			if err == nil && (o.Status != wire.Paid || o.OrderID != id || o.Amount != 300 || o.PayBefore == nil) {
				err = fmt.Errorf("got %+v", o)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if n := s.number(`SELECT COUNT(*) FROM ledger WHERE kind = 'pay'`); n != 1 {
		t.Errorf("got %d payments in the ledger, want 1", n)
	}

	cancelled, overdue := s.ordered(sale, "c"), s.ordered(sale, "late")
	if _, err := s.orders.Cancel(ctx, "c", cancelled); err != nil {
		t.Fatal(err)
	}
	rejected := forged(sale, "u", queued.Entry{})
	if err := s.orders.Settle(ctx, []queued.Entry{rejected}); err != nil {
		t.Fatal(err)
	}
	coupons := s.sale(backendtest.SaleOptions{Kind: wire.Coupon})
	coupon := s.ordered(coupons, "u")
	queued := s.press(sale, "q", 1, "")
	late := s.ordersAt(s.clockAhead(time.Hour))
	for _, c := range []struct {
		name, uid, id string
		status        wire.OrderStatus
		says          string
	}{
		{"cancelled", "c", cancelled, wire.Cancelled, "cannot become paid"},
		{"rejected", "u", rejected.ID, wire.Rejected, "cannot become paid"},
		{"coupon", "u", coupon, wire.Issued, "coupon"},
		{"queued", "q", queued, wire.Queued, "queued"},
		{"overdue, before any expiry pass", "late", overdue, wire.PendingPayment, "expired"},
	} {
		_, err := late.Pay(ctx, c.uid, c.id)
		var state *StateError
		if !errors.Is(err, ErrState) || !errors.As(err, &state) || state.Order.Status != c.status || !strings.Contains(state.Detail, c.says) {
			t.Errorf("%s: got %v; want ErrState, status %s, one that says %q", c.name, err, c.status, c.says)
		}
		if _, err := late.Pay(ctx, "somebody", c.id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s, by somebody else: got %v, want ErrNotFound", c.name, err)
		}
		if _, err := late.Cancel(ctx, "somebody", c.id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s, cancelled by somebody else: got %v, want ErrNotFound", c.name, err)
		}
	}
	for _, none := range []string{newID(sale), "nonsense", ""} {
		if _, err := s.orders.Pay(ctx, "u", none); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: got %v, want ErrNotFound", none, err)
		}
	}
	if _, err := s.orders.Pay(ctx, "", overdue); !errors.Is(err, ErrNotFound) {
		t.Errorf("paid by nobody: got %v, want ErrNotFound", err)
	}
	if _, err := s.orders.Cancel(ctx, "u", id); !errors.Is(err, ErrState) {
		t.Errorf("cancel what is paid: got %v, want ErrState", err)
	}
	if got := s.stands(overdue); got != "pending_payment" {
		t.Errorf("the overdue order: got %s, want it left to the expiry pass", got)
	}
	s.settle(sale)
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

func TestFiftyWhoCancelAndReleaseGiveOneUnitBack(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 5, Limit: 2})
	id := s.press(sale, "u", 2, "")
	other := s.press(sale, "v", 1, "")
	s.settle(sale)
	var g errgroup.Group
	for i := range 50 {
		g.Go(func() error {
			if i%5 == 4 {
				_, err := s.orders.intents.Run(t.Context())
				return err
			}
			o, err := s.orders.Cancel(t.Context(), []string{"u", ""}[i%2], id)
			if err == nil && o.Status != wire.Cancelled {
				err = fmt.Errorf("got %+v", o)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := s.orders.intents.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.stock(sale); got != 4 || s.stands(other) != "pending_payment" {
		t.Errorf("got stock %d, the other order %s; want 4, pending_payment", got, s.stands(other))
	}
	if n, open := s.number(`SELECT COUNT(*) FROM intents`), s.number(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); n != 1 || open != 0 {
		t.Errorf("got %d intents, %d open; want 1, done", n, open)
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
	s.press(sale, "u", 2, "") // the slots are free, here and in MySQL
	s.settle(sale)
	if got := s.count(sale, wire.PendingPayment); got != 2 {
		t.Errorf("got %d orders, want 2", got)
	}
}

func TestOfPaymentAndTheEndExactlyOneWins(t *testing.T) {
	const rounds = 60
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 2 * rounds, PayWithin: time.Minute})
	late := s.ordersAt(s.clockAhead(time.Hour)) // to it every order is overdue; to s.orders none is
	paid, ended := 0, 0
	for i := range rounds {
		uid := fmt.Sprint("u", i)
		id := s.ordered(sale, uid)
		var payErr, endErr error
		var start sync.WaitGroup
		start.Add(1)
		var both sync.WaitGroup
		both.Go(func() { start.Wait(); _, payErr = s.orders.Pay(t.Context(), uid, id) })
		end := wire.Expired
		if i%2 == 0 {
			end = wire.Cancelled
			both.Go(func() { start.Wait(); _, endErr = s.orders.Cancel(t.Context(), uid, id) })
		} else {
			both.Go(func() {
				start.Wait()
				n, err := late.Expire(t.Context())
				if endErr = err; err == nil && n == 0 {
					endErr = ErrState
				}
			})
		}
		start.Done()
		both.Wait()
		got := wire.OrderStatus(s.stands(id))
		switch {
		case payErr == nil && errors.Is(endErr, ErrState) && got == wire.Paid:
			paid++
		case errors.Is(payErr, ErrState) && endErr == nil && got == end:
			ended++
		default:
			t.Fatalf("round %d: payment %v, end %v, order %s", i, payErr, endErr, got)
		}
	}
	t.Logf("%d paid, %d ended", paid, ended)
	if got := s.stock(sale); got != int64(2*rounds-paid) {
		t.Errorf("got stock %d in Redis, want %d: what ended is back, once", got, 2*rounds-paid)
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

func TestExpireTakesBoundedBatchesByIndex(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 500, PayWithin: time.Minute})
	for i := range 450 {
		s.press(sale, fmt.Sprint("u", i), 1, "")
	}
	s.settle(sale)
	s.exec(`ANALYZE TABLE orders`)
	if n, err := s.orders.Expire(t.Context()); n != 0 || err != nil {
		t.Errorf("nothing is due: got %d, %v", n, err)
	}
	late := s.ordersAt(s.clockAhead(2 * time.Minute))
	var total atomic.Int64
	var g errgroup.Group
	for range 2 { // two timers
		g.Go(func() error {
			for {
				n, err := late.Expire(t.Context())
				if n > expireOnce {
					return fmt.Errorf("one pass ended %d orders", n)
				}
				total.Add(int64(n))
				if err != nil || s.count(sale, wire.PendingPayment) == 0 {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if total.Load() != 450 || s.count(sale, wire.Expired) != 450 {
		t.Errorf("the passes ended %d orders, %d are expired; want 450", total.Load(), s.count(sale, wire.Expired))
	}
	if _, err := s.orders.intents.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.stock(sale); got != 500 {
		t.Errorf("got stock %d in Redis, want 500", got)
	}
	var id, kind, table, access, keys, key, length, ref, rows, extra any
	if err := s.db.QueryRowContext(t.Context(), `EXPLAIN SELECT id FROM orders WHERE status = 'pending_payment' AND pay_before <= NOW() ORDER BY pay_before LIMIT 200`).
		Scan(&id, &kind, &table, &access, &keys, &key, &length, &ref, &rows, &extra); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprintf("%s", key) != "orders_due" || fmt.Sprintf("%s", access) != "range" || strings.Contains(fmt.Sprintf("%s", extra), "filesort") {
		t.Errorf("the due orders are found by %s on %s (%s), want a range of orders_due without a sort", access, key, extra)
	}
}

// More orders than one pass takes do not fit their stock rows, and are overdue the longest.
func TestOrdersThatDoNotFitTheirStockRowsKeepNoOtherFromExpiring(t *testing.T) {
	const misfits = expireOnce + 50
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{PayWithin: time.Minute})
	s.ordered(sale, "a")
	s.ordered(sale, "b")
	first := ""
	for i := range misfits {
		id := newID(999999)
		s.exec(`INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at, pay_before)
			VALUES (?, 999999, ?, 1, 1, 'pending_payment', '2020-01-01', '2020-01-01', '2020-01-01')`, id, fmt.Sprint("x", i))
		first = cmp.Or(first, id)
	}
	pass := func(b *Store, want int) {
		t.Helper()
		got := 0
		for {
			n, err := b.Expire(t.Context())
			if err != nil || n > expireOnce {
				t.Fatalf("got %d, %v", n, err)
			}
			if got += n; n == 0 {
				break
			}
		}
		if got != want {
			t.Errorf("the passes dealt with %d orders, want %d", got, want)
		}
	}
	late := s.ordersAt(s.clockAhead(2 * time.Minute))
	pass(late, misfits+2)
	if got := s.count(sale, wire.Expired); got != 2 {
		t.Errorf("%d orders of the good sale are expired, want both", got)
	}
	if got := s.count(999999, wire.PendingPayment); got != misfits {
		t.Errorf("%d of the misfits are as they were, want %d", got, misfits)
	}
	if got := testutil.ToFloat64(late.metrics.stuck); got != misfits {
		t.Errorf("%v were counted as stuck, want %d", got, misfits)
	}
	pass(late, 0) // nobody looks at them for a while
	// What became good again expires after that while.
	s.exec(`UPDATE orders SET sale_id = ? WHERE id = ?`, sale, first)
	s.exec(`UPDATE sale_stock SET available = available - 1, locked = locked + 1 WHERE sale_id = ?`, sale)
	s.exec(`INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
		SELECT sale_id, 'order', ?, available + 1, -1, available, locked - 1, 1, locked, NOW() FROM sale_stock WHERE sale_id = ?`, first, sale)
	pass(s.ordersAt(s.clockAhead(2*time.Minute+stuckFor/2)), 0)
	pass(s.ordersAt(s.clockAhead(2*time.Minute+stuckFor)), misfits)
	if got := s.stands(first); got != "expired" {
		t.Errorf("the one that fits now is %s", got)
	}
}

func TestIntentsBehindAClosedGateStarveNobody(t *testing.T) {
	s := newShop(t)
	shut, open := s.sale(backendtest.SaleOptions{Stock: 1000}), s.sale(backendtest.SaleOptions{Stock: 10})
	for i := range 450 {
		s.press(shut, fmt.Sprint("u", i), 1, "")
	}
	s.settle(shut)
	mine := s.ordered(open, "me")
	s.exec(`UPDATE sale_stock SET token = token + 1 WHERE sale_id = ?`, shut)
	token := s.number(`SELECT token FROM sale_stock WHERE sale_id = ?`, shut)
	if _, err := s.redis.Shut(t.Context(), shut, token); err != nil {
		t.Fatal(err)
	}
	late := s.ordersAt(s.clockAhead(time.Hour))
	for { // older intents than the other sale's, three pages of them
		if n, err := late.Expire(t.Context()); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			break
		}
	}
	if got := s.stands(mine); got != "expired" {
		t.Fatalf("got %s", got)
	}
	s.exec(`UPDATE intents SET done_at = NULL WHERE sale_id = ?`, open)
	s.exec(`INSERT INTO intents (sale_id, kind, quantity, created_at) VALUES (?, 'adjust', 5, NOW()), (?, 'adjust', -1000, NOW()), (?, 'adjust', -3, NOW()), (?, 'define', 0, NOW())`, open, open, open, open)
	s.exec(`UPDATE sales SET paused = TRUE, version = version + 1 WHERE id = ?`, open)
	if n, err := s.orders.intents.Run(t.Context()); n != 4 || err != nil {
		t.Errorf("got %d, %v; want the open sale's four, past 450 older ones", n, err)
	}
	if n := s.number(`SELECT COUNT(*) FROM intents WHERE sale_id = ? AND done_at IS NULL`, open); n != 1 {
		t.Errorf("got %d open intents, want one: to take more units than there are", n)
	}
	for range 3 { // done twice it has one effect
		s.exec(`UPDATE intents SET done_at = NULL WHERE sale_id = ?`, open)
		if _, err := s.orders.intents.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	states, err := s.redis.States(t.Context(), []int64{open})
	if err != nil || states[0].Stock != 12 || states[0].Total != 12 || !states[0].Paused {
		t.Errorf("got %+v, %v; want stock 12 of 12, paused", states[0], err)
	}
	if n := s.number(`SELECT COUNT(*) FROM intents WHERE sale_id = ? AND done_at IS NULL`, shut); n != 450 {
		t.Errorf("got %d open intents of the closed sale, want 450", n)
	}
	s.reload(shut, nil, 1000, true)
	for want := 450; want > 0; {
		n, err := s.orders.intents.Run(t.Context())
		if n == 0 || err != nil {
			t.Fatalf("%d are left: got %d, %v", want, n, err)
		}
		want -= n
	}
	backendtest.RedisBalanced(t, s.db, s.redis, shut)
}

// TestAnySequenceBalances does in turn whatever can happen to orders, and compares with a model of who holds what.
func TestAnySequenceBalances(t *testing.T) {
	s := newShop(t)
	late := s.ordersAt(s.clockAhead(time.Hour))
	rapid.Check(t, func(r *rapid.T) {
		stock := rapid.Int64Range(1, 6).Draw(r, "stock")
		limit := rapid.IntRange(1, 3).Draw(r, "limit")
		sale := s.sale(backendtest.SaleOptions{Stock: stock, Limit: limit, PayWithin: time.Minute})
		var ids []string
		owner, want := map[string]string{}, map[string]wire.OrderStatus{}
		var seen []queued.Entry // everything that was ever in the outbox may come again
		pick := func() string { return rapid.SampledFrom(ids).Draw(r, "order") }
		settleAll := func() {
			now := s.outbox(sale)
			seen = append(seen, now...)
			if err := s.orders.Settle(t.Context(), now); err != nil {
				r.Fatal(err)
			}
			if err := s.orders.Retire(t.Context(), now); err != nil {
				r.Fatal(err)
			}
			for id, st := range want {
				if st == wire.Queued {
					want[id] = wire.PendingPayment
				}
			}
		}
		change := func(id string, to wire.OrderStatus, do func() (wire.Order, error)) {
			_, err := do()
			if ok := want[id] == wire.PendingPayment || want[id] == to; ok != (err == nil) || !ok && !errors.Is(err, ErrState) {
				r.Fatalf("%s to %s: got %v", want[id], to, err)
			} else if ok {
				want[id] = to
			}
		}
		for range rapid.IntRange(1, 25).Draw(r, "steps") {
			step := rapid.IntRange(0, 5).Draw(r, "step")
			if len(ids) == 0 {
				step = 0
			}
			switch step {
			case 0:
				uid := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "uid")
				v, err := s.redis.Reserve(t.Context(), reserve.Request{Sale: sale, UID: uid, Quantity: rapid.IntRange(1, limit).Draw(r, "quantity"), OrderID: newID(sale), Epoch: 1})
				if err != nil {
					r.Fatal(err)
				}
				if v.Answer == "reserved" {
					ids, owner[v.OrderID], want[v.OrderID] = append(ids, v.OrderID), uid, wire.Queued
				}
			case 1:
				settleAll()
			case 2:
				id := pick()
				change(id, wire.Paid, func() (wire.Order, error) { return s.orders.Pay(t.Context(), owner[id], id) })
			case 3:
				id := pick()
				change(id, wire.Cancelled, func() (wire.Order, error) { return s.orders.Cancel(t.Context(), owner[id], id) })
			case 4:
				if _, err := late.Expire(t.Context()); err != nil {
					r.Fatal(err)
				}
				for id, st := range want {
					if st == wire.PendingPayment {
						want[id] = wire.Expired
					}
				}
			case 5:
				if err := s.orders.Settle(t.Context(), seen); err != nil {
					r.Fatal(err)
				}
			}
		}
		settleAll()
		for _, id := range ids {
			if got := s.stands(id); got != string(want[id]) {
				r.Fatalf("order %s: got %s, want %s", id, got, want[id])
			}
		}
		backendtest.RedisBalanced(t, s.db, s.redis, sale)
		backendtest.Balanced(t, s.db, sale)
	})
}
