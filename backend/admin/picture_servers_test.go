//go:build servers

package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/problem"
)

// A sale and a coupon campaign have a picture, which can be changed and taken away; a title has up to 500 characters of any kind.
func TestASaleHasAPicture(t *testing.T) {
	o := newOffice(t, 1)
	title := string([]rune(strings.Repeat("=عرض <b>🎉\u202e", 60))[:500])
	url := "https://shop.example/" + strings.Repeat("a", 500-len("https://shop.example/"))
	s := read[adminapi.Sale](t, send(o.Admin, "POST", "/admin/v1/sales", fmt.Sprintf(`{"title":%q,"price":1,"currency":"EUR","stock":3,"starts_at":"2026-01-01T00:00:00Z","ends_at":"2099-01-01T00:00:00Z","picture":%q}`, title, url)))
	if s.Title != title || s.Picture != url {
		t.Fatalf("got %+v", s)
	}
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	refused(t, send(o.Admin, "PATCH", path, `{"picture":"http://shop.example/a"}`, `If-Match: *`), problem.BadRequest, "picture")
	refused(t, send(o.Admin, "PATCH", path, `{"picture":"http://127.0.0.1/a"}`, `If-Match: *`), problem.BadRequest, "picture")
	if got := do[adminapi.Sale](o, 200, "PATCH", path, `{"title":"Shoe"}`, `If-Match: *`); got.Picture != url {
		t.Errorf("a change of something else: got %q", got.Picture)
	}
	o.Admin.Development = true
	if got := do[adminapi.Sale](o, 200, "PATCH", path, `{"picture":"http://127.0.0.1:9000/a"}`, `If-Match: *`); got.Picture != "http://127.0.0.1:9000/a" {
		t.Errorf("in development: got %q", got.Picture)
	}
	refused(t, send(o.Admin, "PATCH", path, `{"picture":"http://10.0.0.1/a"}`, `If-Match: *`), problem.BadRequest, "picture")
	if got := do[adminapi.Sale](o, 200, "PATCH", path, `{"picture":""}`, `If-Match: *`); got.Picture != "" {
		t.Errorf("taken away: got %q", got.Picture)
	}
	c := read[adminapi.Sale](t, send(o.Admin, "POST", "/admin/v1/coupons", `{"title":"10 off","picture":"https://shop.example/c",`+window(-time.Minute, time.Hour)+`,"total":3}`))
	if c.Picture != "https://shop.example/c" {
		t.Errorf("a campaign: got %+v", c)
	}
	if got := do[adminapi.Sale](o, 200, "PATCH", fmt.Sprintf("/admin/v1/coupons/%d", c.ID), `{"picture":"https://shop.example/d"}`); got.Picture != "https://shop.example/d" {
		t.Errorf("a campaign: got %q", got.Picture)
	}
}
