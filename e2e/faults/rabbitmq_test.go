//go:build servers

package faults

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// rabbitmqFaults are a broker that does not answer, takes nothing, or has lost everything.
func rabbitmqFaults(t *testing.T, g *ground) {
	own := world.OpenServers(t, filepath.Join(g.Dir, "rabbitmq"))
	world.Must(t, own.StartRabbitMQ(t.Context()))
	w := g.system(t, options{linked: true, rabbitmq: own, ownConsumer: true, maxLag: "1h"})
	w.group(t, partRabbitMQ,
		disorder{
			what: "rabbitmq: paused", injected: "SIGSTOP for longer than three heartbeats", // 15 s
			strike: func(s *trial) {
				world.Must(s.T, own.RabbitMQ.Signal(syscall.SIGSTOP))
				world.Pause(s.ctx, 17*time.Second)
			},
			heal: func(s *trial) { world.Must(s.T, own.RabbitMQ.Signal(syscall.SIGCONT)) },
		},
		disorder{
			what: "rabbitmq: restarted", injected: "SIGTERM, and started again",
			strike: func(s *trial) { world.Must(s.T, own.RabbitMQ.Stop(s.ctx)) },
			heal:   func(s *trial) { world.Must(s.T, own.StartRabbitMQ(s.ctx)) },
		},
		alarm("rabbitmq", own, "memory"),
		alarm("rabbitmq", own, "disk"),
		disorder{
			what: "rabbitmq: wiped", injected: "SIGKILL and no data",
			strike: func(s *trial) {
				world.Must(s.T, own.RabbitMQ.Kill(s.ctx))
				world.Must(s.T, own.RabbitMQ.Wipe())
				world.Must(s.T, own.StartRabbitMQ(s.ctx))
			},
			heal: func(s *trial) { world.Must(s.T, s.w.Stores.MakeVhost(s.ctx, s.w.Name)) },
		},
	)
	t.Run("rabbitmq: wiped, with 10,000 orders in it", func(t *testing.T) { report(partRabbitMQ, wiped(t, w)) })
	w.drained(t)
	confirmed := g.system(t, options{linked: true, rabbitmq: own, after: "confirm"})
	confirmed.group(t, partRabbitMQ, alarm("rabbitmq, confirm", own, "memory"))
	confirmed.drained(t)
}

// alarm makes the broker block publishers.
func alarm(name string, v *stack.Servers, of string) disorder {
	set := map[string][]string{"memory": {"set_vm_memory_high_watermark", "0.000001"}, "disk": {"set_disk_free_limit", "1000000GB"}}[of]
	reset := map[string][]string{"memory": {"set_vm_memory_high_watermark", "0.4"}, "disk": {"set_disk_free_limit", "50MB"}}[of]
	return disorder{
		what: name + ": " + of + " alarm", injected: "rabbitmqctl " + strings.Join(set, " "),
		strike: func(s *trial) {
			_, err := v.RabbitMQCtl(s.ctx, set...)
			world.Must(s.T, err)
			s.until("publishers are blocked", func(ctx context.Context) error {
				if a := s.w.do(ctx, "GET", s.w.Ports.AdminURL()+"/-/ready", "", "", ""); !strings.Contains(string(a.Body), "rabbitmq blocks publishers") {
					return errors.New(a.String())
				}
				return nil
			})
			s.lasts()
		},
		heal: func(s *trial) {
			_, err := v.RabbitMQCtl(s.ctx, reset...)
			world.Must(s.T, err)
		},
	}
}

// wiped deletes every queue while ten thousand orders are in them, and nobody consumes: the outbox has them all.
func wiped(t *testing.T, w *system) line {
	const stock = 10_000
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	world.Must(t, w.Consumer.Kill(ctx))
	s := &trial{T: t, w: w, ctx: ctx, sale: w.newSale(t, "ten thousand", stock, time.Hour), log: oracle.NewLog()}
	s.reserve(stock)
	s.published()
	queues, err := w.Queues(ctx)
	world.Must(t, err)
	for _, q := range queues {
		world.Must(t, w.Stores.Manage(ctx, "DELETE", "/queues/"+w.Name+"/"+url.PathEscape(q.Name), "", nil))
	}
	over := time.Now()
	world.Must(t, w.Consumer.Start(ctx))
	tally := w.rest(t, s.sale, stock, s.log)
	return line{fault: "rabbitmq: wiped, with 10,000 orders in it", injected: "every queue deleted", times: 1, tally: &tally, settled: time.Since(over)}
}

// reserve makes n orders with the script itself, as it is loaded in the present life of Redis, each for a buyer of its own.
func (s *trial) reserve(n int) {
	s.Helper()
	root, err := stack.Root()
	world.Must(s.T, err)
	script, err := os.ReadFile(filepath.Join(root, "lua", "sale_reserve.lua"))
	world.Must(s.T, err)
	var life string
	world.Must(s.T, s.w.Books.DB.QueryRowContext(s.ctx, "SELECT name FROM redis_life").Scan(&life))
	sha := fmt.Sprintf("%x", sha1.Sum(append(script, "-- incarnation "+life+"\n"...)))
	c := s.w.Books.Redis
	epoch, err := c.Do(s.ctx, c.B().Hget().Key(s.key("state")).Field("epoch").Build()).ToString()
	world.Must(s.T, err)
	keys := []string{s.key("state"), s.key("orders"), s.key("buyers"), s.key("idem"), s.key("outbox")}
	for from := 0; from < n; from += 500 {
		var cmds rueidis.Commands
		for i := from; i < min(from+500, n); i++ {
			id := wire.NewOrderID(fmt.Sprintf("0190163d-8694-739b-aea5-%012d", i), s.sale)
			cmds = append(cmds, c.B().Evalsha().Sha1(sha).Numkeys(int64(len(keys))).Key(keys...).Arg(epoch, fmt.Sprint("b", i), "1", id, "", "", "", "0").Build())
		}
		for i, r := range c.DoMulti(s.ctx, cmds...) {
			words, err := r.ToArray()
			world.Must(s.T, err)
			verdict, err := words[0].ToString()
			world.Must(s.T, err)
			id, err := words[1].ToString()
			world.Must(s.T, err)
			if verdict != "reserved" {
				s.Fatalf("reserve: got %s", verdict)
			}
			s.log.Add(oracle.Answer{UID: fmt.Sprint("b", from+i), Status: 202, OrderID: id})
		}
	}
}

// rabbitmqNodes are three brokers that are one, behind one address: the orders' queues have a member on each.
func rabbitmqNodes(t *testing.T, g *ground) {
	first := world.OpenServers(t, filepath.Join(g.Dir, "node-1"))
	world.Must(t, first.StartRabbitMQ(t.Context()))
	nodes := []*stack.Servers{first}
	for i := 2; i <= 3; i++ {
		v, err := first.JoinRabbitMQ(t.Context(), filepath.Join(g.Dir, fmt.Sprint("node-", i)))
		world.Must(t, err)
		t.Cleanup(func() { world.Must(t, v.Kill(context.Background())) })
		nodes = append(nodes, v)
	}
	w := g.system(t, options{linked: true, rabbitmq: first})
	lose := func(what string, victim *stack.Servers, next *stack.Servers) disorder {
		return disorder{
			what: "rabbitmq: one of three nodes is lost, " + what, injected: "SIGKILL; the others go on; started again later",
			strike: func(s *trial) {
				s.members(3)
				world.Must(s.T, victim.RabbitMQ.Kill(s.ctx))
				u, err := url.Parse(next.AMQPURL())
				world.Must(s.T, err)
				s.w.Links.RabbitMQ.Target(u.Host)
				s.settling(50)
			},
			heal: func(s *trial) { world.Must(s.T, victim.StartRabbitMQ(s.ctx)) },
		}
	}
	w.group(t, partRabbitMQ,
		lose("to which nobody is connected", nodes[2], nodes[0]),
		lose("to which everybody is connected", nodes[0], nodes[1]),
	)
	w.drained(t)

	// A queue that has lost the majority of its members takes and gives nothing any more. A new one needs another vhost.
	moved := g.system(t, options{linked: true, rabbitmq: first, maxLag: "1h", maxOutage: "1h"})
	moved.group(t, partRabbitMQ, disorder{
		what: "rabbitmq: two of three nodes are lost for good", injected: "SIGKILL; rabbitmqctl forget_cluster_node; queue.url with a new vhost, and the backend restarted",
		strike: func(s *trial) {
			s.members(3)
			for _, v := range nodes[1:] {
				world.Must(s.T, v.RabbitMQ.Kill(s.ctx))
			}
			s.more(100) // they wait in the outbox
			s.forgetNodes(first)
			world.Must(s.T, moved.Backend.Stop(s.ctx))
			moved.Vhost += "_2"
			world.Must(s.T, moved.Stores.MakeVhost(s.ctx, moved.Vhost))
			world.Must(s.T, moved.WriteBackend("backend", moved.Through))
		},
		heal: func(s *trial) { world.Must(s.T, moved.Backend.Start(s.ctx)) },
	})
	moved.drained(t)
}

// forgetNodes removes the nodes that do not run from the broker's cluster.
func (s *trial) forgetNodes(v *stack.Servers) {
	s.Helper()
	var nodes []struct {
		Name    string `json:"name"`
		Running bool   `json:"running"`
	}
	s.until("the broker knows which nodes are gone", func(ctx context.Context) error {
		err := s.w.Stores.Manage(ctx, "GET", "/nodes", "", &nodes)
		gone := 0
		for _, n := range nodes {
			if !n.Running {
				gone++
			}
		}
		if err == nil && gone != 2 {
			err = fmt.Errorf("%d are", gone)
		}
		return err
	})
	for _, n := range nodes {
		if n.Running {
			continue
		}
		_, err := v.RabbitMQCtl(s.ctx, "forget_cluster_node", n.Name)
		world.Must(s.T, err)
	}
}

// members waits until every partition's queue has so many members that are there.
func (s *trial) members(n int) {
	s.Helper()
	s.until(fmt.Sprintf("every queue has %d members", n), func(ctx context.Context) error {
		queues, err := s.w.Queues(ctx)
		if err != nil {
			return err
		}
		for _, q := range queues {
			if len(q.Online) != n {
				return fmt.Errorf("%s has %v", q.Name, q.Online)
			}
		}
		return nil
	})
}

// settling waits until so many more orders are in MySQL.
func (s *trial) settling(n int) {
	s.Helper()
	count := func(ctx context.Context) (rows int, err error) {
		err = s.w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE sale_id = ?", s.sale).Scan(&rows)
		return rows, err
	}
	before, err := count(s.ctx)
	world.Must(s.T, err)
	s.until(fmt.Sprintf("%d more orders are in MySQL", n), func(ctx context.Context) error {
		now, err := count(ctx)
		if err == nil && now < before+n {
			err = fmt.Errorf("%d are", now-before)
		}
		return err
	})
}
