package broker

import (
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/queued"
)

// The types of message in a partition, and of the answers to a fence.
const (
	typeOrder    = "order"
	typeFence    = "fence"
	typeReturned = "fence-returned" // the fence had come back to its queue, so it says nothing
)

func encode(e queued.Entry, id uint64) amqp.Publishing {
	p := amqp.Publishing{
		Type:          typeOrder,
		ContentType:   "application/json",
		DeliveryMode:  amqp.Persistent,
		MessageId:     e.ID,
		CorrelationId: strconv.FormatUint(id, 10), // of this publishing: a return names it
		Timestamp:     time.UnixMilli(e.At),
		Body:          queued.Encode(e),
	}
	if e.Trace != "" {
		p.Headers = amqp.Table{"traceparent": e.Trace}
	}
	return p
}

// decode reads an order; an error says that it never will be one.
func decode(d amqp.Delivery) (queued.Entry, error) {
	if d.Type != typeOrder {
		return queued.Entry{}, fmt.Errorf("message type %q is unknown", d.Type)
	}
	e, err := queued.Decode(d.Body)
	if err != nil {
		return e, fmt.Errorf("message %s: %w", d.MessageId, err)
	}
	return e, nil
}
