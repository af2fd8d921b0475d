// Package verdict is how "why didn't I get one?" is answered: the rules that a press can meet, in words, what gateways
// hand over of them, and the timeline that is made of it.
//
// A press is counted once, by the gateway that answered it, when its user is known. What is refused before that (the sale
// is sold out, has not started, has ended; the address is over its limit; the token is not valid) is counted for nobody:
// the sale's own history explains the first three.
package verdict

import (
	"fmt"
	"maps"
	"slices"

	"floodgate.internal/shared/wire"
)

// What became of a press, or happened to an order or a sale. An order's is its status.
const (
	Arrived = "arrived" // all presses together
	Taken   = "accepted"
	Limited = "limited"
	Refused = "refused"
	Unknown = "unknown" // no answer came that says
	Sale    = "sale"    // the sale's own history: the rule is its state
)

// Rule is what decided about a press: at most MaxRule bytes of [a-z_]. Each has one meaning for good.
type Rule string

// The rules.
const (
	Accepted       Rule = "accepted"
	Repeated       Rule = "repeated"
	OrderLimit     Rule = "order_limit"
	GlobalLimit    Rule = "global_limit"
	TooManyWaiting Rule = "crowd"
	InFlight       Rule = "in_flight"
	Unreachable    Rule = "unreachable"
	NoAnswer       Rule = "no_answer"
	BadRequest     Rule = "bad_request"

	SoldOut        Rule = "sold_out"
	NotEnough      Rule = "not_enough"
	AlreadyOrdered Rule = "already_ordered"
	TooManyOrders  Rule = "too_many_orders"
	NotStarted     Rule = "not_started"
	Ended          Rule = "ended"
	Paused         Rule = "paused"
	Banned         Rule = "banned"
	NotListed      Rule = "not_listed"
	NotAllowed     Rule = "not_allowed"
	KeyReused      Rule = "key_reused"
	Rejected       Rule = "rejected"
	QueueFull      Rule = "queue_full"
	QueueSlow      Rule = "behind"
	Outage         Rule = "outage"
	AdmissionFull  Rule = "line_full"
	AdmissionLong  Rule = "line_long"
	AdmissionLate  Rule = "line_late"
	Checking       Rule = "checking"
	Overloaded     Rule = "overloaded"
	Unconfirmed    Rule = "unconfirmed"
	Internal       Rule = "broken"
)

// MaxRule bounds a rule's name, in bytes.
const MaxRule = 24

var rules = map[Rule]struct{ what, detail string }{
	Accepted:       {Taken, "Your order was accepted; what became of it is told below."},
	Repeated:       {Taken, "You asked again for an order that had been accepted, and were told of it."},
	OrderLimit:     {Limited, "You pressed again too soon after your last press: each account may send only so many orders in a time. Nothing was done."},
	GlobalLimit:    {Limited, "More orders came in at once than are let through, whoever sends them. Nothing was done."},
	TooManyWaiting: {Refused, "Too many orders were waiting to be let through. Nothing was done."},
	InFlight:       {Refused, "As many requests were being answered at once as we take. Nothing was done."},
	Unreachable:    {Refused, "The shop could not be reached from where your press came in. Nothing was done."},
	NoAnswer:       {Unknown, "Your order was passed on, and no answer came in time. If it was accepted, it is among your orders below; else nothing was done."},
	BadRequest:     {Refused, "Your request was not of the documented form. Nothing was done."},

	SoldOut:        {Refused, "Nothing was available when your turn came."},
	NotEnough:      {Refused, "Less was available than you asked for."},
	AlreadyOrdered: {Refused, "You had as many already as one account may have in this sale."},
	TooManyOrders:  {Refused, "So many of your orders in this sale had been cancelled or had expired that no other was taken."},
	NotStarted:     {Refused, "The sale had not started."},
	Ended:          {Refused, "The sale was over."},
	Paused:         {Refused, "The sale was paused. Nothing was done."},
	Banned:         {Refused, "This account may not buy here."},
	NotListed:      {Refused, "The sale is for invited accounts only, and this one was not on its list."},
	NotAllowed:     {Refused, "This account was not allowed to do this."},
	KeyReused:      {Refused, "Your Idempotency-Key had been used for another order. Nothing was done."},
	Rejected:       {Refused, "You asked again for an order that had been rejected; why is told below."},
	QueueFull:      {Refused, "Too many accepted orders were waiting to be finished, so no more were taken. Nothing was done."},
	QueueSlow:      {Refused, "Accepted orders took too long to be finished, so no more were taken. Nothing was done."},
	Outage:         {Refused, "A part of the shop without which no order can be finished was away. Nothing was done."},
	AdmissionFull:  {Refused, "Too many orders were waiting for their turn. Nothing was done."},
	AdmissionLong:  {Refused, "More orders were waiting for their turn than made sense for what was left. Nothing was done."},
	AdmissionLate:  {Refused, "Your turn did not come in time. Nothing was done."},
	Checking:       {Refused, "The sale's stock was being checked or loaded. Nothing was done."},
	Overloaded:     {Refused, "The shop was too busy. Nothing was done."},
	Unconfirmed:    {Unknown, "Your order may have been accepted, and that could not be told at once. If it was, it is among your orders below; else nothing was done."},
	Internal:       {Unknown, "Something broke on our side. If your order was accepted, it is among your orders below."},
}

// names leads from the bytes of a name to the constant, which belongs to nobody's buffer.
var names = func() map[string]Rule {
	m := make(map[string]Rule, len(rules))
	for r := range rules {
		m[string(r)] = r
	}
	return m
}()

// Known returns the rule of this name, without an allocation.
func Known(name []byte) (r Rule, ok bool) {
	r, ok = names[string(name)]
	return r, ok
}

// Rules returns every rule, for documents and tests.
func Rules() []Rule { return slices.Sorted(maps.Keys(rules)) }

// Valid reports whether r is a rule.
func (r Rule) Valid() bool { _, ok := rules[r]; return ok }

// What is what became of the press; "" for what is no rule.
func (r Rule) What() string { return rules[r].what }

// Detail is a sentence for the shopper; "" for what is no rule.
func (r Rule) Detail() string { return rules[r].detail }

// HeaderRule is where a backend names the rule by which it answered an order, for the gateway alone.
const HeaderRule = "Floodgate-Rule"

// Path is where gateways hand over their records: POST, signed, of a Batch.
const Path = "/internal/v1/timeline"

// Bounds of a batch: its JSON stays below the 64 KiB that a backend takes.
const (
	MaxBatch   = 200 // records
	MaxDropped = 50  // sales
)

// Batch is what a gateway hands over at once. It sends the same batch until it is answered, and only then the next one; a
// backend takes each once.
type Batch struct {
	Gateway string    `json:"gateway"` // the life of the gateway: unique, at most 36 bytes of [A-Za-z0-9._-]
	Seq     int64     `json:"seq"`     // counts its batches, from 1
	Last    bool      `json:"last"`    // the gateway has ended, and has nothing more
	Records []Record  `json:"records"`
	Dropped []Dropped `json:"dropped"`
}

// Record is how often, and between which times, a user's presses in a sale met a rule.
type Record struct {
	Sale  int64     `json:"sale_id"`
	UID   string    `json:"uid"`
	Rule  Rule      `json:"rule"`
	First wire.Time `json:"first"`
	Last  wire.Time `json:"last"`
	Count int64     `json:"count"`
}

// Dropped is how many presses in a sale a gateway did not keep, for want of room. Sale 0: in any.
type Dropped struct {
	Sale  int64 `json:"sale_id"`
	Count int64 `json:"count"`
}

// Check says what is wrong with a batch, naming the member.
func (b *Batch) Check() error {
	switch {
	case !wire.ValidUID(b.Gateway) || len(b.Gateway) > 36:
		return fmt.Errorf("gateway: %q is not 1 to 36 of [A-Za-z0-9._-]", b.Gateway)
	case b.Seq < 1:
		return fmt.Errorf("seq: %d is not positive", b.Seq)
	case len(b.Records) > MaxBatch:
		return fmt.Errorf("records: %d of them, at most %d are taken at once", len(b.Records), MaxBatch)
	case len(b.Dropped) > MaxDropped:
		return fmt.Errorf("dropped: %d of them, at most %d are taken at once", len(b.Dropped), MaxDropped)
	}
	type key struct {
		sale int64
		uid  string
		rule Rule
	}
	seen := make(map[key]bool, len(b.Records))
	for i, r := range b.Records {
		k := key{r.Sale, r.UID, r.Rule}
		switch {
		case r.Sale < 1 || !wire.ValidUID(r.UID) || !r.Rule.Valid():
			return fmt.Errorf("records/%d: %d, %q, %q is no sale, uid and rule", i, r.Sale, r.UID, r.Rule)
		case r.Count < 1 || r.First.IsZero() || r.Last.Before(r.First.Time):
			return fmt.Errorf("records/%d: %d presses from %s to %s cannot be", i, r.Count, r.First.Format(wire.TimeFormat), r.Last.Format(wire.TimeFormat))
		case seen[k]:
			return fmt.Errorf("records/%d: it is there twice", i)
		}
		seen[k] = true
	}
	for i, d := range b.Dropped {
		if d.Sale < 0 || d.Count < 1 {
			return fmt.Errorf("dropped/%d: %d of sale %d cannot be", i, d.Count, d.Sale)
		}
	}
	return nil
}

// Timeline is what happened to a user's presses in a sale, and why, in the order of time.
type Timeline struct {
	Sale int64  `json:"sale_id"`
	UID  string `json:"uid,omitempty"` // for operators
	// Complete says that nothing is known to be missing; else Missing says what, in words. What gateways answered in the
	// last few seconds may still be on its way.
	Complete bool     `json:"complete"`
	Missing  []string `json:"missing"`
	// Note says what is never counted for a user.
	Note   string  `json:"note"`
	Events []Event `json:"events"`
}

// Note is the Note of every timeline.
const Note = "A press that was answered before we looked at who sent it is counted for nobody: it said that the sale had not started, " +
	"was sold out, paused or over, which the sale's own history here explains; or its address was over its limit, or its token was not valid."

// Event is one of them. Presses that met the same rule are one event, from At to Until.
type Event struct {
	At      wire.Time  `json:"at"`
	Until   *wire.Time `json:"until"` // nil: it is still so
	Count   int64      `json:"count"`
	What    string     `json:"what"`
	Rule    string     `json:"rule"` // "" where there is none
	Detail  string     `json:"detail"`
	OrderID string     `json:"order_id,omitempty"`
}
