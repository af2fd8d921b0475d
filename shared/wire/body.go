package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// DecodeStrict reads one JSON value into v: unknown members, duplicate names, wrong case, invalid UTF-8 and trailing data
// are errors, which name the member and what is wrong with it. An empty body is an error.
func DecodeStrict(body []byte, v any) error {
	err := json.Unmarshal(body, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	var sem *json.SemanticError
	if errors.As(err, &sem) {
		where := strings.TrimPrefix(string(sem.JSONPointer), "/")
		switch {
		case errors.Is(err, json.ErrUnknownName):
			return fmt.Errorf("%s: unknown member", where)
		case where == "":
			return fmt.Errorf("the body must be a JSON object of the documented shape, got a %s", sem.JSONKind)
		default:
			if sem.Err != nil {
				return fmt.Errorf("%s: %s", where, sem.Err)
			}
			return fmt.Errorf("%s: a %s does not fit here", where, sem.JSONKind)
		}
	}
	var syn *jsontext.SyntacticError
	if errors.As(err, &syn) {
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return fmt.Errorf("%s: duplicate member", strings.TrimPrefix(string(syn.JSONPointer), "/"))
		}
		return fmt.Errorf("not valid JSON at byte %d", syn.ByteOffset)
	}
	return errors.New("not valid JSON")
}

// OrderRequest is the body of POST /v1/sales/{id}/orders.
type OrderRequest struct {
	Quantity *int    `json:"quantity"`
	Category *string `json:"category"` // that the campaign of a coupon must be of
}

// ParseOrderRequest reads the body of an order. An empty body or an absent quantity is 1; limit is the sale's
// per-user limit. category is nil where the body names none. The error names the field.
func ParseOrderRequest(body []byte, limit int) (quantity int, category *string, err error) {
	if len(body) == 0 {
		return 1, nil, nil
	}
	if n, ok := plainQuantity(body); ok && n <= limit {
		return n, nil, nil
	}
	var r OrderRequest
	if err := DecodeStrict(body, &r); err != nil {
		return 0, nil, err
	}
	if body[firstNonSpace(body)] != '{' {
		return 0, nil, errors.New("the body must be a JSON object, like {\"quantity\":1}")
	}
	if r.Category == nil && strings.Contains(string(body), `"category"`) {
		return 0, nil, errors.New("category: null is none; leave it out for any")
	}
	if r.Quantity == nil {
		if strings.Contains(string(body), `"quantity"`) {
			return 0, nil, errors.New("quantity: null is not a number; leave it out for 1")
		}
		return 1, r.Category, nil
	}
	if *r.Quantity < 1 || *r.Quantity > limit {
		return 0, nil, fmt.Errorf("quantity: %d is not between 1 and the sale's limit for each user, %d", *r.Quantity, limit)
	}
	return *r.Quantity, r.Category, nil
}

// AppendOrderRequest appends the body of an order, as ParseOrderRequest reads it.
func AppendOrderRequest(b []byte, quantity int, category *string) []byte {
	b = strconv.AppendInt(append(b, `{"quantity":`...), int64(quantity), 10)
	if category != nil {
		quoted, err := jsontext.AppendQuote(append(b, `,"category":`...), *category)
		if err != nil {
			panic("BUG: a string out of JSON that is none: " + err.Error())
		}
		b = quoted
	}
	return append(b, '}')
}

// plainQuantity reads a body as nearly all clients write it, {"quantity":N}, without allocating. It is false for every other.
func plainQuantity(body []byte) (n int, ok bool) {
	digits, ok := bytes.CutPrefix(body, []byte(`{"quantity":`))
	digits, closed := bytes.CutSuffix(digits, []byte("}"))
	if !ok || !closed || len(digits) < 1 || len(digits) > 9 || digits[0] == '0' {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

func firstNonSpace(b []byte) int {
	for i, c := range b {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return i
		}
	}
	return 0
}
