package wire

import (
	"strconv"
	"strings"
)

// StandbyState is where somebody stands in a sale's standby line: waiting -> offered -> accepted | lapsed | left;
// waiting -> passed | left | ended.
type StandbyState string

// The states of a place in the line.
const (
	StandbyWaiting  StandbyState = "waiting"
	StandbyOffered  StandbyState = "offered"  // an order waits for its payment: paying it accepts the offer
	StandbyAccepted StandbyState = "accepted" // paid
	StandbyLapsed   StandbyState = "lapsed"   // not paid in time; the unit went on to the next one
	StandbyPassed   StandbyState = "passed"   // passed over; the reason says why
	StandbyLeft     StandbyState = "left"     // the line, or the offer
	StandbyEnded    StandbyState = "ended"    // the sale is over, nothing came back
)

// Standby is a place in a sale's standby line as its owner sees it.
type Standby struct {
	SaleID int64         `json:"sale_id"`
	State  StandbyState  `json:"state"`
	Place  *int          `json:"place"`  // 1 is the head; null unless waiting
	Offer  *StandbyOffer `json:"offer"`  // null unless there is or was one; the state says what became of it
	Reason string        `json:"reason"` // of passed: limit, too_many_orders, banned, not_listed, or that of a rejected order
}

// StandbyOffer is an order that was made for the head of the line. It is accepted by paying it in time.
type StandbyOffer struct {
	OrderID      string `json:"order_id"`
	AcceptBefore Time   `json:"accept_before"` // the order's pay_before
}

// StandbyPath is where a sale's line is joined, looked at and left.
func StandbyPath(sale int64) string {
	return "/v1/sales/" + strconv.FormatInt(sale, 10) + "/standby"
}

// offerMark begins the key of an offer. It holds a space, so no client's Idempotency-Key is one.
const offerMark = "standby "

// OfferKey is the key under which the order of an offer is made: Redis and MySQL take it once, like an Idempotency-Key.
func OfferKey(orderID string) string { return offerMark + orderID }

// IsOffer reports whether an order was made under the key of an offer.
func IsOffer(orderID, key string) bool {
	rest, ok := strings.CutPrefix(key, offerMark)
	return ok && rest == orderID
}
