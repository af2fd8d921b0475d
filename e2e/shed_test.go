//go:build servers

package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// TestNewOrdersAreShedWhileAStoreIsAway: what cannot be finished within its bound is not accepted, what was accepted is
// finished, and the metrics say both.
func TestNewOrdersAreShedWhileAStoreIsAway(t *testing.T) {
	const stock = 20
	begin := func(t *testing.T, o world.Options) (w *system, sale int64, j *oracle.Log, press func(uid int) world.Answer) {
		o.Limits = freely
		w = newSystem(t, o)
		sale = w.newSale("Twenty", stock, time.Now().Add(-time.Minute), 600)
		w.state(sale, wire.Open)
		j = oracle.NewLog()
		tokens := w.tokens(1, stock)
		return w, sale, j, func(uid int) world.Answer {
			a := w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[uid-1], "")
			j.Add(a.To(fmt.Sprint(uid), ""))
			return a
		}
	}
	shed := func(w *system, press func(int) world.Answer, uid int) {
		w.t.Helper()
		w.until("a new order is shed", patience, func() (bool, string) {
			a := press(uid) // accepted, and then told of its order, until then
			return a.Code == "OVERLOADED", a.String()
		})
	}
	t.Run("mysql", func(t *testing.T) {
		w, sale, j, press := begin(t, world.Options{Backend: "orders: {queued_bound: 2s, max_outage: 5s}\n"})
		w.want(press(1), 202, "")
		w.settle(sale, stock, j)
		w.must(w.servers.MySQL.Signal(syscall.SIGSTOP))
		t.Cleanup(func() { // other tests need it, whatever fails
			if err := w.servers.MySQL.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		})
		w.want(press(2), 202, "")
		shed(w, press, 3)
		w.until("the alert is on", patience, func() (bool, string) {
			return w.metric("backend_queued_past_bound") == 1, fmt.Sprint(w.metric("backend_queued_oldest_seconds"), " s")
		})
		w.must(w.servers.MySQL.Signal(syscall.SIGCONT))
		w.until("orders are taken again", patience, func() (bool, string) {
			a := press(stock)
			return a.Status == 202, a.String()
		})
		w.settle(sale, stock, j)
		n := float64(j.Promised())
		if got := w.metric("backend_order_queued_seconds_count"); got != n {
			t.Errorf("the time in queued of %v orders was measured, want %v", got, n)
		}
		if got := w.metric("backend_orders_late_total"); got < 1 {
			t.Errorf("got %v orders past the bound, want at least the one that waited for MySQL", got)
		}
		if got := w.metric(`backend_shed_total{reason="outage"}`) + w.metric(`backend_shed_total{reason="lag"}`); got < 1 {
			t.Errorf("got %v orders shed, want at least one", got)
		}
		w.until("the alert is off", patience, func() (bool, string) {
			return w.metric("backend_queued_past_bound") == 0, "it is on"
		})
	})
	t.Run("rabbitmq, confirm", func(t *testing.T) {
		w, sale, j, press := begin(t, world.Options{Backend: "accept: {after: confirm}\norders: {max_outage: 1h}\n"})
		w.want(press(1), 202, "")
		w.must(w.servers.RabbitMQ.Kill(w.ctx))
		shed(w, press, 2)
		w.must(w.servers.RabbitMQ.Start(w.ctx))
		w.until("orders are taken again", patience, func() (bool, string) {
			a := press(stock)
			return a.Status == 202, a.String()
		})
		w.settle(sale, stock, j)
	})
	t.Run("consumer", func(t *testing.T) {
		w, sale, j, press := begin(t, world.Options{Consumer: true, Backend: "orders: {max_lag: 1s}\n"})
		w.must(w.Consumer.Kill(w.ctx))
		for uid := 1; uid <= 8; uid++ { // fewer could be such as nothing settles
			w.want(press(uid), 202, "")
		}
		shed(w, press, 9)
		if got := w.metric(`backend_shed_total{reason="lag"}`); got < 1 {
			t.Errorf("got %v orders shed for lag, want at least one", got)
		}
		w.must(w.Consumer.Start(w.ctx))
		w.until("orders are taken again", patience, func() (bool, string) {
			a := press(stock)
			return a.Status == 202, a.String()
		})
		w.settle(sale, stock, j)
	})
}
