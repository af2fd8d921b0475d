package backendtest

import (
	"database/sql"
	"testing"
)

// Unsynced does what commits in MySQL while the server leaves its log unsynced, as if each COMMIT were still under way; synced says
// whether all of it is on its disk by now. Other tests' transactions lose nothing by it but what a killed server would take back.
func Unsynced(t testing.TB, db *sql.DB, do func()) (synced func() bool) {
	t.Helper()
	number := func(query string) (n int64) {
		t.Helper()
		var name string
		if err := db.QueryRowContext(t.Context(), query).Scan(&name, &n); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return n
	}
	set := func(value string) {
		t.Helper()
		if _, err := db.Exec(`SET GLOBAL innodb_flush_log_at_trx_commit = ` + value); err != nil {
			t.Fatal(err)
		}
	}
	set("0")
	func() {
		defer set("1")
		do()
	}()
	seen := number(`SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_lsn_current', 'Innodb_redo_log_current_lsn')`) // MariaDB's name, MySQL's
	return func() bool {
		return number(`SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_lsn_flushed', 'Innodb_redo_log_flushed_to_disk_lsn')`) >= seen
	}
}
