//go:build servers

package lua_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"floodgate.internal/lua"
)

// model is a sale in Redis as the heads of the scripts have it: their contracts as rules, on plain values. A window or a
// tranche of it begins and ends at longAgo or at farAway, so it needs no clock. Whoever holds which slot is not kept: the
// reservations say it.
type model struct {
	gate                string // "": the sale is not in Redis
	whole               string // "": nobody has said yet
	token               int64
	epoch, stock, total int64
	place               int64             // the newest in the standby line; 0: nobody waits
	definition          map[string]string // as in the state hash, never changed in place; nil until a load was finished
	orders              map[string]reservation
	keys                map[string]string // "uid:key" -> "order quantity"; uid -> how many of the buyer's orders have ended
	applied             map[string]bool
	gone                []string                     // released reservations, oldest first; a program has fewer than the list holds
	outbox              map[string]map[string]string // entry id -> fields
	newest, read        string                       // entry ids: the last that was added, and the last that the group delivered
	group               bool                         // the outbox has its group
	pending             map[string]string            // entry id -> consumer
	consumers           map[string]bool
}

type reservation struct {
	uid            string
	quantity       int64
	slots          []int64
	entry, at, key string
}

func (r reservation) String() string {
	return strings.Join(words(r.uid, r.quantity, join(r.slots), r.entry, r.at, r.key), " ")
}

const (
	longAgo int64 = 1000    // milliseconds
	farAway int64 = 1 << 50 // likewise
)

func newModel() *model {
	return &model{orders: map[string]reservation{}, keys: map[string]string{}, applied: map[string]bool{}, newest: "0-0", read: "0-0",
		outbox: map[string]map[string]string{}, pending: map[string]string{}, consumers: map[string]bool{}}
}

func (m *model) clone() *model {
	c := *m
	c.orders, c.keys, c.applied, c.outbox = maps.Clone(m.orders), maps.Clone(m.keys), maps.Clone(m.applied), maps.Clone(m.outbox)
	c.pending, c.consumers = maps.Clone(m.pending), maps.Clone(m.consumers)
	return &c
}

// step is what a call must answer, and does to the model what the call does to Redis. What Redis alone can know, the id of a
// new outbox entry and the time of a press, is taken from got, its answer: the id must be greater than every one before.
func (m *model) step(c call, got lua.Reply) lua.Reply {
	a := c.args
	switch c.name {
	case "reserve":
		return m.reserve(a[0], a[1], number(a[2]), a[3], a[4], a[5], a[6], number(a[7]), got)
	case "standby":
		return m.standby(a[0], a[1])
	case "adopt":
		return m.adopt(a[0], a[1], a[2], number(a[3]), a[5], a[6], a[7], got)
	case "load":
		return m.load(a[0], a[1], a[2:])
	case "release":
		r, held := m.orders[a[0]]
		switch {
		case m.gate == "":
			return words(lua.NotLoaded)
		case m.gate != lua.GateOpen:
			return words(lua.GateClosed)
		case !held:
			return words(lua.Done)
		}
		m.stock += r.quantity
		m.gone = append(slices.Clip(m.gone), a[0]+" "+r.String())
		delete(m.orders, a[0])
		m.keys[r.uid] = text(number(m.keys[r.uid]) + 1)
		return words(lua.Released, m.stock)
	case "adjust":
		units := number(a[1])
		switch {
		case m.gate == "":
			return words(lua.NotLoaded)
		case m.gate != lua.GateOpen:
			return words(lua.GateClosed)
		case m.applied[a[0]]:
			return words(lua.Done)
		case m.stock+units < 0:
			return words(lua.NotEnough, m.stock)
		}
		m.applied[a[0]] = true
		m.stock += units
		m.total += units
		return words(lua.Applied, m.stock, m.total)
	case "define":
		switch {
		case m.definition == nil:
			return words(lua.NotLoaded)
		case number(m.definition["version"]) >= number(a[0]):
			return words(lua.Older)
		}
		m.definition = defined(append(a[1:7:7], a[0]))
		return words(lua.Defined)
	case "close":
		if m.gate != "" && m.token >= number(a[0]) {
			return words(lua.Lost, m.token)
		}
		before := min(1, len(m.gate))
		m.gate, m.token = lua.GateShut, number(a[0])
		return words(lua.Closed, before)
	case "open":
		if m.gate != lua.GateAdopt || m.token != number(a[0]) {
			return words(lua.Lost)
		}
		m.gate = lua.GateOpen
		return words(lua.Opened)
	case "retire":
		n := 0
		for _, id := range a[1:] {
			if m.outbox[id] != nil {
				n++
			}
			m.forget(id)
		}
		return words(n)
	case "sweep":
		if !m.group {
			return words(failed)
		}
		n := 0
		for name := range m.consumers {
			if number(a[1]) == 0 && !slices.Contains(a[2:], name) && !slices.Contains(slices.Collect(maps.Values(m.pending)), name) {
				delete(m.consumers, name)
				n++
			}
		}
		return words(n)
	case "read": // what a relay does, of one entry at most
		m.group, m.consumers[a[0]] = true, true
		for _, id := range slices.SortedFunc(maps.Keys(m.outbox), compareEntries) {
			if compareEntries(id, m.read) > 0 {
				m.read, m.pending[id] = id, a[0]
				return words(id)
			}
		}
		return words()
	case "wipe": // a Redis that is restarted empty
		*m = *newModel()
		return words(lua.OK)
	}
	panic("BUG: no call " + c.name)
}

func (m *model) reserve(epoch, uid string, quantity int64, order, key, trace, line string, most int64, got lua.Reply) lua.Reply {
	switch {
	case m.gate == "":
		return words(lua.NotLoaded)
	case m.gate != lua.GateOpen:
		return words(lua.GateClosed)
	case number(epoch) != m.epoch:
		return words(lua.StaleEpoch, m.epoch)
	}
	if _, before := m.orders[order]; before {
		return words(lua.Repeated, order)
	}
	if before, ok := m.keys[uid+":"+key]; ok && key != "" {
		first, amount, _ := strings.Cut(before, " ")
		if number(amount) != quantity {
			return words(lua.KeyReused, first)
		}
		return words(lua.Repeated, first)
	}
	d := m.definition
	mine, limit := m.slots(uid), number(d["limit"])
	available := m.available()
	if shut := m.shut(); shut != nil {
		return shut
	}
	switch {
	case int64(len(mine))+quantity > limit && len(mine) == 0:
		return words(lua.NotEnough, limit)
	case int64(len(mine))+quantity > limit:
		return words(lua.AlreadyOrdered, slices.Max(slices.Collect(maps.Values(mine))))
	case available <= 0 || m.place > 0 && line != lua.ForLine:
		return words(lua.SoldOut)
	case available < quantity:
		return words(lua.NotEnough, available)
	case most > 0 && number(m.keys[uid]) >= most:
		return words(lua.TooMany, m.keys[uid])
	}
	r := reservation{uid: uid, quantity: quantity, slots: free(mine, quantity), at: part(got, 6), key: key}
	m.stock -= quantity
	m.enter(order, r, trace, part(got, 4))
	return words(lua.Reserved, order, available-quantity, m.reserved(), m.newest, join(r.slots), r.at)
}

// available is what can be had now.
func (m *model) available() int64 {
	available := m.stock
	for _, tranche := range strings.Fields(m.definition["later"]) {
		if at, units, _ := strings.Cut(tranche, ":"); number(at) == farAway {
			available -= number(units)
		}
	}
	return available
}

// shut is the answer of a sale that sells nothing for another reason than that nothing is left; else nil.
func (m *model) shut() lua.Reply {
	switch d := m.definition; {
	case d["closed"] == "1" || number(d["ends"]) == longAgo:
		return words(lua.Ended)
	case number(d["starts"]) == farAway:
		return words(lua.NotStarted, farAway)
	case d["paused"] == "1":
		return words(lua.Paused)
	}
	return nil
}

func (m *model) standby(step, arg string) lua.Reply {
	if m.gate == "" {
		return words(lua.NotLoaded)
	}
	switch step {
	case lua.StepWait:
		if number(arg) <= m.place {
			return words(lua.Kept)
		}
		m.place = number(arg)
		return words(lua.Done)
	case lua.StepRest:
		if m.place == 0 || number(arg) != m.place {
			return words(lua.Kept)
		}
		m.place = 0
		return words(lua.Done)
	}
	if m.gate != lua.GateOpen {
		return words(lua.GateClosed)
	}
	if shut := m.shut(); shut != nil {
		return shut
	}
	mine := m.slots(arg)
	switch {
	case int64(len(mine)) >= number(m.definition["limit"]):
		return words(lua.AlreadyOrdered, slices.Max(slices.Collect(maps.Values(mine))))
	case m.place == 0 && m.available() > 0:
		return words(lua.Available)
	}
	return words(lua.Joinable)
}

func (m *model) adopt(epoch, order, uid string, quantity int64, key, at, trace string, got lua.Reply) lua.Reply {
	switch {
	case m.gate != lua.GateOpen && m.gate != lua.GateAdopt:
		return words(lua.GateClosed)
	case number(epoch) != m.epoch:
		return words(lua.StaleEpoch)
	}
	r, held := m.orders[order]
	if held {
		if e := m.outbox[r.entry]; e != nil && e["epoch"] == epoch {
			return words(lua.Present, r.entry)
		}
		m.forget(r.entry)
	} else {
		mine := m.slots(uid)
		r.slots = free(mine, quantity)
		owner, _, taken := strings.Cut(m.keys[uid+":"+key], " ")
		switch {
		case key != "" && taken && owner != order:
			return words(lua.KeyReused, owner)
		case m.stock < quantity:
			return words(lua.SoldOut)
		case r.slots[quantity-1] > number(m.definition["limit"]):
			return words(lua.Limit)
		}
		m.stock -= quantity
	}
	m.enter(order, reservation{uid: uid, quantity: quantity, slots: r.slots, at: at, key: key}, trace, part(got, 1))
	return words(lua.Adopted, m.newest)
}

// enter puts an order into the reservations and, as the newest entry, into the outbox.
func (m *model) enter(order string, r reservation, trace, entry string) {
	if !entryID(entry) || compareEntries(entry, m.newest) <= 0 {
		entry = "an entry after " + m.newest
	}
	m.newest, r.entry = entry, entry
	m.orders[order] = r
	m.outbox[entry] = map[string]string{"id": order, "uid": r.uid, "quantity": text(r.quantity), "slots": join(r.slots), "key": r.key,
		"epoch": text(m.epoch), "at": r.at, "trace": trace}
	if r.key != "" {
		m.keys[r.uid+":"+r.key] = order + " " + text(r.quantity)
	}
}

// forget takes an entry out of the outbox and out of the hands of whoever has it.
func (m *model) forget(entry string) {
	delete(m.outbox, entry)
	delete(m.pending, entry)
}

func (m *model) load(token, step string, a []string) lua.Reply {
	if m.gate != lua.GateShut || m.token != number(token) {
		return words(lua.Lost)
	}
	switch step {
	case lua.StepBegin:
		m.whole = "0"
		clear(m.orders)
		clear(m.keys)
		clear(m.applied)
	case lua.StepOrders:
		for o := range slices.Chunk(a, 7) {
			r := reservation{uid: o[1], quantity: number(o[2]), entry: o[4], at: o[5], key: o[6]}
			for _, slot := range strings.Split(o[3], ",") {
				r.slots = append(r.slots, number(slot))
			}
			m.orders[o[0]] = r
		}
	case lua.StepKeys:
		for k := range slices.Chunk(a, 2) {
			m.keys[k[0]] = k[1]
		}
	case lua.StepIntent:
		for _, id := range a {
			m.applied[id] = true
		}
	case lua.StepFinish:
		m.gate, m.whole = lua.GateAdopt, "1"
		m.epoch, m.stock, m.total = number(a[0]), number(a[1]), number(a[2])
		if m.definition == nil || number(m.definition["version"]) <= number(a[9]) {
			m.definition = defined(a[3:10])
		}
		m.place = max(m.place, number(a[10]))
	}
	return words(lua.OK)
}

func defined(a []string) map[string]string {
	d := map[string]string{}
	for i, name := range []string{"starts", "ends", "limit", "paused", "closed", "later", "version"} {
		d[name] = a[i]
	}
	return d
}

// slots are those that a buyer has taken, each with its order.
func (m *model) slots(uid string) map[int64]string {
	taken := map[int64]string{}
	for id, r := range m.orders {
		for _, slot := range r.slots {
			if r.uid == uid {
				taken[slot] = id
			}
		}
	}
	return taken
}

// free are the lowest n that are not taken.
func free(taken map[int64]string, n int64) (slots []int64) {
	for slot := int64(1); int64(len(slots)) < n; slot++ {
		if taken[slot] == "" {
			slots = append(slots, slot)
		}
	}
	return slots
}

// reserved is |R|.
func (m *model) reserved() (units int64) {
	for _, r := range m.orders {
		units += r.quantity
	}
	return units
}

// broken names an equation that does not hold, or is empty.
func (m *model) broken() string {
	if m.gate == "" || m.gate == lua.GateShut {
		return ""
	}
	if m.stock < 0 || m.stock+m.reserved() != m.total {
		return fmt.Sprintf("stock %d + reserved %d is not total %d", m.stock, m.reserved(), m.total)
	}
	for id, r := range m.orders {
		for _, slot := range r.slots {
			if m.slots(r.uid)[slot] != id || int64(len(r.slots)) != r.quantity {
				return fmt.Sprintf("order %s has %d units and the slots %v, and slot %d is %q's", id, r.quantity, r.slots, slot, m.slots(r.uid)[slot])
			}
		}
	}
	return ""
}

// content is all that Redis holds of a sale, in an order that says nothing.
type content struct {
	State, Orders, Keys map[string]string
	Buyers              map[string][]string
	Applied, Consumers  []string
	Gone                []string
	Outbox              map[string]map[string]string
	Pending             map[string]string
}

func (m *model) content() content {
	c := content{State: map[string]string{}, Orders: map[string]string{}, Keys: m.keys, Buyers: map[string][]string{}, Outbox: m.outbox,
		Applied: slices.Sorted(maps.Keys(m.applied)), Consumers: slices.Sorted(maps.Keys(m.consumers)), Pending: m.pending, Gone: m.gone}
	if m.gate != "" {
		c.State["gate"], c.State["token"] = m.gate, text(m.token)
	}
	if m.whole != "" {
		c.State["whole"] = m.whole
	}
	if m.place > 0 {
		c.State["standby"] = text(m.place)
	}
	if len(m.gone) > 0 {
		c.State["released"] = text(int64(len(m.gone)))
	}
	if m.definition != nil {
		c.State["epoch"], c.State["stock"], c.State["total"] = text(m.epoch), text(m.stock), text(m.total)
		maps.Copy(c.State, m.definition)
	}
	for id, r := range m.orders {
		c.Orders[id] = r.String()
		for _, slot := range r.slots {
			c.Buyers[r.uid] = append(c.Buyers[r.uid], text(slot)+"="+id)
		}
	}
	for _, held := range c.Buyers {
		slices.Sort(held)
	}
	return c
}

// failed is the answer of a call that ends with an error.
const failed = "error"

func words(all ...any) lua.Reply {
	out := lua.Reply{}
	for _, w := range all {
		out = append(out, fmt.Sprint(w))
	}
	return out
}

func text(n int64) string { return strconv.FormatInt(n, 10) }

// number reads a decimal number; what is none is 0.
func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

func join(slots []int64) string { return strings.Join(words(anys(slots)...), ",") }

func anys(slots []int64) (out []any) {
	for _, s := range slots {
		out = append(out, s)
	}
	return out
}

// part is one word of an answer, or "" where it is shorter.
func part(answer []string, i int) string {
	if i < len(answer) {
		return answer[i]
	}
	return ""
}

func entryID(s string) bool {
	ms, n, ok := strings.Cut(s, "-")
	return ok && text(number(ms)) == ms && text(number(n)) == n
}

// compareEntries orders entry ids as their stream does.
func compareEntries(a, b string) int {
	ams, an, _ := strings.Cut(a, "-")
	bms, bn, _ := strings.Cut(b, "-")
	return cmp.Or(cmp.Compare(number(ams), number(bms)), cmp.Compare(number(an), number(bn)))
}
