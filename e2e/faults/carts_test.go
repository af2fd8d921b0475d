//go:build servers

package faults

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/wire"
)

// shop is a crowd that orders carts of few SKUs, each asking until told something, every time with the same key. One in
// three then pays and one in three cancels.
type shop struct {
	w      *world
	skus   []int64
	units  int64 // that each SKU was made with
	tokens []string
	first  int // uid of the first token

	answered atomic.Int64
	mu       sync.Mutex // guards told
	told     []told
}

// told is a cart that became an order.
type told struct {
	uid, order string
	items      []wire.CartResult
	paid       bool
}

// newShop has skus SKUs of units units each, and shoppers.
func (w *world) newShop(t *testing.T, skus int, units int64, shoppers int) *shop {
	t.Helper()
	s := &shop{w: w, units: units}
	for range skus {
		var a answer
		until(t, "a SKU is made", func(ctx context.Context) error {
			if a = w.admin(ctx, "POST", "/skus", "", fmt.Sprintf(`{"title":"a mug","price":100,"currency":"EUR","stock":%d}`, units)); a.status != 201 {
				return errors.New(a.String())
			}
			return nil
		})
		s.skus = append(s.skus, a.ID)
	}
	var err error
	s.first, s.tokens, err = w.mint(shoppers)
	must(t, err)
	return s
}

// run has every shopper order carts carts, or until enough is closed; it returns when all are answered.
func (s *shop) run(ctx context.Context, carts int, enough <-chan struct{}) error {
	var wg sync.WaitGroup
	errs := make(chan error, len(s.tokens))
	for i, token := range s.tokens {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(s.skus[0]), uint64(i)))
			for n := range carts {
				select {
				case <-enough:
					return
				default:
				}
				if err := s.cart(ctx, r, strconv.Itoa(s.first+i), token, fmt.Sprint("cart-", n)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func (s *shop) cart(ctx context.Context, r *rand.Rand, uid, token, key string) error {
	var items []wire.CartItem
	for _, i := range r.Perm(len(s.skus))[:1+r.IntN(len(s.skus))] {
		items = append(items, wire.CartItem{SKU: s.skus[i], Quantity: 1 + r.Int64N(3)})
	}
	body, err := json.Marshal(wire.Cart{Items: items})
	if err != nil {
		return err
	}
	a, err := s.insist(ctx, wire.CartPath, token, key, string(body))
	if err != nil {
		return err
	}
	again, err := s.insist(ctx, wire.CartPath, token, key, string(body))
	if err != nil || !bytes.Equal(again.body, a.body) {
		return fmt.Errorf("uid %s, %s: got %s, %w, before %s", uid, key, again, err, a)
	}
	var v wire.CartAnswer
	if err := json.Unmarshal(a.body, &v); err != nil || len(v.Results) != len(items) {
		return fmt.Errorf("uid %s, %s: %s, %w", uid, key, a, err)
	}
	s.answered.Add(1)
	if v.OrderID == nil {
		return nil
	}
	x := told{uid: uid, order: *v.OrderID, items: v.Results}
	if what := []string{"/payment", "/cancellation", ""}[r.IntN(3)]; what != "" {
		if _, err := s.insist(ctx, wire.OrderPath(x.order)+what, token, "", ""); err != nil {
			return err
		}
		x.paid = what == "/payment"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, x)
	return nil
}

// insist asks until the answer is a 200.
func (s *shop) insist(ctx context.Context, path, token, key, body string) (answer, error) {
	for {
		a := s.w.do(ctx, "POST", s.w.ports.PublicURL()+path, token, key, body)
		switch {
		case ctx.Err() != nil:
			return a, fmt.Errorf("POST %s was never answered: %s", path, a)
		case a.status == 200:
			return a, nil
		case oracle.AskAgain(a.status):
			pause(ctx)
		default:
			return a, fmt.Errorf("POST %s: %s", path, a)
		}
	}
}

// rest waits until the equations of every SKU hold, in MySQL, in Redis and by the auditor, and holds what shoppers were told
// against them.
func (s *shop) rest(t *testing.T) (tally oracle.Tally) {
	t.Helper()
	var live int64
	for _, sku := range s.skus {
		var n int64
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := await(ctx, func(ctx context.Context) (err error) {
			if n, err = s.w.skuBooks(ctx, sku, s.units); err != nil {
				return err
			}
			if a := s.w.admin(ctx, "GET", fmt.Sprintf("/skus/%d/audit", sku), "", ""); a.status != 200 || !bytes.Contains(a.body, []byte(`"balanced":true`)) {
				return fmt.Errorf("the auditor says %s", a)
			}
			return nil
		})
		cancel()
		if err != nil {
			tally.Stranded++
			t.Errorf("SKU %d: the equations do not hold within %v: %v", sku, patience, err)
		}
		live += n
	}
	var held int64
	for _, x := range s.told {
		tally.Promised++
		var status string
		var n, lines int64
		err := s.w.books.DB.QueryRow(`SELECT o.status, o.quantity, (SELECT COUNT(*) FROM cart_lines l WHERE l.order_id = o.id) FROM orders o WHERE o.id = ? AND o.uid = ?`, x.order, x.uid).Scan(&status, &n, &lines)
		ok := int64(0)
		for _, r := range x.items {
			if r.OK {
				ok++
			}
		}
		if err != nil || x.paid && status != string(wire.Paid) || lines != ok {
			tally.Lost++
			t.Errorf("order %s of uid %s: %v; it is %s, paid %v, with %d lines, told %+v", x.order, x.uid, err, status, x.paid, lines, x.items)
		}
		if wire.OrderStatus(status).Live() {
			held += n
		}
	}
	if held != live {
		t.Errorf("shoppers hold %d units, the SKUs say %d", held, live)
	}
	return tally
}

// skuBooks are the equations of a SKU that was made with some units, from outside; live are its locked and sold units.
func (w *world) skuBooks(ctx context.Context, sku, units int64) (live int64, err error) {
	var total, available, allotted, locked, sold, left, held, unpaid, paid int64
	if err := w.books.DB.QueryRowContext(ctx, `SELECT total, available, allotted, locked, sold FROM skus WHERE id = ?`, sku).Scan(&total, &available, &allotted, &locked, &sold); err != nil {
		return 0, err
	}
	if total != units || min(available, locked, sold) < 0 || available+allotted+locked+sold != units {
		return 0, fmt.Errorf("available %d + allotted %d + locked %d + sold %d, total %d; it was made with %d", available, allotted, locked, sold, total, units)
	}
	if err := w.books.DB.QueryRowContext(ctx, `SELECT SUM(available_change), SUM(locked_change) FROM sku_ledger WHERE sku_id = ?`, sku).Scan(&left, &held); err != nil {
		return 0, err
	}
	if err := w.books.DB.QueryRowContext(ctx, `SELECT COALESCE(SUM(CASE WHEN o.status = 'pending_payment' THEN l.quantity ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN o.status = 'paid' THEN l.quantity ELSE 0 END), 0) FROM cart_lines l JOIN orders o ON o.id = l.order_id WHERE l.sku_id = ?`, sku).Scan(&unpaid, &paid); err != nil {
		return 0, err
	}
	if left != available || held != locked || unpaid != locked || paid != sold {
		return 0, fmt.Errorf("available %d, locked %d, sold %d; the ledger adds up to %d and %d, orders have %d unpaid and %d paid", available, locked, sold, left, held, unpaid, paid)
	}
	c, base := w.books.Redis, fmt.Sprintf("%s{sku:%d}:", w.books.Prefix, sku)
	state, err := c.Do(ctx, c.B().Hgetall().Key(base+"state").Build()).AsStrMap()
	if err != nil || len(state) == 0 { // nobody has asked for it since it was forgotten
		return locked + sold, err
	}
	orders, err := c.Do(ctx, c.B().Hgetall().Key(base+"orders").Build()).AsStrMap()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, value := range orders {
		n, _, _ := strings.Cut(value, " ")
		one, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += one
	}
	want := map[string]int64{"available": available, "locked": locked, "sold": sold, "total": available + locked + sold}
	for name, n := range want {
		if state[name] != strconv.FormatInt(n, 10) || sum != locked {
			return 0, fmt.Errorf("redis has %v, and %d units locked for orders; mysql available %d, locked %d, sold %d", state, sum, available, locked, sold)
		}
	}
	return locked + sold, nil
}

// carting has a crowd order carts while the process dies, and holds what they were told against the stores.
func carting(s *scene) {
	shop := s.w.newShop(s.t, 4, 60, 16)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	s.t.Cleanup(cancel)
	ran := make(chan error, 1)
	go func() { ran <- shop.run(ctx, 4, nil) }()
	s.after = func() {
		s.t.Helper()
		must(s.t, <-ran)
		shop.rest(s.t)
	}
}

// sweeping leaves behind what processes do that died after they locked a cart's units in Redis, with shoppers who never ask
// again.
func sweeping(s *scene) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	shop := s.w.newShop(s.t, 1, 10, 1)
	must(s.t, shop.run(ctx, 1, nil)) // brings the SKU into Redis
	root, err := stack.Root()
	must(s.t, err)
	text, err := os.ReadFile(filepath.Join(root, "lua", "sku_lock.lua"))
	must(s.t, err)
	var life string
	must(s.t, s.w.books.DB.QueryRowContext(ctx, `SELECT name FROM redis_life`).Scan(&life))
	sum := sha1.Sum([]byte(string(text) + "-- incarnation " + life + "\n"))
	base := fmt.Sprintf("%s{sku:%d}:", s.w.books.Prefix, shop.skus[0])
	c := s.w.books.Redis
	for i := range 3 {
		id := fmt.Sprintf("0190163d-8694-739b-aea5-%012d-0", int(shop.skus[0])*10+i)
		_, err := s.w.books.DB.ExecContext(ctx, `INSERT INTO cart_requests (uid, idem_key, request, order_id, created_at) VALUES ('gone', ?, ?, ?, NOW())`, id, strings.Repeat("0", 64), id)
		must(s.t, err)
		must(s.t, c.Do(ctx, c.B().Evalsha().Sha1(hex.EncodeToString(sum[:])).Numkeys(3).Key(base+"state", base+"orders", base+"open").Arg(id, "2").Build()).Error())
	}
	s.after = func() { s.t.Helper(); shop.rest(s.t) }
}

// TestCartKills kills each component in turn while a crowd orders carts.
func TestCartKills(t *testing.T) {
	sideBySide(t)
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	const between = 40 // carts that are answered before the next kill
	shop := w.newShop(t, 5, 200, 16)
	ran, enough := make(chan error, 1), make(chan struct{})
	go func() { ran <- shop.run(ctx, math.MaxInt, enough) }()
	victims := []*stack.Process{w.backend, w.servers.Redis, w.servers.MySQL, w.gateway, w.backend, w.servers.MySQL, w.servers.Redis, w.backend}
	var last time.Time
	var opened []time.Duration
	for _, p := range victims {
		due := shop.answered.Load() + between
		until(t, fmt.Sprintf("%d carts are answered", due), func(context.Context) error {
			if n := shop.answered.Load(); n < due {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		must(t, p.Kill(ctx))
		last = time.Now()
		must(t, p.Start(ctx))
		before := shop.answered.Load()
		until(t, "carts are answered again", func(context.Context) error {
			if shop.answered.Load() == before {
				return errors.New("none is")
			}
			return nil
		})
		opened = append(opened, time.Since(last))
	}
	close(enough)
	must(t, <-ran)
	tally := shop.rest(t)
	slices.Sort(opened)
	report(partKills, line{fault: "carts: backend, redis, mysql, gateway", injected: "SIGKILL in turn", times: len(victims), tally: &tally, opened: opened, settled: time.Since(last)})
}
