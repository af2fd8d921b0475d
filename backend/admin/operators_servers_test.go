//go:build servers

package admin

import (
	"fmt"
	"net/http"
	"testing"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
)

// staffed is an office of anna, an admin, and bob, an operator; as sends as one of them.
func staffed(t *testing.T) (o *office, as func(token, method, path, body string, header ...string) *http.Response) {
	o = newOffice(t, 4)
	list := operator.NewList("admin", token, []operator.Entry{named("anna", operator.Admin, annas), named("bob", operator.Operates, bobs)})
	o.Operators = func() *operator.List { return list }
	o.auth = operator.NewAuthenticator(o.Operators, "test", o.Log, o.Register)
	return o, func(token, method, path, body string, header ...string) *http.Response {
		return send(o.Admin, method, path, body, append(header, "Authorization: Bearer "+token)...)
	}
}

// The audit log says who made a change, with the role that they had; also by a session.
func TestTheAuditLogSaysWho(t *testing.T) {
	o, as := staffed(t)
	s := read[adminapi.Sale](t, as(bobs, "POST", "/admin/v1/sales", openSale(``)))
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	for _, r := range []*http.Response{as(annas, "POST", path+"/pause", ""), as(token, "POST", path+"/resume", "")} {
		if r.StatusCode != 200 {
			t.Fatalf("got %d", r.StatusCode)
		}
	}
	login := send(o.Admin, "POST", "/admin/v1/session", fmt.Sprintf(`{"token":%q}`, bobs), "Authorization: ", "Sec-Fetch-Site: same-origin")
	if login.StatusCode != 200 {
		t.Fatalf("login: got %d", login.StatusCode)
	}
	cookie := login.Cookies()[0]
	page := []string{"Authorization: ", "Sec-Fetch-Site: same-origin", "Cookie: " + cookie.Name + "=" + cookie.Value}
	if r := send(o.Admin, "POST", path+"/restock", `{"quantity":1}`, page...); r.StatusCode != 200 {
		t.Fatalf("a restock by the session: got %d", r.StatusCode)
	}
	refused(t, send(o.Admin, "POST", path+"/rebuild", "", page...), problem.Forbidden, "")
	got := ""
	for _, e := range do[adminapi.Log](o, 200, "GET", "/admin/v1/audit-log", "").Entries {
		got += fmt.Sprintln(e.Who, e.Role, e.Action)
	}
	if want := "bob operator sale.restock\nadmin admin sale.resume\nanna admin sale.pause\nbob operator sale.create\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Two operators with the same Idempotency-Key do not meet each other's answers.
func TestIdempotencyKeysAreTheOperators(t *testing.T) {
	o, as := staffed(t)
	const key = "Idempotency-Key: k1"
	body := openSale(``) // it names the time
	create := func(token string) adminapi.Sale {
		t.Helper()
		r := as(token, "POST", "/admin/v1/sales", body, key)
		if r.StatusCode != 201 {
			t.Fatalf("got %d %+v", r.StatusCode, read[problem.Problem](t, r))
		}
		return read[adminapi.Sale](t, r)
	}
	annasSale, bobsSale := create(annas), create(bobs)
	if annasSale.ID == bobsSale.ID {
		t.Error("bob got anna's answer")
	}
	if again := create(annas); again.ID != annasSale.ID {
		t.Errorf("anna's repeat made sale %d, want %d", again.ID, annasSale.ID)
	}
	if again := create(bobs); again.ID != bobsSale.ID {
		t.Errorf("bob's repeat made sale %d, want %d", again.ID, bobsSale.ID)
	}
	restock := func(id int64) string { return fmt.Sprintf("/admin/v1/sales/%d/restock", id) }
	refused(t, as(annas, "POST", restock(annasSale.ID), `{"quantity":1}`, key), problem.IdempotencyKeyReused, "Idempotency-Key")
	if r := as(token, "POST", restock(annasSale.ID), `{"quantity":1}`, key); r.StatusCode != 200 {
		t.Errorf("the same key of a third: got %d", r.StatusCode)
	}
	if n := o.count(`SELECT COUNT(*) FROM admin_requests WHERE idem_key = 'k1' AND status > 0`); n != 3 {
		t.Errorf("%d keys are kept, want 3", n)
	}
	// What an operator may not do any more is not answered from memory either.
	rebuild := fmt.Sprintf("/admin/v1/sales/%d/rebuild", annasSale.ID)
	if r := as(annas, "POST", rebuild, "", "Idempotency-Key: k2"); r.StatusCode != 200 {
		t.Errorf("rebuild: got %d", r.StatusCode)
	}
	refused(t, as(bobs, "POST", rebuild, "", "Idempotency-Key: k2"), problem.Forbidden, "")
}

// A coupon campaign is an admin's, also as a sale.
func TestCouponsAreAnAdmins(t *testing.T) {
	_, as := staffed(t)
	r := as(annas, "POST", "/admin/v1/sales", openSale(`,"kind":"coupon"`))
	s := read[adminapi.Sale](t, r)
	if r.StatusCode != 201 {
		t.Fatalf("got %d", r.StatusCode)
	}
	path := fmt.Sprintf("/admin/v1/sales/%d", s.ID)
	refused(t, as(bobs, "PATCH", path, `{"title":"Cup"}`, "If-Match: *"), problem.Forbidden, "")
	refused(t, as(bobs, "PATCH", fmt.Sprintf("/admin/v1/coupons/%d", s.ID), `{"title":"Cup"}`), problem.Forbidden, "")
	if r := as(annas, "PATCH", path, `{"title":"Cup"}`, "If-Match: *"); r.StatusCode != 200 {
		t.Errorf("got %d", r.StatusCode)
	}
	if r := as(bobs, "POST", path+"/pause", ""); r.StatusCode != 200 {
		t.Errorf("a pause: got %d", r.StatusCode)
	}
}
