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

// QueueState is how a queue stands. Without the management API Unacked is -1: unknown.
type QueueState struct {
	Name      string `json:"name"`
	Depth     int64  `json:"depth"` // ready and, as far as it is known, unacknowledged
	Ready     int64  `json:"ready"`
	Unacked   int64  `json:"unacked"`
	Consumers int64  `json:"consumers"`
}

// Queues returns the state of each partition, of the unrouted messages and, last, of the dead letters. The broker's
// numbers lag by up to some seconds.
func (b *Broker) Queues(ctx context.Context) ([]QueueState, error) {
	var names []string
	for i := range b.cfg.Partitions {
		names = append(names, QueueName(i))
	}
	names = append(names, Unrouted, Dead)
	if b.cfg.ManagementURL != "" {
		return b.managed(ctx, names)
	}
	return b.declared(ctx, names)
}

var managementClient = &http.Client{Timeout: 10 * time.Second}

func (b *Broker) managed(ctx context.Context, names []string) ([]QueueState, error) {
	u := b.cfg.ManagementURL + "/api/queues/" + url.PathEscape(b.vhost) + "?disable_stats=false&columns=name,messages_ready,messages_unacknowledged,consumers"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq's queues: %w", err)
	}
	res, err := managementClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq's queues: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("rabbitmq's queues: the management API answered %s", res.Status)
	}
	var all []struct {
		Name      string `json:"name"`
		Ready     int64  `json:"messages_ready"`
		Unacked   int64  `json:"messages_unacknowledged"`
		Consumers int64  `json:"consumers"`
	}
	if err := json.UnmarshalRead(http.MaxBytesReader(nil, res.Body, 1<<20), &all); err != nil {
		return nil, fmt.Errorf("rabbitmq's queues: %w", err)
	}
	states := make([]QueueState, len(names))
	for i, name := range names {
		states[i].Name = name
		for _, q := range all {
			if q.Name == name {
				states[i] = QueueState{Name: name, Depth: q.Ready + q.Unacked, Ready: q.Ready, Unacked: q.Unacked, Consumers: q.Consumers}
			}
		}
	}
	return states, nil
}

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
