//go:build servers

package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/netfault"
)

func TestMigrateOnceForAnyNumberAtOnceEachWithOneConnection(t *testing.T) {
	dsn := backendtest.MySQLDSN(t)
	var steps atomic.Int64
	var g errgroup.Group
	for range 8 {
		db := backendtest.OpenMySQL(t, dsn, 1)
		g.Go(func() error {
			n, err := store.Migrate(t.Context(), db)
			steps.Add(int64(n))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	db := backendtest.OpenMySQL(t, dsn, 1)
	var applied int64
	if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM goose_db_version WHERE version_id > 0`).Scan(&applied); err != nil {
		t.Fatal(err)
	}
	if applied == 0 || steps.Load() != applied {
		t.Errorf("eight at once took %d steps, %d are recorded; want as many, and some", steps.Load(), applied)
	}
	if n, err := store.Migrate(t.Context(), db); n != 0 || err != nil {
		t.Errorf("migrate again: got %d, %v; want nothing to do", n, err)
	}
}

func TestMigrateWaitsForTheLockAndGivesUpWithItsContext(t *testing.T) {
	dsn := backendtest.MySQLDSN(t)
	holder, err := backendtest.OpenMySQL(t, dsn, 1).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := holder.ExecContext(t.Context(), `SELECT GET_LOCK(CONCAT('floodgate:', SHA1(DATABASE())), 0)`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if n, err := store.Migrate(ctx, backendtest.OpenMySQL(t, dsn, 1)); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another migrates: got %d, %v; want the deadline", n, err)
	}
	if _, err := holder.ExecContext(t.Context(), `SELECT RELEASE_LOCK(CONCAT('floodgate:', SHA1(DATABASE())))`); err != nil {
		t.Fatal(err)
	}
	if n, err := store.Migrate(t.Context(), backendtest.OpenMySQL(t, dsn, 1)); n == 0 || err != nil {
		t.Errorf("after it: got %d, %v; want steps", n, err)
	}
}

// two makes a table of two rows and returns the connections to it.
func two(t *testing.T) (db *sql.DB, dsn string) {
	dsn = backendtest.MySQLDSN(t)
	db = backendtest.OpenMySQL(t, dsn, 8)
	for _, s := range []string{`CREATE TABLE two (id INT PRIMARY KEY, n INT NOT NULL, CONSTRAINT few CHECK (n < 1000))`, `INSERT INTO two VALUES (1, 0), (2, 0)`} {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	return db, dsn
}

func sum(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT SUM(n) FROM two`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestInTxBeginsAnewAfterADeadlock(t *testing.T) {
	db, _ := two(t)
	var both sync.WaitGroup // each has its first row before either asks for the other's
	both.Add(2)
	var runs atomic.Int64
	var g errgroup.Group
	for first := 1; first <= 2; first++ {
		var once sync.Once
		g.Go(func() error {
			return store.InTx(t.Context(), db, func(tx *sql.Tx) error {
				runs.Add(1)
				if _, err := tx.ExecContext(t.Context(), `UPDATE two SET n = n + 1 WHERE id = ?`, first); err != nil {
					return err
				}
				once.Do(func() { both.Done(); both.Wait() })
				_, err := tx.ExecContext(t.Context(), `UPDATE two SET n = n + 1 WHERE id = ?`, 3-first)
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := sum(t, db); got != 4 || runs.Load() < 3 {
		t.Errorf("got sum %d after %d runs; want 4 after at least 3: one was the deadlock's victim", got, runs.Load())
	}
}

func TestInTxRollsBackAfterALockWait(t *testing.T) {
	db, _ := two(t)
	holder, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.ExecContext(t.Context(), `UPDATE two SET n = n + 10 WHERE id = 2`); err != nil {
		t.Fatal(err)
	}
	runs := 0
	err = store.InTx(t.Context(), db, func(tx *sql.Tx) error {
		runs++
		if runs == 2 { // the first one's change of row 1 must be gone
			if err := holder.Commit(); err != nil {
				return err
			}
		}
		for _, s := range []string{`SET SESSION innodb_lock_wait_timeout = 1`, `UPDATE two SET n = n + 1 WHERE id = 1`, `UPDATE two SET n = n + 1 WHERE id = 2`} {
			if _, err := tx.ExecContext(t.Context(), s); err != nil {
				return err
			}
		}
		return nil
	})
	if got := sum(t, db); err != nil || runs != 2 || got != 12 {
		t.Errorf("got %v, %d runs, sum %d; want nil, 2, 12", err, runs, got)
	}
}

// TestAClientThatIsGoneLeavesNoLocks: the server ends a transaction whose client has gone without a word.
func TestAClientThatIsGoneLeavesNoLocks(t *testing.T) {
	db, dsn := two(t)
	var session, lock int
	if err := db.QueryRowContext(t.Context(), `SELECT @@wait_timeout, @@innodb_lock_wait_timeout`).Scan(&session, &lock); err != nil || session != 20 || lock != 5 {
		t.Errorf("sessions begin with a wait_timeout of %d s, an innodb_lock_wait_timeout of %d s, %v; want 20 and 5", session, lock, err)
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	way := netfault.New(t, c.Addr)
	c.Addr, c.Params = way.Addr(), map[string]string{"wait_timeout": "1"}
	gone := backendtest.OpenMySQL(t, c.FormatDSN(), 1)
	ctx, leave := context.WithCancel(t.Context())
	tx, err := gone.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	stranded := way.StrandAfter("UPDATE two")
	go tx.ExecContext(ctx, `UPDATE two SET n = 100 WHERE id = 1`) // is never answered
	<-stranded
	leave()
	err = store.InTx(t.Context(), db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE two SET n = n + 1 WHERE id = 1`)
		return err
	})
	if got := sum(t, db); err != nil || got != 1 {
		t.Errorf("got %v, sum %d; want nil, 1", err, got)
	}
}

func TestInTxLeavesNothingBehindAnErrorOrAPanic(t *testing.T) {
	db, _ := two(t)
	db.SetMaxOpenConns(1)
	broke := errors.New("broke")
	change := func(tx *sql.Tx) {
		if _, err := tx.ExecContext(t.Context(), `UPDATE two SET n = n + 1`); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.InTx(t.Context(), db, func(tx *sql.Tx) error { change(tx); return broke }); !errors.Is(err, broke) {
		t.Errorf("got %v, want %v", err, broke)
	}
	func() {
		defer func() {
			if got := recover(); got != broke {
				t.Errorf("recovered %v, want %v", got, broke)
			}
		}()
		_ = store.InTx(t.Context(), db, func(tx *sql.Tx) error { change(tx); panic(broke) })
	}()
	if got := sum(t, db); got != 0 { // it would wait for ever for the only connection, had either kept it
		t.Errorf("got sum %d, want 0", got)
	}
}

func TestInTxSaysWhatTheChecksRefuse(t *testing.T) {
	db, _ := two(t)
	run := func(statement string) error {
		return store.InTx(t.Context(), db, func(tx *sql.Tx) error { _, err := tx.ExecContext(t.Context(), statement); return err })
	}
	if err := run(`UPDATE two SET n = 1000`); !store.CheckViolated(err) || !store.Refused(err) {
		t.Errorf("a violated CHECK: got %v", err)
	}
	if err := run(`INSERT INTO two VALUES (1, 1)`); !store.Duplicate(err) {
		t.Errorf("a duplicate: got %v", err)
	}
	if err := run(`INSERT INTO two VALUES (3, 99999999999)`); !store.Refused(err) || store.Duplicate(err) {
		t.Errorf("out of range: got %v", err)
	}
	if err := run(`SELECT * FROM nowhere`); err == nil || store.Refused(err) {
		t.Errorf("no such table: got %v; it is no judgement of values", err)
	}
}

// What the schema itself refuses, whatever the code, or somebody by hand, asks for.
func TestTheSchemaIsTheJudge(t *testing.T) {
	db := backendtest.MySQL(t)
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{Stock: 10})
	if _, err := db.ExecContext(t.Context(), `UPDATE sale_stock SET available = 7, locked = 2, sold = 1 WHERE sale_id = ?`, sale); err != nil {
		t.Fatal(err)
	}
	order := func(id, key string) string {
		return fmt.Sprintf(`INSERT INTO orders (id, sale_id, uid, quantity, amount, status, idem_key, created_at, decided_at)
			VALUES ('%s', %d, 'ann', 1, 100, 'paid', %s, NOW(3), NOW(3))`, id, sale, key)
	}
	slot := func(n int, id string) string {
		return fmt.Sprintf(`INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES (%d, 'ann', %d, '%s')`, sale, n, id)
	}
	row := func(kind, ref string) string {
		return fmt.Sprintf(`INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
			VALUES (%d, '%s', '%s', 0, 0, 0, 0, 0, 0, NOW(3))`, sale, kind, ref)
	}
	for _, statement := range []string{order("o1", "'k'"), slot(1, "o1"), row("order", "o1")} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		statement string
		by        func(error) bool // nil: it is taken
	}{
		"more than there is":       {`UPDATE sale_stock SET available = available - 8, locked = locked + 8`, store.CheckViolated},
		"fewer locked than none":   {`UPDATE sale_stock SET locked = locked - 3, available = available + 3`, store.CheckViolated},
		"fewer sold than none":     {`UPDATE sale_stock SET sold = sold - 2, available = available + 2`, store.CheckViolated},
		"a unit out of nothing":    {`UPDATE sale_stock SET available = available + 1`, store.CheckViolated},
		"a unit into nothing":      {`UPDATE sale_stock SET total = total + 1`, store.CheckViolated},
		"more allotted than a SKU": {`UPDATE skus SET allotted = allotted + 1, available = available - 1`, store.CheckViolated},
		"the same order":           {order("o1", "NULL"), store.Duplicate},
		"the same key":             {order("o2", "'k'"), store.Duplicate},
		"no key":                   {order("o3", "NULL"), nil},
		"no key again":             {order("o4", "NULL"), nil},
		"the same slot":            {slot(1, "o3"), store.Duplicate},
		"another slot":             {slot(2, "o3"), nil},
		"ended twice":              {row("order", "o1"), store.Duplicate},
		"paid after it was made":   {row("pay", "o1"), nil},
	} {
		_, err := db.ExecContext(t.Context(), c.statement)
		switch {
		case c.by == nil && err != nil:
			t.Errorf("%s: got %v, want it taken", name, err)
		case c.by != nil && (err == nil || !c.by(err)):
			t.Errorf("%s: got %v, want it refused by a CHECK or a unique key", name, err)
		}
	}
}

func TestALostCommitIsUnknown(t *testing.T) {
	db, dsn := two(t)
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy := netfault.New(t, c.Addr)
	c.Addr = proxy.Addr()
	through := backendtest.OpenMySQL(t, c.FormatDSN(), 1)
	err = store.InTx(t.Context(), through, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE two SET n = 7 WHERE id = 1`)
		proxy.LoseAnswerTo("\x03COMMIT")
		return err
	})
	if !errors.Is(err, store.ErrUnknown) {
		t.Fatalf("got %v, want ErrUnknown", err)
	}
	// The request went through, so the server committed; the caller must find that out by reading.
	deadline := time.Now().Add(2 * time.Minute)
	for sum(t, db) != 7 {
		if time.Now().After(deadline) {
			t.Fatal("the COMMIT that was sent did not happen")
		}
	}
}

// What a session reads may be the work of a COMMIT that is not on the server's disk yet.
func TestDurableSyncsWhatWasRead(t *testing.T) {
	db := backendtest.MySQL(t)
	synced := backendtest.Unsynced(t, db, func() {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO redis_life (only_row, name) VALUES (1, 'a')`); err != nil {
			t.Fatal(err)
		}
	})
	if err := store.Durable(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if !synced() {
		t.Error("what was committed before is not synced")
	}
	if _, err := db.ExecContext(t.Context(), `DELETE FROM durable`); err != nil {
		t.Fatal(err)
	}
	if err := store.Durable(t.Context(), db); err == nil {
		t.Error("a change of nothing syncs nothing: got no error")
	}
}

// A connection whose transaction did not end must not come out of the pool again: nothing could be begun on it, for as long as it lives.
func TestATransactionThatDidNotEndLeavesThePool(t *testing.T) {
	db := backendtest.OpenMySQL(t, backendtest.MySQLDSN(t), 1)
	if _, err := db.ExecContext(t.Context(), `START TRANSACTION`); err != nil { // as after a ROLLBACK that the server refused
		t.Fatal(err)
	}
	for range 2 {
		if err := store.InTx(t.Context(), db, func(tx *sql.Tx) error { return tx.QueryRowContext(t.Context(), `SELECT 1`).Scan(new(int)) }); err != nil {
			t.Error(err)
		}
	}
}

// Row C1: coupons that were issued before there were claims get them, once, one for each unit.
func TestWhatWasIssuedBeforeGetsItsClaims(t *testing.T) {
	t.Attr("row", "C1")
	db := backendtest.MySQL(t)
	exec := func(statement string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{Kind: "coupon"})
	for id, status := range map[string]string{"a": "issued", "b": "issued", "c": "rejected", "d": "paid"} {
		exec(`INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at) VALUES (?, ?, ?, 2, 0, ?, NOW(3), NOW(3))`, id, sale, "u-"+id, status)
		for slot := 1; slot <= 2 && status != "rejected"; slot++ {
			exec(`INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES (?, ?, ?, ?)`, sale, "u-"+id, slot, id)
		}
	}
	statements := store.StatementsOf("00006_claims.sql")
	for range 2 { // again, where the migration died before it noted that it was done
		exec(statements[len(statements)-1])
		var all, good int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*), COALESCE(SUM(CASE WHEN c.uid = CONCAT('u-', c.order_id) AND c.state = 'new' AND c.valid_until = s.ends_at
			AND c.id IN ('a.1', 'a.2', 'b.1', 'b.2') THEN 1 ELSE 0 END), 0) FROM coupon_claims c JOIN sales s ON s.id = c.sale_id`).Scan(&all, &good); err != nil {
			t.Fatal(err)
		}
		if all != 4 || good != 4 {
			t.Errorf("got %d claims, %d of them right; want 4", all, good)
		}
	}
}
