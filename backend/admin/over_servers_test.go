//go:build servers

package admin

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/shared/clock"
)

// later is another process's Admin, by whose clock it is later.
func (o *office) later(by time.Duration) *Admin {
	o.t.Helper()
	c := o.Config
	c.Clock, c.Register = new(clock.Clock), prometheus.NewRegistry()
	c.Clock.Set(o.Clock.Now().Add(by), time.Now())
	return New(c)
}

// over calls ArchiveOver until there is nothing to do.
func over(t *testing.T, a *Admin, after time.Duration) {
	t.Helper()
	for range 100 {
		n, err := a.ArchiveOver(t.Context(), after)
		if err != nil {
			t.Error(err)
			return
		}
		if n == 0 {
			return
		}
	}
	t.Error("there is no end to it")
}

// closed makes a closed sale with a paid order, a cancelled one and 98 unsold units.
func (o *office) closed() adminapi.Sale {
	o.t.Helper()
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	bought, cancelled := o.press(s.ID, "ann", 1), o.press(s.ID, "bob", 1)
	o.settle(s.ID)
	if _, err := o.book.Pay(o.t.Context(), "ann", bought); err != nil {
		o.t.Fatal(err)
	}
	if _, err := o.book.Cancel(o.t.Context(), "bob", cancelled); err != nil {
		o.t.Fatal(err)
	}
	return do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/close", s.ID), "")
}

// Two timers archive what is over for long enough, each sale once, and nothing else.
func TestTimersArchiveWhatIsOver(t *testing.T) {
	o := newOffice(t, 8)
	const sales = 4
	var list []adminapi.Sale
	for range sales {
		list = append(list, o.closed())
	}
	open := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	over(t, o.later(time.Minute), 2*time.Minute)
	if n := o.count(`SELECT COUNT(*) FROM sales WHERE archived_at IS NOT NULL`); n != 0 {
		t.Fatalf("%d sales are archived before their time", n)
	}
	timers := []*Admin{o.later(3 * time.Minute), o.later(3 * time.Minute)}
	var wg sync.WaitGroup
	for _, a := range timers {
		wg.Go(func() { over(t, a, 2*time.Minute) })
	}
	wg.Wait()
	for _, s := range list {
		if got := o.sale(s.ID); got.ArchivedAt == nil || got.Total != 1 || got.Sold != 1 {
			t.Errorf("got %+v", got)
		}
		if n := o.keys(s.ID); n != 0 {
			t.Errorf("sale %d: %d keys are in Redis", s.ID, n)
		}
		if n := o.count(`SELECT COUNT(*) FROM audit_log WHERE action = 'sale.archive' AND who = 'timer' AND target = ?`, saleName(s.ID)); n != 1 {
			t.Errorf("sale %d: the audit log has it archived %d times by the timer", s.ID, n)
		}
		if k := o.sku(s.SKU); k.Available != 99 || k.Allotted != 1 {
			t.Errorf("the SKU has %+v, want the unsold units back, once", k)
		}
		o.balanced(s.ID)
	}
	if got := o.sale(open.ID); got.ArchivedAt != nil || o.keys(open.ID) == 0 {
		t.Errorf("a sale that is open is archived: %+v", got)
	}
	for i, a := range timers {
		if n := testutil.ToFloat64(a.stuck); n != 0 {
			t.Errorf("timer %d says that it could not archive %v sales", i, n)
		}
	}
}

// A sale that cannot be archived is counted, keeps no other from being archived, and is looked at again much later.
func TestATimerGoesPastASaleThatCannotBeArchived(t *testing.T) {
	o := newOffice(t, 1)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	unpaid := o.press(s.ID, "ann", 1)
	o.settle(s.ID)
	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/close", s.ID), "")
	other := o.closed()
	a := o.later(time.Hour)
	over(t, a, time.Minute)
	if got := o.sale(s.ID); got.ArchivedAt != nil || testutil.ToFloat64(a.stuck) != 1 {
		t.Fatalf("with an unpaid order: got %+v, and %v sales that cannot be archived", got, testutil.ToFloat64(a.stuck))
	}
	if got := o.sale(other.ID); got.ArchivedAt == nil {
		t.Errorf("the other is kept from it: %+v", got)
	}
	if _, err := o.book.Cancel(t.Context(), "ann", unpaid); err != nil {
		t.Fatal(err)
	}
	over(t, a, time.Minute)
	if o.sale(s.ID).ArchivedAt != nil {
		t.Error("it was looked at again at once")
	}
	a.Clock.Set(a.Clock.Now().Add(archiveRetry), time.Now())
	over(t, a, time.Minute)
	if got := o.sale(s.ID); got.ArchivedAt == nil || testutil.ToFloat64(a.stuck) != 0 {
		t.Errorf("got %+v, and %v sales that cannot be archived", got, testutil.ToFloat64(a.stuck))
	}
	if n := o.keys(s.ID); n != 0 {
		t.Errorf("%d keys are in Redis", n)
	}
}

// What does not balance stays in Redis, where it can be looked into.
func TestATimerArchivesNothingThatDoesNotBalance(t *testing.T) {
	o := newOffice(t, 4)
	s := o.closed()
	c := o.Redis.Client()
	if err := c.Do(t.Context(), c.B().Hincrby().Key(fmt.Sprintf("%s{sale:%d}:state", o.Redis.Client().Prefix(), s.ID)).Field("stock").Increment(1).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	a := o.later(time.Hour)
	over(t, a, time.Minute)
	if got := o.sale(s.ID); got.ArchivedAt != nil || o.keys(s.ID) == 0 || testutil.ToFloat64(a.stuck) != 1 {
		t.Errorf("got %+v, %d keys in Redis, %v sales that cannot be archived", got, o.keys(s.ID), testutil.ToFloat64(a.stuck))
	}
	if r := do[audit.Result](o, 200, "GET", fmt.Sprintf("/admin/v1/sales/%d/audit", s.ID), ""); r.Balanced {
		t.Error("it balances")
	}
}
