//go:build servers

package admin

import (
	"fmt"
	"sync"
	"testing"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/problem"
)

// units is what a SKU has; Redis has the same, once no intent is open.
func (o *office) units(sku int64) backendtest.Units {
	o.t.Helper()
	u := backendtest.SKUBalanced(o.t, o.DB, o.Redis.Client(), sku)
	r := do[audit.SKU](o, 200, "GET", fmt.Sprintf("/admin/v1/skus/%d/audit", sku), "")
	if !r.Balanced || r.Available+r.Allotted+r.Locked+r.Sold != r.Total || !r.Redis.Loaded || r.Intents != 0 {
		o.t.Errorf("SKU %d: %+v", sku, r)
	}
	return u
}

// Rows E5, E10: whatever changes what carts can have is in the ledger, and in Redis at once.
func TestASKUInRedisFollowsOperators(t *testing.T) {
	t.Attr("row", "E5 E10")
	o := newOffice(t, 4)
	sku := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Mug","price":900,"currency":"EUR","stock":10}`).ID
	path := fmt.Sprintf("/admin/v1/skus/%d", sku)
	if err := o.skus.Load(t.Context(), sku); err != nil {
		t.Fatal(err)
	}
	want := func(available int64) {
		t.Helper()
		if got := o.units(sku); got.Available != available {
			t.Errorf("got %+v, want %d available", got, available)
		}
	}
	want(10)
	do[adminapi.SKU](o, 200, "POST", path+"/restock", `{"quantity":5}`)
	want(15)
	sale := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(fmt.Sprintf(`,"sku_id":%d,"stock":4`, sku))).ID
	want(11)
	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/restock", sale), `{"quantity":2}`)
	want(9)
	refused(t, send(o.Admin, "POST", fmt.Sprintf("/admin/v1/sales/%d/restock", sale), `{"quantity":10}`), problem.InsufficientStock, "quantity")
	want(9)
	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/close", sale), "")
	if n, err := o.Closing.ReturnUnsold(t.Context()); n != 1 || err != nil {
		t.Fatalf("returned %d, %v", n, err)
	}
	want(15)
	for kind, n := range map[string]int64{"create": 1, "restock": 1, "allot": 2, "return": 1} {
		if got := o.count(`SELECT COUNT(*) FROM sku_ledger WHERE sku_id = ? AND kind = ?`, sku, kind); got != n {
			t.Errorf("%d rows of kind %s in the ledger, want %d", got, kind, n)
		}
	}

	// A sale with a SKU of its own: carts have nothing of it.
	own := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/restock", own.ID), `{"quantity":2}`)
	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/close", own.ID), "")
	if n, err := o.Closing.ReturnUnsold(t.Context()); n != 1 || err != nil {
		t.Fatalf("returned %d, %v", n, err)
	}
	if u := backendtest.SKUBalanced(t, o.DB, o.Redis.Client(), own.SKU); u.Available != 102 {
		t.Errorf("got %+v", u)
	}
	if r := do[audit.SKU](o, 200, "GET", fmt.Sprintf("/admin/v1/skus/%d/audit", own.SKU), ""); !r.Balanced || r.Redis.Loaded || r.Intents != 0 {
		t.Errorf("got %+v", r)
	}
}

// What cannot be done in Redis at once is left to the timer.
func TestASKUBeingLoadedGetsItsChangesLater(t *testing.T) {
	o := newOffice(t, 4)
	skuID := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Mug","price":900,"currency":"EUR","stock":10}`).ID
	key := fmt.Sprintf("%s{sku:%d}:state", o.Redis.Client().Prefix(), skuID)
	c := o.Redis.Client()
	if err := c.Do(t.Context(), c.B().Hset().Key(key).FieldValue().FieldValue("gate", "closed").FieldValue("token", "x").FieldValue("until", "1").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	do[adminapi.SKU](o, 200, "POST", fmt.Sprintf("/admin/v1/skus/%d/restock", skuID), `{"quantity":5}`)
	if n := o.count(`SELECT COUNT(*) FROM sku_intents WHERE done_at IS NULL`); n != 1 {
		t.Errorf("%d intents are open", n)
	}
	if err := o.skus.Load(t.Context(), skuID); err != nil {
		t.Fatal(err)
	}
	if n, err := o.Changes.Intents.RunSKUs(t.Context()); n != 1 || err != nil {
		t.Errorf("the timer did %d, %v", n, err)
	}
	if u := o.units(skuID); u.Available != 15 {
		t.Errorf("got %+v", u)
	}
}

// Row E6.
func TestRebuildSKU(t *testing.T) {
	t.Attr("row", "E6")
	o := newOffice(t, 4)
	sku := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Mug","price":900,"currency":"EUR","stock":10}`).ID
	path := fmt.Sprintf("/admin/v1/skus/%d", sku)
	if err := o.skus.Load(t.Context(), sku); err != nil {
		t.Fatal(err)
	}
	c := o.Redis.Client()
	if err := c.Do(t.Context(), c.B().Hset().Key(fmt.Sprintf("%s{sku:%d}:state", o.Redis.Client().Prefix(), sku)).FieldValue().FieldValue("available", "99").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if r := do[audit.SKU](o, 200, "GET", path+"/audit", ""); r.Balanced || len(r.Findings) == 0 {
		t.Errorf("got %+v", r)
	}
	r := do[audit.SKU](o, 200, "POST", path+"/rebuild", "", "Idempotency-Key: once")
	if !r.Balanced || r.Redis.Available != 10 || r.Redis.Epoch != 2 {
		t.Errorf("got %+v", r)
	}
	if again := do[audit.SKU](o, 200, "POST", path+"/rebuild", "", "Idempotency-Key: once"); again.Redis.Epoch != 2 {
		t.Errorf("a repeat: got %+v", again)
	}
	own := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``)).SKU
	refused(t, send(o.Admin, "POST", fmt.Sprintf("/admin/v1/skus/%d/rebuild", own), ""), problem.NotFound, "")
	for _, what := range []string{"/audit", "/rebuild"} {
		method := map[string]string{"/audit": "GET", "/rebuild": "POST"}[what]
		refused(t, send(o.Admin, method, "/admin/v1/skus/999"+what, ""), problem.NotFound, "")
		refused(t, send(o.Admin, method, "/admin/v1/skus/x"+what, ""), problem.NotFound, "")
	}
}

// Row E9: optimistic, with a bounded number of attempts; no change of another's is lost.
func TestSKUsAreChangedOptimistically(t *testing.T) {
	t.Attr("row", "E9")
	o := newOffice(t, 16)
	sku := do[adminapi.SKU](o, 201, "POST", "/admin/v1/skus", `{"title":"Mug","price":900,"currency":"EUR","stock":10}`)
	path := fmt.Sprintf("/admin/v1/skus/%d", sku.ID)
	many := func(title string, header ...string) map[int]int64 {
		var mu sync.Mutex // guards count
		count := map[int]int64{}
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				r := send(o.Admin, "PATCH", path, fmt.Sprintf(`{"title":"%s %d","price":%d}`, title, i, i+1), header...)
				mu.Lock()
				defer mu.Unlock()
				count[r.StatusCode]++
			})
		}
		wg.Wait()
		return count
	}
	got := many("Cup")
	now := o.sku(sku.ID)
	if got[200]+got[503] != 12 || got[200] == 0 || now.Version != sku.Version+got[200] {
		t.Errorf("got %v, version %d after %d", got, now.Version, sku.Version)
	}
	var i int64
	if _, err := fmt.Sscanf(now.Title, "Cup %d", &i); err != nil || now.Price != i+1 {
		t.Errorf("two changes are mixed: %+v", now)
	}
	got = many("Bowl", "If-Match: "+etag(now.Version))
	if got[200] != 1 || got[412] != 11 || o.sku(sku.ID).Version != now.Version+1 {
		t.Errorf("with If-Match: got %v, version %d after %d", got, o.sku(sku.ID).Version, now.Version)
	}
}
