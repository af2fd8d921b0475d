//go:build servers

package reconcile

import (
	"errors"
	"testing"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// archive makes a sale archived in MySQL, as the admin API does; its keys stay where they are.
func (s *system) archive(sale int64) {
	s.t.Helper()
	for _, statement := range []string{
		`UPDATE sales SET archived_at = UTC_TIMESTAMP(3), closed_at = UTC_TIMESTAMP(3) WHERE id = ?`,
		`UPDATE sale_stock SET epoch = epoch + 1, token = token + 1 WHERE sale_id = ?`,
	} {
		if _, err := s.db.ExecContext(s.t.Context(), statement, sale); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *system) forgets(sale int64) {
	s.t.Helper()
	if _, err := s.intents.Run(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	snap, err := s.redis.Snapshot(s.t.Context(), sale)
	if err != nil || snap.Keys != 0 {
		s.t.Errorf("sale %d has %d keys, %v; want none", sale, snap.Keys, err)
	}
	var open int
	if err := s.db.QueryRowContext(s.t.Context(), `SELECT COUNT(*) FROM intents WHERE done_at IS NULL`).Scan(&open); err != nil || open != 0 {
		s.t.Errorf("%d intents are open, %v", open, err)
	}
}

// Row B6: a sale that is archived is not brought back, neither by who asks for it nor by a reconciler that slept through
// the archive, wherever it was.
func TestAnArchivedSaleIsNotBroughtBack(t *testing.T) {
	t.Attr("row", "B6")
	for slept := range 5 {
		s := newSystem(t, false)
		sale, waiting := s.history()
		s.settle(waiting)
		a := &attempt{r: s.rec, sale: sale}
		steps := []func() error{
			func() error { return a.begin(t.Context()) }, func() error { return a.shut(t.Context()) }, func() error { return a.read(t.Context()) },
			func() error { return a.write(t.Context()) }, func() error { return a.open(t.Context()) },
		}
		for _, step := range steps[:slept] {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		s.archive(sale)
		backendtest.Wipe(t, s.redis, sale)
		for i, step := range steps[slept:] {
			err := step()
			if err == nil && slept+i != 1 { // to close a gate that is gone is all that it can do
				t.Errorf("asleep before step %d, step %d: got no error", slept, slept+i)
			}
			if err != nil {
				break
			}
		}
		if err := s.rec.Sale(t.Context(), sale); !errors.Is(err, ErrArchived) {
			t.Errorf("asleep before step %d, then anew: got %v, want ErrArchived", slept, err)
		}
		if st := s.state(sale); st.Gate == lua.GateOpen || st.Gate == lua.GateAdopt {
			t.Errorf("asleep before step %d: the sale is in Redis: %+v", slept, st)
		}
		s.forgets(sale)
	}
}

// A Redis that comes back from a copy older than the archive has the sale, open and with orders that were settled since: it
// is shut before anybody may reserve, and taken out again.
func TestARestartedRedisForgetsArchivedSales(t *testing.T) {
	s := newSystem(t, false)
	over, live := s.sale(backendtest.SaleOptions{Stock: 5}), s.sale(backendtest.SaleOptions{Stock: 5})
	e := s.press(over, "ann", 1, "k")
	if err := s.orders.Settle(t.Context(), []queued.Entry{e}); err != nil { // and not retired, in that copy
		t.Fatal(err)
	}
	if _, err := s.orders.Pay(t.Context(), "ann", e.ID); err != nil {
		t.Fatal(err)
	}
	s.archive(over)
	s.flush()
	stop := background(t, s.rec.Keep)
	s.rec.Wake()
	s.reserves()
	if st := s.state(over); st.Gate != lua.GateShut {
		t.Errorf("got %+v, want its gate shut", st)
	}
	s.opens(live)
	stop()
	s.forgets(over)
	if got := s.status(e.ID); got != string(wire.Paid) {
		t.Errorf("the order is %s", got)
	}
}

// An order that both Redis and the queue had lost, and that comes when its sale is archived, is rejected, and holds nobody up.
func TestAnOrderOfAnArchivedSaleIsRejected(t *testing.T) {
	s := newSystem(t, false)
	over, live := s.sale(backendtest.SaleOptions{Stock: 5}), s.sale(backendtest.SaleOptions{Stock: 5})
	known, lost, other := s.press(over, "ann", 1, "k"), s.press(over, "bob", 1, ""), s.press(live, "cyd", 1, "")
	if err := s.orders.Settle(t.Context(), []queued.Entry{known}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.orders.Cancel(t.Context(), "ann", known.ID); err != nil {
		t.Fatal(err)
	}
	s.archive(over)
	backendtest.Wipe(t, s.redis, over)
	s.settle(known, lost, other)
	for id, want := range map[string]wire.OrderStatus{known.ID: wire.Cancelled, lost.ID: wire.Rejected, other.ID: wire.PendingPayment} {
		if got := s.status(id); got != string(want) {
			t.Errorf("order %s is %s, want %s", id, got, want)
		}
	}
	s.forgets(over)
}
