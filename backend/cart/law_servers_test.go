//go:build servers

package cart

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// told is what a shopper knows of one cart.
type told struct {
	uid, key string
	items    []wire.CartItem
	answer   []byte
	paid     bool
}

// Rows E1, E3, E6, E7, E10: random carts on few SKUs from several processes at once. Some die after each of their steps; they
// are repeated, paid, cancelled and expired; meanwhile the timers run, SKUs are restocked, rebuilt and forgotten. In the end
// every equation holds, and everybody holds what they were told.
func TestRandomCarts(t *testing.T) {
	t.Attr("row", "E1 E3 E6 E7 E10")
	seed := rand.Uint64()
	if s := os.Getenv("FLOODGATE_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("FLOODGATE_SEED=%d", seed)
	const processes, callers, carts = 3, 12, 25
	s := newShop(t)
	shops := []*shop{s}
	for range processes - 1 {
		shops = append(shops, shopOn(t, s.db, s.redis, config()))
	}
	var skus []int64
	for i := range 6 {
		skus = append(skus, s.sku(int64(10+40*(i%3))))
	}
	var restocked [6]int64

	var mu sync.Mutex // guards all and restocked
	var all []*told
	var running, working sync.WaitGroup
	stop := make(chan struct{})
	asked := make(chan struct{}, callers) // a token for a cart that was answered; what is too many is dropped
	loop := func(n uint64, f func(r *rand.Rand)) {
		working.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1000+n))
			for {
				select {
				case <-stop:
					return
				default:
					f(r)
				}
			}
		})
	}
	report := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	for i := range 2 { // timers of two processes
		loop(uint64(i), func(r *rand.Rand) {
			sh := shops[i]
			var err error
			switch r.IntN(3) {
			case 0:
				_, err = sh.Sweep(t.Context())
			case 1:
				_, err = sh.intents.RunSKUs(t.Context())
			case 2:
				_, err = sh.orders.Expire(t.Context())
			}
			report(err)
		})
	}
	loop(10, func(r *rand.Rand) { // what befalls SKUs
		i := r.IntN(len(skus))
		switch r.IntN(4) {
		case 0:
			report(shops[r.IntN(processes)].skus.Rebuild(t.Context(), skus[i]))
		case 1:
			c := s.redis.Client()
			base := fmt.Sprintf("%s{sku:%d}:", s.redis.Client().Prefix(), skus[i])
			report(c.Do(t.Context(), c.B().Unlink().Key(base+"state", base+"orders", base+"open", base+"applied").Build()).Error())
		default:
			n := 1 + r.Int64N(5)
			report(s.restock(t.Context(), skus[i], n))
			mu.Lock()
			restocked[i] += n
			mu.Unlock()
			report(s.intents.OfSKU(t.Context(), skus[i]))
		}
		for range r.IntN(8) { // else nothing is ever loaded for long enough
			select {
			case <-asked:
			case <-stop:
				return
			}
		}
	})
	for c := range callers {
		running.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			var mine []*told
			for n := range carts {
				sh := shops[r.IntN(processes)]
				if len(mine) > 0 && r.IntN(3) == 0 { // what was asked before, once more
					x := mine[r.IntN(len(mine))]
					report(x.ask(t.Context(), sh))
				} else {
					x := &told{uid: fmt.Sprint("u", c), key: fmt.Sprint("k", n), items: randomItems(r, skus)}
					mine = append(mine, x)
					x.die(t.Context(), sh, r)
					report(x.ask(t.Context(), shops[r.IntN(processes)]))
				}
				report(mine[r.IntN(len(mine))].end(t.Context(), sh, r))
				select {
				case asked <- struct{}{}:
				default:
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	running.Wait()
	close(stop)
	working.Wait()
	s.rest()

	var total, ordered int64
	for i, sku := range skus {
		u := backendtest.SKUBalanced(t, s.db, s.redis.Client(), sku)
		if sum, want := u.Available+u.Locked+u.Sold, int64(10+40*(i%3))+restocked[i]; sum != want {
			t.Errorf("SKU %d has %d units, was given %d", sku, sum, want)
		}
		s.audited(sku)
		total += u.Locked + u.Sold
	}
	for _, x := range all {
		a := read(t, x.answer)
		if a.OrderID == nil {
			continue
		}
		o := s.order(x.uid, *a.OrderID)
		var want []wire.CartItem
		for i, l := range a.Results {
			if l.OK {
				want = append(want, x.items[i])
			}
		}
		if len(want) != len(o.Items) || x.paid && o.Status != wire.Paid {
			t.Errorf("%s was told %s, paid %v; the order is %+v", x.uid, x.answer, x.paid, o)
		}
		sum := 0
		for _, item := range o.Items {
			sum += item.Quantity
		}
		if sum != o.Quantity || o.Amount != 100*int64(sum) {
			t.Errorf("the order's sums: %+v", o)
		}
		if o.Status.Live() {
			ordered += int64(sum)
		}
	}
	if orders := s.count(`SELECT COUNT(*) FROM orders`); ordered != total || orders == 0 {
		t.Errorf("the SKUs have %d units locked and sold, shoppers hold %d; %d orders", total, ordered, orders)
	}
	if n := s.count(`SELECT COUNT(*) FROM cart_requests WHERE answer IS NULL`); n != 0 {
		t.Errorf("%d requests are undecided", n)
	}
	t.Logf("%d carts, %d orders, %d of them paid; %d SKU loads; begun anew %v times", len(all), s.count(`SELECT COUNT(*) FROM orders`),
		s.count(`SELECT COUNT(*) FROM orders WHERE status = 'paid'`), s.count(`SELECT SUM(epoch) FROM skus`), again(shops))
}

func randomItems(r *rand.Rand, skus []int64) (items []wire.CartItem) {
	for _, i := range r.Perm(len(skus))[:1+r.IntN(len(skus))] {
		items = append(items, wire.CartItem{SKU: skus[i], Quantity: 1 + r.Int64N(4)})
	}
	return items
}

// die takes some of a cart's first steps, and no more.
func (x *told) die(ctx context.Context, s *shop, r *rand.Rand) {
	steps := r.IntN(4)
	if steps == 0 {
		return
	}
	q, err := s.begin(ctx, x.uid, x.key, x.items)
	if err != nil || q.answer != nil || steps == 1 {
		return
	}
	if s.lock(ctx, q) != nil || steps == 2 {
		return
	}
	_ = s.commit(ctx, q) // what it refused, and whatever came late, stays locked
}

// ask repeats until there is an answer, which must be the one there was.
func (x *told) ask(ctx context.Context, s *shop) error {
	for try := 0; ; try++ {
		body, _, err := s.Place(ctx, x.uid, x.key, x.items)
		if err != nil && try < 100 {
			continue // forgotten or rebuilt too often meanwhile: ask again
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", x.uid, x.key, err)
		}
		if x.answer != nil && !bytes.Equal(x.answer, body) {
			return fmt.Errorf("%s, %s: got %s, before %s", x.uid, x.key, body, x.answer)
		}
		x.answer = body
		return nil
	}
}

// end pays, cancels, or makes an order overdue.
func (x *told) end(ctx context.Context, s *shop, r *rand.Rand) error {
	var a wire.CartAnswer
	if a = read(s.t, x.answer); a.OrderID == nil {
		return nil
	}
	var err error
	switch r.IntN(4) {
	case 0:
		if _, err = s.orders.Pay(ctx, x.uid, *a.OrderID); err == nil {
			x.paid = true
		}
	case 1:
		_, err = s.orders.Cancel(ctx, x.uid, *a.OrderID)
	case 2:
		_, err = s.db.ExecContext(ctx, `UPDATE orders SET pay_before = created_at WHERE id = ?`, *a.OrderID)
	}
	if errors.Is(err, order.ErrState) {
		return nil
	}
	return err
}

func again(shops []*shop) (n float64) {
	for _, s := range shops {
		n += testutil.ToFloat64(s.metrics.again)
	}
	return n
}

// restock is what an operator's restock does to MySQL.
func (s *shop) restock(ctx context.Context, skuID, units int64) error {
	return store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		rows, err := sku.Lock(ctx, tx, []int64{skuID})
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE skus SET available = available + ?, total = total + ? WHERE id = ?`, units, units, skuID); err != nil {
			return err
		}
		i, err := intent.AdjustSKU(ctx, tx, time.Now(), skuID, units)
		if err != nil {
			return err
		}
		return ledger.OfSKUs(ctx, tx, time.Now(), ledger.Row{Of: skuID, Kind: ledger.Restock, Ref: i.Ref(), Before: rows[skuID].Units, Change: ledger.Units{Available: units}})
	})
}
