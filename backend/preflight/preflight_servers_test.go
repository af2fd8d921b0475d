//go:build servers

package preflight_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/preflight"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// ground is a sale on the real servers, with one that reads its outbox and one that consumes its queue.
type ground struct {
	preflight.Sale
	t       *testing.T
	dsn     string
	reports *gateways.Store
}

// report lets two gateways report now, and then lists the reports, the second one changed.
func (g *ground) report(change func(*gateways.Gateway)) func(context.Context) ([]gateways.Gateway, error) {
	return func(ctx context.Context) ([]gateways.Gateway, error) {
		for _, name := range []string{"gw1:8080", "gw2:8080"} {
			err := g.reports.Take(ctx, wire.GatewayReport{Name: name, Life: "1", Version: "v1", At: wire.At(time.Now()), Generation: 1, Hash: "abc", MaxConnections: 100, MaxFiles: 1000})
			if err != nil {
				return nil, err
			}
		}
		all, err := g.reports.List(ctx)
		if err == nil && change != nil {
			change(&all[1])
		}
		return all, err
	}
}

func newGround(t *testing.T, brokered bool) *ground {
	t.Helper()
	g := &ground{t: t, dsn: backendtest.MySQLDSN(t)}
	db, store := backendtest.OpenMySQL(t, g.dsn, 4), backendtest.Redis(t)
	backendtest.Migrate(t, db)
	g.System = &preflight.System{DB: db, Redis: store, Queued: brokered, MaxLag: time.Hour, MaxConnections: 1, MaxOpen: 1}
	ac := audit.Config{DB: db, Redis: store, QueuedBound: time.Hour}
	if brokered {
		g.Broker = g.openBroker(backendtest.AMQP(t))
		ac.Broker = g.Broker
	}
	g.ID = backendtest.Sale(t, db, backendtest.SaleOptions{})
	backendtest.Load(t, db, store, g.ID)
	g.Audit, g.QueuedBound, g.MaxQueued = audit.New(ac), 30*time.Second, 100
	g.reports = gateways.New(store.Client(), new(clock.Clock))
	g.Gateways = g.report(nil)
	return g
}

func (g *ground) openBroker(url string) *broker.Broker {
	g.t.Helper()
	b, err := broker.Open(broker.Config{URL: url, ManagementURL: os.Getenv("AMQP_MANAGEMENT_URL"), Partitions: 1, Log: backendtest.Log(g.t), Register: prometheus.NewRegistry()})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = b.Close() })
	return b
}

// begin runs f until what it returns is called.
func (g *ground) begin(f func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := f(ctx); err != nil {
			g.t.Error(err)
		}
	})
	end = sync.OnceFunc(func() { cancel(); done.Wait() })
	g.t.Cleanup(end)
	return end
}

// read reads the outbox under a name, as another process does; what is read stays there.
func (g *ground) read(name string) (end func()) {
	g.t.Helper()
	own, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: g.Redis.Client().Prefix()}, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	r := outbox.NewReader(outbox.ReaderConfig{Redis: own, Log: backendtest.Log(g.t), Register: prometheus.NewRegistry(), Name: name, ClaimIdle: time.Hour, Live: func() []int64 { return []int64{g.ID} }})
	return g.begin(func(ctx context.Context) error {
		return r.Run(ctx, func(context.Context, []queued.Entry) error { return nil })
	})
}

func (g *ground) consume() (end func()) {
	return g.begin(func(ctx context.Context) error {
		return g.Broker.Consume(ctx, 10, time.Millisecond, broker.Handler{Settle: func(context.Context, []queued.Entry) error { return nil }, Settled: func(context.Context, []queued.Entry) {}})
	})
}

func (g *ground) look() preflight.Report {
	g.t.Helper()
	r, err := g.Look(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	if err := r.Decide(nil); err != nil {
		g.t.Fatal(err)
	}
	return r
}

// until looks until a check is as it is said, and returns it.
func (g *ground) until(name string, ok bool, says string) preflight.Check {
	g.t.Helper()
	for {
		r := g.look()
		for _, c := range r.Checks {
			if c.Name != name {
				continue
			}
			if c.OK == ok && c.Value != "" && c.Want != "" && (c.Do == "") == ok && strings.Contains(c.Value, says) {
				if r.Go && !ok {
					g.t.Errorf("%s: it is a go", name)
				}
				return c
			}
			if g.t.Context().Err() != nil || time.Now().After(g.deadline()) {
				g.t.Fatalf("got %+v, want ok %v, and %q", c, ok, says)
			}
		}
	}
}

func (g *ground) deadline() time.Time {
	if d, ok := g.t.Deadline(); ok {
		return d.Add(-10 * time.Second)
	}
	return time.Now().Add(time.Minute)
}

func (g *ground) exec(query string, args ...any) {
	g.t.Helper()
	if _, err := g.DB.ExecContext(g.t.Context(), query, args...); err != nil {
		g.t.Fatalf("%s: %v", query, err)
	}
}

// set writes a field of the sale's state into Redis.
func (g *ground) set(field, value string) {
	g.t.Helper()
	c := g.Redis.Client()
	key := fmt.Sprintf("%s{sale:%d}:state", c.Prefix(), g.ID)
	if err := c.Do(g.t.Context(), c.B().Hset().Key(key).FieldValue().FieldValue(field, value).Build()).Error(); err != nil {
		g.t.Fatal(err)
	}
}

// Everything is well, and it is a go. Each check is then made to fail on the real servers, and to succeed again.
func TestEachCheckFailsAndSucceeds(t *testing.T) {
	g := newGround(t, true)
	endReader, endConsumer := g.read("r1"), g.consume()
	g.until("readers", true, "")
	g.until("consumers", true, "")
	if r := g.look(); !r.Go || r.SaleID != g.ID || len(r.Checks) < 16 {
		t.Errorf("got %+v, want a go", r)
	}
	sales := func(set string, args ...any) func() {
		return func() { g.exec(`UPDATE sales SET `+set+` WHERE id = ?`, append(args, g.ID)...) }
	}
	in := func(d time.Duration) time.Time { return time.Now().UTC().Add(d) }
	state := func(field, value string) func() { return func() { g.set(field, value) } }
	other := func(query string, args ...any) func() { return func() { g.exec(query, args...) } }
	var ends time.Time
	if err := g.DB.QueryRowContext(t.Context(), `SELECT ends_at FROM sales WHERE id = ?`, g.ID).Scan(&ends); err != nil {
		t.Fatal(err)
	}
	whole := *g.System
	db, store := g.DB, g.Redis
	type step struct {
		name, says  string
		spoil, mend func()
	}
	reported := func(name, says string, change func(*gateways.Gateway)) step {
		return step{name, says, func() { g.Gateways = g.report(change) }, func() { g.Gateways = g.report(nil) }}
	}
	for _, c := range []step{
		{"sale", "paused", sales("paused = 1"), sales("paused = 0")},
		{"sale", "ended", sales("ends_at = ?", in(-time.Second)), sales("ends_at = ?", ends)},
		{"sale", "closed", sales("closed_at = ?", in(0)), sales("closed_at = NULL")},
		{"window", "to sell in", sales("ends_at = ?", in(20*time.Second)), sales("ends_at = ?", ends)},
		{"stock", "gate " + lua.GateShut, state("gate", lua.GateShut), state("gate", lua.GateOpen)},
		{"stock", "epoch 7", state("epoch", "7"), state("epoch", "1")},
		{"stock", "Redis: 11 units", state("total", "11"), state("total", "10")},
		{"stock", "0 of them available", state("stock", "0"), state("stock", "10")},
		{"audit", "S + |R| = T", state("stock", "9"), state("stock", "10")},
		{"limits", "orders.max_queued 9", func() { g.MaxQueued = 9 }, func() { g.MaxQueued = 10 }},
		{"descriptors", "may open", func() { g.MaxConnections = 1 << 40 }, func() { g.MaxConnections = 1 }},
		{"certificate", "expires", func() { g.Certificate = func() (time.Time, error) { return in(time.Minute), nil } }, func() { g.Certificate = func() (time.Time, error) { return in(48 * time.Hour), nil } }},
		{"certificate", "not known: no file", func() { g.Certificate = func() (time.Time, error) { return time.Time{}, errors.New("no file") } }, func() { g.Certificate = nil }},
		{"clocks", "MySQL", func() { g.DB = g.openAt(in(time.Hour)) }, func() { g.DB = db }},
		{"durability", "what is not known", func() { g.Redis = g.denied() }, func() { g.Redis = store }},
		{"schema", "version ", other(`UPDATE goose_db_version SET version_id = -version_id WHERE version_id > 1`), other(`UPDATE goose_db_version SET version_id = -version_id WHERE version_id < 0`)},
		{"dead_letters", "1", other(`INSERT INTO dead_letters (digest, queue, reason, payload, size, readable, order_id, sale_id, deliveries, first_at, last_at) VALUES ('d', 'q', 'r', 'p', 1, 0, '', 0, 1, NOW(), NOW())`),
			other(`UPDATE dead_letters SET replayed_at = NOW()`)},
		{"secrets", "admin_token", func() { g.Secrets = []string{"admin_token"} }, func() { g.Secrets = nil }},
		{"queues", "not known: rabbitmq is away", func() { g.Broker = nil }, func() { g.Broker = whole.Broker }},
		{"lag", "1 orders are queued", func() { g.press(); g.MaxLag = 2 * time.Nanosecond }, func() { g.MaxLag = time.Hour }},
		{"readers", "0 connections", endReader, func() { g.read("r2") }},
		{"consumers", "0 consumers", endConsumer, func() { g.consume() }},
		reported("gateways", "gw2:8080 is silent", func(r *gateways.Gateway) { r.HeardAt = wire.At(in(-20 * time.Second)) }),
		reported("gateways", "never received", func(r *gateways.Gateway) { r.FeedAgeMS = -1 }),
		reported("gateways", "feed that is 6s old", func(r *gateways.Gateway) { r.FeedAgeMS = 6000 }),
		reported("gateways", "a clock that is", func(r *gateways.Gateway) { r.At = wire.At(r.HeardAt.Add(-3 * time.Second)) }),
		reported("gateway_versions", "v1: gw1:8080; v2: gw2:8080", func(r *gateways.Gateway) { r.Version = "v2" }),
		reported("gateway_configurations", "abc: gw1:8080; def: gw2:8080", func(r *gateways.Gateway) { r.Hash = "def" }),
		reported("gateway_connections", "gw2:8080 is full", func(r *gateways.Gateway) { r.Connections = 100 }),
		reported("gateway_connections", "may open 100 files", func(r *gateways.Gateway) { r.MaxFiles = 100 }),
		{"gateway_connections", "0 of 200", func() { g.Shoppers = 201 }, func() { g.Shoppers = 200 }},
		reported("gateway_certificates", "gw2:8080's certificate expires", func(r *gateways.Gateway) { at := wire.At(in(time.Minute)); r.TLSExpiresAt = &at }),
		reported("gateway_certificates", "certificate for the backends expires", func(r *gateways.Gateway) { at := wire.At(in(time.Minute)); r.BackendTLSExpiresAt = &at }),
		reported("gateway_certificates", "login service's keys", func(r *gateways.Gateway) { at := wire.At(in(-26 * time.Hour)); r.JWKSReadAt = &at }),
		{"gateway_versions", "not known: no gateway reports", func() { g.Gateways = func(context.Context) ([]gateways.Gateway, error) { return nil, nil } }, func() { g.Gateways = g.report(nil) }},
	} {
		c.spoil()
		g.until(c.name, false, c.says) // under load it may first say that there is no answer in time
		c.mend()
		g.until(c.name, true, "")
	}
	if r := g.look(); !r.Go {
		t.Errorf("got %+v, want a go", r)
	}
}

// openAt is MySQL with another time.
func (g *ground) openAt(at time.Time) *sql.DB {
	return backendtest.OpenMySQL(g.t, g.dsn+fmt.Sprintf("?timestamp=%d", at.Unix()), 4)
}

// denied is Redis as a user sees it who may not read its settings.
func (g *ground) denied() *reserve.Store {
	g.t.Helper()
	c := g.Redis.Client()
	user := strings.TrimSuffix(c.Prefix(), ":")
	if err := c.Do(g.t.Context(), c.B().AclSetuser().Username(user).Rule("on", ">secret", "~*", "&*", "+@all", "-config").Build()).Error(); err != nil {
		g.t.Fatal(err)
	}
	s, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Username: user, Password: "secret", Prefix: c.Prefix()}, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		s.Close()
		if err := c.Do(context.Background(), c.B().AclDeluser().Username(user).Build()).Error(); err != nil {
			g.t.Error(err)
		}
	})
	return s
}

func (g *ground) press() {
	g.t.Helper()
	v, err := g.Redis.Reserve(g.t.Context(), reserve.Request{Sale: g.ID, UID: "ann", Quantity: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), g.ID), Epoch: 1})
	if err != nil || v.Answer != lua.Reserved {
		g.t.Fatalf("got %+v, %v", v, err)
	}
}

// A queue that somebody else has declared, of another kind, is a no-go until it is deleted.
func TestAQueueOfAnotherKind(t *testing.T) {
	g := newGround(t, false)
	url := backendtest.AMQP(t)
	queue := "/queues/" + url[strings.LastIndexByte(url, '/')+1:] + "/" + broker.QueueName(0)
	if err := backendtest.Management(t.Context(), t, "PUT", queue, `{"durable":true,"arguments":{"x-queue-type":"classic"}}`); err != nil {
		t.Fatal(err)
	}
	g.Queued, g.Broker = true, g.openBroker(url)
	g.until("queues", false, "PRECONDITION_FAILED")
	if err := backendtest.Management(t.Context(), t, "DELETE", queue, ""); err != nil {
		t.Fatal(err)
	}
	if got := g.until("queues", true, ""); got.Value != "1 quorum queue, 1 member each" {
		t.Errorf("got %+v", got)
	}
}

// Without a broker the outbox is the queue. Stores that are away are a no-go of all that needs them, not an error.
func TestStoresThatAreAway(t *testing.T) {
	g := newGround(t, false)
	g.read("r1")
	g.until("readers", true, "")
	if r := g.look(); !r.Go {
		t.Errorf("got %+v, want a go", r)
	}
	if err := g.DB.Close(); err != nil {
		t.Fatal(err)
	}
	r := g.look()
	unknown := map[string]bool{}
	for _, c := range r.Checks {
		unknown[c.Name] = !c.OK && strings.HasPrefix(c.Value, "not known: ") && c.Do != ""
	}
	for _, name := range []string{"sale", "window", "stock", "audit", "limits", "clocks", "schema", "lag", "dead_letters"} {
		if !unknown[name] {
			t.Errorf("%s is not unknown without MySQL: %+v", name, r.Checks)
		}
	}
	if unknown["readers"] || r.Go {
		t.Errorf("got %+v", r)
	}
	g.DB, g.Redis = nil, nil
	if r := g.look(); r.Go || len(r.Checks) == 0 {
		t.Errorf("got %+v", r)
	}
}

func TestASaleThatThereIsNot(t *testing.T) {
	g := newGround(t, false)
	g.ID++
	var unknown *sale.NotFoundError
	if _, err := g.Look(t.Context()); !errors.As(err, &unknown) {
		t.Errorf("got %v, want that there is none", err)
	}
}
