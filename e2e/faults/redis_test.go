//go:build servers

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"floodgate.internal/e2e/powercut"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// redisFaults are a Redis that keeps all that it has acknowledged, and what accept.after: fsync makes of it.
func redisFaults(t *testing.T, g *ground) {
	own := world.OpenServers(t, filepath.Join(g.Dir, "redis"))
	disk := g.cuttable(t, own.Redis, powercut.Disk{})
	world.Must(t, own.Redis.Start(t.Context()))
	w := g.system(t, options{redis: own, ownConsumer: true, maxLag: "1h"})
	w.group(t, partRedis,
		redisPaused(own, "redis"),
		disorder{
			what: "redis: restarted", injected: "SIGTERM, and started again", twice: true,
			strike: func(s *trial) { world.Must(s.T, own.Redis.Stop(s.ctx)) },
			heal:   func(s *trial) { world.Must(s.T, own.Redis.Start(s.ctx)) },
		},
		disorder{
			what: "redis: out of memory", injected: "maxmemory 1, noeviction", keep: true, twice: true,
			strike: outOfMemory,
			heal:   func(s *trial) { s.w.config(s.T, "maxmemory", "0") },
		},
		disorder{
			what: "redis: a power cut", injected: "SIGKILL, its files cut back to exactly what it had synced", twice: true,
			strike: func(s *trial) { powerless(s, own.Redis, disk) },
			heal:   func(s *trial) { world.Must(s.T, own.Redis.Start(s.ctx)) },
		},
		tornWrite(own),
		disorder{
			what: "redis: restarted empty", injected: "SIGKILL and no data, with 300 orders in the broker and nowhere else", keep: true, twice: true,
			strike: func(s *trial) {
				world.Must(s.T, s.w.Consumer.Kill(s.ctx))
				s.more(300)
				s.rest() // an order that is promised and not published yet would be lost: so much is said
				s.published()
				world.Must(s.T, own.Redis.Kill(s.ctx))
				world.Must(s.T, own.Redis.Wipe())
				s.press()
			},
			heal: func(s *trial) {
				world.Must(s.T, own.Redis.Start(s.ctx))
				world.Must(s.T, s.w.Consumer.Start(s.ctx))
			},
		},
	)
	w.drained(t)
}

// redisConfirmed are the same and worse with accept.after: confirm: a Redis that loses what it has acknowledged.
func redisConfirmed(t *testing.T, g *ground) {
	own, other := world.OpenServers(t, filepath.Join(g.Dir, "redis-1")), world.OpenServers(t, filepath.Join(g.Dir, "redis-2"))
	world.Must(t, own.Redis.Start(t.Context()))
	world.Must(t, other.Redis.Start(t.Context()))
	w := g.system(t, options{linked: true, redis: own, after: "confirm", ownConsumer: true, maxLag: "1h"})
	first := w.Books.Redis
	second, err := world.OpenRedis(other.RedisAddr())
	world.Must(t, err)
	t.Cleanup(second.Close)
	w.group(t, partRedis,
		redisPaused(own, "redis, confirm"),
		disorder{
			what: "redis, confirm: killed", injected: "SIGKILL, and started again", twice: true,
			strike: func(s *trial) { world.Must(s.T, own.Redis.Kill(s.ctx)) },
			heal:   func(s *trial) { world.Must(s.T, own.Redis.Start(s.ctx)) },
		},
		disorder{
			what: "redis, confirm: restarted with its file cut back", injected: "everysec; SIGKILL, the append-only file cut 100 promised orders ago; no consumer", keep: true, twice: true,
			strike: func(s *trial) {
				world.Must(s.T, s.w.Consumer.Kill(s.ctx))
				s.w.config(s.T, "appendfsync", "everysec")
				file := aof(s.T, own)
				s.more(50)
				synced, err := os.Stat(file)
				world.Must(s.T, err)
				s.more(100)
				world.Must(s.T, own.Redis.Kill(s.ctx))
				world.Must(s.T, os.Truncate(file, synced.Size()))
			},
			heal: func(s *trial) {
				world.Must(s.T, own.Redis.Start(s.ctx))
				world.Must(s.T, s.w.Consumer.Start(s.ctx))
			},
		},
		disorder{
			what: "redis, confirm: fails over to a stale replica", injected: "SIGKILL; a replica takes over that stopped 100 promised orders ago; no consumer", keep: true, twice: true,
			strike: func(s *trial) {
				world.Must(s.T, s.w.Consumer.Kill(s.ctx))
				follow(s, second, own)
				standAlone(s, second)
				s.more(100)
				world.Must(s.T, own.Redis.Kill(s.ctx))
				s.w.Links.Redis.Target(other.RedisAddr())
				s.w.primary(second)
			},
			heal: func(s *trial) { world.Must(s.T, s.w.Consumer.Start(s.ctx)) },
		},
		disorder{
			what: "redis, confirm: fails back to a stale replica", injected: "the first one, which was not started anew, takes over as it was 100 promised orders ago; no consumer", keep: true, twice: true,
			strike: func(s *trial) {
				world.Must(s.T, own.Redis.Start(s.ctx))
				follow(s, first, other)
				s.swap(own, first)
				s.more(20)
				follow(s, second, own)
				s.swap(other, second)
				s.more(20)
				world.Must(s.T, s.w.Consumer.Kill(s.ctx))
				follow(s, first, other)
				standAlone(s, first)
				s.more(100)
				s.swap(own, first)
			},
			heal: func(s *trial) { world.Must(s.T, s.w.Consumer.Start(s.ctx)) },
		},
	)
	w.drained(t)
}

// redisPaused stops Redis for longer than every time-out and idle bound: scripts that were given up run when it goes on.
func redisPaused(own *stack.Servers, name string) disorder {
	return disorder{
		what: name + ": paused", injected: "SIGSTOP for longer than every call of it may take", twice: true,
		strike: func(s *trial) { world.Must(s.T, own.Redis.Signal(syscall.SIGSTOP)); s.lasts() },
		heal:   func(s *trial) { world.Must(s.T, own.Redis.Signal(syscall.SIGCONT)) },
	}
}

// tornWrite is a Redis that dies while it writes an order down, so that the beginning of that is in its file and the end is not, is
// started, takes orders, dies again and is started again. Redis 7.0 forgets the order at the first start, leaves its beginning in the
// file all the same, and at the second start takes it for a part of the transaction behind it: the order is back, in the outbox
// alone. Its buyer was told nothing, asked again under the same key, and was promised another one.
func tornWrite(own *stack.Servers) disorder {
	var ghost, file string
	return disorder{
		what: "redis: killed in the middle of writing an order down, and once more", injected: "SIGKILL, the append-only file ends in the middle of an order's transaction; orders; SIGKILL", keep: true,
		strike: func(s *trial) {
			file = aof(s.T, own)
			world.Must(s.T, own.Redis.Kill(s.ctx))
			ghost = tear(s, file)
			world.Must(s.T, own.Redis.Start(s.ctx))
			s.more(20)
			world.Must(s.T, own.Redis.Kill(s.ctx))
		},
		heal: func(s *trial) {
			left, err := os.ReadFile(file)
			world.Must(s.T, err)
			world.Must(s.T, own.Redis.Start(s.ctx))
			if !bytes.Contains(left, []byte(ghost)) {
				s.Log("this Redis took the beginning out of its file")
				return
			}
			s.until("the order that came back is rejected", func(ctx context.Context) error {
				var status string
				if err := s.w.Books.DB.QueryRowContext(ctx, "SELECT status FROM orders WHERE id = ?", ghost).Scan(&status); err != nil {
					return fmt.Errorf("order %s: %w", ghost, err)
				}
				if status != string(wire.Rejected) {
					return fmt.Errorf("order %s is %s", ghost, status)
				}
				return nil
			})
		},
	}
}

// tear puts the transaction of one more order of the sale's last buyer behind the end of an append-only file, without its end, and returns the
// order's id.
func tear(s *trial, file string) (order string) {
	s.Helper()
	text, err := os.ReadFile(file)
	world.Must(s.T, err)
	begin, add, end := []byte("*1\r\n$5\r\nMULTI\r\n"), []byte("\r\nXADD\r\n"), []byte("*1\r\n$4\r\nEXEC\r\n")
	key := fmt.Appendf(nil, "\r\n%s\r\n", s.key("outbox"))
	at := bytes.LastIndex(text, append(bytes.Clone(add), fmt.Appendf(nil, "$%d%s", len(s.key("outbox")), key)...))
	if at < 0 {
		s.Fatalf("no order of sale %d is in %s", s.sale, file)
	}
	from, length := bytes.LastIndex(text[:at], begin), bytes.Index(text[at:], end)
	if from < 0 || length < 0 {
		s.Fatalf("the last order of %s is in no transaction", file)
	}
	last := text[from : at+length]
	parts := bytes.Split(text[at:at+length], []byte("\r\n")) // "", XADD, $, key, $, entry, $, id, $, the order's, ...
	entry, id := string(parts[5]), string(parts[9])
	millis, n, _ := strings.Cut(entry, "-")
	later, err := strconv.ParseInt(millis, 10, 64)
	world.Must(s.T, err)
	order = wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), s.sale)
	torn := bytes.ReplaceAll(bytes.ReplaceAll(last, []byte(entry), fmt.Appendf(nil, "%d-%s", later+1, n)), []byte(id), []byte(order))
	world.Must(s.T, os.WriteFile(file, append(text, torn[:len(torn)-10]...), 0o644))
	return order
}

// config sets a parameter of the world's Redis.
func (w *system) config(t *testing.T, name, value string) {
	t.Helper()
	c := w.Books.Redis
	world.Must(t, c.Do(context.Background(), c.B().ConfigSet().ParameterValue().ParameterValue(name, value).Build()).Error())
}

// outOfMemory: a script that cannot write has written nothing, and that is what buyers are told; what was promised before is
// finished meanwhile.
func outOfMemory(s *trial) {
	s.loads[0].answered()
	before := s.log.Promises()
	known := strings.Contains(s.log.Summary(), "OUTCOME_UNKNOWN")
	s.w.config(s.T, "maxmemory", "1")
	s.loads[0].answered()
	at := s.log.Promised()
	s.until("what was promised before is in MySQL, and nothing in the outbox", func(ctx context.Context) error {
		var rows int
		if err := s.w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE sale_id = ?", s.sale).Scan(&rows); err != nil {
			return err
		}
		c := s.w.Books.Redis
		left, err := c.Do(ctx, c.B().Xlen().Key(s.key("outbox")).Build()).AsInt64()
		if err == nil && (rows < len(before) || left > 0) {
			err = fmt.Errorf("%d of %d are, the outbox holds %d", rows, len(before), left)
		}
		return err
	})
	s.until("everybody is told to come again", func(context.Context) error {
		if text := s.log.Summary(); !strings.Contains(text, "503 OVERLOADED") {
			return errors.New(text)
		}
		return nil
	})
	s.loads[0].answered()
	if text := s.log.Summary(); s.log.Promised() != at || !known && strings.Contains(text, "OUTCOME_UNKNOWN") {
		s.Errorf("%d orders were promised out of memory, want none, and nobody told that nobody knows: %s", s.log.Promised()-at, text)
	}
}

// aof is the append-only file of what Redis has written since it was started.
func aof(t *testing.T, v *stack.Servers) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(v.Redis.DataDir(), "appendonlydir", "*.incr.aof"))
	if err != nil || len(found) != 1 {
		t.Fatalf("append-only files: %v, %v; want one", found, err)
	}
	return found[0]
}

// key is the name of one of the sale's keys in Redis.
func (s *trial) key(name string) string {
	return fmt.Sprintf("%s{sale:%d}:%s", s.w.Books.Prefix, s.sale, name)
}

// published waits until every entry of the sale's outbox is marked as confirmed by the broker.
func (s *trial) published() {
	s.Helper()
	c := s.w.Books.Redis
	key := s.key("outbox")
	s.until("the broker has every order", func(ctx context.Context) error {
		all, err := c.Do(ctx, c.B().Xlen().Key(key).Build()).AsInt64()
		if err != nil {
			return err
		}
		list, err := c.Do(ctx, c.B().XinfoConsumers().Key(key).Group("orders").Build()).ToArray()
		if err != nil {
			return err
		}
		var marked int64
		for _, m := range list {
			info, err := m.AsMap()
			if err != nil {
				return err
			}
			who, pending := info["name"], info["pending"]
			if name, _ := who.ToString(); name == "published" {
				if marked, err = pending.AsInt64(); err != nil {
					return err
				}
			}
		}
		if marked < all {
			return fmt.Errorf("%d of %d", marked, all)
		}
		return nil
	})
}

// follow makes a Redis the replica of another, and waits until it has all that the other has now.
func follow(s *trial, replica rueidis.Client, of *stack.Servers) {
	s.Helper()
	host, port, _ := strings.Cut(of.RedisAddr(), ":")
	b := replica.B()
	world.Must(s.T, replica.Do(s.ctx, b.ConfigSet().ParameterValue().ParameterValue("repl-diskless-sync-delay", "0").Build()).Error())
	world.Must(s.T, replica.Do(s.ctx, b.Arbitrary("REPLICAOF", host, port).Build()).Error())
	s.until("the replica follows", func(ctx context.Context) error {
		info, err := replica.Do(ctx, b.Info().Section("replication").Build()).ToString()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New(info)
		}
		return err
	})
}

// standAlone makes a replica a primary, with what it has.
func standAlone(s *trial, replica rueidis.Client) {
	s.Helper()
	world.Must(s.T, replica.Do(s.ctx, replica.B().Arbitrary("REPLICAOF", "NO", "ONE").Build()).Error())
}

// swap makes another Redis the primary that everybody talks to.
func (s *trial) swap(to *stack.Servers, client rueidis.Client) {
	s.Helper()
	standAlone(s, client)
	s.w.Links.Redis.Target(to.RedisAddr())
	s.w.Links.Redis.Cut()
	s.w.primary(client)
}
