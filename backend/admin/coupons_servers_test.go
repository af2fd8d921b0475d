//go:build servers

package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// window is valid_from and valid_until, so long from now.
func window(from, until time.Duration) string {
	now := time.Now().UTC()
	return fmt.Sprintf(`"valid_from":%q,"valid_until":%q`, now.Add(from).Format(wire.TimeFormat), now.Add(until).Format(wire.TimeFormat))
}

// Row C1: a campaign has a category, a publish state, a window, a limit, a total and a guard.
func TestACampaignIsMadeAndChanged(t *testing.T) {
	t.Attr("row", "C1")
	o := newOffice(t, 1)
	r := send(o.Admin, "POST", "/admin/v1/coupons", `{"title":"10 off","category":"food","published":true,`+window(-time.Minute, time.Hour)+`,"per_user_limit":2,"total":30,"guard":"version"}`)
	s := read[adminapi.Sale](t, r)
	path := fmt.Sprintf("/admin/v1/coupons/%d", s.ID)
	if r.StatusCode != 201 || r.Header.Get("Location") != path || r.Header.Get("ETag") != `"1"` {
		t.Errorf("got %d, %v", r.StatusCode, r.Header)
	}
	if s.Kind != wire.Coupon || s.Total != 30 || *s.Category != "food" || !*s.Published || *s.Guard != "version" || s.State != wire.Open || s.PerUserLimit != 2 || s.Price != 0 {
		t.Errorf("got %+v", s)
	}
	o.press(s.ID, "ann", 2)
	o.settle(s.ID)
	if got := do[adminapi.Sale](o, 200, "GET", path, ""); got.Sold != 2 || got.Available != 28 {
		t.Errorf("got %+v", got)
	}
	if a := o.balanced(s.ID); a.MySQL.Claims != 2 {
		t.Errorf("got %+v, want two claims", a.MySQL)
	}

	until := time.Now().UTC().Add(48 * time.Hour).Truncate(time.Millisecond)
	body := fmt.Sprintf(`{"title":"20 off","category":"","per_user_limit":3,"guard":"conditional","valid_until":%q}`, until.Format(wire.TimeFormat))
	got := do[adminapi.Sale](o, 200, "PATCH", path, body, `If-Match: "1"`)
	if got.Title != "20 off" || *got.Category != "" || got.PerUserLimit != 3 || *got.Guard != "conditional" || !got.ValidUntil.Equal(until) || !got.ValidFrom.Equal(s.ValidFrom.Time) || got.Version != 2 {
		t.Errorf("got %+v", got)
	}
	if st := o.state(s.ID); st.Limit != 3 || st.Ends != until.UnixMilli() || st.Version != 2 {
		t.Errorf("redis has %+v", st)
	}
	if again := do[adminapi.Sale](o, 200, "PATCH", path, body); again.Version != 2 {
		t.Errorf("a change to the same changed something: %+v", again)
	}
	refused(t, send(o.Admin, "PATCH", path, `{"title":"x"}`, `If-Match: "1"`), problem.PreconditionFailed, "If-Match")
	if got := do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/restock", s.ID), `{"quantity":5}`); got.Total != 35 {
		t.Errorf("got %+v", got)
	}
	o.balanced(s.ID)
	for action, n := range map[string]int64{"coupon.create": 1, "coupon.update": 1, "sale.restock": 1} {
		if got := o.count(`SELECT COUNT(*) FROM audit_log WHERE action = ? AND target = ?`, action, change.Sale(s.ID)); got != n {
			t.Errorf("the audit log has %d of %s, want %d", got, action, n)
		}
	}
}

// Row C1: what is not published is not to be claimed, and is published by a change of its own, not by resuming a pause.
func TestPublishing(t *testing.T) {
	t.Attr("row", "C1")
	o := newOffice(t, 4)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/coupons", `{"title":"secret","published":false,`+window(-time.Minute, time.Hour)+`,"total":1}`)
	path, sale := fmt.Sprintf("/admin/v1/coupons/%d", s.ID), fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	press := func(want lua.Answer) {
		t.Helper()
		v, err := o.Redis.Reserve(t.Context(), reserve.Request{Sale: s.ID, UID: "ann", Quantity: 1, OrderID: wire.NewOrderID("0190163d-8694-739b-aea5-966c26f8ad91", s.ID), Epoch: o.state(s.ID).Epoch})
		if err != nil || v.Answer != want {
			t.Errorf("a press: got %+v, %v; want %s", v, err, want)
		}
	}
	if s.State != wire.Paused || *s.Published || s.Paused {
		t.Errorf("got %+v", s)
	}
	press(lua.Paused)
	if got := do[adminapi.Sale](o, 200, "POST", sale+"/resume", ""); *got.Published {
		t.Errorf("resume published it: %+v", got)
	}
	if got := do[adminapi.Sale](o, 200, "POST", sale+"/pause", ""); *got.Published || !got.Paused {
		t.Errorf("got %+v", got)
	}
	if got := do[adminapi.Sale](o, 200, "PATCH", path, `{"published":true}`); !*got.Published || !got.Paused || got.State != wire.Paused {
		t.Errorf("got %+v", got)
	}
	press(lua.Paused)
	if got := do[adminapi.Sale](o, 200, "POST", sale+"/resume", ""); got.State != wire.Open {
		t.Errorf("got %+v", got)
	}
	o.balanced(s.ID)
	if got := do[adminapi.Sale](o, 200, "PATCH", path, `{"published":false}`); *got.Published || got.State != wire.Paused {
		t.Errorf("got %+v", got)
	}
	press(lua.Paused)
	o.balanced(s.ID)
	do[adminapi.Sale](o, 200, "PATCH", path, `{"published":true}`)
	press(lua.Reserved)
	do[adminapi.Sale](o, 200, "POST", sale+"/close", "")
	refused(t, send(o.Admin, "PATCH", path, `{"published":false}`), problem.SaleEnded, "")
}

// Row C1: each wrong field of a change is refused by its name, and nothing is changed.
func TestWrongChangesOfACampaignChangeNothing(t *testing.T) {
	t.Attr("row", "C1")
	o := newOffice(t, 4)
	running := do[adminapi.Sale](o, 201, "POST", "/admin/v1/coupons", `{"title":"x",`+window(-time.Minute, time.Hour)+`,"per_user_limit":3,"total":5}`)
	coming := do[adminapi.Sale](o, 201, "POST", "/admin/v1/coupons", `{"title":"x",`+window(time.Hour, 2*time.Hour)+`,"per_user_limit":3,"total":5}`)
	goods := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	at := func(d time.Duration) string { return time.Now().UTC().Add(d).Format(wire.TimeFormat) }
	both := map[string]string{
		`{"title":""}`:        "title",
		`{"title":"  "}`:      "title",
		`{"title":"a\u0000"}`: "title",
		`{"title":null}`:      "title",
		`{"title":"` + strings.Repeat("a", maxTitle+1) + `"}`:       "title",
		`{"category":"` + strings.Repeat("a", maxCategory+1) + `"}`: "category",
		`{"category":7}`:                             "category",
		`{"published":1}`:                            "published",
		`{"published":"true"}`:                       "published",
		`{"published":null}`:                         "published",
		`{"per_user_limit":0}`:                       "per_user_limit",
		`{"per_user_limit":-1}`:                      "per_user_limit",
		`{"per_user_limit":101}`:                     "per_user_limit",
		`{"per_user_limit":6}`:                       "per_user_limit", // more than total
		`{"per_user_limit":1.5}`:                     "per_user_limit",
		`{"per_user_limit":"3"}`:                     "per_user_limit",
		`{"per_user_limit":99999999999999999999}`:    "per_user_limit",
		`{"guard":""}`:                               "guard",
		`{"guard":"Version"}`:                        "guard",
		`{"guard":true}`:                             "guard",
		`{"valid_until":"tomorrow"}`:                 "valid_until",
		`{"valid_until":0}`:                          "valid_until",
		`{"valid_until":"99999-01-01T00:00:00Z"}`:    "valid_until",
		`{"valid_until":"` + at(-2*time.Hour) + `"}`: "valid_until",
		`{"valid_from":"2026-13-01T00:00:00Z"}`:      "valid_from",
		`{"valid_from":"` + at(3*time.Hour) + `"}`:   "valid_from",
		`{"total":6}`:                                "total",
		`{"stock":6}`:                                "stock",
		`{"kind":"goods"}`:                           "kind",
		`{"id":1}`:                                   "id",
		`{"paused":true}`:                            "paused",
		`{"title":"a","title":"b"}`:                  "title",
	}
	for body, field := range both {
		for _, s := range []adminapi.Sale{running, coming} {
			refused(t, send(o.Admin, "PATCH", fmt.Sprintf("/admin/v1/coupons/%d", s.ID), body), problem.BadRequest, field)
		}
	}
	for body, field := range map[string]string{
		`{"valid_from":"` + at(-2*time.Hour) + `"}`: "valid_from",
		`{"per_user_limit":2}`:                      "per_user_limit", // somebody may hold three
	} {
		refused(t, send(o.Admin, "PATCH", fmt.Sprintf("/admin/v1/coupons/%d", running.ID), body), problem.BadRequest, field)
	}
	for _, s := range []adminapi.Sale{running, coming} {
		if got := o.sale(s.ID); got.Version != 1 || got.Title != "x" || got.PerUserLimit != 3 || !got.ValidUntil.Equal(s.ValidUntil.Time) || o.state(s.ID).Version != 1 {
			t.Errorf("refused changes changed something: %+v", got)
		}
	}
	if got := do[adminapi.Sale](o, 200, "PATCH", fmt.Sprintf("/admin/v1/coupons/%d", coming.ID), `{"per_user_limit":2,"valid_from":"`+at(30*time.Minute)+`"}`); got.PerUserLimit != 2 {
		t.Errorf("before it begins: got %+v", got)
	}
	for _, path := range []string{fmt.Sprintf("/admin/v1/coupons/%d", goods.ID), "/admin/v1/coupons/999", "/admin/v1/coupons/x"} {
		refused(t, send(o.Admin, "GET", path, ""), problem.SaleNotFound, "")
		refused(t, send(o.Admin, "PATCH", path, `{"title":"y"}`), problem.SaleNotFound, "")
	}
	list := do[struct {
		Coupons []adminapi.Sale `json:"coupons"`
		Next    string          `json:"next"`
	}](o, 200, "GET", "/admin/v1/coupons?limit=1", "")
	if len(list.Coupons) != 1 || list.Coupons[0].ID != coming.ID || list.Next == "" {
		t.Errorf("got %+v", list)
	}
	if n := o.count(`SELECT COUNT(*) FROM sales`); n != 3 {
		t.Errorf("there are %d sales, want 3", n)
	}
}
