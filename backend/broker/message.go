package broker

import (
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// The types of message in a partition, and of the answers to a fence.
const (
	typeOrder    = "order"
	typeFence    = "fence"
	typeReturned = "fence-returned" // the fence had come back to its queue, so it says nothing
)

func encode(e reserve.Entry, id uint64) (amqp.Publishing, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return amqp.Publishing{}, fmt.Errorf("encode order %s: %w", e.ID, err)
	}
	p := amqp.Publishing{
		Type:          typeOrder,
		ContentType:   "application/json",
		DeliveryMode:  amqp.Persistent,
		MessageId:     e.ID,
		CorrelationId: strconv.FormatUint(id, 10), // of this publishing: a return names it
		Timestamp:     time.UnixMilli(e.At),
		Body:          body,
	}
	if e.Trace != "" {
		p.Headers = amqp.Table{"traceparent": e.Trace}
	}
	return p, nil
}

// decode reads an order; an error says that it never will be one.
func decode(d amqp.Delivery) (reserve.Entry, error) {
	var e reserve.Entry
	if d.Type != typeOrder {
		return e, fmt.Errorf("message type %q is unknown", d.Type)
	}
	if err := json.Unmarshal(d.Body, &e); err != nil {
		return e, fmt.Errorf("message %s: %w", d.MessageId, err)
	}
	sale, ok := wire.SaleOfOrder(e.ID)
	switch {
	case !ok || sale != e.Sale:
		return e, fmt.Errorf("message %s: order id %q is not of sale %d", d.MessageId, e.ID, e.Sale)
	case !wire.ValidUID(e.UID):
		return e, fmt.Errorf("message %s: uid %q is none", d.MessageId, e.UID)
	case e.Quantity < 1:
		return e, fmt.Errorf("message %s: quantity %d is not positive", d.MessageId, e.Quantity)
	}
	return e, nil
}
