package broker

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/queued"
)

// The types of message in a partition, and of the answers to a fence.
const (
	typeOrder    = "order"  // one order
	typeOrders   = "orders" // up to perMessage orders of a sale: an array, its format in headerFormat
	typeFence    = "fence"
	typeReturned = "fence-returned" // the fence had come back to its queue, so it says nothing
)

// perMessage is how many orders of a sale one message carries, at most. A message costs the broker the same, whatever it carries.
const perMessage = 64

// A message of several orders names its format. A consumer leaves a newer one than its own to newer consumers.
const (
	headerFormat = "format"
	format       = int32(1)
)

// errNewer: only a newer consumer can read the message.
var errNewer = errors.New("the message is of a newer version")

// together divides orders into messages: those of one sale together, in their order.
func together(entries []queued.Entry) [][]queued.Entry {
	var messages [][]queued.Entry
	last := map[int64]int{} // of each sale
	for _, e := range entries {
		i, ok := last[e.Sale]
		if !ok || len(messages[i]) == perMessage {
			i = len(messages)
			last[e.Sale], messages = i, append(messages, nil)
		}
		messages[i] = append(messages[i], e)
	}
	return messages
}

// encode makes a message of orders of one sale.
func encode(entries []queued.Entry, id uint64) amqp.Publishing {
	first := entries[0]
	p := amqp.Publishing{
		Type:          typeOrder,
		ContentType:   "application/json",
		DeliveryMode:  amqp.Persistent,
		MessageId:     first.ID,
		CorrelationId: strconv.FormatUint(id, 10), // of this publishing: a return names it
		Timestamp:     time.UnixMilli(first.At),
	}
	if len(entries) == 1 {
		p.Body = queued.Encode(first)
		if first.Trace != "" {
			p.Headers = amqp.Table{"traceparent": first.Trace}
		}
		return p
	}
	p.Type, p.Headers, p.Body = typeOrders, amqp.Table{headerFormat: format}, queued.EncodeAll(entries)
	return p
}

// decode reads the orders of a message, one at least. errNewer; any other error says that it never will be orders.
func decode(d amqp.Delivery) ([]queued.Entry, error) {
	switch d.Type {
	case typeOrder:
		e, err := queued.Decode(d.Body)
		if err != nil {
			return nil, fmt.Errorf("message %s: %w", d.MessageId, err)
		}
		return []queued.Entry{e}, nil
	case typeOrders:
		if f, _ := d.Headers[headerFormat].(int32); f > format {
			return nil, fmt.Errorf("message %s: format %d: %w", d.MessageId, f, errNewer)
		}
		entries, err := queued.DecodeAll(d.Body)
		if err != nil {
			return nil, fmt.Errorf("message %s: %w", d.MessageId, err)
		}
		return entries, nil
	default:
		return nil, fmt.Errorf("message type %q is unknown", d.Type)
	}
}
