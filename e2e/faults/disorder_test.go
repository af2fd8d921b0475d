//go:build servers

package faults

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
)

// TestDisorders tries every fault that lasts for a while and is then over. Most of that is waiting, so some groups run side by
// side, on one set of servers but for the one that a group is about; those that take long come first.
func TestDisorders(t *testing.T) {
	sideBySide(t)
	g := newGround(t)
	groups := []struct {
		name string
		run  func(*testing.T, *ground)
	}{
		{"rabbitmq", rabbitmqFaults}, {"rabbitmq's nodes", rabbitmqNodes}, {"wall clocks", clockFaults}, {"mysql", mysqlFaults}, {"mysql's failovers", mysqlFailovers}, {"semi-synchronous mysql", mysqlSemiSynchronous}, {"galera", galera},
		{"redis, confirm", redisConfirmed}, {"redis", redisFaults}, {"clients", clientFaults}, {"mysql's disk", mysqlDisk},
	}
	for i := range ways {
		groups = append(groups, struct {
			name string
			run  func(*testing.T, *ground)
		}{ways[i].name, func(t *testing.T, g *ground) { wayFaults(t, g, i) }})
	}
	t.Run("side by side", func(t *testing.T) {
		for _, group := range groups {
			t.Run(group.name, func(t *testing.T) {
				t.Parallel()
				group.run(t, g)
			})
		}
	})
}

// disorder is a fault that lasts for a while and is then over.
type disorder struct {
	what     string // for the table
	injected string
	times    int // 0: once
	// strike makes it go wrong, and returns when it has lasted long enough; heal puts it right. The load goes on throughout.
	strike func(*trial)
	heal   func(*trial)
	keep   bool // nobody pays or cancels: so nobody waits for a consumer
	twice  bool // every request of the load is repeated
}

// trial is one disorder being tried.
type trial struct {
	*testing.T
	w     *system
	ctx   context.Context
	sale  int64
	log   *oracle.Log
	loads []*load // on that sale, with that log: buyers who keep what they get, and who pay or cancel
	rest  func()  // ends the load, once whoever came was told something final
	// places is how many buyers of each load press at once, and pace how often one comes to each; 0: few.
	places int
	pace   time.Duration
}

// lasts is how long a fault lasts that ends by itself: longer than a call of Redis or of the backend may take; in a soak
// longer than every time-out there is.
func (s *trial) lasts() {
	s.Helper()
	d := 4 * time.Second
	if length(s.T) > 0 {
		d = 20 * time.Second
	}
	world.Pause(s.ctx, d)
}

// more waits until so many more orders are promised.
func (s *trial) more(n int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	if err := s.log.Await(ctx, s.log.Promised()+n); err != nil {
		s.Fatalf("%v; answers: %s", err, s.log.Summary())
	}
}

// until is the package's, with the answers so far where it is not.
func (s *trial) until(what string, ok func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	if err := world.Await(ctx, ok); err != nil {
		s.Fatalf("%s: not within %v: %v; answers: %s", what, patience, err, s.log.Summary())
	}
}

// payWithin is what a trial's orders have: longer than a trial, shorter than a wall clock may be off.
const payWithin = 30 * time.Minute

// watch is the world's, until stopped is called.
func (s *trial) watch(units int64) (stopped func()) {
	return sync.OnceFunc(world.Watch(s.T, s.ctx, units, true, func(ctx context.Context) (oracle.View, error) { return s.w.look(ctx, s.sale) }))
}

// fewPlaces is how many buyers of each of a trial's loads press at once, if the trial does not say.
const fewPlaces = 5

// press begins the load, or begins it again after rest.
func (s *trial) press() {
	stop := make(chan struct{})
	var crowd sync.WaitGroup
	for _, l := range s.loads {
		crowd.Go(func() {
			if err := l.keep(s.ctx, stop, cmp.Or(s.places, fewPlaces), cmp.Or(s.pace, everySo)); err != nil {
				s.Error(err)
			}
		})
	}
	s.rest = sync.OnceFunc(func() { close(stop); crowd.Wait() })
}

// endure sells while the fault strikes and afterwards, until the equations hold, and returns the row for the table.
func (w *system) endure(t *testing.T, d disorder) line {
	t.Helper()
	const units = 1000000
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	l := w.newLoad(w.newSale(t, d.what, units, payWithin), 0, nil)
	l.ends, l.twice = false, d.twice
	s := &trial{T: t, w: w, ctx: ctx, sale: l.sale, log: l.log, loads: []*load{l}}
	if !d.keep {
		e := w.newLoad(l.sale, 0, nil)
		e.log, e.twice = l.log, d.twice
		s.loads = append(s.loads, e)
	}
	s.press()
	watched := s.watch(units)
	defer func() {
		if t.Failed() {
			cancel() // nobody is told anything any more
		}
		s.rest()
		watched()
	}()
	s.more(20)
	d.strike(s)
	d.heal(s)
	over := l.fell()
	reach, enough := context.WithTimeout(ctx, patience)
	defer enough()
	r := line{fault: d.what, injected: d.injected, times: max(1, d.times)}
	select {
	case at := <-l.decided:
		r.opened = []time.Duration{at.Sub(over)}
	case <-reach.Done():
		t.Fatalf("no order is promised for %v after it; answers: %s", patience, l.log.Summary())
	}
	s.more(20)
	s.rest()
	watched()
	tally := w.rest(t, l.sale, units, l.log)
	r.tally, r.settled = &tally, time.Since(over)
	t.Logf("%+v; orders again %v after it, settled after %v; answers: %s", tally, r.opened[0].Round(time.Millisecond), r.settled.Round(time.Millisecond), l.log.Summary())
	w.closeSale(t, l.sale)
	return r
}

// group tries some disorders in a world, one after the other, and reports them.
func (w *system) group(t *testing.T, p part, all ...disorder) {
	for _, d := range all {
		t.Run(d.what, func(t *testing.T) { report(p, w.endure(t, d)) })
	}
}
