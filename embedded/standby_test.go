package embedded

import (
	"fmt"
	"testing"
	"time"

	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// The standby line on the stand-ins: the same code against the in-memory servers.
func TestStandby(t *testing.T) {
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
	tokens, err := s.Tokens(t.Context(), "1-4")
	if err != nil {
		t.Fatal(err)
	}
	var sale struct {
		ID       int64 `json:"id"`
		Balanced bool  `json:"balanced"`
	}
	now := time.Now().UTC()
	if code, text := ask(t, "POST", admin+"/sales", development.AdminToken, "", fmt.Sprintf(
		`{"kind":"goods","title":"One","price":900,"currency":"EUR","stock":1,"starts_at":%q,"ends_at":%q}`,
		now.Add(-time.Minute).Format(wire.TimeFormat), now.Add(time.Hour).Format(wire.TimeFormat)), &sale); code != 201 {
		t.Fatalf("got %d %s", code, text)
	}
	id, path := sale.ID, public+wire.StandbyPath(sale.ID)
	// until asks until the answer is as it should be, for as long as the test may take.
	until := func(method, url, token string, ok func(code int) bool, out any) {
		t.Helper()
		for {
			code, text := ask(t, method, url, token, "", "", out)
			if ok(code) {
				return
			}
			select {
			case <-t.Context().Done():
				t.Fatalf("%s %s: got %d %s", method, url, code, text)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	until("GET", fmt.Sprintf("%s/v1/sales/%d", public, id), "", func(code int) bool { return code == 200 }, nil)
	var order wire.Order
	until("POST", fmt.Sprintf("%s/v1/sales/%d/orders", public, id), tokens[0], func(code int) bool { return code == 202 }, &order)
	var first wire.Order
	until("GET", public+wire.OrderPath(order.OrderID), tokens[0], func(int) bool { return first.Status == wire.PendingPayment }, &first)
	for i, want := range []int{1, 2, 2} {
		var at wire.Standby
		if code, text := ask(t, "POST", path, tokens[min(i+1, 2)], "", "", &at); code != 200 || at.Place == nil || *at.Place != want {
			t.Fatalf("join: got %d %s, want place %d", code, text, want)
		}
	}
	if code, text := ask(t, "POST", public+wire.OrderPath(order.OrderID)+"/cancellation", tokens[0], "", "", nil); code != 200 {
		t.Fatalf("got %d %s", code, text)
	}
	var at wire.Standby
	until("GET", path, tokens[1], func(int) bool { return at.State == wire.StandbyOffered }, &at)
	if code, text := ask(t, "DELETE", path, tokens[1], "", "", nil); code != 200 {
		t.Fatalf("got %d %s", code, text)
	}
	until("GET", path, tokens[2], func(int) bool { return at.State == wire.StandbyOffered }, &at)
	if code, text := ask(t, "POST", public+wire.OrderPath(at.Offer.OrderID)+"/payment", tokens[2], "", "", nil); code != 200 {
		t.Fatalf("got %d %s", code, text)
	}
	until("GET", fmt.Sprintf("%s/sales/%d/audit", admin, id), development.AdminToken, func(int) bool { return sale.Balanced }, &sale)
}
