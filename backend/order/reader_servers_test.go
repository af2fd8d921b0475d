//go:build servers

package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/wire"
)

// reader makes a Reader whose Run runs until the test ends, and leaves nothing running then.
func (s *shop) reader(fallback time.Duration) *Reader {
	s.t.Helper()
	before := goleak.IgnoreCurrent()
	r := NewReader(ReaderConfig{DB: s.db, Redis: s.redis, Log: backendtest.Log(s.t), Register: prometheus.NewRegistry()})
	r.fallback = fallback
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Run: got %v, want nil when its context ends", err)
		}
		goleak.VerifyNone(s.t, before, // but for connections, which live on in their pools
			goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*pipe)._background"),
			goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*pipe)._backgroundWrite"),
			goleak.IgnoreAnyFunction("github.com/go-sql-driver/mysql.(*mysqlConn).startWatcher.func1"))
	})
	s.until("it listens", func() bool {
		c := s.redis.Client()
		n, err := c.Do(s.t.Context(), c.B().PubsubNumsub().Channel(channel(s.redis)).Build()).ToArray()
		if err != nil {
			s.t.Fatal(err)
		}
		listeners, err := n[1].AsInt64()
		return err == nil && listeners > 0
	})
	return r
}

// until asks until it is so, for ten seconds at most.
func (s *shop) until(what string, so func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("after 10 s it is not so that %s", what)
		}
	}
}

func TestOrderIsItsOwnersFromThePressOn(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Price: 150, Limit: 2})
	r := NewReader(ReaderConfig{DB: s.db, Redis: s.redis, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	id := s.press(sale, "u", 2, "")
	for _, status := range []wire.OrderStatus{wire.Queued, wire.PendingPayment, wire.Cancelled} {
		o, err := r.Order(t.Context(), "u", id, 0)
		if err != nil || o.OrderID != id || o.SaleID != sale || o.Quantity != 2 || o.Amount != 300 || o.Status != status || (o.PayBefore == nil) != (status == wire.Queued) {
			t.Errorf("%s: got %+v, %v", status, o, err)
		}
		if _, err := r.Order(t.Context(), "v", id, time.Second); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s, somebody else: got %v, want ErrNotFound", status, err)
		}
		switch status {
		case wire.Queued:
			s.settle(sale)
		case wire.PendingPayment:
			if _, err := s.orders.Cancel(t.Context(), "u", id); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, none := range []string{newID(sale), newID(999999), "nonsense", ""} {
		if _, err := r.Order(t.Context(), "u", none, time.Minute); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: got %v, want ErrNotFound", none, err)
		}
	}
}

func TestALongPollIsWokenByTheNotification(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 200})
	r := s.reader(time.Hour) // so it is not the fallback
	var g errgroup.Group
	for i := range 200 {
		uid := fmt.Sprint("u", i)
		id := s.press(sale, uid, 1, "")
		g.Go(func() error {
			o, err := r.Order(t.Context(), uid, id, wire.MaxWait)
			if err == nil && o.Status != wire.PendingPayment {
				err = fmt.Errorf("got %+v after the wait", o)
			}
			return err
		})
	}
	s.until("all wait", func() bool { return r.waiters.waiting() == 200 })
	s.settle(sale)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if n := r.waiters.waiting(); n != 0 || len(r.waiters.all) != 0 || len(r.waiters.woken) != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

func TestALongPollIsWokenWithoutTheNotification(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{})
	r := s.reader(10 * time.Millisecond)
	id := s.press(sale, "u", 1, "")
	var g errgroup.Group
	g.Go(func() error {
		o, err := r.Order(t.Context(), "u", id, wire.MaxWait)
		if err == nil && o.Status != wire.PendingPayment {
			err = fmt.Errorf("got %+v after the wait", o)
		}
		return err
	})
	s.until("it waits", func() bool { return r.waiters.waiting() == 1 })
	quiet := newBook(s.db, backendtest.Redis(t), s.clk, backendtest.Log(t)) // it notifies another prefix
	if err := quiet.Settle(t.Context(), s.outbox(sale)); err != nil {
		t.Fatal(err)
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestALongPollEndsWithItsTimeOrItsClient(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{})
	r := s.reader(time.Hour)
	id := s.press(sale, "u", 1, "")
	if o, err := r.Order(t.Context(), "u", id, 50*time.Millisecond); err != nil || o.Status != wire.Queued {
		t.Errorf("got %+v, %v; want it queued", o, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { _, err := r.Order(ctx, "u", id, wire.MaxWait); return err })
	s.until("it waits", func() bool { return r.waiters.waiting() == 1 })
	cancel()
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the client's leave", err)
	}
	r.waiters.mu.Lock()
	r.waiters.most = 0
	r.waiters.mu.Unlock()
	if o, err := r.Order(t.Context(), "u", id, wire.MaxWait); err != nil || o.Status != wire.Queued {
		t.Errorf("one waiter too many: got %+v, %v; want it queued, at once", o, err)
	}
}

func TestRunHearsAgainAfterItsConnectionIsCut(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{})
	r := s.reader(time.Hour)
	c := s.redis.Client()
	numsub := func() int64 {
		n, err := c.Do(t.Context(), c.B().PubsubNumsub().Channel(channel(s.redis)).Build()).ToArray()
		if err != nil {
			t.Fatal(err)
		}
		listeners, _ := n[1].AsInt64()
		return listeners
	}
	clients, err := c.Do(t.Context(), c.B().ClientList().TypePubsub().Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	for _, id := range pubsubClients(clients) {
		if c.Do(t.Context(), c.B().ClientKill().Id(id).Build()).Error() == nil {
			killed = true
		}
	}
	if !killed {
		t.Fatalf("no subscriber among %s", clients)
	}
	s.until("it listens again", func() bool { return numsub() == 1 })
	id := s.press(sale, "u", 1, "")
	var g errgroup.Group
	g.Go(func() error {
		o, err := r.Order(t.Context(), "u", id, wire.MaxWait)
		if err == nil && o.Status != wire.PendingPayment {
			err = fmt.Errorf("got %+v", o)
		}
		return err
	})
	s.until("it waits", func() bool { return r.waiters.waiting() == 1 })
	s.settle(sale)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func pubsubClients(list string) (ids []int64) {
	for line := range strings.Lines(list) {
		var id int64
		if _, err := fmt.Sscanf(line[max(0, strings.Index(line, "id=")):], "id=%d ", &id); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestListIsNewestFirstWithQueuedOrders(t *testing.T) {
	s := newShop(t)
	r := NewReader(ReaderConfig{DB: s.db, Redis: s.redis, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	var sales []int64
	var want []string // newest first
	for i := range 4 {
		sale := s.sale(backendtest.SaleOptions{Limit: 3})
		sales = append(sales, sale)
		for j := range 3 {
			id := s.press(sale, "u", 1, "")
			want = append([]string{id}, want...)
			if i < 3 && j < 2 {
				s.settle(sale)
			}
		}
		s.press(sale, "other", 1, "")
	}
	if _, err := s.orders.Cancel(t.Context(), "u", want[len(want)-1]); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{0, 1, 2, 5, 12, 1000} {
		var got []string
		queued := 0
		for cursor, pages := "", 0; ; pages++ {
			page, err := r.List(t.Context(), "u", 0, sales, cursor, limit)
			if err != nil || pages > 12 || limit > 0 && len(page.Orders) > limit {
				t.Fatalf("limit %d: got %d orders on page %d, %v", limit, len(page.Orders), pages, err)
			}
			for _, o := range page.Orders {
				got = append(got, o.OrderID)
				if o.Status == wire.Queued {
					queued++
				}
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) || queued != 6 {
			t.Errorf("limit %d: got %d orders, %d of them queued:\n%v\nwant 12, 6:\n%v", limit, len(got), queued, got, want)
		}
	}
	one, err := r.List(t.Context(), "u", sales[1], nil, "", 10)
	if err != nil || len(one.Orders) != 3 || one.Orders[0].SaleID != sales[1] || one.Next != "" {
		t.Errorf("one sale: got %+v, %v; want its three", one, err)
	}
	if none, err := r.List(t.Context(), "nobody", 0, sales, "", 10); err != nil || none.Orders == nil || len(none.Orders) != 0 {
		t.Errorf("nobody's: got %+v, %v; want an empty list, not null", none, err)
	}
	if _, err := r.List(t.Context(), "u", 0, sales, "'; --", 10); !errors.Is(err, ErrCursor) {
		t.Errorf("got %v, want ErrCursor", err)
	}
}

// While a sale is written anew in Redis its queued orders may be missing, and nobody is told that there are none.
func TestAListSaysWhereOrdersMayBeMissing(t *testing.T) {
	s := newShop(t)
	r := NewReader(ReaderConfig{DB: s.db, Redis: s.redis, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	open, shut := s.sale(backendtest.SaleOptions{}), s.sale(backendtest.SaleOptions{})
	kept := s.press(open, "u", 1, "")
	s.press(shut, "u", 1, "")
	sales := []int64{open, shut}
	is := func(when string, unsure ...int64) {
		t.Helper()
		list, err := r.List(t.Context(), "u", 0, sales, "", 10)
		if err != nil || len(list.Orders) == 0 || list.Orders[len(list.Orders)-1].OrderID != kept || !slices.Equal(list.Unsure, unsure) {
			t.Errorf("%s: got %+v, %v; want %s among them, unsure of %v", when, list, err, kept, unsure)
		}
		_, err = r.List(t.Context(), "u", shut, nil, "", 10)
		if (err != nil) != (len(unsure) > 0) {
			t.Errorf("%s, the one sale: got %v", when, err)
		}
	}
	is("open")
	states, err := s.redis.States(t.Context(), sales)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.redis.Shut(t.Context(), shut, states[1].Token+1); err != nil {
		t.Fatal(err)
	}
	is("its gate is shut", shut)
	backendtest.Wipe(t, s.redis, shut)
	is("it is not there", shut)
	if _, err := s.db.ExecContext(t.Context(), `UPDATE sales SET archived_at = ? WHERE id = ?`, s.clk.Now(), shut); err != nil {
		t.Fatal(err)
	}
	for _, sale := range []int64{shut, shut + 1000} {
		if list, err := r.List(t.Context(), "u", sale, nil, "", 10); err != nil || len(list.Orders) > 0 {
			t.Errorf("a sale that belongs in no Redis: got %+v, %v; want an empty list", list, err)
		}
	}
}

// An accepted order is in its owner's list whenever it is asked for, also while it goes from Redis to MySQL.
func TestAnOrderIsListedWhileItIsSettled(t *testing.T) {
	const rounds, askers = 25, 4
	s := newShop(t)
	r := NewReader(ReaderConfig{DB: s.db, Redis: s.redis, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	sale := s.sale(backendtest.SaleOptions{Stock: rounds})
	for i := range rounds {
		uid := fmt.Sprint("u", i)
		id := s.press(sale, uid, 1, "")
		settled := make(chan struct{})
		var wg sync.WaitGroup
		for range askers {
			wg.Go(func() {
				for last := false; !last; {
					select {
					case <-settled:
						last = true
					default:
					}
					if list, err := r.List(t.Context(), uid, 0, []int64{sale}, "", 10); err != nil || len(list.Orders) != 1 || list.Orders[0].OrderID != id {
						t.Errorf("round %d: got %+v, %v; want order %s", i, list, err, id)
						return
					}
				}
			})
		}
		s.settle(sale)
		close(settled)
		wg.Wait()
	}
}
