//go:build servers

package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Rows B1, D9: creating a sale writes MySQL and loads Redis.
func TestASaleIsMadeAndLoaded(t *testing.T) {
	t.Attr("row", "B1 D9")
	o := newOffice(t, 1) // one connection is enough: the embedded profile has no more
	r := send(o.Admin, "POST", "/admin/v1/sales", openSale(`,"per_user_limit":2,"pay_within_s":60`))
	s := read[adminapi.Sale](t, r)
	if r.StatusCode != 201 || s.ID == 0 || r.Header.Get("Location") != fmt.Sprintf("/admin/v1/sales/%d", s.ID) || r.Header.Get("ETag") != `"1"` {
		t.Errorf("got %d %+v %v", r.StatusCode, s, r.Header)
	}
	if s.State != wire.Open || s.Total != 100 || s.Available != 100 || s.PerUserLimit != 2 || s.PayWithin != 60 || s.Version != 1 || s.Title != "Mug" {
		t.Errorf("got %+v", s)
	}
	if st := o.state(s.ID); st.Gate != lua.GateOpen || st.Stock != 100 || st.Total != 100 || st.Limit != 2 {
		t.Errorf("redis has %+v", st)
	}
	if k := o.sku(s.SKU); !k.Own || k.Allotted != 100 || k.Available != 0 || k.Total != 100 {
		t.Errorf("the sku is %+v", k)
	}
	o.balanced(s.ID)
	list := do[struct {
		Sales []adminapi.Sale `json:"sales"`
	}](o, 200, "GET", "/admin/v1/sales", "")
	if len(list.Sales) != 1 || list.Sales[0].ID != s.ID {
		t.Errorf("got %+v", list)
	}
	refused(t, send(o.Admin, "GET", fmt.Sprintf("/admin/v1/sales/%d", s.ID+1), ""), problem.SaleNotFound, "")
	refused(t, send(o.Admin, "GET", fmt.Sprintf("/admin/v1/sales/%d/audit", s.ID+1), ""), problem.SaleNotFound, "")
}

func TestTranchesAreReleasedInTime(t *testing.T) {
	o := newOffice(t, 4)
	now := time.Now().UTC()
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(fmt.Sprintf(`,"tranches":[{"at":%q,"quantity":30},{"at":%q,"quantity":70}]`, at(30*time.Minute), at(-time.Hour))))
	if len(s.Tranches) != 2 || s.Tranches[0].Quantity != 70 || s.Tranches[1].Quantity != 30 {
		t.Errorf("got %+v", s.Tranches)
	}
	st := o.state(s.ID)
	if got := st.Available(now.UnixMilli()); got != 70 || st.Stock != 100 {
		t.Errorf("got %d available of %+v", got, st)
	}
	if r := o.balanced(s.ID); r.Available != 100 {
		t.Errorf("got %+v: available counts tranches to come", r)
	}
	refused(t, send(o.Admin, "PATCH", fmt.Sprintf("/admin/v1/sales/%d", s.ID), fmt.Sprintf(`{"ends_at":%q}`, at(10*time.Minute)), `If-Match: "1"`), problem.BadRequest, "ends_at")
}

func TestASharedSKUIsAllottedExactly(t *testing.T) {
	o := newOffice(t, 8)
	k := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Lamp","price":500,"currency":"USD","stock":100}`)
	window := openSale(``)
	window = `{` + window[strings.Index(window, `"starts_at"`):len(window)-1]
	body := func(stock int) string { return fmt.Sprintf(`%s,"sku_id":%d,"stock":%d}`, window, k.ID, stock) }
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", body(60))
	if s.Title != "Lamp" || s.Price != 500 || s.Currency != "USD" || s.SKU != k.ID {
		t.Errorf("got %+v, want what the SKU says", s)
	}
	refused(t, send(o.Admin, "POST", "/admin/v1/sales", body(41)), problem.InsufficientStock, "stock")
	refused(t, send(o.Admin, "POST", "/admin/v1/sales", fmt.Sprintf(`%s,"sku_id":%d,"stock":1}`, window, k.ID+100)), problem.BadRequest, "sku_id")
	restock := fmt.Sprintf("/admin/v1/sales/%d/restock", s.ID)
	refused(t, send(o.Admin, "POST", restock, `{"quantity":41}`), problem.InsufficientStock, "quantity")
	if got := o.count(`SELECT COUNT(*) FROM sales`); got != 1 {
		t.Errorf("a refused sale left something: %d sales", got)
	}

	// Eight at once ask for 10 of the 40 that are left: four get them.
	var wg sync.WaitGroup
	var mu sync.Mutex // guards statuses
	statuses := map[int]int{}
	for range 8 {
		wg.Go(func() {
			r := send(o.Admin, "POST", restock, `{"quantity":10}`)
			mu.Lock()
			defer mu.Unlock()
			statuses[r.StatusCode]++
		})
	}
	wg.Wait()
	if statuses[200] != 4 || statuses[409] != 4 {
		t.Errorf("got %v, want four of each", statuses)
	}
	if _, err := o.Changes.Intents.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := o.sku(k.ID); got.Available != 0 || got.Allotted != 100 || got.Total != 100 {
		t.Errorf("got %+v", got)
	}
	if st := o.state(s.ID); st.Stock != 100 || st.Total != 100 {
		t.Errorf("redis has %+v", st)
	}
	o.balanced(s.ID)
	if got := do[adminapi.SKU](o, 200, "POST", fmt.Sprintf("/admin/v1/skus/%d/restock", k.ID), `{"quantity":5}`); got.Available != 5 || got.Total != 105 {
		t.Errorf("got %+v", got)
	}
}

func TestChangesReachRedis(t *testing.T) {
	o := newOffice(t, 4)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	if got := do[adminapi.Sale](o, 200, "POST", path+"/pause", ""); got.State != wire.Paused || got.Version != 2 || !o.state(s.ID).Paused {
		t.Errorf("got %+v, redis %+v", got, o.state(s.ID))
	}
	if got := do[adminapi.Sale](o, 200, "POST", path+"/pause", "{}"); got.Version != 2 {
		t.Errorf("a second pause changed something: %+v", got)
	}
	if got := do[adminapi.Sale](o, 200, "POST", path+"/resume", ""); got.State != wire.Open || o.state(s.ID).Paused {
		t.Errorf("got %+v", got)
	}
	if got := do[adminapi.Sale](o, 200, "POST", path+"/restock", `{"quantity":50}`); got.Total != 150 || got.Available != 150 || o.state(s.ID).Stock != 150 {
		t.Errorf("got %+v, redis %+v", got, o.state(s.ID))
	}
	if k := o.sku(s.SKU); k.Total != 150 || k.Allotted != 150 {
		t.Errorf("its own SKU has %+v", k)
	}

	refused(t, send(o.Admin, "PATCH", path, `{"title":"Cup"}`), problem.BadRequest, "If-Match")
	refused(t, send(o.Admin, "PATCH", path, `{"title":"Cup"}`, `If-Match: "1"`), problem.PreconditionFailed, "If-Match")
	now := o.sale(s.ID)
	r := send(o.Admin, "PATCH", path, `{"title":"Cup","per_user_limit":5,"pay_within_s":7}`, "If-Match: "+etag(now.Version))
	got := read[adminapi.Sale](t, r)
	if r.StatusCode != 200 || got.Title != "Cup" || got.PerUserLimit != 5 || got.PayWithin != 7 || r.Header.Get("ETag") != etag(now.Version+1) || o.state(s.ID).Limit != 5 {
		t.Errorf("got %d %+v, redis %+v", r.StatusCode, got, o.state(s.ID))
	}
	refused(t, send(o.Admin, "PATCH", path, `{"price":1}`, "If-Match: "+etag(got.Version)), problem.BadRequest, "price")
	o.balanced(s.ID)

	do[adminapi.Sale](o, 200, "POST", path+"/close", "")
	if st := o.state(s.ID); !st.Closed {
		t.Errorf("redis has %+v", st)
	}
	closed := o.sale(s.ID)
	if closed.State != wire.Ended || closed.ClosedAt == nil {
		t.Errorf("got %+v", closed)
	}
	if again := do[adminapi.Sale](o, 200, "POST", path+"/close", ""); again.Version != closed.Version {
		t.Errorf("a second close changed something: %+v", again)
	}
	refused(t, send(o.Admin, "POST", path+"/resume", ""), problem.SaleEnded, "")
	refused(t, send(o.Admin, "POST", path+"/restock", `{"quantity":1}`), problem.SaleEnded, "")
	refused(t, send(o.Admin, "PATCH", path, `{"title":"Cup"}`, "If-Match: *"), problem.SaleEnded, "")
	if got := o.count(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); got != 0 {
		t.Errorf("%d intents are open", got)
	}
	if st, want := o.state(s.ID), o.sale(s.ID); st.Version != want.Version {
		t.Errorf("redis has version %d, MySQL %d", st.Version, want.Version)
	}
}

// A change is done when it is in MySQL: with Redis out of reach the answer is the same, and the timer brings it there.
func TestRedisOutOfReachLeavesTheIntents(t *testing.T) {
	o := newOffice(t, 4)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	if _, err := o.Redis.Shut(t.Context(), s.ID, 1000); err != nil { // adjust is refused while the gate is closed
		t.Fatal(err)
	}
	if got := do[adminapi.Sale](o, 200, "POST", path+"/restock", `{"quantity":7}`); got.Total != 107 {
		t.Errorf("got %+v", got)
	}
	if got := o.count(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); got != 2 {
		t.Errorf("%d intents are open, want an adjust and a define", got)
	}
	c := o.Redis.Client()
	if err := c.Do(t.Context(), c.B().Hset().Key(fmt.Sprintf("%s{sale:%d}:state", o.Redis.Client().Prefix(), s.ID)).FieldValue().FieldValue("gate", lua.GateOpen).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	o.balanced(s.ID) // what is under way is no finding
	if n, err := o.Changes.Intents.Run(t.Context()); n != 2 || err != nil {
		t.Fatalf("the timer did %d, %v", n, err)
	}
	if st := o.state(s.ID); st.Stock != 107 || st.Total != 107 {
		t.Errorf("redis has %+v", st)
	}
	o.balanced(s.ID)

	o.down = errors.New("redis is out of reach")
	made := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	if o.state(made.ID).Present {
		t.Error("it is in Redis")
	}
	o.down = nil
	if r := do[audit.Result](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/rebuild", made.ID), ""); !r.Balanced || r.Redis.Stock != 100 {
		t.Errorf("got %+v", r)
	}
}

func TestUnsoldUnitsGoBackWhenNothingIsQueued(t *testing.T) {
	o := newOffice(t, 4)
	k := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Lamp","price":500,"currency":"USD","stock":100}`)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(fmt.Sprintf(`,"sku_id":%d,"per_user_limit":3`, k.ID)))
	returned := func(want int) {
		t.Helper()
		if n, err := o.Closing.ReturnUnsold(t.Context()); n != want || err != nil {
			t.Errorf("gave back the units of %d sales, %v; want %d", n, err, want)
		}
	}
	returned(0)
	id := o.press(s.ID, "ann", 3)
	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/close", s.ID), "")
	returned(0) // ann's order is queued
	o.settle(s.ID)
	returned(1)
	returned(0)
	if got := o.sku(k.ID); got.Available != 97 || got.Allotted != 3 || got.Total != 100 {
		t.Errorf("got %+v", got)
	}
	if got := o.sale(s.ID); got.Total != 3 || got.Available != 0 || got.Locked != 3 {
		t.Errorf("got %+v", got)
	}
	if st := o.state(s.ID); st.Stock != 0 || st.Total != 3 {
		t.Errorf("redis has %+v", st)
	}
	o.balanced(s.ID)
	if _, err := o.book.Cancel(t.Context(), "ann", id); err != nil {
		t.Fatal(err)
	}
	returned(1) // what comes back later goes back as well
	if got := o.sku(k.ID); got.Available != 100 || got.Allotted != 0 {
		t.Errorf("got %+v", got)
	}
	if got := o.count(`SELECT COUNT(*) FROM audit_log WHERE action = 'sale.return' AND who = 'timer'`); got != 2 {
		t.Errorf("%d rows in the audit log", got)
	}
	o.balanced(s.ID)
}

func TestReturnUnsoldByManyAtOnce(t *testing.T) {
	o := newOffice(t, 8)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/close", s.ID), "")
	var wg sync.WaitGroup
	var mu sync.Mutex // guards total
	total := 0
	for range 6 {
		wg.Go(func() {
			n, err := o.Closing.ReturnUnsold(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	wg.Wait()
	if got := o.sku(s.SKU); total != 1 || got.Available != 100 || got.Allotted != 0 {
		t.Errorf("given back %d times, the SKU has %+v", total, got)
	}
	o.balanced(s.ID)
}

func TestIdempotencyKeys(t *testing.T) {
	o := newOffice(t, 8)
	body := openSale(``)
	first := send(o.Admin, "POST", "/admin/v1/sales", body, "Idempotency-Key: k1")
	made := read[adminapi.Sale](t, first)
	again := send(o.Admin, "POST", "/admin/v1/sales", body, "Idempotency-Key: k1")
	if got := read[adminapi.Sale](t, again); again.StatusCode != 201 || got.ID != made.ID || again.Header.Get("ETag") != first.Header.Get("ETag") || again.Header.Get("Location") != first.Header.Get("Location") {
		t.Errorf("got %d %+v %v", again.StatusCode, got, again.Header)
	}
	refused(t, send(o.Admin, "POST", "/admin/v1/sales", openSale(`,"per_user_limit":2`), "Idempotency-Key: k1"), problem.IdempotencyKeyReused, "Idempotency-Key")
	restock := fmt.Sprintf("/admin/v1/sales/%d/restock", made.ID)
	refused(t, send(o.Admin, "POST", restock, `{"quantity":1}`, "Idempotency-Key: k1"), problem.IdempotencyKeyReused, "Idempotency-Key")

	// A refusal is not remembered: the same request may succeed later.
	k := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Lamp","price":500,"currency":"USD","stock":1}`)
	ask := openSale(fmt.Sprintf(`,"sku_id":%d`, k.ID))
	refused(t, send(o.Admin, "POST", "/admin/v1/sales", ask, "Idempotency-Key: k2"), problem.InsufficientStock, "stock")
	do[adminapi.SKU](o, 200, "POST", fmt.Sprintf("/admin/v1/skus/%d/restock", k.ID), `{"quantity":99}`)
	do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", ask, "Idempotency-Key: k2")

	// Many at once under one key: one restock, one answer.
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if r := send(o.Admin, "POST", restock, `{"quantity":5}`, "Idempotency-Key: k3"); r.StatusCode != 200 {
				t.Errorf("got %d", r.StatusCode)
			}
		})
	}
	wg.Wait()
	if got := o.sale(made.ID); got.Total != 105 {
		t.Errorf("got %+v", got)
	}
	rebuild := fmt.Sprintf("/admin/v1/sales/%d/rebuild", made.ID)
	one := do[audit.Result](o, 200, "POST", rebuild, "", "Idempotency-Key: k4")
	two := do[audit.Result](o, 200, "POST", rebuild, "", "Idempotency-Key: k4")
	if one.Redis.Epoch != two.Redis.Epoch || one.Redis.Epoch != o.state(made.ID).Epoch {
		t.Errorf("got epochs %d and %d, redis has %d", one.Redis.Epoch, two.Redis.Epoch, o.state(made.ID).Epoch)
	}
}

func TestSKUsCanBeChanged(t *testing.T) {
	o := newOffice(t, 4)
	k := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Lamp","price":500,"currency":"USD","stock":1}`)
	path := fmt.Sprintf("/admin/v1/skus/%d", k.ID)
	if got := do[adminapi.SKU](o, 200, "PATCH", path, `{"title":"Light","price":0}`); got.Title != "Light" || got.Price != 0 || got.Currency != "USD" || got.Version != 2 {
		t.Errorf("got %+v", got)
	}
	if got := do[adminapi.SKU](o, 200, "PATCH", path, `{"title":"Light"}`); got.Version != 2 {
		t.Errorf("a change to the same changed something: %+v", got)
	}
	refused(t, send(o.Admin, "PATCH", path, `{"title":"x"}`, `If-Match: "1"`), problem.PreconditionFailed, "If-Match")
	refused(t, send(o.Admin, "PATCH", path, `{"currency":"us"}`), problem.BadRequest, "currency")
	refused(t, send(o.Admin, "GET", "/admin/v1/skus/99", ""), problem.NotFound, "")
	list := do[struct {
		SKUs []adminapi.SKU `json:"skus"`
	}](o, 200, "GET", "/admin/v1/skus", "")
	if len(list.SKUs) != 1 || list.SKUs[0].Title != "Light" {
		t.Errorf("got %+v", list)
	}
}

func TestTheAuditLogIsPaged(t *testing.T) {
	o := newOffice(t, 4)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	for range 3 {
		do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/pause", s.ID), "")
		do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/resume", s.ID), "")
	}
	type page struct {
		Entries []struct {
			Who    string         `json:"who"`
			Action string         `json:"action"`
			Target string         `json:"target"`
			Before *adminapi.Sale `json:"before"`
			After  *adminapi.Sale `json:"after"`
		} `json:"entries"`
		Next string `json:"next"`
	}
	var actions []string
	cursor := ""
	for {
		p := do[page](o, 200, "GET", "/admin/v1/audit-log?limit=3"+cursor, "")
		for _, e := range p.Entries {
			if e.Who != "admin" || e.Target != fmt.Sprintf("sale %d", s.ID) || e.After == nil || (e.Before == nil) != (e.Action == "sale.create") {
				t.Errorf("got %+v", e)
			}
			actions = append(actions, e.Action)
		}
		if p.Next == "" {
			break
		}
		cursor = "&cursor=" + p.Next
	}
	if got, want := strings.Join(actions, " "), "sale.resume sale.pause sale.resume sale.pause sale.resume sale.pause sale.create"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Row B7: length, groups, consumers, what they hold, and for how long.
func TestQueueShowsWhoHoldsWhat(t *testing.T) {
	t.Attr("row", "B7")
	o := newOffice(t, 4)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	if q := do[adminapi.Queue](o, 200, "GET", "/admin/v1/queue", ""); q.Depth != 0 || len(q.Outboxes) != 0 || q.Ready != 3 || q.Unacked != 2 || q.Consumers != 1 || q.DeadLetters != 1 {
		t.Errorf("got %+v", q)
	}
	var ids []string
	for i := range 3 {
		ids = append(ids, o.press(s.ID, fmt.Sprint("u", i), 1))
	}
	c := o.Redis.Client()
	key := o.Redis.OutboxKey(s.ID)
	for _, cmd := range []error{
		ignoreBusyGroup(c.Do(t.Context(), c.B().XgroupCreate().Key(key).Group(reserve.Group).Id("0").Build()).Error()),
		c.Do(t.Context(), c.B().Xreadgroup().Group(reserve.Group, "relay-1").Count(2).Streams().Key(key).Id(">").Build()).Error(),
		c.Do(t.Context(), c.B().Xclaim().Key(key).Group(reserve.Group).Consumer("relay-1").MinIdleTime("0").Id(o.entry(s.ID, ids[1])).Idle(90_000).Retrycount(7).Justid().Build()).Error(),
	} {
		if cmd != nil {
			t.Fatal(cmd)
		}
	}
	q := do[adminapi.Queue](o, 200, "GET", "/admin/v1/queue", "")
	if q.Depth != 3 || q.Pending != 2 || len(q.Outboxes) != 1 || q.Outboxes[0].SaleID != s.ID || len(q.Outboxes[0].Consumers) != 1 || q.Outboxes[0].Consumers[0].Name != "relay-1" {
		t.Fatalf("got %+v", q)
	}
	if r := q.Outboxes[0].Consumers[0]; r.Pending != 2 || r.HeldMS < 90_000 || r.Deliveries != 7 {
		t.Errorf("got %+v, want two held, the longest for 90 s and 7 deliveries", r)
	}
	if err := o.DeadLetters.Take(t.Context(), queued.DeadMessage{Queue: "q", Reason: "r", Payload: []byte("p")}); err != nil {
		t.Fatal(err)
	}
	o.Queues = func(context.Context) ([]broker.QueueState, error) { return nil, errors.New("no broker") }
	if q := do[adminapi.Queue](o, 200, "GET", "/admin/v1/queue", ""); q.BrokerError != "no broker" || q.Depth != 3 || q.DeadLetters != 1 || q.Queues == nil {
		t.Errorf("without the broker: got %+v", q)
	}
}

// entry is an order's id in the outbox.
func (o *office) entry(sale int64, id string) string {
	o.t.Helper()
	h, ok, err := o.Redis.Lookup(o.t.Context(), sale, id)
	if err != nil || !ok {
		o.t.Fatal(ok, err)
	}
	return h.Entry
}

// Pages of dead letters follow on each other, and an Idempotency-Key gets the first answer.
//
// Row B7: dead letters with payload and reason.
func TestDeadLettersArePaged(t *testing.T) {
	t.Attr("row", "B7")
	o := newOffice(t, 1)
	for i := range 7 {
		for range 1 + i%2 { // some die twice
			if err := o.DeadLetters.Take(t.Context(), queued.DeadMessage{Queue: "q", Reason: strings.Repeat("é", 2000), Payload: fmt.Appendf(nil, "letter %d", i), Deliveries: 3}); err != nil {
				t.Fatal(err)
			}
		}
	}
	type page struct {
		DeadLetters []deadletter.Message `json:"dead_letters"`
		Next        string               `json:"next"`
	}
	replayed := do[deadletter.Replayed](o, 200, "POST", "/admin/v1/dead-letters/4/replay", "", "Idempotency-Key: k")
	if again := do[deadletter.Replayed](o, 200, "POST", "/admin/v1/dead-letters/4/replay", "", "Idempotency-Key: k"); replayed.Result != deadletter.Unreadable || again.Detail != replayed.Detail {
		t.Errorf("got %+v, then %+v", replayed, again)
	}
	refused(t, send(o.Admin, "POST", "/admin/v1/dead-letters/5/replay", "", "Idempotency-Key: k"), problem.IdempotencyKeyReused, "Idempotency-Key")
	for query, want := range map[string]string{"": "7 6 5 4 3 2 1", "&open=true": "7 6 5 3 2 1", "&open=false": "7 6 5 4 3 2 1"} {
		var got []string
		for cursor := ""; ; {
			p := do[page](o, 200, "GET", "/admin/v1/dead-letters?limit=3"+query+cursor, "")
			for _, l := range p.DeadLetters {
				got = append(got, fmt.Sprint(l.ID))
				if i := l.ID - 1; l.Payload != fmt.Sprint("letter ", i) || l.Times != 1+i%2 || len([]rune(l.Reason)) != 1000 || l.Deliveries != 3 || l.Queue != "q" {
					t.Errorf("got %+v", l)
				}
			}
			if p.Next == "" {
				break
			}
			cursor = "&cursor=" + p.Next
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", query, got, want)
		}
	}
	refused(t, send(o.Admin, "GET", "/admin/v1/dead-letters?open=x", ""), problem.BadRequest, "open")
	refused(t, send(o.Admin, "GET", "/admin/v1/dead-letters/8", ""), problem.NotFound, "")
	refused(t, send(o.Admin, "POST", "/admin/v1/dead-letters/8/replay", ""), problem.NotFound, "")
}

func ignoreBusyGroup(err error) error {
	if err != nil && strings.Contains(err.Error(), "BUSYGROUP") {
		return nil
	}
	return err
}

func TestMetricsCountRequests(t *testing.T) {
	o := newOffice(t, 1)
	do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	families, err := o.Gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "backend_admin_requests_total" && f.GetMetric()[0].GetCounter().GetValue() == 1 {
			return
		}
	}
	t.Errorf("no backend_admin_requests_total of 1 among %d families", len(families))
}
