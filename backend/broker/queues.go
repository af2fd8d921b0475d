package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-json-experiment/json"
	amqp "github.com/rabbitmq/amqp091-go"
)

// QueueState is how a queue stands. What is ready and who consumes is so at this moment. Unacked is what the management API
// said last, which may be StatisticsAge old; without it Unacked is -1: unknown.
type QueueState struct {
	Name      string `json:"name"`
	Depth     int64  `json:"depth"` // ready and, as far as it is known, unacknowledged
	Ready     int64  `json:"ready"`
	Unacked   int64  `json:"unacked"`
	Consumers int64  `json:"consumers"`
}

// StatisticsAge is how old the management API's numbers are, at most: queues count every 5 s, the API collects every 5 s, and
// a busy machine may be late with both.
const StatisticsAge = 30 * time.Second

// Queues returns the state of each partition, of the unrouted messages and, last, of the dead letters.
func (b *Broker) Queues(ctx context.Context) ([]QueueState, error) {
	var names []string
	for i := range b.cfg.Partitions {
		names = append(names, QueueName(i))
	}
	names = append(names, Unrouted, Dead)
	if b.cfg.ManagementURL == "" {
		return b.declared(ctx, names)
	}
	unacked, err := b.unacknowledged(ctx) // first: it has a deadline, and a broker that does not answer it is not asked more
	if err != nil {
		return nil, err
	}
	states, err := b.declared(ctx, names)
	for i := range states {
		states[i].Unacked = unacked[states[i].Name]
		states[i].Depth += states[i].Unacked
	}
	return states, err
}

// Kind is what a queue is made of.
type Kind struct {
	Name    string
	Type    string // quorum, or what somebody else has made of it
	Members int    // that hold a copy; 0: not known
}

// Kinds returns the kind of each partition's queue. Members, and a type that is another by now, are known only where there is a
// management API that answers. Without it a queue is what it was declared as when this process connected: the broker refuses to
// declare a queue that is there and of another type.
func (b *Broker) Kinds(ctx context.Context) ([]Kind, error) {
	if _, err := b.publisher(ctx); err != nil {
		return nil, fmt.Errorf("rabbitmq's queues: %w", err)
	}
	var all []struct {
		Name    string   `json:"name"`
		Type    string   `json:"type"`
		Members []string `json:"members"`
	}
	if b.cfg.ManagementURL != "" {
		if err := b.manage(ctx, "/api/queues/"+url.PathEscape(b.vhost)+"?disable_stats=true&enable_queue_totals=true", &all); err != nil {
			all = nil
		}
	}
	var kinds []Kind
	for i := range b.cfg.Partitions {
		k := Kind{Name: QueueName(i), Type: amqp.QueueTypeQuorum}
		for _, q := range all {
			if q.Name == k.Name && q.Type != "" {
				k.Type, k.Members = q.Type, len(q.Members)
			}
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

var managementClient = &http.Client{Timeout: 10 * time.Second}

// unacknowledged asks the management API, by queue.
func (b *Broker) unacknowledged(ctx context.Context) (map[string]int64, error) {
	var all []struct {
		Name    string `json:"name"`
		Unacked int64  `json:"messages_unacknowledged"`
	}
	if err := b.manage(ctx, "/api/queues/"+url.PathEscape(b.vhost)+"?disable_stats=false&columns=name,messages_unacknowledged", &all); err != nil {
		return nil, err
	}
	unacked := make(map[string]int64, len(all))
	for _, q := range all {
		unacked[q.Name] = q.Unacked
	}
	return unacked, nil
}

// manage reads what the management API answers at a path.
func (b *Broker) manage(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.cfg.ManagementURL+path, nil)
	if err != nil {
		return fmt.Errorf("rabbitmq's queues: %w", err)
	}
	res, err := managementClient.Do(req)
	if err != nil {
		return fmt.Errorf("rabbitmq's queues: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("rabbitmq's queues: the management API answered %s", res.Status)
	}
	if err := json.UnmarshalRead(http.MaxBytesReader(nil, res.Body, 1<<20), into); err != nil {
		return fmt.Errorf("rabbitmq's queues: %w", err)
	}
	return nil
}

// declared asks for what is ready and who consumes by a passive declaration of each queue, which leaves it as it is.
func (b *Broker) declared(ctx context.Context, names []string) (states []QueueState, err error) {
	p, err := b.publisher(ctx)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq's queues: %w", err)
	}
	ch, err := p.conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("rabbitmq's queues: %w", err)
	}
	defer func() {
		if e := ch.Close(); e != nil && !errors.Is(e, amqp.ErrClosed) && err == nil {
			err = fmt.Errorf("rabbitmq's queues: %w", e)
		}
	}()
	for _, name := range names {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			return nil, fmt.Errorf("rabbitmq's queue %s: %w", name, err)
		}
		states = append(states, QueueState{Name: name, Depth: int64(q.Messages), Ready: int64(q.Messages), Unacked: -1, Consumers: int64(q.Consumers)})
	}
	return states, nil
}
