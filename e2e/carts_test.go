//go:build servers

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// newSKU makes a SKU by the admin API.
func (w *system) newSKU(stock int, price int64) int64 {
	w.t.Helper()
	return w.want(w.admin("POST", "/admin/v1/skus", fmt.Sprintf(`{"title":"A mug","price":%d,"currency":"EUR","stock":%d}`, price, stock)), 201, "").ID
}

func (w *system) postCart(token, key, body string) world.Answer {
	w.t.Helper()
	return w.do(w.ctx, world.Call{Method: "POST", URL: w.Ports.PublicURL() + wire.CartPath, Token: token, Key: key, Body: body})
}

// cartOf is the body of a cart: sku, quantity, sku, quantity, ...
func cartOf(pairs ...int64) string {
	var items []wire.CartItem
	for pair := range slices.Chunk(pairs, 2) {
		items = append(items, wire.CartItem{SKU: pair[0], Quantity: pair[1]})
	}
	b, err := json.Marshal(wire.Cart{Items: items})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (w *system) cartAnswer(a world.Answer, codes ...wire.CartCode) wire.CartAnswer {
	w.t.Helper()
	var c wire.CartAnswer
	w.want(a, 200, "").Decode(w.t, &c)
	var got []wire.CartCode
	ordered := false
	for _, r := range c.Results {
		got = append(got, r.Code)
		ordered = ordered || r.OK
		if r.OK != (r.Code == "") {
			w.t.Errorf("a line that is ok has no code: %s", a)
		}
	}
	if !slices.Equal(got, codes) || ordered != (c.OrderID != nil) {
		w.t.Fatalf("got %s, want the codes %q", a, codes)
	}
	return c
}

// carts walks the operations of carts and of SKUs, see TestContractWalk.
func (k *walk) carts() {
	k.w.t.Helper()
	mug, cup := k.w.newSKU(5, 900), k.w.newSKU(1, 250)
	at := k.w.Ports.PublicURL() + wire.CartPath
	try := func(token, key, body string, status int, code string) world.Answer {
		k.w.t.Helper()
		return k.try(world.Call{Method: "POST", URL: at, Token: token, Key: key, Body: body}, status, code)
	}
	good := cartOf(mug, 2, cup, 2, 999999, 1)
	try("", "k", good, 401, "UNAUTHENTICATED")
	k.public("GET", wire.CartPath, k.tokens[0], "", 405, "METHOD_NOT_ALLOWED")
	more := strings.Repeat(`{"sku_id":1},`, 50) + `{"sku_id":1}`
	mine := k.w.tokens(200, 203)
	for _, c := range []struct{ body, names string }{
		{"", "object"}, {"x", "JSON"}, {"[]", "object"}, {"{}", "items"}, {`{"items":[]}`, "items"}, {`{"items":[` + more + `]}`, "items"},
		{`{"items":[{"quantity":1}]}`, "items/0/sku_id"}, {`{"items":[{"sku_id":0}]}`, "items/0/sku_id"}, {`{"items":[{"sku_id":1.5}]}`, "items/0/sku_id"},
		{`{"items":[{"sku_id":1,"quantity":0}]}`, "items/0/quantity"}, {`{"items":[{"sku_id":1,"quantity":-1}]}`, "items/0/quantity"},
		{`{"items":[{"sku_id":1,"quantity":0.5}]}`, "items/0/quantity"}, {`{"items":[{"sku_id":1,"quantity":"1"}]}`, "items/0/quantity"},
		{`{"items":[{"sku_id":1,"quantity":1` + strings.Repeat("0", 400) + `}]}`, "items/0/quantity"},
		{`{"items":[{"sku_id":1},{"sku_id":1}]}`, "items/1/sku_id"}, {`{"items":[{"sku_id":1}],"uid":"bob"}`, "uid"}, {good + "{}", "JSON"},
	} {
		if a := try(mine[0], "k", c.body, 400, "BAD_REQUEST"); !strings.Contains(string(a.Body), c.names) {
			k.w.t.Errorf("%.80s: got %s, want %q named", c.body, a, c.names)
		}
	}
	if a := try(mine[0], "", good, 400, "BAD_REQUEST"); !strings.Contains(string(a.Body), "Idempotency-Key") {
		k.w.t.Errorf("without a key: got %s", a)
	}
	try(mine[0], strings.Repeat("k", 129), good, 400, "BAD_REQUEST")
	try(mine[0], "k", `{"items":[{"sku_id":`+strings.Repeat(" ", 70000)+`1}]}`, 413, "PAYLOAD_TOO_LARGE")
	k.try(world.Call{Method: "POST", URL: at, Token: mine[0], Key: "k", Body: good, Header: map[string]string{"Content-Type": "text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE")

	a := try(mine[0], "k", good, 200, "")
	order := *k.w.cartAnswer(a, "", wire.LineInsufficient, wire.LineUnknown).OrderID
	try(mine[0], "k2", good, 429, "RATE_LIMITED")
	k.public("GET", wire.OrderPath(order), mine[0], "", 200, "")
	k.public("GET", wire.OrderPath(order)+"?wait_ms=1000", mine[0], "", 200, "")
	k.public("GET", wire.OrderPath(order), mine[1], "", 404, "ORDER_NOT_FOUND")
	k.public("GET", "/v1/orders", mine[0], "", 200, "")
	for _, what := range []string{"/payment", "/cancellation"} {
		k.public("POST", wire.OrderPath(order)+what, mine[1], "", 404, "ORDER_NOT_FOUND")
	}
	k.public("POST", wire.OrderPath(order)+"/payment", mine[0], "", 200, "")
	k.public("POST", wire.OrderPath(order)+"/cancellation", mine[0], "", 409, "ORDER_STATE_CONFLICT")

	// Past the gateway's limit the backend answers repeats, and bad ones.
	signer := signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})
	internal := func(uid, key, body string, status int, code string) world.Answer {
		k.w.t.Helper()
		return k.try(k.signed(signer, "POST", wire.CartPath, uid, key, body), status, code)
	}
	if again := internal("200", "k", good, 200, ""); string(again.Body) != string(a.Body) {
		k.w.t.Errorf("the same key: got %s, want %s", again, a)
	}
	internal("200", "k", cartOf(mug, 1), 422, "IDEMPOTENCY_KEY_REUSED")
	internal("200", "", good, 400, "BAD_REQUEST")
	internal("200", "k3", `{"items":[]}`, 400, "BAD_REQUEST")
	internal("", "k3", good, 401, "UNAUTHENTICATED")
	k.w.cartAnswer(internal("bob", "k", cartOf(mug, 4, 999999, 1), 200, ""), wire.LineInsufficient, wire.LineUnknown)

	list := k.public("GET", wire.SKUsPath, "", "", 200, "")
	if list.Header.Get("X-Cache") == "" {
		k.w.t.Errorf("GET %s: no X-Cache in %v", wire.SKUsPath, list.Header)
	}
	k.try(world.Call{Method: "GET", URL: k.w.Ports.PublicURL() + wire.SKUsPath, Header: map[string]string{"If-None-Match": list.Header.Get("ETag")}}, 304, "")
	k.public("POST", wire.SKUsPath, mine[0], "", 405, "METHOD_NOT_ALLOWED")

	sku := fmt.Sprintf("/skus/%d", mug)
	k.admin("GET", sku+"/audit", "", 200, "")
	k.admin("POST", sku+"/rebuild", "", 200, "")
	k.admin("POST", sku+"/rebuild", `{"x":1}`, 400, "BAD_REQUEST")
	k.admin("POST", sku+"/audit", "", 405, "METHOD_NOT_ALLOWED")
	for method, what := range map[string]string{"GET": "/audit", "POST": "/rebuild"} {
		k.admin(method, "/skus/999999"+what, "", 404, "NOT_FOUND")
		k.admin(method, "/skus/x"+what, "", 404, "NOT_FOUND")
	}
}

// skuRests waits until a SKU's equations hold, and the auditor agrees.
func (w *system) skuRests(sku int64) (u oracle.Units) {
	w.t.Helper()
	w.until(fmt.Sprintf("SKU %d balances", sku), patience, func() (bool, string) {
		var err error
		if u, err = w.Books.SKU(w.ctx, sku); err != nil {
			return false, err.Error()
		}
		a := w.admin("GET", fmt.Sprintf("/admin/v1/skus/%d/audit", sku), "")
		return a.Status == 200 && strings.Contains(string(a.Body), `"balanced":true`), a.String()
	})
	return u
}

func (w *system) skuState(sku int64, want wire.SKUState) {
	w.t.Helper()
	w.until(fmt.Sprintf("SKU %d is %s at the gateway", sku, want), patience, func() (bool, string) {
		a := w.public("GET", wire.SKUsPath, "", "")
		var list wire.SKUList
		if a.Status != 200 {
			return false, a.String()
		}
		a.Decode(w.t, &list)
		return slices.ContainsFunc(list.SKUs, func(s wire.SKU) bool { return s.ID == sku && s.State == want }), a.String()
	})
}

// TestCartStory is what a person tries with carts, through the gateway alone. Rows E1, E3, E7, E10, D7, D8.
func TestCartStory(t *testing.T) {
	t.Attr("row", "E1 E3 E7 E10 D7 D8")
	t.Parallel()
	w := newSystem(t, world.Options{Limits: freely, Backend: "carts: {pay_within: 2s, abandoned_after: 1s}\n"})
	mug, cup, lid := w.newSKU(10, 900), w.newSKU(2, 250), w.newSKU(5, 100)
	tokens := w.tokens(1, 5)
	w.skuState(mug, wire.SKUAvailable)

	first := w.postCart(tokens[0], "k", cartOf(mug, 3, cup, 3, 999999, 1))
	paid := *w.cartAnswer(first, "", wire.LineInsufficient, wire.LineUnknown).OrderID
	if again := w.postCart(tokens[0], "k", cartOf(mug, 3, cup, 3, 999999, 1)); string(again.Body) != string(first.Body) || again.Status != 200 {
		t.Errorf("the same key: got %s, want %s", again, first)
	}
	w.want(w.postCart(tokens[0], "k", cartOf(mug, 2)), 422, "IDEMPOTENCY_KEY_REUSED")
	var o wire.Order
	w.want(w.public("POST", wire.OrderPath(paid)+"/payment", tokens[0], ""), 200, "").Decode(w.t, &o)
	if o.Status != wire.Paid || o.Amount != 2700 || o.Quantity != 3 || o.SaleID != 0 || len(o.Items) != 1 || o.Items[0] != (wire.OrderItem{SKU: mug, Quantity: 3, Price: 900}) {
		t.Errorf("got %+v", o)
	}

	cancelled := *w.cartAnswer(w.postCart(tokens[1], "k", cartOf(mug, 7, cup, 2)), "", "").OrderID
	w.skuState(cup, wire.SKUSoldOut)
	w.skuState(mug, wire.SKUSoldOut)
	w.want(w.public("POST", wire.OrderPath(cancelled)+"/cancellation", tokens[1], ""), 200, "").Decode(w.t, &o)
	if o.Status != wire.Cancelled || len(o.Items) != 2 {
		t.Errorf("got %+v", o)
	}
	w.skuState(cup, wire.SKUAvailable)

	expired := *w.cartAnswer(w.postCart(tokens[2], "k", cartOf(mug, 7, lid, 1)), "", "").OrderID
	w.until("the order is expired", patience, func() (bool, string) { // not by polling: its owner's reads are limited
		var status string
		w.must(w.Books.DB.QueryRowContext(w.ctx, `SELECT status FROM orders WHERE id = ?`, expired).Scan(&status))
		return status == string(wire.Expired), status
	})
	w.order(expired, tokens[2], wire.Expired)
	w.want(w.public("POST", wire.OrderPath(expired)+"/payment", tokens[2], ""), 409, "ORDER_STATE_CONFLICT")

	// A sale takes a part of what carts have, and gives it back.
	now := time.Now()
	a := w.want(w.admin("POST", "/admin/v1/sales", fmt.Sprintf(`{"sku_id":%d,"stock":5,"starts_at":%q,"ends_at":%q}`, mug,
		now.Add(-time.Minute).UTC().Format(wire.TimeFormat), now.Add(time.Hour).UTC().Format(wire.TimeFormat))), 201, "")
	if u := w.skuRests(mug); u != (oracle.Units{Available: 2, Allotted: 5, Sold: 3}) {
		t.Errorf("SKU %d has %+v", mug, u)
	}
	w.cartAnswer(w.postCart(tokens[3], "1", cartOf(mug, 3)), wire.LineInsufficient)
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/skus/%d/restock", mug), `{"quantity":1}`), 200, "")
	w.cartAnswer(w.postCart(tokens[3], "2", cartOf(mug, 3)), "")
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/close", a.ID), ""), 200, "")
	w.until("the sale's units are the SKU's again", patience, func() (bool, string) {
		u, err := w.Books.SKU(w.ctx, mug)
		return err == nil && u.Allotted == 0, fmt.Sprintf("%+v, %v", u, err)
	})

	var mine wire.OrderList
	w.want(w.public("GET", "/v1/orders", tokens[0], ""), 200, "").Decode(w.t, &mine)
	if len(mine.Orders) != 1 || mine.Orders[0].OrderID != paid || mine.Orders[0].Status != wire.Paid {
		t.Errorf("own orders: got %+v", mine)
	}
	for sku, sum := range map[int64]int64{mug: 11, cup: 2, lid: 5} {
		if u := w.skuRests(sku); u.Available+u.Locked+u.Sold != sum {
			t.Errorf("SKU %d has %+v, of %d", sku, u, sum)
		}
	}
}

// cartTold is a cart and what its shopper was told.
type cartTold struct {
	uid, key, token, body string
	answer                string
	order                 string
	paid                  bool
}

// place asks until there is an answer. It must be the one there was.
func (w *system) place(ctx context.Context, c *cartTold) error {
	for {
		a := w.do(ctx, world.Call{Method: "POST", URL: w.Ports.PublicURL() + wire.CartPath, Token: c.token, Key: c.key, Body: c.body, Quiet: true})
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("cart %s of %s was never answered: %s", c.key, c.uid, a)
		case a.Status == 200 && c.answer != "" && c.answer != string(a.Body):
			return fmt.Errorf("cart %s of %s: got %s, before %s", c.key, c.uid, a, c.answer)
		case a.Status == 200:
			var v wire.CartAnswer
			if err := json.Unmarshal(a.Body, &v); err != nil {
				return err
			}
			c.answer = string(a.Body)
			if v.OrderID != nil {
				c.order = *v.OrderID
			}
			return nil
		case a.AskAgain():
			world.Pause(ctx, 50*time.Millisecond) // as a client waits
		default:
			return fmt.Errorf("cart %s of %s: %s", c.key, c.uid, a)
		}
	}
}

// finish pays or cancels, asking until there is an answer.
func (w *system) finish(ctx context.Context, c *cartTold, what string) error {
	for c.order != "" {
		a := w.do(ctx, world.Call{Method: "POST", URL: w.Ports.PublicURL() + wire.OrderPath(c.order) + what, Token: c.token, Quiet: true})
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s of %s was never answered: %s", what, c.order, a)
		case a.Status == 200:
			c.paid = what == "/payment"
			return nil
		case a.Code == "ORDER_STATE_CONFLICT":
			return nil // it expired
		case a.AskAgain():
			world.Pause(ctx, 50*time.Millisecond)
		default:
			return fmt.Errorf("%s of %s: %s", what, c.order, a)
		}
	}
	return nil
}

// TestCartsUnderFire: random carts on few SKUs through two backends, each of which is killed in the middle, while Redis
// loses everything, SKUs are restocked, and one is rebuilt from the command line. In the end every equation holds, and every
// shopper has what they were told. Rows E1, E2, E3, E6, E7, E10.
func TestCartsUnderFire(t *testing.T) {
	t.Attr("row", "E1 E2 E3 E6 E7 E10")
	w := newSystem(t, world.Options{Limits: orders("{rate: 1000, burst: 1000, max_keys: 1000000}"), Backend: "carts: {pay_within: 5m, abandoned_after: 1s}\n", Second: true})
	const shoppers, carts = 24, 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var skus []int64
	given := map[int64]int64{}
	for i := range 5 {
		sku := w.newSKU(40+30*i, 100)
		skus, given[sku] = append(skus, sku), int64(40+30*i)
	}
	tokens := w.tokens(1, shoppers)
	ctx, cancel := context.WithTimeout(w.ctx, 3*time.Minute)
	defer cancel()

	// First readers, of two processes, all at once: each SKU is read once.
	all := make([][]*cartTold, shoppers)
	var wg sync.WaitGroup
	for i := range shoppers {
		wg.Go(func() {
			c := &cartTold{uid: fmt.Sprint(i + 1), key: "first", token: tokens[i], body: cartOf(skus[0], 1, skus[1], 1, skus[2], 1, skus[3], 1, skus[4], 1)}
			all[i] = append(all[i], c)
			if err := w.place(ctx, c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, sku := range skus {
		var epoch int
		w.must(w.Books.DB.QueryRowContext(w.ctx, `SELECT epoch FROM skus WHERE id = ?`, sku).Scan(&epoch))
		if epoch != 1 {
			t.Errorf("SKU %d was read from MySQL %d times", sku, epoch)
		}
	}

	var done atomic.Int64
	for i := range shoppers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := range carts {
				c := &cartTold{uid: fmt.Sprint(i + 1), key: fmt.Sprint(n), token: tokens[i]}
				var pairs []int64
				for _, j := range r.Perm(len(skus))[:1+r.IntN(len(skus))] {
					pairs = append(pairs, skus[j], 1+r.Int64N(3))
				}
				c.body = cartOf(pairs...)
				all[i] = append(all[i], c)
				var twice sync.WaitGroup
				if r.IntN(3) == 0 { // the button was pressed twice
					other := *c
					twice.Go(func() {
						if err := w.place(ctx, &other); err != nil {
							t.Error(err)
						}
					})
				}
				if err := w.place(ctx, c); err != nil {
					t.Error(err)
				}
				twice.Wait()
				if err := w.place(ctx, all[i][r.IntN(len(all[i]))]); err != nil { // an old one, again
					t.Error(err)
				}
				if what := []string{"/payment", "/cancellation", ""}[r.IntN(3)]; what != "" {
					if err := w.finish(ctx, c, what); err != nil {
						t.Error(err)
					}
				}
				done.Add(1)
			}
		})
	}
	reach := func(n int64) {
		t.Helper()
		w.until(fmt.Sprintf("%d carts are answered", n), 2*time.Minute, func() (bool, string) { return done.Load() >= n, fmt.Sprint(done.Load()) })
	}
	const whole = shoppers * carts
	kill := func(p *stack.Process) {
		t.Helper()
		w.must(p.Kill(ctx))
		w.must(p.Start(ctx))
	}
	restock := func(sku int64) {
		t.Helper()
		key := fmt.Sprintf("restock-%d-%d", sku, given[sku])
		w.until("the restock is done", patience, func() (bool, string) {
			a := w.do(ctx, world.Call{Method: "POST", URL: fmt.Sprintf("%s/admin/v1/skus/%d/restock", w.Ports.AdminURL(), sku), Token: development.AdminToken, Key: key, Body: `{"quantity":20}`})
			return a.Status == 200, a.String()
		})
		given[sku] += 20
	}
	reach(whole / 8)
	kill(w.Second)
	restock(skus[0])
	reach(whole / 4)
	kill(w.Backend)
	reach(whole / 2)
	w.loseRedis()
	restock(skus[1])
	reach(whole * 5 / 8)
	kill(w.Second)
	if out, err := w.command(ctx, "rebuild", "--sku", fmt.Sprint(skus[2])); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	wg.Wait()

	var live int64
	for _, sku := range skus {
		u := w.skuRests(sku)
		if u.Available+u.Locked+u.Sold != given[sku] {
			t.Errorf("SKU %d has %+v, was given %d", sku, u, given[sku])
		}
		live += u.Locked + u.Sold
	}
	var held int64
	for _, mine := range all {
		for _, c := range mine {
			if c.order == "" {
				continue
			}
			var status string
			var n int64
			if err := w.Books.DB.QueryRowContext(w.ctx, `SELECT status, quantity FROM orders WHERE id = ? AND uid = ?`, c.order, c.uid).Scan(&status, &n); err != nil {
				t.Errorf("order %s of %s: %v", c.order, c.uid, err)
			}
			if c.paid && status != string(wire.Paid) {
				t.Errorf("order %s was paid and is %s", c.order, status)
			}
			if wire.OrderStatus(status).Live() {
				held += n
			}
		}
	}
	if held != live {
		t.Errorf("shoppers hold %d units, the SKUs say %d", held, live)
	}
	if out, err := w.command(ctx, "audit", "--all"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// loseRedis makes Redis lose everything that this world has in it, and its scripts, as a restart without a disk does.
func (w *system) loseRedis() {
	w.t.Helper()
	keys, err := w.Books.Redis.Do(w.ctx, w.Books.Redis.B().Keys().Pattern(w.Books.Prefix+"*").Build()).AsStrSlice()
	w.must(err)
	if len(keys) > 0 {
		w.must(w.Books.Redis.Do(w.ctx, w.Books.Redis.B().Del().Key(keys...).Build()).Error())
	}
	w.must(w.Books.Redis.Do(w.ctx, w.Books.Redis.B().ScriptFlush().Build()).Error())
}
