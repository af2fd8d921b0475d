//go:build servers

package admin

import (
	"encoding/base64"
	"fmt"
	"testing"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/event"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func TestEventsAreListedAndReplayed(t *testing.T) {
	o := newOffice(t, 4)
	secret := conf.Secret("whsec_" + base64.StdEncoding.EncodeToString([]byte("the-secret-of-an-endpoint-in-tests")))
	log := event.NewLog([]event.Endpoint{{Name: "one", URL: "https://one.example/", Secret: secret}, {Name: "two", URL: "https://two.example/", Secret: secret}})
	for i := range 3 {
		id := wire.NewOrderID(fmt.Sprintf("0190163d-8694-739b-aea5-%012d", i), 7)
		if err := log.Write(t.Context(), o.DB, o.Changes.Now(), event.OrderEvent(wire.Order{OrderID: id, SaleID: 7, Status: wire.Paid}, "42")); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Write(t.Context(), o.DB, o.Changes.Now(), event.Event{Type: event.SaleEnded, Ref: event.SaleRef(7), Data: event.Sale{ID: 7}}); err != nil {
		t.Fatal(err)
	}
	var all []event.Delivery
	for query := "?limit=3"; query != ""; {
		p := do[adminapi.Events](o, 200, "GET", "/admin/v1/events"+query, "")
		all = append(all, p.Events...)
		if query = ""; p.Next != "" {
			query = "?limit=3&cursor=" + p.Next
		}
	}
	if len(all) != 8 || all[0].Type != event.SaleEnded || all[0].SaleID != 7 || all[0].OrderID != "" || all[7].SaleID != 7 || all[7].OrderID == "" || all[7].NextAt == nil {
		t.Fatalf("got %+v", all)
	}
	failed := all[7].ID
	if _, err := o.DB.ExecContext(t.Context(), `UPDATE events SET state = 'failed', attempts = 15, last_error = 'it answered 500' WHERE id = ?`, failed); err != nil {
		t.Fatal(err)
	}
	if list := do[adminapi.Events](o, 200, "GET", "/admin/v1/events?state=failed&endpoint="+all[7].Endpoint, "").Events; len(list) != 1 || list[0].ID != failed || list[0].LastError != "it answered 500" {
		t.Errorf("got %+v", list)
	}
	path := fmt.Sprintf("/admin/v1/events/%d/replay", failed)
	for range 2 { // a repeat of the request is answered alike, and is in the audit log once
		if d := do[event.Delivery](o, 200, "POST", path, "", "Idempotency-Key: k"); d.State != event.Waiting || d.Attempts != 0 || d.NextAt == nil || d.DoneAt != nil {
			t.Errorf("got %+v", d)
		}
	}
	if n := o.count(`SELECT COUNT(*) FROM audit_log WHERE action = 'event.replay'`); n != 1 {
		t.Errorf("got %d rows in the audit log, want 1", n)
	}
	if _, err := o.DB.ExecContext(t.Context(), `UPDATE events SET claim = 'of a process', attempts = 3 WHERE id = ?`, failed); err != nil {
		t.Fatal(err)
	}
	if d := do[event.Delivery](o, 200, "POST", path, ""); d.Attempts != 3 {
		t.Errorf("one that is being delivered: got %+v, want it as it is", d)
	}
	refused(t, send(o.Admin, "POST", "/admin/v1/events/999/replay", ""), problem.NotFound, "")
	refused(t, send(o.Admin, "POST", "/admin/v1/events/x/replay", ""), problem.NotFound, "")
	for query, says := range map[string]string{"?state=open": "state", "?state=": "state", "?endpoint=A": "endpoint", "?uid=1": "uid", "?limit=0": "limit"} {
		refused(t, send(o.Admin, "GET", "/admin/v1/events"+query, ""), problem.BadRequest, says)
	}
}
