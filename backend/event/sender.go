package event

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/backoff"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
)

const (
	atOnce    = 16               // deliveries to one endpoint, by one process
	tryTime   = 15 * time.Second // for one try, from the dial to the end of the answer
	lease     = time.Minute      // after which what a process claimed is taken over: it ended, or hangs
	saveTime  = 5 * time.Second  // for noting what came of a try, also while the process ends
	pollEvery = 500 * time.Millisecond
)

// pauses are those after each failed try; after the last one's failure an event has failed. Together they are three days.
var pauses = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
	4 * time.Hour, 6 * time.Hour, 8 * time.Hour, 10 * time.Hour, 12 * time.Hour, 12 * time.Hour, 16 * time.Hour}

// SenderConfig is what a Sender needs.
type SenderConfig struct {
	DB       *sql.DB
	Events   *Log         // whose endpoints are served
	Clock    *clock.Clock // follows Redis's clock: all processes have to agree on when a claim ends
	Log      *slog.Logger
	Register prometheus.Registerer

	Keep    time.Duration // of what was delivered, and of what failed
	Private bool          // endpoints may be on private addresses: for development
}

// Sender delivers events. Any number may run at once, in any number of processes.
type Sender struct {
	SenderConfig
	poll    time.Duration
	tries   *prometheus.CounterVec
	waiting *prometheus.GaugeVec
	oldest  *prometheus.GaugeVec
}

// NewSender makes a Sender and registers its metrics.
func NewSender(c SenderConfig) *Sender {
	s := &Sender{SenderConfig: c, poll: pollEvery,
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_events_tries_total",
			Help: "Tries to deliver an event, by endpoint and result: delivered, retried (it is tried again later), failed (it was the last one)."}, []string{"endpoint", "result"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "backend_events_waiting",
			Help: "Events that are not delivered yet, by endpoint, as the timer last counted them."}, []string{"endpoint"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "backend_events_oldest_waiting_seconds",
			Help: "The age of the oldest event that is not delivered yet, by endpoint; 0 where there is none."}, []string{"endpoint"})}
	c.Register.MustRegister(s.tries, s.waiting, s.oldest)
	return s
}

// Run delivers until ctx ends. It follows the Log's endpoints: one whose configuration changes is served anew.
func (s *Sender) Run(ctx context.Context) error {
	type running struct {
		endpoint Endpoint
		stop     context.CancelFunc
	}
	var group sync.WaitGroup
	served := map[string]running{}
	tick := time.NewTicker(s.poll)
	defer tick.Stop()
	for ctx.Err() == nil {
		now := map[string]Endpoint{}
		for _, e := range s.Events.Endpoints() {
			now[e.Name] = e
		}
		for name, r := range served {
			if e, ok := now[name]; !ok || !e.sameTarget(r.endpoint) {
				r.stop()
				delete(served, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if _, ok := served[name]; ok {
				continue
			}
			e := now[name]
			to, stop := context.WithCancel(ctx)
			served[name] = running{e, stop}
			group.Go(func() { s.newOutlet(e).run(to) })
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for _, r := range served {
		r.stop()
	}
	group.Wait()
	return nil
}

func (e Endpoint) sameTarget(o Endpoint) bool { return e.URL == o.URL && e.Secret == o.Secret }

// outlet is one endpoint, served by this process.
type outlet struct {
	*Sender
	name   string
	url    string
	hook   *standardwebhooks.Webhook
	client *http.Client

	mu      sync.Mutex
	failing bool // mu: the last try failed
}

func (s *Sender) newOutlet(e Endpoint) *outlet {
	secret, err := key(e.Secret)
	if err != nil {
		panic("BUG: an endpoint that was not checked: " + err.Error())
	}
	hook, err := standardwebhooks.NewWebhookRaw(secret)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &outlet{Sender: s, name: e.Name, url: e.URL, hook: hook, client: newClient(s.Private)}
}

// run delivers what is due, at most atOnce at a time, until ctx ends, and waits for what is under way.
func (o *outlet) run(ctx context.Context) {
	defer o.client.CloseIdleConnections()
	free, done := atOnce, make(chan struct{}, atOnce) // never closed; a delivery that is over sends once
	pause, broken := backoff.Backoff{First: o.poll, Most: 10 * time.Second}, false
	for ctx.Err() == nil {
		wait := o.poll
		if free > 0 {
			claimed := time.Now()
			list, more, err := o.claim(ctx, free)
			switch {
			case err != nil && ctx.Err() == nil:
				if !broken {
					o.Log.Warn("events: they cannot be read, and stay for later", "endpoint", o.name, "error", err)
				}
				broken, wait = true, pause.Next()
			case err == nil:
				broken = false
				pause.Reset()
			}
			for _, d := range list {
				free--
				go func() {
					defer func() { done <- struct{}{} }()
					o.deliver(ctx, d, claimed)
				}()
			}
			if more {
				continue
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-done:
			for free++; len(done) > 0; free++ {
				<-done
			}
		}
		t.Stop()
	}
	for ; free < atOnce; free++ {
		<-done
	}
}

// delivery is a claimed row.
type delivery struct {
	id       int64
	ref      string
	body     string
	attempts int // with this one
	claim    string
	due      time.Time // of a head that is not due
}

// claim takes at most n of the due events for this process. Of one ref only the oldest that waits, the head, may be taken; one behind it
// is put off until the head is due. more: there are others that are due. What is taken is committed here, so what it was read from is
// durable before anybody is told.
func (o *outlet) claim(ctx context.Context, n int) (list []delivery, more bool, err error) {
	claim, now := rand.Text(), o.now()
	// Mostly nothing is due; that is seen without a transaction.
	if ids, err := store.Column[int64](ctx, o.DB, `SELECT id FROM events WHERE endpoint = ? AND state = ? AND due_at <= ? LIMIT 1`, o.name, string(Waiting), now); err != nil {
		return nil, false, fmt.Errorf("look for events for %s: %w", o.name, err)
	} else if len(ids) == 0 {
		return nil, false, nil
	}
	err = store.InTx(ctx, o.DB, func(tx *sql.Tx) error {
		list = nil
		var due []delivery
		var refs []any
		if err := store.Each(ctx, tx, func(rows *sql.Rows) error {
			d := delivery{claim: claim}
			err := rows.Scan(&d.id, &d.ref, &d.body, &d.attempts)
			d.attempts++
			due, refs = append(due, d), append(refs, d.ref)
			return err
		}, `SELECT id, ref, body, attempts FROM events WHERE endpoint = ? AND state = ? AND due_at <= ? ORDER BY due_at, id LIMIT ? FOR UPDATE SKIP LOCKED`,
			o.name, string(Waiting), now, n); err != nil || len(due) == 0 {
			return err
		}
		more = len(due) == n
		heads := map[string]delivery{}
		if err := store.Each(ctx, tx, func(rows *sql.Rows) error {
			var h delivery
			err := rows.Scan(&h.id, &h.ref, &h.due)
			if _, ok := heads[h.ref]; !ok {
				heads[h.ref] = h
			}
			return err
		}, `SELECT id, ref, due_at FROM events WHERE endpoint = ? AND state = ? AND ref IN (`+store.Marks(len(refs))+`) ORDER BY id`,
			append([]any{o.name, string(Waiting)}, refs...)...); err != nil {
			return err
		}
		taken := []any{claim, now.Add(lease)}
		for _, d := range due {
			if head := heads[d.ref]; head.id != d.id {
				until := head.due
				if !until.After(now) { // it is taken now, by this process or another
					until = now.Add(lease)
				}
				if _, err := tx.ExecContext(ctx, `UPDATE events SET due_at = ? WHERE id = ?`, until, d.id); err != nil {
					return err
				}
				continue
			}
			list, taken = append(list, d), append(taken, d.id)
		}
		if len(list) == 0 {
			return nil
		}
		_, err := tx.ExecContext(ctx, `UPDATE events SET claim = ?, due_at = ?, attempts = attempts + 1 WHERE id IN (`+store.Marks(len(list))+`)`, taken...)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("claim events for %s: %w", o.name, err)
	}
	return list, more && len(list) < n, nil
}

// deliver tries once, and notes what came of it. What cannot be noted is tried again when the claim has ended.
func (o *outlet) deliver(ctx context.Context, d delivery, claimed time.Time) {
	if time.Since(claimed) > lease-2*tryTime {
		return // this process was stopped for long: another may be at it by now
	}
	failpoint.Hit("events.before-send")
	cause := o.post(ctx, d)
	failpoint.Hit("events.before-note")
	over := cause != nil && ctx.Err() != nil // not the endpoint's doing
	save, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
	defer cancel()
	result, err := o.note(save, d, cause, over)
	if err != nil {
		o.Log.Warn("events: what came of a try is not noted; it is made again", "endpoint", o.name, "event", webhookID(d.id), "error", err)
		return
	}
	if !over {
		o.tries.WithLabelValues(o.name, result).Inc()
		o.tell(d, cause)
	}
}

// note writes what came of a try, unless the claim was lost. What waits behind an event that is over is due now.
func (o *outlet) note(ctx context.Context, d delivery, cause error, over bool) (result string, err error) {
	now := o.now()
	state, due, attempts, reason := Waiting, now, d.attempts, ""
	switch {
	case cause == nil:
		state, result = Delivered, "delivered"
	case over:
		attempts--
	case d.attempts > len(pauses):
		state, result, reason = Failed, "failed", cause.Error()
	default:
		due, result, reason = now.Add(jittered(pauses[d.attempts-1])), "retried", cause.Error()
	}
	err = store.InTx(ctx, o.DB, func(tx *sql.Tx) error {
		n, err := store.Changed(tx.ExecContext(ctx, `UPDATE events SET state = ?, due_at = ?, attempts = ?, last_error = ?, claim = '' WHERE id = ? AND claim = ?`,
			string(state), due, attempts, reason, d.id, d.claim))
		if err != nil || n == 0 || state == Waiting {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE events SET due_at = ? WHERE endpoint = ? AND ref = ? AND state = ? AND id > ? AND claim = ''`, now, o.name, d.ref, string(Waiting), d.id)
		return err
	})
	return result, err
}

// tell logs when the endpoint begins to fail, and when it is well again.
func (o *outlet) tell(d delivery, cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case cause != nil && !o.failing:
		o.Log.Warn("events: an endpoint fails; what it misses is tried again for three days", "endpoint", o.name, "event", webhookID(d.id), "error", cause)
	case cause == nil && o.failing:
		o.Log.Info("events: an endpoint is well again", "endpoint", o.name)
	}
	o.failing = cause != nil
}

// now is the time as MySQL keeps it, in milliseconds.
func (s *Sender) now() time.Time { return s.Clock.Now().Truncate(time.Millisecond) }

const gone = "the endpoint is not configured any more"

// Tend is one bounded pass: it counts what waits, for the metrics, gives up what has waited for three days for an endpoint that is not
// configured any more, and deletes what has been delivered, or failed, for longer than Keep. It returns how many rows it changed: call
// again at once until that is 0.
func (s *Sender) Tend(ctx context.Context) (n int, err error) {
	names, err := store.Column[string](ctx, s.DB, `SELECT DISTINCT endpoint FROM events`)
	if err != nil {
		return 0, fmt.Errorf("endpoints of events: %w", err)
	}
	now := s.now()
	if err := s.count(ctx, now, names); err != nil {
		return 0, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(s.Events.Endpoints(), func(e Endpoint) bool { return e.Name == name }) {
			given, err := store.Prune(ctx, s.DB, `UPDATE events SET state = ?, last_error = ?, due_at = ?, claim = '' WHERE endpoint = ? AND state = ? AND created_at <= ?`,
				string(Failed), gone, now, name, string(Waiting), now.Add(-momentsBack))
			if err != nil {
				return n, err
			}
			if given > 0 {
				s.Log.Warn("events: given up, for the endpoint is not configured any more", "endpoint", name, "events", given)
			}
			n += given
		}
		for _, state := range []State{Delivered, Failed} {
			pruned, err := store.Prune(ctx, s.DB, `DELETE FROM events WHERE endpoint = ? AND state = ? AND due_at < ? ORDER BY due_at`, name, string(state), now.Add(-s.Keep))
			if err != nil {
				return n, err
			}
			n += pruned
		}
	}
	return n, nil
}

// count sets the metrics of what waits, for these endpoints and those that are configured.
func (s *Sender) count(ctx context.Context, now time.Time, names []string) error {
	type backlog struct{ events, age float64 }
	found := map[string]backlog{}
	for _, e := range s.Events.Endpoints() {
		found[e.Name] = backlog{}
	}
	for _, name := range names {
		var events float64
		var since sql.NullTime
		if err := s.DB.QueryRowContext(ctx, `SELECT COUNT(*), MIN(created_at) FROM events WHERE endpoint = ? AND state = ?`, name, string(Waiting)).Scan(&events, &since); err != nil {
			return fmt.Errorf("events for %s: %w", name, err)
		}
		if events > 0 {
			found[name] = backlog{events, max(0, now.Sub(since.Time).Seconds())}
		}
	}
	s.waiting.Reset() // an endpoint that is gone has no metric
	s.oldest.Reset()
	for name, b := range found {
		s.waiting.WithLabelValues(name).Set(b.events)
		s.oldest.WithLabelValues(name).Set(b.age)
	}
	return nil
}
