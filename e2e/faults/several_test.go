//go:build servers

package faults

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// TestSeveralOfEach runs two gateways, three apis, and two each of relays, consumers and timers, every one a process of its own. Each is killed
// while the others of its kind must do its work, each is paused, and all are rolled one after the other, to a next version, too. A soak pauses
// one at a time.
//
// Row B3: the death of a process loses nothing accepted.
func TestSeveralOfEach(t *testing.T) {
	t.Attr("row", "B3")
	sideBySide(t)
	w := newGround(t).system(t, options{several: true, batch: smallBatch, maxLag: "1h", claimIdle: "10s"})
	const units = 1000000
	expires := w.newLoad(w.newSale(t, "several: what expires, so that the timers work", units, 2*time.Second), 0, nil)
	expires.ends = false
	stop := make(chan struct{})
	var crowd sync.WaitGroup
	crowd.Go(func() {
		if err := expires.keep(t.Context(), stop, fewPlaces, everySo); err != nil {
			t.Error(err)
		}
	})
	rest := sync.OnceFunc(func() { close(stop); crowd.Wait() })
	defer rest()
	var all []world.Member
	for _, part := range w.Parts {
		all = append(all, part.Members...)
	}
	w.group(t, partSeveral,
		disorder{
			what: "2 gateways, 3 apis, 2 relays, 2 consumers, 2 timers: each dies", times: len(all), injected: "SIGKILL, and started again once the others of its kind have worked",
			strike: func(s *trial) {
				for _, part := range w.Parts {
					s.without(part, part.Members[:1], part.Members[1:])
					s.without(part, part.Members[1:], part.Members[:1])
				}
			},
			heal: func(*trial) {},
		},
		disorder{
			what: "the same: each is paused", times: len(all), injected: "SIGSTOP, for longer than it takes to be called dead", twice: true,
			strike: func(s *trial) {
				if length(s.T) > 0 {
					for _, m := range all {
						s.pause(m)
					}
					return
				}
				for _, members := range pickEach(w.Parts) {
					s.pause(members...)
				}
			},
			heal: func(*trial) {},
		},
		disorder{
			what: "the same: all are rolled", times: len(all), injected: "SIGTERM and started again, one after the other",
			strike: func(s *trial) {
				for _, m := range all {
					world.Must(s.T, m.Stop(s.ctx))
					world.Must(s.T, m.Start(s.ctx))
				}
			},
			heal: func(*trial) {},
		},
		upgraded(t, w),
	)
	rest()
	tally := w.rest(t, expires.sale, units, expires.log)
	t.Logf("what expired: %+v; answers: %s", tally, expires.log.Summary())
	w.drained(t)
}

// pickEach returns all members in as few groups as there are members of the largest part. No group has two of the same part.
func pickEach(parts []world.Part) (groups [][]world.Member) {
	for _, part := range parts {
		for i, m := range part.Members {
			if i == len(groups) {
				groups = append(groups, nil)
			}
			groups[i] = append(groups[i], m)
		}
	}
	return groups
}

// without kills some members of a part, waits until each of the others has worked since, and starts those that were killed.
func (s *trial) without(part world.Part, dead, others []world.Member) {
	s.Helper()
	before := make([]float64, len(others))
	for i, m := range others {
		before[i], _ = s.w.Worked(s.ctx, m) // one that has done nothing yet need not say so
	}
	world.Must(s.T, each(s.ctx, processes(dead), (*stack.Process).Kill))
	for i, m := range others {
		s.until(fmt.Sprintf("%s works while the others of its kind (%s) are dead", m.Name(), part.Name), func(ctx context.Context) error {
			n, err := s.w.Worked(ctx, m)
			if err == nil && n <= before[i] {
				err = fmt.Errorf("it stands at %v, as before", n)
			}
			return err
		})
	}
	world.Must(s.T, each(s.ctx, processes(dead), (*stack.Process).Start))
}

// pause stops some processes for a while, all at once.
func (s *trial) pause(members ...world.Member) {
	s.Helper()
	for _, m := range members {
		world.Must(s.T, m.Signal(syscall.SIGSTOP))
	}
	s.lasts()
	for _, m := range members {
		world.Must(s.T, m.Signal(syscall.SIGCONT))
	}
}

func processes(members []world.Member) (all []*stack.Process) {
	for _, m := range members {
		all = append(all, m.Process)
	}
	return all
}
