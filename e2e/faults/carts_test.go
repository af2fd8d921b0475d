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
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// shop is a crowd that orders carts of few SKUs, each asking until told something, every time with the same key. One in
// three then pays and one in three cancels.
type shop struct {
	w      *system
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
func (w *system) newShop(t *testing.T, skus int, units int64, shoppers int) *shop {
	t.Helper()
	s := &shop{w: w, units: units}
	for range skus {
		var a world.Answer
		until(t, "a SKU is made", func(ctx context.Context) error {
			a = w.admin(ctx, "POST", "/skus", "", fmt.Sprintf(`{"title":"a mug","price":100,"currency":"EUR","stock":%d}`, units))
			return a.Is(201)
		})
		s.skus = append(s.skus, a.ID)
	}
	var err error
	s.first, s.tokens, err = w.mint(shoppers)
	world.Must(t, err)
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
	if err != nil || !bytes.Equal(again.Body, a.Body) {
		return fmt.Errorf("uid %s, %s: got %s, %w, before %s", uid, key, again, err, a)
	}
	var v wire.CartAnswer
	if err := json.Unmarshal(a.Body, &v); err != nil || len(v.Results) != len(items) {
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
func (s *shop) insist(ctx context.Context, path, token, key, body string) (world.Answer, error) {
	for {
		a := s.w.do(ctx, "POST", s.w.PublicURL()+path, token, key, body)
		switch {
		case ctx.Err() != nil:
			return a, fmt.Errorf("POST %s was never answered: %s", path, a)
		case a.Status == 200:
			return a, nil
		case a.AskAgain():
			world.Pause(ctx, impatience)
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
		err := world.Await(ctx, func(ctx context.Context) error {
			u, err := s.w.Books.SKU(ctx, sku)
			if err != nil {
				return err
			}
			if n = u.Locked + u.Sold; n+u.Available+u.Allotted != s.units {
				return fmt.Errorf("%+v, it was made with %d", u, s.units)
			}
			return s.w.admin(ctx, "GET", fmt.Sprintf("/skus/%d/audit", sku), "", "").Is(200, `"balanced":true`)
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
		err := s.w.Books.DB.QueryRow(`SELECT o.status, o.quantity, (SELECT COUNT(*) FROM cart_lines l WHERE l.order_id = o.id) FROM orders o WHERE o.id = ? AND o.uid = ?`, x.order, x.uid).Scan(&status, &n, &lines)
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

// carting has a crowd order carts while the process dies, and holds what they were told against the stores.
func carting(s *scene) {
	shop := s.w.newShop(s.t, 4, 60, 16)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	s.t.Cleanup(cancel)
	ran := make(chan error, 1)
	go func() { ran <- shop.run(ctx, 4, nil) }()
	s.after = func() {
		s.t.Helper()
		world.Must(s.t, <-ran)
		shop.rest(s.t)
	}
}

// sweeping leaves behind what processes do that died after they locked a cart's units in Redis, with shoppers who never ask
// again.
func sweeping(s *scene) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	shop := s.w.newShop(s.t, 1, 10, 1)
	world.Must(s.t, shop.run(ctx, 1, nil)) // brings the SKU into Redis
	root, err := stack.Root()
	world.Must(s.t, err)
	text, err := os.ReadFile(filepath.Join(root, "lua", "sku_lock.lua"))
	world.Must(s.t, err)
	var life string
	world.Must(s.t, s.w.Books.DB.QueryRowContext(ctx, `SELECT name FROM redis_life`).Scan(&life))
	sum := sha1.Sum([]byte(string(text) + "-- incarnation " + life + "\n"))
	base := fmt.Sprintf("%s{sku:%d}:", s.w.Books.Prefix, shop.skus[0])
	c := s.w.Books.Redis
	for i := range 3 {
		id := fmt.Sprintf("0190163d-8694-739b-aea5-%012d-0", int(shop.skus[0])*10+i)
		_, err := s.w.Books.DB.ExecContext(ctx, `INSERT INTO cart_requests (uid, idem_key, request, order_id, created_at) VALUES ('gone', ?, ?, ?, NOW())`, id, strings.Repeat("0", 64), id)
		world.Must(s.t, err)
		world.Must(s.t, c.Do(ctx, c.B().Evalsha().Sha1(hex.EncodeToString(sum[:])).Numkeys(3).Key(base+"state", base+"orders", base+"open").Arg(id, "2").Build()).Error())
	}
	s.after = func() { s.t.Helper(); shop.rest(s.t) }
}

// TestCartKills kills each component in turn while a crowd orders carts.
func TestCartKills(t *testing.T) {
	sideBySide(t)
	w := newSystem(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	const between = 40 // carts that are answered before the next kill
	shop := w.newShop(t, 5, 200, 16)
	ran, enough := make(chan error, 1), make(chan struct{})
	go func() { ran <- shop.run(ctx, math.MaxInt, enough) }()
	victims := []*stack.Process{w.Backend, w.redis.Redis, w.mysql.MySQL, w.Gateway, w.Backend, w.mysql.MySQL, w.redis.Redis, w.Backend}
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
		world.Must(t, p.Kill(ctx))
		last = time.Now()
		world.Must(t, p.Start(ctx))
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
	world.Must(t, <-ran)
	tally := shop.rest(t)
	slices.Sort(opened)
	report(partKills, line{fault: "carts: backend, redis, mysql, gateway", injected: "SIGKILL in turn", times: len(victims), tally: &tally, opened: opened, settled: time.Since(last)})
}
