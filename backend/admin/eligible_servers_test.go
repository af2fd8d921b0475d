//go:build servers

package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/origins"
	"floodgate.internal/shared/problem"
)

type listJSON struct {
	eligibility.State
	UIDs []string `json:"uids"`
	Next string   `json:"next"`
}

// Row D13.
func TestBansAndEligibleUIDs(t *testing.T) {
	t.Attr("row", "D13")
	o := newOffice(t, 1) // one connection is enough: the embedded profile has no more
	lists := eligibility.New(eligibility.Config{DB: o.DB, Log: o.Log, Register: prometheus.NewRegistry()})
	o.Lists = lists
	const bans = "/admin/v1/bans"
	if got := do[listJSON](o, 200, "GET", bans, ""); !got.Active || got.Size != 0 || len(got.UIDs) != 0 {
		t.Errorf("no bans: got %+v", got)
	}
	first := do[eligibility.Changed](o, 200, "POST", bans, `{"add":["bob","ann","bob"]}`, "Idempotency-Key: b1")
	if !slices.Equal(first.Added, []string{"ann", "bob"}) || first.Size != 2 || first.Version != 1 {
		t.Errorf("got %+v", first)
	}
	if again := do[eligibility.Changed](o, 200, "POST", bans, `{"add":["bob","ann","bob"]}`, "Idempotency-Key: b1"); !slices.Equal(again.Added, first.Added) {
		t.Errorf("the same key: got %+v", again)
	}
	refused(t, send(o.Admin, "POST", bans, `{"add":["cyd"]}`, "Idempotency-Key: b1"), problem.IdempotencyKeyReused, "Idempotency-Key")
	if got := do[eligibility.Changed](o, 200, "POST", bans, `{"add":["bob"],"remove":["nobody"]}`); len(got.Added)+len(got.Removed) != 0 || got.Version != 1 {
		t.Errorf("what is so already: got %+v", got)
	}
	do[eligibility.Changed](o, 200, "POST", bans, `{"add":["cyd"],"remove":["ann"]}`)
	for query, want := range map[string]string{"": "[bob cyd]", "?limit=1": "[bob]", "?cursor=bob": "[cyd]", "?uid=cyd": "[cyd]", "?uid=ann": "[]"} {
		got := do[listJSON](o, 200, "GET", bans+query, "")
		if fmt.Sprint(got.UIDs) != want || got.Size != 2 || got.Version != 2 || (got.Next != "") != (query == "?limit=1") {
			t.Errorf("%s: got %+v, want %s", query, got, want)
		}
	}

	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	list := fmt.Sprintf("/admin/v1/sales/%d/eligibility", s.ID)
	if got := do[listJSON](o, 200, "GET", list, ""); got.Active || got.Size != 0 {
		t.Errorf("a sale without a list: got %+v", got)
	}
	refused(t, send(o.Admin, "POST", list, `{"add":["ann"]}`), problem.SaleStateConflict, "")
	do[eligibility.Changed](o, 200, "PUT", list, `{"uids":["ann","dan"]}`)
	do[eligibility.Changed](o, 200, "POST", list, `{"add":["eve"],"remove":["dan"]}`)
	if got := do[listJSON](o, 200, "GET", list, ""); !got.Active || fmt.Sprint(got.UIDs) != "[ann eve]" {
		t.Errorf("got %+v", got)
	}
	if err := lists.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[string]eligibility.Refusal{"ann": "", "dan": eligibility.NotListed, "bob": eligibility.Banned} {
		if got := lists.Refuse(s.ID, uid); got != want {
			t.Errorf("uid %s: got %q, want %q", uid, got, want)
		}
	}
	do[eligibility.Changed](o, 200, "DELETE", list, "")
	do[eligibility.Changed](o, 200, "DELETE", list, "")
	if got := do[listJSON](o, 200, "GET", list, ""); got.Active || len(got.UIDs) != 0 {
		t.Errorf("lifted: got %+v", got)
	}

	// Every change stands in the audit log, once, with what it did.
	for target, want := range map[string]string{
		"bans":            `bans.change {"active":true,"size":2,"version":1} {"active":true,"size":2,"version":2,"added":["cyd"],"removed":["ann"]}`,
		change.Sale(s.ID): `eligibility.change {"active":true,"size":2,"version":1} {"active":true,"size":2,"version":2,"added":["eve"],"removed":["dan"]}`,
		"sale 1\tx":       "400",
		"nothing at al":   "",
	} {
		r := send(o.Admin, "GET", "/admin/v1/audit-log?target="+strings.NewReplacer(" ", "%20", "\t", "%09").Replace(target), "")
		if want == "400" {
			refused(t, r, problem.BadRequest, "target")
			continue
		}
		got := read[struct {
			Entries []adminapi.LogEntry `json:"entries"`
		}](t, r)
		var lines []string
		for _, e := range got.Entries {
			if e.Target != target || e.Who != "admin" {
				t.Errorf("got %+v of target %s", e, target)
			}
			lines = append(lines, fmt.Sprintf("%s %s %s", e.Action, e.Before, e.After))
		}
		if want != "" && !slices.Contains(lines, want) || (want == "") != (len(lines) == 0) {
			t.Errorf("%s: got\n%s\nwant %s", target, strings.Join(lines, "\n"), want)
		}
	}
	if n := o.count(`SELECT COUNT(*) FROM audit_log WHERE action LIKE 'eligibility.%' OR action = 'bans.change'`); n != 5 {
		t.Errorf("%d changes in the audit log, want 5: what changes nothing is none", n)
	}

	do[adminapi.Sale](o, 200, "POST", fmt.Sprintf("/admin/v1/sales/%d/close", s.ID), "")
	for _, c := range [][2]string{{"PUT", `{"uids":[]}`}, {"POST", `{"add":["x"]}`}, {"DELETE", ""}} {
		refused(t, send(o.Admin, c[0], list, c[1]), problem.SaleEnded, "")
		refused(t, send(o.Admin, c[0], "/admin/v1/sales/999/eligibility", c[1]), problem.SaleNotFound, "")
	}
	if _, err := o.DB.Exec(`UPDATE uid_lists SET size = ? WHERE list_id = 0`, eligibility.MaxList); err != nil {
		t.Fatal(err)
	}
	r := send(o.Admin, "POST", bans, `{"add":["one.more"]}`)
	if p := refused(t, r, problem.Overloaded, ""); !strings.Contains(p.Detail, "1000001") || r.Header.Get("Retry-After") == "" {
		t.Errorf("got %+v", p)
	}
}

// The largest change there may be fits into the audit log.
func TestALargestChangeFits(t *testing.T) {
	o := newOffice(t, 1)
	quoted := make([]string, eligibility.MaxChunk)
	for i := range quoted {
		quoted[i] = fmt.Sprintf(`"%s%04d"`, strings.Repeat("x", 60), i)
	}
	got := do[eligibility.Changed](o, 200, "POST", "/admin/v1/bans", `{"add":[`+strings.Join(quoted, ",")+`]}`, "Idempotency-Key: big")
	if got.Size != eligibility.MaxChunk {
		t.Errorf("got %+v", got.State)
	}
	refused(t, send(o.Admin, "POST", "/admin/v1/bans", `{"remove":["a"],"add":[`+strings.Join(quoted, ",")+`]}`), problem.BadRequest, "remove")
}

func TestConcentrationIsReported(t *testing.T) {
	o := newOffice(t, 1)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	path := fmt.Sprintf("/admin/v1/sales/%d/concentration", s.ID)
	refused(t, send(o.Admin, "GET", path, ""), problem.NotFound, "")
	since := time.Now().UTC().Truncate(time.Millisecond)
	o.Origins = origins.New(since)
	for range 3 {
		o.Origins.Count(s.ID, "203.0.113.0/24")
	}
	o.Origins.Count(s.ID, "")
	got := do[struct {
		SaleID   int64             `json:"sale_id"`
		Since    time.Time         `json:"since"`
		Orders   int64             `json:"orders"`
		Networks []origins.Counted `json:"networks"`
	}](o, 200, "GET", path, "")
	if got.SaleID != s.ID || !got.Since.Equal(since) || got.Orders != 4 || fmt.Sprint(got.Networks) != "[{203.0.113.0/24 3 3} {unknown 1 1}]" {
		t.Errorf("got %+v", got)
	}
	refused(t, send(o.Admin, "GET", path+"?x=1", ""), problem.BadRequest, "x")
	refused(t, send(o.Admin, "GET", "/admin/v1/sales/999/concentration", ""), problem.SaleNotFound, "")
}
