//go:build servers

package cart

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// Requests of carts that have no order are forgotten after a day, by the index, a bounded number at a time. Before that a repeat gets the
// first answer; after that it is decided anew. What has an order is never forgotten.
func TestRequestsWithoutAnOrderAreForgotten(t *testing.T) {
	dsn := backendtest.MySQLDSN(t)
	s := shopOn(t, backendtest.OpenMySQL(t, dsn, 4), backendtest.Redis(t), config())
	if _, err := store.Migrate(t.Context(), s.db); err != nil {
		t.Fatal(err)
	}
	sku := s.sku(5)
	bought := s.place("ann", "bought", lines(sku, 1))
	if refused := s.place("ann", "refused", lines(sku, 9)); bought.OrderID == nil || refused.OrderID != nil {
		t.Fatalf("got %+v and %+v, want an order and none", bought, refused)
	}
	write := func(n int, key string, answered any, refused bool) {
		t.Helper()
		for i := 0; i < n; i += 500 {
			var rows []string
			var args []any
			for j := range min(500, n-i) {
				rows = append(rows, `(?, ?, '', ?, '2020-01-01', ?, ?, ?)`)
				answer := any("{}")
				if answered == nil {
					answer = nil
				}
				args = append(args, fmt.Sprint("u", i+j), key, fmt.Sprint(key, i+j), answer, answered, refused)
			}
			s.exec(`INSERT INTO cart_requests (uid, idem_key, request, order_id, created_at, answer, answered_at, refused) VALUES `+strings.Join(rows, ", "), args...)
		}
	}
	old := s.now().Add(-Kept - time.Second)
	write(1200, "old", old, true)
	write(700, "undecided", nil, false)
	write(2500, "ordered", old, false)
	write(1500, "new", s.now(), true)
	session := backendtest.OpenMySQL(t, dsn, 1)
	one := shopOn(t, session, s.redis, config())
	for _, want := range []int{1000, 200, 700, 0} {
		reads, changes := backendtest.Rows(t, session, func() {
			if n, err := one.Prune(t.Context()); n != want || err != nil {
				t.Errorf("got %d, %v; want %d", n, err, want)
			}
		})
		if reads > int64(2*want+30) || changes > int64(want) {
			t.Errorf("forgetting %d requests read %d rows and changed %d", want, reads, changes)
		}
	}
	for key, want := range map[string]int64{"old": 0, "undecided": 0, "ordered": 2500, "new": 1500, "bought": 1, "refused": 1} {
		if n := s.count(`SELECT COUNT(*) FROM cart_requests WHERE idem_key = ?`, key); n != want {
			t.Errorf("%d requests %s are left, want %d", n, key, want)
		}
	}
	repeats := func(key string, quantity int64, want bool) wire.CartAnswer {
		t.Helper()
		body, repeated, err := s.Place(t.Context(), "ann", key, lines(sku, quantity))
		if err != nil || repeated != want {
			t.Fatalf("%s: got repeated %v, %v; want %v", key, repeated, err, want)
		}
		return read(t, body)
	}
	repeats("refused", 9, true)
	s.exec(`UPDATE cart_requests SET created_at = created_at - INTERVAL 25 HOUR, answered_at = answered_at - INTERVAL 25 HOUR WHERE uid = 'ann'`)
	if n, err := one.Prune(t.Context()); n != 1 || err != nil {
		t.Errorf("got %d, %v; want one", n, err)
	}
	repeats("refused", 9, false)
	if again := repeats("bought", 1, true); *again.OrderID != *bought.OrderID {
		t.Errorf("a repeat got order %s, want %s", *again.OrderID, *bought.OrderID)
	}
}
