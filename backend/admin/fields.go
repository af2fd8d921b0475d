package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Bounds of what an operator may ask for.
const (
	maxPrice     = 1_000_000_000_000      // minor units
	maxLimit     = 100                    // of per_user_limit: every unit takes a slot
	maxPayWithin = 30 * 24 * 60 * 60      // seconds
	payWithin    = 15 * 60                // seconds, where nothing is said
	maxTitle     = 500                    // characters
	maxPicture   = 500                    // bytes
	maxCategory  = 64                     // characters
	maxTranches  = 100                    // of a sale
	maxTarget    = 64                     // characters
	noCurrency   = "XXX"                  // ISO 4217: no currency is involved
	timeExample  = "2026-07-01T10:00:00Z" // of RFC 3339
)

// wanted is what each member must be, for refusals.
var wanted = map[string]string{
	"sku_id":         "the id of a SKU, or leave it out for a SKU of the sale's own",
	"kind":           `"goods" or "coupon"`,
	"title":          fmt.Sprintf("1 to %d characters", maxTitle),
	"picture":        fmt.Sprintf(`an https URL of at most %d ASCII characters, like "https://shop.example/shoe.webp", or ""`, maxPicture),
	"price":          fmt.Sprintf("a whole number of minor units from 0 to %d, like 1999 for 19.99", maxPrice),
	"currency":       `three capital letters, like "EUR"`,
	"stock":          fmt.Sprintf("a whole number from 1 to %d", sale.MaxUnits),
	"total":          fmt.Sprintf("a whole number from 1 to %d", sale.MaxUnits),
	"quantity":       fmt.Sprintf("a whole number from 1 to %d", sale.MaxUnits),
	"starts_at":      `an RFC 3339 time, like "` + timeExample + `"`,
	"ends_at":        `an RFC 3339 time after starts_at, like "` + timeExample + `"`,
	"valid_from":     `an RFC 3339 time, like "` + timeExample + `"`,
	"valid_until":    `an RFC 3339 time after valid_from, like "` + timeExample + `"`,
	"at":             `an RFC 3339 time, like "` + timeExample + `"`,
	"per_user_limit": fmt.Sprintf("a whole number from 1 to %d", maxLimit),
	"pay_within_s":   fmt.Sprintf("a whole number of seconds from 1 to %d", maxPayWithin),
	"tranches":       fmt.Sprintf(`a list of 1 to %d like {"at":"%s","quantity":50}, or leave it out to release all at starts_at`, maxTranches, timeExample),
	"category":       fmt.Sprintf("0 to %d characters", maxCategory),
	"published":      "true or false",
	"add":            fmt.Sprintf(`a list of at most %d uids`, eligibility.MaxChunk),
	"remove":         fmt.Sprintf(`a list of at most %d uids`, eligibility.MaxChunk),
	"uids":           fmt.Sprintf(`a list of at most %d uids`, eligibility.MaxChunk),
	"target":         fmt.Sprintf(`1 to %d characters, like "sale 7", "sku 3", "bans", "revocations" or "order ID"`, maxTarget),
	"jti":            fmt.Sprintf("1 to %d visible ASCII characters: the claim jti of a token", wire.MaxJTI),
	"uid":            fmt.Sprintf("1 to %d of [A-Za-z0-9._-]", wire.MaxUID),
	"before":         `an RFC 3339 time that has passed, like "` + timeExample + `"`,
	"guard":          fmt.Sprintf("%q or %q", order.GuardConditional, order.GuardVersion),
}

// misfit refuses a value of a member.
func misfit(field string, value any) error {
	name := field[strings.LastIndexByte(field, '/')+1:]
	if s, ok := value.(string); ok {
		value = fmt.Sprintf("%q", short(s))
	}
	return problem.Invalid(field, fmt.Sprintf("%v does not fit: give %s", value, wanted[name]))
}

func missing(field string) error {
	return problem.Invalid(field, "missing: give "+wanted[field[strings.LastIndexByte(field, '/')+1:]])
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// between reads a whole number; into is left as it is when the member is absent.
func between(field string, value *int64, least, most int64, into *int64) error {
	if value == nil {
		return nil
	}
	if *value < least || *value > most {
		return misfit(field, *value)
	}
	*into = *value
	return nil
}

func needed[T any](field string, value *T) error {
	if value == nil {
		return missing(field)
	}
	return nil
}

func text(field string, value *string, least, most int, into *string) error {
	if value == nil {
		return nil
	}
	n := utf8.RuneCountInString(*value)
	if n < least || n > most || least > 0 && strings.TrimSpace(*value) == "" || strings.ContainsFunc(*value, unicode.IsControl) {
		return misfit(field, *value)
	}
	*into = *value
	return nil
}

func oneOf(field string, value *string, into *string, words ...string) error {
	if value == nil {
		return nil
	}
	if !slices.Contains(words, *value) {
		return misfit(field, *value)
	}
	*into = *value
	return nil
}

func currency(field string, value *string, into *string) error {
	if value == nil {
		return nil
	}
	if len(*value) != 3 || strings.Trim(*value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return misfit(field, *value)
	}
	*into = *value
	return nil
}

// moment reads a time, cut to milliseconds.
func moment(field string, value *string, into *time.Time) error {
	if value == nil {
		return nil
	}
	t := new(wire.Time)
	// UnmarshalText is strict where time.Parse is not: no comma before the fraction, no one-digit hour.
	if err := t.UnmarshalText([]byte(*value)); err != nil {
		return misfit(field, *value)
	}
	at := t.UTC().Truncate(time.Millisecond)
	if y := at.Year(); y < 1970 || y > 9999 {
		return problem.Invalid(field, fmt.Sprintf("%q is not between the years 1970 and 9999", short(*value)))
	}
	*into = at
	return nil
}

// tranches reads the members of tranches.
func tranches(list []adminapi.NewTranche) ([]sale.Tranche, error) {
	if len(list) == 0 || len(list) > maxTranches {
		return nil, problem.Invalid("tranches", fmt.Sprintf("%d of them do not fit: give %s", len(list), wanted["tranches"]))
	}
	out := make([]sale.Tranche, len(list))
	for i, t := range list {
		at, quantity := fmt.Sprintf("tranches/%d/at", i), fmt.Sprintf("tranches/%d/quantity", i)
		if err := first(needed(at, t.At), needed(quantity, t.Quantity), moment(at, t.At, &out[i].At),
			between(quantity, t.Quantity, 1, sale.MaxUnits, &out[i].Quantity)); err != nil {
			return nil, err
		}
	}
	return out, nil
}
