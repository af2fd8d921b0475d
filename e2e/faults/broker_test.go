//go:build servers

package faults

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// queues is what the backend declares with the default number of partitions.
var queues = []string{"fg.orders.0", "fg.orders.1", "fg.orders.2", "fg.orders.3", "fg.unrouted", "fg.dead"}

// leftIn says which queues hold messages. Nobody may consume any more: a passive declare counts what is ready.
func leftIn(url string) (left []string, err error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	for _, name := range queues {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			return nil, fmt.Errorf("queue %s: %w", name, err)
		}
		if q.Messages > 0 {
			left = append(left, fmt.Sprintf("%s: %d", name, q.Messages))
		}
	}
	return left, nil
}
