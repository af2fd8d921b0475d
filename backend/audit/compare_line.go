package audit

import (
	"floodgate.internal/shared/wire"
)

// offers: MySQL has an offer if and only if it has its order, which is its user's and one unit.
func (c *comparison) offers() {
	offers := map[string]place{}
	for _, p := range c.mysql.line {
		if p.state == "offered" {
			offers[p.order] = p
			if o, ok := c.mysql.orders[p.order]; !ok || o.uid != p.uid || o.quantity != 1 {
				c.find(eqOffer, p.order, "standby of uid "+p.uid, byHand, "uid %s was offered an order that MySQL does not have, or of %d units for uid %q", p.uid, o.quantity, o.uid)
			}
		}
		if _, ok := c.mysql.orders[p.order]; ok && p.state == "waiting" {
			c.find(eqOffer, p.order, "standby of uid "+p.uid, byHand, "uid %s waits in line, and the order of the offer is there", p.uid)
		}
	}
}

// line: while a user without a unit waits, Redis keeps what is available from the public, and it is offered in time.
// While nobody waits the public gets it. A deviation younger than the bound is under way.
func (c *comparison) line() {
	s, after, now := c.before.State, c.after.State, c.now.UnixMilli()
	d := c.mysql.definition
	if d.Paused || d.Closed || now < d.Starts || now >= d.Ends {
		return
	}
	since := max(c.mysql.settledAt, d.Starts) // units may have come, or the line moved, as late as this
	for _, t := range d.Later {
		if t.At <= now {
			since = max(since, t.At)
		}
	}
	held := byID(c.before.Orders)
	var first *place
	for i, p := range c.mysql.line {
		since = max(since, p.changed)
		if _, holds := held[p.order]; p.state == "waiting" && !holds && !p.refused && first == nil {
			first = &c.mysql.line[i]
		}
	}
	bound := c.bound.Milliseconds()
	available := min(s.Available(now), after.Available(now))
	switch {
	case first == nil:
		if s.Standby > 0 && after.Standby > 0 && available > 0 && now-since > bound {
			c.find(eqLine, "", c.key("state"), lineFix, "%d units are kept for a standby line in which nobody waits, for longer than %s", available, c.bound)
		}
	case s.Standby == 0 && after.Standby == 0 && now-first.joined > bound:
		c.find(eqLine, first.order, c.key("state"), lineFix, "uid %s waits in line since %s, and Redis does not know that anybody does: the public gets what comes back",
			first.uid, wire.Millis(first.joined).Format(wire.TimeFormat))
	case available > 0 && now-since > bound:
		c.find(eqLine, first.order, c.key("state"), lineFix, "%d units are available for longer than %s, and uid %s waits for one since %s", available, c.bound,
			first.uid, wire.Millis(first.joined).Format(wire.TimeFormat))
	}
}

const lineFix = "does a process with the role timer run, and reach Redis and MySQL? It offers what is available to the line, and tells Redis who waits"
