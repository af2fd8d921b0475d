package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/broker"
)

// Queues is the broker, as the auditor needs it: broker.Broker.
type Queues interface {
	Queues(ctx context.Context) ([]broker.QueueState, error)
	Partition(sale int64) int
}

// Broker is the state of the queues that a sale's orders go through. What the broker holds in flight is no finding. It is
// one if the broker holds it for longer than the bound while no outbox has an entry for it.
type Broker struct {
	Queue     string `json:"queue"` // of the sale's partition
	Ready     int64  `json:"ready"`
	Unacked   int64  `json:"unacked"` // as of at most broker.StatisticsAge ago; -1: it does not say
	Consumers int64  `json:"consumers"`
	Unrouted  int64  `json:"unrouted"` // that found no queue
	Dead      int64  `json:"dead"`     // dead messages that were not taken yet
	// Deferred are acknowledged messages of this sale that wait in MySQL until the sale takes orders of older epochs.
	Deferred int64 `json:"deferred"`
	// DeadLetters of this sale are kept in MySQL, and were not replayed.
	DeadLetters int64 `json:"dead_letters"`
	// Unexplained says that the broker holds something that no outbox accounts for. Error says why the broker's state is
	// unknown.
	Unexplained bool   `json:"unexplained"`
	Error       string `json:"error"`
}

// oddities are since when a passing deviation has been seen at every look.
type oddities struct {
	mu    sync.Mutex // guards since
	since map[string]sighting
}

// sighting is when a deviation was first seen, and what has stood still since.
type sighting struct {
	at    time.Time
	still string
}

// age notes whether a deviation is there, and returns for how long it has been. Looks may be far apart, and different
// deviations may be seen at each. It is the same one only if still has not changed.
func (o *oddities) age(what string, there bool, still string) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !there {
		delete(o.since, what)
		return 0
	}
	first, ok := o.since[what]
	if !ok || first.still != still {
		first = sighting{time.Now(), still}
		o.since[what] = first
	}
	return time.Since(first.at)
}

// asked is the state of a partition in the broker and in the outboxes.
type asked struct {
	broker   *Broker
	findings []Finding
}

const seeQueue = "see backend queue: does a process with the role consumer run, and does it reach MySQL?"

// ask reads the queues of a sale. It returns an error only for a server that must answer.
func (a *Auditor) ask(ctx context.Context, sale int64) (asked, error) {
	if a.queues == nil {
		return asked{}, nil
	}
	b := &Broker{Queue: broker.QueueName(a.queues.Partition(sale))}
	if err := a.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM dead_letters WHERE sale_id = ? AND replayed_at IS NULL`, sale).Scan(&b.DeadLetters); err != nil {
		return asked{}, fmt.Errorf("dead letters: %w", err)
	}
	var first int64
	if err := a.db.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(MIN(n), 0) FROM deferred_orders WHERE sale_id = ?`, sale).Scan(&b.Deferred, &first); err != nil {
		return asked{}, fmt.Errorf("deferred orders: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	states, err := a.queues.Queues(limited)
	cancel()
	if ctx.Err() != nil {
		return asked{}, ctx.Err()
	}
	r := asked{broker: b}
	odd := func(key string, there bool, still string, bound time.Duration, fix, detail string) {
		if age := a.odd.age(key, there, still); age > bound {
			r.findings = append(r.findings, Finding{Equation: eqBroker, Key: key, Fix: fix, Detail: fmt.Sprintf("%s, for %s; the bound is %s", detail, age.Round(time.Second), bound)})
		}
	}
	odd("deferred orders", b.Deferred > 0, fmt.Sprint(first), a.bound, "the sale is closed, or Redis is away: see /-/ready of a process with the role timer",
		fmt.Sprintf("%d orders of older epochs are deferred", b.Deferred))
	if err != nil {
		b.Error = err.Error()
	}
	odd("the broker", err != nil, "", a.bound, "orders are accepted and wait in the outbox: bring RabbitMQ back", "it does not say how its queues are: "+b.Error)
	if err != nil {
		return r, nil
	}
	var unrouted, dead int64 // that nobody has taken
	for _, s := range states {
		switch s.Name {
		case b.Queue:
			b.Ready, b.Unacked, b.Consumers = s.Ready, s.Unacked, s.Consumers
		case broker.Unrouted:
			b.Unrouted, unrouted = s.Ready+max(s.Unacked, 0), s.Ready
		case broker.Dead:
			b.Dead, dead = s.Ready+max(s.Unacked, 0), s.Ready
		}
	}
	own, all, err := a.outboxes(ctx, sale)
	if err != nil {
		return asked{}, err
	}
	var died int64 // how often something did
	if err := a.db.QueryRowContext(ctx, `SELECT COALESCE(SUM(times), 0) FROM dead_letters`).Scan(&died); err != nil {
		return asked{}, fmt.Errorf("dead letters: %w", err)
	}
	ready, held, lost := b.Ready > 0 && own.entries == 0, b.Unacked > 0 && own.entries == 0, unrouted > 0 && all.entries == 0
	b.Unexplained = ready || held || lost || dead > 0
	const settled = "though every order is settled and retired"
	odd("queue "+b.Queue, ready, own.still(), a.bound, seeQueue, fmt.Sprintf("%d messages are ready, %s", b.Ready, settled))
	odd("consumer of queue "+b.Queue, held, own.still(), a.bound+broker.StatisticsAge, seeQueue, fmt.Sprintf("%d messages are unacknowledged, %s", b.Unacked, settled))
	odd("queue "+broker.Unrouted, lost, all.still(), a.bound, seeQueue, fmt.Sprintf("%d messages that found no queue wait, %s", unrouted, settled))
	odd("queue "+broker.Dead, dead > 0, fmt.Sprint(died), a.bound, seeQueue, fmt.Sprintf("%d dead messages wait to be taken, and none is", dead))
	return r, nil
}

// outboxes are what some outboxes hold, and the last entry that each ever got.
type outboxes struct {
	entries int64
	last    hash.Hash
}

// still is the same as long as none of the outboxes gets an entry.
func (o outboxes) still() string { return hex.EncodeToString(o.last.Sum(nil)) }

// outboxes looks at those whose orders go through the sale's partition, and at all.
func (a *Auditor) outboxes(ctx context.Context, sale int64) (own, all outboxes, err error) {
	ids, err := a.Sales(ctx)
	if err != nil {
		return own, all, err
	}
	own.last, all.last = sha256.New(), sha256.New()
	c := a.redis.Client()
	for part := range slices.Chunk(ids, 200) {
		cmds := make(rueidis.Commands, len(part))
		for i, id := range part {
			cmds[i] = c.B().XinfoStream().Key(a.redis.OutboxKey(id)).Build()
		}
		for i, answer := range c.DoMulti(ctx, cmds...) {
			info, err := answer.AsMap()
			if e, ok := rueidis.IsRedisErr(err); ok && strings.Contains(e.Error(), "no such key") {
				continue
			}
			if err != nil {
				return own, all, fmt.Errorf("outbox of sale %d: %w", part[i], err)
			}
			n, last := info["length"], info["last-generated-id"]
			length, err1 := n.AsInt64()
			id, err2 := last.ToString()
			if err := errors.Join(err1, err2); err != nil {
				return own, all, fmt.Errorf("outbox of sale %d: %w", part[i], err)
			}
			all.entries += length
			fmt.Fprintln(all.last, part[i], id)
			if a.queues.Partition(part[i]) == a.queues.Partition(sale) {
				own.entries += length
				fmt.Fprintln(own.last, part[i], id)
			}
		}
	}
	return own, all, nil
}
