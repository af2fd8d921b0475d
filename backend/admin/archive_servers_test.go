//go:build servers

package admin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func (o *office) keys(sale int64) int64 {
	o.t.Helper()
	snap, err := o.Redis.Snapshot(o.t.Context(), sale)
	if err != nil {
		o.t.Fatal(err)
	}
	return snap.Keys
}

// refusedArchive asks for an archive that must be refused, and for nothing to have changed; the refusal says all of what.
func (o *office) refusedArchive(sale int64, what ...string) {
	o.t.Helper()
	before, keys, log := o.sale(sale), o.keys(sale), o.count(`SELECT COUNT(*) FROM audit_log`)
	p := refused(o.t, send(o.Admin, "POST", fmt.Sprintf("/admin/v1/sales/%d/archive", sale), ""), problem.SaleStateConflict, "")
	for _, w := range what {
		if !strings.Contains(p.Detail, w) {
			o.t.Errorf("the refusal %q does not say %q", p.Detail, w)
		}
	}
	if after := o.sale(sale); after.Version != before.Version || after.ArchivedAt != nil || o.keys(sale) != keys || o.count(`SELECT COUNT(*) FROM audit_log`) != log {
		o.t.Errorf("a refusal changed the sale: %+v", after)
	}
}

func TestArchiveNamesAllThatIsInTheWay(t *testing.T) {
	o := newOffice(t, 1)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(`,"per_user_limit":2`))
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	unpaid, paid, queued := o.press(s.ID, "ann", 2), o.press(s.ID, "bob", 1), ""
	o.settle(s.ID)
	if _, err := o.book.Pay(t.Context(), "bob", paid); err != nil {
		t.Fatal(err)
	}
	o.refusedArchive(s.ID, "it is open until "+s.EndsAt.Format(wire.TimeFormat)+": close it first", "1 orders are pending_payment")
	queued = o.press(s.ID, "cyd", 1)
	do[adminapi.Sale](o, 200, "POST", path+"/close", "")
	o.refusedArchive(s.ID, "1 orders are pending_payment")
	if _, err := o.book.Cancel(t.Context(), "ann", unpaid); err != nil {
		t.Fatal(err)
	}
	o.refusedArchive(s.ID, "1 orders are in the outbox")
	o.settle(s.ID)
	o.refusedArchive(s.ID, "1 orders are pending_payment")
	if _, err := o.book.Cancel(t.Context(), "cyd", queued); err != nil {
		t.Fatal(err)
	}
	if _, err := o.DB.Exec(`INSERT INTO intents (sale_id, kind, created_at) VALUES (?, 'define', ?)`, s.ID, time.Now().UTC()); err != nil {
		t.Fatal(err)
	}
	o.refusedArchive(s.ID, "1 open intents")
	if _, err := o.Intents.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := o.Redis.Client()
	state := fmt.Sprintf("%s{sale:%d}:state", o.Redis.Client().Prefix(), s.ID)
	stock := func(by int64) {
		t.Helper()
		if err := c.Do(t.Context(), c.B().Hincrby().Key(state).Field("stock").Increment(by).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	stock(1)
	o.refusedArchive(s.ID, "the audit has 1 findings", "is not total 100")
	stock(-1)
	do[adminapi.Sale](o, 200, "POST", path+"/archive", "")
}

func TestAnArchivedSaleAnswersFromMySQL(t *testing.T) {
	o := newOffice(t, 1) // one connection is enough: the embedded profile has no more
	k := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Lamp","price":500,"currency":"USD","stock":150}`)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(fmt.Sprintf(`,"sku_id":%d`, k.ID)))
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	for i := range 3 {
		id := o.press(s.ID, fmt.Sprint("u", i), 1)
		o.settle(s.ID)
		if i > 0 {
			if _, err := o.book.Pay(t.Context(), fmt.Sprint("u", i), id); err != nil {
				t.Fatal(err)
			}
		} else if _, err := o.book.Cancel(t.Context(), "u0", id); err != nil {
			t.Fatal(err)
		}
	}
	// It has ended by its window, nobody has closed it, and 98 units are left.
	if _, err := o.DB.Exec(`UPDATE sales SET ends_at = ?, version = version + 1 WHERE id = ?`, time.Now().UTC().Add(-time.Second), s.ID); err != nil {
		t.Fatal(err)
	}
	o.refusedArchive(s.ID, "definition in Redis = definition in MySQL") // which would still sell
	if err := o.Reconcile(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	do[eligibility.Changed](o, 200, "PUT", path+"/eligibility", `{"uids":["ann"]}`)
	first := send(o.Admin, "POST", path+"/archive", "", "Idempotency-Key: a1")
	got := read[adminapi.Sale](t, first)
	if first.StatusCode != 200 || got.ArchivedAt == nil || got.ClosedAt == nil || got.State != wire.Ended || got.Total != 2 || got.Sold != 2 || got.Available != 0 {
		t.Fatalf("got %d %+v", first.StatusCode, got)
	}
	if n := o.keys(s.ID); n != 0 {
		t.Errorf("%d keys are in Redis", n)
	}
	if sku := o.sku(k.ID); sku.Available != 148 || sku.Allotted != 2 {
		t.Errorf("the SKU has %+v, want its 98 unsold units back", sku)
	}
	if n := o.count(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); n != 0 {
		t.Errorf("%d intents are open", n)
	}
	if l := do[listJSON](o, 200, "GET", path+"/eligibility", ""); l.Active || fmt.Sprint(l.UIDs) != "[ann]" {
		t.Errorf("its list still counts: %+v", l)
	}
	refused(t, send(o.Admin, "PUT", path+"/eligibility", `{"uids":["bob"]}`), problem.SaleEnded, "")
	r := o.balanced(s.ID)
	if r.Sold != 2 || r.Total != 2 || r.Redis.Loaded {
		t.Errorf("got %+v", r)
	}

	// Again, with the same key and with another: nothing changes.
	rows := o.count(`SELECT COUNT(*) FROM audit_log`)
	for _, key := range []string{"a1", "a2"} {
		if again := do[adminapi.Sale](o, 200, "POST", path+"/archive", "", "Idempotency-Key: "+key); again.Version != got.Version || !again.ArchivedAt.Equal(got.ArchivedAt.Time) {
			t.Errorf("got %+v, before %+v", again, got)
		}
	}
	if n := o.count(`SELECT COUNT(*) FROM audit_log`); n != rows {
		t.Errorf("a repeat wrote %d rows of the audit log", n-rows)
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", path + "/pause", ""}, {"POST", path + "/resume", ""}, {"POST", path + "/restock", `{"quantity":1}`}, {"POST", path + "/rebuild", ""},
		{"PATCH", path, `{"title":"Cup"}`},
	} {
		refused(t, send(o.Admin, c.method, c.path, c.body, "If-Match: *"), problem.SaleEnded, "")
	}
	do[adminapi.Sale](o, 200, "POST", path+"/close", "") // it is
	if n, err := o.ReturnUnsold(t.Context()); n != 0 || err != nil {
		t.Errorf("gave back %d, %v", n, err)
	}

	// A Redis from an older copy has it again: the audit says so, and an archive takes it out.
	backendtest.Load(t, o.DB, o.Redis, s.ID)
	if r := do[audit.Result](o, 200, "GET", path+"/audit", ""); r.Balanced || len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Fix, fmt.Sprintf("backend sale archive %d", s.ID)) {
		t.Errorf("got %+v", r)
	}
	do[adminapi.Sale](o, 200, "POST", path+"/archive", "")
	if n := o.keys(s.ID); n != 0 {
		t.Errorf("%d keys are in Redis", n)
	}
	o.balanced(s.ID)
}

// A change is done when it is in MySQL: what could not be done in Redis then, the timer does.
func TestTheTimerFinishesAnArchive(t *testing.T) {
	o := newOffice(t, 4)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	id := o.press(s.ID, "ann", 1)
	o.settle(s.ID)
	if _, err := o.book.Pay(t.Context(), "ann", id); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	do[adminapi.Sale](o, 200, "POST", path+"/close", "")
	gone, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: o.Redis.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	c := o.Config
	c.Redis, c.Register = gone, prometheus.NewRegistry()
	c.Intents = intent.New(intent.Config{DB: o.DB, Redis: gone, Clock: o.Clock, Log: backendtest.Log(t), Register: c.Register})
	if r := send(New(c), "POST", path+"/archive", ""); r.StatusCode != 200 {
		t.Fatalf("got %d %+v", r.StatusCode, read[problem.Problem](t, r))
	}
	if n := o.count(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); n != 2 || o.keys(s.ID) == 0 {
		t.Fatalf("%d intents are open, %d keys in Redis; want what the timer has to do: the unsold units and the archive", n, o.keys(s.ID))
	}
	o.balanced(s.ID) // what is under way is no finding
	for range 2 {
		if _, err := o.Intents.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := o.count(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); n != 0 || o.keys(s.ID) != 0 {
		t.Errorf("%d intents are open, %d keys in Redis", n, o.keys(s.ID))
	}
	if r := o.balanced(s.ID); r.Sold != 1 || r.Total != 1 {
		t.Errorf("got %+v", r)
	}
}

// Row A7: what changes between the two looks stops an archive, and so does one that waits for the queue, or a reconciler that has taken a
// newer token.
func TestWhatChangesMeanwhileStopsAnArchive(t *testing.T) {
	t.Attr("row", "A7")
	o := newOffice(t, 4)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	window := func(ends time.Duration) {
		t.Helper()
		do[adminapi.Sale](o, 200, "PATCH", path, fmt.Sprintf(`{"ends_at":%q}`, time.Now().Add(ends).UTC().Format(time.RFC3339Nano)), "If-Match: *")
	}
	window(-time.Second)
	archive := func(want string) {
		t.Helper()
		p := refused(t, send(o.Admin, "POST", path+"/archive", ""), problem.SaleStateConflict, "")
		if !strings.Contains(p.Detail, want) || o.sale(s.ID).ArchivedAt != nil || o.keys(s.ID) == 0 {
			t.Errorf("got %q, want %q; %d keys in Redis", p.Detail, want, o.keys(s.ID))
		}
	}
	o.Fence = func(context.Context, int64) error { window(time.Hour); return nil } // it sells again
	archive("it was changed while it was audited")
	o.Fence = func(context.Context, int64) error { return context.DeadlineExceeded }
	archive("close it first")
	window(-time.Second)
	archive("what is queued was not settled in time")
	o.Fence = func(context.Context, int64) error {
		_, err := o.DB.Exec(`UPDATE sale_stock SET token = token + 1 WHERE sale_id = ?`, s.ID)
		return err
	}
	archive("it was changed while it was audited")
	o.Fence = func(context.Context, int64) error {
		_, err := o.DB.Exec(`INSERT INTO intents (sale_id, kind, created_at) VALUES (?, 'define', ?)`, s.ID, time.Now().UTC())
		return err
	}
	archive("it was changed while it was audited")
	o.Fence = nil
	archive("1 open intents")
	if _, err := o.Intents.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	do[adminapi.Sale](o, 200, "POST", path+"/archive", "")
}

func TestManyArchiveAtOnce(t *testing.T) {
	o := newOffice(t, 8)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	do[adminapi.Sale](o, 200, "POST", path+"/close", "")
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for { // who is told that somebody else changed it asks again
				r := send(o.Admin, "POST", path+"/archive", "", fmt.Sprintf("Idempotency-Key: k%d", i%3))
				if r.StatusCode == 200 {
					return
				}
				if p := read[problem.Problem](t, r); p.Code != problem.SaleStateConflict {
					t.Errorf("got %+v", p)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := o.count(`SELECT COUNT(*) FROM audit_log WHERE action = 'sale.archive'`); n != 1 {
		t.Errorf("it was archived %d times", n)
	}
	if k := o.sku(s.SKU); k.Available != 100 || k.Allotted != 0 || k.Total != 100 {
		t.Errorf("the SKU has %+v", k)
	}
	if n := o.keys(s.ID); n != 0 {
		t.Errorf("%d keys are in Redis", n)
	}
	o.balanced(s.ID)
}
