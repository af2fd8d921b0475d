//go:build servers

package standby_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/standby"
)

// Places that came to their end long ago are forgotten, by the index, a bounded number at a time; never that of one who waits.
func TestOldPlacesAreForgotten(t *testing.T) {
	s := newShop(t, backendtest.SaleOptions{Stock: 1, Limit: 1})
	dsn, err := mysql.ParseDSN(os.Getenv("MYSQL_DSN"))
	s.must(err)
	s.must(s.db.QueryRow(`SELECT DATABASE()`).Scan(&dsn.DBName))
	place := 0
	write := func(n int, state string, age time.Duration) {
		t.Helper()
		at := s.clk.Now().Add(-age)
		for i := 0; i < n; i += 500 {
			var rows []string
			var args []any
			for range min(500, n-i) {
				place++
				rows = append(rows, `(?, ?, ?, ?, ?, ?, ?)`)
				args = append(args, 1_000_000, fmt.Sprint("u", place), place, fmt.Sprint("o", place), state, at, at)
			}
			s.exec(`INSERT INTO standby (sale_id, uid, place, order_id, state, joined_at, changed_at) VALUES `+strings.Join(rows, ", "), args...)
		}
	}
	const old, young = 7*24*time.Hour + time.Minute, 7*24*time.Hour - time.Minute
	write(1200, "offered", old)
	write(300, "passed", old)
	write(200, "left", old)
	write(100, "ended", old)
	write(1500, "waiting", old)
	write(1500, "offered", young)
	write(700, "ended", young)
	session := backendtest.OpenMySQL(t, dsn.FormatDSN(), 1)
	line := standby.New(standby.Config{MaxLine: most, DB: session, Redis: s.redis, Clock: s.clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	for _, want := range []int{1000, 200, 300, 200, 100, 0} {
		reads, changes := backendtest.Rows(t, session, func() {
			if n, err := line.Prune(t.Context()); n != want || err != nil {
				t.Errorf("got %d, %v; want %d", n, err, want)
			}
		})
		if reads > int64(2*want+30) || changes > int64(want) {
			t.Errorf("forgetting %d places read %d rows and changed %d", want, reads, changes)
		}
	}
	for state, want := range map[string]int{"waiting": 1500, "offered": 1500, "passed": 0, "left": 0, "ended": 700} {
		var n int
		s.must(s.db.QueryRow(`SELECT COUNT(*) FROM standby WHERE sale_id = 1000000 AND state = ?`, state).Scan(&n))
		if n != want {
			t.Errorf("%d places are %s, want %d", n, state, want)
		}
	}

	// One who was forgotten has never been in the line, and may join again.
	order := s.buy("ann")[0]
	s.join("bob", "cyd")
	s.leave("bob")
	s.exec(`UPDATE standby SET changed_at = changed_at - INTERVAL 8 DAY WHERE sale_id = ?`, s.sale)
	if n, err := line.Prune(t.Context()); n != 1 || err != nil {
		t.Errorf("got %d, %v; want one", n, err)
	}
	if _, err := s.line.Look(t.Context(), s.sale, "bob", false); err != standby.ErrNotInLine {
		t.Errorf("got %v, want %v", err, standby.ErrNotInLine)
	}
	s.join("bob")
	s.want(map[string]string{"cyd": "waiting 1", "bob": "waiting 2"})
	s.cancel("ann", order)
	s.offer()
	s.want(map[string]string{"cyd": "offered", "bob": "waiting 1"})
	s.balanced()
}
