package audit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/broker"
)

// Queues is the broker, as the auditor asks it: broker.Broker.
type Queues interface {
	Queues(ctx context.Context) ([]broker.QueueState, error)
	Partition(sale int64) int
}

// Broker is what the broker says of the queues that a sale's orders go through. Its numbers may be some seconds old, and
// what it holds in flight is no finding: what it holds for longer than the bound is, though no outbox accounts for it.
type Broker struct {
	Queue     string `json:"queue"` // of the sale's partition
	Ready     int64  `json:"ready"`
	Unacked   int64  `json:"unacked"` // -1: it does not say
	Consumers int64  `json:"consumers"`
	Unrouted  int64  `json:"unrouted"` // that found no queue
	Dead      int64  `json:"dead"`     // dead messages that nobody has taken yet
	// DeadLetters of this sale are kept in MySQL, and were not replayed.
	DeadLetters int64 `json:"dead_letters"`
	// Unexplained says that it holds something that no outbox accounts for; Error, why it does not say.
	Unexplained bool   `json:"unexplained"`
	Error       string `json:"error"`
}

// WithBroker makes an Auditor that asks the broker too. Without one the outbox is the queue.
func (a *Auditor) WithBroker(q Queues) *Auditor {
	return &Auditor{db: a.db, redis: a.redis, bound: a.bound, abandoned: a.abandoned, queues: q, odd: &oddities{since: map[string]time.Time{}}}
}

// oddities are since when what should pass has been seen at every look.
type oddities struct {
	mu    sync.Mutex // guards since
	since map[string]time.Time
}

// age notes whether something odd is there, and says for how long it has been.
func (o *oddities) age(what string, there bool) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !there {
		delete(o.since, what)
		return 0
	}
	first, ok := o.since[what]
	if !ok {
		first = time.Now()
		o.since[what] = first
	}
	return time.Since(first)
}

// asked is what the broker and the outboxes of a partition say.
type asked struct {
	broker   *Broker
	findings []Finding
}

const seeQueue = "see backend queue: does a process with the role consumer run, and does it reach MySQL?"

// ask asks the broker about the queues of a sale. Only a server that must answer is an error.
func (a *Auditor) ask(ctx context.Context, sale int64) (asked, error) {
	if a.queues == nil {
		return asked{}, nil
	}
	b := &Broker{Queue: broker.QueueName(a.queues.Partition(sale))}
	if err := a.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM dead_letters WHERE sale_id = ? AND replayed_at IS NULL`, sale).Scan(&b.DeadLetters); err != nil {
		return asked{}, fmt.Errorf("dead letters: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	states, err := a.queues.Queues(limited)
	cancel()
	if ctx.Err() != nil {
		return asked{}, ctx.Err()
	}
	r := asked{broker: b}
	odd := func(key string, there bool, fix, detail string) {
		if age := a.odd.age(key, there); age > a.bound {
			r.findings = append(r.findings, Finding{Equation: eqBroker, Key: key, Fix: fix, Detail: fmt.Sprintf("%s, for %s; the bound is %s", detail, age.Round(time.Second), a.bound)})
		}
	}
	if err != nil {
		b.Error = err.Error()
	}
	odd("the broker", err != nil, "orders are accepted and wait in the outbox: bring RabbitMQ back", "it does not say how its queues are: "+b.Error)
	if err != nil {
		return r, nil
	}
	for _, s := range states {
		switch s.Name {
		case b.Queue:
			b.Ready, b.Unacked, b.Consumers = s.Ready, s.Unacked, s.Consumers
		case broker.Unrouted:
			b.Unrouted = s.Ready + max(s.Unacked, 0)
		case broker.Dead:
			b.Dead = s.Ready + max(s.Unacked, 0)
		}
	}
	inPartition, inAll, err := a.inOutboxes(ctx, sale)
	if err != nil {
		return asked{}, err
	}
	stuck := b.Ready+max(b.Unacked, 0) > 0 && inPartition == 0
	lost := b.Unrouted > 0 && inAll == 0
	b.Unexplained = stuck || lost || b.Dead > 0
	odd("queue "+b.Queue, stuck, seeQueue, fmt.Sprintf("%d messages are ready and %d unacknowledged, though every order of its sales is settled and retired", b.Ready, max(b.Unacked, 0)))
	odd("queue "+broker.Unrouted, lost, seeQueue, fmt.Sprintf("%d messages that found no queue wait, though every order is settled and retired", b.Unrouted))
	odd("queue "+broker.Dead, b.Dead > 0, seeQueue, fmt.Sprintf("%d dead messages wait to be taken", b.Dead))
	return r, nil
}

// inOutboxes counts the entries of the outboxes whose orders go through the sale's partition, and of all.
func (a *Auditor) inOutboxes(ctx context.Context, sale int64) (partition, all int64, err error) {
	ids, err := a.Sales(ctx)
	if err != nil {
		return 0, 0, err
	}
	c := a.redis.Client()
	for part := range slices.Chunk(ids, 200) {
		cmds := make(rueidis.Commands, len(part))
		for i, id := range part {
			cmds[i] = c.B().Xlen().Key(a.redis.OutboxKey(id)).Build()
		}
		for i, answer := range c.DoMulti(ctx, cmds...) {
			n, err := answer.AsInt64()
			if err != nil {
				return 0, 0, fmt.Errorf("outbox of sale %d: %w", part[i], err)
			}
			all += n
			if a.queues.Partition(part[i]) == a.queues.Partition(sale) {
				partition += n
			}
		}
	}
	return partition, all, nil
}
