//go:build servers

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
)

// look reads Redis in one moment and MySQL in one moment.
func (w *system) look(sale int64) (oracle.View, error) { return w.Books.Look(w.ctx, sale) }

// drained ends the system: then the broker must hold nothing.
func (w *system) drained() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	w.must(w.Drained(ctx))
}

// rest is what RabbitMQ says that it still holds for this world.
func (w *system) rest() (bad []string, err error) {
	queues, err := w.Queues(w.ctx)
	for _, q := range queues {
		if strings.HasPrefix(q.Name, "fg.orders.") && q.Type != "quorum" {
			bad = append(bad, fmt.Sprintf("queue %s is of type %s", q.Name, q.Type))
		}
		if q.Messages+q.Ready+q.Unacked > 0 {
			bad = append(bad, fmt.Sprintf("queue %s holds %d messages: %d ready, %d unacknowledged", q.Name, q.Messages, q.Ready, q.Unacked))
		}
	}
	return bad, err
}

// audit is what the admin API answers.
type audit struct {
	Balanced                               bool
	Total, Available, Queued, Locked, Sold int64
	Findings                               []any
}

func (w *system) audit(sale int64) (audit, world.Answer) {
	w.t.Helper()
	a := w.want(w.admin("GET", fmt.Sprintf("/admin/v1/sales/%d/audit", sale), ""), 200, "")
	var r audit
	a.Decode(w.t, &r)
	return r, a
}

// settle waits until every equation holds, from outside, by the log, and by the auditor.
func (w *system) settle(sale, stock int64, j *oracle.Log) oracle.View {
	w.t.Helper()
	var o oracle.View
	began := time.Now()
	w.until("the equations hold", patience, func() (bool, string) {
		var err error
		if o, err = w.Balanced(w.ctx, sale, stock, j); err != nil {
			return false, err.Error()
		}
		if left, err := w.rest(); err != nil || len(left) > 0 {
			return false, fmt.Sprintf("%v, %v", left, err)
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
func (w *system) watch(sale, stock int64) (stop func()) {
	w.t.Helper()
	return world.Watch(w.t, w.ctx, stock, false, func(context.Context) (oracle.View, error) { return w.look(sale) })
}
