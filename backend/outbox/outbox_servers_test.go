//go:build servers

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2")) // it closes connections to nodes that went, 5 s later
}

// load puts an open sale into Redis, as the reconciler would.
func load(t testing.TB, s *reserve.Store, sale int64) {
	t.Helper()
	if _, err := s.Shut(t.Context(), sale, 1); err != nil {
		t.Fatal(err)
	}
	l := reserve.Loaded{Epoch: 1, Stock: 10_000_000, Total: 10_000_000, Definition: reserve.Definition{Version: 1, Ends: 1 << 50, Limit: 3}}
	if err := s.Load(t.Context(), sale, 1, l); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlock(t.Context(), sale, 1); err != nil {
		t.Fatal(err)
	}
}

var buyers atomic.Int64

// press makes n orders and returns their ids in order.
func press(t *testing.T, s *reserve.Store, sale int64, n int) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)
		v, err := s.Reserve(t.Context(), reserve.Request{Sale: sale, UID: fmt.Sprint("u", buyers.Add(1)), Quantity: 1, OrderID: ids[i], Epoch: 1})
		if err != nil || v.Answer != lua.Reserved {
			t.Fatalf("reserve: %+v, %v", v, err)
		}
	}
	return ids
}

// crowd handles entries: it notes them and retires them, or fails.
type crowd struct {
	store *reserve.Store
	fail  func(batch []queued.Entry) error // nil: never
	keep  bool                             // does not retire

	mu      sync.Mutex // guards what follows
	seen    []string
	tries   int
	changed chan struct{}
}

func newCrowd(s *reserve.Store) *crowd { return &crowd{store: s, changed: make(chan struct{})} }

func (c *crowd) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *crowd) handle(ctx context.Context, batch []queued.Entry) error {
	defer c.tell()
	c.mu.Lock()
	c.tries++
	c.mu.Unlock()
	if c.fail != nil {
		if err := c.fail(batch); err != nil {
			return err
		}
	}
	if !c.keep {
		for sale, ids := range bySale(batch) {
			if err := c.store.Retire(ctx, sale, ids); err != nil {
				return err
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range batch {
		c.seen = append(c.seen, e.ID)
	}
	return nil
}

func bySale(batch []queued.Entry) map[int64][]string {
	m := map[int64][]string{}
	for _, e := range batch {
		m[e.Sale] = append(m[e.Sale], e.Entry)
	}
	return m
}

func (c *crowd) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		c.mu.Lock()
		ok, changed := f(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("never: %s: %d seen in %d tries", what, len(c.seen), c.tries)
		}
	}
}

// all is the orders that were handled so far, in order.
func (c *crowd) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

// has reports whether every id was seen; under the lock.
func (c *crowd) has(ids []string) bool {
	m := map[string]bool{}
	for _, id := range c.seen {
		m[id] = true
	}
	for _, id := range ids {
		if !m[id] {
			return false
		}
	}
	return true
}

func read(t *testing.T, s *reserve.Store, name string, idle time.Duration, live func() []int64, handle func(context.Context, []queued.Entry) error) (stop func()) {
	t.Helper()
	r := outbox.NewReader(outbox.ReaderConfig{Redis: s, Live: live, Name: name, ClaimIdle: idle, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	return run(t, func(ctx context.Context) error { return r.Run(ctx, handle) })
}

func run(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func sales(ids ...int64) func() []int64 { return func() []int64 { return ids } }

// length is how many entries a sale's outbox holds.
func length(t *testing.T, s *reserve.Store, sale int64) int64 {
	t.Helper()
	n, err := s.Client().Do(t.Context(), s.Client().B().Xlen().Key(s.OutboxKey(sale)).Build()).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// consumers are the names in a sale's group, and how much each holds.
func consumers(t *testing.T, s *reserve.Store, sale int64) map[string]int64 {
	t.Helper()
	list, err := s.Client().Do(t.Context(), s.Client().B().XinfoConsumers().Key(s.OutboxKey(sale)).Group(reserve.Group).Build()).ToArray()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, m := range list {
		info, err := m.AsMap()
		if err != nil {
			t.Fatal(err)
		}
		name, pending := info["name"], info["pending"]
		n, err := pending.AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		text, err := name.ToString()
		if err != nil {
			t.Fatal(err)
		}
		out[text] = n
	}
	return out
}

func TestEverySalesEntriesComeInOrder(t *testing.T) { inOrder(t, backendtest.Redis(t)) }

// On a Redis Cluster one call reads the outboxes of one slot alone.
func TestEverySalesEntriesComeInOrderOnARedisCluster(t *testing.T) {
	t.Attr("row", "E8")
	s := backendtest.RedisCluster(t, 3, 0).Store()
	if err := s.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	inOrder(t, s)
}

func inOrder(t *testing.T, s *reserve.Store) {
	var live []int64
	want := map[int64][]string{}
	for sale := int64(1); sale <= 70; sale++ { // more than one call reads
		load(t, s, sale)
		live = append(live, sale)
		want[sale] = press(t, s, sale, 5)
	}
	c := newCrowd(s)
	read(t, s, "a", time.Minute, sales(live...), c.handle)
	c.until(t, "350 entries", func() bool { return len(c.seen) == 350 })
	for _, sale := range live {
		want[sale] = append(want[sale], press(t, s, sale, 2)...)
	}
	c.until(t, "490 entries", func() bool { return len(c.seen) == 490 })
	for _, sale := range live {
		got := slices.DeleteFunc(c.all(), func(id string) bool { n, _ := wire.SaleOfOrder(id); return n != sale })
		if !slices.Equal(got, want[sale]) {
			t.Errorf("sale %d: got %v, want %v", sale, got, want[sale])
		}
		if n := length(t, s, sale); n != 0 {
			t.Errorf("sale %d: %d entries are left", sale, n)
		}
	}
}

func TestANewSaleIsPickedUp(t *testing.T) {
	s := backendtest.Redis(t)
	var live atomic.Pointer[[]int64]
	live.Store(&[]int64{1})
	load(t, s, 1)
	c := newCrowd(s)
	read(t, s, "a", time.Minute, func() []int64 { return *live.Load() }, c.handle)
	first := press(t, s, 1, 1)
	c.until(t, "the first sale's", func() bool { return c.has(first) })
	load(t, s, 2)
	live.Store(&[]int64{1, 2})
	second := press(t, s, 2, 3)
	c.until(t, "the second sale's", func() bool { return c.has(second) })
	live.Store(&[]int64{2})
	third := press(t, s, 2, 3)
	c.until(t, "more of the second sale's", func() bool { return c.has(third) })
}

func TestWhatFailedIsHandledAgainAndHoldsUpNoOtherSale(t *testing.T) {
	s := backendtest.Redis(t)
	load(t, s, 1)
	load(t, s, 2)
	var broken atomic.Bool
	broken.Store(true)
	c := newCrowd(s)
	c.fail = func(batch []queued.Entry) error {
		for _, e := range batch {
			if e.Sale == 1 && broken.Load() {
				return errors.New("the gate is closed")
			}
		}
		return nil
	}
	bad, good := press(t, s, 1, 10), press(t, s, 2, 10)
	read(t, s, "a", time.Minute, sales(1, 2), c.handle)
	c.until(t, "the good sale's", func() bool { return c.has(good) })
	more := press(t, s, 2, 10)
	c.until(t, "more of the good sale's", func() bool { return c.has(more) })
	if n := length(t, s, 1); n != 10 {
		t.Errorf("%d entries of the bad sale, want 10", n)
	}
	broken.Store(false)
	bad = append(bad, press(t, s, 1, 3)...)
	c.until(t, "the bad sale's", func() bool { return c.has(bad) })
	got := slices.DeleteFunc(c.all(), func(id string) bool { return !strings.HasSuffix(id, "-1") })
	if !slices.Equal(got, bad) {
		t.Errorf("got %v, want %v: in order, once", got, bad)
	}
}

// Row B4: what a dead consumer holds is claimed by a living one.
func TestOnlyWhatADeadConsumerHoldsIsTakenOver(t *testing.T) {
	t.Attr("row", "B4")
	s := backendtest.Redis(t)
	load(t, s, 1)
	ids := press(t, s, 1, 20)
	first := newCrowd(s)
	first.keep = true
	read(t, s, "young", time.Hour, sales(1), first.handle)
	first.until(t, "20 entries", func() bool { return len(first.seen) == 20 })
	x := s.Client()
	age := func(name string, ids ...string) { // they have been with it for two hours
		t.Helper()
		var entries []string
		for _, id := range ids {
			h, ok, err := s.Lookup(t.Context(), 1, id)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			entries = append(entries, h.Entry)
		}
		cmd := x.B().Xclaim().Key(s.OutboxKey(1)).Group(reserve.Group).Consumer(name).MinIdleTime("0").Id(entries...).Idle(2 * 3600 * 1000).Justid().Build()
		if err := x.Do(t.Context(), cmd).Error(); err != nil {
			t.Fatal(err)
		}
	}
	age(outbox.Published, ids[3], ids[4])
	age("z-dead", ids[5:10]...) // Redis lists it last
	c := newCrowd(s)
	read(t, s, "heir", time.Hour, sales(1), c.handle)
	c.until(t, "the dead one's", func() bool { return c.has(ids[5:10]) })
	if got := consumers(t, s, 1); got["z-dead"] != 0 || got[outbox.Published] != 2 || got["young"] != 13 || len(c.all()) != 5 {
		t.Errorf("the consumers hold %v and %d were taken over; want 2 with %s, 13 with young, 5", got, len(c.all()), outbox.Published)
	}
}

// Row B4: who comes back handles its own pending entries first.
func TestARestartedConsumerFirstHandlesWhatItHeld(t *testing.T) {
	t.Attr("row", "B4")
	s := backendtest.Redis(t)
	load(t, s, 1)
	ids := press(t, s, 1, 20)
	first := newCrowd(s)
	first.keep = true
	stop := read(t, s, "a", time.Hour, sales(1), first.handle)
	first.until(t, "20 entries", func() bool { return len(first.seen) == 20 })
	stop()
	ids = append(ids, press(t, s, 1, 5)...)
	c := newCrowd(s)
	read(t, s, "a", time.Hour, sales(1), c.handle)
	c.until(t, "25 entries", func() bool { return len(c.seen) == 25 })
	if got := c.all(); !slices.Equal(got, ids) {
		t.Errorf("got %v, want %v", got, ids)
	}
}

// An entry that was read and is pending with nobody would never be seen again: it is found, and handled once. One that somebody
// holds is left to them, and one that nobody has read is nobody's to hold.
//
// Row B4: no entry is lost, whoever had it.
func TestAnEntryThatNobodyHoldsIsFound(t *testing.T) {
	t.Attr("row", "B4")
	s := backendtest.Redis(t)
	load(t, s, 1)
	ids := press(t, s, 1, 300) // more than one look takes
	key, b := s.OutboxKey(1), s.Client().B()
	hold := func(n int) (entries []string) {
		holder := newCrowd(s)
		holder.keep = true
		stop := read(t, s, "holder", time.Hour, sales(1), holder.handle)
		holder.until(t, "the entries", func() bool { return len(holder.seen) == n })
		stop()
		all, err := s.Client().Do(t.Context(), b.Xrange().Key(key).Start("-").End("+").Build()).AsXRange()
		if err != nil || len(all) != n {
			t.Fatalf("got %d entries, %v; want %d", len(all), err, n)
		}
		for _, x := range all {
			entries = append(entries, x.ID)
		}
		return entries
	}
	all := hold(300)
	if n, err := s.Client().Do(t.Context(), b.Xack().Key(key).Group(reserve.Group).Id(all[0], all[120], all[299]).Build()).AsInt64(); err != nil || n != 3 {
		t.Fatalf("got %d, %v", n, err)
	}
	finder := newCrowd(s)
	stop := read(t, s, "finder", 100*time.Millisecond, sales(1), finder.handle)
	finder.until(t, "all 300 entries", func() bool { return finder.has(ids) })
	stop()

	press(t, s, 1, 150)
	all = hold(150)
	if next, found, err := s.StrayEntries(t.Context(), 1, "finder", "-", 0); err != nil || len(found) > 0 || next != all[99] {
		t.Errorf("the first of what is held: got %q, %v, %v; want to go on after the 100th, and none", next, found, err)
	}
	press(t, s, 1, 1)
	if next, found, err := s.StrayEntries(t.Context(), 1, "finder", all[99], 0); err != nil || len(found) > 0 || next != "-" {
		t.Errorf("the last, of which one was not read yet: got %q, %v, %v; want to begin anew, and none", next, found, err)
	}
}

func TestSilentConsumersAreForgottenOnceTheyHoldNothing(t *testing.T) {
	s := backendtest.Redis(t)
	load(t, s, 1)
	press(t, s, 1, 3)
	busy := newCrowd(s)
	busy.keep = true
	stop := read(t, s, "busy", time.Hour, sales(1), busy.handle)
	busy.until(t, "3 entries", func() bool { return len(busy.seen) == 3 })
	stop()
	idle := newCrowd(s)
	stop = read(t, s, "idle", time.Hour, sales(1), idle.handle)
	press(t, s, 1, 1)
	idle.until(t, "an entry", func() bool { return len(idle.seen) == 1 })
	stop()
	if got := consumers(t, s, 1); len(got) != 2 {
		t.Fatalf("got consumers %v, want busy and idle", got)
	}
	if err := s.SweepOutbox(t.Context(), 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := consumers(t, s, 1); len(got) != 2 {
		t.Errorf("none was silent for an hour: got %v, want busy and idle", got)
	}
	if err := s.SweepOutbox(t.Context(), 1, 0, "idle"); err != nil {
		t.Fatal(err)
	}
	if got := consumers(t, s, 1); len(got) != 2 {
		t.Errorf("idle is to be kept: got %v, want busy and idle", got)
	}
	if err := s.SweepOutbox(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	if got := consumers(t, s, 1); len(got) != 1 || got["busy"] != 3 {
		t.Errorf("got consumers %v, want only busy, which holds 3", got)
	}
}

// Row B4: the group is made where it is absent.
func TestAnEmptiedRedisGetsItsGroupAnew(t *testing.T) {
	t.Attr("row", "B4")
	s := backendtest.Redis(t)
	load(t, s, 1)
	c := newCrowd(s)
	read(t, s, "a", time.Minute, sales(1), c.handle)
	press(t, s, 1, 10)
	c.until(t, "10 entries", func() bool { return len(c.seen) == 10 })
	backendtest.Wipe(t, s, 1)
	load(t, s, 1)
	ids := press(t, s, 1, 10)
	c.until(t, "10 more", func() bool { return c.has(ids) })
	if n := length(t, s, 1); n != 0 {
		t.Errorf("%d entries are left, want 0", n)
	}
}

func TestWhatIsNoOrderIsLeftOut(t *testing.T) {
	s := backendtest.Redis(t)
	load(t, s, 1)
	c := newCrowd(s)
	if err := s.Client().Do(t.Context(), s.Client().B().Xadd().Key(s.OutboxKey(1)).Id("*").FieldValue().FieldValue("what", "ever").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	ids := press(t, s, 1, 2)
	read(t, s, "a", time.Minute, sales(1), c.handle)
	c.until(t, "two orders", func() bool { return c.has(ids) })
	if n := length(t, s, 1); n != 1 {
		t.Errorf("%d entries are left, want the one that is no order", n)
	}
}

// An entry over which consumers end is handled alone, and is a dead letter in the end; its neighbours are not.
//
// Row B4: after N deliveries a poison entry goes to the dead letters, alone.
func TestOnlyTheCulpritOfTheOutboxDies(t *testing.T) {
	t.Attr("row", "B4")
	s := backendtest.Redis(t)
	load(t, s, 1)
	ids := press(t, s, 1, 20)
	x, key := s.Client(), s.OutboxKey(1)
	if err := x.Do(t.Context(), x.B().XgroupCreate().Key(key).Group(reserve.Group).Id("0").Mkstream().Build()).Error(); err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		t.Fatal(err)
	}
	if err := x.Do(t.Context(), x.B().Xreadgroup().Group(reserve.Group, "dead-0").Count(100).Streams().Key(key).Id(">").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	culprit := ids[7]
	h, ok, err := s.Lookup(t.Context(), 1, culprit)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := x.Do(t.Context(), x.B().Xclaim().Key(key).Group(reserve.Group).Consumer("dead-0").MinIdleTime("0").Id(h.Entry).Retrycount(35).Justid().Build()).Error(); err != nil {
		t.Fatal(err) // it has killed before; the rest of the way is gone here
	}
	c := newCrowd(s)
	var letters []queued.DeadMessage
	ended := make(chan struct{})
	// Each reader ends as soon as it gets the culprit, and leaves what it holds to the next one.
	for life := 1; ; life++ {
		ctx, cancel := context.WithCancel(t.Context())
		r := outbox.NewReader(outbox.ReaderConfig{Redis: s, Live: sales(1), Name: fmt.Sprint("dead-", life), ClaimIdle: time.Millisecond, Log: backendtest.Log(t), Register: prometheus.NewRegistry(),
			DeadLetter: func(_ context.Context, m queued.DeadMessage) error {
				letters = append(letters, m)
				close(ended)
				cancel()
				return nil
			}})
		err := r.Run(ctx, func(hctx context.Context, batch []queued.Entry) error {
			for _, e := range batch {
				if e.ID == culprit {
					cancel()
					return errors.New("killed")
				}
			}
			return c.handle(hctx, batch)
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if len(letters) > 0 {
			break
		}
		if life > 200 {
			t.Fatal("the culprit lives for ever")
		}
	}
	<-ended
	if len(letters) != 1 || letters[0].Entry == nil || letters[0].Entry.ID != culprit || letters[0].Deliveries < 50 {
		t.Errorf("got %+v, want the culprit %s", letters, culprit)
	}
	others := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == culprit })
	read(t, s, "heir", time.Hour, sales(1), c.handle)
	read(t, s, "late", time.Millisecond, sales(1), c.handle)
	c.until(t, "the others", func() bool { return c.has(others) })
}

// A failure that is reported does not count against the entries: MySQL may be away for long.
func TestAReportedFailureIsNoDelivery(t *testing.T) {
	s := backendtest.Redis(t)
	load(t, s, 1)
	ids := press(t, s, 1, 3)
	c := newCrowd(s)
	var tries atomic.Int64
	c.fail = func([]queued.Entry) error {
		if tries.Add(1) <= 6 {
			return errors.New("no MySQL")
		}
		return nil
	}
	c.keep = true
	stop := read(t, s, "a", time.Hour, sales(1), c.handle)
	c.until(t, "three orders", func() bool { return c.has(ids) })
	stop()
	x := s.Client()
	list, err := x.Do(t.Context(), x.B().Xpending().Key(s.OutboxKey(1)).Group(reserve.Group).Start("-").End("+").Count(10).Build()).ToArray()
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	for _, m := range list {
		four, err := m.ToArray()
		if err != nil {
			t.Fatal(err)
		}
		if n, err := four[3].AsInt64(); err != nil || n > 2 {
			t.Errorf("got %d deliveries, %v; want the last one alone to count", n, err)
		}
	}
}

// What is no order goes to the dead letters, and leaves the outbox once it is kept there.
func TestWhatIsNoOrderIsBuried(t *testing.T) {
	s := backendtest.Redis(t)
	load(t, s, 1)
	if err := s.Client().Do(t.Context(), s.Client().B().Xadd().Key(s.OutboxKey(1)).Id("*").FieldValue().FieldValue("what", "ever").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	ids := press(t, s, 1, 2)
	c := newCrowd(s)
	tries, got := 0, make(chan queued.DeadMessage, 10)
	r := outbox.NewReader(outbox.ReaderConfig{Redis: s, Live: sales(1), Name: "a", ClaimIdle: time.Minute, Log: backendtest.Log(t), Register: prometheus.NewRegistry(),
		DeadLetter: func(_ context.Context, m queued.DeadMessage) error {
			if tries++; tries < 3 {
				return errors.New("no MySQL")
			}
			got <- m
			return nil
		}})
	run(t, func(ctx context.Context) error { return r.Run(ctx, c.handle) })
	m := <-got
	if m.Queue != outbox.Queue || m.Entry != nil || string(m.Payload) != `{"what":"ever"}` || m.Reason == "" {
		t.Errorf("got %+v", m)
	}
	ids = append(ids, press(t, s, 1, 1)...)
	c.until(t, "three orders", func() bool { return c.has(ids) })
	if n := length(t, s, 1); n != 0 {
		t.Errorf("%d entries are left, want none", n)
	}
}

// A reader may hear late that a sale was archived: it must not make its outbox anew.
func TestAForgottenSaleStaysForgotten(t *testing.T) {
	s := backendtest.Redis(t)
	load(t, s, 1)
	load(t, s, 2)
	c := newCrowd(s)
	read(t, s, "a", time.Minute, sales(1, 2, 3), c.handle)
	ids := append(press(t, s, 1, 3), press(t, s, 2, 3)...)
	c.until(t, "the orders of both", func() bool { return c.has(ids) })
	if err := s.Forget(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
	for range 5 { // each time the reader has looked at all its sales before
		more := press(t, s, 2, 1)
		c.until(t, "another order", func() bool { return c.has(more) })
	}
	for _, sale := range []int64{1, 3} {
		snap, err := s.Snapshot(t.Context(), sale)
		if err != nil || snap.Keys != 0 {
			t.Errorf("sale %d has %d keys, %v; want none", sale, snap.Keys, err)
		}
	}
	load(t, s, 3) // one that is loaded later is read
	late := press(t, s, 3, 2)
	c.until(t, "the orders of a sale that was loaded later", func() bool { return c.has(late) })
}
