//go:build servers

package standby_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/standby"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shop is a sale on real servers, and processes that make offers in it when they are told to.
type shop struct {
	t      testing.TB
	db     *sql.DB
	redis  *reserve.Store
	clk    *clock.Clock
	orders *order.Store
	line   *standby.Line
	rec    *reconcile.Reconciler
	sale   int64
}

// most wait in a line of these tests, and an offer stands for so long.
const (
	most   = 8
	accept = time.Minute
)

// newShop makes a sale; when the test ends it must balance.
func newShop(t testing.TB, o backendtest.SaleOptions) *shop {
	s := &shop{t: t, db: backendtest.MySQL(t), redis: backendtest.Redis(t)}
	s.clk = s.clockAhead(0)
	s.line, s.orders = s.process(s.clk)
	s.rec = reconcile.New(reconcile.Config{DB: s.db, Redis: s.redis, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	s.sale = backendtest.Sale(t, s.db, o)
	s.reconcile()
	t.Cleanup(func() {
		if err := backendtest.Balance(context.Background(), s.db, s.sale); err != nil {
			t.Errorf("it does not balance: %v", err)
		}
	})
	return s
}

// process is another one's line and orders.
func (s *shop) process(clk *clock.Clock) (*standby.Line, *order.Store) {
	s.t.Helper()
	reg := prometheus.NewRegistry()
	known := catalog.New(catalog.Config{DB: s.db, Redis: s.redis, Clock: clk, Log: backendtest.Log(s.t), Register: reg})
	if err := known.Refresh(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	line := standby.New(standby.Config{MaxLine: most, DB: s.db, Redis: s.redis, Catalog: known, Clock: clk, Log: backendtest.Log(s.t), Register: reg})
	orders := order.NewStore(order.Config{Intents: intent.New(intent.Config{DB: s.db, Sales: sale.Reader{DB: s.db}, Redis: s.redis, Clock: clk, Log: backendtest.Log(s.t), Register: reg, Returned: line.Wake}),
		DB: s.db, Redis: s.redis, Clock: clk, Log: backendtest.Log(s.t), Register: reg, AcceptWithin: accept, Returned: line.Wake})
	return line, orders
}

// clockAhead is the server's clock, gone on by d.
func (s *shop) clockAhead(d time.Duration) *clock.Clock {
	s.t.Helper()
	asked := time.Now()
	now, err := s.redis.Client().Now(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	clk := new(clock.Clock)
	clk.Set(now.Add(d), asked)
	return clk
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) reconcile() {
	s.t.Helper()
	s.must(s.rec.Sale(s.t.Context(), s.sale))
}

func (s *shop) newID() string { return wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale) }

func (s *shop) state() reserve.State {
	s.t.Helper()
	states, err := s.redis.States(s.t.Context(), []int64{s.sale})
	s.must(err)
	return states[0]
}

// press is the public's.
func (s *shop) press(uid string) reserve.Verdict {
	s.t.Helper()
	v, err := s.redis.Reserve(s.t.Context(), reserve.Request{Sale: s.sale, UID: uid, Quantity: 1, OrderID: s.newID(), Epoch: s.state().Epoch})
	s.must(err)
	return v
}

// buy is a press that is settled.
func (s *shop) buy(uids ...string) (ids []string) {
	s.t.Helper()
	for _, uid := range uids {
		v := s.press(uid)
		if v.Answer != lua.Reserved {
			s.t.Fatalf("%s presses: got %s, want it reserved", uid, v.Answer)
		}
		ids = append(ids, v.OrderID)
	}
	s.settle()
	return ids
}

// settle is what consumers do.
func (s *shop) settle() {
	s.t.Helper()
	entries, bad, err := s.redis.Outbox(s.t.Context(), s.sale)
	s.must(errors.Join(append(bad, err)...))
	s.must(s.orders.Settle(s.t.Context(), entries))
	s.must(s.orders.Retire(s.t.Context(), entries))
}

func (s *shop) join(uids ...string) {
	s.t.Helper()
	for _, uid := range uids {
		s.must(s.line.Join(s.t.Context(), s.sale, uid, s.newID()))
	}
}

// offer offers what there is, and settles it.
func (s *shop) offer() {
	s.t.Helper()
	for {
		n, err := s.line.Offer(s.t.Context(), s.sale)
		s.must(err)
		if n == 0 {
			break
		}
		s.settle()
	}
	s.settle()
}

func (s *shop) look(uid string) wire.Standby {
	s.t.Helper()
	at, err := s.line.Look(s.t.Context(), s.sale, uid, false)
	s.must(err)
	return at
}

// stands is "waiting 2", "offered" and so on, with the reason.
func (s *shop) stands(uid string) string {
	s.t.Helper()
	at := s.look(uid)
	text := string(at.State)
	if at.Place != nil {
		text += fmt.Sprintf(" %d", *at.Place)
	}
	if at.Reason != "" {
		text += " " + at.Reason
	}
	if offered := at.State == wire.StandbyOffered || at.State == wire.StandbyAccepted || at.State == wire.StandbyLapsed; offered != (at.Offer != nil) && at.State != wire.StandbyLeft {
		s.t.Errorf("%s is %s with the offer %v", uid, at.State, at.Offer)
	}
	return text
}

func (s *shop) want(stands map[string]string) {
	s.t.Helper()
	for uid, want := range stands {
		if got := s.stands(uid); got != want {
			s.t.Errorf("%s: got %q, want %q", uid, got, want)
		}
	}
}

// stood is how long the offer that somebody has stands, from the COMMIT that made it.
func (s *shop) stood(uid string) time.Duration {
	s.t.Helper()
	var decided time.Time
	at := s.look(uid)
	s.must(s.db.QueryRow(`SELECT decided_at FROM orders WHERE id = ?`, at.Offer.OrderID).Scan(&decided))
	return at.Offer.AcceptBefore.Sub(decided)
}

func (s *shop) cancel(uid, id string) {
	s.t.Helper()
	_, err := s.orders.Cancel(s.t.Context(), uid, id)
	s.must(err)
}

// expire ends orders whose time to pay is over by a clock that is ahead by d.
func (s *shop) expire(d time.Duration) {
	s.t.Helper()
	_, orders := s.process(s.clockAhead(d))
	for {
		n, err := orders.Expire(s.t.Context())
		s.must(err)
		if n == 0 {
			return
		}
	}
}

// leave leaves the line, as the api does.
func (s *shop) leave(uid string) {
	s.t.Helper()
	id, err := s.line.Leave(s.t.Context(), s.sale, uid)
	s.must(err)
	if id != "" {
		s.cancel(uid, id)
	}
}

func (s *shop) exec(query string, args ...any) {
	s.t.Helper()
	_, err := s.db.ExecContext(s.t.Context(), query, args...)
	s.must(err)
}

// balanced audits the sale, with a bound of a millisecond: what is in flight is a finding.
func (s *shop) balanced() {
	s.t.Helper()
	for _, f := range s.findings() {
		s.t.Error(f)
	}
}

func (s *shop) findings() []audit.Finding {
	s.t.Helper()
	r, err := audit.New(audit.Config{DB: s.db, Redis: s.redis, QueuedBound: time.Millisecond}).Sale(s.t.Context(), s.sale)
	s.must(err)
	return r.Findings
}

// request is an offerer's.
func request(sale, epoch int64, uid, id string) reserve.Request {
	return reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: id, Key: wire.OfferKey(id), Epoch: epoch, Line: true}
}
