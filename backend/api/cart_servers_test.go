//go:build servers

package api

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func (w *working) cart(uid, key, body string) *fasthttp.Response {
	w.t.Helper()
	req := w.request("POST", wire.CartPath, body)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return w.signed(req, uid)
}

// Rows E3, E7, B6: what a cart is answered, and what is no cart.
func TestCarts(t *testing.T) {
	t.Attr("row", "E3 E7 B6")
	w := work(t, Limits{InFlight: 100, Waiting: 1, Connections: 100, Queued: 100, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"))
	sku := backendtest.SKU(t, w.db, 5, 100, "EUR")
	body := fmt.Sprintf(`{"items":[{"sku_id":%d,"quantity":3},{"sku_id":999}]}`, sku)

	wantProblem(t, w.cart("ann", "", body), problem.BadRequest, "Idempotency-Key")
	wantProblem(t, w.cart("ann", strings.Repeat("k", 129), body), problem.BadRequest, "Idempotency-Key")
	wantProblem(t, w.cart("", "k", body), problem.Unauthenticated, "")
	for body, says := range map[string]string{
		"": "object", "{}": "items", `{"items":[]}`: "items", `{"items":[{"sku_id":1,"quantity":-1}]}`: "items/0/quantity",
		`{"items":[{"sku_id":1,"quantity":1.5}]}`: "items/0/quantity", `{"items":[{"sku_id":1},{"sku_id":1}]}`: "items/1/sku_id",
		`{"items":[` + strings.Repeat(`{"sku_id":1},`, 50) + `{"sku_id":1}]}`: "items", `{"items":[{"sku_id":1}],"uid":"bob"}`: "uid",
	} {
		wantProblem(t, w.cart("ann", "k", body), problem.BadRequest, says)
	}

	res := w.cart("ann", "k", body)
	var a wire.CartAnswer
	if err := json.Unmarshal(res.Body(), &a); err != nil || res.StatusCode() != 200 || a.OrderID == nil {
		t.Fatalf("got %d %s, %v", res.StatusCode(), res.Body(), err)
	}
	if want := []wire.CartResult{{SKU: sku, OK: true}, {SKU: 999, Code: wire.LineUnknown}}; !slices.Equal(a.Results, want) {
		t.Errorf("got %s, want %+v", res.Body(), want)
	}
	if again := w.cart("ann", "k", strings.ReplaceAll(body, ",", " , ")); string(again.Body()) != string(res.Body()) || again.StatusCode() != 200 {
		t.Errorf("a repeat: got %d %s, want %s", again.StatusCode(), again.Body(), res.Body())
	}
	wantProblem(t, w.cart("ann", "k", `{"items":[{"sku_id":1}]}`), problem.IdempotencyKeyReused, "")
	none := w.cart("bob", "k", body)
	if want := fmt.Sprintf(`{"order_id":null,"results":[{"sku_id":%d,"ok":false,"code":"INSUFFICIENT_STOCK"},{"sku_id":999,"ok":false,"code":"NOT_FOUND"}]}`, sku); string(none.Body()) != want || none.StatusCode() != 200 {
		t.Errorf("no line: got %d %s, want %s", none.StatusCode(), none.Body(), want)
	}

	if res := w.signed(w.request("GET", wire.OrderPath(*a.OrderID), ""), "ann"); res.StatusCode() != 200 || !strings.Contains(string(res.Body()), `"items":[{"sku_id"`) {
		t.Errorf("the order: got %d %s", res.StatusCode(), res.Body())
	}
	wantProblem(t, w.signed(w.request("GET", wire.OrderPath(*a.OrderID), ""), "bob"), problem.OrderNotFound, "")
	for _, what := range []string{"/payment", "/cancellation"} {
		wantProblem(t, w.signed(w.request("POST", wire.OrderPath(*a.OrderID)+what, ""), "bob"), problem.OrderNotFound, "")
	}
	if res := w.signed(w.request("POST", wire.OrderPath(*a.OrderID)+"/payment", ""), "ann"); res.StatusCode() != 200 || !strings.Contains(string(res.Body()), `"status":"paid"`) {
		t.Errorf("paid: got %d %s", res.StatusCode(), res.Body())
	}
	wantProblem(t, w.signed(w.request("POST", wire.OrderPath(*a.OrderID)+"/cancellation", ""), "ann"), problem.OrderStateConflict, "")
	if u := backendtest.SKUBalanced(t, w.db, w.redis.Client(), sku); u != (backendtest.Units{Available: 2, Sold: 3}) {
		t.Errorf("got %+v", u)
	}
}

// Row D7: what carts can hold, without a count.
func TestSKUs(t *testing.T) {
	t.Attr("row", "D7")
	w := work(t, Limits{InFlight: 100, Waiting: 1, Connections: 100, Queued: 100, Lag: time.Hour, Line: longLine}, os.Getenv("REDIS_ADDR"))
	sku := backendtest.SKU(t, w.db, 5, 100, "EUR")
	backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	res := w.signed(w.request("GET", wire.SKUsPath, ""), "")
	want := fmt.Sprintf(`{"skus":[{"id":%d,"title":"test sku","price":100,"currency":"EUR","state":"available"}]}`, sku)
	if res.StatusCode() != 200 || string(res.Body()) != want || string(res.Header.Peek("Cache-Control")) != "public, max-age=1" {
		t.Errorf("got %d %s, want %s", res.StatusCode(), res.Body(), want)
	}
	req := w.request("GET", wire.SKUsPath, "")
	req.Header.Set("If-None-Match", string(res.Header.Peek("ETag")))
	if res := w.signed(req, ""); res.StatusCode() != 304 {
		t.Errorf("got %d, want 304", res.StatusCode())
	}
}
