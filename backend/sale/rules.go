package sale

import (
	"fmt"
	"slices"
	"time"

	"floodgate.internal/shared/wire"
)

const (
	// MaxUnits is the most units of a sale or of a SKU.
	MaxUnits = 1_000_000_000
	// freeze is how long before the start what buyers are shown stays.
	freeze = 2 * time.Second
)

// Open refuses what a closed sale does not allow. *ClosedError.
func (s *Sale) Open() error {
	if s.ClosedAt == nil {
		return nil
	}
	return &ClosedError{s.ID, *s.ClosedAt}
}

// Window refuses an end that is not after the start. *FieldError, of the end.
func Window(startField string, starts time.Time, endField string, ends time.Time) error {
	if ends.After(starts) {
		return nil
	}
	return &FieldError{endField, ends.Format(wire.TimeFormat), fmt.Sprintf(" is not after %s %q: give a later time", startField, starts.Format(wire.TimeFormat))}
}

// Schedule checks the tranches of a new sale: in its window, no two at once, together exactly its units. They come back by
// time. *FieldError.
func Schedule(tranches []Tranche, units int64, starts, ends time.Time) ([]Tranche, error) {
	var sum int64
	for i, t := range tranches {
		at := fmt.Sprintf("tranches/%d/at", i)
		if t.At.Before(starts) || !t.At.Before(ends) {
			return nil, &FieldError{at, t.At.Format(wire.TimeFormat), fmt.Sprintf(" is outside the sale: give a time from starts_at %s on and before ends_at %s",
				starts.Format(wire.TimeFormat), ends.Format(wire.TimeFormat))}
		}
		if j := slices.IndexFunc(tranches, func(o Tranche) bool { return o.At.Equal(t.At) }); j < i {
			return nil, &FieldError{at, t.At.Format(wire.TimeFormat), fmt.Sprintf(" is the time of tranches/%d too: make one tranche of the two", j)}
		}
		sum += t.Quantity
	}
	if sum != units {
		return nil, &FieldError{"tranches", "", fmt.Sprintf("their quantities add up to %d, stock is %d: make them equal", sum, units)}
	}
	return slices.SortedFunc(slices.Values(tranches), func(a, b Tranche) int { return a.At.Compare(b.At) }), nil
}

// Allows refuses next in place of s where that would change under buyers what they were promised: once the sale has started, or
// is about to, its start and price stay, and its limit may only be raised. Its tranches stay within its window. *FieldError.
func (s *Sale) Allows(next *Sale, now time.Time) error {
	if !now.Add(freeze).Before(s.StartsAt) {
		started := "the sale started at " + s.StartsAt.Format(wire.TimeFormat)
		if now.Before(s.StartsAt) {
			started = "the sale is about to start"
		}
		switch {
		case next.Price != s.Price:
			return &FieldError{"price", "", fmt.Sprintf("%d: %s, buyers were shown %d; close it and make another sale", next.Price, started, s.Price)}
		case !next.StartsAt.Equal(s.StartsAt):
			return &FieldError{"starts_at", next.StartsAt.Format(wire.TimeFormat), ": " + started + "; pause it instead"}
		case next.PerUserLimit < s.PerUserLimit:
			return &FieldError{"per_user_limit", "", fmt.Sprintf("%d: %s, some may hold %d already; it can only be raised", next.PerUserLimit, started, s.PerUserLimit)}
		}
	}
	if err := Window("starts_at", next.StartsAt, "ends_at", next.EndsAt); err != nil {
		return err
	}
	outside := func(t Tranche) bool { return t.At.Before(next.StartsAt) || !t.At.Before(next.EndsAt) }
	if i := slices.IndexFunc(next.Tranches, outside); i >= 0 {
		field, value := "ends_at", next.EndsAt
		if next.Tranches[i].At.Before(next.StartsAt) {
			field, value = "starts_at", next.StartsAt
		}
		return &FieldError{field, "", fmt.Sprintf("%q leaves the tranche at %s outside the sale: choose another time, or end the sale with close",
			value.Format(wire.TimeFormat), next.Tranches[i].At.Format(wire.TimeFormat))}
	}
	return nil
}

// Campaign refuses a coupon campaign whose window is none, or whose limit is more than its units. keepsEnd: the end was not
// asked for, so that the start is what does not fit. *FieldError.
func (s *Sale) Campaign(units int64, keepsEnd bool) error {
	if !s.EndsAt.After(s.StartsAt) && keepsEnd {
		return &FieldError{"valid_from", "", fmt.Sprintf("%q is not before valid_until %q: give an earlier time, or a later valid_until too",
			s.StartsAt.Format(wire.TimeFormat), s.EndsAt.Format(wire.TimeFormat))}
	}
	if err := Window("valid_from", s.StartsAt, "valid_until", s.EndsAt); err != nil {
		return err
	}
	if int64(s.PerUserLimit) > units {
		return &FieldError{"per_user_limit", "", fmt.Sprintf("%d is more than total, %d: one shopper cannot claim more than there are", s.PerUserLimit, units)}
	}
	return nil
}

// AllowsCampaign is Allows of a coupon campaign. *FieldError.
func (s *Sale) AllowsCampaign(next *Sale, now time.Time) error {
	if now.Add(freeze).Before(s.StartsAt) {
		return nil
	}
	began := "the campaign began at " + s.StartsAt.Format(wire.TimeFormat)
	if now.Before(s.StartsAt) {
		began = "the campaign is about to begin"
	}
	switch {
	case !next.StartsAt.Equal(s.StartsAt):
		return &FieldError{"valid_from", "", fmt.Sprintf("%q: %s; withdraw it with published false instead", next.StartsAt.Format(wire.TimeFormat), began)}
	case next.PerUserLimit < s.PerUserLimit:
		return &FieldError{"per_user_limit", "", fmt.Sprintf("%d: %s, some may hold %d already; it can only be raised", next.PerUserLimit, began, s.PerUserLimit)}
	}
	return nil
}
