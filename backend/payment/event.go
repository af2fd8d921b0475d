package payment

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"floodgate.internal/shared/wire"
)

// Type says what happened to a payment.
type Type string

// The types of event.
const (
	Succeeded Type = "payment.succeeded" // the shopper's money was taken
	Failed    Type = "payment.failed"    // it was not; the provider may try the same payment again
	Refunded  Type = "payment.refunded"  // all of it was given back
)

// Event is what a webhook's body says, all of it.
type Event struct {
	ID        string // of the event, the same in each of its deliveries
	Type      Type
	PaymentID string
	OrderID   string
	Amount    int64 // of the whole payment, in minor units
	Currency  string
}

// ErrBody: the body is not an event; the error names the member and what is wrong with it.
var ErrBody = errors.New("not an event")

// parse reads a body strictly.
func parse(body []byte) (Event, error) {
	var in struct {
		ID        string `json:"id"`
		Type      Type   `json:"type"`
		PaymentID string `json:"payment_id"`
		OrderID   string `json:"order_id"`
		Amount    *int64 `json:"amount"`
		Currency  string `json:"currency"`
	}
	wrong := func(format string, args ...any) (Event, error) {
		return Event{}, &BodyError{fmt.Sprintf(format, args...)}
	}
	if err := wire.DecodeStrict(body, &in); err != nil {
		return wrong("%v", err)
	}
	for _, m := range []struct{ name, value string }{{"id", in.ID}, {"payment_id", in.PaymentID}} {
		if !wire.ValidIdempotencyKey(m.value) {
			return wrong("%s: it must be 1 to %d visible ASCII characters", m.name, wire.MaxIdempotencyKey)
		}
	}
	switch in.Type {
	case Succeeded, Failed, Refunded:
	default:
		return wrong("type: it must be %s, %s or %s", Succeeded, Failed, Refunded)
	}
	if in.OrderID == "" {
		return wrong("order_id: it is missing")
	}
	if in.Amount == nil || *in.Amount < 0 {
		return wrong("amount: it must be a whole number of minor units, 0 or more")
	}
	if !validCurrency(in.Currency) {
		return wrong(`currency: it must be three capital letters, like "EUR"`)
	}
	return Event{in.ID, in.Type, in.PaymentID, in.OrderID, *in.Amount, in.Currency}, nil
}

// BodyError says what is wrong with a body: "amount: ...". It matches ErrBody.
type BodyError struct{ Detail string }

func (e *BodyError) Error() string { return e.Detail }

// Is makes a BodyError match ErrBody.
func (e *BodyError) Is(target error) bool { return target == ErrBody }

func validCurrency(s string) bool {
	if len(s) != 3 {
		return false
	}
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return true
}

// digest identifies the content of an event, however the body was written. It tells apart events under one id.
func (e Event) digest() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%d\n%s", e.Type, e.PaymentID, e.OrderID, e.Amount, e.Currency))
	return hex.EncodeToString(sum[:])
}
