//go:build servers

package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/powercut"
	"floodgate.internal/e2e/stack"
)

// each does something to several processes at once.
func each(ctx context.Context, all []*stack.Process, do func(*stack.Process, context.Context) error) error {
	var g errgroup.Group
	for _, p := range all {
		g.Go(func() error { return do(p, ctx) })
	}
	return g.Wait()
}

// atOnceKilled is the death of several processes in the same moment. Then all are started, side by side.
func atOnceKilled(what string, times int, victims func(*world) []*stack.Process) disorder {
	return disorder{
		what: "at once: " + what, injected: "SIGKILL of all of them, and started again side by side", times: times, twice: true,
		strike: func(s *trial) {
			for i := range cmp.Or(times, 1) {
				if i > 0 {
					must(s.T, each(s.ctx, victims(s.w), (*stack.Process).Start))
					s.more(50)
				}
				must(s.T, each(s.ctx, victims(s.w), (*stack.Process).Kill))
			}
		},
		heal: func(s *trial) { must(s.T, each(s.ctx, victims(s.w), (*stack.Process).Start)) },
	}
}

// recovering waits until the sale's gate is closed by a reconciler that has come since.
func (s *trial) recovering(token int64) {
	s.Helper()
	s.until("a reconciler works on the sale", func(ctx context.Context) error {
		g, err := s.w.books.Gate(ctx, s.sale)
		if err == nil && g.Token == token {
			err = errors.New("none does")
		}
		return err
	})
}

// token is the newest reconciler's.
func (s *trial) token() int64 {
	s.Helper()
	g, err := s.w.books.Gate(s.ctx, s.sale)
	must(s.T, err)
	return g.Token
}

// whileRedisRecovers kills another process as soon as a reconciler works on the sale, after Redis was killed.
func whileRedisRecovers(what string, victim func(*world) *stack.Process) disorder {
	const times = 3
	return disorder{
		what: "redis recovers, and meanwhile dies " + what, injected: "SIGKILL of redis; SIGKILL of the other once a reconciler has its token", times: times, twice: true,
		strike: func(s *trial) {
			for range times {
				token := s.token()
				must(s.T, s.w.redis.Redis.Kill(s.ctx))
				must(s.T, s.w.redis.Redis.Start(s.ctx))
				s.recovering(token)
				must(s.T, victim(s.w).Kill(s.ctx))
				must(s.T, victim(s.w).Start(s.ctx))
				s.more(20)
			}
		},
		heal: func(*trial) {},
	}
}

// whileItRecovers kills redis as soon as a killed store serves again, or has begun to.
func whileItRecovers(what string, first func(*world) *stack.Process) disorder {
	return disorder{
		what: what + " recovers, and meanwhile dies redis", injected: "SIGKILL of the one; SIGKILL of redis while it starts", twice: true,
		strike: func(s *trial) {
			p := first(s.w)
			must(s.T, p.Kill(s.ctx))
			var g errgroup.Group
			g.Go(func() error { return p.Start(s.ctx) })
			must(s.T, s.w.redis.Redis.Kill(s.ctx))
			must(s.T, g.Wait())
		},
		heal: func(s *trial) { must(s.T, s.w.redis.Redis.Start(s.ctx)) },
	}
}

// TestTogether kills several parts of the system at once, or one while another recovers; and cuts the power of all of it.
//
// Row B3: any processes die at any moment, several of them in the same one.
func TestTogether(t *testing.T) {
	sideBySide(t)
	dir := t.TempDir()
	g := &ground{dir: dir, bin: filepath.Join(dir, "bin"), servers: openServers(t, filepath.Join(dir, "servers"))}
	build(t, g.bin)
	v := g.servers
	redisDisk := g.cuttable(t, v.Redis, powercut.Disk{})
	mysqlDisk := g.cuttable(t, v.MySQL, powercut.Disk{}, mariadbSeen...)
	rabbitDisk := g.cuttable(t, v.RabbitMQ, powercut.Disk{Journal: true})
	must(t, v.Start(t.Context()))
	redis := func(*world) *stack.Process { return v.Redis }
	mysql := func(*world) *stack.Process { return v.MySQL }
	rabbitmq := func(*world) *stack.Process { return v.RabbitMQ }
	backend := func(w *world) *stack.Process { return w.backend }
	gateway := func(w *world) *stack.Process { return w.gateway }
	these := func(all ...func(*world) *stack.Process) func(*world) []*stack.Process {
		return func(w *world) (list []*stack.Process) {
			for _, p := range all {
				list = append(list, p(w))
			}
			return list
		}
	}
	everything := these(redis, mysql, rabbitmq, backend, gateway)

	w := g.world(t, options{maxLag: "1h", maxOutage: "1h"})
	w.group(t, partTogether,
		atOnceKilled("redis and mysql", 3, these(redis, mysql)),
		atOnceKilled("redis and rabbitmq", 1, these(redis, rabbitmq)),
		atOnceKilled("mysql and rabbitmq", 1, these(mysql, rabbitmq)),
		atOnceKilled("redis and the backend", 3, these(redis, backend)),
		atOnceKilled("mysql and the backend", 3, these(mysql, backend)),
		atOnceKilled("rabbitmq and the backend", 1, these(rabbitmq, backend)),
		atOnceKilled("all five", 2, everything),
		whileRedisRecovers("the backend that reconciles", backend),
		whileRedisRecovers("mysql", mysql),
		whileRedisRecovers("redis again", redis),
		whileItRecovers("rabbitmq", rabbitmq),
		whileItRecovers("mysql", mysql),
	)

	// The power of everything is cut, a few times: each store is left with what it had synced.
	blackout := func(after string) disorder {
		return disorder{
			what: "a power cut of everything, accept.after " + after, injected: "SIGKILL of all five, each store cut back to what it had synced", times: 1, twice: true,
			strike: func(s *trial) {
				s.rest()
				must(s.T, rabbitDisk.Settle())
				if after == "confirm" {
					s.w.config(s.T, "appendfsync", "everysec")
				}
				s.places, s.pace = lanes/2, everySoInSoak
				s.press()
				s.more(atOnce)
				must(s.T, each(s.ctx, everything(s.w), (*stack.Process).Kill))
				var said []string
				for name, d := range map[string]*powercut.Disk{"redis": redisDisk, "mysql": mysqlDisk, "rabbitmq": rabbitDisk} {
					loss, err := d.Cut()
					must(s.T, err)
					said = append(said, fmt.Sprintf("%s: %v", name, loss))
				}
				s.Log(strings.Join(said, "\n"))
			},
			heal: func(s *trial) { must(s.T, each(s.ctx, everything(s.w), (*stack.Process).Start)) },
		}
	}
	w.group(t, partTogether, blackout("fsync"), blackout("fsync"), blackout("fsync"))
	w.reconciled(t)
	w.drained(t)
	confirmed := g.world(t, options{after: "confirm", maxLag: "1h", maxOutage: "1h"})
	confirmed.group(t, partTogether, blackout("confirm"))
	confirmed.reconciled(t)
	confirmed.drained(t)
}
