//go:build servers

package reconcile

import (
	"fmt"
	"os"
	"testing"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

// One buyer who orders and cancels in turn is refused after so many orders. Every key that was accepted is still known, before and
// after a reconciliation, which counts the same orders out of MySQL, those without a key too.
func TestABuyersEndedOrdersAreBounded(t *testing.T) {
	const most, presses = 5, 30
	s := newSystem(t, false)
	sale := s.sale(backendtest.SaleOptions{Stock: 10, Limit: 1})
	few, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: s.redis.Client().Prefix()}, most)
	if err == nil {
		t.Cleanup(few.Close)
		err = few.Client().Begin(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	press := func(uid, key string) reserve.Verdict {
		t.Helper()
		v, err := few.Reserve(t.Context(), request(sale, s.state(sale).Epoch, uid, 1, key))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	known := map[string]string{} // key -> order
	accepted := 0
	for i := range presses {
		key := fmt.Sprint("key", i)
		if i%2 == 1 {
			key = ""
		}
		v := press("ann", key)
		if v.Answer == lua.TooMany {
			continue
		}
		if v.Answer != lua.Reserved {
			t.Fatalf("press %d: got %s", i, v.Answer)
		}
		accepted++
		if key != "" {
			known[key] = v.OrderID
		}
		s.settleOutbox(sale)
		if _, err := s.orders.Cancel(t.Context(), "ann", v.OrderID); err != nil {
			t.Fatal(err)
		}
	}
	if accepted != most {
		t.Errorf("%d orders were accepted, want %d", accepted, most)
	}
	c := s.redis.Client()
	check := func(when string) {
		t.Helper()
		if v := press("ann", "another"); v.Answer != lua.TooMany {
			t.Errorf("%s: one more is %s, want %s", when, v.Answer, lua.TooMany)
		}
		for key, id := range known {
			if v := press("ann", key); v.Answer != lua.Repeated || v.OrderID != id {
				t.Errorf("%s: %s is %s %s, want it repeated, of order %s", when, key, v.Answer, v.OrderID, id)
			}
		}
		n, err := c.Do(t.Context(), c.B().Hlen().Key(fmt.Sprintf("%s{sale:%d}:idem", s.redis.Client().Prefix(), sale)).Build()).AsInt64()
		if err != nil || n != int64(len(known))+1 {
			t.Errorf("%s: redis holds %d fields, %v; want a key of each of %d orders, and how many ended", when, n, err, len(known))
		}
	}
	check("before the reconciliation")
	s.reconcile(sale)
	check("after the reconciliation")
	if v := press("bob", "key0"); v.Answer != lua.Reserved {
		t.Errorf("another buyer is told %s", v.Answer)
	}
	s.settleOutbox(sale)
}
