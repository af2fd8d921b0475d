//go:build servers

package cart

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// shop is carts on the real stores, in one process of several.
type shop struct {
	*Carts
	t       *testing.T
	redis   *reserve.Store
	orders  *order.Store
	intents *intent.Runner
	reader  *order.Reader
}

func config() Config {
	return Config{PayWithin: time.Minute, AbandonedAfter: 0, MaxInFlight: 1000}
}

func newShop(t *testing.T) *shop {
	t.Helper()
	return shopOn(t, backendtest.MySQL(t), backendtest.Redis(t), config())
}

// shopOn is another process on the same stores.
func shopOn(t *testing.T, db *sql.DB, redis *reserve.Store, c Config) *shop {
	t.Helper()
	clk, log, reg := new(clock.Clock), backendtest.Log(t), prometheus.NewRegistry()
	cache := sku.NewCache(sku.Config{DB: db, Redis: redis.Client(), Log: log, Register: reg})
	c.DB, c.SKUs, c.Clock, c.Log, c.Register = db, cache, clk, log, reg
	intents := intent.New(intent.Config{DB: db, Sales: sale.Reader{DB: db}, Redis: redis, Clock: clk, Log: log, Register: reg})
	return &shop{Carts: New(c), t: t, redis: redis, intents: intents,
		orders: order.NewStore(order.Config{Intents: intents, DB: db, Redis: redis, Clock: clk, Log: log, Register: reg}), reader: order.NewReader(order.ReaderConfig{DB: db, Redis: redis, Log: log, Register: reg})}
}

// behind is a shop whose connections to MySQL go through a Link.
func behind(t *testing.T) (*shop, *netfault.Link) {
	t.Helper()
	dsn := backendtest.MySQLDSN(t)
	direct := backendtest.OpenMySQL(t, dsn, 4)
	if _, err := store.Migrate(t.Context(), direct); err != nil {
		t.Fatal(err)
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cut := netfault.New(t, c.Addr)
	c.Addr = cut.Addr()
	return shopOn(t, backendtest.OpenMySQL(t, c.FormatDSN(), 4), backendtest.Redis(t), config()), cut
}

// slowRedis is another connection to the same Redis, through a Link.
func slowRedis(t *testing.T, s *shop) (*reserve.Store, *netfault.Link) {
	t.Helper()
	cut := netfault.New(t, os.Getenv("REDIS_ADDR"))
	redis, err := reserve.Open(redis.Config{Addrs: []string{cut.Addr()}, Prefix: s.redis.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.must(redis.Client().Begin(t.Context()))
	t.Cleanup(redis.Close)
	return redis, cut
}

func (s *shop) sku(units int64) int64 {
	s.t.Helper()
	return backendtest.SKU(s.t, s.db, units, 100, "EUR")
}

// lines is a cart: sku, quantity, sku, quantity, ...
func lines(pairs ...int64) []wire.CartItem {
	var items []wire.CartItem
	for pair := range slices.Chunk(pairs, 2) {
		items = append(items, wire.CartItem{SKU: pair[0], Quantity: pair[1]})
	}
	return items
}

func (s *shop) place(uid, key string, items []wire.CartItem) wire.CartAnswer {
	s.t.Helper()
	body, _, err := s.Place(s.t.Context(), uid, key, items)
	if err != nil {
		s.t.Fatalf("cart of %s: %v", uid, err)
	}
	return read(s.t, body)
}

func read(t *testing.T, body []byte) wire.CartAnswer {
	t.Helper()
	var a wire.CartAnswer
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return a
}

// codes are what became of the lines, in short: "" is ok.
func codes(a wire.CartAnswer) (list []wire.CartCode) {
	for _, r := range a.Results {
		if r.OK != (r.Code == "") {
			return []wire.CartCode{wire.CartCode(fmt.Sprintf("%+v", r))}
		}
		list = append(list, r.Code)
	}
	return list
}

func (s *shop) want(a wire.CartAnswer, want ...wire.CartCode) {
	s.t.Helper()
	if got := codes(a); !slices.Equal(got, want) {
		s.t.Errorf("got %q, want %q", got, want)
	}
	if ordered := slices.Contains(want, ""); ordered != (a.OrderID != nil) {
		s.t.Errorf("order %v, and some line is ordered: %v", a.OrderID, ordered)
	}
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) exec(query string, args ...any) {
	s.t.Helper()
	_, err := s.db.ExecContext(s.t.Context(), query, args...)
	s.must(err)
}

func (s *shop) count(query string, args ...any) (n int64) {
	s.t.Helper()
	s.must(s.db.QueryRowContext(s.t.Context(), query, args...).Scan(&n))
	return n
}

func (s *shop) sweep() int {
	s.t.Helper()
	n, err := s.Sweep(s.t.Context())
	s.must(err)
	return n
}

// rest does what the timer does until there is nothing to do.
func (s *shop) rest() {
	s.t.Helper()
	for n := 1; n > 0; {
		done, err := s.intents.RunSKUs(s.t.Context())
		s.must(err)
		n = done + s.sweep()
	}
}

// balanced is what a SKU has once everything in flight is over, by the test's own look and by the auditor's.
func (s *shop) balanced(sku int64, available, locked, sold int64) {
	s.t.Helper()
	if got, want := backendtest.SKUBalanced(s.t, s.db, s.redis.Client(), sku), (backendtest.Units{Available: available, Locked: locked, Sold: sold}); got != want {
		s.t.Errorf("SKU %d: got %+v, want %+v", sku, got, want)
	}
	s.audited(sku)
}

func (s *shop) audited(sku int64) {
	s.t.Helper()
	r, err := audit.New(audit.Config{DB: s.db, Redis: s.redis, QueuedBound: time.Second}).SKU(s.t.Context(), sku)
	s.must(err)
	if !r.Balanced {
		s.t.Errorf("SKU %d: the auditor says %+v", sku, r)
	}
}

// begun is a request whose process died, or sleeps, after it locked units in Redis.
func (s *shop) begun(uid, key string, items []wire.CartItem) *request {
	s.t.Helper()
	r, err := s.begin(s.t.Context(), uid, key, items)
	s.must(err)
	s.must(s.lock(s.t.Context(), r))
	return r
}

// reduce locks units under an order id, as a process does that slept for long.
func (s *shop) reduce(order string, skuID, units int64) {
	s.t.Helper()
	if _, err := s.skus.Lock(s.t.Context(), order, []sku.Line{{SKU: skuID, Units: units}}); err != nil {
		s.t.Fatal(err)
	}
}

// empty makes Redis lose everything.
func (s *shop) empty() {
	s.t.Helper()
	c := s.redis.Client()
	keys, err := c.Do(s.t.Context(), c.B().Keys().Pattern(s.redis.Client().Prefix()+"*").Build()).AsStrSlice()
	s.must(err)
	if len(keys) > 0 {
		s.must(c.Do(s.t.Context(), c.B().Del().Key(keys...).Build()).Error())
	}
}

// order reads an order as its owner does.
func (s *shop) order(uid, id string) wire.Order {
	s.t.Helper()
	o, err := s.reader.Order(s.t.Context(), uid, id, 0)
	s.must(err)
	return o
}

// settle makes an order of a sale and brings it to MySQL.
func (s *shop) settle(sale int64, uid string) {
	s.t.Helper()
	id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)
	v, err := s.redis.Reserve(s.t.Context(), reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: id, Epoch: 1})
	if err != nil || v.Answer != lua.Reserved {
		s.t.Fatalf("got %+v, %v", v, err)
	}
	snap, err := s.redis.Snapshot(s.t.Context(), sale)
	s.must(err)
	s.must(errors.Join(s.orders.Settle(s.t.Context(), snap.Outbox), s.orders.Retire(s.t.Context(), snap.Outbox)))
}

func newID() string { return wire.NewCartOrderID(uuid.Must(uuid.NewV7()).String()) }
