// Package wire is the contract between shoppers, gateways and backends: paths, states and JSON shapes.
//
// Times are RFC 3339 UTC with milliseconds, money is integer minor units, sale and SKU ids are positive integers,
// order ids are opaque strings.
package wire

import (
	"net/netip"
	"strconv"
	"time"
)

// SaleState is what a reader is told of a sale. It is coarse on purpose: no answer carries a stock count.
type SaleState string

// The states of a sale.
const (
	Upcoming SaleState = "upcoming"
	Open     SaleState = "open"
	SoldOut  SaleState = "sold_out"
	Paused   SaleState = "paused"
	Ended    SaleState = "ended"
)

// SaleKind says what a sale hands out.
type SaleKind string

// The kinds of sale: goods are paid for, a coupon is issued.
const (
	Goods  SaleKind = "goods"
	Coupon SaleKind = "coupon"
)

// OrderStatus is where an order stands.
type OrderStatus string

// The statuses of an order: queued -> pending_payment -> paid | cancelled | expired; queued -> rejected; and for a
// coupon queued -> issued.
const (
	Queued         OrderStatus = "queued"
	PendingPayment OrderStatus = "pending_payment"
	Paid           OrderStatus = "paid"
	Issued         OrderStatus = "issued"
	Cancelled      OrderStatus = "cancelled"
	Expired        OrderStatus = "expired"
	Rejected       OrderStatus = "rejected"
)

// Live reports whether an order in this status holds its units (once it is in MySQL).
func (s OrderStatus) Live() bool { return s == PendingPayment || s == Paid || s == Issued }

// Terminal reports whether the status can never change again.
func (s OrderStatus) Terminal() bool {
	return s == Paid || s == Issued || s == Cancelled || s == Expired || s == Rejected
}

// TimeFormat is how every time is written: RFC 3339, UTC, milliseconds.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// Time is a time.Time that is written in TimeFormat and read as any RFC 3339 time.
type Time struct{ time.Time }

// At makes a Time, cut to milliseconds.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Millisecond)} }

// Millis makes a Time of milliseconds since 1970.
func Millis(ms int64) Time { return Time{time.UnixMilli(ms).UTC()} }

// MarshalText implements encoding.TextMarshaler.
func (t Time) MarshalText() ([]byte, error) { return t.UTC().AppendFormat(nil, TimeFormat), nil }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return append(t.UTC().AppendFormat([]byte{'"'}, TimeFormat), '"'), nil
}

// Sale is what the public reads of a sale.
type Sale struct {
	ID           int64     `json:"id"`
	Kind         SaleKind  `json:"kind"`
	Title        string    `json:"title"`
	Price        int64     `json:"price"`
	Currency     string    `json:"currency"`
	StartsAt     Time      `json:"starts_at"`
	EndsAt       Time      `json:"ends_at"`
	State        SaleState `json:"state"`
	PerUserLimit int       `json:"per_user_limit"`
	// Category is a coupon campaign's.
	Category string `json:"category,omitempty"`
	// Picture is the URL of a picture of what is sold.
	Picture string `json:"picture,omitempty"`
	// NextReleaseAt is set only while a tranche is still to come.
	NextReleaseAt *Time `json:"next_release_at,omitempty"`
	Now           Time  `json:"now"`
}

// SaleList is the answer of GET /v1/sales.
type SaleList struct {
	Sales []Sale `json:"sales"`
}

// Now is the answer of GET /v1/time.
type Now struct {
	Now Time `json:"now"`
}

// Accepted is the body of a 202: from here on the order is a promise.
type Accepted struct {
	OrderID   string      `json:"order_id"`
	Status    OrderStatus `json:"status"`
	StatusURL string      `json:"status_url"`
}

// Order is an order as its owner sees it. Amount is quantity times price, in minor units. A cart's order is of no sale, 0,
// and has items, whose sums quantity and amount are.
type Order struct {
	OrderID   string      `json:"order_id"`
	SaleID    int64       `json:"sale_id"`
	Quantity  int         `json:"quantity"`
	Amount    int64       `json:"amount"`
	Status    OrderStatus `json:"status"`
	CreatedAt Time        `json:"created_at"`
	PayBefore *Time       `json:"pay_before"`
	Reason    string      `json:"reason"`
	Items     []OrderItem `json:"items,omitempty"`
	// QueueLag is for how many ms one of the sale's oldest queued orders has waited: about as long as a new one will. Of a
	// queued order only, and only of one that was asked for by its id.
	QueueLag int64 `json:"queue_lag_ms,omitzero"`
}

// OrderItem is a line of a cart's order. Price is of one unit, when it was ordered.
type OrderItem struct {
	SKU      int64 `json:"sku_id"`
	Quantity int   `json:"quantity"`
	Price    int64 `json:"price"`
}

// OrderList is the answer of GET /v1/orders, newest first. Next is the cursor of the following page, "" at the end. Unsure are
// sales of which orders that are queued may be missing: ask again in a moment.
type OrderList struct {
	Orders []Order `json:"orders"`
	Next   string  `json:"next"`
	Unsure []int64 `json:"unsure_sales,omitempty"`
}

// ClaimState is what became of a coupon that was issued: new -> used, or new -> expired.
type ClaimState string

// The states of a claim.
const (
	ClaimNew     ClaimState = "new"
	ClaimUsed    ClaimState = "used"
	ClaimExpired ClaimState = "expired"
)

// Claim is one coupon as its owner sees it: one unit of an issued order. It can be used until ValidUntil, which stays as
// it was when it was issued.
type Claim struct {
	ClaimID    string     `json:"claim_id"`
	OrderID    string     `json:"order_id"`
	SaleID     int64      `json:"sale_id"` // the campaign
	Title      string     `json:"title"`
	Category   string     `json:"category"`
	State      ClaimState `json:"state"`
	ClaimedAt  Time       `json:"claimed_at"`
	ValidUntil Time       `json:"valid_until"`
	UsedAt     *Time      `json:"used_at"`
}

// ClaimList is the answer of GET /v1/coupons, newest first. Next is the cursor of the following page, "" at the end.
type ClaimList struct {
	Coupons []Claim `json:"coupons"`
	Next    string  `json:"next"`
}

// FeedPath is the sale-state feed on a backend's internal listener:
// GET /internal/v1/feed?instance=&since=&wait_ms=. It answers at once when it has something newer than since (or when
// instance is not its own: then with everything), else when something changes or wait_ms (at most MaxWait) has passed.
const FeedPath = "/internal/v1/feed"

// Feed is one answer of the sale-state feed.
type Feed struct {
	// Instance names the life of the backend process that counts Version.
	Instance string `json:"instance"`
	Version  uint64 `json:"version"`
	// Full says that Sales is every live sale; else it is those that changed, and Removed those that are gone.
	Full    bool    `json:"full"`
	Now     Time    `json:"now"`
	Sales   []Sale  `json:"sales"`
	Removed []int64 `json:"removed"`
}

// HealthPath, on a backend's internal listener, is answered 200 by a backend that serves, however busy it is, and 503 by one
// that is starting or draining.
const HealthPath = "/internal/v1/health"

// Webhooks of payment providers: POST WebhookPath and the provider's name, signed in the header PaymentSignature.
const (
	WebhookPath      = "/v1/payments/webhook/"
	PaymentSignature = "Payment-Signature"
)

// Bounds of the public API.
const (
	MaxWait           = 20 * time.Second // of wait_ms
	MaxUID            = 64               // bytes
	MaxIdempotencyKey = 128              // bytes
	MaxOrderID        = 56               // bytes
	MaxProvider       = 32               // bytes
	MaxWebhook        = 16 << 10         // bytes of a webhook's body
	MaxSignature      = 1024             // bytes of PaymentSignature
	MaxClaimID        = 64               // bytes
)

// CouponsPath lists a user's claims.
const CouponsPath = "/v1/coupons"

// UsePath is where a claim is used.
func UsePath(claimID string) string { return CouponsPath + "/" + claimID + "/use" }

// OrderPath is the status_url of an order.
func OrderPath(orderID string) string { return "/v1/orders/" + orderID }

// ValidUID reports whether s is 1 to 64 of [A-Za-z0-9._-].
func ValidUID(s string) bool {
	if len(s) == 0 || len(s) > MaxUID {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// ValidIdempotencyKey reports whether s is 1 to 128 visible ASCII characters.
func ValidIdempotencyKey[S string | []byte](s S) bool {
	if len(s) == 0 || len(s) > MaxIdempotencyKey {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// ValidProvider reports whether s can name a payment provider: 1 to 32 of [a-z0-9-].
func ValidProvider(s string) bool {
	if len(s) == 0 || len(s) > MaxProvider {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}

// ParseID reads a sale or SKU id: a positive integer without sign or leading zero.
func ParseID[S string | []byte](s S) (int64, bool) {
	if len(s) == 0 || s[0] < '1' || s[0] > '9' || len(s) > 19 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(s), 10, 64)
	if err != nil {
		return 0, false
	}
	return n, true
}

// NewOrderID joins a UUIDv7 and the sale, so that any process finds the order's home without a lookup:
// "0190163d-8694-739b-aea5-966c26f8ad91-42".
func NewOrderID(uuid string, saleID int64) string {
	return uuid + "-" + strconv.FormatInt(saleID, 10)
}

// NewCartOrderID is NewOrderID for the order of a cart, which is of no sale: "0190163d-8694-739b-aea5-966c26f8ad91-0".
func NewCartOrderID(uuid string) string { return uuid + cartSuffix }

const (
	uuidLen    = 36
	cartSuffix = "-0"
)

// ValidOrderID reports whether s is an order id: a sale's order's, or a cart's.
func ValidOrderID[S string | []byte](s S) bool {
	_, ok := SaleOfOrder(s)
	return ok || IsCartOrder(s)
}

// IsCartOrder reports whether s is the id of a cart's order.
func IsCartOrder[S string | []byte](s S) bool {
	return len(s) == uuidLen+len(cartSuffix) && string(s[uuidLen:]) == cartSuffix && isUUID(s[:uuidLen])
}

// SaleOfOrder returns the sale that an order id names; false if it is not an order id, or a cart's.
func SaleOfOrder[S string | []byte](orderID S) (int64, bool) {
	if len(orderID) < uuidLen+2 || len(orderID) > MaxOrderID || orderID[uuidLen] != '-' || !isUUID(orderID[:uuidLen]) {
		return 0, false
	}
	return ParseID(orderID[uuidLen+1:])
}

func isUUID[S string | []byte](s S) bool {
	for i := 0; i < uuidLen; i++ {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
				return false
			}
		}
	}
	return true
}

// NewClaimID joins an order and one of the slots that it takes: claims sort as their orders do, by time.
func NewClaimID(orderID string, slot int) string { return orderID + "." + strconv.Itoa(slot) }

// ValidClaimID reports whether s is a claim id.
func ValidClaimID[S string | []byte](s S) bool {
	dot := 0
	for dot < len(s) && s[dot] != '.' {
		dot++
	}
	if _, isOrder := SaleOfOrder(s[:dot]); dot == len(s) || !isOrder || len(s) > MaxClaimID {
		return false
	}
	_, isSlot := ParseID(s[dot+1:])
	return isSlot
}

// Network is the network that an address is counted under, an IPv4 /24 or an IPv6 /64; "" if it is none. It is as much as a
// gateway tells of a client's address.
func Network(a netip.Addr) string {
	bits := 64
	if a = a.Unmap().WithZone(""); a.Is4() {
		bits = 24
	}
	p, err := a.Prefix(bits)
	if err != nil || !p.IsValid() {
		return ""
	}
	return p.String()
}

// Traceparent is a W3C trace context of version 00 (https://www.w3.org/TR/trace-context/), 00-TRACE_ID-PARENT_ID-FLAGS, or "" where
// the field is none: neither id may be all zeros, and upper case is none.
func Traceparent(field []byte) string {
	if len(field) != 55 || string(field[:3]) != "00-" || string(field[3:35]) == noTrace || string(field[36:52]) == noTrace[:16] {
		return ""
	}
	for i, c := range field {
		hex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if dash := i == 2 || i == 35 || i == 52; dash != (c == '-') || !dash && !hex {
			return ""
		}
	}
	return string(field)
}

const noTrace = "00000000000000000000000000000000"

// TraceID is the trace's id in a W3C trace context, "" where there is none.
func TraceID(field []byte) string {
	if t := Traceparent(field); t != "" {
		return t[3:35]
	}
	return ""
}
