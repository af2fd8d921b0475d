package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// reading is what one audit reads; each test spoils it a little.
type reading struct {
	before, after reserve.Snapshot
	mysql         saleRows
}

const bound = 30 * time.Second

var now = time.UnixMilli(1_800_000_000_000).UTC()

// life is a balanced sale of 100: a is queued, b is settled and not retired, c is unpaid, d is paid, e is cancelled and
// its release under way, f is expired, g is rejected.
func life() *reading {
	r := &reading{mysql: saleRows{sale: 7, sku: 3, kind: wire.Goods, limit: 2, total: 100, available: 93, locked: 4, sold: 3, epoch: 1,
		orders: map[string]order{}, releasing: map[string]bool{"e": true}, openIntents: 1, skuUnits: skuUnits{total: 150, available: 50, allotted: 100, sales: 100}}}
	r.mysql.definition = reserve.Definition{Version: 4, Starts: 1, Ends: 2, Limit: 2}
	r.book("allot", "create", 100, 0)
	add := func(id string, quantity int, status wire.OrderStatus, inRedis, inOutbox bool) {
		uid, slots := "u-"+id, "1"
		if quantity == 2 {
			slots = "1,2"
		}
		if inRedis {
			r.before.Orders = append(r.before.Orders, reserve.Held{ID: id, UID: uid, Quantity: quantity, Slots: slots, Entry: "1-1", At: now.UnixMilli() - 1000})
		}
		if inOutbox {
			r.before.Outbox = append(r.before.Outbox, queued.Entry{ID: id, Sale: 7, UID: uid, Quantity: quantity, Slots: slots, Epoch: 1, At: now.UnixMilli() - 1000, Entry: "1-1"})
		}
		if status == wire.Queued {
			return
		}
		n := int64(quantity)
		r.mysql.orders[id] = order{uid: uid, quantity: n, status: status, at: now.UnixMilli() - 1000}
		if status == wire.Rejected {
			return
		}
		r.book("order", id, -n, n)
		switch status {
		case wire.Paid:
			r.book("pay", id, 0, -n)
		case wire.Cancelled:
			r.book("cancel", id, n, -n)
		case wire.Expired:
			r.book("expire", id, n, -n)
		}
		if status.Live() {
			for i := range quantity {
				r.mysql.slots = append(r.mysql.slots, slot{uid, i + 1, id})
			}
		}
	}
	add("a", 2, wire.Queued, true, true)
	add("b", 2, wire.PendingPayment, true, true)
	add("c", 2, wire.PendingPayment, true, false)
	add("d", 2, wire.Paid, true, false)
	add("d2", 1, wire.Paid, true, false)
	add("e", 2, wire.Cancelled, true, false)
	add("f", 1, wire.Expired, false, false)
	add("g", 1, wire.Rejected, false, false)
	r.before.Buyers = map[string]string{}
	for _, h := range r.before.Orders {
		var pairs []string
		for _, s := range strings.Split(h.Slots, ",") {
			pairs = append(pairs, s+"="+h.ID)
		}
		r.before.Buyers[h.UID] = strings.Join(pairs, ",")
	}
	r.before.State = reserve.State{Definition: r.mysql.definition, Present: true, Gate: lua.GateOpen, Token: 1, Epoch: 1, Stock: 89, Total: 100}
	r.before.Applied = map[int64]bool{}
	r.after = r.before
	return r
}

func (r *reading) book(kind, ref string, available, locked int64) {
	var last entry
	if n := len(r.mysql.ledger); n > 0 {
		last = r.mysql.ledger[n-1]
	}
	r.mysql.ledger = append(r.mysql.ledger, entry{id: last.id + 1, kind: kind, ref: ref,
		available: change{last.available.after, available, last.available.after + available},
		locked:    change{last.locked.after, locked, last.locked.after + locked}})
}

func (r *reading) compare() Result { return compare(r.before, r.after, r.mysql, now, bound) }

// without is list without the order.
func without(list []reserve.Held, id string) []reserve.Held {
	return slices.DeleteFunc(slices.Clone(list), func(h reserve.Held) bool { return h.ID == id })
}

func balanced(t *testing.T, r Result) {
	t.Helper()
	if !r.Balanced || len(r.Findings) != 0 || r.Available+r.Queued+r.Locked+r.Sold != r.Total {
		t.Errorf("got %+v, want balance", r)
	}
}

func TestANormalLifeBalances(t *testing.T) {
	r := life().compare()
	balanced(t, r)
	if got, want := fmt.Sprint(r.Available, r.Queued, r.Locked, r.Sold, r.Total), "91 2 4 3 100"; got != want {
		t.Errorf("got %s, want %s (available: Redis's stock 89 and the 2 units on their way back)", got, want)
	}
	if r.MySQL.Releasing != 2 || r.Redis.Queued != 1 || r.MySQL.LiveOrders != 4 {
		t.Errorf("got %+v", r)
	}
}

// What goes on between the readings of a live sale is no finding, and the numbers add up all the same.
func TestWhatIsUnderWayIsNoFinding(t *testing.T) {
	for name, f := range map[string]func(*reading){
		"brought back by Redis into the outbox, to get what is left": func(r *reading) {
			ghost := queued.Entry{ID: "n", Sale: 7, UID: "u-n", Quantity: 1, Slots: "1", Epoch: 0, At: now.UnixMilli() - 1000, Entry: "2-1"}
			r.before.Outbox = append(slices.Clone(r.before.Outbox), ghost)
			r.after.Outbox = r.before.Outbox
		},
		"reserved and settled between the readings": func(r *reading) {
			n := reserve.Held{ID: "n", UID: "u-n", Quantity: 1, Slots: "1", Entry: "2-1"}
			r.after.Orders = append(slices.Clone(r.after.Orders), n)
			r.after.State.Stock--
			r.mysql.orders["n"] = order{uid: "u-n", quantity: 1, status: wire.PendingPayment, at: now.UnixMilli() - 1000}
			r.mysql.slots = append(r.mysql.slots, slot{"u-n", 1, "n"})
			r.book("order", "n", -1, 1)
			r.mysql.available--
			r.mysql.locked++
		},
		"reserved between the readings": func(r *reading) {
			r.after.Orders = append(slices.Clone(r.after.Orders), reserve.Held{ID: "n", UID: "u-n", Quantity: 1, Slots: "1", Entry: "2-1"})
			r.after.State.Stock--
		},
		"settled and retired between the readings": func(r *reading) {
			r.mysql.orders["a"] = order{uid: "u-a", quantity: 2, status: wire.PendingPayment, at: now.UnixMilli() - 1000}
			r.mysql.slots = append(r.mysql.slots, slot{"u-a", 1, "a"}, slot{"u-a", 2, "a"})
			r.book("order", "a", -2, 2)
			r.mysql.available -= 2
			r.mysql.locked += 2
			r.after.Outbox = nil
		},
		"released between the readings": func(r *reading) {
			r.mysql.releasing = nil
			r.after.Orders = without(r.after.Orders, "e")
			r.after.State.Stock += 2
		},
		"released between the readings, after MySQL's": func(r *reading) {
			r.after.Orders = without(r.after.Orders, "e")
			r.after.State.Stock += 2
		},
		"a restock that is not in Redis yet": func(r *reading) {
			r.mysql.adjusts = []adjust{{11, 50}}
			r.mysql.openIntents++
			r.mysql.total += 50
			r.mysql.available += 50
			r.book("restock", "intent:11", 50, 0)
			r.mysql.skuUnits.total += 50
			r.mysql.skuUnits.allotted += 50
			r.mysql.skuUnits.sales += 50
		},
		"a restock that is in Redis and not marked": func(r *reading) {
			r.mysql.adjusts = []adjust{{11, 50}}
			r.mysql.openIntents++
			r.mysql.total += 50
			r.mysql.available += 50
			r.book("restock", "intent:11", 50, 0)
			r.mysql.skuUnits.total += 50
			r.mysql.skuUnits.allotted += 50
			r.mysql.skuUnits.sales += 50
			r.before.Applied = map[int64]bool{11: true}
			r.before.State.Total += 50
			r.before.State.Stock += 50
		},
		"a definition that is not in Redis yet": func(r *reading) {
			r.mysql.definition.Version++
			r.mysql.definition.Paused = true
			r.mysql.redefining = true
			r.mysql.openIntents++
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := life()
			f(r)
			balanced(t, r.compare())
		})
	}
}

func TestEveryBrokenEquationIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*reading)
		want  []string // equation and order of a finding
	}{
		"oversold":                        {func(r *reading) { r.mysql.total, r.mysql.available = 6, -1 }, []string{eqLive + ":"}},
		"stock row does not add up":       {func(r *reading) { r.mysql.available++ }, []string{eqUnits + ":", eqLedger + ":"}},
		"a release that is not under way": {func(r *reading) { r.mysql.releasing = nil }, []string{eqOrders + ":e"}},
		"neither queued nor in MySQL": {func(r *reading) {
			r.before.Outbox = slices.DeleteFunc(slices.Clone(r.before.Outbox), func(e queued.Entry) bool { return e.ID == "a" })
		}, []string{eqOrders + ":a"}},
		"live and not reserved": {func(r *reading) {
			r.before.Orders, r.after.Orders = without(r.before.Orders, "c"), without(r.after.Orders, "c")
			delete(r.before.Buyers, "u-c")
			r.before.State.Stock += 2
		}, []string{eqOrders + ":c"}},
		"queued and not reserved": {func(r *reading) {
			r.before.Orders, r.after.Orders = without(r.before.Orders, "a"), without(r.after.Orders, "a")
			delete(r.before.Buyers, "u-a")
			r.before.State.Stock += 2
		}, []string{eqOrders + ":a"}},
		"another quantity": {func(r *reading) {
			r.mysql.orders["c"] = order{uid: "u-c", quantity: 1, status: wire.PendingPayment, at: now.UnixMilli() - 1000}
		}, []string{eqOrders + ":c", eqSlots + ":c", eqLedger + ":c", eqLive + ":"}},
		"queued too long": {func(r *reading) {
			r.before.Outbox = slices.Clone(r.before.Outbox)
			for i := range r.before.Outbox {
				r.before.Outbox[i].At = now.Add(-bound - time.Millisecond).UnixMilli()
			}
		}, []string{eqQueued + ":a"}},
		"stock field":                  {func(r *reading) { r.before.State.Stock++ }, []string{eqStock + ":"}},
		"total field":                  {func(r *reading) { r.before.State.Total++ }, []string{eqStock + ":", eqTotals + ":"}},
		"an epoch of the future":       {func(r *reading) { r.before.State.Epoch, r.after.State.Epoch = 2, 2 }, []string{eqEpoch + ":"}},
		"an epoch of the past":         {func(r *reading) { r.mysql.epoch = 2 }, []string{eqEpoch + ":"}},
		"a window changed by hand":     {func(r *reading) { r.before.State.Ends, r.after.State.Ends = 9, 9 }, []string{eqDefinition + ":"}},
		"a buyer's slot lost":          {func(r *reading) { r.before.Buyers["u-c"] = "1=c" }, []string{eqBuyers + ":c"}},
		"a buyer's slot too many":      {func(r *reading) { r.before.Buyers["u-x"] = "1=x" }, []string{eqBuyers + ":x"}},
		"a slot row lost":              {func(r *reading) { r.mysql.slots = r.mysql.slots[1:] }, []string{eqSlots + ":b"}},
		"a slot row of nobody":         {func(r *reading) { r.mysql.slots = append(r.mysql.slots, slot{"u-x", 1, "x"}) }, []string{eqSlots + ":x"}},
		"a slot row of one that ended": {func(r *reading) { r.mysql.slots = append(r.mysql.slots, slot{"u-f", 1, "f"}) }, []string{eqSlots + ":f"}},
		"a slot row of another buyer":  {func(r *reading) { r.mysql.slots[0].uid = "u-x" }, []string{eqSlots + ":b"}},
		"over the limit": {func(r *reading) {
			r.mysql.limit = 1
			r.mysql.definition.Limit = 1
			r.before.State.Limit = 1
			r.after.State.Limit = 1
		}, []string{eqLimit + ":"}},
		"a ledger row lost":              {func(r *reading) { r.mysql.ledger = slices.Delete(r.mysql.ledger, 2, 3) }, []string{eqLedger + ":", eqLedger + ":c"}},
		"the last ledger row lost":       {func(r *reading) { r.mysql.ledger = r.mysql.ledger[:len(r.mysql.ledger)-1] }, []string{eqLedger + ":", eqLedger + ":f"}},
		"a ledger row that does not add": {func(r *reading) { r.mysql.ledger[1].available.after++ }, []string{eqLedger + ":"}},
		"paid and cancelled":             {func(r *reading) { r.book("cancel", "d", 2, -2) }, []string{eqOnce + ":d"}},
		"an order row lost":              {func(r *reading) { delete(r.mysql.orders, "c") }, []string{eqOrders + ":c", eqLedger + ":c", eqSlots + ":c", eqLive + ":"}},
		"a SKU's allotment":              {func(r *reading) { r.mysql.skuUnits.allotted++ }, []string{eqSKU + ":"}},
		"not in Redis":                   {func(r *reading) { r.before, r.after = reserve.Snapshot{}, reserve.Snapshot{} }, []string{eqLoaded + ":"}},
		"the gate is closed":             {func(r *reading) { r.after.State.Gate = lua.GateShut }, []string{eqLoaded + ":"}},
		"rubbish in the outbox":          {func(r *reading) { r.before.Bad = []error{fmt.Errorf("outbox entry 9-9 is no order")} }, []string{eqOrders + ":"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := life()
			c.spoil(r)
			got := r.compare()
			if got.Balanced {
				t.Fatal("it is balanced")
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(got.Findings, func(f Finding) bool {
					return f.Equation+":"+f.OrderID == want && f.Detail != "" && f.Fix != "" && (f.OrderID != "" || f.Key != "")
				}) {
					t.Errorf("got %v, want a finding %q", got.Findings, want)
				}
			}
		})
	}
}

func TestAnArchivedSaleNeedsNoRedis(t *testing.T) {
	archived := func() *reading {
		r := life()
		for _, id := range []string{"b", "c"} {
			o := r.mysql.orders[id]
			o.status = wire.Paid
			r.mysql.orders[id] = o
			r.book("pay", id, 0, -o.quantity)
		}
		r.mysql.locked, r.mysql.sold = 0, 7
		r.mysql.archived, r.mysql.releasing, r.mysql.openIntents = true, map[string]bool{}, 0
		r.before, r.after = reserve.Snapshot{}, reserve.Snapshot{}
		return r
	}
	balanced(t, archived().compare())
	for name, c := range map[string]struct {
		spoil func(*reading)
		want  string // the order that a finding names; "-" for one that names none, "" for no finding
	}{
		"its keys are on their way out": {func(r *reading) { r.before.Keys, r.after.Keys, r.mysql.archiving = 6, 6, true }, ""},
		"its keys left in between":      {func(r *reading) { r.before.Keys = 6 }, ""},
		"its keys are in Redis":         {func(r *reading) { r.before.Keys, r.after.Keys = 1, 1 }, "-"},
		"an order is unpaid": {func(r *reading) {
			o := r.mysql.orders["b"]
			o.status = wire.PendingPayment
			r.mysql.orders["b"] = o
		}, "b"},
		"an order was queued": {func(r *reading) {
			r.after.Outbox = []queued.Entry{{ID: "n", Sale: 7, UID: "u-n", Quantity: 1}, {ID: "b", Sale: 7, UID: "u-b", Quantity: 2}}
		}, "n"},
	} {
		r := archived()
		c.spoil(r)
		got := r.compare()
		if c.want == "" {
			balanced(t, got)
			continue
		}
		if !slices.ContainsFunc(got.Findings, func(f Finding) bool {
			return f.Equation == eqArchived && (f.OrderID == c.want || c.want == "-" && f.OrderID == "")
		}) {
			t.Errorf("%s: got %v", name, got.Findings)
		}
	}
}

func TestFindingsAreBounded(t *testing.T) {
	r := life()
	for i := range 500 {
		r.mysql.slots = append(r.mysql.slots, slot{"u", i, fmt.Sprint("x", i)})
	}
	got := bounded(r.compare().Findings)
	if n := len(got); n != maxFindings+1 || !strings.Contains(got[maxFindings].Detail, "400 findings more") {
		t.Errorf("got %d findings, the last %v", n, got[n-1])
	}
}
