package standin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"pgregory.net/rapid"

	"floodgate.internal/backend/store"
)

func openMySQL(t *testing.T, connections int) (*MySQL, *sql.DB) {
	t.Helper()
	m, err := StartMySQL()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	db, err := store.Open(m.DSN(), connections)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if n, err := store.Migrate(t.Context(), db); n < 1 || err != nil {
		t.Fatalf("migrate: got %d steps, %v; want at least 1", n, err)
	}
	return m, db
}

func exec(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) int64 {
	t.Helper()
	r, err := db.ExecContext(t.Context(), query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	n, _ := r.RowsAffected()
	return n
}

func count(t *testing.T, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func addStock(t *testing.T, db *sql.DB, id int64, units int) {
	t.Helper()
	exec(t, db, "INSERT INTO sale_stock (sale_id, total, available, epoch) VALUES (?, ?, ?, 1)", id, units, units)
}

const (
	insertOrder = "INSERT INTO orders (id, sale_id, uid, quantity, amount, status, idem_key, created_at, decided_at) VALUES (?, ?, ?, 1, 100, 'pending_payment', ?, ?, ?)"
	insertSlot  = "INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES (?, ?, ?, ?)"
	takeUnit    = "UPDATE sale_stock SET available=available-?, locked=locked+? WHERE sale_id=? AND epoch=? AND available>=?"
)

func addOrder(ctx context.Context, tx *sql.Tx, id, uid string, key any) error {
	now := time.Now().UTC()
	_, err := tx.ExecContext(ctx, insertOrder, id, 1, uid, key, now, now)
	return err
}

func TestMigrationsApplyOnce(t *testing.T) {
	_, db := openMySQL(t, 1)
	if n, err := store.Migrate(t.Context(), db); n != 0 || err != nil {
		t.Errorf("the second time: got %d steps, %v; want 0", n, err)
	}
	for _, table := range []string{"skus", "sales", "tranches", "sale_stock", "orders", "order_slots", "ledger", "intents", "audit_log", "admin_requests"} {
		if n := count(t, db, "SELECT COUNT(*) FROM "+table); n != 0 {
			t.Errorf("%s: got %d rows, want 0", table, n)
		}
	}
}

func TestRollbackRollsBack(t *testing.T) {
	_, db := openMySQL(t, 1)
	addStock(t, db, 1, 5)
	fail := errors.New("no")
	err := store.InTx(t.Context(), db, func(tx *sql.Tx) error {
		if err := addOrder(t.Context(), tx, "o1", "a", nil); err != nil {
			return err
		}
		if n := exec(t, tx, takeUnit, 1, 1, 1, 1, 1); n != 1 {
			t.Errorf("got %d rows, want 1", n)
		}
		return fail
	})
	if !errors.Is(err, fail) {
		t.Fatalf("got %v, want %v", err, fail)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM orders"); n != 0 {
		t.Errorf("got %d orders, want 0", n)
	}
	if n := count(t, db, "SELECT available FROM sale_stock WHERE sale_id=1"); n != 5 {
		t.Errorf("got %d available, want 5", n)
	}
}

// A failed statement undoes itself, all of it, and the transaction goes on: as in MySQL.
func TestFailedStatementIsAtomic(t *testing.T) {
	_, db := openMySQL(t, 1)
	err := store.InTx(t.Context(), db, func(tx *sql.Tx) error {
		exec(t, tx, insertSlot, 1, "a", 1, "o1")
		_, err := tx.ExecContext(t.Context(), "INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES (1,'b',1,'o2'), (1,'a',1,'o3'), (1,'c',1,'o4')")
		if !store.Duplicate(err) {
			t.Errorf("got %v, want a duplicate key", err)
		}
		exec(t, tx, insertSlot, 1, "d", 1, "o5")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM order_slots WHERE uid IN ('a','d')"); n != 2 {
		t.Errorf("got %d of the good rows, want 2", n)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM order_slots WHERE uid IN ('b','c')"); n != 0 {
		t.Errorf("got %d rows of the failed statement, want 0", n)
	}
}

func TestOversellFails(t *testing.T) {
	_, db := openMySQL(t, 1)
	addStock(t, db, 1, 1)
	for i, want := range []int64{1, 0, 0} {
		if n := exec(t, db, takeUnit, 1, 1, 1, 1, 1); n != want {
			t.Errorf("taking unit %d of 1: got %d rows, want %d", i+1, n, want)
		}
	}
	if n := exec(t, db, takeUnit, 1, 1, 1, 2, 1); n != 0 {
		t.Errorf("under another epoch: got %d rows, want 0", n)
	}
	for name, query := range map[string]string{
		"more than there is":      "UPDATE sale_stock SET available=available-1, locked=locked+1 WHERE sale_id=1",
		"a unit that comes along": "UPDATE sale_stock SET locked=locked+1 WHERE sale_id=1",
		"less than none":          "UPDATE sale_stock SET locked=locked-2, available=available+2 WHERE sale_id=1",
		"stock that adds up not":  "INSERT INTO sale_stock (sale_id, total, available) VALUES (2, 5, 6)",
	} {
		_, err := db.ExecContext(t.Context(), query)
		var e *mysql.MySQLError
		if !errors.As(err, &e) || e.Number != 3819 || !store.CheckViolated(err) {
			t.Errorf("%s: got %v, want a violated CHECK", name, err)
		}
	}
	if n := count(t, db, "SELECT locked FROM sale_stock WHERE sale_id=1"); n != 1 {
		t.Errorf("got %d locked, want 1", n)
	}
}

func TestDuplicates(t *testing.T) {
	_, db := openMySQL(t, 1)
	in := func(f func(tx *sql.Tx) error) error { return store.InTx(t.Context(), db, f) }
	order := func(id, uid string, key any) error {
		return in(func(tx *sql.Tx) error { return addOrder(t.Context(), tx, id, uid, key) })
	}
	for _, c := range []struct {
		name string
		err  error
		dup  bool
	}{
		{"first", order("o1", "a", "k"), false},
		{"the same id", order("o1", "b", nil), true},
		{"the same key of the same buyer", order("o2", "a", "k"), true},
		{"a key in another case", order("o3", "a", "K"), false},
		{"the key of another buyer", order("o4", "A", "k"), false},
		{"no key", order("o5", "a", nil), false},
		{"no key again", order("o6", "a", nil), false},
		{"an id in another case", order("O1", "c", nil), false},
	} {
		if store.Duplicate(c.err) != c.dup || store.Refused(c.err) != c.dup || (c.err != nil) != c.dup {
			t.Errorf("%s: got %v; want a duplicate: %v", c.name, c.err, c.dup)
		}
	}
	for uid, want := range map[string]int{"a": 4, "A": 1, "c": 1, "C": 0} {
		if n := count(t, db, "SELECT COUNT(*) FROM orders WHERE uid=?", uid); n != want {
			t.Errorf("orders of %s: got %d, want %d", uid, n, want)
		}
	}
	exec(t, db, insertSlot, 1, "a", 1, "o1")
	if _, err := db.ExecContext(t.Context(), insertSlot, 1, "a", 1, "o2"); !store.Duplicate(err) {
		t.Errorf("the same slot: got %v, want a duplicate", err)
	}
	exec(t, db, insertSlot, 1, "A", 1, "o4")
	exec(t, db, "DELETE FROM order_slots WHERE order_id=?", "o1")
	exec(t, db, insertSlot, 1, "a", 1, "o5")
}

func TestTypes(t *testing.T) {
	_, db := openMySQL(t, 1)
	at := time.Date(2026, 7, 1, 10, 0, 0, 123e6, time.UTC)
	r, err := db.ExecContext(t.Context(), `INSERT INTO sales (sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, created_at)
		VALUES (?,?,?,?,?,?,?,?,?,?)`, 1, "goods", "Ünïcode 🎉 'quoted\\' \"title\"", int64(1)<<62, "EUR", at, at.Add(time.Hour), 1, 600, at)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := r.LastInsertId(); id != 1 || err != nil {
		t.Errorf("got id %d, %v; want 1", id, err)
	}
	var title, currency string
	var price int64
	var starts time.Time
	var closed sql.NullTime
	var paused bool
	err = db.QueryRowContext(t.Context(), "SELECT title, price, currency, starts_at, closed_at, paused FROM sales WHERE id=? FOR UPDATE", 1).
		Scan(&title, &price, &currency, &starts, &closed, &paused)
	if err != nil || title != "Ünïcode 🎉 'quoted\\' \"title\"" || price != 1<<62 || currency != "EUR" || !starts.Equal(at) || closed.Valid || paused {
		t.Errorf("got %q, %d, %s, %v, %v, %v, %v", title, price, currency, starts, closed, paused, err)
	}
	if n := exec(t, db, "UPDATE sales SET paused=FALSE WHERE id=1"); n != 0 {
		t.Errorf("an update that changes nothing: got %d rows, want 0", n)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM sales WHERE starts_at<? AND id IN (1,2,3)", at.Add(time.Millisecond)); n != 1 {
		t.Errorf("got %d, want 1", n)
	}
}

// Several connections are exact here too, since one transaction runs at a time.
func TestConnectionsTakeTurns(t *testing.T) {
	const stock, workers, each = 40, 8, 10
	_, db := openMySQL(t, workers)
	addStock(t, db, 1, stock)
	var sold atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("o-%d-%d", w, i)
				err := store.InTx(t.Context(), db, func(tx *sql.Tx) error {
					if err := addOrder(t.Context(), tx, id, id, nil); err != nil {
						return err
					}
					var left int
					if err := tx.QueryRowContext(t.Context(), "SELECT available FROM sale_stock WHERE sale_id=1 FOR UPDATE").Scan(&left); err != nil {
						return err
					}
					if left == 0 {
						return errSoldOut
					}
					if n := exec(t, tx, "UPDATE sale_stock SET available=?, locked=? WHERE sale_id=1", left-1, stock-left+1); n != 1 {
						return fmt.Errorf("got %d rows", n)
					}
					return nil
				})
				if err == nil {
					sold.Add(1)
				} else if !errors.Is(err, errSoldOut) {
					t.Error(err)
				}
				if _, err := db.ExecContext(t.Context(), "SELECT COUNT(*) FROM orders"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if rows := count(t, db, "SELECT COUNT(*) FROM orders"); sold.Load() != stock || rows != stock {
		t.Errorf("got %d sold and %d rows, want %d of each", sold.Load(), rows, stock)
	}
}

var errSoldOut = errors.New("sold out")

func TestTurnOfALostConnection(t *testing.T) {
	m, db := openMySQL(t, 2)
	addStock(t, db, 1, 3)
	other, err := store.Open(m.DSN(), 1)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := other.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, takeUnit, 1, 1, 1, 1, 1)
	m.listener.cut()
	if err := tx.Commit(); err == nil {
		t.Error("commit on a lost connection: got no error")
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, "SELECT locked FROM sale_stock WHERE sale_id=1"); n != 0 {
		t.Errorf("got %d locked, want 0", n)
	}
}

func TestWaitForTheTurnIsBounded(t *testing.T) {
	m, db := openMySQL(t, 1)
	m.turns.timeout = 50 * time.Millisecond
	addStock(t, db, 1, 3)
	other, err := store.Open(m.DSN(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, takeUnit, 1, 1, 1, 1, 1)
	_, err = other.ExecContext(t.Context(), takeUnit, 1, 1, 1, 1, 1)
	var e *mysql.MySQLError
	if !errors.As(err, &e) || e.Number != 1205 || !strings.Contains(e.Message, "Lock wait timeout") || !store.Retryable(err) {
		t.Errorf("got %v, want a lock wait time-out", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := exec(t, other, takeUnit, 1, 1, 1, 1, 1); n != 1 {
		t.Errorf("afterwards: got %d rows, want 1", n)
	}
}

// What a rolled-back transaction and a failed statement changed is as it was, whatever way it is looked for, and however
// often that happens.
func TestUndoneChangesAreUndoneEverywhere(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m, err := StartMySQL()
		if err != nil {
			r.Fatal(err)
		}
		defer m.Close()
		db, err := store.Open(m.DSN(), 1)
		if err != nil {
			r.Fatal(err)
		}
		defer db.Close()
		run := func(q interface {
			ExecContext(context.Context, string, ...any) (sql.Result, error)
		}, query string, args ...any) error {
			_, err := q.ExecContext(t.Context(), query, args...)
			return err
		}
		if err := run(db, "CREATE TABLE x (id VARCHAR(8) PRIMARY KEY, a INT NOT NULL, b INT NOT NULL, KEY x_a (a, b), UNIQUE KEY x_b (b))"); err != nil {
			r.Fatal(err)
		}
		undo := errors.New("undo")
		type pair struct{ a, b int }
		want := map[string]pair{} // id -> values
		free := func(m map[string]pair, id string, b int) bool {
			for other, v := range m {
				if v.b == b && other != id {
					return false
				}
			}
			return true
		}
		for range rapid.IntRange(1, 6).Draw(r, "transactions") {
			next := maps.Clone(want)
			commit := rapid.Bool().Draw(r, "commit")
			err := store.InTx(t.Context(), db, func(tx *sql.Tx) error {
				for range rapid.IntRange(1, 4).Draw(r, "statements") {
					id := fmt.Sprint(rapid.IntRange(1, 6).Draw(r, "id"))
					a, b := rapid.IntRange(1, 3).Draw(r, "a"), rapid.IntRange(1, 6).Draw(r, "b")
					_, there := next[id]
					switch rapid.IntRange(0, 2).Draw(r, "what") {
					case 0:
						err := run(tx, "INSERT INTO x (id, a, b) VALUES (?, ?, ?)", id, a, b)
						if ok := !there && free(next, id, b); ok != (err == nil) || err != nil && !store.Duplicate(err) {
							r.Fatalf("insert %s: got %v; want it to go in: %v", id, err, ok)
						} else if ok {
							next[id] = pair{a, b}
						}
					case 1:
						err := run(tx, "UPDATE x SET a = ?, b = ? WHERE id = ?", a, b, id)
						if ok := !there || free(next, id, b); ok != (err == nil) || err != nil && !store.Duplicate(err) {
							r.Fatalf("update %s: got %v; want it to succeed: %v", id, err, ok)
						} else if ok && there {
							next[id] = pair{a, b}
						}
					case 2:
						if err := run(tx, "DELETE FROM x WHERE a = ?", a); err != nil {
							r.Fatal(err)
						}
						maps.DeleteFunc(next, func(_ string, v pair) bool { return v.a == a })
					}
				}
				if commit {
					return nil
				}
				return undo
			})
			if commit && err != nil || !commit && !errors.Is(err, undo) {
				r.Fatal(err)
			}
			if commit {
				want = next
			}
			for n := range 7 {
				id := fmt.Sprint(n)
				var got pair
				err := db.QueryRowContext(t.Context(), "SELECT a, b FROM x WHERE id = ?", id).Scan(&got.a, &got.b)
				if v, ok := want[id]; ok != (err == nil) || got != v {
					r.Fatalf("id %s: got %v, %v; want %v", id, got, err, v)
				}
				for column, of := range map[string]func(pair) int{"a": func(p pair) int { return p.a }, "b": func(p pair) int { return p.b }} {
					wanted := 0
					for _, v := range want {
						if of(v) == n {
							wanted++
						}
					}
					var rows int
					if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM x WHERE "+column+" = ?", n).Scan(&rows); err != nil || rows != wanted {
						r.Fatalf("%s = %d: got %d rows, %v; want %d", column, n, rows, err, wanted)
					}
				}
			}
		}
	})
}
