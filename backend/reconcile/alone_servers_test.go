//go:build servers

package reconcile

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/lock"
	"floodgate.internal/lua"
)

// crowd is the reconcilers of several processes, which wait for each other as long as the test does.
type crowd struct {
	*system
	recs []*Reconciler
	regs []*prometheus.Registry
}

func (s *system) crowd(n int) *crowd {
	c := &crowd{system: s}
	for range n {
		reg := prometheus.NewRegistry()
		r := New(Config{DB: s.db, Redis: s.redis, Log: backendtest.Log(s.t), Register: reg})
		r.lease, r.takeover = time.Hour, time.Hour
		c.recs, c.regs = append(c.recs, r), append(c.regs, reg)
	}
	return c
}

// behind holds the lock of that name while f runs, and until n of the crowd wait for it.
func (c *crowd) behind(t *testing.T, name string, n int, f func()) {
	t.Helper()
	hold, err := c.recs[0].locks.Acquire(t.Context(), name, lock.NewOwner(), time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	f()
	eventually(t, "they wait", func() bool {
		waiting := 0.0
		for _, reg := range c.regs {
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == "backend_lock_waiting" {
					waiting += f.GetMetric()[0].GetGauge().GetValue()
				}
			}
		}
		return waiting == float64(n)
	})
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
}

// attempts is how often any of them began to reconcile a sale, whatever came of it.
func (c *crowd) attempts() (n float64) {
	for _, r := range c.recs {
		for _, result := range []string{"opened", "lost", "failed"} {
			n += testutil.ToFloat64(r.runs.WithLabelValues(result))
		}
	}
	return n
}

// Rows C4 and E2: of many that load a sale at once, in several processes, one does, and all have it.
func TestASaleIsLoadedByOneProcess(t *testing.T) {
	t.Attr("row", "C4 E2")
	s := newSystem(t, false)
	sale := backendtest.Sale(t, s.db, backendtest.SaleOptions{Stock: 5})
	c := s.crowd(4)
	var wg sync.WaitGroup
	c.behind(t, loadName(sale), 200, func() {
		for i := range 200 {
			wg.Go(func() {
				if err := c.recs[i%4].Load(t.Context(), sale); err != nil {
					t.Error(err)
				}
				if got := s.state(sale).Gate; got != lua.GateOpen {
					t.Errorf("loaded, and the gate is %q", got)
				}
			})
		}
	})
	wg.Wait()
	if got := c.attempts(); got != 1 {
		t.Errorf("it was reconciled %v times, want once", got)
	}
	if got := s.state(sale).Epoch; got != 1 {
		t.Errorf("got epoch %d, want 1", got)
	}
}

// Row C4: after a restart of Redis one process reconciles the sales, the others wait for it.
func TestOneProcessRecoversForAll(t *testing.T) {
	t.Attr("row", "C4")
	const sales = 10
	s := newSystem(t, false)
	var ids []int64
	for range sales {
		ids = append(ids, s.sale(backendtest.SaleOptions{Stock: 5}))
	}
	c := s.crowd(4)
	s.flush()
	c.behind(t, "recovery", 4, func() {
		for _, r := range c.recs {
			background(t, r.Keep)
		}
	})
	s.opens(ids...)
	eventually(t, "each is counted", func() bool { return c.attempts() >= sales })
	if got := c.attempts(); got != sales {
		t.Errorf("%v sales were reconciled, want each of %d once", got, sales)
	}
}

// The lock only saves work: where it is not to be had, it is gone on without.
func TestAProcessThatHangsIsNotWaitedForForEver(t *testing.T) {
	s := newSystem(t, false)
	sale := backendtest.Sale(t, s.db, backendtest.SaleOptions{Stock: 5})
	r := s.crowd(1).recs[0]
	name := loadName(sale)
	hung, err := r.locks.Acquire(t.Context(), name, lock.NewOwner(), time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Release()
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- r.Load(ctx, sale) }()
	cancel()
	if err := <-waits; err == nil || s.state(sale).Present {
		t.Errorf("got %v from a wait that was ended, and the sale is loaded: %v", err, s.state(sale).Present)
	}
	r.takeover = 50 * time.Millisecond
	if err := r.Load(t.Context(), sale); err != nil || s.state(sale).Gate != lua.GateOpen {
		t.Errorf("got %v, gate %q; want it loaded", err, s.state(sale).Gate)
	}
}

// Row C4: the lease is what the configuration says: Redis keeps the lock of a holder that died for as long.
func TestTheLeaseOfALockIsConfigurable(t *testing.T) {
	t.Attr("row", "C4")
	s := newSystem(t, false)
	s.rec.lease = time.Hour
	dead, cancel := context.WithCancel(t.Context())
	if _, err := s.rec.alone(dead, "recovery"); err != nil {
		t.Fatal(err)
	}
	cancel() // nobody renews it any more
	c := s.redis.Client()
	left, err := c.Do(t.Context(), c.B().Pttl().Key(s.redis.Client().Prefix()+"{lock:recovery}:holder").Build()).AsInt64()
	if err != nil || left < (50*time.Minute).Milliseconds() || left > time.Hour.Milliseconds() {
		t.Errorf("the lock of a dead holder: got %v left, %v; want an hour", time.Duration(left)*time.Millisecond, err)
	}
	other := s.reconciler(nil)
	other.lease = time.Second
	other.takeover = time.Minute
	done, err := other.alone(t.Context(), "another")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	left, err = c.Do(t.Context(), c.B().Pttl().Key(s.redis.Client().Prefix()+"{lock:another}:holder").Build()).AsInt64()
	if err != nil || left <= 0 || left > time.Second.Milliseconds() {
		t.Errorf("the lock of another: got %v left, %v; want at most a second", time.Duration(left)*time.Millisecond, err)
	}
}
