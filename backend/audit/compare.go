package audit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// The equations, as findings name them.
const (
	eqLoaded     = "the sale is in Redis and open"
	eqStock      = "S + |R| = T in Redis"
	eqTotals     = "T in Redis = T in MySQL"
	eqBuyers     = "buyers = slots of R"
	eqDefinition = "definition in Redis = definition in MySQL"
	eqEpoch      = "the epoch never falls"
	eqUnits      = "available + locked + sold = T in MySQL"
	eqLive       = "locked + sold = |L|, |L| <= T"
	eqLedger     = "sum of the ledger = change of the stock"
	eqSlots      = "slots = units of L"
	eqClaims     = "claims = units of issued orders"
	eqLimit      = "a buyer has at most the limit in L"
	eqOnce       = "an order ends once"
	eqSKU        = "allotted = units of the SKU's sales"
	eqOrders     = "R = L ∪ (O \\ M)"
	eqQueued     = "no order is queued longer than the bound"
	eqRetired    = "a settled order leaves the outbox within the bound"
	eqBroker     = "the broker holds nothing longer than the bound"
	eqLine       = "what the standby line waits for is its own, and offered within the bound"
	eqOffer      = "an offer is its order"
	eqArchived   = "an archived sale is over, and not in Redis"
	eqAll        = "available + queued + locked + sold = T"
)

func open(s reserve.State) bool { return s.Present && s.Gate == lua.GateOpen }

// compare returns the equations that do not hold, given Redis before and after one reading of MySQL, which began at now
// by Redis's clock. The conditions are such that an order on its way is never a finding. An order that MySQL did not have
// must have been in the first reading's outbox. One that was live must be in one of the two readings, or was accepted
// since they began (and may have come and gone). One that ended without an open release must not be in the second.
func compare(before, after reserve.Snapshot, m saleRows, now time.Time, bound time.Duration) Result {
	c := &comparison{before: before, after: after, mysql: m, now: now, bound: bound}
	c.r = Result{SaleID: m.sale, CheckedAt: wire.At(now), Total: m.total, Findings: []Finding{}}
	c.stockRow()
	c.live()
	c.claims()
	c.ledger()
	c.sku()
	c.offers()
	if m.archived {
		c.archived()
	} else {
		c.redis()
	}
	c.r.MySQL.Total, c.r.MySQL.Available, c.r.MySQL.Locked, c.r.MySQL.Sold = m.total, m.available, m.locked, m.sold
	c.r.MySQL.Epoch, c.r.MySQL.Orders, c.r.MySQL.LedgerRows, c.r.MySQL.Intents = m.epoch, len(m.orders), len(m.ledger), m.openIntents
	slices.SortStableFunc(c.r.Findings, func(f, g Finding) int {
		return strings.Compare(f.Equation+"\x00"+f.OrderID+"\x00"+f.Key, g.Equation+"\x00"+g.OrderID+"\x00"+g.Key)
	})
	c.r.Balanced = len(c.r.Findings) == 0
	return c.r
}

// archived: every order has ended and, except for a change under way, nothing of the sale is in Redis.
func (c *comparison) archived() {
	m := c.mysql
	c.r.Available, c.r.Locked, c.r.Sold = m.available, m.locked, m.sold
	s := c.after.State
	c.r.Redis.Loaded, c.r.Redis.Gate, c.r.Redis.Epoch, c.r.Redis.Stock, c.r.Redis.Total = s.Present, s.Gate, s.Epoch, s.Stock, s.Total
	c.r.Redis.Reservations, c.r.Redis.Outbox = len(c.after.Orders), len(c.after.Outbox)
	for id := range entries(c.after.Outbox) {
		if _, ok := m.orders[id]; ok {
			c.r.Redis.Unretired++
			continue
		}
		c.r.Redis.Queued++
		c.find(eqArchived, id, c.key("outbox"), "Redis came back from a copy that is older than the archive: settle the order by hand, and tell its buyer",
			"an order in the outbox of an archived sale is not in MySQL")
	}
	if c.before.Keys > 0 && c.after.Keys > 0 && !m.archiving {
		c.find(eqArchived, "", c.key("*"), fmt.Sprintf("backend sale archive %d, again, takes them out", m.sale), "%d keys of it are in Redis", c.after.Keys)
	}
	for id, o := range m.orders {
		if !o.status.Terminal() {
			c.find(eqArchived, id, c.row("orders"), byHand, "the order is %s", o.status)
		}
	}
}

type comparison struct {
	before, after reserve.Snapshot
	mysql         saleRows
	now           time.Time
	bound         time.Duration
	r             Result
	traces        map[string]bool // of orders, in MySQL's slots and ledger; nil until it is needed
}

func (c *comparison) find(equation, orderID, key, fix, detail string, args ...any) {
	c.r.Findings = append(c.r.Findings, Finding{Equation: equation, OrderID: orderID, Key: key, Detail: fmt.Sprintf(detail, args...), Fix: fix})
}

func (c *comparison) key(name string) string { return fmt.Sprintf("{sale:%d}:%s", c.mysql.sale, name) }
func (c *comparison) row(table string) string {
	return fmt.Sprintf("%s of sale %d", table, c.mysql.sale)
}
func (c *comparison) rebuild() string {
	return fmt.Sprintf("backend rebuild --sale %d writes Redis anew from MySQL and the outbox", c.mysql.sale)
}

const byHand = "somebody changed MySQL by hand or it was restored from a backup: put the row back, or correct the stock row and write the ledger row that says so"

// stockRow: the sums of the stock row agree.
func (c *comparison) stockRow() {
	m := c.mysql
	if m.available+m.locked+m.sold != m.total || m.available < 0 || m.locked < 0 || m.sold < 0 {
		c.find(eqUnits, "", c.row("sale_stock"), byHand, "available %d + locked %d + sold %d is not total %d", m.available, m.locked, m.sold, m.total)
	}
}

// live: the live orders, their slots, and each buyer's limit.
func (c *comparison) live() {
	var locked, sold int64
	units := map[string]int64{} // of each buyer
	for _, o := range c.mysql.orders {
		switch o.status {
		case wire.PendingPayment:
			locked += o.quantity
		case wire.Paid, wire.Issued:
			sold += o.quantity
		}
		if o.status.Live() {
			c.r.MySQL.LiveOrders++
			units[o.uid] += o.quantity
		}
	}
	c.r.Locked, c.r.Sold = locked, sold
	if locked != c.mysql.locked {
		c.find(eqLive, "", c.row("sale_stock"), byHand, "locked is %d, the orders that wait for payment hold %d units", c.mysql.locked, locked)
	}
	if sold != c.mysql.sold {
		c.find(eqLive, "", c.row("sale_stock"), byHand, "sold is %d, the orders that are paid or issued hold %d units", c.mysql.sold, sold)
	}
	if locked+sold > c.mysql.total {
		c.find(eqLive, "", c.row("orders"), "OVERSOLD: stop the sale (backend sale pause) and see the ledger for who came last", "live orders hold %d units of %d", locked+sold, c.mysql.total)
	}
	for uid, n := range units {
		if n > int64(c.mysql.limit) {
			c.find(eqLimit, "", "orders of uid "+uid, "cancel what is too much", "%d units in live orders, the limit is %d", n, c.mysql.limit)
		}
	}

	slots := map[string]int64{}
	for _, s := range c.mysql.slots {
		o, ok := c.mysql.orders[s.order]
		at := fmt.Sprintf("order_slots of uid %s, slot %d", s.uid, s.slot)
		switch {
		case !ok:
			c.find(eqSlots, s.order, at, byHand, "the slot is taken by an order that has no row")
		case !o.status.Live():
			c.find(eqSlots, s.order, at, "delete the slot: its buyer cannot order again until then", "the slot is taken by an order that is %s", o.status)
		case o.uid != s.uid:
			c.find(eqSlots, s.order, at, byHand, "the order is uid %s's", o.uid)
		}
		slots[s.order]++
	}
	for id, o := range c.mysql.orders {
		if n := slots[id]; o.status.Live() && n != o.quantity {
			c.find(eqSlots, id, "order_slots of uid "+o.uid, byHand, "the order is for %d units and takes %d slots: its buyer could exceed the limit", o.quantity, n)
		}
	}
}

// claims: each unit of an issued order is one claim of its buyer, and there are no others.
func (c *comparison) claims() {
	units := map[string]int64{}
	for _, x := range c.mysql.claims {
		c.r.MySQL.Claims++
		at := "coupon_claims row " + x.id
		o, ok := c.mysql.orders[x.order]
		switch {
		case !ok:
			c.find(eqClaims, x.order, at, byHand, "the claim is of an order that has no row")
		case o.status != wire.Issued:
			c.find(eqClaims, x.order, at, byHand, "the claim is of an order that is %s", o.status)
		case o.uid != x.uid:
			c.find(eqClaims, x.order, at, byHand, "the claim is uid %s's, the order is uid %s's", x.uid, o.uid)
		}
		if over := x.state == wire.ClaimUsed || x.state == wire.ClaimExpired; over != x.ended || !over && x.state != wire.ClaimNew {
			c.find(eqClaims, x.order, at, byHand, "the claim is %q, and has an ended_at: %v", x.state, x.ended)
		}
		units[x.order]++
	}
	for id, o := range c.mysql.orders {
		if n := units[id]; o.status == wire.Issued && n != o.quantity {
			c.find(eqClaims, id, c.row("coupon_claims"), byHand, "the order was issued %d units and has %d claims", o.quantity, n)
		}
	}
}

// What an order's row must have in the ledger, by kind of row.
const (
	rowOrder = 1 << iota
	rowIssue
	rowPay
	rowCancel
	rowExpire
)

var rowKinds = map[string]int{"order": rowOrder, "issue": rowIssue, "pay": rowPay, "cancel": rowCancel, "expire": rowExpire}

func rowNames(mask int) string {
	var names []string
	for _, name := range []string{"order", "issue", "pay", "cancel", "expire"} {
		if mask&rowKinds[name] != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

var rowsOf = map[wire.OrderStatus]int{
	wire.PendingPayment: rowOrder,
	wire.Paid:           rowOrder | rowPay,
	wire.Cancelled:      rowOrder | rowCancel,
	wire.Expired:        rowOrder | rowExpire,
	wire.Issued:         rowIssue,
}

// ledger: its sum is the stock, its rows join, and each order has exactly its own rows.
func (c *comparison) ledger() {
	var available, locked int64
	rows := map[string]int{}
	for _, e := range c.mysql.ledger {
		available += e.available.by
		locked += e.locked.by
		at := "ledger row " + strconv.FormatInt(e.id, 10)
		if !e.available.adds() || !e.locked.adds() {
			c.find(eqLedger, "", at, byHand, "%s of %s: before + change is not after", e.kind, e.ref)
		}
		kind, ofOrder := rowKinds[e.kind]
		if !ofOrder {
			continue
		}
		rows[e.ref] |= kind
		o, ok := c.mysql.orders[e.ref]
		if !ok {
			c.find(eqLedger, e.ref, at, byHand, "the ledger says %q of an order that has no row", e.kind)
			continue
		}
		if want := changes(kind, o.quantity); want != [2]int64{e.available.by, e.locked.by} {
			c.find(eqLedger, e.ref, at, byHand, "%q of an order of %d units changed available by %d and locked by %d", e.kind, o.quantity, e.available.by, e.locked.by)
		}
	}
	for id, o := range c.mysql.orders {
		got, want := rows[id], rowsOf[o.status]
		if ends := got & (rowPay | rowCancel | rowExpire); ends&(ends-1) != 0 {
			c.find(eqOnce, id, c.row("ledger"), byHand, "the order is %s, and the ledger says that it ended more than once: %s", o.status, rowNames(got))
		} else if got != want {
			c.find(eqLedger, id, c.row("ledger"), byHand, "the order is %s, which takes the ledger rows: %s; it has: %s", o.status, rowNames(want), rowNames(got))
		}
	}
	if available != c.mysql.available || locked != c.mysql.locked {
		c.find(eqLedger, "", c.row("ledger"), byHand, "its changes add up to available %d and locked %d, the stock row has %d and %d%s",
			available, locked, c.mysql.available, c.mysql.locked, gap(c.mysql.ledger))
	}
}

// changes is by how much a row of this kind changes available and locked.
func changes(kind int, quantity int64) [2]int64 {
	switch kind {
	case rowOrder:
		return [2]int64{-quantity, quantity}
	case rowIssue:
		return [2]int64{-quantity, 0}
	case rowPay:
		return [2]int64{0, -quantity}
	default:
		return [2]int64{quantity, -quantity}
	}
}

// gap returns where the first row is missing: each begins where the one before it ended.
func gap(ledger []entry) string {
	var last entry
	for _, e := range ledger {
		if e.available.before != last.available.after || e.locked.before != last.locked.after {
			return fmt.Sprintf("; the first gap is before row %d (%s of %s)", e.id, e.kind, e.ref)
		}
		last = e
	}
	return "; its rows join: the last one is missing, or the stock row was changed by hand"
}

func (c *comparison) sku() {
	k := c.mysql.skuUnits
	at := "skus row " + strconv.FormatInt(c.mysql.sku, 10)
	if k.available+k.allotted+k.locked+k.sold != k.total {
		c.find(eqSKU, "", at, byHand, "available %d + allotted %d + locked %d + sold %d is not total %d", k.available, k.allotted, k.locked, k.sold, k.total)
	}
	if k.allotted != k.sales {
		c.find(eqSKU, "", at, byHand, "allotted is %d, its sales have %d units", k.allotted, k.sales)
	}
}
