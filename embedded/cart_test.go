package embedded

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// ask sends a request and reads the answer into out, unless that is nil.
func ask(t *testing.T, method, url, token, key, body string, out any) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Close = true
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			t.Errorf("%s %s: %s: %v", method, url, b, err)
		}
	}
	return res.StatusCode, string(b)
}

// Rows E1, E3, E7, E10 on the stand-ins: the same code against the in-memory servers.
func TestCarts(t *testing.T) {
	t.Attr("row", "E1 E3 E7 E10")
	var log buffer
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v\n%s", err, &log)
		}
	}()
	public, admin := "http://"+s.Addrs.Public, "http://"+s.Addrs.Admin+"/admin/v1"
	tokens, err := s.Tokens(t.Context(), "1-20")
	if err != nil {
		t.Fatal(err)
	}
	var skus []int64
	for _, stock := range []int{15, 2} {
		var made struct {
			ID int64 `json:"id"`
		}
		if code, text := ask(t, "POST", admin+"/skus", development.AdminToken, "", fmt.Sprintf(`{"title":"Mug","price":900,"currency":"EUR","stock":%d}`, stock), &made); code != 201 {
			t.Fatalf("got %d %s", code, text)
		}
		skus = append(skus, made.ID)
	}
	cart := fmt.Sprintf(`{"items":[{"sku_id":%d,"quantity":2},{"sku_id":%d,"quantity":2},{"sku_id":999}]}`, skus[0], skus[1])

	// Ten shoppers at once: seven get the first line, one of all the second.
	answers := make([]wire.CartAnswer, 10)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			code, text := ask(t, "POST", public+wire.CartPath, tokens[i], "k", cart, &answers[i])
			for tries := 0; code == 503 && tries < 100; tries++ { // a busy machine: who asks again with the same key gets the answer
				<-time.After(200 * time.Millisecond)
				answers[i] = wire.CartAnswer{}
				code, text = ask(t, "POST", public+wire.CartPath, tokens[i], "k", cart, &answers[i])
			}
			if code != 200 || len(answers[i].Results) != 3 {
				t.Errorf("shopper %d: got %d %s", i, code, text)
			}
		})
	}
	wg.Wait()
	lines := [3]int{}
	var orders, owners []string
	for i, a := range answers {
		for j, r := range a.Results {
			if r.OK {
				lines[j]++
			}
		}
		if a.OrderID != nil {
			orders, owners = append(orders, *a.OrderID), append(owners, tokens[i])
		}
	}
	if lines != [3]int{7, 1, 0} {
		t.Errorf("lines that succeeded: got %v, want 7, 1 and none", lines)
	}

	// Pay one, cancel one, and the unit that was over sells with what came back.
	var o wire.Order
	for i, end := range []struct{ path, status string }{{"/payment", "paid"}, {"/cancellation", "cancelled"}} {
		if code, text := ask(t, "POST", public+wire.OrderPath(orders[i])+end.path, owners[i], "", "", &o); code != 200 || string(o.Status) != end.status || len(o.Items) == 0 {
			t.Errorf("%s: got %d %s", end.path, code, text)
		}
	}
	if code, text := ask(t, "POST", fmt.Sprintf("%s/skus/%d/restock", admin, skus[0]), development.AdminToken, "", `{"quantity":1}`, nil); code != 200 {
		t.Errorf("restock: got %d %s", code, text)
	}
	var a wire.CartAnswer
	if code, text := ask(t, "POST", public+wire.CartPath, tokens[15], "k", fmt.Sprintf(`{"items":[{"sku_id":%d,"quantity":4}]}`, skus[0]), &a); code != 200 || a.OrderID == nil {
		t.Errorf("what came back: got %d %s", code, text)
	}
	var list wire.SKUList
	if code, text := ask(t, "GET", public+wire.SKUsPath, "", "", "", &list); code != 200 || len(list.SKUs) != 2 {
		t.Errorf("got %d %s", code, text)
	}
	for _, sku := range skus {
		for _, what := range []string{"audit", "rebuild"} {
			method := map[string]string{"audit": "GET", "rebuild": "POST"}[what]
			if code, text := ask(t, method, fmt.Sprintf("%s/skus/%d/%s", admin, sku, what), development.AdminToken, "", "", nil); code != 200 || !strings.Contains(text, `"balanced":true`) {
				t.Errorf("SKU %d, %s: got %d %s", sku, what, code, text)
			}
		}
	}
}
