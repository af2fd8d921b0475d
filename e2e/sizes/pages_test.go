//go:build servers

package sizes

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// No answer of Redis to a reconciliation or an audit holds more than a page of a sale, however large the sale is.
func TestNoAnswerHoldsMoreThanAPage(t *testing.T) {
	const settled, queued, page = 5000, 2000, 500
	link := netfault.New(t, os.Getenv("REDIS_ADDR"))
	largest := new(atomic.Int64)
	link.Wrap(func(client io.Writer) io.Writer { return &counter{to: client, largest: largest, begins: true} })
	t.Setenv("REDIS_ADDR", link.Addr())
	db, redis := backendtest.MySQL(t), backendtest.Redis(t)
	sale := orders(t, db, settled, settled+queued)
	rec := reconcile.New(reconcile.Config{DB: db, Redis: redis, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	if err := rec.Sale(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.SetLimit(16)
	for i := range queued {
		g.Go(func() error {
			v, err := redis.Reserve(t.Context(), reserve.Request{Sale: sale, UID: fmt.Sprint("late", i), Quantity: 1, Epoch: 1,
				OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)})
			if err == nil && v.Answer != lua.Reserved {
				err = fmt.Errorf("order %d: %s", i, v.Answer)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := rec.Sale(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	r, err := audit.New(audit.Config{DB: db, Redis: redis, QueuedBound: time.Hour}).Sale(t.Context(), sale)
	if err != nil || !r.Balanced || r.Redis.Reservations != settled+queued || r.Redis.Outbox != queued {
		t.Errorf("audit: %+v, %v", r, err)
	}
	if n := largest.Load(); n < page || n > 3*page { // a page of a hash has twice as many members, and some
		t.Errorf("the largest answer has %d members, want a page of about %d", n, 2*page)
	}
}

// counter passes on what Redis sends, and notes of how many members the largest list or map is.
type counter struct {
	to      io.Writer
	largest *atomic.Int64
	begins  bool  // a line
	in      bool  // the number of a list or map
	n       int64 // as far as it was read
}

func (c *counter) Write(b []byte) (int, error) {
	for _, x := range b {
		switch {
		case c.begins && (x == '*' || x == '%'):
			c.in, c.n = true, 0
		case c.in && x >= '0' && x <= '9':
			c.n = c.n*10 + int64(x-'0')
		case c.in:
			c.in = false
			for old := c.largest.Load(); c.n > old && !c.largest.CompareAndSwap(old, c.n); {
				old = c.largest.Load()
			}
		}
		c.begins = x == '\n'
	}
	return c.to.Write(b)
}
