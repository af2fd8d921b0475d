//go:build servers

package event_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/cart"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/payment"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/wire"
)

var secret = conf.Secret("whsec_" + base64.StdEncoding.EncodeToString([]byte("the-secret-of-an-endpoint-in-tests")))

const providerSecret = "the-secret-of-acme-is-at-least-32-bytes"

// shop is what makes events.
type shop struct {
	t        *testing.T
	dsn      string
	db       *sql.DB
	redis    *reserve.Store
	clk      *clock.Clock
	events   *event.Log
	reg      *prometheus.Registry // of the newest sender
	orders   *order.Store
	carts    *cart.Carts
	payments *payment.Webhooks
}

func newShop(t *testing.T, endpoints ...event.Endpoint) *shop {
	t.Helper()
	s := &shop{t: t, dsn: backendtest.MySQLDSN(t), redis: backendtest.Redis(t), clk: new(clock.Clock), events: event.NewLog(endpoints)}
	s.db = backendtest.OpenMySQL(t, s.dsn, 16)
	if _, err := store.Migrate(t.Context(), s.db); err != nil {
		t.Fatal(err)
	}
	log, reg := backendtest.Log(t), prometheus.NewRegistry()
	intents := intent.New(intent.Config{DB: s.db, Sales: sale.Reader{DB: s.db}, Redis: s.redis, Clock: s.clk, Log: log, Register: reg})
	s.orders = order.NewStore(order.Config{DB: s.db, Redis: s.redis, Intents: intents, Events: s.events, Clock: s.clk, Log: log, Register: reg})
	s.carts = cart.New(cart.Config{DB: s.db, SKUs: sku.NewCache(sku.Config{DB: s.db, Redis: s.redis.Client(), Log: log, Register: reg}), Events: s.events, Clock: s.clk,
		Log: log, Register: reg, PayWithin: time.Minute, MaxInFlight: 10})
	s.payments = payment.New(payment.Config{DB: s.db, Orders: s.orders, Events: s.events, Clock: s.clk, Log: log, Register: reg,
		Providers: []payment.Provider{{Name: "acme", Secrets: []string{providerSecret}}}})
	return s
}

func (s *shop) sale(o backendtest.SaleOptions) int64 {
	s.t.Helper()
	id := backendtest.Sale(s.t, s.db, o)
	backendtest.Load(s.t, s.db, s.redis, id)
	return id
}

// ordered settles orders of n buyers in one batch.
func (s *shop) ordered(sale int64, n int) (ids []string) {
	s.t.Helper()
	var batch []queued.Entry
	for range n {
		id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)
		ids = append(ids, id)
		batch = append(batch, queued.Entry{ID: id, Sale: sale, UID: "u" + id[:30], Quantity: 1, Slots: "1", Epoch: 1, At: time.Now().UnixMilli()})
	}
	if err := s.orders.Settle(s.t.Context(), batch); err != nil {
		s.t.Fatal(err)
	}
	return ids
}

func (s *shop) pay(id string) {
	s.t.Helper()
	var uid string
	err := s.db.QueryRowContext(s.t.Context(), `SELECT uid FROM orders WHERE id = ?`, id).Scan(&uid)
	if err == nil {
		_, err = s.orders.Pay(s.t.Context(), uid, id)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) cancel(id string) {
	s.t.Helper()
	if _, err := s.orders.Cancel(s.t.Context(), "", id); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.db.ExecContext(s.t.Context(), query, args...); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

func (s *shop) moments() {
	s.t.Helper()
	for n := 1; n > 0; {
		var err error
		if n, err = s.events.Moments(s.t.Context(), s.db, s.clk.Now().Truncate(time.Millisecond)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// written are the types of a ref's events, in their order.
func (s *shop) written(ref string) string {
	s.t.Helper()
	list, err := store.Column[string](s.t.Context(), s.db, `SELECT type FROM events WHERE ref = ? ORDER BY id`, ref)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Join(list, " ")
}

// sender starts a Sender, which ends with the test, or by the function.
func (s *shop) sender(endpoints *event.Log) (*event.Sender, func()) {
	s.t.Helper()
	s.reg = prometheus.NewRegistry()
	sender := event.NewSender(event.SenderConfig{DB: s.db, Events: endpoints, Clock: s.clk, Log: backendtest.Log(s.t), Register: s.reg, Keep: time.Hour, Private: true}).
		Poll(5 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sender.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(stop)
	return sender, stop
}

// got is one delivery as the shop's endpoint took it.
type got struct {
	id, kind, ref, body string
}

// receiver is an endpoint of the shop's.
type receiver struct {
	event.Endpoint
	t      *testing.T
	answer func(got) int // of what is verified; nil: 204

	mu  sync.Mutex
	all []got
	new chan struct{} // gets a token after each delivery, where there is room
}

func newReceiver(t *testing.T, name string, answer func(got) int) *receiver {
	t.Helper()
	r := &receiver{t: t, answer: answer, new: make(chan struct{}, 1)}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.Endpoint = event.Endpoint{Name: name, URL: server.URL + "/hook", Secret: secret}
	return r
}

// ServeHTTP verifies as a shop does, by the standard's library.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // the sender was killed
	}
	hook, err := standardwebhooks.NewWebhook(secret.Reveal())
	if err == nil {
		err = hook.VerifyIgnoringTimestamp(body, q.Header) // tests move the clock
	}
	var in struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      struct {
			Order string `json:"order_id,omitempty"`
			Sale  int64  `json:"sale_id"`
		} `json:"data"`
	}
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err != nil || q.Method != http.MethodPost || q.Header.Get("Content-Type") != "application/json" || in.Timestamp.IsZero() {
		r.t.Errorf("a delivery that is not right: %v, %s %v\n%s", err, q.Method, q.Header, body)
	}
	g := got{q.Header.Get("webhook-id"), in.Type, cmp.Or(in.Data.Order, event.SaleRef(in.Data.Sale)), string(body)}
	status := http.StatusNoContent
	if r.answer != nil {
		status = r.answer(g)
	}
	if status/100 == 2 {
		r.mu.Lock()
		r.all = append(r.all, g)
		r.mu.Unlock()
		select {
		case r.new <- struct{}{}:
		default:
		}
	}
	w.WriteHeader(status)
}

func (r *receiver) taken() []got {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// wait waits until the endpoint took n deliveries.
func (r *receiver) wait(n int) []got {
	r.t.Helper()
	patience := time.After(2 * time.Minute)
	for {
		if all := r.taken(); len(all) >= n {
			return all
		}
		select {
		case <-r.new:
		case <-patience:
			r.t.Fatalf("%s: got %d deliveries, want %d", r.Name, len(r.taken()), n)
		}
	}
}

// settled waits until no event of the endpoint waits, and returns the deliveries by state.
func (s *shop) settled(endpoint string) map[event.State]int {
	s.t.Helper()
	return s.until(endpoint, func(by map[event.State]int) bool { return by[event.Waiting] == 0 })
}

// until waits until so many events of an endpoint are in each state.
func (s *shop) until(endpoint string, enough func(map[event.State]int) bool) (by map[event.State]int) {
	s.t.Helper()
	s.eventually(func() error {
		list, err := event.List(s.t.Context(), s.db, event.Filter{Endpoint: endpoint}, 1<<62, 1<<20)
		if err != nil {
			s.t.Fatal(err)
		}
		by = map[event.State]int{}
		for _, d := range list {
			by[d.State]++
		}
		if !enough(by) {
			return fmt.Errorf("%s: still %v", endpoint, by)
		}
		return nil
	})
	return by
}

// eventually waits until something holds.
func (s *shop) eventually(holds func() error) {
	s.t.Helper()
	patience := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-patience:
			s.t.Fatal(err)
		}
	}
}

// documented are the example bodies of docs/events.md, by type.
func documented(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, part := range strings.Split(string(page), "```json\n")[1:] {
		body, _, _ := strings.Cut(part, "```")
		var in struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(body), &in); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		found[in.Type] = body
	}
	return found
}

// shape is the members of a body, and the kinds of their values.
func shape(t *testing.T, body string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	var walk func(at string, v any) []string
	walk = func(at string, v any) []string {
		m, ok := v.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s %T", at, v)}
		}
		var all []string
		for k, v := range m {
			all = append(all, walk(at+"/"+k, v)...)
		}
		return all
	}
	all := walk("", v)
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// orderOf is the order of a cart's answer.
func orderOf(t *testing.T, answer []byte) string {
	t.Helper()
	var a wire.CartAnswer
	if err := json.Unmarshal(answer, &a); err != nil || a.OrderID == nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return *a.OrderID
}
