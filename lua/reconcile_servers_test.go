//go:build servers

package lua_test

import (
	"fmt"
	"maps"
	"testing"

	"floodgate.internal/lua"
)

func TestCloseTakesTheHighestToken(t *testing.T) {
	s := newSale(t)
	want(t, s.call(lua.SaleClose, keys(s.state), "5"), lua.Closed, "0")
	want(t, s.call(lua.SaleClose, keys(s.state), "5"), lua.Lost, "5")
	want(t, s.call(lua.SaleClose, keys(s.state), "4"), lua.Lost, "5")
	want(t, s.call(lua.SaleClose, keys(s.state), "10"), lua.Closed, "1") // by number, not by text
	want(t, s.call(lua.SaleClose, keys(s.state), "9"), lua.Lost, "10")
	got := all(t, 200, func(i int) (lua.Reply, error) { return s.try(lua.SaleClose, keys(s.state), n(int64(11+i%50))) })
	if st := s.hash(s.state); st["token"] != "60" || st["gate"] != lua.GateShut || got[lua.Closed]+got[lua.Lost] != 200 {
		t.Errorf("got %v and %v, want token 60, closed", st, got)
	}
}

func TestOnlyTheReconcilerThatClosedTheGateBeats(t *testing.T) {
	s := newSale(t)
	beat := func(token string) []string { return s.call(lua.SaleBeat, keys(s.state), token) }
	want(t, beat("1"), lua.Lost) // nothing is there
	if n, err := s.c.Do(t.Context(), s.c.B().Exists().Key(s.state).Build()).AsInt64(); n != 0 || err != nil {
		t.Errorf("a beat made %d keys, %v", n, err)
	}
	want(t, s.call(lua.SaleClose, keys(s.state), "1"), lua.Closed, "0")
	want(t, beat("1"), lua.Beating, "1")
	want(t, beat("1"), lua.Beating, "2")
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	want(t, beat("1"), lua.Lost)
	want(t, beat("3"), lua.Lost)
	want(t, beat("2"), lua.Beating, "3")
	want(t, s.step(2, lua.StepBegin), lua.OK)
	want(t, s.step(2, lua.StepFinish, "2", "5", "5", "0", "9999999999999", "1", "0", "0", "", "1", "0"), lua.OK)
	want(t, beat("2"), lua.Beating, "4") // it adopts
	want(t, s.call(lua.SaleOpen, keys(s.state), "2"), lua.Opened)
	before := s.content()
	want(t, beat("2"), lua.Lost)
	if after := s.content(); before != after {
		t.Errorf("a beat at an open gate changed\n%s\ninto\n%s", before, after)
	}
}

// Each order is told to be held or not; something is written after them only where one is.
func TestHeldIsToldInTheEpoch(t *testing.T) {
	s := newSale(t)
	held := func(args ...string) []string { return s.call(lua.SaleHeld, keys(s.state, s.orders), args...) }
	want(t, held("1", "o1"), lua.NotLoaded)
	s = openSale(t, options{stock: 10, limit: 3})
	want(t, s.reserve(press{uid: "ann", order: "o1"}), lua.Reserved, "o1", "9", "1")
	want(t, s.reserve(press{uid: "bob", order: "o2"}), lua.Reserved, "o2", "8", "2")
	before := s.content()
	want(t, held("1", "o3", "2", "o1"), lua.Held, "00")
	if after := s.content(); before != after {
		t.Errorf("without a held order it changed\n%s\ninto\n%s", before, after)
	}
	want(t, held("1", "o2", "1", "o3", "2", "o2", "1", "o1"), lua.Held, "1001")
	if got := s.hash(s.state)["waits"]; got != "1" {
		t.Errorf("waits: got %q, want 1", got)
	}
}

func TestOnlyTheReconcilerThatClosedTheGateGoesOn(t *testing.T) {
	s := openSale(t, options{})
	finish := []string{lua.StepFinish, "2", "5", "5", "0", "9999999999999", "1", "0", "0", "", "1", "0"}
	refused := func(token int64) {
		t.Helper()
		before := s.content()
		for _, step := range [][]string{{lua.StepBegin}, {lua.StepOrders, "o", "u", "1", "1", "-", "1", ""}, {lua.StepKeys, "u:k", "o 1"}, {lua.StepIntent, "1"}, finish} {
			want(t, s.step(token, step...), lua.Lost)
		}
		if after := s.content(); before != after {
			t.Errorf("token %d changed\n%s\ninto\n%s", token, before, after)
		}
	}
	refused(1) // the gate is open
	want(t, s.call(lua.SaleOpen, keys(s.state), "1"), lua.Lost)
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	want(t, s.call(lua.SaleOpen, keys(s.state), "2"), lua.Lost) // nothing is loaded
	refused(1)
	refused(3)
	want(t, s.step(2, lua.StepBegin), lua.OK)
	want(t, s.step(2, finish...), lua.OK)
	refused(2) // it adopts by now
	want(t, s.call(lua.SaleOpen, keys(s.state), "1"), lua.Lost)
	want(t, s.call(lua.SaleOpen, keys(s.state), "3"), lua.Lost)
	if gate := s.hash(s.state)["gate"]; gate != lua.GateAdopt {
		t.Errorf("gate: got %s, want %s", gate, lua.GateAdopt)
	}
	want(t, s.call(lua.SaleOpen, keys(s.state), "2"), lua.Opened)
	want(t, s.call(lua.SaleOpen, keys(s.state), "2"), lua.Lost)
	want(t, s.reserve(press{epoch: 2, uid: "ann", order: "o"}), lua.Reserved, "o", "4", "1")
	if _, err := s.try(lua.SaleLoad, keys(s.state, s.orders, s.buyers, s.idem, s.applied), "2", "nonsense"); err != nil {
		t.Errorf("a gate that is open is lost, whatever the step: %v", err)
	}
	want(t, s.call(lua.SaleClose, keys(s.state), "3"), lua.Closed, "1")
	if _, err := s.try(lua.SaleLoad, keys(s.state, s.orders, s.buyers, s.idem, s.applied), "3", "nonsense"); err == nil {
		t.Error("a step that does not exist was taken")
	}
}

func TestLoadWritesWhatItIsGiven(t *testing.T) {
	s := openSale(t, options{stock: 10, limit: 3})
	s.reserve(press{uid: "old", order: "gone", key: "k"})
	want(t, s.call(lua.SaleAdjust, keys(s.state, s.applied), "9", "1"), lua.Applied, "10", "11")
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	want(t, s.step(2, lua.StepBegin), lua.OK)
	want(t, s.step(2, lua.StepOrders, "o1", "ann", "2", "1,3", "17-0", "1000", "key 1", "o2", "bob", "1", "1", "-", "1001", ""), lua.OK)
	want(t, s.step(2, lua.StepOrders, "o3", "ann", "1", "2", "-", "1002", ""), lua.OK)
	want(t, s.step(2, lua.StepKeys, "ann:key 1", "o1 2", "cid:k", "o0 1"), lua.OK)
	want(t, s.step(2, lua.StepIntent, "5", "6"), lua.OK)
	want(t, s.step(2, lua.StepFinish, "7", "6", "10", "1", "9999999999999", "3", "0", "0", "", "4", "0"), lua.OK)
	for name, c := range map[string]struct{ got, want map[string]string }{
		"orders": {s.hash(s.orders), map[string]string{"o1": "ann 2 1,3 17-0 1000 key 1", "o2": "bob 1 1 - 1001 ", "o3": "ann 1 2 - 1002 "}},
		"buyers": {s.hash(s.buyers), map[string]string{"ann": "1=o1,3=o1,2=o3", "bob": "1=o2"}},
		"idem":   {s.hash(s.idem), map[string]string{"ann:key 1": "o1 2", "cid:k": "o0 1"}},
		"state": {s.hash(s.state), map[string]string{"gate": "adopt", "token": "2", "whole": "1", "epoch": "7", "stock": "6", "total": "10", "starts": "1",
			"ends": "9999999999999", "limit": "3", "paused": "0", "closed": "0", "later": "", "version": "4"}},
	} {
		if !maps.Equal(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", name, c.got, c.want)
		}
	}
	want(t, s.call(lua.SaleOpen, keys(s.state), "2"), lua.Opened)
	want(t, s.call(lua.SaleAdjust, keys(s.state, s.applied), "5", "1"), lua.Done)
	want(t, s.call(lua.SaleAdjust, keys(s.state, s.applied), "9", "1"), lua.Applied, "7", "11") // forgotten: it was not among those
	want(t, s.reserve(press{epoch: 7, uid: "cid", order: "o4", key: "k"}), lua.Repeated, "o0")
	want(t, s.reserve(press{epoch: 7, uid: "ann", order: "o4"}), lua.AlreadyOrdered, "o3")
	want(t, s.release("o1"), lua.Released, "9")
	want(t, s.reserve(press{epoch: 7, uid: "ann", quantity: 2, order: "o5"}), lua.Reserved, "o5", "7", "4")
	if got := s.hash(s.buyers)["ann"]; got != "2=o3,1=o5,3=o5" {
		t.Errorf("slots: got %s", got)
	}
}

func TestLoadKeepsANewerDefinition(t *testing.T) {
	s := openSale(t, options{version: 3})
	define := func(version, limit string) []string {
		return s.call(lua.SaleDefine, keys(s.state), version, "11", "9999999999999", limit, "1", "0", "5:1")
	}
	want(t, define("5", "4"), lua.Defined)
	want(t, define("5", "9"), lua.Older)
	want(t, define("4", "9"), lua.Older)
	want(t, define("10", "4"), lua.Defined)
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	s.load(2, 2, options{version: 9, limit: 7, stock: 5})
	st := s.hash(s.state)
	if st["version"] != "10" || st["limit"] != "4" || st["paused"] != "1" || st["later"] != "5:1" || st["starts"] != "11" || st["stock"] != "5" || st["epoch"] != "2" {
		t.Errorf("got %v, want the definition of version 10, the stock and the epoch of the load", st)
	}
	want(t, s.call(lua.SaleClose, keys(s.state), "3"), lua.Closed, "1")
	s.load(3, 3, options{version: 10, limit: 8})
	if st := s.hash(s.state); st["limit"] != "8" {
		t.Errorf("the same version again: limit %s, want 8", st["limit"])
	}
	fresh := newSale(t)
	want(t, fresh.call(lua.SaleDefine, keys(fresh.state), "1", "1", "2", "1", "0", "0", ""), lua.NotLoaded)
	fresh.call(lua.SaleClose, keys(fresh.state), "1") // of a sale whose load has not come to its end, nothing is known
	want(t, fresh.call(lua.SaleDefine, keys(fresh.state), "1", "1", "2", "1", "0", "0", ""), lua.NotLoaded)
}

func TestAdjustHappensOnce(t *testing.T) {
	s := openSale(t, options{stock: 10})
	adjust := func(intent, units string) []string {
		return s.call(lua.SaleAdjust, keys(s.state, s.applied), intent, units)
	}
	got := all(t, 200, func(i int) (lua.Reply, error) {
		return s.try(lua.SaleAdjust, keys(s.state, s.applied), fmt.Sprint(i%10), "5")
	})
	counted(t, got, map[lua.Answer]int{lua.Applied: 10, lua.Done: 190})
	want(t, adjust("20", "-60"), lua.Applied, "0", "0")
	want(t, adjust("20", "-60"), lua.Done)
	want(t, adjust("21", "3"), lua.Applied, "3", "3")
	want(t, s.reserve(press{uid: "ann", order: "o"}), lua.Reserved, "o", "2", "1")
	want(t, adjust("22", "-3"), lua.NotEnough, "2")
	want(t, adjust("22", "-2"), lua.Applied, "0", "1")
	for _, gate := range []string{lua.GateShut, lua.GateAdopt} {
		s.set("gate", gate)
		want(t, adjust("23", "1"), lua.GateClosed)
	}
	fresh := newSale(t)
	want(t, fresh.call(lua.SaleAdjust, keys(fresh.state, fresh.applied), "1", "1"), lua.NotLoaded)
}

func TestAdoptTakesAUnitOrRefuses(t *testing.T) {
	s := newSale(t)
	old := press{uid: "ann", quantity: 2, order: "o1", key: "k", tr: "00-t"}
	want(t, s.adopt(2, old, "1,2"), lua.GateClosed) // not in Redis
	want(t, s.call(lua.SaleClose, keys(s.state), "1"), lua.Closed, "0")
	want(t, s.adopt(2, old, "1,2"), lua.GateClosed)
	s.load(1, 2, options{stock: 4, limit: 3})
	want(t, s.adopt(1, old, "1,2"), lua.StaleEpoch)
	want(t, s.adopt(3, old, "1,2"), lua.StaleEpoch)
	got := s.adopt(2, old, "1,2") // the gate adopts
	x := s.entries()
	if len(x) != 1 {
		t.Fatalf("%d entries, want 1", len(x))
	}
	want(t, got, lua.Adopted, x[0].ID)
	fields := map[string]string{"id": "o1", "uid": "ann", "quantity": "2", "slots": "1,2", "key": "k", "epoch": "2", "at": "1234", "trace": "00-t"}
	if !maps.Equal(x[0].FieldValues, fields) {
		t.Errorf("entry: got %v, want %v", x[0].FieldValues, fields)
	}
	want(t, s.adopt(2, old, "1,2"), lua.Present, x[0].ID)
	want(t, s.call(lua.SaleOpen, keys(s.state), "1"), lua.Opened)
	want(t, s.adopt(2, old, "1,2"), lua.Present, x[0].ID) // also when it is open
	// other slots than it had, because those are taken
	want(t, s.reserve(press{epoch: 2, uid: "bob", order: "o2"}), lua.Reserved, "o2", "1", "3")
	if got := s.adopt(2, press{uid: "bob", order: "o3"}, "1"); got.Answer() != lua.Adopted {
		t.Errorf("got %v, want adopted", got)
	}
	if got := s.hash(s.buyers)["bob"]; got != "1=o2,2=o3" {
		t.Errorf("slots: got %s", got)
	}
	before := s.content()
	want(t, s.adopt(2, press{uid: "cid", order: "o4"}, "1"), lua.SoldOut)
	s.set("stock", "9")
	want(t, s.adopt(2, press{uid: "ann", quantity: 2, order: "o5"}, "1,2"), lua.Limit)
	want(t, s.adopt(2, press{uid: "ann", quantity: 2, order: "o5", key: old.key}, "1,2"), lua.KeyReused, old.order)
	s.set("stock", "0")
	if after := s.content(); after != before {
		t.Errorf("a refusal changed\n%s\ninto\n%s", before, after)
	}
	want(t, s.reserve(press{epoch: 2, uid: "ann", quantity: 2, order: "o6", key: "k"}), lua.Repeated, "o1")
	s.adds(3)
}

func TestAdoptReplacesAnOldEntry(t *testing.T) {
	s := openSale(t, options{stock: 4, limit: 3})
	s.reserve(press{uid: "ann", quantity: 2, order: "o1"})
	old := s.entries()[0]
	for _, cmd := range []error{
		s.c.Do(t.Context(), s.c.B().XgroupCreate().Key(s.outbox).Group("orders").Id("0").Build()).Error(),
		s.c.Do(t.Context(), s.c.B().Xreadgroup().Group("orders", "relay").Streams().Key(s.outbox).Id(">").Build()).Error(),
	} {
		if cmd != nil {
			t.Fatal(cmd)
		}
	}
	want(t, s.call(lua.SaleClose, keys(s.state), "2"), lua.Closed, "1")
	want(t, s.step(2, lua.StepBegin), lua.OK)
	want(t, s.step(2, lua.StepOrders, "o1", "ann", "2", "1,2", old.ID, old.FieldValues["at"], "", "o2", "bob", "1", "1", "-", "5", ""), lua.OK)
	want(t, s.step(2, lua.StepFinish, "2", "1", "4", "0", "9999999999999", "3", "0", "0", "", "1", "0"), lua.OK)
	got := s.adopt(2, press{uid: "ann", quantity: 2, order: "o1"}, "2,3")
	x := s.entries()
	if len(x) != 1 || x[0].ID == old.ID || x[0].FieldValues["epoch"] != "2" || x[0].FieldValues["slots"] != "1,2" {
		t.Fatalf("entries: got %v, want one of epoch 2 with the slots that are held", x)
	}
	want(t, got, lua.Adopted, x[0].ID)
	want(t, s.adopt(2, press{uid: "ann", quantity: 2, order: "o1"}, "1,2"), lua.Present, x[0].ID)
	pending, err := s.c.Do(t.Context(), s.c.B().Xpending().Key(s.outbox).Group("orders").Build()).ToArray()
	if err != nil {
		t.Fatal(err)
	}
	if left, err := pending[0].AsInt64(); err != nil || left != 0 {
		t.Errorf("the old entry is still pending: %d, %v", left, err)
	}
	// one that MySQL has holds no entry; it gets one, and no second unit
	if got := s.adopt(2, press{uid: "bob", order: "o2"}, "1"); got.Answer() != lua.Adopted {
		t.Errorf("got %v, want adopted", got)
	}
	if got := s.hash(s.state)["stock"]; got != "1" {
		t.Errorf("stock: got %s, want 1", got)
	}
	s.adds(3)
}

func TestRetireTakesEntriesOut(t *testing.T) {
	s := openSale(t, options{stock: 10})
	var ids []string
	for i := range 4 {
		s.reserve(press{uid: fmt.Sprint("u", i), order: fmt.Sprint("o", i)})
	}
	for _, x := range s.entries() {
		ids = append(ids, x.ID)
	}
	want(t, s.call(lua.OutboxRetire, keys(s.outbox), "orders", ids[0]), "1") // no group yet
	for _, cmd := range []error{
		s.c.Do(t.Context(), s.c.B().XgroupCreate().Key(s.outbox).Group("orders").Id("0").Build()).Error(),
		s.c.Do(t.Context(), s.c.B().Xreadgroup().Group("orders", "relay").Streams().Key(s.outbox).Id(">").Build()).Error(),
	} {
		if cmd != nil {
			t.Fatal(cmd)
		}
	}
	want(t, s.call(lua.OutboxRetire, keys(s.outbox), "orders", ids[0], ids[1], ids[2]), "2")
	want(t, s.call(lua.OutboxRetire, keys(s.outbox), "orders", ids[0], ids[1], ids[2]), "0")
	if x := s.entries(); len(x) != 1 || x[0].ID != ids[3] {
		t.Errorf("left: %v, want the last", x)
	}
	if len(s.hash(s.orders)) != 4 {
		t.Error("retiring touched the reservations")
	}
	want(t, s.call(lua.OutboxSweep, keys(s.outbox), "orders", "0"), "0") // relay still holds one
	want(t, s.call(lua.OutboxRetire, keys(s.outbox), "orders", ids[3]), "1")
	want(t, s.call(lua.OutboxSweep, keys(s.outbox), "orders", "0", "relay"), "0")
	want(t, s.call(lua.OutboxSweep, keys(s.outbox), "orders", "3600000"), "0")
	want(t, s.call(lua.OutboxSweep, keys(s.outbox), "orders", "0"), "1")
	many := []string{"orders"}
	for i := range 1000 {
		many = append(many, fmt.Sprintf("1-%d", i))
	}
	want(t, s.call(lua.OutboxRetire, keys(s.outbox), many...), "0")
}
