//go:build servers

package order

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
)

// Intents that were done long ago are forgotten, by the index, a bounded number at a time; never one that is open, nor one
// that a reconciliation must know of.
func TestDoneIntentsAreForgotten(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{})
	now := s.book.now()
	write := func(n int, kind string, done any) {
		t.Helper()
		for i := 0; i < n; i += 500 {
			var rows []string
			var args []any
			for range min(500, n-i) {
				rows, args = append(rows, `(?, ?, '2020-01-01', ?)`), append(args, sale, kind, done)
			}
			s.exec(`INSERT INTO intents (sale_id, kind, created_at, done_at) VALUES `+strings.Join(rows, ", "), args...)
		}
	}
	old := now.Add(-intentsKept - time.Second)
	write(1500, intentRelease, old)
	write(700, intentDefine, old)
	write(3, intentAdjust, old)
	write(2500, intentRelease, now.Add(-intentsKept+time.Hour))
	write(2000, intentRelease, nil)
	session := backendtest.OpenMySQL(t, s.dsn, 1)
	book := NewStore(Config{DB: session, Redis: s.redis, Clock: s.clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	for _, want := range []int{1000, 1000, 200, 0} {
		reads, changes := backendtest.Rows(t, session, func() {
			if n, err := book.PruneIntents(t.Context()); n != want || err != nil {
				t.Errorf("got %d, %v; want %d", n, err, want)
			}
		})
		if reads > int64(2*want+30) || changes > int64(want) {
			t.Errorf("forgetting %d intents read %d rows and changed %d", want, reads, changes)
		}
	}
	for what, want := range map[string]int64{"done_at IS NULL": 2000, "done_at IS NOT NULL AND kind = 'release'": 2500, "kind = 'adjust'": 3, "kind = 'define'": 0} {
		if n := s.number(`SELECT COUNT(*) FROM intents WHERE ` + what); n != want {
			t.Errorf("%d intents are left with %s, want %d", n, what, want)
		}
	}
}
