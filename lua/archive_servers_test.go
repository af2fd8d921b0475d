//go:build servers

package lua_test

import (
	"testing"

	"floodgate.internal/lua"
)

func (s *sale) forget() lua.Reply {
	s.t.Helper()
	return s.forgetUnder(1)
}

func (s *sale) forgetUnder(token int64) lua.Reply {
	s.t.Helper()
	return s.call(lua.SaleForget, keys(s.state, s.orders, s.buyers, s.idem, s.outbox, s.applied, s.gone), n(token))
}

func (s *sale) exists() int64 {
	s.t.Helper()
	n, err := s.c.Do(s.t.Context(), s.c.B().Exists().Key(s.state, s.orders, s.buyers, s.idem, s.outbox, s.applied, s.gone).Build()).AsInt64()
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestForgetTakesEveryKeyButKeepsAnOutboxWithOrders(t *testing.T) {
	s := openSale(t, options{stock: 5})
	want(t, s.call(lua.SaleAdjust, keys(s.state, s.applied), "3", "1"), lua.Applied, "6", "6")
	want(t, s.reserve(press{uid: "ann", order: "o1", key: "k"}), lua.Reserved, "o1", "5", "1")
	want(t, s.reserve(press{uid: "bob", order: "o2"}), lua.Reserved, "o2", "4", "2")
	want(t, s.release("o2"), lua.Released, "5")
	if n := s.exists(); n != 7 {
		t.Fatalf("%d keys, want all seven", n)
	}
	before := s.content()
	want(t, s.forget(), lua.Queued, "2")
	if after := s.content(); after != before {
		t.Errorf("a refusal changed\n%s\ninto\n%s", before, after)
	}
	entry := s.entries()[0].ID
	for _, e := range s.entries() {
		s.call(lua.OutboxRetire, keys(s.outbox), "orders", e.ID)
	}
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	before = s.content()
	want(t, s.forget(), lua.Lost, "2")
	if after := s.content(); after != before {
		t.Errorf("a refusal changed\n%s\ninto\n%s", before, after)
	}
	want(t, s.forgetUnder(2), lua.Forgotten, "7")
	want(t, s.forget(), lua.Forgotten, "0")
	if n := s.exists(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	// Whoever comes late finds that the sale is not there, and brings nothing of it back.
	want(t, s.reserve(press{uid: "bob", order: "o2"}), lua.NotLoaded)
	want(t, s.release("o1"), lua.NotLoaded)
	want(t, s.call(lua.SaleAdjust, keys(s.state, s.applied), "4", "1"), lua.NotLoaded)
	want(t, s.call(lua.SaleDefine, keys(s.state), "9", "1", "2", "1", "0", "0", ""), lua.NotLoaded)
	want(t, s.call(lua.OutboxGroup, keys(s.state, s.outbox), "orders"), lua.NotLoaded)
	want(t, s.step(1, lua.StepBegin), lua.Lost)
	want(t, s.call(lua.SaleOpen, keys(s.state), "1"), lua.Lost)
	want(t, s.call(lua.OutboxRetire, keys(s.outbox), "orders", entry), "0")
	if n := s.exists(); n != 0 {
		t.Errorf("late calls made %d keys", n)
	}
}

func TestAGroupIsMadeOnceAndOnlyWhereThereIsASale(t *testing.T) {
	s := newSale(t)
	group := func() []string { return s.call(lua.OutboxGroup, keys(s.state, s.outbox), "orders") }
	want(t, group(), lua.NotLoaded)
	want(t, s.call(lua.SaleClose, keys(s.state), "1"), lua.Closed, "0")
	want(t, group(), lua.Made)
	want(t, group(), lua.Done)
	fresh := openSale(t, options{stock: 5})
	fresh.reserve(press{uid: "ann", order: "o1"})
	// A Redis that lost the state alone still has orders to be read.
	if err := fresh.c.Do(t.Context(), fresh.c.B().Del().Key(fresh.state).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	want(t, fresh.call(lua.OutboxGroup, keys(fresh.state, fresh.outbox), "orders"), lua.Made)
	found, err := fresh.c.Do(t.Context(), fresh.c.B().Xreadgroup().Group("orders", "a").Streams().Key(fresh.outbox).Id(">").Build()).AsXRead()
	if err != nil || len(found[fresh.outbox]) != 1 {
		t.Errorf("got %v, %v; the group begins at the first entry", found, err)
	}
	if err := fresh.c.Do(t.Context(), fresh.c.B().Set().Key(s.state+"2").Value("x").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fresh.c.Do(t.Context(), fresh.c.B().Del().Key(s.state+"2").Build()) })
	if got, err := s.try(lua.OutboxGroup, keys(s.state, s.state+"2"), "orders"); err == nil {
		t.Errorf("a key that is no stream: got %v, want the error", got)
	}
}
