//go:build servers

package lua_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// now is Redis's clock in milliseconds.
func (s *sale) now() int64 {
	s.t.Helper()
	v, err := s.c.Do(s.t.Context(), s.c.B().Time().Build()).AsIntSlice()
	if err != nil {
		s.t.Fatal(err)
	}
	return v[0]*1000 + v[1]/1000
}

// Rows B2, B4: one script decides, and adds the order to the stream in the same moment.
func TestReserveWritesEverything(t *testing.T) {
	t.Attr("row", "B2 B4")
	s := openSale(t, options{stock: 10, limit: 3})
	before := s.now()
	want(t, s.reserve(press{uid: "ann", quantity: 2, order: "o1", key: "k 1?{}", tr: "00-abc"}), lua.Reserved, "o1", "8", "2")
	after := s.now()
	x := s.entries()
	if len(x) != 1 {
		t.Fatalf("%d entries", len(x))
	}
	at, err := strconv.ParseInt(x[0].FieldValues["at"], 10, 64)
	if err != nil || at < before || at > after {
		t.Errorf("at %q is not between %d and %d", x[0].FieldValues["at"], before, after)
	}
	fields := map[string]string{"id": "o1", "uid": "ann", "quantity": "2", "slots": "1,2", "key": "k 1?{}", "epoch": "1", "at": n(at), "trace": "00-abc"}
	if !maps.Equal(x[0].FieldValues, fields) {
		t.Errorf("entry: got %v, want %v", x[0].FieldValues, fields)
	}
	if got, want := s.hash(s.orders)["o1"], "ann 2 1,2 "+x[0].ID+" "+n(at)+" k 1?{}"; got != want {
		t.Errorf("reservation: got %q, want %q", got, want)
	}
	if got := s.hash(s.buyers)["ann"]; got != "1=o1,2=o1" {
		t.Errorf("buyer: got %q", got)
	}
	if got := s.hash(s.idem)["ann:k 1?{}"]; got != "o1 2" {
		t.Errorf("key: got %q", got)
	}
	if got := s.hash(s.state)["stock"]; got != "8" {
		t.Errorf("stock: got %s", got)
	}
	want(t, s.reserve(press{uid: "ann", order: "o2"}), lua.Reserved, "o2", "7", "3")
	if got := s.hash(s.buyers)["ann"]; got != "1=o1,2=o1,3=o2" {
		t.Errorf("buyer: got %q", got)
	}
	if len(s.hash(s.idem)) != 1 {
		t.Errorf("an order without a key left one: %v", s.hash(s.idem))
	}
	s.adds(3)
}

// TestReserveRefuses has every refusal; none writes anything.
//
// Rows A1, A2, B2: each refusal has its own answer.
func TestReserveRefuses(t *testing.T) {
	t.Attr("row", "A1 A2 B2")
	closed := func(gate string) func(*sale) { return func(s *sale) { s.set("gate", gate) } }
	one := func(s *sale) { s.reserve(press{uid: "ann", quantity: 2, order: "o1", key: "k"}) }
	far := int64(1) << 50
	for name, c := range map[string]struct {
		o     options
		first func(*sale)
		p     press
		want  lua.Reply
	}{
		"gate closed":                 {first: closed(lua.GateShut), p: press{uid: "ann", order: "o"}, want: reply(lua.GateClosed)},
		"gate adopts":                 {first: closed(lua.GateAdopt), p: press{uid: "ann", order: "o"}, want: reply(lua.GateClosed)},
		"an older epoch":              {first: func(s *sale) { s.set("epoch", "2") }, p: press{uid: "ann", order: "o"}, want: reply(lua.StaleEpoch, "2")},
		"a newer epoch":               {p: press{epoch: 2, uid: "ann", order: "o"}, want: reply(lua.StaleEpoch, "1")},
		"same order again":            {o: options{limit: 3}, first: one, p: press{uid: "ann", order: "o1"}, want: reply(lua.Repeated, "o1")},
		"same key again":              {o: options{limit: 3}, first: one, p: press{uid: "ann", quantity: 2, order: "o2", key: "k"}, want: reply(lua.Repeated, "o1")},
		"same key, other quantity":    {o: options{limit: 3}, first: one, p: press{uid: "ann", quantity: 1, order: "o2", key: "k"}, want: reply(lua.KeyReused, "o1")},
		"the limit":                   {o: options{limit: 3}, first: one, p: press{uid: "ann", quantity: 2, order: "o2"}, want: reply(lua.AlreadyOrdered, "o1")},
		"more than the limit":         {o: options{limit: 3}, p: press{uid: "ann", quantity: 4, order: "o2"}, want: reply(lua.NotEnough, "3")},
		"not started":                 {o: options{starts: far}, p: press{uid: "ann", order: "o"}, want: reply(lua.NotStarted, n(far))},
		"ended":                       {o: options{ends: 1}, p: press{uid: "ann", order: "o"}, want: reply(lua.Ended)},
		"closed for good":             {o: options{starts: far, closed: "1"}, p: press{uid: "ann", order: "o"}, want: reply(lua.Ended)},
		"paused":                      {o: options{paused: "1"}, p: press{uid: "ann", order: "o"}, want: reply(lua.Paused)},
		"sold out":                    {o: options{stock: 2, limit: 3}, first: one, p: press{uid: "bob", order: "o"}, want: reply(lua.SoldOut)},
		"less than asked for":         {o: options{stock: 3, limit: 3}, first: one, p: press{uid: "bob", quantity: 2, order: "o"}, want: reply(lua.NotEnough, "1")},
		"all is to come":              {o: options{stock: 5, later: n(far) + ":5"}, p: press{uid: "bob", order: "o"}, want: reply(lua.SoldOut)},
		"more is to come than stock":  {o: options{stock: 5, later: n(far) + ":3 " + n(far+1) + ":4"}, p: press{uid: "bob", order: "o"}, want: reply(lua.SoldOut)},
		"a part is to come":           {o: options{stock: 5, limit: 9, later: "5:1 " + n(far) + ":3"}, p: press{uid: "bob", quantity: 3, order: "o"}, want: reply(lua.NotEnough, "2")},
		"repeats are known when over": {o: options{limit: 3}, first: func(s *sale) { one(s); s.set("ends", "1"); s.set("stock", "0") }, p: press{uid: "ann", quantity: 2, order: "o2", key: "k"}, want: reply(lua.Repeated, "o1")},
	} {
		t.Run(name, func(t *testing.T) {
			s := openSale(t, c.o)
			if c.first != nil {
				c.first(s)
			}
			before := s.content()
			want(t, s.reserve(c.p), c.want.Answer(), c.want[1:]...)
			if after := s.content(); after != before {
				t.Errorf("it changed\n%s\ninto\n%s", before, after)
			}
		})
	}
	s := newSale(t)
	want(t, s.reserve(press{uid: "ann", order: "o"}), lua.NotLoaded)
}

func TestKeysAreScopedToTheirBuyer(t *testing.T) {
	s := openSale(t, options{limit: 2})
	want(t, s.reserve(press{uid: "ann", order: "o1", key: "k"}), lua.Reserved, "o1", "9", "1")
	want(t, s.reserve(press{uid: "bob", order: "o2", key: "k"}), lua.Reserved, "o2", "8", "2")
	want(t, s.reserve(press{uid: "ann", order: "o3", key: "K"}), lua.Reserved, "o3", "7", "3")
	// a key outlives the reservation
	want(t, s.release("o1"), lua.Released, "8")
	want(t, s.reserve(press{uid: "ann", order: "o4", key: "k"}), lua.Repeated, "o1")
}

// TestNothingOfASaleExpires: what Redis forgets by itself would be sold, or promised, twice.
func TestNothingOfASaleExpires(t *testing.T) {
	s := openSale(t, options{stock: 10, limit: 3})
	never := func(after string) {
		t.Helper()
		for name, key := range map[string]string{"state": s.state, "orders": s.orders, "buyers": s.buyers, "idem": s.idem, "outbox": s.outbox, "applied": s.applied} {
			if ms, err := s.c.Do(t.Context(), s.c.B().Pttl().Key(key).Build()).AsInt64(); err != nil || ms != -1 {
				t.Errorf("after %s: %s expires in %d ms, %v; want -1: never", after, name, ms, err)
			}
		}
	}
	s.reserve(press{uid: "ann", order: "o1", key: "k"})
	s.reserve(press{uid: "bob", order: "o2", key: "k"})
	want(t, s.call(lua.SaleAdjust, keys(s.state, s.applied), "1", "1"), lua.Applied, "9", "11")
	never("reserve and adjust")
	s.reserve(press{uid: "ann", order: "o3", key: "k"})
	s.reserve(press{uid: "cid", order: "o4", key: "k"})
	want(t, s.release("o1"), lua.Released, "9")
	never("a repeat and a release")
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	want(t, s.step(2, lua.StepBegin), lua.OK)
	want(t, s.step(2, lua.StepOrders, "o2", "bob", "1", "1", "-", "1000", "k"), lua.OK)
	want(t, s.step(2, lua.StepKeys, "bob:k", "o2 1"), lua.OK)
	want(t, s.step(2, lua.StepIntent, "1"), lua.OK)
	want(t, s.step(2, lua.StepFinish, "2", "10", "11", "0", "9999999999999", "3", "0", "0", "", "1", "0"), lua.OK)
	if got := s.adopt(2, press{uid: "dan", order: "o5", key: "k"}, "1"); got.Answer() != lua.Adopted {
		t.Errorf("got %q, want adopted", got)
	}
	never("a load and an adoption")
}

func TestTheNewestOrderIsNamedAtTheLimit(t *testing.T) {
	s := openSale(t, options{limit: 3})
	for _, o := range []string{"b", "c", "a"} {
		s.reserve(press{uid: "ann", order: o})
	}
	want(t, s.reserve(press{uid: "ann", order: "d"}), lua.AlreadyOrdered, "c")
}

// untilAnswer reserves until the answer's first word is another one, and returns it.
func (s *sale) untilAnswer(old lua.Answer, p press) lua.Reply {
	s.t.Helper()
	for {
		if words := s.reserve(p); words.Answer() != old {
			return words
		}
	}
}

// define is a newer definition of an open sale of limit 1.
func (s *sale) define(version, starts, ends int64, later string) {
	s.t.Helper()
	want(s.t, s.call(lua.SaleDefine, keys(s.state), n(version), n(starts), n(ends), "1", "0", "0", later), lua.Defined)
}

const never = 1 << 52 // milliseconds

// Row A1: before the start and after the end, by one clock.
func TestTheWindowIsJudgedByRedisTime(t *testing.T) {
	t.Attr("row", "A1")
	s := openSale(t, options{stock: 1000000, starts: never})
	starts := s.now() + 150
	s.define(2, starts, never, "")
	want(t, s.untilAnswer(lua.NotStarted, press{uid: "first", order: "first"}), lua.Reserved, "first", "999999", "1")
	if now := s.now(); now < starts {
		t.Errorf("reserved at %d, before %d", now, starts)
	}
	ends := s.now() + 150
	s.define(3, starts, ends, "")
	for i := 0; ; i++ {
		if words := s.reserve(press{uid: fmt.Sprint("u", i), order: fmt.Sprint("o", i)}); words.Answer() != lua.Reserved {
			want(t, words, lua.Ended)
			break
		}
	}
	if now := s.now(); now < ends {
		t.Errorf("ended at %d, before %d", now, ends)
	}
	for _, x := range s.entries() {
		if at, err := strconv.ParseInt(x.FieldValues["at"], 10, 64); err != nil || at < starts || at >= ends {
			t.Errorf("a press at %d, %v, the window was [%d, %d)", at, err, starts, ends)
		}
	}
}

// Row D6: what is to come is not sold before its time, and needs no timer.
func TestTranchesAreReleasedByRedisTime(t *testing.T) {
	t.Attr("row", "D6")
	later := func(first, second int64) string { return n(first) + ":4 " + n(second) + ":5" }
	s := openSale(t, options{stock: 10, later: later(never, never)})
	sold := 0
	take := func(most int, from int64) {
		t.Helper()
		for i := range most {
			words := s.untilAnswer(lua.SoldOut, press{uid: fmt.Sprint("u", sold), order: fmt.Sprint("o", sold)})
			sold++
			want(t, words, lua.Reserved, fmt.Sprint("o", sold-1), n(int64(most-i-1)), n(int64(sold)))
		}
		if now := s.now(); now < from {
			t.Errorf("%d were sold at %d, before %d", sold, now, from)
		}
	}
	take(1, 0)
	first := s.now() + 150
	s.define(2, 0, never, later(first, never))
	take(4, first)
	second := s.now() + 150
	s.define(3, 0, never, later(first, second))
	take(5, second)
	want(t, s.reserve(press{uid: "late", order: "late"}), lua.SoldOut)
	s.adds(1)
}

func TestFreedSlotsAreUsedAgain(t *testing.T) {
	s := openSale(t, options{stock: 10, limit: 3})
	want(t, s.reserve(press{uid: "ann", quantity: 2, order: "o1"}), lua.Reserved, "o1", "8", "2")
	want(t, s.reserve(press{uid: "ann", order: "o2"}), lua.Reserved, "o2", "7", "3")
	want(t, s.release("o1"), lua.Released, "9")
	want(t, s.reserve(press{uid: "ann", quantity: 3, order: "o3"}), lua.AlreadyOrdered, "o2")
	want(t, s.reserve(press{uid: "ann", quantity: 1, order: "o4"}), lua.Reserved, "o4", "8", "2")
	want(t, s.reserve(press{uid: "ann", quantity: 1, order: "o5"}), lua.Reserved, "o5", "7", "3")
	pairs := strings.Split(s.hash(s.buyers)["ann"], ",")
	slices.Sort(pairs)
	if want := []string{"1=o4", "2=o5", "3=o2"}; !slices.Equal(pairs, want) {
		t.Errorf("slots: got %v, want %v", pairs, want)
	}
	for _, o := range []string{"o2", "o4", "o5"} {
		s.release(o)
	}
	if held, there := s.hash(s.buyers)["ann"]; there {
		t.Errorf("a buyer without orders still holds %q", held)
	}
	if got := s.hash(s.state)["stock"]; got != "10" {
		t.Errorf("stock: got %s, want 10", got)
	}
}

// Row A2: 200 callers at once get what there is, and no unit more.
func TestACrowdGetsExactlyTheStock(t *testing.T) {
	t.Attr("row", "A2")
	s := openSale(t, options{stock: 50, limit: 1})
	got := all(t, 200, func(i int) (lua.Reply, error) {
		return s.tryReserve(press{uid: fmt.Sprint("u", i), order: fmt.Sprint("o", i)})
	})
	counted(t, got, map[lua.Answer]int{lua.Reserved: 50, lua.SoldOut: 150})
	if len(s.hash(s.buyers)) != 50 || len(s.hash(s.orders)) != 50 || len(s.entries()) != 50 {
		t.Errorf("%d buyers, %d orders, %d entries; want 50 each", len(s.hash(s.buyers)), len(s.hash(s.orders)), len(s.entries()))
	}
	s.adds(1)
}

// Row D12, for sales: of calls at the same time each decides by what the one before it left, also where they ask for several units.
func TestACrowdWithQuantitiesGetsExactlyTheStock(t *testing.T) {
	t.Attr("row", "D12")
	s := openSale(t, options{stock: 70, limit: 3})
	got := all(t, 200, func(i int) (lua.Reply, error) { // 40 buyers press five times each
		return s.tryReserve(press{uid: fmt.Sprint("u", i%40), quantity: int64(i/40)%3 + 1, order: fmt.Sprintf("o%03d", i)})
	})
	s.adds(3)
	if got[lua.Reserved]+got[lua.AlreadyOrdered]+got[lua.SoldOut]+got[lua.NotEnough] != 200 {
		t.Errorf("answers: %v", got)
	}
	for i := 0; s.hash(s.state)["stock"] != "0"; i++ { // somebody else takes the odd units
		s.reserve(press{uid: fmt.Sprint("v", i), order: fmt.Sprint("p", i)})
	}
	want(t, s.reserve(press{uid: "late", order: "late"}), lua.SoldOut)
	s.adds(3)
}

// Row A4: one person, one order, however often and however much at once they press.
func TestOneBuyerPressing200TimesGetsOne(t *testing.T) {
	t.Attr("row", "A4")
	s := openSale(t, options{stock: 50, limit: 1})
	got := all(t, 200, func(i int) (lua.Reply, error) { return s.tryReserve(press{uid: "ann", order: fmt.Sprint("o", i)}) })
	counted(t, got, map[lua.Answer]int{lua.Reserved: 1, lua.AlreadyOrdered: 199})
	s.adds(1)
}

func TestOneKeyFrom200CallersIsOneOrder(t *testing.T) {
	s := openSale(t, options{stock: 50, limit: 3})
	answers := make([]string, 200)
	got := all(t, 200, func(i int) (lua.Reply, error) {
		words, err := s.tryReserve(press{uid: "ann", quantity: 2, order: fmt.Sprint("o", i), key: "key"})
		if err == nil {
			answers[i] = words[1]
		}
		return words, err
	})
	counted(t, got, map[lua.Answer]int{lua.Reserved: 1, lua.Repeated: 199})
	if ids := slices.Compact(answers); len(ids) != 1 {
		t.Errorf("the callers were told of the orders %v", ids)
	}
	if got := s.hash(s.state)["stock"]; got != "48" {
		t.Errorf("stock: got %s, want 48", got)
	}
	s.adds(3)
}

func TestAReleaseHappensOnce(t *testing.T) {
	s := openSale(t, options{stock: 5, limit: 3})
	s.reserve(press{uid: "ann", quantity: 3, order: "o1"})
	got := all(t, 200, func(int) (lua.Reply, error) {
		return s.try(lua.SaleRelease, keys(s.state, s.orders, s.buyers, s.idem, s.gone), "o1")
	})
	counted(t, got, map[lua.Answer]int{lua.Released: 1, lua.Done: 199})
	if got := s.hash(s.state)["stock"]; got != "5" {
		t.Errorf("stock: got %s, want 5", got)
	}
	want(t, s.release("never was"), lua.Done)
	for _, gate := range []string{lua.GateShut, lua.GateAdopt} {
		s.set("gate", gate)
		want(t, s.release("o1"), lua.GateClosed)
	}
	want(t, newSale(t).release("o1"), lua.NotLoaded)
}

// TestASessionKeepsItsSums mixes everything at once.
func TestASessionKeepsItsSums(t *testing.T) {
	s := openSale(t, options{stock: 30, limit: 2})
	all(t, 200, func(i int) (lua.Reply, error) {
		id := fmt.Sprintf("o%03d", i)
		words, err := s.tryReserve(press{uid: fmt.Sprint("u", i%25), quantity: int64(i%2) + 1, order: id, key: fmt.Sprint("k", i%7)})
		if err == nil && words.Answer() == lua.Reserved && i%3 == 0 {
			return s.try(lua.SaleRelease, keys(s.state, s.orders, s.buyers, s.idem, s.gone), id)
		}
		return words, err
	})
	s.adds(2)
}

func TestARedisThatForgotTheScriptSaysSo(t *testing.T) {
	s := openSale(t, options{})
	if err := s.c.Do(t.Context(), s.c.B().ScriptFlush().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	_, err := s.tryReserve(press{uid: "ann", order: "o"})
	if e, ok := rueidis.IsRedisErr(err); !ok || !e.IsNoScript() {
		t.Errorf("got %v, want NOSCRIPT", err)
	}
	if len(s.entries()) != 0 {
		t.Error("it reserved all the same")
	}
}

// While somebody waits in the standby line, what is available is the line's; and it is clear at every instant who is to say that
// nobody does any more.
func TestTheStandbyLineKeepsWhatIsAvailable(t *testing.T) {
	s := openSale(t, options{stock: 2})
	step := func(args ...string) []string { return s.call(lua.SaleStandby, keys(s.state, s.buyers), args...) }
	want(t, step(lua.StepLook, "ann"), lua.Available)
	want(t, s.reserve(press{uid: "ann", order: "o1"}), lua.Reserved, "o1", "1", "1")
	want(t, step(lua.StepLook, "ann"), lua.AlreadyOrdered, "o1")
	want(t, step(lua.StepRest, "0"), lua.Kept)
	want(t, step(lua.StepWait, "5"), lua.Done)
	want(t, step(lua.StepWait, "4"), lua.Kept)
	want(t, step(lua.StepLook, "bob"), lua.Joinable)
	want(t, s.reserve(press{uid: "bob", order: "o2"}), lua.SoldOut)
	want(t, s.reserve(press{uid: "cyd", order: "o3", key: "standby o3", line: lua.ForLine}), lua.Reserved, "o3", "0", "2")
	want(t, s.reserve(press{uid: "dan", order: "o4", line: lua.ForLine}), lua.SoldOut)
	want(t, s.call(lua.SaleRelease, keys(s.state, s.orders, s.buyers, s.idem, s.gone), "o3"), lua.Released, "1")
	want(t, s.reserve(press{uid: "cyd", order: "o3", key: "standby o3", line: lua.ForLine}), lua.Repeated, "o3") // once offered, never again
	want(t, step(lua.StepRest, "4"), lua.Kept)                                                                   // somebody came since
	want(t, step(lua.StepRest, "5"), lua.Done)
	want(t, step(lua.StepRest, "5"), lua.Kept)
	want(t, s.reserve(press{uid: "bob", order: "o2"}), lua.Reserved, "o2", "0", "2")

	// A load keeps the newest place, whoever noted it, also while it is under way.
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	want(t, step(lua.StepLook, "eve"), lua.GateClosed)
	want(t, step(lua.StepWait, "7"), lua.Done)
	s.load(2, 2, options{standby: 6})
	if got := s.hash(s.state)["standby"]; got != "7" {
		t.Errorf("place: got %s, want 7", got)
	}
	s.set("gate", lua.GateShut)
	s.load(2, 3, options{standby: 9})
	if got := s.hash(s.state)["standby"]; got != "9" {
		t.Errorf("place: got %s, want 9", got)
	}
	none := newSale(t)
	want(t, none.call(lua.SaleStandby, keys(none.state, none.buyers), lua.StepWait, "1"), lua.NotLoaded)
	want(t, none.call(lua.SaleStandby, keys(none.state, none.buyers), lua.StepLook, "ann"), lua.NotLoaded)
	for what, o := range map[lua.Answer]options{lua.NotStarted: {starts: 1 << 51}, lua.Ended: {ends: 1}, lua.Paused: {paused: "1"}} {
		shut := openSale(t, o)
		if got := shut.call(lua.SaleStandby, keys(shut.state, shut.buyers), lua.StepLook, "ann"); got.Answer() != what {
			t.Errorf("got %q, want %s", got, what)
		}
	}
}
