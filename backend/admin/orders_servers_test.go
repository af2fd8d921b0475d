//go:build servers

package admin

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/order"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// rows writes n orders of a sale straight into MySQL, of uid u0, u1, ..., and returns their ids in order.
func (o *office) rows(sale int64, n int, status wire.OrderStatus) []string {
	o.t.Helper()
	ids := make([]string, n)
	at := time.Now().UTC().Truncate(time.Millisecond)
	for from := 0; from < n; from += 500 {
		to := min(n, from+500)
		var values []string
		var args []any
		for i := from; i < to; i++ {
			ids[i] = wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)
			values = append(values, "(?, ?, ?, 1, 100, ?, ?, ?)")
			args = append(args, ids[i], sale, fmt.Sprint("u", i), string(status), at, at)
		}
		if _, err := o.DB.ExecContext(o.t.Context(), `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at) VALUES `+strings.Join(values, ", "), args...); err != nil {
			o.t.Fatal(err)
		}
	}
	return ids
}

type found struct {
	Orders []adminapi.Order `json:"orders"`
	Next   string           `json:"next"`
}

// all follows a search to its end, and says how many pages it had.
func (o *office) all(query string) (ids []string, pages int) {
	o.t.Helper()
	for cursor := ""; ; pages++ {
		page := do[found](o, 200, "GET", "/admin/v1/orders?"+query+cursor, "")
		for _, x := range page.Orders {
			ids = append(ids, x.OrderID)
		}
		if page.Next == "" {
			return ids, pages + 1
		}
		cursor = "&cursor=" + page.Next
	}
}

func TestSupportFindsOrders(t *testing.T) {
	o := newOffice(t, 1)
	one := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(`,"per_user_limit":9`)).ID
	two := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``)).ID
	var mine []string
	for range 5 {
		mine = append(mine, o.press(one, "ann", 1))
	}
	other := o.press(two, "ann", 1)
	o.press(one, "bob", 2)
	if ids, _ := o.all("uid=ann"); len(ids) != 0 {
		t.Errorf("got %v: queued orders are not in MySQL", ids)
	}
	o.settle(one)
	o.settle(two)
	if _, err := o.book.Pay(t.Context(), "ann", mine[1]); err != nil {
		t.Fatal(err)
	}
	newest := slices.Clone(mine)
	slices.Reverse(newest)
	for query, want := range map[string][]string{
		"uid=ann":                              append([]string{other}, newest...),
		"uid=ann&limit=2":                      append([]string{other}, newest...),
		fmt.Sprintf("uid=ann&sale_id=%d", one): newest,
		fmt.Sprintf("uid=ann&sale_id=%d&status=paid&limit=1", one): {mine[1]},
		"status=paid": {mine[1]},
		"uid=nobody":  nil,
		fmt.Sprintf("sale_id=%d&status=expired", one):  nil,
		fmt.Sprintf("sale_id=%d&uid=ann&limit=1", two): {other},
	} {
		if got, _ := o.all(query); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", query, got, want)
		}
	}
	if ids, pages := o.all("limit=3"); len(ids) != 7 || pages != 3 {
		t.Errorf("all orders: got %v in %d pages", ids, pages)
	}
	x := do[found](o, 200, "GET", "/admin/v1/orders?uid=bob", "").Orders[0]
	if x.UID != "bob" || x.SaleID != one || x.Quantity != 2 || x.Amount != 3998 || x.Status != wire.PendingPayment || x.PayBefore == nil || x.EndedAt != nil || x.DecidedAt.IsZero() {
		t.Errorf("got %+v", x)
	}
	if paid := do[found](o, 200, "GET", "/admin/v1/orders?status=paid", "").Orders[0]; paid.EndedAt == nil {
		t.Errorf("got %+v", paid)
	}
}

// A search looks at a bounded number of orders a page, along an index, however rare what it is for.
func TestARareStatusIsFoundInBoundedSteps(t *testing.T) {
	o := newOffice(t, 2)
	sale := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``)).ID
	rare := o.rows(sale, 3, wire.Rejected)
	o.rows(sale, 2*orderScan, wire.Paid)
	o.rows(sale+1, 1000, wire.Paid)
	if _, err := o.DB.Exec(`ANALYZE TABLE orders`); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(rare)
	for query, pages := range map[string]int{fmt.Sprintf("sale_id=%d&status=rejected", sale): 3, "status=rejected": 3} {
		if got, n := o.all(query); !slices.Equal(got, rare) || n != pages {
			t.Errorf("%s: got %v in %d pages, want %v in %d", query, got, n, rare, pages)
		}
	}
	first := do[found](o, 200, "GET", fmt.Sprintf("/admin/v1/orders?sale_id=%d&status=rejected", sale), "")
	if len(first.Orders) != 0 || first.Next == "" {
		t.Errorf("got %d orders, next %q; the first page looks at the newest %d alone", len(first.Orders), first.Next, orderScan)
	}

	for name, c := range map[string]struct {
		s   search
		key string
	}{
		"anybody":        {search{}, "PRIMARY"},
		"status":         {search{status: "rejected"}, "PRIMARY"},
		"uid":            {search{uid: "u7"}, "orders_uid"},
		"uid and sale":   {search{uid: "u7", sale: sale, status: "paid"}, "orders_uid"},
		"sale":           {search{sale: sale}, "orders_sale"},
		"sale, rare":     {search{sale: sale, status: "rejected"}, "orders_sale"},
		"sale, frequent": {search{sale: sale, status: "paid"}, "orders_sale"},
	} {
		for _, below := range []string{"", rare[0]} {
			c.s.below, c.s.limit = below, 50
			where, args := c.s.along()
			o.explain(name+", the look's end", c.key, `SELECT id FROM orders `+where+fmt.Sprintf(` ORDER BY id DESC LIMIT 1 OFFSET %d`, orderScan-1), args...)
			where, args = c.s.within(where, args, rare[2])
			o.explain(name, c.key, `SELECT `+orderColumns+` FROM orders `+where, args...)
		}
	}
	o.explain("export", "orders_sale", `SELECT `+orderColumns+` FROM orders FORCE INDEX (orders_sale) WHERE sale_id = ? AND id > ? ORDER BY id LIMIT 1000`, sale, rare[0])
	o.explain("audit log", "audit_log_target", `SELECT id FROM audit_log FORCE INDEX (audit_log_target) WHERE id < ? AND target = ? ORDER BY id DESC LIMIT 51`, int64(1)<<60, "sale 1")
}

// explain fails the test unless the query goes along this index, and sorts nothing.
func (o *office) explain(what, key, query string, args ...any) {
	o.t.Helper()
	rows, err := o.DB.QueryContext(o.t.Context(), "EXPLAIN "+query, args...)
	if err != nil {
		o.t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		o.t.Fatal(err)
	}
	for rows.Next() {
		cells := make([]sql.NullString, len(columns))
		into := make([]any, len(cells))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := rows.Scan(into...); err != nil {
			o.t.Fatal(err)
		}
		plan := map[string]string{}
		for i, name := range columns {
			plan[strings.ToLower(name)] = cells[i].String
		}
		if plan["key"] != key || strings.Contains(plan["extra"], "filesort") || strings.Contains(plan["extra"], "temporary") {
			o.t.Errorf("%s: the plan is %v, want the key %s and no sorting\n%s", what, plan, key, query)
		}
	}
	if err := rows.Err(); err != nil {
		o.t.Fatal(err)
	}
}

func TestSupportCancelsAnOrder(t *testing.T) {
	o := newOffice(t, 1)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	unpaid, paid := o.press(s.ID, "ann", 1), o.press(s.ID, "bob", 1)
	o.settle(s.ID)
	if _, err := o.book.Pay(t.Context(), "bob", paid); err != nil {
		t.Fatal(err)
	}
	cancel := func(id string) string { return "/admin/v1/orders/" + id + "/cancel" }
	got := do[wire.Order](o, 200, "POST", cancel(unpaid), "", "Idempotency-Key: c1")
	if got.OrderID != unpaid || got.Status != wire.Cancelled || got.Reason != order.Support {
		t.Errorf("got %+v", got)
	}
	if st := o.state(s.ID); st.Stock != 99 {
		t.Errorf("redis has %+v: the unit is not back on sale", st)
	}
	o.balanced(s.ID)
	for _, key := range []string{"c1", "c2"} {
		if again := do[wire.Order](o, 200, "POST", cancel(unpaid), "", "Idempotency-Key: "+key); again.Status != wire.Cancelled || again.Reason != order.Support {
			t.Errorf("again: got %+v", again)
		}
	}
	if n := o.count(`SELECT COUNT(*) FROM audit_log WHERE action = 'order.cancel' AND target = ?`, "order "+unpaid); n != 1 {
		t.Errorf("%d rows in the audit log", n)
	}
	log := do[struct {
		Entries []adminapi.LogEntry `json:"entries"`
	}](o, 200, "GET", "/admin/v1/audit-log?target=order%20"+unpaid, "")
	if len(log.Entries) != 1 || !strings.Contains(string(log.Entries[0].Before), "pending_payment") || !strings.Contains(string(log.Entries[0].After), order.Support) {
		t.Errorf("the audit log has %+v", log)
	}
	if p := refused(t, send(o.Admin, "POST", cancel(paid), ""), problem.OrderStateConflict, ""); p.OrderID != paid || !strings.Contains(p.Detail, "paid") {
		t.Errorf("got %+v", p)
	}
	again := o.press(s.ID, "ann", 1) // her slot is free
	if p := refused(t, send(o.Admin, "POST", cancel(again), ""), problem.OrderStateConflict, ""); !strings.Contains(p.Detail, "queued") {
		t.Errorf("got %+v", p)
	}
	refused(t, send(o.Admin, "POST", cancel(wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.ID)), ""), problem.OrderNotFound, "")
	refused(t, send(o.Admin, "POST", cancel("x"), ""), problem.OrderNotFound, "")
	refused(t, send(o.Admin, "POST", cancel(unpaid), `{"x":1}`), problem.BadRequest, "x")
	o.settle(s.ID)
	o.balanced(s.ID)
}

func TestExportIsTheWholeSale(t *testing.T) {
	o := newOffice(t, 1)
	s := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``))
	path := fmt.Sprintf("/admin/v1/sales/%d/orders.csv", s.ID)
	read := func() [][]string {
		t.Helper()
		r := send(o.Admin, "GET", path, "")
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/csv; charset=utf-8; header=present" ||
			r.Header.Get("Content-Disposition") != fmt.Sprintf(`attachment; filename="sale-%d-orders.csv"`, s.ID) || r.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("got %d %v, %v", r.StatusCode, r.Header, err)
		}
		if n := strings.Count(string(body), "\n"); n != strings.Count(string(body), "\r\n") {
			t.Errorf("lines end in LF alone")
		}
		rows, err := csv.NewReader(strings.NewReader(string(body))).ReadAll()
		if err != nil || !slices.Equal(rows[0], exportHead) {
			t.Fatalf("got %v, %v", rows, err)
		}
		return rows[1:]
	}
	if rows := read(); len(rows) != 0 {
		t.Errorf("got %v of a sale without orders", rows)
	}
	ids := o.rows(s.ID, 2*exportPage, wire.Paid) // full pages alone
	o.rows(s.ID+1, 10, wire.Paid)
	rows := read()
	if len(rows) != len(ids) {
		t.Fatalf("got %d orders, want %d", len(rows), len(ids))
	}
	ids = append(ids, o.rows(s.ID, 7, wire.Paid)...)
	for i, evil := range []string{`=1+1`, `+1`, `-2`, `@SUM(A1)`, `a,"b"`, "plain"} {
		if _, err := o.DB.Exec(`UPDATE orders SET idem_key = ? WHERE id = ?`, evil, ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.DB.Exec(`UPDATE orders SET uid = '-1', status = 'rejected', reason = 'out_of_stock' WHERE id = ?`, ids[0]); err != nil {
		t.Fatal(err)
	}
	rows = read()
	for i, row := range rows {
		if row[0] != ids[i] {
			t.Fatalf("row %d is of order %s, want %s", i, row[0], ids[i])
		}
		for _, c := range row {
			if c != "" && strings.ContainsAny(c[:1], "=+-@\t\r") {
				t.Errorf("row %d: a spreadsheet would take %q for a formula", i, c)
			}
		}
	}
	for i, want := range []string{`'=1+1`, `'+1`, `'-2`, `'@SUM(A1)`, `a,"b"`, "plain", ""} {
		if rows[i][7] != want {
			t.Errorf("the key of row %d: got %q, want %q", i, rows[i][7], want)
		}
	}
	if r := rows[0]; r[1] != fmt.Sprint(s.ID) || r[2] != "'-1" || r[3] != "1" || r[4] != "100" || r[5] != "rejected" || r[6] != "out_of_stock" || r[10] != "" || !strings.HasSuffix(r[8], "Z") {
		t.Errorf("got %v", r)
	}
	if r := send(o.Admin, "HEAD", path, ""); r.StatusCode != 200 || r.Header.Get("Content-Disposition") == "" {
		t.Errorf("HEAD: got %d %v", r.StatusCode, r.Header)
	}
	refused(t, send(o.Admin, "GET", path+"?uid=x", ""), problem.BadRequest, "uid=x")
	refused(t, send(o.Admin, "GET", "/admin/v1/sales/999/orders.csv", ""), problem.SaleNotFound, "")
	refused(t, send(o.Admin, "GET", path, "", "Authorization: Bearer no"), problem.Unauthenticated, "")
}

// stalled begins an export over a real connection with small buffers, which hold little of it, and reads its head.
func (o *office) stalled(t *testing.T, sale int64) (*http.Response, *bufio.Reader) {
	t.Helper()
	server := httptest.NewUnstartedServer(o.Admin)
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
			t.Error(err)
		}
		return ctx
	}
	server.Start()
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("%s/admin/v1/sales/%d/orders.csv", server.URL, sale), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return c, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	r, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	b := bufio.NewReader(r.Body)
	if line, err := b.ReadString('\n'); err != nil || !strings.HasPrefix(line, "order_id,") {
		t.Fatalf("got %q, %v", line, err)
	}
	return r, b
}

// exports waits until this many exports have ended with this status.
func (o *office) exports(status string, want float64) {
	o.t.Helper()
	ctx, stop := context.WithTimeout(o.t.Context(), time.Minute)
	defer stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for ctx.Err() == nil {
		families, err := o.Gatherer.Gather()
		if err != nil {
			o.t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				labels := map[string]string{}
				for _, l := range m.Label {
					labels[l.GetName()] = l.GetValue()
				}
				if f.GetName() == "backend_admin_requests_total" && labels["status"] == status && strings.HasSuffix(labels["route"], "orders.csv") && m.GetCounter().GetValue() == want {
					return
				}
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
		}
	}
	o.t.Fatalf("no export ended as %s", status)
}

func TestAnExportHoldsNothingForASlowClientAndBreaksOff(t *testing.T) {
	o := newOffice(t, 1)
	sale := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(``)).ID
	o.rows(sale, 8000, wire.Paid) // of about 170 bytes
	// While a client does not read, the one connection of MySQL's is free.
	r, _ := o.stalled(t, sale)
	if got := o.sale(sale); got.ID != sale {
		t.Errorf("got %+v", got)
	}
	// A client that leaves ends it.
	r.Body.Close()
	o.exports("aborted", 1)
	// What fails half way is seen to be no whole file.
	_, body := o.stalled(t, sale)
	if _, err := o.DB.Exec(`RENAME TABLE orders TO orders_away`); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, body)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %d bytes, %v; want a connection that breaks off", n, err)
	}
	o.exports("aborted", 2)
	if _, err := o.DB.Exec(`RENAME TABLE orders_away TO orders`); err != nil {
		t.Fatal(err)
	}
	_, body = o.stalled(t, sale)
	rows, err := csv.NewReader(body).ReadAll()
	if err != nil || len(rows) != 8000 {
		t.Errorf("got %d orders, %v; want 8000", len(rows), err)
	}
	o.exports("200", 1)
}
