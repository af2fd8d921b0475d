//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/e2e/oracle"
)

// journal is the clients' own log of answers.
type journal struct{ *oracle.Log }

func newJournal() *journal { return &journal{oracle.NewLog()} }

type entry struct {
	uid    string
	key    string
	answer answer
}

func (j *journal) add(e entry) {
	j.Add(oracle.Answer{UID: e.uid, Key: e.key, Status: e.answer.status, Code: e.answer.code, OrderID: e.answer.orderID})
}

// look reads Redis in one moment and MySQL in one moment.
func (w *world) look(sale int64) (oracle.View, error) {
	return oracle.Books{DB: w.db, Redis: w.redis, Prefix: w.prefix}.Look(w.ctx, sale)
}

// drained ends the system and then asks the broker for what is left in its queues. Its statistics lag, and unacknowledged
// messages are counted nowhere at once; with every consumer gone they are ready again, and a passive declare is exact.
func (w *world) drained() {
	w.t.Helper()
	w.must(w.gateway.Stop(w.ctx))
	w.must(w.backend.Stop(w.ctx))
	if w.consumer != nil {
		w.must(w.consumer.Stop(w.ctx))
	}
	var queues []struct {
		Name string `json:"name"`
	}
	w.management("GET", "/api/queues/"+w.vhost, "", &queues)
	u, err := url.Parse(w.servers.AMQPURL())
	w.must(err)
	u.Path = "/" + w.vhost
	conn, err := amqp.Dial(u.String())
	w.must(err)
	defer conn.Close()
	ch, err := conn.Channel()
	w.must(err)
	for _, q := range queues {
		w.until("no consumer is left on "+q.Name, patience, func() (bool, string) {
			got, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			w.must(err)
			if got.Consumers == 0 && got.Messages > 0 {
				w.t.Fatalf("queue %s still holds %d messages", q.Name, got.Messages)
			}
			return got.Consumers == 0, fmt.Sprintf("%+v", got)
		})
	}
}

// rest is what RabbitMQ says that it still holds for this world.
func (w *world) rest() (bad []string, err error) {
	var queues []struct {
		Name     string `json:"name"`
		Messages int    `json:"messages"`
		Ready    int    `json:"messages_ready"`
		Unacked  int    `json:"messages_unacknowledged"`
		Type     string `json:"type"`
	}
	w.management("GET", "/api/queues/"+w.vhost, "", &queues)
	orders := 0
	for _, q := range queues {
		if strings.HasPrefix(q.Name, "fg.orders.") {
			orders++
			if q.Type != "quorum" {
				bad = append(bad, fmt.Sprintf("queue %s is of type %s", q.Name, q.Type))
			}
		}
		if q.Messages+q.Ready+q.Unacked > 0 {
			bad = append(bad, fmt.Sprintf("queue %s holds %d messages: %d ready, %d unacknowledged", q.Name, q.Messages, q.Ready, q.Unacked))
		}
	}
	if orders == 0 {
		return nil, errors.New("the broker has no queue fg.orders.*")
	}
	return bad, nil
}

// audit is what the admin API answers.
type audit struct {
	Balanced                               bool
	Total, Available, Queued, Locked, Sold int64
	Findings                               []any
}

func (w *world) audit(sale int64) (audit, answer) {
	w.t.Helper()
	a := w.want(w.admin("GET", fmt.Sprintf("/admin/v1/sales/%d/audit", sale), ""), 200, "")
	var r audit
	a.decode(w, &r)
	return r, a
}

// settle waits until every equation holds, from outside, by the log, and by the auditor.
func (w *world) settle(sale, stock int64, j *journal) oracle.View {
	w.t.Helper()
	var o oracle.View
	began := time.Now()
	w.until("the equations hold", patience, func() (bool, string) {
		var err error
		if o, err = w.look(sale); err != nil {
			return false, err.Error()
		}
		bad := append(o.Always(stock, 1), o.Settled(stock, j.Log)...)
		left, err := w.rest()
		if err != nil {
			return false, err.Error()
		}
		if bad = append(bad, left...); len(bad) > 0 {
			return false, "\n  " + strings.Join(bad, "\n  ")
		}
		r, a := w.audit(sale)
		if !r.Balanced || r.Total != stock || r.Available+r.Queued+r.Locked+r.Sold != stock || r.Queued != 0 ||
			r.Available != o.Row.Available || r.Locked != o.Row.Locked || r.Sold != o.Row.Sold || len(r.Findings) > 0 {
			return false, "the auditor says " + a.String()
		}
		return true, ""
	})
	w.t.Logf("the equations hold, %v after the last answer", time.Since(began).Round(time.Millisecond))
	return o
}

// watch checks the equations that always hold, again and again until stop is called.
func (w *world) watch(sale, stock int64) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	looks := 0
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if o, err := w.look(sale); err == nil {
				looks++
				for _, bad := range o.Always(stock, 1) {
					w.t.Errorf("during the run: %s", bad)
				}
			} else if ctx.Err() == nil {
				w.t.Errorf("during the run: %v", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		w.t.Helper()
		cancel()
		<-done
		if looks == 0 {
			w.t.Error("nothing was looked at during the run")
		}
	}
}
