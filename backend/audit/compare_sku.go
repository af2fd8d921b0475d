package audit

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"floodgate.internal/backend/sku"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// skuComparison is comparison for a SKU.
type skuComparison struct {
	before, after sku.Snapshot
	mysql         skuRows
	now           time.Time
	abandoned     time.Duration
	r             SKU
}

// compareSKU returns the equations that do not hold. Units that are locked in Redis and of which MySQL has nothing are in
// flight until they are older than abandoned.
func compareSKU(skuID int64, before, after sku.Snapshot, m skuRows, now time.Time, abandoned time.Duration) SKU {
	k, s := m.units, before.State
	c := &skuComparison{before: before, after: after, mysql: m, now: now, abandoned: abandoned}
	c.r = SKU{SKUID: skuID, CheckedAt: wire.At(now), Total: k.total, Available: k.available, Allotted: k.allotted, Locked: k.locked, Sold: k.sold,
		Lines: len(m.lines), Intents: m.openIntents, Findings: append([]Finding{}, m.wrong...)}
	c.r.Redis = SKURedis{Loaded: s.Gate == lua.GateOpen, Epoch: s.Epoch, Available: s.Available, Locked: s.Locked, Sold: s.Sold, Total: s.Total, Orders: len(before.Orders)}
	c.row()
	if s.Gate != "" && after.State.Gate != "" { // else it is not in use, or was removed just now
		c.redis()
	}
	c.r.Balanced = len(c.r.Findings) == 0
	return c.r
}

func (c *skuComparison) find(equation, order, key, fix, detail string, args ...any) {
	c.r.Findings = append(c.r.Findings, Finding{Equation: equation, OrderID: order, Key: key, Detail: fmt.Sprintf(detail, args...), Fix: fix})
}

func (c *skuComparison) key(name string) string { return fmt.Sprintf("{sku:%d}:%s", c.r.SKUID, name) }
func (c *skuComparison) rebuild() string {
	return fmt.Sprintf("backend rebuild --sku %d writes Redis anew from MySQL", c.r.SKUID)
}

// row: the sums of the SKU's row agree with each other, its sales, its carts' orders and its ledger.
func (c *skuComparison) row() {
	m, k, row := c.mysql, c.mysql.units, fmt.Sprintf("skus row %d", c.r.SKUID)
	var unpaid int64
	for _, n := range m.lines {
		unpaid += n
	}
	if k.available+k.allotted+k.locked+k.sold != k.total || min(k.available, k.allotted, k.locked, k.sold) < 0 {
		c.find(eqSKUUnits, "", row, byHand, "available %d + allotted %d + locked %d + sold %d is not total %d", k.available, k.allotted, k.locked, k.sold, k.total)
	}
	if k.allotted != k.sales {
		c.find(eqSKU, "", row, byHand, "allotted is %d, its sales have %d units", k.allotted, k.sales)
	}
	if unpaid != k.locked || m.paid != k.sold {
		c.find(eqSKULines, "", row, byHand, "locked is %d and sold %d, carts' unpaid orders have %d units and paid ones %d", k.locked, k.sold, unpaid, m.paid)
	}
	if m.available != k.available || m.locked != k.locked {
		c.find(eqSKULedger, "", fmt.Sprintf("sku_ledger of SKU %d", c.r.SKUID), byHand, "its changes add up to available %d and locked %d, the SKU has %d and %d", m.available, m.locked, k.available, k.locked)
	}
}

// redis: Redis agrees with itself and with MySQL.
func (c *skuComparison) redis() {
	first, second := c.before.State, c.after.State
	if first.Gate != lua.GateOpen || second.Gate != lua.GateOpen || first.Epoch != second.Epoch || first.Epoch != c.mysql.epoch {
		c.find(eqSKUEpoch, "", c.key("state"), c.rebuild(), "Redis has it %s in epoch %d, then %s in epoch %d, MySQL in epoch %d", first.Gate, first.Epoch, second.Gate, second.Epoch, c.mysql.epoch)
		return
	}
	held, sold := c.locks()
	for _, id := range slices.Sorted(maps.Keys(c.mysql.lines)) {
		_, in1 := c.before.Orders[id]
		_, in2 := c.after.Orders[id]
		if !in1 && !in2 {
			c.find(eqSKUHeld, id, c.key("orders"), c.rebuild(), "the order waits for its payment with %d units, which are not locked in Redis: it could offer them again", c.mysql.lines[id])
		}
	}
	c.totals(held, sold)
}

// locks: each lock in Redis is of an unpaid order, of one that ended just now, or of one in flight. It returns the units that
// are locked in Redis, and of them those of orders that are paid.
func (c *skuComparison) locks() (held, sold int64) {
	for _, id := range slices.Sorted(maps.Keys(c.before.Orders)) {
		n := c.before.Orders[id]
		held += n
		line, waits := c.mysql.lines[id]
		_, still := c.after.Orders[id]
		switch status := c.mysql.held[id]; {
		case waits && (line != n || c.before.Locks[id] != c.mysql.locks[id]):
			c.find(eqSKUHeld, id, c.key("orders"), c.rebuild(), "%d units are locked in Redis by lock %s, the order's line has %d by lock %s", n, c.before.Locks[id], line, c.mysql.locks[id])
		case waits:
		case status == wire.Paid:
			sold += n
			fallthrough
		case status != "":
			if still && !c.mysql.ended[id] {
				c.find(eqSKUHeld, id, c.key("orders"), c.rebuild(), "the order is %s, no intent of it is open, and it has %d units locked in Redis", status, n)
			}
		default:
			c.r.Redis.InFlight += n
			since, open := c.before.Open[id]
			if age := c.now.Sub(time.UnixMilli(since)); still && (!open || age > c.abandoned) {
				c.find(eqSKUHeld, id, c.key("orders"), "the timer role gives back what nobody goes on with (carts.abandoned_after): does it run? "+c.rebuild(),
					"%d units are locked in Redis for an order that MySQL does not have, for longer than %v", n, c.abandoned)
			}
		}
	}
	return held, sold
}

// totals: Redis's numbers add up, and are MySQL's but for what is under way.
func (c *skuComparison) totals(held, sold int64) {
	s, k := c.before.State, c.mysql.units
	if s.Available+s.Locked+s.Sold != s.Total || s.Locked != held {
		c.find(eqSKURedis, "", c.key("state"), c.rebuild(), "available %d + locked %d + sold %d, total %d; orders have %d locked", s.Available, s.Locked, s.Sold, s.Total, held)
	}
	var unapplied int64
	for _, a := range c.mysql.adjusts {
		if a.intent > s.Floor && !c.before.Applied[a.intent] {
			unapplied += a.units
		}
	}
	if want := k.available + k.locked + k.sold; s.Total+unapplied != want {
		c.find(eqSKUTotals, "", c.key("state"), c.rebuild(), "total %d in Redis, %+d in changes that are under way, and %d in MySQL", s.Total, unapplied, want)
	}
	if s.Sold+sold != k.sold {
		c.find(eqSKUTotals, "", c.key("state")+" sold", c.rebuild(), "sold %d in Redis, %d in payments that are under way, and %d in MySQL", s.Sold, sold, k.sold)
	}
}
