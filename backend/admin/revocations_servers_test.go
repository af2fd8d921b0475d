//go:build servers

package admin

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Row D11.
func TestRevocations(t *testing.T) {
	t.Attr("row", "D11")
	o := newOffice(t, 1) // one connection is enough: the embedded profile has no more
	o.KeepRevocations = time.Hour
	o.Revocations = revocation.New(revocation.Config{DB: o.DB, Clock: o.Clock, Keep: time.Hour, Log: o.Log, Register: prometheus.NewRegistry()})
	const path = "/admin/v1/revocations"
	began := o.Changes.Now()
	if got := do[adminapi.Revocations](o, 200, "GET", path, ""); got.Revocations == nil || len(got.Revocations) != 0 || got.Next != "" {
		t.Errorf("none: got %+v", got)
	}
	bob := do[revocation.Entry](o, 201, "POST", path, `{"uid":"bob"}`, "Idempotency-Key: r1")
	if bob.UID != "bob" || bob.Before == nil || bob.Before.Before(began) || !bob.Until.Equal(bob.Before.Add(time.Hour)) {
		t.Errorf("got %+v", bob)
	}
	if again := do[revocation.Entry](o, 201, "POST", path, `{"uid":"bob"}`, "Idempotency-Key: r1"); !again.Before.Equal(bob.Before.Time) {
		t.Errorf("the same key: got %+v", again)
	}
	refused(t, send(o.Admin, "POST", path, `{"uid":"ann"}`, "Idempotency-Key: r1"), problem.IdempotencyKeyReused, "Idempotency-Key")
	if got := do[revocation.Entry](o, 200, "POST", path, `{"uid":"bob","before":"2020-01-01T00:00:00Z"}`); !got.Before.Equal(bob.Before.Time) {
		t.Errorf("weaker: got %+v", got)
	}
	jti := `!~"\` // every visible character is one
	one := do[revocation.Entry](o, 201, "POST", path, `{"jti":"!~\"\\"}`)
	if one.JTI != jti || one.Before != nil {
		t.Errorf("got %+v", one)
	}
	for query, want := range map[string]string{"": jti + " bob", "?limit=1": jti, "?uid=bob": "bob", "?uid=ann": "", "?jti=bob": "", "?jti=" + url.QueryEscape(jti): jti} {
		got := do[adminapi.Revocations](o, 200, "GET", path+query, "")
		var names []string
		for _, e := range got.Revocations {
			names = append(names, e.JTI+e.UID)
		}
		if strings.Join(names, " ") != want || (got.Next != "") != (query == "?limit=1") {
			t.Errorf("%s: got %+v, want %s", query, got, want)
		}
		if got.Next != "" {
			if next := do[adminapi.Revocations](o, 200, "GET", path+query+"&cursor="+got.Next, ""); len(next.Revocations) != 1 || next.Revocations[0].UID != "bob" {
				t.Errorf("the next page: got %+v", next)
			}
		}
	}
	if got := do[revocation.Entry](o, 200, "DELETE", path, `{"uid":"bob"}`, "Idempotency-Key: d1"); got.UID != "bob" || !got.Gone {
		t.Errorf("taken back: got %+v", got)
	}
	do[revocation.Entry](o, 200, "DELETE", path, `{"uid":"bob"}`, "Idempotency-Key: d1")
	refused(t, send(o.Admin, "DELETE", path, `{"jti":"bob"}`, "Idempotency-Key: d1"), problem.IdempotencyKeyReused, "Idempotency-Key")
	refused(t, send(o.Admin, "DELETE", path, `{"uid":"bob"}`), problem.NotFound, "")
	refused(t, send(o.Admin, "DELETE", path, `{"jti":"nobody"}`), problem.NotFound, "")
	if err := o.Revocations.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if feed := o.Revocations.Feed(t.Context(), -1, 0); len(feed.Entries) != 1 || feed.Entries[0].JTI != jti {
		t.Errorf("gateways are told %+v", feed)
	}
	log := do[adminapi.Log](o, 200, "GET", "/admin/v1/audit-log?target=revocations", "")
	var actions []string
	for _, e := range log.Entries {
		actions = append(actions, e.Action)
	}
	if strings.Join(actions, " ") != "revocation.remove revocation.add revocation.add" {
		t.Errorf("the audit log has %v", actions)
	}
	if e := log.Entries[0]; !strings.Contains(string(e.Before), `"uid":"bob"`) || !strings.Contains(string(e.After), `"gone":true`) || string(log.Entries[2].Before) != "null" {
		t.Errorf("the audit log has %+v", log.Entries)
	}
	for _, c := range []struct{ method, path, body, field string }{
		{"POST", path, `{}`, "jti"},
		{"POST", path, `{"jti":"a","uid":"b"}`, "jti"},
		{"POST", path, `{"jti":""}`, "jti"},
		{"POST", path, `{"jti":"a b"}`, "jti"},
		{"POST", path, `{"jti":"é"}`, "jti"},
		{"POST", path, `{"jti":7}`, "jti"},
		{"POST", path, `{"jti":"` + strings.Repeat("a", wire.MaxJTI+1) + `"}`, "jti"},
		{"POST", path, `{"jti":"a","before":"2020-01-01T00:00:00Z"}`, "before"},
		{"POST", path, `{"uid":"a b"}`, "uid"},
		{"POST", path, `{"uid":null}`, "uid"},
		{"POST", path, `{"uid":"a","before":"yesterday"}`, "before"},
		{"POST", path, `{"uid":"a","before":"2999-01-01T00:00:00Z"}`, "before"},
		{"POST", path, `{"uid":"a","until":"2999-01-01T00:00:00Z"}`, "until"},
		{"POST", path, `{"uid":"a","uid":"b"}`, "uid"},
		{"POST", path, `[]`, ""},
		{"POST", path, ``, ""},
		{"DELETE", path, `{}`, "jti"},
		{"DELETE", path, `{"uid":"a","before":"2020-01-01T00:00:00Z"}`, "before"},
		{"DELETE", path, ``, ""},
		{"GET", path + "?uid=a%20b", ``, "uid"},
		{"GET", path + "?uid=", ``, "uid"},
		{"GET", path + "?uid=a&jti=b", ``, "jti"},
		{"GET", path + "?limit=1001", ``, "limit"},
		{"GET", path + "?cursor=x", ``, "cursor"},
		{"GET", path + "?x=1", ``, "x"},
	} {
		refused(t, send(o.Admin, c.method, c.path, c.body), problem.BadRequest, c.field)
	}
	refused(t, send(o.Admin, "PATCH", path, "{}"), problem.MethodNotAllowed, "")
}

// A list that is full says so, and what to do.
func TestAFullListOfRevocations(t *testing.T) {
	o := newOffice(t, 1)
	o.KeepRevocations = time.Hour
	const rows = 5000
	for n := 0; n < wire.MaxRevocations; n += rows {
		values := strings.TrimSuffix(strings.Repeat("('jti', UUID(), NOW(3), NOW(3) + INTERVAL 1 HOUR, FALSE, 1, NOW(3)), ", rows), ", ")
		if _, err := o.DB.Exec(`INSERT INTO revocations (kind, subject, before_at, until_at, gone, version, made_at) VALUES ` + values); err != nil {
			t.Fatal(err)
		}
	}
	r := send(o.Admin, "POST", "/admin/v1/revocations", `{"uid":"bob"}`)
	if r.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if p := refused(t, r, problem.Overloaded, ""); !strings.Contains(p.Detail, "100000 entries") {
		t.Errorf("got %+v", p)
	}
}
