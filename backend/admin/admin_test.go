package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/ports"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

const token = "dev-admin"

// only is the operators of a configuration that has an admin token and names nobody.
func only(token string) func() *operator.List {
	list := operator.NewList("admin", conf.Secret(token), nil)
	return func() *operator.List { return list }
}

// offline is an Admin whose MySQL is not there: whatever is refused by the request alone is refused all the same.
func offline(t *testing.T) *Admin {
	t.Helper()
	nobody, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(fmt.Sprintf("nobody:nothing@tcp(127.0.0.1:%d)/floodgate", nobody[0]), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	clk, log, reg := new(clock.Clock), slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewRegistry()
	return New(Config{
		Operators: only(token), DB: db, Clock: clk, Log: log, Gatherer: reg, Register: reg, Changes: &change.Maker{DB: db, Clock: clk, Log: log},
		Ready: func(context.Context) []string { return []string{"mysql: it does not answer"} },
	})
}

// send sends a request with the admin token; header lines are "Name: value".
func send(h http.Handler, method, path, body string, header ...string) *http.Response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func read[T any](t *testing.T, r *http.Response) T {
	t.Helper()
	var v T
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}

// refused fails the test unless the answer is this problem about this field.
func refused(t *testing.T, r *http.Response, code problem.Code, field string) problem.Problem {
	t.Helper()
	p := read[problem.Problem](t, r)
	if p.Code != code || p.Field != field || r.StatusCode != problem.Codes()[code] || p.RequestID == "" || p.RequestID != r.Header.Get("X-Request-Id") {
		t.Errorf("got %d %+v, want %s about %q", r.StatusCode, p, code, field)
	}
	if got := r.Header.Get("Content-Type"); got != problem.ContentType {
		t.Errorf("got Content-Type %q", got)
	}
	return p
}

const goodSale = `"title":"Mug","price":1999,"currency":"EUR","stock":100,"starts_at":"2026-07-01T10:00:00Z","ends_at":"2026-07-01T12:00:00Z"`

// with is goodSale with members replaced or added.
func with(members string) string {
	kept := []string{}
	for _, m := range strings.Split(goodSale, ",") {
		if name, _, _ := strings.Cut(m, ":"); !strings.Contains(members, name+":") {
			kept = append(kept, m)
		}
	}
	return "{" + strings.Join(append(kept, members), ",") + "}"
}

func TestEveryWrongSaleIsRefusedByName(t *testing.T) {
	a := offline(t)
	digits := strings.Repeat("9", 400)
	tranches := func(list ...string) string { return `"tranches":[` + strings.Join(list, ",") + `]` }
	one := func(at string, n int) string { return fmt.Sprintf(`{"at":%q,"quantity":%d}`, at, n) }
	for members, want := range map[string]string{
		`"stock":0`:                   "stock",
		`"stock":-5`:                  "stock",
		`"stock":1000000001`:          "stock",
		`"stock":` + digits:           "stock",
		`"stock":1e400`:               "stock",
		`"stock":1.5`:                 "stock",
		`"stock":"100"`:               "stock",
		`"stock":null`:                "stock",
		`"price":-1`:                  "price",
		`"price":9223372036854775808`: "price",
		`"price":19.99`:               "price",
		`"currency":"eur"`:            "currency",
		`"currency":"EURO"`:           "currency",
		`"currency":""`:               "currency",
		`"title":""`:                  "title",
		`"title":"   "`:               "title",
		`"title":"a\u0000b"`:          "title",
		`"title":"` + strings.Repeat("ä", 501) + `"`:                     "title",
		`"picture":"http://shop.example/a.png"`:                          "picture",
		`"picture":"http://127.0.0.1/a.png"`:                             "picture",
		`"picture":"//shop.example/a.png"`:                               "picture",
		`"picture":"https://"`:                                           "picture",
		`"picture":"https://u:p@shop.example/a.png"`:                     "picture",
		`"picture":"https://shop.example/a.png#x"`:                       "picture",
		`"picture":"javascript:alert(1)"`:                                "picture",
		`"picture":"https://shop.example/ä.png"`:                         "picture",
		`"picture":"https://shop.example/a b.png"`:                       "picture",
		`"picture":"https://s.example/` + strings.Repeat("a", 490) + `"`: "picture",
		`"title":7`:                               "title",
		`"ends_at":"2026-07-01T10:00:00Z"`:        "ends_at",
		`"ends_at":"2026-07-01T09:59:59.999Z"`:    "ends_at",
		`"ends_at":"tomorrow"`:                    "ends_at",
		`"starts_at":"2026-07-01"`:                "starts_at",
		`"starts_at":"2026-07-01 10:00:00"`:       "starts_at",
		`"starts_at":"2026-07-01T10:00:00"`:       "starts_at",
		`"starts_at":"2026-02-30T10:00:00Z"`:      "starts_at",
		`"starts_at":1751364000`:                  "starts_at",
		`"ends_at":"9999-12-31T23:59:59-01:00"`:   "ends_at",
		`"starts_at":"0001-01-01T00:00:00Z"`:      "starts_at",
		`"per_user_limit":0`:                      "per_user_limit",
		`"per_user_limit":101`:                    "per_user_limit",
		`"pay_within_s":0`:                        "pay_within_s",
		`"pay_within_s":2592001`:                  "pay_within_s",
		`"kind":"service"`:                        "kind",
		`"kind":"Goods"`:                          "kind",
		`"sku_id":0`:                              "sku_id",
		`"sku_id":-1`:                             "sku_id",
		`"sku_id":"7"`:                            "sku_id",
		`"Title":"Mug"`:                           "Title",
		`"uid":"bob"`:                             "uid",
		`"kind":"goods","kind":"goods"`:           "kind",
		tranches():                                "tranches",
		`"tranches":{}`:                           "tranches",
		tranches(one("2026-07-01T10:00:00Z", 99)): "tranches",
		tranches(one("2026-07-01T10:00:00Z", 60), one("2026-07-01T11:00:00Z", 60)):      "tranches",
		tranches(one("2026-07-01T10:00:00Z", 50), one("2026-07-01T12:00:00+02:00", 50)): "tranches/1/at", // the same moment
		tranches(one("2026-07-01T09:59:59Z", 100)):                                      "tranches/0/at",
		tranches(one("2026-07-01T12:00:00Z", 100)):                                      "tranches/0/at",
		tranches(one("2026-07-01T10:00:00Z", 100), one("2026-07-01T11:00:00Z", 0)):      "tranches/1/quantity",
		tranches(`{"at":"2026-07-01T10:00:00Z"}`):                                       "tranches/0/quantity",
		tranches(`{"quantity":100}`):                                                    "tranches/0/at",
		tranches(`{"at":"2026-07-01T10:00:00Z","quantity":100,"note":"x"}`):             "tranches/0/note",
		tranches(`null`): "tranches/0",
	} {
		p := refused(t, send(a, "POST", "/admin/v1/sales", with(members)), problem.BadRequest, want)
		if !strings.HasPrefix(p.Detail, want+": ") {
			t.Errorf("%.60s: the detail %q does not begin with the field", members, p.Detail)
		}
	}
	for _, missing := range []string{"title", "price", "currency", "stock", "starts_at", "ends_at"} {
		kept := []string{}
		for _, m := range strings.Split(goodSale, ",") {
			if !strings.HasPrefix(m, `"`+missing) {
				kept = append(kept, m)
			}
		}
		refused(t, send(a, "POST", "/admin/v1/sales", "{"+strings.Join(kept, ",")+"}"), problem.BadRequest, missing)
	}
	for _, body := range []string{"", "null", "[]", "7", "{", "{}{}", "\xff", strings.Repeat("[", 10000)} {
		refused(t, send(a, "POST", "/admin/v1/sales", body), problem.BadRequest, "")
	}
}

func TestWrongValuesAreShownWithTheWayOut(t *testing.T) {
	a := offline(t)
	for members, want := range map[string]string{
		`"stock":0`:                        "stock: 0 does not fit: give a whole number from 1 to 1000000000",
		`"stock":1e400`:                    "stock: 1e400 does not fit: give a whole number from 1 to 1000000000",
		`"currency":"eur"`:                 `currency: "eur" does not fit: give three capital letters, like "EUR"`,
		`"ends_at":"2026-07-01T09:00:00Z"`: `ends_at: "2026-07-01T09:00:00Z" is not after starts_at "2026-07-01T10:00:00.000Z": give a later time`,
	} {
		if p := refused(t, send(a, "POST", "/admin/v1/sales", with(members)), problem.BadRequest, strings.Split(want, ":")[0]); p.Detail != want {
			t.Errorf("got %q, want %q", p.Detail, want)
		}
	}
}

func TestWrongSKUsAndQuantities(t *testing.T) {
	a := offline(t)
	for _, c := range []struct{ path, body, field string }{
		{"/admin/v1/skus", `{"price":1,"currency":"EUR","stock":1}`, "title"},
		{"/admin/v1/skus", `{"title":"x","currency":"EUR","stock":1}`, "price"},
		{"/admin/v1/skus", `{"title":"x","price":1,"stock":1}`, "currency"},
		{"/admin/v1/skus", `{"title":"x","price":1,"currency":"EUR"}`, "stock"},
		{"/admin/v1/skus", `{"title":"x","price":-1,"currency":"EUR","stock":1}`, "price"},
		{"/admin/v1/skus", `{"title":"x","price":1,"currency":"EUR","stock":0}`, "stock"},
		{"/admin/v1/skus/1/restock", `{}`, "quantity"},
		{"/admin/v1/skus/1/restock", `{"quantity":0}`, "quantity"},
		{"/admin/v1/sales/1/restock", `{"quantity":-1}`, "quantity"},
		{"/admin/v1/sales/1/restock", `{"quantity":99999999999999999999}`, "quantity"},
		{"/admin/v1/sales/1/pause", `{"x":1}`, "x"},
	} {
		refused(t, send(a, "POST", c.path, c.body), problem.BadRequest, c.field)
	}
	for _, field := range []string{"sku_id", "kind", "currency", "tranches", "stock", "paused"} {
		refused(t, send(a, "PATCH", "/admin/v1/sales/1", `{"`+field+`":1}`), problem.BadRequest, field)
	}
	refused(t, send(a, "PATCH", "/admin/v1/skus/1", `{"stock":1}`), problem.BadRequest, "stock")
	refused(t, send(a, "POST", "/admin/v1/sales/1/pause", "", "Idempotency-Key: a b"), problem.BadRequest, "Idempotency-Key")
	refused(t, send(a, "GET", "/admin/v1/sales?limit=0", ""), problem.BadRequest, "limit")
	refused(t, send(a, "GET", "/admin/v1/sales?cursor=x", ""), problem.BadRequest, "cursor")
	refused(t, send(a, "GET", "/admin/v1/sales?page=2", ""), problem.BadRequest, "page")
}

// Row C1: each wrong field of a new campaign is refused by its name, before MySQL is asked for anything.
func TestWrongCampaigns(t *testing.T) {
	t.Attr("row", "C1")
	a := offline(t)
	good := map[string]string{"title": `"x"`, "valid_from": `"2026-07-01T10:00:00Z"`, "valid_until": `"2026-07-02T10:00:00Z"`, "total": "5"}
	huge := strings.Repeat("9", 400)
	for field, values := range map[string][]string{
		"title":          {"", `""`, `" "`, "1", "null", `"` + strings.Repeat("x", maxTitle+1) + `"`},
		"category":       {"1", "null", `"a\n"`, `"` + strings.Repeat("x", maxCategory+1) + `"`},
		"published":      {`"yes"`, "1", "null"},
		"valid_from":     {"", `"now"`, "1", "null", `"2026-07-01"`, `"2026-07-01T10:00:00"`, `"-0001-07-01T10:00:00Z"`, `"1969-12-31T23:59:59Z"`},
		"valid_until":    {"", `"never"`, "null", `"2026-07-01T10:00:00Z"`, `"2026-06-30T10:00:00Z"`, `"10000-01-01T00:00:00Z"`},
		"per_user_limit": {"0", "-1", "101", "6", "1.5", `"1"`, "null", huge},
		"total":          {"", "0", "-5", "1000000001", "1e3", "5.5", `"5"`, "null", huge, "-" + huge},
		"guard":          {`"luck"`, `""`, "1", "null", `"CONDITIONAL"`},
		"stock":          {"5"},
		"kind":           {`"goods"`},
		"starts_at":      {`"2026-07-01T10:00:00Z"`},
		"Title":          {`"x"`},
	} {
		for _, value := range values {
			members := maps.Clone(good)
			if members[field] = value; value == "" {
				delete(members, field)
			}
			var list []string
			for name, v := range members {
				list = append(list, strconv.Quote(name)+":"+v)
			}
			refused(t, send(a, "POST", "/admin/v1/coupons", "{"+strings.Join(list, ",")+"}"), problem.BadRequest, field)
		}
	}
	refused(t, send(a, "PATCH", "/admin/v1/coupons/1", `{"total":1}`), problem.BadRequest, "total")
	refused(t, send(a, "PATCH", "/admin/v1/coupons/1", `{"published":"no"}`), problem.BadRequest, "published")
	refused(t, send(a, "GET", "/admin/v1/coupons?limit=x", ""), problem.BadRequest, "limit")
	refused(t, send(a, "PATCH", "/admin/v1/coupons/x", `{}`), problem.SaleNotFound, "")
}

func TestWrongSearchesAndLists(t *testing.T) {
	a := offline(t)
	many := make([]string, eligibility.MaxChunk+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"u%d"`, i)
	}
	half := strings.Join(many[:len(many)/2+1], ",")
	for _, c := range []struct{ method, path, body, field string }{
		{"GET", "/orders?uid=", "", "uid"},
		{"GET", "/orders?uid=a%20b", "", "uid"},
		{"GET", "/orders?uid=" + strings.Repeat("a", 65), "", "uid"},
		{"GET", "/orders?sale_id=0", "", "sale_id"},
		{"GET", "/orders?sale_id=x", "", "sale_id"},
		{"GET", "/orders?sale_id=", "", "sale_id"},
		{"GET", "/orders?status=queued", "", "status"},
		{"GET", "/orders?status=Paid", "", "status"},
		{"GET", "/orders?status=", "", "status"},
		{"GET", "/orders?cursor=1", "", "cursor"},
		{"GET", "/orders?cursor=", "", "cursor"},
		{"GET", "/orders?limit=0", "", "limit"},
		{"GET", "/orders?limit=201", "", "limit"},
		{"GET", "/orders?user=ann", "", "user"},
		{"GET", "/orders?uid=a&uid=b", "", "uid"},
		{"GET", "/sales/1/orders.csv?uid=a", "", "uid=a"},
		{"GET", "/audit-log?target=", "", "target"},
		{"GET", "/audit-log?target=" + strings.Repeat("a", 65), "", "target"},
		{"GET", "/audit-log?who=me", "", "who"},
		{"POST", "/sales/1/archive", `{"force":true}`, "force"},
		{"POST", "/orders/" + wire.NewOrderID("0190163d-8694-739b-aea5-966c26f8ad91", 1) + "/cancel", `{"why":"x"}`, "why"},
		{"POST", "/bans", `{}`, "add"},
		{"POST", "/bans", `{"add":[]}`, "add"},
		{"POST", "/bans", `{"add":"ann"}`, "add"},
		{"POST", "/bans", `{"add":[7]}`, "add/0"},
		{"POST", "/bans", `{"add":["ann",""]}`, "add/1"},
		{"POST", "/bans", `{"remove":["a b"]}`, "remove/0"},
		{"POST", "/bans", `{"add":["ann"],"remove":["bob","ann"]}`, "remove/1"},
		{"POST", "/bans", `{"add":null}`, "add"},
		{"POST", "/bans", `{"uids":["ann"]}`, "uids"},
		{"POST", "/bans", `{"add":[` + strings.Join(many, ",") + `]}`, "add"},
		{"POST", "/bans", `{"add":[` + half + `],"remove":[` + strings.ReplaceAll(half, "u", "v") + `]}`, "remove"},
		{"GET", "/bans?cursor=a%20b", "", "cursor"},
		{"GET", "/bans?uid=", "", "uid"},
		{"GET", "/bans?limit=1001", "", "limit"},
		{"GET", "/bans?x=1", "", "x"},
		{"PUT", "/sales/1/eligibility", `{}`, "uids"},
		{"PUT", "/sales/1/eligibility", `{"uids":["ann","a/b"]}`, "uids/1"},
		{"PUT", "/sales/1/eligibility", `{"uids":[` + strings.Join(many, ",") + `]}`, "uids"},
		{"PUT", "/sales/1/eligibility", `{"add":["ann"]}`, "add"},
		{"POST", "/sales/1/eligibility", `{"remove":["-","ä"]}`, "remove/1"},
		{"DELETE", "/sales/1/eligibility", `{"x":1}`, "x"},
	} {
		p := refused(t, send(a, c.method, "/admin/v1"+c.path, c.body), problem.BadRequest, c.field)
		if !strings.HasPrefix(p.Detail, c.field+": ") {
			t.Errorf("%s %s %.60s: the detail %q does not begin with the field", c.method, c.path, c.body, p.Detail)
		}
	}
	refused(t, send(a, "POST", "/admin/v1/orders/x/cancel", ""), problem.OrderNotFound, "")
	refused(t, send(a, "PATCH", "/admin/v1/bans", "{}"), problem.MethodNotAllowed, "")
	refused(t, send(a, "GET", "/admin/v1/sales/x/orders.csv", ""), problem.SaleNotFound, "")
	refused(t, send(a, "GET", "/admin/v1/sales/0/concentration", ""), problem.SaleNotFound, "")
}

func TestTheDoor(t *testing.T) {
	a := offline(t)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + token, token, "Bearer " + token + "x"} {
		for _, path := range []string{"/admin/v1/sales", "/admin/v1/nothing", "/debug/pprof/", "/debug/pprof/heap"} {
			r := send(a, "GET", path, "", "Authorization: "+authorization)
			refused(t, r, problem.Unauthenticated, "")
			if r.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s: no WWW-Authenticate", path)
			}
		}
	}
	for path, want := range map[string]int{"/-/healthy": 200, "/-/ready": 503, "/metrics": 200} {
		if r := send(a, "GET", path, "", "Authorization: "); r.StatusCode != want {
			t.Errorf("%s without a token: got %d, want %d", path, r.StatusCode, want)
		}
	}
	if r := send(a, "GET", "/debug/pprof/cmdline", ""); r.StatusCode != 200 {
		t.Errorf("pprof with the token: got %d", r.StatusCode)
	}
	nobody := offline(t)
	nobody.Operators = only("")
	for _, authorization := range []string{"", "Bearer", "Bearer "} {
		refused(t, send(nobody, "GET", "/admin/v1/sales", "", "Authorization: "+authorization), problem.Unauthenticated, "")
	}
}

func TestNotReadyNamesTheReasons(t *testing.T) {
	r := send(offline(t), "GET", "/-/ready", "")
	got := read[struct {
		Reasons []string `json:"reasons"`
	}](t, r)
	if r.StatusCode != 503 || len(got.Reasons) != 1 || r.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %+v, Retry-After %q", r.StatusCode, got, r.Header.Get("Retry-After"))
	}
}

func TestPathsMethodsAndBodies(t *testing.T) {
	a := offline(t)
	for _, path := range []string{"/console", "/console/nothing.js", "/admin", "/admin/v1", "/admin/v1/nothing", "/admin/v1/timelines", "/admin/v1/dead-letters/1/nothing"} {
		refused(t, send(a, "GET", path, ""), problem.NotFound, "")
	}
	for _, id := range []string{"0", "01", "-1", "x", "9223372036854775808"} {
		refused(t, send(a, "GET", "/admin/v1/sales/"+id, ""), problem.SaleNotFound, "")
		refused(t, send(a, "GET", "/admin/v1/skus/"+id, ""), problem.NotFound, "")
	}
	r := send(a, "DELETE", "/admin/v1/sales", "")
	refused(t, r, problem.MethodNotAllowed, "")
	if got := r.Header.Get("Allow"); got != "GET, HEAD, POST" {
		t.Errorf("got Allow %q", got)
	}
	refused(t, send(a, "POST", "/metrics", ""), problem.MethodNotAllowed, "")
	refused(t, send(a, "POST", "/admin/v1/sales", strings.Repeat(" ", maxBody+1)), problem.PayloadTooLarge, "")
	refused(t, send(a, "POST", "/admin/v1/sales", "{}", "Content-Type: text/plain"), problem.UnsupportedMediaType, "")
}

func TestMySQLDownDoesNothingAndSaysSo(t *testing.T) {
	r := send(offline(t), "POST", "/admin/v1/sales", "{"+goodSale+"}")
	refused(t, r, problem.Overloaded, "")
	if r.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestAPatchHasBounds(t *testing.T) {
	zero := int64(0)
	for field, in := range map[string]adminapi.SalePatch{"per_user_limit": {PerUserLimit: &zero}, "pay_within_s": {PayWithin: &zero}} {
		if p := ruled(patch(in, &sale.Record{})); p == nil || p.Field != field {
			t.Errorf("%s of 0: got %v", field, p)
		}
	}
}

func TestServeDrains(t *testing.T) {
	a := offline(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, ln, a, a.Log) }()
	r, err := http.Get("http://" + ln.Addr().String() + "/-/healthy")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Body.Close(); err != nil || r.StatusCode != 200 {
		t.Errorf("got %d, %v", r.StatusCode, err)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A refused body is told what is wrong with it, of a taken one every member was read.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"title":"T","price":100,"stock":5,"tranches":[{"at":"2026-07-01T10:00:00Z","quantity":1}]}`, `{"title":null}`, `{"price":1.5}`, `{"tranches":[{"at":1}]}`,
		`{"a/b~c":1}`, `{"title":"T","title":"U"}`, `{"stock":9223372036854775808}`, `{"tranches":[{"quantity":"1"}]}`, ` {} `, ``, `[`, "{\"title\":\"\xff\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var in struct {
			Title    *string                `json:"title"`
			Price    *int64                 `json:"price"`
			Stock    *int64                 `json:"stock"`
			Tranches *[]adminapi.NewTranche `json:"tranches"`
		}
		if err := (&request{body: body}).decode(&in); err != nil {
			var p *problem.Problem
			if !errors.As(err, &p) || p.Code != problem.BadRequest || p.Detail == "" || len(p.JSON("r")) == 0 {
				t.Errorf("%q: got %v", body, err)
			}
			return
		}
		var m map[string]any
		if err := json.Unmarshal(body, &m); err != nil || (m["title"] != nil) != (in.Title != nil) || in.Title != nil && m["title"] != *in.Title || (m["tranches"] != nil) != (in.Tranches != nil) {
			t.Errorf("%q: got %+v; it says %v, %v", body, in, m, err)
		}
	})
}
