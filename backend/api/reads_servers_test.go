//go:build servers

package api

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/netfault"
)

// statements counts the answers to commands on their way from MySQL to a client: the first packet of each has the number 1.
type statements struct {
	client io.Writer
	count  *atomic.Int64
	head   []byte // of a packet that is not whole: length in three bytes, number
	left   int    // bytes of the packet's body that are still to come
}

func (s *statements) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		if s.left > 0 {
			n := min(s.left, len(rest))
			s.left, rest = s.left-n, rest[n:]
			continue
		}
		s.head, rest = append(s.head, rest[0]), rest[1:]
		if len(s.head) == 4 {
			s.left = int(s.head[0]) | int(s.head[1])<<8 | int(s.head[2])<<16
			if s.head[3] == 1 {
				s.count.Add(1)
			}
			s.head = s.head[:0]
		}
	}
	return s.client.Write(b)
}

// Row D5: however many read, MySQL is asked by what keeps the caches fresh, and by nobody who reads.
func TestACrowdOfReadersAsksMySQLNothing(t *testing.T) {
	const readers, each = 8, 1000
	dsn := backendtest.MySQLDSN(t)
	db := backendtest.OpenMySQL(t, dsn, 4)
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	sale := backendtest.Sale(t, db, backendtest.SaleOptions{})
	backendtest.SKU(t, db, 5, 100, "EUR")
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	link := netfault.New(t, c.Addr)
	var count atomic.Int64
	link.Wrap(func(client io.Writer) io.Writer { return &statements{client: client, count: &count} })
	c.Addr = link.Addr()
	limits := Limits{InFlight: 100, Waiting: 100, Connections: 100, Queued: 100, Lag: time.Hour, Line: longLine}
	w := workOn(t, limits, os.Getenv("REDIS_ADDR"), backendtest.Redis(t), backendtest.OpenMySQL(t, c.FormatDSN(), 8))
	until(t, "the sales are read", func() bool { return w.Catalog.Ready() == nil })
	pages := []string{"/v1/sales", fmt.Sprintf("/v1/sales/%d", sale), "/v1/skus", "/v1/time"}
	read := func(page string) bool {
		res := w.signed(w.request("GET", page, ""), "")
		if res.StatusCode() != 200 {
			t.Errorf("%s: got %d %s, want 200", page, res.StatusCode(), res.Body())
		}
		return res.StatusCode() == 200
	}
	for _, page := range pages {
		if !read(page) {
			t.FailNow()
		}
	}
	// What keeps the caches fresh goes by time, and so does what it may cost while the crowd reads.
	const rounds = 20
	quiet, began := count.Load(), time.Now()
	until(t, "the caches are kept fresh", func() bool { return count.Load() >= quiet+rounds })
	rate := float64(count.Load()-quiet) / time.Since(began).Seconds()
	before, began := count.Load(), time.Now()
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for i := range each {
				if !read(pages[i%len(pages)]) {
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	asked, may := count.Load()-before, int64(3*rate*took.Seconds())+rounds
	t.Logf("%d reads in %v: MySQL was asked %d times; with nobody reading %.1f times a second", readers*each, took.Round(time.Millisecond), asked, rate)
	if asked > may || asked > readers*each/10 {
		t.Errorf("MySQL was asked %d times while %d read for %v, want at most %d: it is asked %.1f times a second with nobody reading", asked, readers*each, took, may, rate)
	}
}
