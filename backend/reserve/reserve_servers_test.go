//go:build servers

package reserve_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

const sale = 42

var far = time.Now().Add(24 * time.Hour).UnixMilli()

// loaded is an open sale of 10 units, limit 3.
func loaded(t testing.TB, change func(*reserve.Loaded)) *reserve.Store {
	t.Helper()
	s := backendtest.Redis(t)
	l := reserve.Loaded{Epoch: 1, Stock: 10, Total: 10, Definition: reserve.Definition{Version: 1, Ends: far, Limit: 3}}
	if change != nil {
		change(&l)
	}
	if present, err := s.Shut(t.Context(), sale, 1); present || err != nil {
		t.Fatalf("shut: %v, %v", present, err)
	}
	if err := s.Load(t.Context(), sale, 1, l); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlock(t.Context(), sale, 1); err != nil {
		t.Fatal(err)
	}
	return s
}

func request(uid string, quantity int) reserve.Request {
	return reserve.Request{Sale: sale, UID: uid, Quantity: quantity, Epoch: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)}
}

func TestVerdicts(t *testing.T) {
	first := request("ann", 2)
	first.Key, first.Trace = "k", "00-t"
	ordered := func(t *testing.T, s *reserve.Store) {
		t.Helper()
		v, err := s.Reserve(t.Context(), first)
		if err != nil || v != (reserve.Verdict{Answer: lua.Reserved, OrderID: first.OrderID, Available: 8, Reserved: 2, Entry: v.Entry, Slots: "1,2", At: v.At}) {
			t.Fatalf("first: %+v, %v", v, err)
		}
		if snap, err := s.Snapshot(t.Context(), sale); err != nil || len(snap.Outbox) != 1 || snap.Outbox[0] != first.Entry(v) {
			t.Fatalf("the outbox has %+v, %v; want what the verdict says, %+v", snap.Outbox, err, first.Entry(v))
		}
	}
	repeat, reused, again, stale := request("ann", 2), request("ann", 1), request("ann", 2), request("bob", 1)
	repeat.Key, reused.Key, stale.Epoch = "k", "k", 9
	for name, c := range map[string]struct {
		change func(*reserve.Loaded)
		r      reserve.Request
		want   reserve.Verdict
	}{
		"repeated":        {nil, repeat, reserve.Verdict{Answer: lua.Repeated, OrderID: first.OrderID}},
		"key reused":      {nil, reused, reserve.Verdict{Answer: lua.KeyReused, OrderID: first.OrderID}},
		"already ordered": {nil, again, reserve.Verdict{Answer: lua.AlreadyOrdered, OrderID: first.OrderID}},
		"stale epoch":     {nil, stale, reserve.Verdict{Answer: lua.StaleEpoch, Epoch: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := loaded(t, c.change)
			ordered(t, s)
			if v, err := s.Reserve(t.Context(), c.r); err != nil || v != c.want {
				t.Errorf("got %+v, %v; want %+v", v, err, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		change func(*reserve.Loaded)
		want   reserve.Verdict
	}{
		"not started": {func(l *reserve.Loaded) { l.Starts = far }, reserve.Verdict{Answer: lua.NotStarted, StartsAt: far}},
		"ended":       {func(l *reserve.Loaded) { l.Ends = 1 }, reserve.Verdict{Answer: lua.Ended}},
		"closed":      {func(l *reserve.Loaded) { l.Closed = true }, reserve.Verdict{Answer: lua.Ended}},
		"paused":      {func(l *reserve.Loaded) { l.Paused = true }, reserve.Verdict{Answer: lua.Paused}},
		"sold out":    {func(l *reserve.Loaded) { l.Stock = 0 }, reserve.Verdict{Answer: lua.SoldOut}},
		"not enough":  {func(l *reserve.Loaded) { l.Stock = 1 }, reserve.Verdict{Answer: lua.NotEnough, Available: 1}},
		"all to come": {func(l *reserve.Loaded) { l.Later = []reserve.Tranche{{At: far, Units: 4}, {At: far + 1, Units: 6}} }, reserve.Verdict{Answer: lua.SoldOut}},
	} {
		t.Run(name, func(t *testing.T) {
			s := loaded(t, c.change)
			if v, err := s.Reserve(t.Context(), request("ann", 2)); err != nil || v != c.want {
				t.Errorf("got %+v, %v; want %+v", v, err, c.want)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	s := loaded(t, nil)
	ctx := t.Context()
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", what, err, want)
		}
	}
	adopt := func(what string, sale int64, answer lua.Answer, want error) {
		t.Helper()
		answers, err := s.Adopt(ctx, []queued.Entry{{ID: "o", Sale: sale, UID: "u", Quantity: 1}}, map[int64]int64{sale: 1})
		is(what, err, want)
		if err == nil && answers[0] != answer {
			t.Errorf("%s: got %s, want %s", what, answers[0], answer)
		}
	}
	other := request("ann", 1)
	other.Sale = sale + 1
	_, err := s.Reserve(ctx, other)
	is("reserve, not loaded", err, reserve.ErrNotLoaded)
	_, err = s.Release(ctx, sale+1, "o")
	is("release, not loaded", err, reserve.ErrNotLoaded)
	is("adjust, not loaded", s.Adjust(ctx, sale+1, 1, 1), reserve.ErrNotLoaded)
	is("define, not loaded", s.Define(ctx, sale+1, reserve.Definition{Version: 2}), reserve.ErrNotLoaded)
	adopt("adopt, not loaded", sale+1, lua.GateClosed, nil)
	is("adjust, too few", s.Adjust(ctx, sale, 1, -11), reserve.ErrNotEnough)
	is("unlock what is open", s.Unlock(ctx, sale, 1), reserve.ErrLost)
	_, err = s.Shut(ctx, sale, 1)
	is("shut with an old token", err, reserve.ErrLost)
	if present, err := s.Shut(ctx, sale, 2); !present || err != nil {
		t.Errorf("shut: %v, %v; want present", present, err)
	}
	_, err = s.Reserve(ctx, request("ann", 1))
	is("reserve, closed", err, reserve.ErrGateClosed)
	_, err = s.Release(ctx, sale, "o")
	is("release, closed", err, reserve.ErrGateClosed)
	is("adjust, closed", s.Adjust(ctx, sale, 1, 1), reserve.ErrGateClosed)
	adopt("adopt, closed", sale, lua.GateClosed, nil)
	is("load by another token", s.Load(ctx, sale, 1, reserve.Loaded{}), reserve.ErrLost)
	if err := s.Client().Do(ctx, s.Client().B().ScriptFlush().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Reserve(ctx, request("ann", 1))
	is("reserve, restarted", err, redis.ErrRestarted)
	adopt("adopt, restarted", sale, "", redis.ErrRestarted)
	if armed, err := s.Client().AllReserve(ctx); armed || err != nil {
		t.Errorf("AllReserve: got %v, %v; want false", armed, err)
	}
	if err := s.Load(ctx, sale, 2, reserve.Loaded{Epoch: 2, Stock: 1, Total: 1, Definition: reserve.Definition{Ends: far, Limit: 1}}); err != nil {
		t.Errorf("the other scripts are sent whole: %v", err)
	}
	if err := s.Client().Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if armed, err := s.Client().AllReserve(ctx); !armed || err != nil {
		t.Errorf("AllReserve: got %v, %v; want true", armed, err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Reserve(cancelled, request("ann", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: got %v", err)
	}
}

// A call whose answer is lost is an error, and is never made again by itself: whoever called knows what may be repeated.
func TestALostAnswerIsAnError(t *testing.T) {
	direct := loaded(t, nil)
	cut := netfault.New(t, os.Getenv("REDIS_ADDR"))
	s, err := reserve.Open(redis.Config{Addrs: []string{cut.Addr()}, Prefix: direct.Client().Prefix()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	name := uuid.NewString()
	for _, script := range []lua.Script{lua.SaleReserveIn(name), lua.SaleAdoptIn(name)} {
		if err := direct.Client().Do(t.Context(), direct.Client().B().ScriptLoad().Script(script.Source).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	direct.Client().Use(name)
	s.Client().Use(name)
	lost, ended := request("ann", 1), request("bob", 1)
	if _, err := direct.Reserve(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		script lua.Script
		call   func() error
		stock  int64 // after it: it was carried out, once
	}{
		{"reserve", lua.SaleReserveIn(name), func() error { _, err := s.Reserve(t.Context(), lost); return err }, 8},
		{"release", lua.SaleRelease, func() error { _, err := s.Release(t.Context(), sale, ended.OrderID); return err }, 9},
		{"adjust", lua.SaleAdjust, func() error { return s.Adjust(t.Context(), sale, 1, 5) }, 14},
	} {
		if err := direct.Client().Do(t.Context(), direct.Client().B().ScriptLoad().Script(c.script.Source).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		cut.LoseAnswerTo(c.script.SHA)
		if err := c.call(); err == nil {
			t.Errorf("%s: got no error, want an error: its answer was lost", c.name)
		}
		states, err := direct.States(t.Context(), []int64{sale})
		if err != nil || states[0].Stock != c.stock {
			t.Errorf("%s: got stock %d, %v; want %d", c.name, states[0].Stock, err, c.stock)
		}
	}
}

func TestWhatIsLoadedIsRead(t *testing.T) {
	l := reserve.Loaded{Epoch: 3, Stock: 5, Total: 10, Applied: []int64{7, 8},
		Definition: reserve.Definition{Version: 4, Starts: 1, Ends: far, Limit: 3, Later: []reserve.Tranche{{At: far, Units: 2}}},
		Orders: []reserve.Held{{ID: "o1", UID: "ann", Quantity: 2, Slots: "1,2", Entry: "1-1", At: 5, Key: "a key"},
			{ID: "o2", UID: "ann", Quantity: 1, Slots: "3", Entry: "-", At: 6}, {ID: "o3", UID: "bob", Quantity: 2, Slots: "1,2", Entry: "-", At: 7}},
		Keys: []reserve.AcceptedKey{{UID: "cid", Key: "k", OrderID: "o0", Quantity: 1}}}
	s := loaded(t, func(x *reserve.Loaded) { *x = l })
	states, err := s.States(t.Context(), []int64{sale, sale + 1})
	if err != nil {
		t.Fatal(err)
	}
	want := []reserve.State{{Definition: l.Definition, Present: true, Gate: lua.GateOpen, Token: 1, Epoch: 3, Stock: 5, Total: 10}, {}}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Error(diff)
	}
	if a, b := states[0].Available(far-1), states[0].Available(far); a != 3 || b != 5 {
		t.Errorf("available: got %d and %d, want 3 and 5", a, b)
	}
	snap, err := s.Snapshot(t.Context(), sale)
	if err != nil || len(snap.Bad) > 0 {
		t.Fatal(err, snap.Bad)
	}
	slices.SortFunc(snap.Orders, func(a, b reserve.Held) int { return int(a.At - b.At) })
	if diff := cmp.Diff(reserve.Snapshot{State: want[0], Orders: l.Orders, Buyers: map[string]string{"ann": "1=o1,2=o1,3=o2", "bob": "1=o3,2=o3"},
		Applied: map[int64]bool{7: true, 8: true}, Keys: 5}, snap); diff != "" {
		t.Error(diff)
	}
	if h, ok, err := s.Lookup(t.Context(), sale, "o1"); err != nil || !ok || h != l.Orders[0] {
		t.Errorf("lookup: got %+v, %v, %v", h, ok, err)
	}
	if _, ok, err := s.Lookup(t.Context(), sale, "o9"); err != nil || ok {
		t.Errorf("lookup of none: got %v, %v", ok, err)
	}
	of, unsure, err := s.OrdersOf(t.Context(), []int64{sale, sale + 1}, "ann")
	if diff := cmp.Diff(map[int64][]string{sale: {"o1", "o2"}}, of); err != nil || diff != "" || !slices.Equal(unsure, []int64{sale + 1}) {
		t.Error(err, diff, unsure)
	}
	for uid, key := range map[string][2]string{"ann": {"a key", "o1"}, "cid": {"k", "o0"}} {
		r := request(uid, map[string]int{"ann": 2, "cid": 1}[uid])
		r.Key, r.Epoch = key[0], 3
		if v, err := s.Reserve(t.Context(), r); err != nil || v.Answer != lua.Repeated || v.OrderID != key[1] {
			t.Errorf("%s repeats: got %+v, %v", uid, v, err)
		}
	}
	if id, units, ok, err := s.Accepted(t.Context(), sale, "ann", "a key"); id != "o1" || units != 2 || !ok || err != nil {
		t.Errorf("ann's key: got %s, %d, %v, %v", id, units, ok, err)
	}
	if _, _, ok, err := s.Accepted(t.Context(), sale, "bob", "a key"); ok || err != nil {
		t.Errorf("a key of nobody: got %v, %v", ok, err)
	}
	if err := s.Forget(t.Context(), sale, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	if there, err := s.Join(t.Context(), sale); there || err != nil {
		t.Errorf("join a forgotten sale: got %v, %v", there, err)
	}
	if states, err := s.States(t.Context(), []int64{sale}); err != nil || states[0].Present {
		t.Errorf("forgotten: got %+v, %v", states, err)
	}
}

func TestTheOutboxIsReadInPagesAndRetired(t *testing.T) {
	const orders = 1203
	s := loaded(t, func(l *reserve.Loaded) { l.Stock, l.Total = orders, orders })
	var ids []string
	for i := range orders {
		r := request(fmt.Sprint("u", i), 1)
		r.Key, r.Trace = fmt.Sprint("k", i), "00-trace"
		if v, err := s.Reserve(t.Context(), r); err != nil || v.Answer != lua.Reserved {
			t.Fatal(v, err)
		}
		ids = append(ids, r.OrderID)
	}
	if err := s.Client().Do(t.Context(), s.Client().B().Xadd().Key(s.OutboxKey(sale)).Id("*").FieldValue().FieldValue("id", "what").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	es, bad, err := s.Outbox(t.Context(), sale)
	if err != nil || len(bad) != 1 || len(es) != orders {
		t.Fatalf("got %d entries, bad %v, %v; want %d, one bad", len(es), bad, err, orders)
	}
	var entries []string
	for i, e := range es {
		if e.ID != ids[i] || e.Sale != sale || e.UID != fmt.Sprint("u", i) || e.Key != fmt.Sprint("k", i) || e.Epoch != 1 || e.Slots != "1" || e.Trace != "00-trace" {
			t.Fatalf("entry %d: %+v", i, e)
		}
		entries = append(entries, e.Entry)
	}
	if err := s.Retire(t.Context(), sale, entries); err != nil {
		t.Fatal(err)
	}
	if es, bad, err := s.Outbox(t.Context(), sale); err != nil || len(es) != 0 || len(bad) != 1 {
		t.Errorf("after retiring: %d entries, %v, %v", len(es), bad, err)
	}
	if err := s.Retire(t.Context(), sale, nil); err != nil {
		t.Error(err)
	}
}

func TestDefineAndAdjust(t *testing.T) {
	s := loaded(t, nil)
	d := reserve.Definition{Version: 2, Starts: 5, Ends: far, Limit: 7, Paused: true, Later: []reserve.Tranche{{At: 9, Units: 1}, {At: far, Units: 2}}}
	for range 2 {
		if err := s.Define(t.Context(), sale, d); err != nil {
			t.Fatal(err)
		}
		if err := s.Adjust(t.Context(), sale, 77, -3); err != nil {
			t.Fatal(err)
		}
	}
	states, err := s.States(t.Context(), []int64{sale})
	if err != nil {
		t.Fatal(err)
	}
	want := reserve.State{Definition: d, Present: true, Gate: lua.GateOpen, Token: 1, Epoch: 1, Stock: 7, Total: 7}
	if diff := cmp.Diff(want, states[0]); diff != "" {
		t.Error(diff)
	}
}

func TestNobodyIsToldThatAnOrderIsNotThereWhileTheSaleIsWrittenAnew(t *testing.T) {
	s := loaded(t, func(l *reserve.Loaded) {
		l.Orders = []reserve.Held{{ID: "o1", UID: "ann", Quantity: 1, Slots: "1", Entry: "-", At: 5}}
	})
	if _, ok, err := s.Lookup(t.Context(), sale, "o9"); ok || err != nil {
		t.Errorf("behind an open gate: got %v, %v, want none", ok, err)
	}
	if _, ok, err := s.Lookup(t.Context(), sale+1, "o9"); ok || !errors.Is(err, reserve.ErrNotLoaded) {
		t.Errorf("a sale that is not in redis: got %v, %v", ok, err)
	}
	if _, err := s.Shut(t.Context(), sale, 2); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Lookup(t.Context(), sale, "o9"); ok || !errors.Is(err, reserve.ErrGateClosed) {
		t.Errorf("behind a closed gate: got %v, %v", ok, err)
	}
	if h, ok, err := s.Lookup(t.Context(), sale, "o1"); !ok || err != nil || h.UID != "ann" {
		t.Errorf("behind a closed gate, what is there: got %+v, %v, %v", h, ok, err)
	}
}

// A Redis that came back with an older copy has its gates open until a reconciler closes them. What it does not hold then may
// have been promised all the same.
func TestAnOlderCopyIsNotSureOfWhatItDoesNotHold(t *testing.T) {
	s := loaded(t, func(l *reserve.Loaded) {
		l.Orders = []reserve.Held{{ID: "o1", UID: "ann", Quantity: 1, Slots: "1", Entry: "-", At: 5}}
	})
	sure := func(want bool) {
		t.Helper()
		_, ok, err := s.Lookup(t.Context(), sale, "o9")
		_, unsure, err2 := s.OrdersOf(t.Context(), []int64{sale}, "bob")
		if ok || err2 != nil || (err == nil) != want || !want && !errors.Is(err, reserve.ErrGateClosed) || (len(unsure) == 0) != want {
			t.Errorf("got %t, %v; unsure %v, %v; want it sure: %t", ok, err, unsure, err2, want)
		}
		if h, ok, err := s.Lookup(t.Context(), sale, "o1"); !ok || err != nil || h.UID != "ann" {
			t.Errorf("what it holds: got %+v, %t, %v", h, ok, err)
		}
	}
	sure(true)
	s.Client().Use("an incarnation that this Redis does not know: it was started anew, and nobody has closed its gates yet")
	sure(false)
}
