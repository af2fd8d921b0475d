// Package sale is what a sale is: its definition, its units, its rules, and the SQL of them and of the SKUs that sales are made
// of. Functions take a transaction, or what else can be asked, and return values and errors of this package; who calls decides what HTTP or a log makes of them.
package sale

import (
	"slices"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// MaxLive is how many sales may be live (not archived) at once. Beyond it the oldest are read and the newest are left out;
// no more than that are made.
const MaxLive = 2000

// Sale is what operators decided of a sale.
type Sale struct {
	ID, SKU      int64
	Kind         wire.SaleKind
	Title        string
	Price        int64 // minor units
	Currency     string
	Category     string // of a coupon campaign: a claim may ask for one
	Picture      string // the URL of a picture; "" for none
	StartsAt     time.Time
	EndsAt       time.Time
	PerUserLimit int
	PayWithin    time.Duration
	Paused       bool
	Hidden       bool // a campaign that is not published: the public knows nothing of it
	ClosedAt     *time.Time
	ArchivedAt   *time.Time
	Version      int64 // counts changes
	Tranches     []Tranche
}

// Tranche is a part of the stock and when it goes on sale.
type Tranche struct {
	At       time.Time
	Quantity int64
}

// Definition is the sale as Redis is told of it. Tranches that are released with the start need no schedule.
func (s *Sale) Definition() reserve.Definition {
	d := reserve.Definition{
		Version: s.Version, Starts: s.StartsAt.UnixMilli(), Ends: s.EndsAt.UnixMilli(), Limit: s.PerUserLimit,
		Paused: s.Paused || s.Hidden, Closed: s.ClosedAt != nil,
	}
	for _, t := range s.Tranches {
		if t.At.After(s.StartsAt) {
			d.Later = append(d.Later, reserve.Tranche{At: t.At.UnixMilli(), Units: t.Quantity})
		}
	}
	return d
}

// Ended reports whether nothing is sold any more at now.
func (s *Sale) Ended(now time.Time) bool {
	return s.ClosedAt != nil || s.ArchivedAt != nil || !now.Before(s.EndsAt)
}

// Unreleased is how many units are in tranches still to come at now.
func (s *Sale) Unreleased(now time.Time) (units int64) {
	for _, t := range s.Tranches {
		if t.At.After(now) && t.At.After(s.StartsAt) {
			units += t.Quantity
		}
	}
	return units
}

// NextRelease is when the next tranche after the start comes; nil for never.
func (s *Sale) NextRelease(now time.Time) *wire.Time {
	for _, t := range s.Tranches {
		if t.At.After(now) && t.At.After(s.StartsAt) {
			at := wire.At(t.At)
			return &at
		}
	}
	return nil
}

// NextChange is when time alone next changes what the public is told; the zero time for never.
func (s *Sale) NextChange(now time.Time) time.Time {
	if s.Ended(now) {
		return time.Time{}
	}
	next := s.EndsAt
	if s.StartsAt.After(now) {
		next = s.StartsAt
	}
	if r := s.NextRelease(now); r != nil && r.Before(next) {
		next = r.Time
	}
	return next
}

// Equal reports whether two readings say the same.
func (s *Sale) Equal(o *Sale) bool {
	a, b := *s, *o
	same := slices.EqualFunc(a.Tranches, b.Tranches, func(x, y Tranche) bool { return x.At.Equal(y.At) && x.Quantity == y.Quantity }) &&
		a.StartsAt.Equal(b.StartsAt) && a.EndsAt.Equal(b.EndsAt) && sameTime(a.ClosedAt, b.ClosedAt) && sameTime(a.ArchivedAt, b.ArchivedAt)
	return same && a.ID == b.ID && a.SKU == b.SKU && a.Kind == b.Kind && a.Title == b.Title && a.Price == b.Price &&
		a.Currency == b.Currency && a.Category == b.Category && a.Picture == b.Picture && a.PerUserLimit == b.PerUserLimit && a.PayWithin == b.PayWithin &&
		a.Paused == b.Paused && a.Hidden == b.Hidden && a.Version == b.Version
}

func sameTime(a, b *time.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}
