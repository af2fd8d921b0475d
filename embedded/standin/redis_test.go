package standin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"floodgate.internal/backend/lock"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

const sale = 7

func openRedis(t *testing.T) *reserve.Store {
	t.Helper()
	r, err := StartRedis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	s, err := reserve.Open(redis.Config{Addrs: []string{r.Addr()}, Prefix: "fg:"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// definition is a sale that is open from an hour ago to an hour from now, by the stand-in's clock.
func definition(t *testing.T, s *reserve.Store) reserve.Definition {
	t.Helper()
	now, err := s.Client().Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return reserve.Definition{Version: 1, Starts: now.Add(-time.Hour).UnixMilli(), Ends: now.Add(time.Hour).UnixMilli(), Limit: 1}
}

// load loads the sale with the token as the epoch, opens it and arms the server.
func load(t *testing.T, s *reserve.Store, token int64, l reserve.Loaded) {
	t.Helper()
	ctx := t.Context()
	l.Epoch = token
	if _, err := s.Shut(ctx, sale, token); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(ctx, sale, token, l); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlock(ctx, sale, token); err != nil {
		t.Fatal(err)
	}
	if err := s.Client().Begin(ctx); err != nil {
		t.Fatal(err)
	}
}

func orderID(n int) string { return fmt.Sprintf("0190163d-8694-739b-aea5-%012d-%d", n, sale) }

func press(n int, uid string) reserve.Request {
	return reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: orderID(n), Epoch: 1}
}

func TestReserveAnswers(t *testing.T) {
	s := openRedis(t)
	ctx := t.Context()
	d := definition(t, s)

	if _, err := s.Reserve(ctx, press(1, "a")); !errors.Is(err, redis.ErrRestarted) {
		t.Fatalf("before sale_reserve.lua is loaded: got %v, want ErrRestarted", err)
	}
	if armed, err := s.Client().AllReserve(ctx); armed || err != nil {
		t.Fatalf("Armed: got %v, %v; want false", armed, err)
	}
	if err := s.Client().Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if armed, err := s.Client().AllReserve(ctx); !armed || err != nil {
		t.Fatalf("Armed: got %v, %v; want true", armed, err)
	}
	if _, err := s.Reserve(ctx, press(1, "a")); !errors.Is(err, reserve.ErrNotLoaded) {
		t.Fatalf("before load: got %v, want ErrNotLoaded", err)
	}
	if _, err := s.Shut(ctx, sale, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Shut(ctx, sale, 1); !errors.Is(err, reserve.ErrLost) {
		t.Fatalf("a second reconciler with the same token: got %v, want ErrLost", err)
	}
	if _, err := s.Reserve(ctx, press(1, "a")); !errors.Is(err, reserve.ErrGateClosed) {
		t.Fatalf("closed: got %v, want ErrGateClosed", err)
	}
	if err := s.Load(ctx, sale, 1, reserve.Loaded{Definition: d, Epoch: 1, Stock: 3, Total: 3}); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlock(ctx, sale, 1); err != nil {
		t.Fatal(err)
	}

	keyed := press(2, "b")
	keyed.Key = "k:1"
	again := keyed
	again.OrderID = orderID(3)
	other := again
	other.Quantity = 2
	stale := press(4, "c")
	stale.Epoch = 0
	many := press(5, "c")
	many.Quantity = 2
	for _, c := range []struct {
		name string
		r    reserve.Request
		want reserve.Verdict
	}{
		{"the first", press(1, "a"), reserve.Verdict{Answer: lua.Reserved, OrderID: orderID(1), Available: 2, Reserved: 1}},
		{"the same order", press(1, "a"), reserve.Verdict{Answer: lua.Repeated, OrderID: orderID(1)}},
		{"the same buyer", press(9, "a"), reserve.Verdict{Answer: lua.AlreadyOrdered, OrderID: orderID(1)}},
		{"with a key", keyed, reserve.Verdict{Answer: lua.Reserved, OrderID: orderID(2), Available: 1, Reserved: 2}},
		{"the key again", again, reserve.Verdict{Answer: lua.Repeated, OrderID: orderID(2)}},
		{"the key with another quantity", other, reserve.Verdict{Answer: lua.KeyReused, OrderID: orderID(2)}},
		{"an old epoch", stale, reserve.Verdict{Answer: lua.StaleEpoch, Epoch: 1}},
		{"more than the limit", many, reserve.Verdict{Answer: lua.NotEnough, Available: 1}},
		{"the last", press(6, "c"), reserve.Verdict{Answer: lua.Reserved, OrderID: orderID(6), Available: 0, Reserved: 3}},
		{"one too many", press(7, "d"), reserve.Verdict{Answer: lua.SoldOut}},
	} {
		got, err := s.Reserve(ctx, c.r)
		if e := c.r.Entry(got); got.Answer == lua.Reserved && (e.Entry == "" || e.Slots != "1" || e.At == 0) {
			t.Errorf("%s: got entry %+v", c.name, e)
		}
		got.Entry, got.Slots, got.At = "", "", 0
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}

	for i, c := range []struct {
		change func(*reserve.Definition)
		want   lua.Answer
	}{
		{func(d *reserve.Definition) { d.Paused = true }, lua.Paused},
		{func(d *reserve.Definition) { d.Closed = true }, lua.Ended},
		{func(d *reserve.Definition) { d.Ends = d.Starts + 1 }, lua.Ended},
		{func(d *reserve.Definition) { d.Starts = d.Ends - 1 }, lua.NotStarted},
		{func(d *reserve.Definition) { d.Later = []reserve.Tranche{{At: d.Ends, Units: 1}} }, lua.SoldOut},
	} {
		changed := d
		changed.Version = int64(i + 2)
		c.change(&changed)
		if err := s.Define(ctx, sale, changed); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Reserve(ctx, press(8, "e")); err != nil || got.Answer != c.want {
			t.Errorf("definition %d: got %+v, %v; want %s", i, got, err, c.want)
		}
	}
}

func TestReleaseAndAdjustOnce(t *testing.T) {
	s := openRedis(t)
	ctx := t.Context()
	load(t, s, 1, reserve.Loaded{Definition: definition(t, s), Stock: 1, Total: 1})
	if _, err := s.Reserve(ctx, press(1, "a")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, false} {
		if got, err := s.Release(ctx, sale, orderID(1)); got != want || err != nil {
			t.Errorf("release %d: got %v, %v; want %v", i, got, err, want)
		}
	}
	for range 3 {
		if err := s.Adjust(ctx, sale, 11, 5); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Adjust(ctx, sale, 12, -7); !errors.Is(err, reserve.ErrNotEnough) {
		t.Errorf("taking 7 of 6: got %v, want ErrNotEnough", err)
	}
	states, err := s.States(ctx, []int64{sale, sale + 1})
	if err != nil {
		t.Fatal(err)
	}
	if st := states[0]; st.Stock != 6 || st.Total != 6 || st.Gate != lua.GateOpen || states[1].Present {
		t.Errorf("got %+v; want 6 of 6, open, and nothing else", states)
	}
	if v, err := s.Reserve(ctx, press(2, "a")); err != nil || v.Answer != lua.Reserved {
		t.Errorf("the buyer whose order was released: got %+v, %v; want reserved", v, err)
	}
}

func TestLoadAdoptRetire(t *testing.T) {
	s := openRedis(t)
	ctx := t.Context()
	d := definition(t, s)
	held := []reserve.Held{{ID: orderID(1), UID: "a", Quantity: 1, Slots: "1", Entry: "-", At: 1, Key: "k"}}
	for i := range 450 { // several steps of the script
		held = append(held, reserve.Held{ID: orderID(100 + i), UID: fmt.Sprint("u", i), Quantity: 1, Slots: "1", Entry: "-", At: 1})
	}
	load(t, s, 2, reserve.Loaded{Definition: d, Stock: 1, Total: int64(len(held)) + 1, Orders: held, Applied: []int64{3, 4}})

	first := queued.Entry{ID: orderID(2), Sale: sale, UID: "b", Quantity: 1, Slots: "1", Epoch: 1, At: 5, Key: "kb", Entry: "1-1"}
	second := first
	second.ID, second.UID = orderID(3), "c"
	again, full := first, first
	again.ID, full.ID, full.Key = orderID(4), orderID(5), "kb2"
	adopt := func(epoch int64, entries []queued.Entry, want ...lua.Answer) {
		t.Helper()
		if got, err := s.Adopt(ctx, entries, map[int64]int64{sale: epoch}); err != nil || !slices.Equal(got, want) {
			t.Errorf("adopt: got %s, %v; want %s", got, err, want)
		}
	}
	adopt(2, []queued.Entry{first, first, second}, lua.Adopted, lua.Present, lua.SoldOut)
	if err := s.Adjust(ctx, sale, 5, 1); err != nil {
		t.Fatal(err)
	}
	adopt(2, []queued.Entry{again, full}, lua.KeyReused, lua.Limit) // a second order of b, under the first one's key and under another
	adopt(1, []queued.Entry{second}, lua.GateClosed)

	snap, err := s.Snapshot(ctx, sale)
	if err != nil || len(snap.Bad) > 0 {
		t.Fatal(err, snap.Bad)
	}
	if len(snap.Orders) != len(held)+1 || len(snap.Buyers) != len(held)+1 || len(snap.Outbox) != 1 || snap.State.Stock != 1 {
		t.Errorf("got %d reservations, %d buyers, %d entries, stock %d; want %d, as many, 1, 1",
			len(snap.Orders), len(snap.Buyers), len(snap.Outbox), snap.State.Stock, len(held)+1)
	}
	if got := snap.Outbox[0]; got.ID != orderID(2) || got.Epoch != 2 || got.Key != "kb" || got.At != 5 {
		t.Errorf("the adopted entry: got %+v", got)
	}
	if h, ok, err := s.Lookup(ctx, sale, orderID(2)); !ok || err != nil || h.UID != "b" {
		t.Errorf("lookup: got %+v, %v, %v", h, ok, err)
	}
	if ids, unsure, err := s.OrdersOf(ctx, []int64{sale}, "a"); err != nil || len(unsure) > 0 || !slices.Equal(ids[sale], []string{orderID(1)}) {
		t.Errorf("orders of a: got %v, %v, %v", ids, unsure, err)
	}
	for range 2 {
		if err := s.Retire(ctx, sale, []string{snap.Outbox[0].Entry}); err != nil {
			t.Fatal(err)
		}
	}
	if snap, err = s.Snapshot(ctx, sale); err != nil || len(snap.Outbox) != 0 {
		t.Errorf("after retiring: got %d entries, %v; want none", len(snap.Outbox), err)
	}
	if err := s.Forget(ctx, sale, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Release(ctx, sale, orderID(1)); !errors.Is(err, reserve.ErrNotLoaded) {
		t.Errorf("a forgotten sale: got %v, want ErrNotLoaded", err)
	}
}

func TestConcurrentBuyersNeverOversell(t *testing.T) {
	const stock, buyers = 50, 200
	s := openRedis(t)
	load(t, s, 1, reserve.Loaded{Definition: definition(t, s), Stock: stock, Total: stock})
	answers := make([]lua.Answer, buyers)
	var wg sync.WaitGroup
	for i := range buyers {
		wg.Go(func() {
			v, err := s.Reserve(t.Context(), press(i+1, fmt.Sprint("u", i)))
			if err != nil {
				t.Error(err)
			}
			answers[i] = v.Answer
		})
	}
	wg.Wait()
	counts := map[lua.Answer]int{}
	for _, a := range answers {
		counts[a]++
	}
	if counts[lua.Reserved] != stock || counts[lua.SoldOut] != buyers-stock {
		t.Errorf("got %v; want %d reserved and the others sold out", counts, stock)
	}
	snap, err := s.Snapshot(t.Context(), sale)
	if err != nil || snap.State.Stock != 0 || len(snap.Orders) != stock || len(snap.Outbox) != stock {
		t.Errorf("got stock %d, %d reservations, %d entries, %v", snap.State.Stock, len(snap.Orders), len(snap.Outbox), err)
	}
}

// What the outbox reader uses of streams: a blocking read of a group that sale_reserve.lua's XADD wakes, what is pending and
// since when, and claims.
func TestOutboxGroup(t *testing.T) {
	s := openRedis(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := s.Client()
	key := s.OutboxKey(sale)
	if err := c.Do(ctx, c.B().XgroupCreate().Key(key).Group(reserve.Group).Id("0").Mkstream().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	err := c.Do(ctx, c.B().XgroupCreate().Key(key).Group(reserve.Group).Id("0").Mkstream().Build()).Error()
	if e, ok := rueidis.IsRedisErr(err); !ok || !e.IsBusyGroup() {
		t.Fatalf("the group again: got %v, want BUSYGROUP", err)
	}
	load(t, s, 1, reserve.Loaded{Definition: definition(t, s), Stock: 3, Total: 3})

	read := make(chan map[string][]rueidis.XRangeEntry, 1)
	go func() {
		defer close(read)
		got, err := c.Do(ctx, c.B().Xreadgroup().Group(reserve.Group, "one").Count(10).Block(15000).Streams().Key(key).Id(">").Build()).AsXRead()
		if err != nil {
			t.Error(err)
			return
		}
		read <- got
	}()
	if _, err := s.Reserve(ctx, press(1, "a")); err != nil {
		t.Fatal(err)
	}
	got := <-read
	if len(got[key]) != 1 || got[key][0].FieldValues["id"] != orderID(1) {
		t.Fatalf("got %v; want the entry of %s", got, orderID(1))
	}
	entry := got[key][0].ID

	rows, err := c.Do(ctx, c.B().Xpending().Key(key).Group(reserve.Group).Idle(0).Start("-").End("+").Count(10).Build()).ToArray()
	if err != nil || len(rows) != 1 {
		t.Fatalf("XPENDING IDLE 0: got %v, %v; want one", rows, err)
	}
	if row, err := rows[0].ToArray(); err != nil || len(row) != 4 || text(row[0]) != entry || text(row[1]) != "one" {
		t.Fatalf("XPENDING: got %v, %v", rows[0], err)
	}
	rows, err = c.Do(ctx, c.B().Xpending().Key(key).Group(reserve.Group).Idle(3600000).Start("-").End("+").Count(10).Build()).ToArray()
	if err != nil || len(rows) != 0 {
		t.Fatalf("XPENDING IDLE of an hour: got %v, %v; want none", rows, err)
	}
	claimed, err := c.Do(ctx, c.B().Xclaim().Key(key).Group(reserve.Group).Consumer("two").MinIdleTime("0").Id(entry).Build()).AsXRange()
	if err != nil || len(claimed) != 1 {
		t.Fatalf("XCLAIM: got %v, %v; want one", claimed, err)
	}
	mine, err := c.Do(ctx, c.B().Xreadgroup().Group(reserve.Group, "two").Count(10).Streams().Key(key).Id("0").Build()).AsXRead()
	if err != nil || len(mine[key]) != 1 {
		t.Fatalf("two's own pending entries: got %v, %v; want one", mine, err)
	}
	if _, err = c.Do(ctx, c.B().Xreadgroup().Group(reserve.Group, "two").Count(10).Block(1).Streams().Key(key).Id(">").Build()).AsXRead(); !rueidis.IsRedisNil(err) {
		t.Fatalf("nothing new: got %v, want nil", err)
	}
	if err := s.Retire(ctx, sale, []string{entry}); err != nil {
		t.Fatal(err)
	}
	rows, err = c.Do(ctx, c.B().Xpending().Key(key).Group(reserve.Group).Start("-").End("+").Count(10).Build()).ToArray()
	if err != nil || len(rows) != 0 {
		t.Fatalf("after retiring: got %v pending, %v; want none", rows, err)
	}
	if n, err := c.Do(ctx, c.B().Xlen().Key(key).Build()).AsInt64(); n != 0 || err != nil {
		t.Fatalf("after retiring: got length %d, %v; want 0", n, err)
	}
}

func text(m rueidis.RedisMessage) string { s, _ := m.ToString(); return s }

// A subscription needs a connection of its own here: this server refuses other commands on it, also under RESP3.
func TestPublishSubscribe(t *testing.T) {
	s := openRedis(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := s.Client()
	heard := make(chan string, 1)
	ended := make(chan error, 1)
	hear, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		ended <- c.Dedicated(func(d rueidis.DedicatedClient) error {
			return d.Receive(hear, d.B().Subscribe().Channel("fg:settled").Build(), func(m rueidis.PubSubMessage) {
				select {
				case heard <- m.Message:
				default:
				}
			})
		})
	}()
	for { // until the subscription stands
		n, err := c.Do(ctx, c.B().Publish().Channel("fg:settled").Message("x").Build()).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			break
		}
	}
	if got := <-heard; got != "x" {
		t.Errorf("got %q, want x", got)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}

func TestSaysThatNothingIsKept(t *testing.T) {
	s := openRedis(t)
	c := s.Client()
	for name, want := range map[string]string{"appendonly": "no", "appendfsync": "no", "unheard-of": ""} {
		got, err := c.Do(t.Context(), c.B().ConfigGet().Parameter(name).Build()).AsStrMap()
		if err != nil || got[name] != want {
			t.Errorf("CONFIG GET %s: got %v, %v; want %q", name, got, err, want)
		}
	}
}

func TestALockAndItsLease(t *testing.T) {
	s := openRedis(t)
	l := lock.New(s.Client(), prometheus.NewRegistry())
	ctx, die := context.WithCancel(t.Context())
	defer die()
	const name, lease, long = "door", 300 * time.Millisecond, time.Hour
	owner := lock.NewOwner()
	first, err := l.Acquire(ctx, name, owner, lease, 0)
	if err != nil {
		t.Fatal(err)
	}
	if inner, err := l.Acquire(ctx, name, owner, lease, 0); err != nil || inner.Fence() != first.Fence() || inner.Release() != nil {
		t.Fatalf("a hold within the hold: got %+v, %v", inner, err)
	}
	var held *lock.HeldError
	if _, err := l.Acquire(t.Context(), name, lock.NewOwner(), lease, 0); !errors.As(err, &held) || held.Left > lease {
		t.Errorf("got %v, want it held for at most %v", err, lease)
	}
	die() // its lease is renewed no longer, and ends
	second, err := l.Acquire(t.Context(), name, lock.NewOwner(), long, long)
	if err != nil || second.Fence() <= first.Fence() {
		t.Fatalf("after the first lease: got %+v, %v", second, err)
	}
	waits := make(chan error, 1)
	go func() {
		third, err := l.Acquire(t.Context(), name, lock.NewOwner(), long, long)
		if err == nil {
			err = third.Release()
		}
		waits <- err
	}()
	if err := second.Release(); err != nil {
		t.Error(err)
	}
	if err := <-waits; err != nil { // long before an hour has passed
		t.Error(err)
	}
}
