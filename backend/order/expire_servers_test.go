//go:build servers

package order

import (
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/wire"
)

// pendingOrders is how many orders wait for their payment in TestExpireTouchesOnlyWhatIsDue: 100,000, or what
// FLOODGATE_PENDING says.
func pendingOrders(t *testing.T) int {
	v := os.Getenv("FLOODGATE_PENDING")
	if v == "" {
		return 100_000
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 50_000 || n%1000 != 0 {
		t.Fatalf("FLOODGATE_PENDING: %q must be a multiple of 1000, and at least 50000", v)
	}
	return n
}

// pend writes a sale with n orders (a multiple of 1000) that wait for their payment, the first few of them overdue.
func (s *shop) pend(n, due int) (sale int64) {
	s.t.Helper()
	sale = s.sale(backendtest.SaleOptions{Stock: int64(n)})
	const digit = `(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
		UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`
	id := fmt.Sprintf(`CONCAT('0190163d-8694-739b-aea5-', LPAD(LOWER(HEX(n)), 12, '0'), '-%d')`, sale)
	for from := 0; from < n; from += 1000 { // in statements that no time-out interrupts
		thousand := fmt.Sprintf(`(SELECT %d + a.d + 10 * b.d + 100 * c.d AS n FROM %[2]s AS a CROSS JOIN %[2]s AS b CROSS JOIN %[2]s AS c) AS numbers`, from, digit)
		s.exec(fmt.Sprintf(`INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at, pay_before)
			SELECT %s, %d, CONCAT('u', n), 1, 100, 'pending_payment', '2020-01-01', '2020-01-01',
				DATE_ADD(CASE WHEN n < %d THEN '2020-01-01' ELSE '2100-01-01' END, INTERVAL n SECOND) FROM %s`, id, sale, due, thousand))
		s.exec(fmt.Sprintf(`INSERT INTO order_slots (sale_id, uid, slot, order_id) SELECT %d, CONCAT('u', n), 1, %s FROM %s`, sale, id, thousand))
	}
	s.exec(`UPDATE sale_stock SET available = 0, locked = total WHERE sale_id = ?`, sale)
	s.exec(`INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
		VALUES (?, 'order', 'all at once', ?, ?, 0, 0, ?, ?, '2020-01-01')`, sale, n, -n, n, n)
	s.exec(`ANALYZE TABLE orders, order_slots`)
	return sale
}

// A pass reads what it ends, whatever else waits for its payment: it is MySQL that counts.
func TestExpireTouchesOnlyWhatIsDue(t *testing.T) {
	n := pendingOrders(t)
	due := n / 100
	s := newShop(t)
	began := time.Now()
	sale := s.pend(n, due)
	t.Logf("%d orders written in %v", n, time.Since(began).Round(time.Millisecond))

	// By a time in milliseconds, as the column has it: by a finer one MariaDB searches the index for the status alone.
	now := s.orders.now()
	var id, kind, table, access, keys, key, length, ref, rows, extra any
	if err := s.db.QueryRowContext(t.Context(), `EXPLAIN `+overdue+oldestFirst+` FOR UPDATE SKIP LOCKED`, "pending_payment", now, now).
		Scan(&id, &kind, &table, &access, &keys, &key, &length, &ref, &rows, &extra); err != nil {
		t.Fatal(err)
	}
	t.Logf("EXPLAIN: type %s, key %s, key_len %s, rows %s, %s", access, key, length, rows, extra)
	const both = "26" // bytes of the key's two columns: a shorter key_len reads every order that waits for its payment
	if fmt.Sprintf("%s", key) != "orders_due" || fmt.Sprintf("%s", access) != "range" || fmt.Sprintf("%s", length) != both || strings.Contains(fmt.Sprintf("%s", extra), "filesort") {
		t.Errorf("the due orders are found by %s on %s, %s bytes (%s), want a range of orders_due, %s bytes, without a sort", access, key, length, extra, both)
	}

	session := backendtest.OpenMySQL(t, s.dsn, 1)
	orders := newBook(session, s.redis, s.clk, backendtest.Log(t))
	count := func(what string, do func()) (reads, changes int64) {
		t.Helper()
		reads, changes = backendtest.Rows(t, session, do)
		t.Logf("%s: %d rows read, %d changed", what, reads, changes)
		return reads, changes
	}
	pass := func() int {
		t.Helper()
		got, err := orders.Expire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	// Each order that ends is read and changed a fixed number of times: the order, its slot, its ledger row, its intent.
	const readsEach, changesEach = 16, 8
	reads, changes := count("one full pass", func() {
		if got := pass(); got != expireOnce {
			t.Errorf("the pass ended %d orders, want %d", got, expireOnce)
		}
	})
	if reads > readsEach*expireOnce || changes > changesEach*expireOnce {
		t.Errorf("one pass over %d orders read %d rows and changed %d, want at most %d and %d for each", expireOnce, reads, changes, readsEach, changesEach)
	}
	began = time.Now()
	reads, changes = count("all other passes", func() {
		for left := due - expireOnce; left > 0; {
			got := pass()
			if got == 0 {
				t.Fatalf("%d are left, and a pass found none", left)
			}
			left -= got
		}
	})
	t.Logf("%d orders ended in %v", due-expireOnce, time.Since(began).Round(time.Millisecond))
	if most := int64(due - expireOnce); reads > readsEach*most || changes > changesEach*most {
		t.Errorf("%d orders cost %d rows read and %d changed, want at most %d and %d for each", most, reads, changes, readsEach, changesEach)
	}
	if reads, changes := count("a pass with nothing to do", func() {
		if got := pass(); got != 0 {
			t.Errorf("it ended %d orders", got)
		}
	}); reads > 10 || changes > 0 {
		t.Errorf("a pass with nothing to do read %d rows and changed %d", reads, changes)
	}
	if ended, left := s.count(sale, wire.Expired), s.count(sale, wire.PendingPayment); ended != int64(due) || left != int64(n-due) {
		t.Errorf("%d orders are expired and %d left, want %d and %d", ended, left, due, n-due)
	}
}

// What another timer is at is passed over, not waited for.
func TestTimersShareTheWork(t *testing.T) {
	s := newShop(t)
	sale := s.pend(1000, 500)
	tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	busy, err := read(t.Context(), tx, overdue+` ORDER BY pay_before LIMIT 300 FOR UPDATE`, "pending_payment", time.Now().UTC(), time.Now().UTC())
	if err != nil || len(busy) != 300 {
		t.Fatalf("got %d, %v", len(busy), err)
	}
	for _, want := range []int{200, 0} { // 500 are due
		if n, err := s.orders.Expire(t.Context()); n != want || err != nil {
			t.Errorf("beside another timer: got %d, %v; want %d", n, err, want)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{200, 100, 0} {
		if n, err := s.orders.Expire(t.Context()); n != want || err != nil {
			t.Errorf("after it had left: got %d, %v; want %d", n, err, want)
		}
	}
	if ended := s.count(sale, wire.Expired); ended != 500 {
		t.Errorf("%d orders are expired, want 500", ended)
	}
}
