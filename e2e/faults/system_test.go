//go:build servers

package faults

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// patience bounds every wait for the system to come to rest. It is far more than it takes: a slow machine is no fault.
const patience = 10 * time.Minute

// ground is what several systems may stand on.
type ground struct{ *world.Ground }

// openGround builds the binaries with these flags. Its servers do not run yet.
func openGround(t *testing.T, flags ...string) *ground {
	t.Helper()
	g, err := world.OpenGround(t.TempDir(), flags...)
	world.Must(t, err)
	world.KillAfter(t, g.Servers)
	return &ground{g}
}

// newGround builds the binaries with these flags and starts servers.
func newGround(t *testing.T, flags ...string) *ground {
	t.Helper()
	g := openGround(t, flags...)
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	world.Must(t, g.Servers.Start(ctx))
	return g
}

// options are what a system has otherwise than the development system.
type options struct {
	after       string // accept.after, "" for the default
	batch       int    // orders.batch, 0 for the default
	maxLag      string // orders.max_lag, "" for the default
	maxOutage   string // orders.max_outage, the same
	claimIdle   string // outbox.claim_idle, "" for what a test needs not wait for
	ownConsumer bool   // the consumer role is a process of its own
	linked      bool   // all links have a proxy
	several     bool   // there are several of each process
	// Servers of the system's own, of which only that one runs; nil: the ground's.
	redis, mysql, rabbitmq *stack.Servers
	extra                  string         // lines of the gateway's configuration
	backend                string         // lines of the backends' configurations
	bin                    string         // where the binaries are; "" for the ground's
	wallOff                map[string]int // seconds by which the wall clock of each binary is off
}

// system is a world that is to suffer.
type system struct {
	*world.World
	options
	mu   sync.Mutex   // guards Books
	uids atomic.Int64 // that were handed out
	turn atomic.Int64 // of the gateways, where there are several
}

// smallBatch is for many batches, each of which can be hit.
const smallBatch = 20

// newSystem starts a system on a ground of its own, which is built with these flags. Its batches are small, so that there are many.
func newSystem(t *testing.T, flags ...string) *system {
	return newGround(t, flags...).system(t, options{batch: smallBatch})
}

// system starts a system.
func (g *ground) system(t *testing.T, o options) *system {
	t.Helper()
	for _, own := range []**stack.Servers{&o.redis, &o.mysql, &o.rabbitmq} {
		*own = cmp.Or(*own, g.Servers)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	w := &system{options: o, World: g.New(t, ctx, world.Options{Name: "faults", Bin: o.bin, Stores: world.StoresOf(o.redis, o.mysql, o.rabbitmq),
		Linked: o.linked, Consumer: o.ownConsumer, Several: o.several, Limits: limits(1), Gateway: o.extra,
		Backend: fmt.Sprintf("accept: {after: %s}\norders: {batch: %d, max_lag: %s, max_outage: %s}\noutbox: {claim_idle: %s}\ncarts: {abandoned_after: 1s}\n%s",
			cmp.Or(o.after, "fsync"), cmp.Or(o.batch, 200), cmp.Or(o.maxLag, "10s"), cmp.Or(o.maxOutage, "10s"), cmp.Or(o.claimIdle, map[string]string{"": "1s", "confirm": "4s"}[o.after]), o.backend)})}
	w.Run(t, ctx)
	return w
}

// limits are the gateway's; generation makes them differ. Rude clients come from another address than this one.
func limits(generation int) string {
	return fmt.Sprintf(`{order: {rate: 20, burst: 20, max_keys: %d}, ip_exempt: ["127.0.0.1/32"]}`, 1000000+generation)
}

// look is what the stores say of a sale.
func (w *system) look(ctx context.Context, sale int64) (oracle.View, error) {
	w.mu.Lock()
	books := w.Books
	w.mu.Unlock()
	return books.Look(ctx, sale)
}

// primary makes another Redis the one that counts.
func (w *system) primary(c rueidis.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Books.Redis = c
}

// judge makes another MySQL the one that counts.
func (w *system) judge(db *sql.DB) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Books.DB.Close() // of a server that is gone
	w.Books.DB = db
}

// process is one of the programs, which dies at the failpoint ("" for none).
func (w *system) process(name, failpoint string, args ...string) *stack.Process {
	var env []string
	if failpoint != "" {
		env = append(env, "FLOODGATE_FAILPOINT="+failpoint)
	}
	if off := w.wallOff[name]; off != 0 {
		env = append(env, fmt.Sprintf("%s=%d", wallVar, off))
	}
	return w.Process(name, env, args...)
}

// mint makes tokens for n buyers that nobody was before, of uid first, first+1, ...
func (w *system) mint(n int) (first int, tokens []string, err error) {
	first = int(w.uids.Add(int64(n))) - n + 1
	tokens, err = w.Mint(context.Background(), first, first+n-1)
	return first, tokens, err
}

// shopperWaits is how long a shopper waits for an answer before asking again. An operator waits as long as the client does.
const shopperWaits = 10 * time.Second

func (w *system) do(ctx context.Context, method, url, token, key, body string) world.Answer {
	ctx, cancel := context.WithTimeout(ctx, shopperWaits)
	defer cancel()
	return w.Client.Do(ctx, world.Call{Method: method, URL: url, Token: token, Key: key, Body: body})
}

func (w *system) admin(ctx context.Context, method, path, key, body string) world.Answer {
	return w.Client.Do(ctx, world.Call{Method: method, URL: w.AdminURL(path), Token: development.AdminToken, Key: key, Body: body})
}

// PublicURL is where the next shopper finds a gateway: of several, each in turn.
func (w *system) PublicURL() string {
	if len(w.Fronts) == 0 {
		return w.World.PublicURL()
	}
	return w.Fronts[w.turn.Add(1)%int64(len(w.Fronts))]
}

// ordersURL is where orders of a sale are pressed.
func (w *system) ordersURL(sale int64) string {
	return fmt.Sprintf("%s/v1/sales/%d/orders", w.PublicURL(), sale)
}

// saleBody is a sale that is open for three hours.
func saleBody(title string, stock int64, payWithin time.Duration) string {
	now := time.Now()
	return world.SaleBody(title, stock, now.Add(-time.Minute), now.Add(3*time.Hour), payWithin)
}

// newSale makes a sale and waits until the gateway says that it is open.
func (w *system) newSale(t *testing.T, title string, stock int64, payWithin time.Duration) int64 {
	t.Helper()
	sale := w.create(t, "/sales", saleBody(title, stock, payWithin))
	w.is(t, sale, wire.Open)
	return sale
}

// newCoupon makes a coupon campaign and waits until the gateway says that it is open.
func (w *system) newCoupon(t *testing.T, title string, total int64) int64 {
	t.Helper()
	now := time.Now()
	sale := w.create(t, "/coupons", fmt.Sprintf(`{"title":%q,"valid_from":%q,"valid_until":%q,"total":%d,"guard":"version"}`,
		title, now.Add(-time.Minute).UTC().Format(wire.TimeFormat), now.Add(3*time.Hour).UTC().Format(wire.TimeFormat), total))
	w.is(t, sale, wire.Open)
	return sale
}

// create makes what the admin API makes at a path.
func (w *system) create(t *testing.T, path, body string) int64 {
	t.Helper()
	a := w.admin(context.Background(), "POST", path, "", body)
	world.Must(t, a.Is(201))
	return a.ID
}

// closeSale closes a sale.
func (w *system) closeSale(t *testing.T, sale int64) {
	t.Helper()
	if err := w.admin(context.Background(), "POST", fmt.Sprintf("/sales/%d/close", sale), "", "").Is(200); err != nil {
		t.Errorf("close sale %d: %v", sale, err)
	}
}

// is waits until each gateway says that the sale is in this state.
func (w *system) is(t *testing.T, sale int64, state wire.SaleState) {
	t.Helper()
	fronts := w.Fronts
	if len(fronts) == 0 {
		fronts = []string{w.PublicURL()}
	}
	for _, front := range fronts {
		until(t, "the gateway says that the sale is "+string(state), func(ctx context.Context) error {
			return w.do(ctx, "GET", fmt.Sprintf("%s/v1/sales/%d", front, sale), "", "", "").Is(200, `"state":"`+string(state)+`"`)
		})
	}
}

// until asks again and again, and ends the test with the last answer when patience is over.
func until(t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	world.Until(t, context.Background(), what, patience, ok)
}

// rest waits until every equation of a sale holds, by the oracle and by the auditor, and counts. A broken promise fails the test.
func (w *system) rest(t *testing.T, sale, stock int64, log *oracle.Log) oracle.Tally {
	t.Helper()
	var v oracle.View
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := world.Await(ctx, func(ctx context.Context) error {
		seen, err := w.Balanced(ctx, sale, stock, log)
		if seen.Orders != nil { // else the stores were not to be seen
			v = seen
		}
		return err
	})
	if err != nil {
		t.Errorf("sale %d: the equations do not hold within %v: %v\nanswers: %s", sale, patience, err, log.Summary())
		w.testify(t, sale, v)
	}
	tally := v.Count(stock, log)
	if n := tally.Broken(); n > 0 {
		t.Errorf("%d promises are broken: %+v", n, tally)
	}
	return tally
}

// testify logs what tells why a sale's books do not agree: its outbox, with who holds what, the orders in doubt and their buyers' other
// ones, and what the backend is doing.
func (w *system) testify(t *testing.T, sale int64, v oracle.View) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := w.Books.Redis
	outbox, err := c.Do(ctx, c.B().Arbitrary("XINFO", "STREAM").Keys(fmt.Sprintf("%s{sale:%d}:outbox", w.Books.Prefix, sale)).Args("FULL", "COUNT", "20").Build()).ToMessage()
	t.Logf("the outbox: %v, %v", outbox.String(), err)
	said := 0
	for id, uid := range v.Reservations {
		if o, ok := v.Orders[id]; (ok && wire.OrderStatus(o.Status).Live()) || said == 20 {
			continue
		}
		said++
		for _, o := range v.Orders {
			if o.UID == uid {
				t.Logf("redis holds %s for %s, who has %+v", id, uid, o)
			}
		}
		if said <= 3 {
			w.history(t, sale, id)
		}
	}
	a := w.do(ctx, "GET", w.Ports.AdminURL()+"/debug/pprof/goroutine?debug=2", development.AdminToken, "", "")
	t.Logf("the backend's goroutines: %.100000s", a)
}

// history logs what Redis's append-only files say of an order and of its outbox entry: each command around a mention.
func (w *system) history(t *testing.T, sale int64, order string) {
	t.Helper()
	const most, around = 20, 500
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := w.Books.Redis
	held, err := c.Do(ctx, c.B().Hget().Key(fmt.Sprintf("%s{sale:%d}:orders", w.Books.Prefix, sale)).Field(order).Build()).ToString()
	t.Logf("redis holds %s: %q, %v", order, held, err)
	words := [][]byte{[]byte(order)}
	if parts := strings.Fields(held); len(parts) > 3 && parts[3] != "-" {
		words = append(words, []byte(parts[3]))
	}
	files, err := filepath.Glob(filepath.Join(w.redis.Redis.DataDir(), "appendonlydir", "*"))
	world.Must(t, err)
	for _, file := range files {
		b, err := os.ReadFile(file)
		world.Must(t, err)
		said := 0
		for at := 0; at < len(b) && said < most; said++ {
			next := -1
			for _, word := range words {
				if i := bytes.Index(b[at:], word); i >= 0 && (next < 0 || at+i < next) {
					next = at + i
				}
			}
			if next < 0 {
				break
			}
			t.Logf("%s at %d of %d: %q", filepath.Base(file), next, len(b), b[max(0, next-around):min(len(b), next+around)])
			at = next + around
		}
	}
}

// drained ends the system: then the broker must hold nothing.
func (w *system) drained(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.Drained(ctx); err != nil {
		t.Error(err)
	}
}
