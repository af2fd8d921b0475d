//go:build servers

package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/powercut"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
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
func atOnceKilled(what string, times int, victims func(*system) []*stack.Process) disorder {
	return disorder{
		what: "at once: " + what, injected: "SIGKILL of all of them, and started again side by side", times: times, twice: true,
		strike: func(s *trial) {
			for i := range cmp.Or(times, 1) {
				if i > 0 {
					world.Must(s.T, each(s.ctx, victims(s.w), (*stack.Process).Start))
					s.more(50)
				}
				world.Must(s.T, each(s.ctx, victims(s.w), (*stack.Process).Kill))
			}
		},
		heal: func(s *trial) { world.Must(s.T, each(s.ctx, victims(s.w), (*stack.Process).Start)) },
	}
}

// recovering waits until the sale's gate is closed by a reconciler that has come since.
func (s *trial) recovering(token int64) {
	s.Helper()
	s.until("a reconciler works on the sale", func(ctx context.Context) error {
		g, err := s.w.Books.Gate(ctx, s.sale)
		if err == nil && g.Token == token {
			err = errors.New("none does")
		}
		return err
	})
}

// token is the newest reconciler's.
func (s *trial) token() int64 {
	s.Helper()
	g, err := s.w.Books.Gate(s.ctx, s.sale)
	world.Must(s.T, err)
	return g.Token
}

// whileRedisRecovers kills another process as soon as a reconciler works on the sale, after Redis was killed.
func whileRedisRecovers(what string, victim func(*system) *stack.Process) disorder {
	const times = 3
	return disorder{
		what: "redis recovers, and meanwhile dies " + what, injected: "SIGKILL of redis; SIGKILL of the other once a reconciler has its token", times: times, twice: true,
		strike: func(s *trial) {
			for range times {
				token := s.token()
				world.Must(s.T, s.w.redis.Redis.Kill(s.ctx))
				world.Must(s.T, s.w.redis.Redis.Start(s.ctx))
				s.recovering(token)
				world.Must(s.T, victim(s.w).Kill(s.ctx))
				world.Must(s.T, victim(s.w).Start(s.ctx))
				s.more(20)
			}
		},
		heal: func(*trial) {},
	}
}

// whileItRecovers kills redis as soon as a killed store serves again, or has begun to.
func whileItRecovers(what string, first func(*system) *stack.Process) disorder {
	return disorder{
		what: what + " recovers, and meanwhile dies redis", injected: "SIGKILL of the one; SIGKILL of redis while it starts", twice: true,
		strike: func(s *trial) {
			p := first(s.w)
			world.Must(s.T, p.Kill(s.ctx))
			var g errgroup.Group
			g.Go(func() error { return p.Start(s.ctx) })
			world.Must(s.T, s.w.redis.Redis.Kill(s.ctx))
			world.Must(s.T, g.Wait())
		},
		heal: func(s *trial) { world.Must(s.T, s.w.redis.Redis.Start(s.ctx)) },
	}
}

// TestTogether kills several parts of the system at once, or one while another recovers; and cuts the power of Redis and RabbitMQ while all die.
//
// Row B3: any processes die at any moment, several of them in the same one.
func TestTogether(t *testing.T) {
	t.Attr("row", "B3")
	sideBySide(t)
	g := openGround(t)
	v := g.Servers
	redisDisk := g.cuttable(t, v.Redis, powercut.Disk{})
	rabbitDisk := g.cuttable(t, v.RabbitMQ, powercut.Disk{Journal: true})
	world.Must(t, v.Start(t.Context()))
	redis := func(*system) *stack.Process { return v.Redis }
	mysql := func(*system) *stack.Process { return v.MySQL }
	rabbitmq := func(*system) *stack.Process { return v.RabbitMQ }
	backend := func(w *system) *stack.Process { return w.Backend }
	gateway := func(w *system) *stack.Process { return w.Gateway }
	these := func(all ...func(*system) *stack.Process) func(*system) []*stack.Process {
		return func(w *system) (list []*stack.Process) {
			for _, p := range all {
				list = append(list, p(w))
			}
			return list
		}
	}
	everything := these(redis, mysql, rabbitmq, backend, gateway)

	w := g.system(t, options{maxLag: "1h", maxOutage: "1h"})
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

	// Everything dies, a few times, and Redis and RabbitMQ are left with what they had synced. MariaDB is killed: TestPowerCut cuts its power.
	blackout := func(after string) disorder {
		return disorder{
			what: "a power cut of everything, accept.after " + after, injected: "SIGKILL of all five, redis and rabbitmq cut back to what they had synced", times: 1, twice: true,
			strike: func(s *trial) {
				s.rest()
				world.Must(s.T, rabbitDisk.Settle())
				if after == "confirm" {
					s.w.config(s.T, "appendfsync", "everysec")
				}
				s.places, s.pace = lanes/2, everySoInSoak
				s.press()
				s.more(atOnce)
				world.Must(s.T, each(s.ctx, everything(s.w), (*stack.Process).Kill))
				var said []string
				for name, d := range map[string]*powercut.Disk{"redis": redisDisk, "rabbitmq": rabbitDisk} {
					loss, err := d.Cut()
					world.Must(s.T, err)
					said = append(said, fmt.Sprintf("%s: %v", name, loss))
				}
				s.Log(strings.Join(said, "\n"))
			},
			heal: func(s *trial) { world.Must(s.T, each(s.ctx, everything(s.w), (*stack.Process).Start)) },
		}
	}
	w.group(t, partTogether, blackout("fsync"), blackout("fsync"), blackout("fsync"))
	w.reconciled(t)
	w.drained(t)
	confirmed := g.system(t, options{after: "confirm", maxLag: "1h", maxOutage: "1h"})
	confirmed.group(t, partTogether, blackout("confirm"))
	confirmed.reconciled(t)
	confirmed.drained(t)
}
