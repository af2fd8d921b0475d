//go:build servers

package order

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// A racer is this test binary again, as a process of its own with connections of its own. It reads lines of order ids from
// its standard input, does to all orders of a line at once what its role says, and answers with a line of outcomes.
const (
	racerRole  = "FLOODGATE_TEST_RACER"
	racerMySQL = "FLOODGATE_TEST_RACER_DSN"
	racerRedis = "FLOODGATE_TEST_RACER_PREFIX"
)

// The roles. The outcome of the first three is won or lost, an order each; that of the last is how many it ended.
const (
	payer     = "pay"
	canceller = "cancel"
	support   = "support"
	timer     = "expire"

	won, lost = "won", "lost"
)

func race(role string, in io.Reader, out io.Writer) error {
	ctx := context.Background()
	db, err := store.Open(os.Getenv(racerMySQL), 8)
	if err != nil {
		return err
	}
	redis, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: os.Getenv(racerRedis)}, 0)
	if err != nil {
		return err
	}
	asked := time.Now()
	now, err := redis.Client().Now(ctx)
	if err != nil {
		return err
	}
	if role == timer {
		now = now.Add(time.Hour) // to it every order is overdue, to the others none is
	}
	clk := new(clock.Clock)
	clk.Set(now, asked)
	orders := newBook(db, redis, clk, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	for lines := bufio.NewScanner(in); lines.Scan(); {
		ids := strings.Fields(lines.Text())
		if role == timer {
			n, err := orders.Expire(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, n)
			continue
		}
		outcomes, errs := make([]string, len(ids)), make([]error, len(ids))
		var all sync.WaitGroup
		for i, id := range ids {
			all.Go(func() {
				uid, id, _ := strings.Cut(id, "/")
				outcomes[i] = won
				switch role {
				case payer:
					_, errs[i] = orders.Pay(ctx, uid, id)
				case canceller:
					_, errs[i] = orders.Cancel(ctx, uid, id)
				case support:
					_, errs[i] = orders.Cancel(ctx, "", id)
				}
				if errors.Is(errs[i], ErrState) {
					outcomes[i], errs[i] = lost, nil
				}
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		fmt.Fprintln(out, strings.Join(outcomes, " "))
	}
	redis.Close()
	return db.Close()
}

// racer is one that runs.
type racer struct {
	role string
	in   io.WriteCloser
	out  *bufio.Scanner
}

func (s *shop) racer(role string) *racer {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), racerRole+"="+role, racerMySQL+"="+s.dsn, racerRedis+"="+s.redis.Client().Prefix())
	cmd.Stderr = s.t.Output()
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			s.t.Errorf("racer, %s: %v", role, err)
		}
	})
	return &racer{role, in, bufio.NewScanner(out)}
}

// Thousands of orders that wait for their payment are each paid, cancelled by their owner, cancelled by support and expired
// at the same time, by seven processes: each order has one end, everybody is told the truth about it, and the units of
// those that ended unpaid are back once. All of it is counted in MySQL and Redis, from outside.
func TestPaymentExpiryAndCancellationRace(t *testing.T) {
	const waves, width = 100, 24
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: waves * width, PayWithin: time.Minute})
	var racers []*racer
	for _, role := range []string{payer, timer, canceller, payer, timer, support, canceller} {
		racers = append(racers, s.racer(role))
	}
	wanted := map[string]wire.OrderStatus{payer: wire.Paid, canceller: wire.Cancelled, support: wire.Cancelled}
	ends := map[wire.OrderStatus]int64{}
	for wave := range waves {
		var ids, line []string
		for i := range width {
			uid := fmt.Sprintf("u%d-%d", wave, i)
			ids = append(ids, s.press(sale, uid, 1, ""))
			line = append(line, uid+"/"+ids[i])
		}
		s.settle(sale)
		for i := range racers { // each is the first of every seventh wave
			if _, err := fmt.Fprintln(racers[(i+wave)%len(racers)].in, strings.Join(line, " ")); err != nil {
				t.Fatal(err)
			}
		}
		expired := 0
		told := map[string][][]string{}
		for _, r := range racers {
			if !r.out.Scan() {
				t.Fatalf("racer, %s: it answers no more: %v", r.role, r.out.Err())
			}
			outcomes := strings.Fields(r.out.Text())
			if r.role == timer {
				n, err := strconv.Atoi(r.out.Text())
				if err != nil {
					t.Fatal(err)
				}
				expired += n
				continue
			}
			told[r.role] = append(told[r.role], outcomes)
		}
		for i, id := range ids {
			end := wire.OrderStatus(s.stands(id))
			ends[end]++
			if end == wire.Expired {
				expired--
			}
			for role, all := range told {
				for _, outcomes := range all {
					if (outcomes[i] == won) != (end == wanted[role]) {
						t.Errorf("order %s is %s, and %s was told that it %s", id, end, role, outcomes[i])
					}
				}
			}
		}
		if expired != 0 {
			t.Errorf("wave %d: the timers say that they ended %d more than they did", wave, expired)
		}
	}
	t.Logf("%v", ends)
	for _, end := range []wire.OrderStatus{wire.Paid, wire.Cancelled, wire.Expired} {
		if ends[end] == 0 {
			t.Errorf("of %d orders none is %s: that was no race", waves*width, end)
		}
	}
	if len(ends) != 3 {
		t.Errorf("got the ends %v, want three", slices.Collect(maps.Keys(ends)))
	}
	for { // what a closed gate or a dead process had left
		if n, err := s.orders.intents.Run(t.Context()); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			break
		}
	}
	unpaid := ends[wire.Cancelled] + ends[wire.Expired]
	for _, c := range []struct {
		what, query string
		want        int64
	}{
		{"payments in the ledger", `SELECT COUNT(*) FROM ledger WHERE kind = 'pay'`, ends[wire.Paid]},
		{"cancellations in the ledger", `SELECT COUNT(*) FROM ledger WHERE kind = 'cancel'`, ends[wire.Cancelled]},
		{"expiries in the ledger", `SELECT COUNT(*) FROM ledger WHERE kind = 'expire'`, ends[wire.Expired]},
		{"orders that the ledger ends", `SELECT COUNT(DISTINCT ref) FROM ledger WHERE kind IN ('pay', 'cancel', 'expire')`, waves * width},
		{"releases that are done", `SELECT COUNT(*) FROM intents WHERE kind = 'release' AND done_at IS NOT NULL`, unpaid},
		{"orders that are released", `SELECT COUNT(DISTINCT order_id) FROM intents WHERE kind = 'release'`, unpaid},
		{"units sold", `SELECT sold FROM sale_stock`, ends[wire.Paid]},
		{"units locked", `SELECT locked FROM sale_stock`, 0},
		{"units available", `SELECT available FROM sale_stock`, unpaid},
		{"slots that are taken", `SELECT COUNT(*) FROM order_slots`, ends[wire.Paid]},
	} {
		if got := s.number(c.query); got != c.want {
			t.Errorf("%s: got %d, want %d", c.what, got, c.want)
		}
	}
	if got := s.stock(sale); got != unpaid {
		t.Errorf("got stock %d in Redis, want %d: what ended unpaid is back, once", got, unpaid)
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}
