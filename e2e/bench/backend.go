package bench

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/rueidis"
	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/outbox"
	reserving "floodgate.internal/backend/reserve"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/ports"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

const (
	timedRounds = 3   // of those that follow orders to MySQL
	rowsAtOnce  = 200 // in one transaction, as the consumer's orders.batch
	enough      = 1_000_000_000
)

// shop is the real backend on the real servers, a process for each set of roles.
type shop struct {
	*bench
	db     *sql.DB
	redis  rueidis.Client
	broker *amqp.Connection
	signer *signing.Signer
	sale   int64
	uids   atomic.Int64 // that were used
}

// backend compares the backend with the plainest program that does the same, and with the stores by themselves.
func (b *bench) backend(ctx context.Context) (err error) {
	s := &shop{bench: b, signer: signing.NewSigner(signing.Key{ID: development.SigningKeyID, Secret: development.SigningSecret})}
	if s.db, err = world.OpenMySQL(b.MySQL); err != nil {
		return err
	}
	defer s.db.Close()
	if s.redis, err = world.OpenRedis(b.Redis); err != nil {
		return err
	}
	defer s.redis.Close()
	if s.broker, err = amqp.Dial(b.AMQP); err != nil {
		return err
	}
	defer s.broker.Close()

	api, at, err := s.run(ctx, "api", "api")
	if err != nil {
		return err
	}
	if s.sale, err = at.create(ctx, "Measured", enough); err != nil {
		return err
	}
	if err := s.compareReserve(ctx, api, at.internal); err != nil {
		return fmt.Errorf("reserve: %w", err)
	}
	if err := s.compareDrain(ctx, at.internal); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if err := api.Stop(ctx); err != nil {
		return err
	}
	if err := s.compareWhole(ctx); err != nil {
		return fmt.Errorf("end to end: %w", err)
	}
	return nil
}

// where is where a process of the backend listens.
type where struct {
	internal string
	admin    *adminapi.Client
}

// create makes an open sale, with an hour to pay.
func (w where) create(ctx context.Context, title string, stock int64) (int64, error) {
	n := adminapi.Goods(title, 4900, stock, time.Now().Add(-time.Minute), time.Now().Add(24*time.Hour))
	n.PayWithin = new(int64(3600))
	return w.admin.CreateSale(ctx, n)
}

// run starts the backend in these roles.
func (s *shop) run(ctx context.Context, name, roles string) (*stack.Process, where, error) {
	free, err := ports.Free(2)
	if err != nil {
		return nil, where{}, err
	}
	internal, admin := "127.0.0.1:"+strconv.Itoa(free[0]), "127.0.0.1:"+strconv.Itoa(free[1])
	text := development.Backend(development.Addrs{Internal: internal, Admin: admin}, fmt.Sprintf(`redis:
  addrs: [%q]
  prefix: %q

mysql:
  dsn: %q

queue:
  driver: rabbitmq
  url: %q
  management_url: %q

orders: # what is measured is not to be shed
  max_queued: 10000000
  max_lag: 1h
`, s.Redis, stack.RedisPrefix, s.MySQL, s.AMQP, s.Management), "warn")
	config, err := filepath.Abs(filepath.Join(s.dir, name+".yaml"))
	if err != nil {
		return nil, where{}, err
	}
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return nil, where{}, err
	}
	binary, err := filepath.Abs(filepath.Join(s.Bin, "backend"))
	if err != nil {
		return nil, where{}, err
	}
	if err := stack.Migrate(ctx, binary, config); err != nil {
		return nil, where{}, err
	}
	p, err := s.start(ctx, stack.Program{Name: "backend-" + name, Path: binary, Args: []string{"-config", config, "-roles", roles}, Addrs: []string{internal, admin}, Ready: "http://" + admin + "/-/ready"})
	return p, where{internal, stack.Admin(admin)}, err
}

// orders are presses of users who have not pressed before, as a gateway sends them.
func (s *shop) orders(n int) [][]byte {
	all := make([][]byte, n)
	var req fasthttp.Request
	for i := range all {
		uid := s.uids.Add(1)
		req.Reset()
		req.Header.SetMethod("POST")
		req.SetRequestURI(ordersPath(s.sale))
		req.Header.SetHost("backend")
		req.Header.SetContentType("application/json")
		req.Header.Set("Idempotency-Key", fmt.Sprintf("key-%d", uid))
		req.SetBodyString(`{"quantity":1}`)
		s.signer.Sign(&req, strconv.FormatInt(uid, 10), time.Now())
		var text bytes.Buffer
		if _, err := req.WriteTo(&text); err != nil {
			panic("BUG: " + err.Error())
		}
		all[i] = text.Bytes()
	}
	return all
}

// compareReserve: the api's process against one that does nothing but call the script. Redis syncs for both before it answers.
func (s *shop) compareReserve(ctx context.Context, api *stack.Process, addr string) error {
	state, err := s.state(ctx)
	if err != nil {
		return err
	}
	plain := Peer{Kind: reserve, Redis: s.Redis, State: state}
	peer, err := s.peer(ctx, "reserve-peer", &plain, s.start)
	if err != nil {
		return err
	}
	costs, load, err := s.cpuOfEach(ctx, s.Size/4, side{api, addr, 202, s.orders}, side{peer, plain.Listen, 202, s.orders})
	if err != nil {
		return err
	}
	s.add(Row{What: "an order reserved by the backend's api", Load: load, Against: "a bare fasthttp server and one EVALSHA of the same script", Goal: 1.3, Limit: AtMost, Unit: "µs of CPU a request", Unequal: "the bare server verifies no signature, knows no sale and bounds nothing"}, costs[0], costs[1])
	return peer.Kill(ctx)
}

func (s *shop) state(ctx context.Context) (map[string]string, error) {
	return s.redis.Do(ctx, s.redis.B().Hgetall().Key(saleKeys(stack.RedisPrefix, s.sale)[0]).Build()).AsStrMap()
}

// compareDrain: what a consumer does with a queue that is full, against the same rows by plain multi-row INSERTs on one connection.
func (s *shop) compareDrain(ctx context.Context, api string) error {
	relay, _, err := s.run(ctx, "relay", "relay")
	if err != nil {
		return err
	}
	var drained, inserted []float64
	for range timedRounds {
		before, err := s.locked(ctx)
		if err != nil {
			return err
		}
		at := crowd{addr: api}
		err = at.press(ctx, s.orders(2*s.Size), 202)
		at.close()
		if err != nil {
			return err
		}
		var waiting int64
		if err := until(ctx, func() (bool, error) {
			queued, err := s.redis.Do(ctx, s.redis.B().Xlen().Key(saleKeys(stack.RedisPrefix, s.sale)[4]).Build()).AsInt64()
			published, e := s.published(ctx)
			waiting = queued
			return published == queued, errors.Join(err, e)
		}); err != nil {
			return fmt.Errorf("the relay publishes: %w", err)
		}
		if err := relay.Stop(ctx); err != nil { // it has nothing to do, and would only look
			return err
		}
		raw, err := s.insertRaw(ctx, 2*s.Size)
		if err != nil {
			return err
		}
		consumer, _, err := s.run(ctx, "consumer", "consumer")
		if err != nil {
			return err
		}
		rate, err := s.follow(ctx, before, before+waiting)
		if err != nil {
			return err
		}
		drained, inserted = append(drained, rate), append(inserted, raw)
		if err := until(ctx, func() (bool, error) { // and their entries are retired
			n, err := s.redis.Do(ctx, s.redis.B().Xlen().Key(saleKeys(stack.RedisPrefix, s.sale)[4]).Build()).AsInt64()
			return n == 0, err
		}); err != nil {
			return err
		}
		if err := consumer.Stop(ctx); err != nil {
			return err
		}
		if err := relay.Start(ctx); err != nil {
			return err
		}
	}
	s.add(Row{What: "a full queue drained by one consumer", Against: "the same rows by raw multi-row INSERTs on one connection", Goal: 0.65, Limit: AtLeast, Unit: "orders/s", Unequal: "the INSERTs decide nothing, and take nothing out of a queue or an outbox"}, drained, inserted)
	return relay.Stop(ctx)
}

// compareWhole: orders from the press to their rows, through everything, against the slowest of the stages by themselves.
func (s *shop) compareWhole(ctx context.Context) error {
	_, at, err := s.run(ctx, "whole", "api,relay,consumer,timer")
	if err != nil {
		return err
	}
	state, err := s.state(ctx)
	if err != nil {
		return err
	}
	var whole, slowest []float64
	for range timedRounds {
		var stages []float64
		for _, stage := range []struct {
			name string
			run  func(context.Context, int) (float64, error)
		}{
			{"Redis's script", func(ctx context.Context, n int) (float64, error) { return s.scriptAlone(ctx, state, n) }},
			{"confirmed publishes", s.publishAlone}, {"raw INSERT", s.insertRaw},
		} {
			rate, err := stage.run(ctx, 2*s.Size)
			if err != nil {
				return fmt.Errorf("%s: %w", stage.name, err)
			}
			s.Progress("by itself, %s: %.0f orders/s", stage.name, rate)
			stages = append(stages, rate)
		}
		before, err := s.locked(ctx)
		if err != nil {
			return err
		}
		requests := s.orders(2 * s.Size)
		crowd := crowd{addr: at.internal}
		began := time.Now()
		err = crowd.press(ctx, requests, 202)
		crowd.close()
		if err != nil {
			return err
		}
		if err := until(ctx, func() (bool, error) {
			now, err := s.locked(ctx)
			return now == before+int64(len(requests)), err
		}); err != nil {
			return err
		}
		whole = append(whole, float64(len(requests))/time.Since(began).Seconds())
		slowest = append(slowest, min(stages[0], stages[1], stages[2]))
	}
	s.add(Row{What: "durable orders, from the press to MySQL", Against: "the slowest stage with the machine to itself", Goal: 0.8, Limit: AtLeast, Unit: "orders/s", Unequal: "the stages share two cores with each other and with the load, the slowest by itself does not"}, whole, slowest)
	return nil
}

// scriptAlone is how many orders a second Redis reserves, each synced.
func (s *shop) scriptAlone(ctx context.Context, state map[string]string, n int) (float64, error) {
	script, err := newScript(ctx, s.Redis, state)
	if err != nil {
		return 0, err
	}
	defer script.close(ctx)
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for lane := range lanes {
		g.Go(func() error {
			for i := lane; i < n; i += lanes {
				if _, err := script.reserve(ctx, strconv.Itoa(i), fmt.Sprintf("key-%d", i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return float64(n) / time.Since(began).Seconds(), err
}

// publishAlone is how many messages of an order's size a second the broker confirms, in a quorum queue.
func (s *shop) publishAlone(ctx context.Context, n int) (float64, error) {
	ch, err := s.broker.Channel()
	if err != nil {
		return 0, err
	}
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		return 0, err
	}
	const queue = "bench"
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return 0, err
	}
	defer ch.QueueDelete(queue, false, false, false)
	body := bytes.Repeat([]byte("x"), 250)
	sent := make(chan *amqp.DeferredConfirmation, 1000)
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	g.Go(func() error {
		defer close(sent)
		for range n {
			c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
			if err != nil {
				return err
			}
			select {
			case sent <- c:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	g.Go(func() error {
		for c := range sent {
			if ok, err := c.WaitContext(ctx); err != nil || !ok {
				return fmt.Errorf("confirmed: %t, %v", ok, err)
			}
		}
		return nil
	})
	err = g.Wait()
	return float64(n) / time.Since(began).Seconds(), err
}

// rawSale is no sale of the shop's.
const rawSale = 1 << 40

// insertRaw is how many orders a second one connection writes, with their slots and ledger rows and no decision.
func (s *shop) insertRaw(ctx context.Context, n int) (float64, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var batches [][3][]any
	now := time.Now().UTC()
	for first := 0; first < n; first += rowsAtOnce {
		var b [3][]any
		for range min(rowsAtOnce, n-first) {
			id, err := uuid.NewV7()
			if err != nil {
				return 0, err
			}
			uid, order := strconv.FormatInt(s.uids.Add(1), 10), wire.NewOrderID(id.String(), rawSale)
			b[0] = append(b[0], order, rawSale, uid, 1, 4900, "pending_payment", "key-"+uid, now, now, now.Add(24*time.Hour))
			b[1] = append(b[1], rawSale, uid, 1, order)
			b[2] = append(b[2], rawSale, "order", order, 0, -1, -1, 0, 1, 1, now)
		}
		batches = append(batches, b)
	}
	began := time.Now()
	for _, b := range batches {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		for i, into := range []string{
			`orders (id, sale_id, uid, quantity, amount, status, idem_key, created_at, decided_at, pay_before)`,
			`order_slots (sale_id, uid, slot, order_id)`,
			`ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)`,
		} {
			row := "(" + strings.Repeat("?,", strings.Count(into, ",")) + "?)"
			rows := len(b[i]) / strings.Count(row, "?")
			if _, err := tx.ExecContext(ctx, "INSERT INTO "+into+" VALUES "+strings.Repeat(row+",", rows-1)+row, b[i]...); err != nil {
				return 0, errors.Join(err, tx.Rollback())
			}
		}
		if err := tx.Commit(); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// locked is how many units wait for payment in MySQL: an order each.
func (s *shop) locked(ctx context.Context) (n int64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT locked FROM sale_stock WHERE sale_id = ?`, s.sale).Scan(&n)
	return n, err
}

// follow is how many orders a second come into MySQL, from the last look that found none until all are there.
func (s *shop) follow(ctx context.Context, before, all int64) (float64, error) {
	began := time.Now()
	err := until(ctx, func() (bool, error) {
		look := time.Now()
		now, err := s.locked(ctx)
		if now == before {
			began = look
		}
		return now == all, err
	})
	return float64(all-before) / time.Since(began).Seconds(), err
}

// published is how many entries of the outbox the relay has noted as confirmed by the broker. What the queue holds says less: a
// message may be there twice.
func (s *shop) published(ctx context.Context) (int64, error) {
	key := saleKeys(stack.RedisPrefix, s.sale)[4]
	summary, err := s.redis.Do(ctx, s.redis.B().Xpending().Key(key).Group(reserving.Group).Build()).ToArray() // count, first, last, by consumer
	if err != nil || len(summary) < 4 {
		return 0, err
	}
	consumers, err := summary[3].ToArray()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, c := range consumers {
		if pair, err := c.AsStrSlice(); err != nil {
			return 0, err
		} else if len(pair) == 2 && pair[0] == outbox.Published {
			return strconv.ParseInt(pair[1], 10, 64)
		}
	}
	return 0, nil
}

// until asks every few milliseconds whether something is so, for at most ten minutes: a bound, for a machine that others use as well.
func until(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
