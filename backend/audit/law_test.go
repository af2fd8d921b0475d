package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// system is a sale as Redis and MySQL have it, moved by the steps that really move it, each atomic where the real one is.
type system struct {
	redis  reserve.Snapshot
	mysql  saleRows
	open   map[string]bool // releases to do in Redis
	done   []string        // releases done in Redis, not marked
	adjust []adjust        // to do in Redis
	made   int
	clock  int64 // milliseconds; each step takes one
}

func newSystem(stock int64) *system {
	s := &system{open: map[string]bool{}, clock: now.UnixMilli()}
	s.mysql = saleRows{sale: 7, sku: 3, kind: wire.Goods, limit: 2, total: stock, available: stock, epoch: 1,
		orders: map[string]order{}, releasing: map[string]bool{}, skuUnits: skuUnits{total: stock, allotted: stock, sales: stock},
		definition: reserve.Definition{Version: 1, Starts: 1, Ends: 2, Limit: 2}}
	s.book("allot", "create", stock, 0)
	s.redis = reserve.Snapshot{Buyers: map[string]string{}, Applied: map[int64]bool{},
		State: reserve.State{Definition: s.mysql.definition, Present: true, Gate: lua.GateOpen, Token: 1, Epoch: 1, Stock: stock, Total: stock}}
	return s
}

func (s *system) book(kind, ref string, available, locked int64) {
	r := reading{mysql: s.mysql}
	r.book(kind, ref, available, locked)
	s.mysql.ledger = r.mysql.ledger
}

// press is sale_reserve.lua.
func (s *system) press(uid string, quantity int) {
	held := s.redis.Buyers[uid]
	taken := strings.Count(held, "=")
	if taken+quantity > s.mysql.limit || s.redis.State.Stock < int64(quantity) {
		return
	}
	s.made++
	id := fmt.Sprintf("o%03d", s.made)
	var slots []string
	for slot := 1; len(slots) < quantity; slot++ {
		if !strings.Contains(held, fmt.Sprintf("%d=", slot)) {
			slots = append(slots, fmt.Sprint(slot))
			held = strings.TrimPrefix(held+fmt.Sprintf(",%d=%s", slot, id), ",")
		}
	}
	list := strings.Join(slots, ",")
	s.redis.State.Stock -= int64(quantity)
	s.redis.Buyers[uid] = held
	s.redis.Orders = append(s.redis.Orders, reserve.Held{ID: id, UID: uid, Quantity: quantity, Slots: list, At: s.clock})
	s.redis.Outbox = append(s.redis.Outbox, queued.Entry{ID: id, UID: uid, Quantity: quantity, Slots: list, At: s.clock})
}

// settle is the consumer's transaction; a rejected order gets its release in the same one.
func (s *system) settle(e queued.Entry, reject bool) {
	if _, ok := s.mysql.orders[e.ID]; ok {
		return
	}
	n := int64(e.Quantity)
	if reject {
		s.mysql.orders[e.ID] = order{uid: e.UID, quantity: n, status: wire.Rejected, at: e.At}
		s.intendRelease(e.ID)
		return
	}
	s.mysql.orders[e.ID] = order{uid: e.UID, quantity: n, status: wire.PendingPayment, at: e.At}
	for _, at := range strings.Split(e.Slots, ",") {
		var number int
		_, _ = fmt.Sscan(at, &number)
		s.mysql.slots = append(s.mysql.slots, slot{e.UID, number, e.ID})
	}
	s.mysql.available -= n
	s.mysql.locked += n
	s.book("order", e.ID, -n, n)
}

func (s *system) intendRelease(id string) {
	s.mysql.releasing[id] = true
	s.mysql.openIntents++
	s.open[id] = true
}

func (s *system) pay(id string) {
	o := s.mysql.orders[id]
	s.mysql.orders[id] = order{uid: o.uid, quantity: o.quantity, status: wire.Paid, at: o.at}
	s.mysql.locked -= o.quantity
	s.mysql.sold += o.quantity
	s.book("pay", id, 0, -o.quantity)
}

func (s *system) end(id string, status wire.OrderStatus, kind string) {
	o := s.mysql.orders[id]
	s.mysql.orders[id] = order{uid: o.uid, quantity: o.quantity, status: status, at: o.at}
	s.mysql.slots = slices.DeleteFunc(slices.Clone(s.mysql.slots), func(l slot) bool { return l.order == id })
	s.mysql.locked -= o.quantity
	s.mysql.available += o.quantity
	s.book(kind, id, o.quantity, -o.quantity)
	s.intendRelease(id)
}

// release is sale_release.lua.
func (s *system) release(id string) {
	i := slices.IndexFunc(s.redis.Orders, func(h reserve.Held) bool { return h.ID == id })
	if i < 0 {
		return
	}
	h := s.redis.Orders[i]
	s.redis.Orders = slices.Delete(slices.Clone(s.redis.Orders), i, i+1)
	s.redis.State.Stock += int64(h.Quantity)
	left := slices.DeleteFunc(strings.Split(s.redis.Buyers[h.UID], ","), func(p string) bool { return strings.HasSuffix(p, "="+id) })
	if len(left) == 0 {
		delete(s.redis.Buyers, h.UID)
	} else {
		s.redis.Buyers[h.UID] = strings.Join(left, ",")
	}
	delete(s.open, id)
	s.done = append(s.done, id)
}

func (s *system) restock(units int64) {
	id := int64(len(s.mysql.adjusts) + 1)
	s.mysql.adjusts = append(s.mysql.adjusts, adjust{id, units})
	s.adjust = append(s.adjust, adjust{id, units})
	s.mysql.openIntents++
	s.mysql.total += units
	s.mysql.available += units
	s.mysql.skuUnits.total += units
	s.mysql.skuUnits.allotted += units
	s.mysql.skuUnits.sales += units
	s.book("restock", fmt.Sprintf("intent:%d", id), units, 0)
}

// snapshot and copyRows are the two readings.
func (s *system) snapshot() reserve.Snapshot {
	c := s.redis
	c.Orders, c.Outbox = slices.Clone(c.Orders), slices.Clone(c.Outbox)
	c.Buyers, c.Applied = maps.Clone(c.Buyers), maps.Clone(c.Applied)
	return c
}

func (s *system) copyRows() saleRows {
	b := s.mysql
	b.orders, b.releasing = maps.Clone(b.orders), maps.Clone(b.releasing)
	b.slots, b.ledger, b.adjusts = slices.Clone(b.slots), slices.Clone(b.ledger), slices.Clone(b.adjusts)
	return b
}

// step does one thing that a live system does next.
func (s *system) step(t *rapid.T) {
	s.clock++
	ids := slices.Sorted(maps.Keys(s.mysql.orders))
	unpaid := slices.DeleteFunc(ids, func(id string) bool { return s.mysql.orders[id].status != wire.PendingPayment })
	switch what := rapid.SampledFrom([]string{"press", "press", "settle", "settle", "retire", "pay", "cancel", "cancel", "expire", "release", "mark", "restock", "adjust"}).Draw(t, "step"); {
	case what == "press":
		s.press(rapid.SampledFrom([]string{"ann", "bob", "cyd", "dan"}).Draw(t, "uid"), rapid.IntRange(1, 2).Draw(t, "quantity"))
	case what == "settle" && len(s.redis.Outbox) > 0:
		s.settle(rapid.SampledFrom(s.redis.Outbox).Draw(t, "entry"), rapid.IntRange(0, 9).Draw(t, "reject") == 0)
	case what == "retire" && len(s.redis.Outbox) > 0:
		i := rapid.IntRange(0, len(s.redis.Outbox)-1).Draw(t, "entry")
		if _, settled := s.mysql.orders[s.redis.Outbox[i].ID]; settled {
			s.redis.Outbox = slices.Delete(slices.Clone(s.redis.Outbox), i, i+1)
		}
	case what == "pay" && len(unpaid) > 0:
		s.pay(rapid.SampledFrom(unpaid).Draw(t, "order"))
	case what == "cancel" && len(unpaid) > 0:
		s.end(rapid.SampledFrom(unpaid).Draw(t, "order"), wire.Cancelled, "cancel")
	case what == "expire" && len(unpaid) > 0:
		s.end(rapid.SampledFrom(unpaid).Draw(t, "order"), wire.Expired, "expire")
	case what == "release" && len(s.open) > 0:
		s.release(rapid.SampledFrom(slices.Sorted(maps.Keys(s.open))).Draw(t, "order"))
	case what == "mark" && len(s.done) > 0:
		delete(s.mysql.releasing, s.done[0])
		s.mysql.openIntents--
		s.done = s.done[1:]
	case what == "restock":
		s.restock(rapid.Int64Range(1, 3).Draw(t, "units"))
	case what == "adjust" && len(s.adjust) > 0:
		a := s.adjust[0]
		s.adjust = s.adjust[1:]
		s.redis.Applied[a.intent] = true
		s.redis.State.Stock += a.units
		s.redis.State.Total += a.units
	}
}

// readings lets a system live and reads it as the auditor does: Redis, MySQL, Redis, at any three moments.
func readings(t *rapid.T) (r reading, began time.Time) {
	s := newSystem(rapid.Int64Range(1, 12).Draw(t, "stock"))
	live := func(most int, name string) {
		for range rapid.IntRange(0, most).Draw(t, name) {
			s.step(t)
		}
	}
	live(40, "before the first reading")
	s.clock++
	began = time.UnixMilli(s.clock).UTC()
	r.before = s.snapshot()
	live(10, "before MySQL's")
	r.mysql = s.copyRows()
	live(10, "before the second reading")
	r.after = s.snapshot()
	return r, began
}

// Whatever a live system does while it is read, it balances, and the numbers add up.
func TestALiveSystemAlwaysBalances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, began := readings(t)
		if got := compare(r.before, r.after, r.mysql, began, bound); !got.Balanced || got.Available+got.Queued+got.Locked+got.Sold != got.Total {
			t.Fatalf("got %+v", got)
		}
	})
}

// And whatever is taken from it, or added to it, does not.
func TestOneUnitTooManyOrTooFewIsAlwaysFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, began := readings(t)
		by := rapid.SampledFrom([]int64{-1, 1}).Draw(t, "by")
		fields := map[string]*int64{
			"redis stock": &r.before.State.Stock, "redis total": &r.before.State.Total, "total": &r.mysql.total, "available": &r.mysql.available,
			"locked": &r.mysql.locked, "sold": &r.mysql.sold, "allotted": &r.mysql.skuUnits.allotted,
			"ledger": &r.mysql.ledger[rapid.IntRange(0, len(r.mysql.ledger)-1).Draw(t, "row")].available.by,
		}
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(fields))).Draw(t, "field")
		*fields[name] += by
		if got := compare(r.before, r.after, r.mysql, began, bound); got.Balanced {
			t.Fatalf("%s is off by %d, and it balances: %+v", name, by, got)
		}
	})
}
