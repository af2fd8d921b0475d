package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func linesOf(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"sku_id":%d}`, i+1)
	}
	return `{"items":[` + strings.TrimPrefix(b.String(), ",") + `]}`
}

func TestParseCart(t *testing.T) {
	for body, want := range map[string][]CartItem{
		`{"items":[{"sku_id":7,"quantity":2}]}`:                                   {{7, 2}},
		"\n{ \"items\" : [ {\"quantity\":1000000,\"sku_id\":7} ] }":               {{7, 1_000_000}},
		`{"items":[{"sku_id":9},{"sku_id":9223372036854775807,"quantity":1}]}`:    {{9, 1}, {1<<63 - 1, 1}},
		`{"items":[{"sku_id":3,"quantity":1},{"sku_id":1},{"sku_id":2}]}`:         {{3, 1}, {1, 1}, {2, 1}},
		`{"items":[{"sku_id":1,"quantity":2.0e0},{"sku_id":2,"quantity":1e1}]}`:   nil,
		`{"items":[{"sku_id":1,"quantity":1}],"items":[{"sku_id":2}]}`:            nil,
		`{"items":[{"sku_id":1,"quantity":1,"quantity":2}]}`:                      nil,
		`{"items":[{"sku_id":1,"uid":"bob"}]}`:                                    nil,
		`{"items":[{"sku_id":1}],"uid":"bob"}`:                                    nil,
		`{"items":[{"sku_id":1}]}{}`:                                              nil,
		`{"items":{"sku_id":1}}`:                                                  nil,
		`{"items":"1"}`:                                                           nil,
		`{"Items":[{"sku_id":1}]}`:                                                nil,
		strings.Repeat(`{"items":[`, 10000):                                       nil,
		`{"items":[{"sku_id":1,"quantity":99999999999999999999999999999999999}]}`: nil,
	} {
		got, err := ParseCart([]byte(body))
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%.80q: got %v, %v; want %v", body, got, err, want)
		}
	}
	if got, err := ParseCart([]byte(linesOf(MaxCartLines))); len(got) != MaxCartLines || err != nil {
		t.Errorf("the most lines: got %d, %v", len(got), err)
	}
	for body, want := range map[string]string{
		"":               "object",
		"null":           "object",
		"[]":             "object",
		"{}":             "items: missing",
		`{"items":null}`: "items",
		`{"items":[]}`:   "items: 0 lines are not between 1 and 50",
		linesOf(51):      "items: 51 lines are not between 1 and 50",
		`{"items":[{}]}`: "items/0/sku_id: missing",
		`{"items":[{"sku_id":1},{"quantity":1}]}`:                  "items/1/sku_id: missing",
		`{"items":[{"sku_id":0}]}`:                                 "items/0/sku_id: 0",
		`{"items":[{"sku_id":-1}]}`:                                "items/0/sku_id: -1",
		`{"items":[{"sku_id":1.5}]}`:                               "items/0/sku_id",
		`{"items":[{"sku_id":"1"}]}`:                               "items/0/sku_id",
		`{"items":[{"sku_id":9223372036854775808}]}`:               "items/0/sku_id",
		`{"items":[{"sku_id":4},{"sku_id":5},{"sku_id":4}]}`:       "items/2/sku_id: 4 is in items/0",
		`{"items":[{"sku_id":1,"quantity":0}]}`:                    "items/0/quantity: 0",
		`{"items":[{"sku_id":1,"quantity":-3}]}`:                   "items/0/quantity: -3",
		`{"items":[{"sku_id":1,"quantity":1.5}]}`:                  "items/0/quantity",
		`{"items":[{"sku_id":1,"quantity":null}]}`:                 "null",
		`{"items":[null]}`:                                         "null",
		`{"items":[{"sku_id":1,"quantity":1000001}]}`:              "items/0/quantity: 1000001",
		`{"items":[{"sku_id":1,"quantity":` + digits(400) + `}]}`:  "items/0/quantity",
		`{"items":[{"sku_id":1,"quantity":1,"price":0}]}`:          "items/0/price: unknown member",
		`{"items":[{"sku_id":1,"quantity":9223372036854775807}]}`:  "items/0/quantity: 9223372036854775807",
		`{"items":[{"sku_id":1,"quantity":-9223372036854775808}]}`: "items/0/quantity",
	} {
		if got, err := ParseCart([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got %v, %v; want an error that says %q", body, got, err, want)
		}
	}
}

func TestCartOrderIDs(t *testing.T) {
	const uuid = "0190163d-8694-739b-aea5-966c26f8ad91"
	for id, want := range map[string][2]bool{ // valid, of a cart
		NewCartOrderID(uuid): {true, true}, NewOrderID(uuid, 42): {true, false}, uuid: {}, uuid + "-": {}, uuid + "-00": {}, uuid + "-x": {},
		"0190163D-8694-739b-aea5-966c26f8ad91-0": {}, "": {}, "-0": {},
	} {
		if got := [2]bool{ValidOrderID(id), IsCartOrder(id)}; got != want {
			t.Errorf("%q: valid, of a cart: got %v, want %v", id, got, want)
		}
	}
	if sale, ok := SaleOfOrder(NewCartOrderID(uuid)); ok {
		t.Errorf("a cart's order is of sale %d", sale)
	}
}

func FuzzParseCart(f *testing.F) {
	f.Add([]byte(`{"items":[{"sku_id":1,"quantity":1}]}`))
	f.Add([]byte(`{"items":[{"sku_id":1},{"sku_id":2}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		items, err := ParseCart(body)
		if err != nil {
			return
		}
		seen := map[int64]bool{}
		for _, i := range items {
			if i.SKU < 1 || i.Quantity < 1 || i.Quantity > MaxCartQuantity || seen[i.SKU] {
				t.Errorf("%q: got %+v", body, items)
			}
			seen[i.SKU] = true
		}
		if len(items) < 1 || len(items) > MaxCartLines {
			t.Errorf("%q: got %d lines", body, len(items))
		}
	})
}
