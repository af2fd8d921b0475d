package embedded

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend"
	"floodgate.internal/shared/wire"
)

// What operators do works on the stand-ins, too.
func TestASaleIsRunOnTheCommandLine(t *testing.T) {
	var log buffer
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil || t.Failed() {
			t.Errorf("close: %v\n%s", err, &log)
		}
	}()
	try := func(line string) (string, error) {
		var out, errs bytes.Buffer
		words := strings.Fields(line)
		at := slices.IndexFunc(words, func(w string) bool { return w == "-" })
		words = slices.Replace(words, at, at+1, "-config", s.BackendConfig())
		err := backend.Run(t.Context(), words, &out, &errs)
		return out.String(), err
	}
	run := func(line, want string) {
		t.Helper()
		if out, err := try(line); err != nil || !strings.Contains(out, want) {
			t.Errorf("backend %s: got %v\n%s\nwant %q in it", line, err, out, want)
		}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		limit := time.NewTimer(time.Minute)
		defer limit.Stop()
		look := time.NewTicker(100 * time.Millisecond)
		defer look.Stop()
		for !ok() {
			select {
			case <-limit.C:
				t.Fatalf("never: %s", what)
			case <-look.C:
			}
		}
	}
	tokens, err := s.Tokens(t.Context(), "1-1300")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path string, uid int) (status int, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addrs.Public+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+tokens[uid-1])
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	run("sale create - --title x --stock 1000 --price 1 --currency EUR --starts-at=-1m --ends-at +1h", "sale")
	press := func(uid int) (status int, body string) { return ask("POST", "/v1/sales/1/orders", uid) }
	until("the gateway knows the sale", func() bool { _, body := ask("GET", "/v1/sales/1", 9); return strings.Contains(body, `"state":"open"`) })
	if status, body := press(1); status != 202 {
		t.Fatalf("got %d %s", status, body)
	}
	// Each look is another buyer's: one may order once in five seconds.
	buyer := 100
	refused := func(why string) bool {
		buyer++
		status, body := press(buyer)
		return status == 403 && strings.Contains(body, why)
	}
	var banned []string
	for uid := 101; uid <= 400; uid++ {
		banned = append(banned, strconv.Itoa(uid))
	}
	_, body := ask("GET", "/v1/orders", 1)
	var mine wire.OrderList
	if err := json.Unmarshal([]byte(body), &mine); err != nil || len(mine.Orders) != 1 {
		t.Fatalf("got %s, %v", body, err)
	}
	order := mine.Orders[0].OrderID

	run("bans add - "+strings.Join(banned, " "), "300 added")
	until("a banned uid is refused", func() bool { return refused("FORBIDDEN") })
	first := buyer
	run("bans remove - "+strings.Join(banned[1:], " "), "299 removed")
	run("bans list -", "101\n")
	run("eligible set - 1 4", "1 added")
	buyer = 500
	until("who is not on the list is refused", func() bool { return refused("FORBIDDEN") })
	run("eligible set - 1 6 7", "2 added, 1 removed: the list has 2 uids")
	run("eligible list - 1", "6\n7\n")
	run("eligible lift - 1", "anybody may buy")
	buyer = 900
	until("anybody may buy", func() bool { return !refused("FORBIDDEN") })
	run("sale concentration - 1", "127.0.0.0/24")

	until("the order is settled", func() bool { out, _ := try("orders search - --uid 1"); return strings.Contains(out, "pending_payment") })
	run("orders search - --sale 1 --status pending_payment", order)
	run("orders export - 1", order)
	if _, err := try("sale archive - 1"); err == nil || !strings.Contains(err.Error(), "pending_payment") {
		t.Errorf("archive: got %v", err)
	}
	run("orders cancel - "+order, "is cancelled (support)")
	if status, body := press(6); status != 202 {
		t.Fatalf("got %d %s", status, body)
	}
	until("uid 6 has paid", func() bool {
		_, body := ask("GET", "/v1/orders", 6)
		if err := json.Unmarshal([]byte(body), &mine); err != nil || len(mine.Orders) != 1 {
			return false
		}
		status, _ := ask("POST", "/v1/orders/"+mine.Orders[0].OrderID+"/payment", 6)
		return status == 200
	})
	until("what became of uid 6 is told", func() bool {
		out, _ := try("timeline - --uid 6 --sale 1")
		return strings.Contains(out, "Your order was accepted;") && strings.Contains(out, "Your payment came in") && strings.Contains(out, "The sale was open")
	})
	run("timeline - --uid 1 --sale 1", "The shop's support cancelled the order")
	until("the banned uid is told why they got none", func() bool {
		out, _ := try(fmt.Sprintf("timeline - --uid %d --sale 1", first))
		return strings.Contains(out, "may not buy here")
	})
	run("sale close - 1", "closed for good")
	until("the sale is archived", func() bool {
		out, err := try("sale archive - 1")
		if err == nil {
			return strings.Contains(out, "archived 2")
		}
		var left struct { // who pressed just before a change came into force has an order
			Orders []struct {
				ID string `json:"order_id"`
			} `json:"orders"`
		}
		if out, err = try("orders search - --sale 1 --status pending_payment --json"); err != nil || json.Unmarshal([]byte(out), &left) != nil {
			return false
		}
		for _, o := range left.Orders {
			run("orders cancel - "+o.ID, "is cancelled")
		}
		return false
	})
	run("sale get - 1", "= 0 available + 0 locked + 1 sold")
	run("audit-log - --target bans", "bans.change")
	if status, body := operator(t, s.Addrs.Admin, "/admin/v1/sales/1/audit"); status != 200 || !strings.Contains(body, `"balanced":true`) || !strings.Contains(body, `"loaded":false`) {
		t.Errorf("audit: got %d %s", status, body)
	}
	if status, body := ask("GET", "/v1/sales/1/timeline", 6); status != 200 || !strings.Contains(body, `"what":"paid"`) {
		t.Errorf("a timeline in an archived sale: got %d %s", status, body)
	}
	until("a press is refused", func() bool { status, body := press(8); return status == 403 && strings.Contains(body, "SALE_ENDED") })
}
