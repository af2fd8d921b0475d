package backendtest

import (
	"database/sql"
	"strings"
	"testing"
)

// Rows is how many rows the session asked the storage engine for while do ran, those included that it looked at in an index
// alone, and how many it changed there: MySQL's own counts. session has one connection at most.
func Rows(t testing.TB, session *sql.DB, do func()) (reads, changes int64) {
	t.Helper()
	r0, c0 := handled(t, session)
	r1, c1 := handled(t, session) // what the counting itself costs
	do()
	r2, c2 := handled(t, session)
	return (r2 - r1) - (r1 - r0), (c2 - c1) - (c1 - c0)
}

func handled(t testing.TB, session *sql.DB) (reads, changes int64) {
	t.Helper()
	rows, err := session.QueryContext(t.Context(), `SHOW SESSION STATUS LIKE 'Handler%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasPrefix(name, "Handler_read_"), name == "Handler_icp_attempts":
			reads += n
		case name == "Handler_update", name == "Handler_delete", name == "Handler_write":
			changes += n
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return reads, changes
}
