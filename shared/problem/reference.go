package problem

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// advice is when a code is answered, and what a client does then.
type advice struct{ when, do string }

var advices = map[Code]advice{
	Unauthenticated:      {"no token, or one that is bad, expired, revoked or wrongly signed", "sign in again, then repeat it"},
	Forbidden:            {"the user is banned or not invited, or the operator's role is too low", "do not repeat it"},
	SaleNotFound:         {"there is no sale with this id", "read the list of sales"},
	OrderNotFound:        {"there is no order with this id, or it is somebody else's", "read the user's own orders"},
	NotFound:             {"there is no such path", "mend the client"},
	SaleNotStarted:       {"before the start; `starts_at` and Retry-After say when that is", "wait until then, by the server's clock (`/v1/time`)"},
	SaleEnded:            {"after the end, or the sale was closed", "stop asking"},
	SoldOut:              {"nothing is available now; it says nothing of an order that the user may hold", "show it; join the standby line, or wait for `next_release_at`"},
	AlreadyOrdered:       {"the user has all that one may have; `order_id` names the order", "show that order"},
	TooManyOrders:        {"the user has made so many orders of this sale, most of them over, that no more are taken", "do not repeat it"},
	RateLimited:          {"a token bucket of the user, the address or all orders is empty; nothing was done", "wait for Retry-After, then repeat it"},
	Overloaded:           {"a bound is full, the sale is paused, or a store is away; nothing was done", "wait for Retry-After, then repeat it"},
	OutcomeUnknown:       {"it was sent on, and no answer came: it may have been done", "repeat it with the same Idempotency-Key, or read the user's own orders"},
	IdempotencyKeyReused: {"the key was used with another body", "take a new key for what is new"},
	InsufficientStock:    {"a cart's line, an allotment or a restock asks for more than there is", "ask for less"},
	BadRequest:           {"something is malformed or out of its bounds; `field` names it. Refusals of HTTP itself carry it with their own status", "mend the request"},
	PayloadTooLarge:      {"the body is too large", "mend the client"},
	MethodNotAllowed:     {"the path has other methods; `Allow` lists them", "mend the client"},
	UnsupportedMediaType: {"the body is not application/json", "mend the client"},
	OrderStateConflict:   {"the order's state does not allow it: to pay a cancelled one, to use a coupon twice", "read the order again"},
	SaleStateConflict:    {"the sale's state does not allow it: to archive one with open orders", "see to what it names, then repeat it"},
	PreconditionFailed:   {"If-Match names another version than the present one", "read it again, then decide"},
	PaymentMismatch:      {"a payment has another amount or currency than the order", "the provider's side is wrong: a refund is due"},
	UnitsAvailable:       {"the standby line is not needed: there are units", "order"},
	StandbyFull:          {"the standby line has as many as it takes", "show it"},
	NotInLine:            {"the user is not in the standby line", "join it"},
	Internal:             {"a bug; the log has it under the request_id", "repeat it later, with the same Idempotency-Key; tell the operators"},
}

// Reference writes a table of every code in Markdown, by status.
func Reference(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| code | status | when | what a client does |\n|---|---|---|---|\n")
	codes := slices.SortedFunc(maps.Keys(kinds), func(x, y Code) int {
		if d := kinds[x].status - kinds[y].status; d != 0 {
			return d
		}
		return strings.Compare(string(x), string(y))
	})
	for _, code := range codes {
		a, ok := advices[code]
		if !ok {
			return fmt.Errorf("nothing is said of %s", code)
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", code, kinds[code].status, a.when, a.do)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
