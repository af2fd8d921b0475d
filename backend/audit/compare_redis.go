package audit

import (
	"reflect"
	"strconv"
	"strings"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
)

// redis compares Redis with itself and with MySQL, and fills in where every unit is.
func (c *comparison) redis() {
	s, m := c.before.State, c.mysql
	r := &c.r.Redis
	r.Loaded, r.Gate, r.Epoch, r.Stock, r.Total = s.Present, s.Gate, s.Epoch, s.Stock, s.Total
	r.Reservations, r.Outbox = len(c.before.Orders), len(c.before.Outbox)
	for _, h := range c.before.Orders {
		r.Reserved += int64(h.Quantity)
	}
	for _, err := range c.before.Bad {
		c.find(eqOrders, "", c.key("*"), c.rebuild(), "%v", err)
	}
	switch {
	case !s.Present:
		c.find(eqLoaded, "", c.key("state"), c.rebuild(), "the sale is not in Redis")
	case !open(s) || !open(c.after.State):
		c.find(eqLoaded, "", c.key("state"), "wait until the reconciler is done; if it does not come to an end, see /-/ready and the log of the backend, and run backend rebuild --sale "+strconv.FormatInt(m.sale, 10),
			"the gate is %q, then %q: the sale is being reconciled", s.Gate, c.after.State.Gate)
	default:
		c.state()
		c.buyers()
		c.line()
	}
	c.orders()
}

// state: the counters, the epoch and the definition.
func (c *comparison) state() {
	s, m := c.before.State, c.mysql
	if s.Stock+c.r.Redis.Reserved != s.Total || s.Stock < 0 {
		c.find(eqStock, "", c.key("state"), c.rebuild(), "stock %d + reserved %d is not total %d", s.Stock, c.r.Redis.Reserved, s.Total)
	}
	if total := s.Total + c.unapplied(); total != m.total {
		c.find(eqTotals, "", c.key("state"), c.rebuild(), "total %d in Redis, %d of it in changes that are under way, is not total %d in MySQL", total, c.unapplied(), m.total)
	}
	if s.Epoch > m.epoch || c.after.State.Epoch < m.epoch {
		c.find(eqEpoch, "", c.key("state"), c.rebuild(), "epoch %d in Redis, then %d in MySQL, then %d in Redis", s.Epoch, m.epoch, c.after.State.Epoch)
	}
	if m.redefining || s.Version != c.after.State.Version {
		return // a change is under way
	}
	if !reflect.DeepEqual(s.Definition, m.definition) {
		c.find(eqDefinition, "", c.key("state"), c.rebuild(), "Redis has %+v, MySQL %+v", s.Definition, m.definition)
	}
}

// unapplied is the units of admin changes that were not in Redis's stock at the first reading.
func (c *comparison) unapplied() int64 {
	var n int64
	for _, a := range c.mysql.adjusts {
		if !c.before.Applied[a.intent] {
			n += a.units
		}
	}
	return n
}

// buyers: the buyers' slots are exactly those of the reservations.
func (c *comparison) buyers() {
	type held struct{ uid, slot string }
	want := make(map[held]string, len(c.before.Orders))
	for _, h := range c.before.Orders {
		slots := strings.Split(h.Slots, ",")
		if len(slots) != h.Quantity {
			c.find(eqBuyers, h.ID, c.key("orders"), c.rebuild(), "%d units and the slots %s", h.Quantity, h.Slots)
		}
		for _, slot := range slots {
			want[held{h.UID, slot}] = h.ID
		}
	}
	for uid, value := range c.before.Buyers {
		for _, pair := range strings.Split(value, ",") {
			slot, id, _ := strings.Cut(pair, "=")
			switch want[held{uid, slot}] {
			case id:
				delete(want, held{uid, slot})
			default:
				c.find(eqBuyers, id, c.key("buyers"), c.rebuild(), "uid %s has slot %s taken by this order, which has no such reservation", uid, slot)
			}
		}
	}
	for h, id := range want {
		c.find(eqBuyers, id, c.key("buyers"), c.rebuild(), "the reservation takes slot %s of uid %s, which is free there: the buyer could exceed the limit", h.slot, h.uid)
	}
}

// orders: R = L ∪ (O \ M), order by order, and where each unit is counted.
func (c *comparison) orders() {
	first, second := byID(c.before.Orders), byID(c.after.Orders)
	readable := open(c.before.State) && open(c.after.State) // else reservations come and go
	back := c.reserved(first, second, readable)
	since := c.unreserved(first, second, readable)
	c.outbox(first, readable)
	c.r.Available = c.before.State.Stock + back - since + c.unapplied()
	if sum := c.r.Available + c.r.Queued + c.r.Locked + c.r.Sold; sum != c.r.Total && len(c.r.Findings) == 0 {
		c.find(eqAll, "", c.row("orders"), "audit again; if it stays, "+c.rebuild(), "%d + %d + %d + %d is %d, not %d",
			c.r.Available, c.r.Queued, c.r.Locked, c.r.Sold, sum, c.r.Total)
	}
}

// reserved: each reservation is of a live order, of one in the outbox, or of one that ended and is about to be released. It
// returns the units of orders that ended and that the first reading still had reserved.
func (c *comparison) reserved(first, second map[string]*reserve.Held, readable bool) (back int64) {
	m, inOutbox := c.mysql, entries(c.before.Outbox)
	for id, h := range first {
		o, ok := m.orders[id]
		switch {
		case !ok:
			if _, queued := inOutbox[id]; !queued && readable {
				c.nowhere(*h)
			}
		case o.status.Live():
			if (o.uid != h.UID || o.quantity != int64(h.Quantity)) && readable {
				c.find(eqOrders, id, c.key("orders"), c.rebuild(), "Redis has %d units for uid %s, MySQL has %d units for uid %s", h.Quantity, h.UID, o.quantity, o.uid)
			}
		default:
			if _, still := second[id]; !still || m.releasing[id] {
				back += int64(h.Quantity)
			} else if readable {
				c.find(eqOrders, id, c.key("orders"), c.rebuild(), "the order is %s in MySQL, no release of it is under way, and it still holds %d units in Redis", o.status, h.Quantity)
			}
		}
	}
	for id, h := range second { // reserved since; not in the outbox and not in MySQL cannot be told apart yet
		if o, ok := m.orders[id]; ok && !o.status.Live() && !m.releasing[id] && readable {
			if _, before := first[id]; !before {
				c.find(eqOrders, id, c.key("orders"), c.rebuild(), "the order is %s in MySQL, no release of it is under way, and it holds %d units in Redis", o.status, h.Quantity)
			}
		}
	}
	return back
}

// unreserved: each live order is reserved. It returns the units of those that were reserved after the first reading.
func (c *comparison) unreserved(first, second map[string]*reserve.Held, readable bool) (since int64) {
	for id, o := range c.mysql.orders {
		_, in1 := first[id]
		_, in2 := second[id]
		if c.mysql.releasing[id] {
			c.r.MySQL.Releasing += o.quantity
		}
		if !o.status.Live() || in1 {
			continue
		}
		if in2 || o.at >= c.now.UnixMilli() {
			since += o.quantity
		} else if readable {
			c.find(eqOrders, id, c.key("orders"), c.rebuild(), "the order is %s in MySQL with %d units, which Redis does not have reserved: it could sell them again", o.status, o.quantity)
		}
	}
	return since
}

// outbox: each of its orders is reserved, and is settled and retired within the bound.
func (c *comparison) outbox(first map[string]*reserve.Held, readable bool) {
	still := entries(c.after.Outbox)
	for id, e := range entries(c.before.Outbox) {
		if o, ok := c.mysql.orders[id]; ok {
			c.r.Redis.Unretired++
			if age := c.now.UnixMilli() - o.decided; age > c.bound.Milliseconds() && o.decided > 0 {
				if _, ok := still[id]; ok {
					c.find(eqRetired, id, c.key("outbox"), "it is delivered once more, found in MySQL and retired as soon as a relay and a consumer run and reach Redis: see backend queue",
						"the order is %s in MySQL for %.1f s and its entry %s is still there; the bound is %s", o.status, float64(age)/1000, e.Entry, c.bound)
				}
			}
			continue
		}
		c.r.Redis.Queued++
		_, held := first[id]
		if held || e.Epoch >= c.before.State.Epoch { // else an orphan, which was promised to nobody: it gets what is left when it is adopted
			c.r.Queued += int64(e.Quantity)
			if !held && readable {
				c.find(eqOrders, id, c.key("outbox"), c.rebuild(), "uid %s's order is in the outbox, but its %d units are not reserved", e.UID, e.Quantity)
			}
		}
		if age := c.now.UnixMilli() - e.At; age > c.bound.Milliseconds() {
			if _, ok := still[id]; ok {
				c.find(eqQueued, id, c.key("outbox"), "see backend queue: is the broker up, does a consumer run, does MySQL answer? Nothing is lost: the order is settled as soon as they do. If it is in backend dead-letters, MySQL refuses it: the reason stands there",
					"queued for %.1f s, the bound is %s", float64(age)/1000, c.bound)
			}
		}
	}
}

// nowhere finds a reservation whose order is neither in the outbox nor in MySQL.
func (c *comparison) nowhere(h reserve.Held) {
	if c.traced(h.ID) {
		c.find(eqOrders, h.ID, c.row("orders"), "put the row back, from a backup or from what Redis and the ledger say of it; do not rebuild before: the order would be queued again, and MySQL, which has its slots or its ledger still, would refuse it",
			"uid %s holds %d units in Redis, and slots or ledger rows in MySQL, where the order's own row is gone", h.UID, h.Quantity)
		return
	}
	c.find(eqOrders, h.ID, c.key("outbox"), "if the broker has its message, it is settled by itself (backend queue); if that is a dead letter, replay it (backend dead-letters list); else "+c.rebuild()+
		", which queues it again",
		"uid %s holds %d units in Redis, but the order is neither in the outbox nor in MySQL", h.UID, h.Quantity)
}

// traced reports whether MySQL has slots or ledger rows of an order.
func (c *comparison) traced(id string) bool {
	if c.traces == nil {
		c.traces = map[string]bool{}
		for _, s := range c.mysql.slots {
			c.traces[s.order] = true
		}
		for _, e := range c.mysql.ledger {
			if rowKinds[e.kind] != 0 {
				c.traces[e.ref] = true
			}
		}
	}
	return c.traces[id]
}

func byID(held []reserve.Held) map[string]*reserve.Held {
	m := make(map[string]*reserve.Held, len(held))
	for i := range held {
		m[held[i].ID] = &held[i]
	}
	return m
}

func entries(outbox []queued.Entry) map[string]queued.Entry {
	m := make(map[string]queued.Entry, len(outbox))
	for _, e := range outbox {
		m[e.ID] = e // two entries under two epochs are one order
	}
	return m
}
