package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func (a *Admin) auditSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	result, err := a.Audit.Sale(r.Context(), id)
	if errors.Is(err, audit.ErrUnknownSale) {
		return nil, noSale(id)
	}
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: result}, nil
}

// rebuildSale writes Redis anew from MySQL and the outbox, and answers with the audit that follows.
func (a *Admin) rebuildSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	key, err := r.idempotencyKey()
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	if key != "" { // rebuilding is idempotent; only a repeat's answer has to be the first one's
		if done, err := a.repeat(r.Context(), r, key); !errors.Is(err, sql.ErrNoRows) {
			return done, err
		}
	}
	before, _, err := a.readSale(r.Context(), a.DB, id)
	if err != nil {
		return nil, err
	}
	if before.ArchivedAt != nil {
		return nil, problem.New(problem.SaleEnded, fmt.Sprintf("sale %d is archived: it is no longer in Redis", id))
	}
	if err := a.Reconcile(r.Context(), id); err != nil {
		a.Log.Warn("rebuild failed", "request_id", r.id, "sale", id, "error", err)
		p := problem.New(problem.Overloaded, "the rebuild did not come to its end: "+err.Error()+"; it is safe to ask again")
		p.RetryAfter = 2 * time.Second
		return nil, p
	}
	result, err := a.Audit.Sale(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return a.change(r, func(context.Context, *sql.Tx) (change, error) {
		return change{status: http.StatusOK, action: "sale.rebuild", target: saleName(id), before: before, after: result}, nil
	})
}

// queueJSON is where every order is that is not in MySQL yet.
type queueJSON struct {
	Now         wire.Time    `json:"now"`
	Depth       int64        `json:"depth"` // entries in all outboxes: orders that are not settled and retired yet
	OldestAgeMS int64        `json:"oldest_age_ms"`
	Pending     int64        `json:"pending"`  // of them, those that a relay, a consumer or the broker holds
	Outboxes    []outboxJSON `json:"outboxes"` // of the sales that have entries
	// The broker's side; all zero and no queues without a broker: then the outbox is the queue. BrokerError is why the
	// broker does not say; then it is all zero too.
	BrokerError string              `json:"broker_error"`
	Ready       int64               `json:"ready"`
	Unacked     int64               `json:"unacked"` // -1: the broker does not say
	Consumers   int64               `json:"consumers"`
	DeadLetters int64               `json:"dead_letters"` // that were not replayed yet, of either driver
	Queues      []broker.QueueState `json:"queues"`
	Intents     int64               `json:"intents"` // admin changes and releases that Redis is still to be told
}

type outboxJSON struct {
	SaleID      int64         `json:"sale_id"`
	Depth       int64         `json:"depth"`
	OldestAgeMS int64         `json:"oldest_age_ms"`
	Pending     int64         `json:"pending"` // delivered, not retired
	Consumers   []pendingJSON `json:"consumers"`
}

// pendingJSON is what one reader of an outbox holds. The reader "published" stands for the broker.
type pendingJSON struct {
	Name    string `json:"name"`
	Pending int64  `json:"pending"`
	IdleMS  int64  `json:"idle_ms"` // since it last did anything
	// Of what it holds, the first hundred: for how long the one it has held longest, and how often the one was delivered
	// that was delivered most often, since a failure of it was last reported.
	HeldMS     int64 `json:"held_ms"`
	Deliveries int64 `json:"deliveries"`
}

func (a *Admin) queue(r *request) (*answer, error) {
	ctx := r.Context()
	ids, err := a.Audit.Sales(ctx)
	if err != nil {
		return nil, err
	}
	q := queueJSON{Outboxes: []outboxJSON{}, Queues: []broker.QueueState{}, Now: wire.At(a.Clock.Now())}
	for len(ids) > 0 { // so many in one round trip
		n := min(len(ids), 200)
		if err := a.outboxes(ctx, ids[:n], &q); err != nil {
			return nil, err
		}
		ids = ids[n:]
	}
	if err := a.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM intents WHERE done_at IS NULL`).Scan(&q.Intents); err != nil {
		return nil, fmt.Errorf("open intents: %w", err)
	}
	if a.Letters != nil {
		if q.DeadLetters, err = a.Letters.Open(ctx); err != nil {
			return nil, err
		}
	}
	if a.Queues != nil {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		states, err := a.Queues(limited)
		cancel()
		if err != nil {
			a.Log.Warn("the broker does not say how its queues are", "error", err)
			q.BrokerError = err.Error() // what waits for it in the outboxes is to be seen all the same
		}
		q.add(states)
	}
	return &answer{status: http.StatusOK, value: q}, nil
}

// add takes in what the broker says of its queues.
func (q *queueJSON) add(states []broker.QueueState) {
	q.Queues = append(q.Queues, states...)
	for _, s := range states {
		switch s.Name {
		case broker.Dead:
			q.DeadLetters += s.Ready + max(s.Unacked, 0) // not taken yet
		case broker.Unrouted:
		default:
			q.Ready += s.Ready
			q.Consumers += s.Consumers
			if s.Unacked < 0 || q.Unacked < 0 {
				q.Unacked = -1
			} else {
				q.Unacked += s.Unacked
			}
		}
	}
}

// outboxes adds what some sales' outboxes hold.
func (a *Admin) outboxes(ctx context.Context, ids []int64, q *queueJSON) error {
	c := a.Redis.Client()
	cmds := make(rueidis.Commands, 0, 2*len(ids))
	for _, id := range ids {
		key := a.Redis.OutboxKey(id)
		cmds = append(cmds, c.B().Xlen().Key(key).Build(), c.B().Xrange().Key(key).Start("-").End("+").Count(1).Build())
	}
	answers := c.DoMulti(ctx, cmds...)
	for i, id := range ids {
		depth, err := answers[2*i].AsInt64()
		if err != nil {
			return fmt.Errorf("outbox of sale %d: %w", id, err)
		}
		if depth == 0 {
			continue
		}
		o := outboxJSON{SaleID: id, Depth: depth, Consumers: []pendingJSON{}}
		entries, err := answers[2*i+1].AsXRange()
		if err != nil {
			return fmt.Errorf("outbox of sale %d: %w", id, err)
		}
		for _, x := range entries {
			if e, err := queued.Parse(id, x.ID, x.FieldValues); err == nil {
				o.OldestAgeMS = max(0, q.Now.UnixMilli()-e.At)
			}
		}
		if err := a.pending(ctx, &o); err != nil {
			return err
		}
		q.Depth += depth
		q.Pending += o.Pending
		q.OldestAgeMS = max(q.OldestAgeMS, o.OldestAgeMS)
		q.Outboxes = append(q.Outboxes, o)
	}
	return nil
}

func (a *Admin) pending(ctx context.Context, o *outboxJSON) error {
	c := a.Redis.Client()
	readers, err := c.Do(ctx, c.B().XinfoConsumers().Key(a.Redis.OutboxKey(o.SaleID)).Group(reserve.Group).Build()).ToArray()
	if _, ok := rueidis.IsRedisErr(err); ok {
		return nil // NOGROUP: nobody has read it yet
	}
	if err != nil {
		return fmt.Errorf("readers of the outbox of sale %d: %w", o.SaleID, err)
	}
	for _, reader := range readers {
		m, err := reader.AsMap()
		if err != nil {
			return fmt.Errorf("readers of the outbox of sale %d: %w", o.SaleID, err)
		}
		name, pending, idle := m["name"], m["pending"], m["idle"]
		var p pendingJSON
		p.Name, _ = name.ToString()
		p.Pending, _ = pending.AsInt64()
		p.IdleMS, _ = idle.AsInt64()
		if p.Pending > 0 {
			if err := a.held(ctx, o.SaleID, &p); err != nil {
				return err
			}
		}
		o.Pending += p.Pending
		o.Consumers = append(o.Consumers, p)
	}
	return nil
}

// held adds what one reader holds.
func (a *Admin) held(ctx context.Context, sale int64, p *pendingJSON) error {
	c := a.Redis.Client()
	list, err := c.Do(ctx, c.B().Xpending().Key(a.Redis.OutboxKey(sale)).Group(reserve.Group).Start("-").End("+").Count(100).Consumer(p.Name).Build()).ToArray()
	if _, ok := rueidis.IsRedisErr(err); ok {
		return nil // the outbox is gone
	}
	if err != nil {
		return fmt.Errorf("what %s holds of the outbox of sale %d: %w", p.Name, sale, err)
	}
	for _, m := range list {
		four, err := m.ToArray() // id, reader, idle, deliveries
		if err != nil || len(four) != 4 {
			return fmt.Errorf("what %s holds of the outbox of sale %d: %v: %w", p.Name, sale, m, err)
		}
		idle, err1 := four[2].AsInt64()
		deliveries, err2 := four[3].AsInt64()
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("what %s holds of the outbox of sale %d: %w", p.Name, sale, err)
		}
		p.HeldMS, p.Deliveries = max(p.HeldMS, idle), max(p.Deliveries, deliveries)
	}
	return nil
}

type logJSON struct {
	ID     int64          `json:"id"`
	At     wire.Time      `json:"at"`
	Who    string         `json:"who"`
	Action string         `json:"action"`
	Target string         `json:"target"`
	Before jsontext.Value `json:"before"` // null: it was made
	After  jsontext.Value `json:"after"`
}

func (a *Admin) auditLog(r *request) (*answer, error) {
	const most = 200
	below, limit, err := r.page(most, "target")
	if err != nil {
		return nil, err
	}
	index, where, args := "", "", []any{below}
	if q := r.URL.Query(); q.Has("target") {
		var target string
		asked := q.Get("target")
		if err := text("target", &asked, 1, maxTarget, &target); err != nil {
			return nil, err
		}
		index, where, args = "FORCE INDEX (audit_log_target) ", " AND target = ?", append(args, target)
	}
	rows, err := a.DB.QueryContext(r.Context(), `SELECT id, at, who, action, target, before_value, after_value FROM audit_log `+index+`WHERE id < ?`+where+` ORDER BY id DESC LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return nil, fmt.Errorf("audit_log: %w", err)
	}
	defer rows.Close()
	list := []logJSON{}
	for rows.Next() {
		var l logJSON
		var at time.Time
		if err := rows.Scan(&l.ID, &at, &l.Who, &l.Action, &l.Target, (*[]byte)(&l.Before), (*[]byte)(&l.After)); err != nil {
			return nil, fmt.Errorf("audit_log: %w", err)
		}
		l.At = wire.At(at)
		list = append(list, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("audit_log: %w", err)
	}
	var next string
	if int64(len(list)) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].ID, 10)
	}
	return &answer{status: http.StatusOK, value: struct {
		Entries []logJSON `json:"entries"`
		Next    string    `json:"next"`
	}{list, next}}, nil
}
