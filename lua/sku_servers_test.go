//go:build servers

package lua_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"floodgate.internal/lua"
)

// sku is one SKU of a test. Its sale is only what calls and compares.
type sku struct {
	*sale
	state, orders, open, applied string
}

// newSKU is a SKU that is not in Redis.
func newSKU(t *testing.T) *sku {
	t.Helper()
	base := "t" + rand.Text() + ":{sku:7}:"
	s := &sku{newSale(t), base + "state", base + "orders", base + "open", base + "applied"}
	t.Cleanup(func() {
		if err := s.c.Do(context.Background(), s.c.B().Del().Key(s.state, s.orders, s.open, s.applied).Build()).Error(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openSKU is one that was loaded in epoch 3 with these units, and intents up to 10.
func openSKU(t *testing.T, available int64) *sku {
	t.Helper()
	s := newSKU(t)
	want(t, s.claim("loader", false), lua.Claimed)
	want(t, s.step("loader", lua.StepFinish, "3", n(available), "0", "0", "10"), lua.OK)
	return s
}

const lease = "600000"

func (s *sku) claim(token string, force bool) lua.Reply {
	s.t.Helper()
	words, err := s.tryClaim(token, force)
	if err != nil {
		s.t.Fatal(err)
	}
	return words
}

func (s *sku) tryClaim(token string, force bool) (lua.Reply, error) {
	again := "0"
	if force {
		again = "1"
	}
	words, err := s.try(lua.SKULoad, s.keys(), token, lua.StepClaim, lease, again)
	if err == nil && words.Answer() == lua.GateClosed {
		if left, e := strconv.Atoi(words[1]); e != nil || left < 1 || left > 600_000 {
			return nil, fmt.Errorf("%q: it may be taken over after %q ms", words, words[1])
		}
		words = words[:1]
	}
	return words, err
}

func (s *sku) step(token string, args ...string) lua.Reply {
	s.t.Helper()
	return s.call(lua.SKULoad, s.keys(), append([]string{token}, args...)...)
}

func (s *sku) keys() []string { return keys(s.state, s.orders, s.open, s.applied) }

func (s *sku) tryReduce(order string, units int64) (lua.Reply, error) {
	return s.try(lua.SKULock, keys(s.state, s.orders, s.open), order, n(units))
}

func (s *sku) reduce(order string, units int64) lua.Reply {
	s.t.Helper()
	words, err := s.tryReduce(order, units)
	if err != nil {
		s.t.Fatal(err)
	}
	return words
}

func (s *sku) tryUnlock(order, lock, to string) (lua.Reply, error) {
	return s.try(lua.SKUUnlock, keys(s.state, s.orders, s.open), order, lock, to)
}

func (s *sku) unlock(order, lock, to string) lua.Reply {
	s.t.Helper()
	words, err := s.tryUnlock(order, lock, to)
	if err != nil {
		s.t.Fatal(err)
	}
	return words
}

func (s *sku) adjust(intent, units int64) lua.Reply {
	s.t.Helper()
	return s.call(lua.SKUAdjust, keys(s.state, s.applied), n(intent), n(units))
}

// since is when each order was applied that nobody has compared with MySQL.
func (s *sku) since() map[string]float64 {
	s.t.Helper()
	scores, err := s.c.Do(s.t.Context(), s.c.B().Zrange().Key(s.open).Min("0").Max("-1").Withscores().Build()).AsZScores()
	if err != nil {
		s.t.Fatal(err)
	}
	m := map[string]float64{}
	for _, z := range scores {
		m[z.Member] = z.Score
	}
	return m
}

func (s *sku) content() string {
	return fmt.Sprint(s.hash(s.state), s.hash(s.orders), s.since())
}

// numbers asserts the equation of row E1, and that locked is what orders have, and compares the three numbers.
func (s *sku) numbers(available, locked, sold int64) {
	s.t.Helper()
	m := s.hash(s.state)
	num := func(name string) int64 { v, _ := strconv.ParseInt(m[name], 10, 64); return v }
	var held int64
	for _, value := range s.hash(s.orders) {
		units, _, _ := strings.Cut(value, " ")
		v, _ := strconv.ParseInt(units, 10, 64)
		held += v
	}
	if num("available")+num("locked")+num("sold") != num("total") || held != num("locked") {
		s.t.Errorf("available %s + locked %s + sold %s, total %s; orders have %d", m["available"], m["locked"], m["sold"], m["total"], held)
	}
	if got, want := [3]int64{num("available"), num("locked"), num("sold")}, [3]int64{available, locked, sold}; got != want {
		s.t.Errorf("available, locked, sold: got %v, want %v", got, want)
	}
}

// Row E4: no such key, not enough, already applied, or what is available and locked after.
func TestReduceAnswers(t *testing.T) {
	t.Attr("row", "E4")
	s := openSKU(t, 10)
	before := s.now()
	want(t, s.reduce("o1", 4), lua.Reduced, "6", "4", "3.1")
	if at := s.since()["o1"]; at < float64(before) || at > float64(s.now()) {
		t.Errorf("applied at %v, between %d and %d", at, before, s.now())
	}
	whole := s.content()
	want(t, s.reduce("o1", 4), lua.AlreadyApplied, "6", "4", "3.1")
	want(t, s.reduce("o2", 7), lua.NotEnough, "6")
	if got := s.content(); got != whole {
		t.Errorf("refusals wrote: got %s, want %s", got, whole)
	}
	want(t, s.reduce("o2", 6), lua.Reduced, "0", "10", "3.2")
	want(t, s.reduce("o3", 1), lua.NotEnough, "0")
	s.numbers(0, 10, 0)

	none := newSKU(t)
	want(t, none.reduce("o1", 1), lua.NotLoaded)
	want(t, none.claim("a", false), lua.Claimed)
	want(t, none.reduce("o1", 1), lua.NotLoaded)
	if len(none.hash(none.orders)) != 0 || len(none.since()) != 0 {
		t.Errorf("a SKU that is not loaded got %s", none.content())
	}
}

// Row E1: paying makes locked units sold, the end of an order makes them available, once each.
func TestUnlockAnswers(t *testing.T) {
	t.Attr("row", "E1")
	s := openSKU(t, 10)
	s.reduce("paid", 4)
	s.reduce("cancelled", 3)
	want(t, s.unlock("paid", "3.2", lua.ToSold), lua.Done)
	want(t, s.unlock("paid", "3.1", lua.ToSold), lua.Unlocked, "3", "3")
	want(t, s.unlock("paid", "3.1", lua.ToBack), lua.Done)
	want(t, s.unlock("cancelled", "3.2", lua.ToBack), lua.Unlocked, "6", "0")
	want(t, s.unlock("cancelled", "3.2", lua.ToBack), lua.Done)
	want(t, s.unlock("never", "3.1", lua.ToSold), lua.Done)
	want(t, s.unlock("never", "", lua.ToSold), lua.Done)
	s.numbers(6, 0, 4)
	if len(s.since()) != 0 {
		t.Errorf("left to be compared: %v", s.since())
	}

	// Locked once more, late: under another name, so that what was done is not done to it.
	want(t, s.reduce("paid", 4), lua.Reduced, "2", "4", "3.3")
	want(t, s.unlock("paid", "3.1", lua.ToSold), lua.Done)
	want(t, s.unlock("paid", "3.3", lua.ToBack), lua.Unlocked, "6", "0")
	s.numbers(6, 0, 4)

	s.reduce("late", 1)
	want(t, s.claim("again", true), lua.Claimed)
	want(t, s.unlock("late", "3.4", lua.ToBack), lua.GateClosed)
	want(t, newSKU(t).unlock("late", "3.4", lua.ToBack), lua.NotLoaded)
}

// Row E10.
func TestAdjustSKUAnswers(t *testing.T) {
	t.Attr("row", "E10")
	s := openSKU(t, 10)
	want(t, s.adjust(11, 5), lua.Applied, "15", "15")
	want(t, s.adjust(11, 5), lua.Done)
	want(t, s.adjust(10, 5), lua.Done) // the load included it
	s.reduce("o1", 12)
	want(t, s.adjust(13, -7), lua.Applied, "-4", "8") // MySQL gave seven away; the order will be refused there
	want(t, s.adjust(12, 1), lua.Applied, "-3", "9")  // in any order
	want(t, s.reduce("o2", 1), lua.NotEnough, "-3")
	s.numbers(-3, 12, 0)
	want(t, s.unlock("o1", "3.1", lua.ToBack), lua.Unlocked, "9", "0")
	s.claim("again", true)
	want(t, s.adjust(14, 1), lua.GateClosed)
	want(t, newSKU(t).adjust(11, 5), lua.NotLoaded)
}

// Row E2: who claims reads MySQL, the others wait for it; whoever was taken over writes nothing more.
func TestLoadSKUAnswers(t *testing.T) {
	t.Attr("row", "E2")
	s := newSKU(t)
	want(t, s.step("a", lua.StepFinish, "1", "1", "0", "0", "0"), lua.Lost)
	want(t, s.claim("a", false), lua.Claimed)
	want(t, s.claim("b", false), lua.GateClosed)
	want(t, s.step("b", "orders", "o1", "2 4.1"), lua.Lost)
	want(t, s.step("a", "orders", "o1", "2 4.1", "o2", "3 4.7"), lua.OK)
	want(t, s.step("a", lua.StepFinish, "5", "20", "5", "7", "9"), lua.OK)
	s.numbers(20, 5, 7)
	want(t, s.step("a", lua.StepFinish, "6", "99", "0", "0", "0"), lua.Lost)
	want(t, s.claim("c", false), lua.Present)
	want(t, s.reduce("o2", 3), lua.AlreadyApplied, "20", "5", "4.7")
	want(t, s.reduce("o3", 1), lua.Reduced, "19", "6", "5.1")

	want(t, s.claim("d", true), lua.Claimed) // a rebuild forgets everything
	if m := s.hash(s.orders); len(m) != 0 || len(s.since()) != 0 {
		t.Errorf("a claim left %s", s.content())
	}
	want(t, s.claim("e", true), lua.Claimed)
	want(t, s.step("d", lua.StepFinish, "6", "1", "0", "0", "0"), lua.Lost)
	want(t, s.step("e", lua.StepDrop), lua.OK)
	if m := s.hash(s.state); len(m) != 0 {
		t.Errorf("what was dropped is %v", m)
	}
	if _, err := s.try(lua.SKULoad, s.keys(), "e", "nonsense"); err == nil {
		s.claim("e", false)
		if _, err := s.try(lua.SKULoad, s.keys(), "e", "nonsense"); err == nil {
			t.Error("an unknown step is no error")
		}
	}
}

// A loader that died is taken over when its lease is over, not before; each step renews it.
func TestLoadSKUIsTakenOver(t *testing.T) {
	s := newSKU(t)
	want(t, s.claim("dead", false), lua.Claimed)
	set := func(ms int64) {
		t.Helper()
		if err := s.c.Do(t.Context(), s.c.B().Hset().Key(s.state).FieldValue().FieldValue("until", n(ms)).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	set(s.now() - 1)
	want(t, s.step("dead", "orders", "o1", "1 1.1"), lua.OK)
	want(t, s.claim("next", false), lua.GateClosed)
	set(s.now() - 1)
	want(t, s.claim("next", false), lua.Claimed)
	want(t, s.step("dead", "orders", "o1", "1 1.1"), lua.Lost)
	want(t, s.step("next", lua.StepFinish, "1", "1", "0", "0", "0"), lua.OK)
	s.numbers(1, 0, 0) // and not what the dead one wrote
}

func TestReduceFrom200Callers(t *testing.T) {
	s := openSKU(t, 100)
	got := all(t, 200, func(i int) (lua.Reply, error) { return s.tryReduce(fmt.Sprint("o", i), 1) })
	counted(t, got, map[lua.Answer]int{lua.Reduced: 100, lua.NotEnough: 100})
	s.numbers(0, 100, 0)

	s = openSKU(t, 100)
	got = all(t, 200, func(int) (lua.Reply, error) { return s.tryReduce("one", 3) })
	counted(t, got, map[lua.Answer]int{lua.Reduced: 1, lua.AlreadyApplied: 199})
	s.numbers(97, 3, 0)

	var orders []string
	for i := range 48 {
		orders = append(orders, fmt.Sprint("o", i))
		s.reduce(orders[i], 2)
	}
	got = all(t, 200, func(i int) (lua.Reply, error) {
		to := lua.ToSold
		if i%2 == 0 {
			to = lua.ToBack
		}
		return s.tryUnlock(orders[i%48], fmt.Sprint("3.", 2+i%48), to)
	})
	counted(t, got, map[lua.Answer]int{lua.Unlocked: 48, lua.Done: 152})
	m := s.hash(s.state)
	sold, _ := strconv.ParseInt(m["sold"], 10, 64)
	s.numbers(97-sold, 3, sold)

	got = all(t, 200, func(i int) (lua.Reply, error) {
		return s.try(lua.SKUAdjust, keys(s.state, s.applied), n(int64(11+i%20)), "5")
	})
	counted(t, got, map[lua.Answer]int{lua.Applied: 20, lua.Done: 180})
	s.numbers(197-sold, 3, sold)
}

func TestLoadSKUFrom200Callers(t *testing.T) {
	s := newSKU(t)
	got := all(t, 200, func(i int) (lua.Reply, error) { return s.tryClaim(fmt.Sprint("t", i), false) })
	counted(t, got, map[lua.Answer]int{lua.Claimed: 1, lua.GateClosed: 199})
	token := s.hash(s.state)["token"]
	got = all(t, 200, func(i int) (lua.Reply, error) {
		return s.try(lua.SKULoad, s.keys(), fmt.Sprint("t", i), lua.StepFinish, "1", "5", "0", "0", "0")
	})
	counted(t, got, map[lua.Answer]int{lua.OK: 1, lua.Lost: 199})
	if m := s.hash(s.state); m["token"] != token {
		t.Errorf("loaded by %s, claimed by %s", m["token"], token)
	}
	got = all(t, 200, func(i int) (lua.Reply, error) { return s.tryClaim(fmt.Sprint("u", i), false) })
	if !maps.Equal(got, map[lua.Answer]int{lua.Present: 200}) {
		t.Errorf("got %v", got)
	}
	s.numbers(5, 0, 0)
}
