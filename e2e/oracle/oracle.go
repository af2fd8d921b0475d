// Package oracle judges the system from outside: it reads Redis and MySQL itself, keeps the clients' own log of answers, and
// holds both against the equations of the design. Nothing of Floodgate's own code decides here.
package oracle

import (
	"fmt"

	"floodgate.internal/shared/wire"
)

// Always are the equations that hold at any moment (numbers 1 and 2 of the design).
func (o View) Always(stock, limit int64) (bad []string) {
	say := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	// Behind a gate that is not open a reconciler is writing the reservations anew.
	if o.Gate == "open" && (o.Stock+o.Reserved != stock || o.Total != stock || o.Stock < 0) {
		say("redis: stock %d + reserved %d, total %d; want a total of %d", o.Stock, o.Reserved, o.Total, stock)
	}
	if o.Row.Available+o.Row.Locked+o.Row.Sold != stock || o.Row.Total != stock || o.Row.Available < 0 || o.Row.Locked < 0 || o.Row.Sold < 0 {
		say("mysql: available %d + locked %d + sold %d, total %d; want a total of %d", o.Row.Available, o.Row.Locked, o.Row.Sold, o.Row.Total, stock)
	}
	bad = append(bad, o.Ledger...)
	var pending, sold int64
	buyers := map[string]int64{}
	for _, r := range o.Orders {
		switch s := wire.OrderStatus(r.Status); s {
		case wire.PendingPayment:
			pending += r.Quantity
		case wire.Paid, wire.Issued:
			sold += r.Quantity
		}
		if wire.OrderStatus(r.Status).Live() {
			buyers[r.UID] += r.Quantity
			if int64(len(o.Slots[r.ID])) != r.Quantity {
				say("order %s of %d units has slots %v", r.ID, r.Quantity, o.Slots[r.ID])
			}
		} else if len(o.Slots[r.ID]) > 0 {
			say("order %s is %s and has slots %v", r.ID, r.Status, o.Slots[r.ID])
		}
	}
	for id, n := range o.Claims {
		if r := o.Orders[id]; r.Status != string(wire.Issued) || r.Quantity != n {
			say("order %q is %q, of %d units, and has %d claims", id, r.Status, r.Quantity, n)
		}
	}
	for id, r := range o.Orders {
		if r.Status == string(wire.Issued) && o.Claims[id] == 0 {
			say("order %s is issued and has no claims", id)
		}
	}
	for uid, n := range buyers {
		if n > limit {
			say("buyer %s holds %d units, the limit is %d", uid, n, limit)
		}
	}
	if pending != o.Row.Locked || sold != o.Row.Sold {
		say("orders: %d units unpaid, %d sold; the stock row has %d and %d", pending, sold, o.Row.Locked, o.Row.Sold)
	}
	if pending+sold > stock {
		say("oversold: %d live units of %d", pending+sold, stock)
	}
	return bad
}

// Settled are those that hold once everything has come to rest (number 3).
func (o View) Settled(stock int64, j *Log) (bad []string) {
	say := func(format string, args ...any) {
		if len(bad) < 20 {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	if o.Gate != "open" {
		say("the gate is %q", o.Gate)
	}
	if len(o.Outbox) > 0 {
		say("the outbox holds %d orders, the first is %s", len(o.Outbox), o.Outbox[0])
	}
	if o.OpenIntents > 0 {
		say("%d intents are not done", o.OpenIntents)
	}
	var live int64
	for id, r := range o.Orders {
		if wire.OrderStatus(r.Status).Live() {
			live += r.Quantity
			if o.Reservations[id] != r.UID {
				say("order %s of %s is %s, redis has it for %q", id, r.UID, r.Status, o.Reservations[id])
			}
		}
	}
	for id, uid := range o.Reservations {
		if r, ok := o.Orders[id]; !ok || !wire.OrderStatus(r.Status).Live() {
			say("redis holds order %s for %s; mysql says %q", id, uid, r.Status)
		}
	}
	if o.Stock != stock-live {
		say("redis has a stock of %d, %d of %d units are live", o.Stock, live, stock)
	}
	return append(bad, o.kept(j)...)
}

// Tally is what became of the promises, counted.
type Tally struct {
	Promised   int   // different orders that were answered 202
	Lost       int   // of them, those without a row in MySQL, or rejected
	Duplicated int   // orders beyond the first of one buyer and Idempotency-Key
	Oversold   int64 // live units beyond the stock
	Stranded   int   // orders whose books in Redis and MySQL do not agree: in the outbox, held by nobody, or live and not held; and open intents
}

// Broken is how many promises are broken.
func (c Tally) Broken() int64 {
	return int64(c.Lost) + int64(c.Duplicated) + c.Oversold + int64(c.Stranded)
}

// Plus adds two tallies of different sales.
func (c Tally) Plus(d Tally) Tally {
	return Tally{c.Promised + d.Promised, c.Lost + d.Lost, c.Duplicated + d.Duplicated, c.Oversold + d.Oversold, c.Stranded + d.Stranded}
}

// Count counts what Settled and Always judge.
func (o View) Count(stock int64, j *Log) Tally {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := Tally{Promised: len(j.told), Stranded: len(o.Outbox) + o.OpenIntents}
	for id := range j.told {
		if r, ok := o.Orders[id]; !ok || r.Status == string(wire.Rejected) {
			c.Lost++
		}
	}
	var live int64
	keys := map[string]bool{}
	for id, r := range o.Orders {
		if r.Key != "" {
			if keys[r.UID+" "+r.Key] {
				c.Duplicated++
			}
			keys[r.UID+" "+r.Key] = true
		}
		if wire.OrderStatus(r.Status).Live() {
			live += r.Quantity
			if _, held := o.Reservations[id]; !held {
				c.Stranded++
			}
		}
	}
	for id := range o.Reservations {
		if r, ok := o.Orders[id]; !ok || !wire.OrderStatus(r.Status).Live() {
			c.Stranded++
		}
	}
	c.Oversold = max(0, live-stock)
	return c
}
