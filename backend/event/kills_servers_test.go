//go:build servers

package event_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/conf"
)

// senderPlan makes this binary a process that delivers events, as the plan says, until it is killed.
const senderPlan = "FLOODGATE_TEST_SENDER"

type plan struct {
	DSN, URL, Secret string
	Ahead            time.Duration // of the clock
}

func TestMain(m *testing.M) {
	text := os.Getenv(senderPlan)
	if text == "" {
		os.Exit(m.Run())
	}
	if err := send(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func send(text string) error {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	db, err := store.Open(p.DSN, 4)
	if err != nil {
		return err
	}
	clk := new(clock.Clock)
	clk.Set(time.Now().Add(p.Ahead), time.Now())
	ctx, stop := context.WithCancel(context.Background())
	go func() { // it ends with its parent at the latest
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	fmt.Println("delivering")
	return errors.Join(event.NewSender(event.SenderConfig{DB: db, Events: event.NewLog([]event.Endpoint{{Name: "shop", URL: p.URL, Secret: conf.Secret(p.Secret)}}), Clock: clk,
		Log: slog.New(slog.DiscardHandler), Register: prometheus.NewRegistry(), Keep: time.Hour, Private: true}).Poll(5*time.Millisecond).Run(ctx), db.Close())
}

// The process that delivers is killed a hundred times (SIGKILL), before an answer, after it, or at any other moment, while orders are
// made, paid and cancelled. What the shop got is held against MySQL's orders: each change came, none was invented, and each order's came
// in order.
func TestKilledAnywhereAHundredTimesNoneIsLost(t *testing.T) {
	const kills = 100
	var mu sync.Mutex
	var victim *exec.Cmd // mu: the process that is to be killed within a request; nil: none
	kill := func(c *exec.Cmd) { _ = c.Process.Kill() }
	before, take := false, 0 // mu: whether it is killed before the endpoint has taken the delivery, and after how many
	r := newReceiver(t, "shop", func(got) int {
		mu.Lock()
		defer mu.Unlock()
		if take--; take > 0 || victim == nil {
			return http.StatusOK
		}
		kill(victim)
		victim = nil
		if before {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK // it is gone before it can know
	})
	s := newShop(t, r.Endpoint)
	sale := s.sale(backendtest.SaleOptions{Stock: 100_000, PayWithin: time.Hour})
	ctx, stop := context.WithCancel(t.Context())
	work, rounds := errgroup.Group{}, make(chan struct{})
	work.Go(func() error { // a round of orders for each process
		for range rounds {
			ids := s.ordered(sale, 6)
			for i, id := range ids[:4] {
				if i%2 == 0 {
					s.pay(id)
				} else {
					s.cancel(id)
				}
			}
		}
		return nil
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := func(n int) (*exec.Cmd, *bufio.Reader) {
		text, err := json.Marshal(plan{DSN: s.dsn, URL: r.URL, Secret: secret.Reveal(), Ahead: time.Duration(n) * 2 * event.Lease}) // by then the last one's claims have ended
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command(self)
		c.Env = append(os.Environ(), senderPlan+"="+string(text))
		c.Stderr = os.Stderr
		if _, err = c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { kill(c) })
		return c, bufio.NewReader(out)
	}
	died := 0
	for n := range kills {
		rounds <- struct{}{}
		c, out := start(n)
		if n%3 == 2 { // at any moment
			if _, err := out.ReadString('\n'); err != nil {
				t.Fatalf("process %d: %v", n, err)
			}
			<-time.After(rand.N(40 * time.Millisecond)) // not waited for anything: the moment of the kill is by chance
			kill(c)
		} else {
			mu.Lock()
			victim, before, take = c, n%3 == 0, 1+rand.N(5)
			mu.Unlock()
		}
		if err := c.Wait(); err != nil && c.ProcessState.ExitCode() == -1 {
			died++
		}
	}
	close(rounds)
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}
	stop()
	<-ctx.Done()
	mu.Lock()
	victim = nil
	mu.Unlock()
	if died != kills {
		t.Errorf("%d processes were killed, want %d", died, kills)
	}
	last, _ := start(kills)
	s.settled("shop")
	kill(last)
	_ = last.Wait()

	want := map[string][]string{} // by order, as MySQL has the orders
	rows, err := s.db.QueryContext(t.Context(), `SELECT id, status FROM orders`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, status string
		if err := rows.Scan(&id, &status); err != nil {
			t.Fatal(err)
		}
		want[id] = []string{"order.created"}
		if status != "pending_payment" {
			want[id] = append(want[id], "order."+status)
		}
	}
	if err := rows.Err(); err != nil || len(want) != 6*kills {
		t.Fatalf("%d orders, %v", len(want), err)
	}
	bodies, came := map[string]got{}, map[string][]string{}
	all := r.taken()
	for _, g := range all {
		if was, ok := bodies[g.id]; ok {
			if was != g {
				t.Errorf("%s came as two: %+v and %+v", g.id, was, g)
			}
			continue
		}
		bodies[g.id] = g
		came[g.ref] = append(came[g.ref], g.kind)
	}
	for ref, kinds := range came {
		if _, ok := want[ref]; !ok {
			t.Errorf("%s: got %v, of an order that is not in MySQL", ref, kinds)
		}
	}
	for id, kinds := range want {
		if fmt.Sprint(came[id]) != fmt.Sprint(kinds) {
			t.Errorf("%s: got %v, want %v", id, came[id], kinds)
		}
	}
	t.Logf("%d kills; %d changes of %d orders; %d deliveries, of which %d were repeats", died, len(bodies), len(want), len(all), len(all)-len(bodies))
}
