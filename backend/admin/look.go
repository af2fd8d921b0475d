package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
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
		return nil, &sale.NotFoundError{Sale: id}
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
	before, err := a.readSale(r.Context(), id)
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
	return a.change(r, func(context.Context, *sql.Tx) (change.Change, error) {
		return change.Change{Action: "sale.rebuild", Target: change.Sale(id), Before: before, After: result}, nil
	})
}

func (a *Admin) queue(r *request) (*answer, error) {
	q, err := a.readQueue(r.Context())
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: q}, nil
}

func (a *Admin) readQueue(ctx context.Context) (adminapi.Queue, error) {
	ids, err := a.Audit.Sales(ctx)
	if err != nil {
		return adminapi.Queue{}, err
	}
	q := adminapi.Queue{Outboxes: []adminapi.Outbox{}, Queues: []broker.QueueState{}, Now: wire.At(a.Clock.Now())}
	if err := a.outboxes(ctx, ids, &q); err != nil {
		return q, err
	}
	if err := a.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM intents WHERE done_at IS NULL`).Scan(&q.Intents); err != nil {
		return q, fmt.Errorf("open intents: %w", err)
	}
	if a.DeadLetters != nil {
		if q.DeadLetters, err = a.DeadLetters.Open(ctx); err != nil {
			return q, err
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
		addQueues(&q, states)
	}
	return q, nil
}

// addQueues takes in what the broker says of its queues.
func addQueues(q *adminapi.Queue, states []broker.QueueState) {
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

// outboxes adds what the sales' outboxes hold.
func (a *Admin) outboxes(ctx context.Context, ids []int64, q *adminapi.Queue) error {
	all, err := a.Redis.Backlogs(ctx, ids)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Depth == 0 {
			continue
		}
		o := adminapi.Outbox{SaleID: b.Sale, Depth: b.Depth, Consumers: []adminapi.Reader{}}
		if b.Oldest > 0 {
			o.OldestAgeMS = max(0, q.Now.UnixMilli()-b.Oldest)
		}
		if err := a.pending(ctx, &o); err != nil {
			return err
		}
		q.Depth += o.Depth
		q.Pending += o.Pending
		q.OldestAgeMS = max(q.OldestAgeMS, o.OldestAgeMS)
		q.Outboxes = append(q.Outboxes, o)
	}
	return nil
}

func (a *Admin) pending(ctx context.Context, o *adminapi.Outbox) error {
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
		var p adminapi.Reader
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
func (a *Admin) held(ctx context.Context, sale int64, p *adminapi.Reader) error {
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
	rows, err := a.DB.QueryContext(r.Context(), `SELECT id, at, who, role, action, target, before_value, after_value FROM audit_log `+index+`WHERE id < ?`+where+` ORDER BY id DESC LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return nil, fmt.Errorf("audit_log: %w", err)
	}
	defer rows.Close()
	list := []adminapi.LogEntry{}
	for rows.Next() {
		var l adminapi.LogEntry
		var at time.Time
		if err := rows.Scan(&l.ID, &at, &l.Who, &l.Role, &l.Action, &l.Target, (*[]byte)(&l.Before), (*[]byte)(&l.After)); err != nil {
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
	return &answer{status: http.StatusOK, value: adminapi.Log{Entries: list, Page: adminapi.Page{Next: next}}}, nil
}
