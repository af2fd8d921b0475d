package sale

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"floodgate.internal/shared/wire"
)

var (
	// ErrTooMany: MaxLive sales are live.
	ErrTooMany = fmt.Errorf("there are %d live sales, the most there may be", MaxLive)
	// ErrChanged: the sale or the SKU has changed since it was looked at.
	ErrChanged = errors.New("it was changed meanwhile")
)

// NotFoundError: MySQL has no such sale.
type NotFoundError struct{ Sale int64 }

func (e *NotFoundError) Error() string { return fmt.Sprintf("no sale %d", e.Sale) }

// NoSKUError: MySQL has no such SKU.
type NoSKUError struct{ SKU int64 }

func (e *NoSKUError) Error() string { return fmt.Sprintf("no SKU %d", e.SKU) }

// ClosedError: the sale was closed, and a closed sale never changes again.
type ClosedError struct {
	Sale int64
	At   time.Time
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("sale %d was closed for good at %s", e.Sale, e.At.Format(wire.TimeFormat))
}

// UnitsError: a SKU has fewer units available than a sale asks for.
type UnitsError struct{ SKU, Asked, Available int64 }

func (e *UnitsError) Error() string {
	return fmt.Sprintf("%d units are asked for, SKU %d has %d available", e.Asked, e.SKU, e.Available)
}

// LimitError: with more units a sale or a SKU would have more than MaxUnits.
type LimitError struct{ Total, More int64 }

func (e *LimitError) Error() string {
	return fmt.Sprintf("%d more than the %d there are make more than %d: give at most %d", e.More, e.Total, MaxUnits, MaxUnits-e.Total)
}

// FieldError: a value breaks a rule. Field is the member of the admin API that has it. Value, where it is not "", is the value,
// which Why goes on from: the caller may put it as it was sent.
type FieldError struct{ Field, Value, Why string }

// Detail says what is wrong.
func (e *FieldError) Detail() string {
	if e.Value == "" {
		return e.Why
	}
	return strconv.Quote(e.Value) + e.Why
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Detail() }
