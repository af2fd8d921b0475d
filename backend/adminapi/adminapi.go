// Package adminapi is the JSON of the admin API, for those who serve it and those who call it, and one client.
//
// Where an answer is what another package knows, it is that package's own type: audit.Result, audit.SKU, deadletter.Message,
// deadletter.Replayed, eligibility.Changed, verdict.Timeline, and wire.Order for a cancelled order. Refusals are problems.
//
// A member of a request is a pointer: absent and zero differ. Times in requests are text, so that a refusal can quote it.
package adminapi

import (
	"github.com/go-json-experiment/json/jsontext"

	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/durability"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/payment"
	"floodgate.internal/backend/standby"
	"floodgate.internal/shared/wire"
)

// Prefix is what every path of the API begins with, but for health and readiness.
const Prefix = "/admin/v1"

// Page ends a list that is read page by page.
type Page struct {
	Next string `json:"next"` // the cursor of the next page; "" on the last one
}

// Cursor returns Next.
func (p Page) Cursor() string { return p.Next }

// NewSale asks for a sale.
type NewSale struct {
	SKU          *int64        `json:"sku_id,omitzero"` // absent: a SKU of the sale's own
	Kind         *string       `json:"kind,omitzero"`   // "goods" or "coupon"; absent: goods
	Title        *string       `json:"title,omitzero"`  // title, price and currency are the SKU's where they are absent
	Price        *int64        `json:"price,omitzero"`  // minor units
	Currency     *string       `json:"currency,omitzero"`
	Picture      *string       `json:"picture,omitzero"` // an https URL; "": none
	Stock        *int64        `json:"stock,omitzero"`
	StartsAt     *string       `json:"starts_at,omitzero"`
	EndsAt       *string       `json:"ends_at,omitzero"`
	PerUserLimit *int64        `json:"per_user_limit,omitzero"`
	PayWithin    *int64        `json:"pay_within_s,omitzero"` // seconds
	Tranches     *[]NewTranche `json:"tranches,omitzero"`     // absent: all at starts_at
}

// NewTranche is a part of the stock that is released at a time of its own.
type NewTranche struct {
	At       *string `json:"at,omitzero"`
	Quantity *int64  `json:"quantity,omitzero"`
}

// SalePatch changes a sale; what is absent stays.
type SalePatch struct {
	Title        *string `json:"title,omitzero"`
	Price        *int64  `json:"price,omitzero"`
	StartsAt     *string `json:"starts_at,omitzero"`
	EndsAt       *string `json:"ends_at,omitzero"`
	PerUserLimit *int64  `json:"per_user_limit,omitzero"`
	PayWithin    *int64  `json:"pay_within_s,omitzero"`
	Picture      *string `json:"picture,omitzero"`
}

// Restock adds units to a sale or a SKU.
type Restock struct {
	Quantity *int64 `json:"quantity,omitzero"`
}

// Sale is a sale as operators see it. Available, locked and sold are MySQL's; queued orders are not in them yet.
type Sale struct {
	ID           int64          `json:"id"`
	SKU          int64          `json:"sku_id"`
	Kind         wire.SaleKind  `json:"kind"`
	Title        string         `json:"title"`
	Price        int64          `json:"price"`
	Currency     string         `json:"currency"`
	Picture      string         `json:"picture,omitzero"`
	Stock        int64          `json:"stock"` // the same as total
	StartsAt     wire.Time      `json:"starts_at"`
	EndsAt       wire.Time      `json:"ends_at"`
	PerUserLimit int            `json:"per_user_limit"`
	PayWithin    int64          `json:"pay_within_s"`
	Tranches     []Tranche      `json:"tranches"`          // none: all at starts_at
	Category     *string        `json:"category,omitzero"` // these five of coupons only
	Published    *bool          `json:"published,omitzero"`
	Guard        *string        `json:"guard,omitzero"`
	ValidFrom    *wire.Time     `json:"valid_from,omitzero"`  // the same as starts_at
	ValidUntil   *wire.Time     `json:"valid_until,omitzero"` // the same as ends_at
	State        wire.SaleState `json:"state"`
	Paused       bool           `json:"paused"`
	ClosedAt     *wire.Time     `json:"closed_at"`
	ArchivedAt   *wire.Time     `json:"archived_at"`
	Total        int64          `json:"total"`
	Available    int64          `json:"available"`
	Locked       int64          `json:"locked"`
	Sold         int64          `json:"sold"`
	Standby      standby.Length `json:"standby"`
	Version      int64          `json:"version"`
	CreatedAt    wire.Time      `json:"created_at"`
}

// Tranche is a tranche of a sale.
type Tranche struct {
	At       wire.Time `json:"at"`
	Quantity int64     `json:"quantity"`
}

// Sales is a page of sales, newest first.
type Sales struct {
	Sales []Sale `json:"sales"`
	Page
}

// NewCoupon asks for a coupon campaign. It is answered with a Sale.
type NewCoupon struct {
	CouponPatch
	Total *int64 `json:"total,omitzero"`
}

// CouponPatch changes a coupon campaign; what is absent stays.
type CouponPatch struct {
	Title        *string `json:"title,omitzero"`
	Category     *string `json:"category,omitzero"`
	Picture      *string `json:"picture,omitzero"`
	Published    *bool   `json:"published,omitzero"`
	ValidFrom    *string `json:"valid_from,omitzero"`
	ValidUntil   *string `json:"valid_until,omitzero"`
	PerUserLimit *int64  `json:"per_user_limit,omitzero"`
	Guard        *string `json:"guard,omitzero"`
}

// Coupons is a page of coupon campaigns, newest first.
type Coupons struct {
	Coupons []Sale `json:"coupons"`
	Page
}

// NewSKU asks for a SKU that carts can hold and sales can be made of.
type NewSKU struct {
	Title    *string `json:"title,omitzero"`
	Price    *int64  `json:"price,omitzero"`
	Currency *string `json:"currency,omitzero"`
	Stock    *int64  `json:"stock,omitzero"`
}

// SKUPatch changes a SKU; what is absent stays.
type SKUPatch struct {
	Title    *string `json:"title,omitzero"`
	Price    *int64  `json:"price,omitzero"`
	Currency *string `json:"currency,omitzero"`
}

// SKU is a SKU as operators see it: available + allotted + locked + sold = total. Allotted units are its sales'.
type SKU struct {
	ID        int64     `json:"id"`
	Title     string    `json:"title"`
	Price     int64     `json:"price"`
	Currency  string    `json:"currency"`
	Own       bool      `json:"own"` // made for one sale
	Total     int64     `json:"total"`
	Available int64     `json:"available"`
	Allotted  int64     `json:"allotted"`
	Locked    int64     `json:"locked"`
	Sold      int64     `json:"sold"`
	Version   int64     `json:"version"`
	CreatedAt wire.Time `json:"created_at"`
}

// SKUs is a page of SKUs, newest first.
type SKUs struct {
	SKUs []SKU `json:"skus"`
	Page
}

// Order is an order as operators see it.
type Order struct {
	OrderID   string           `json:"order_id"`
	SaleID    int64            `json:"sale_id"` // 0 for a cart's
	UID       string           `json:"uid"`
	Quantity  int64            `json:"quantity"`
	Amount    int64            `json:"amount"` // minor units of the sale's currency
	Status    wire.OrderStatus `json:"status"`
	Reason    string           `json:"reason"`
	Key       string           `json:"idempotency_key"` // "" for none
	CreatedAt wire.Time        `json:"created_at"`      // the press
	DecidedAt wire.Time        `json:"decided_at"`      // when MySQL got it
	PayBefore *wire.Time       `json:"pay_before"`
	EndedAt   *wire.Time       `json:"ended_at"` // paid, cancelled or expired
}

// Orders is a page of orders, newest first. A page of a rare status may be empty and yet have a next.
type Orders struct {
	Orders []Order `json:"orders"`
	Page
}

// ListChange adds uids to a list of bans or of who may buy in a sale, and takes some off it. At most
// eligibility.MaxChunk uids together.
type ListChange struct {
	Add    *[]string `json:"add,omitzero"`
	Remove *[]string `json:"remove,omitzero"`
}

// NewList makes these uids, at most eligibility.MaxChunk, a sale's whole list.
type NewList struct {
	UIDs *[]string `json:"uids,omitzero"`
}

// List is a page of the bans or of who may buy in a sale, by ascending uid.
type List struct {
	eligibility.State
	UIDs []string `json:"uids"`
	Page
}

// Concentration is from which networks a process took a sale's orders, the most first.
type Concentration struct {
	SaleID   int64             `json:"sale_id"`
	Since    wire.Time         `json:"since"`
	Orders   int64             `json:"orders"`
	Networks []origins.Counted `json:"networks"`
}

// Queue is where every order is that is not in MySQL yet.
type Queue struct {
	Now         wire.Time `json:"now"`
	Depth       int64     `json:"depth"` // entries in all outboxes: orders that are not settled and retired yet
	OldestAgeMS int64     `json:"oldest_age_ms"`
	Pending     int64     `json:"pending"`  // of them, those that a relay, a consumer or the broker holds
	Outboxes    []Outbox  `json:"outboxes"` // of the sales that have entries
	// The broker's side; all zero and no queues without a broker: then the outbox is the queue. BrokerError is why the
	// broker does not say; then it is all zero too.
	BrokerError string              `json:"broker_error"`
	Ready       int64               `json:"ready"`
	Unacked     int64               `json:"unacked"` // -1: the broker does not say
	Consumers   int64               `json:"consumers"`
	DeadLetters int64               `json:"dead_letters"` // that were not replayed yet, of either driver
	Queues      []broker.QueueState `json:"queues"`
	Intents     int64               `json:"intents"` // admin changes and releases that Redis is still to be told
}

// Outbox is what is queued of one sale.
type Outbox struct {
	SaleID      int64    `json:"sale_id"`
	Depth       int64    `json:"depth"`
	OldestAgeMS int64    `json:"oldest_age_ms"`
	Pending     int64    `json:"pending"` // delivered, not retired
	Consumers   []Reader `json:"consumers"`
}

// Reader is what one reader of an outbox holds. The reader "published" stands for the broker.
type Reader struct {
	Name    string `json:"name"`
	Pending int64  `json:"pending"`
	IdleMS  int64  `json:"idle_ms"` // since it last did anything
	// Of the first hundred that it holds: for how long it has held the oldest, and how often the one that was delivered
	// most often was delivered since a failure of it was last reported.
	HeldMS     int64 `json:"held_ms"`
	Deliveries int64 `json:"deliveries"`
}

// Gateways is the last report of each gateway that was heard within gateways.Forget.
type Gateways struct {
	Now      wire.Time          `json:"now"`
	Gateways []gateways.Gateway `json:"gateways"`
	// Error is why only what this process heard itself is here; "" where all is.
	Error string `json:"error"`
}

// DeadLetters is a page of dead letters, newest first.
type DeadLetters struct {
	DeadLetters []deadletter.Message `json:"dead_letters"`
	Page
}

// Payments is a page of what payment providers took, newest first.
type Payments struct {
	Payments []payment.Payment `json:"payments"`
	Page
}

// Events is a page of what the shop's endpoints were told, or are still to be, newest first.
type Events struct {
	Events []event.Delivery `json:"events"`
	Page
}

// LogEntry is one change in the audit log.
type LogEntry struct {
	ID     int64          `json:"id"`
	At     wire.Time      `json:"at"`
	Who    string         `json:"who"`            // an operator's name, or timer
	Role   string         `json:"role,omitempty"` // that the operator had then
	Action string         `json:"action"`
	Target string         `json:"target"`
	Before jsontext.Value `json:"before"` // null: it was made
	After  jsontext.Value `json:"after"`
}

// Log is a page of the audit log, newest first.
type Log struct {
	Entries []LogEntry `json:"entries"`
	Page
}

// Credentials ask for a session of the console.
type Credentials struct {
	Token string `json:"token"`
}

// Session is who is logged in.
type Session struct {
	Name string `json:"name"`
	Role string `json:"role"`
	// ExpiresAt is when a session of the console ends at the latest, IdleAfter after how many seconds without a request.
	ExpiresAt *wire.Time `json:"expires_at,omitempty"`
	IdleAfter int64      `json:"idle_after_s,omitzero"`
}

// Health is what /-/healthy answers.
type Health struct {
	Status string    `json:"status"`
	Now    wire.Time `json:"now"` // by the backend's clock, which is Redis's
}

// Readiness is what /-/ready answers.
type Readiness struct {
	Status  string             `json:"status"`
	Reasons []string           `json:"reasons"`           // what keeps the process from its work
	Promise *durability.Report `json:"promise,omitempty"` // what an accepted order survives
}
