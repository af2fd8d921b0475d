package wire

import (
	"errors"
	"fmt"
	"strings"
)

// The paths of carts.
const (
	CartPath = "/v1/cart/orders"
	SKUsPath = "/v1/skus"
)

// Bounds of a cart.
const (
	MaxCartLines    = 50
	MaxCartQuantity = 1_000_000 // units in one line
)

// CartItem is a line of a cart.
type CartItem struct {
	SKU      int64 `json:"sku_id"`
	Quantity int64 `json:"quantity"`
}

// Cart is the body of POST /v1/cart/orders.
type Cart struct {
	Items []CartItem `json:"items"`
}

// ParseCart reads the body of a cart: 1 to MaxCartLines different SKUs. An absent quantity is 1. The error names the
// member.
func ParseCart(body []byte) ([]CartItem, error) {
	var in struct {
		Items *[]struct {
			SKU      *int64 `json:"sku_id"`
			Quantity *int64 `json:"quantity"`
		} `json:"items"`
	}
	const shape = `{"items":[{"sku_id":1,"quantity":2}]}`
	if len(body) == 0 || body[firstNonSpace(body)] != '{' {
		return nil, errors.New("the body must be a JSON object, like " + shape)
	}
	if err := DecodeStrict(body, &in); err != nil {
		return nil, err
	}
	if strings.Contains(string(body), "null") { // there are no texts it could be in
		return nil, errors.New("items: null is not a number; leave a quantity out for 1")
	}
	if in.Items == nil {
		return nil, errors.New("items: missing: the body is like " + shape)
	}
	if n := len(*in.Items); n < 1 || n > MaxCartLines {
		return nil, fmt.Errorf("items: %d lines are not between 1 and %d", n, MaxCartLines)
	}
	items := make([]CartItem, len(*in.Items))
	lines := make(map[int64]int, len(items))
	for i, line := range *in.Items {
		if line.SKU == nil {
			return nil, fmt.Errorf("items/%d/sku_id: missing", i)
		}
		if *line.SKU < 1 {
			return nil, fmt.Errorf("items/%d/sku_id: %d is not a positive integer", i, *line.SKU)
		}
		if first, twice := lines[*line.SKU]; twice {
			return nil, fmt.Errorf("items/%d/sku_id: %d is in items/%d already: make one line of the two", i, *line.SKU, first)
		}
		lines[*line.SKU] = i
		items[i] = CartItem{SKU: *line.SKU, Quantity: 1}
		if line.Quantity != nil {
			items[i].Quantity = *line.Quantity
		}
		if q := items[i].Quantity; q < 1 || q > MaxCartQuantity {
			return nil, fmt.Errorf("items/%d/quantity: %d is not between 1 and %d", i, q, MaxCartQuantity)
		}
	}
	return items, nil
}

// CartAnswer is the answer of POST /v1/cart/orders: which lines became an order. OrderID is null where none did.
type CartAnswer struct {
	OrderID *string      `json:"order_id"`
	Results []CartResult `json:"results"`
}

// CartResult is what became of one line. Code is a CartCode, "" where it is ok.
type CartResult struct {
	SKU  int64    `json:"sku_id"`
	OK   bool     `json:"ok"`
	Code CartCode `json:"code"`
}

// CartCode says why a line is in no order.
type CartCode string

// The codes of lines.
const (
	LineInsufficient CartCode = "INSUFFICIENT_STOCK" // less is available than it asks for
	LineUnknown      CartCode = "NOT_FOUND"          // carts cannot hold such a SKU
	LineCurrency     CartCode = "CURRENCY_MISMATCH"  // the order is in the currency of its first line
	LineAmount       CartCode = "AMOUNT_TOO_LARGE"   // the order's amount would be past what is counted
)

// SKU is what a cart can hold. No answer carries a count.
type SKU struct {
	ID       int64    `json:"id"`
	Title    string   `json:"title"`
	Price    int64    `json:"price"`
	Currency string   `json:"currency"`
	State    SKUState `json:"state"`
}

// SKUState is what a reader is told of a SKU's stock.
type SKUState string

// The states of a SKU.
const (
	SKUAvailable SKUState = "available"
	SKUSoldOut   SKUState = "sold_out"
)

// SKUList is the answer of GET /v1/skus.
type SKUList struct {
	SKUs []SKU `json:"skus"`
}
