// Package queued is an order on its way from Redis to MySQL: its entry, the encoding of the entry, what settling it may
// answer, and the message it becomes when it cannot be settled.
package queued

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"

	"floodgate.internal/shared/wire"
)

// Entry is a queued order. An entry of an outbox stream carries it, and so does a message of RabbitMQ.
type Entry struct {
	ID       string `json:"id"` // the order's
	Sale     int64  `json:"sale"`
	UID      string `json:"uid"`
	Quantity int    `json:"quantity"`
	Slots    string `json:"slots"` // "1,2"
	Key      string `json:"key"`   // Idempotency-Key or ""
	Epoch    int64  `json:"epoch"`
	At       int64  `json:"at"` // of the press, in milliseconds
	Trace    string `json:"trace"`
	Entry    string `json:"entry"` // id in the outbox stream
}

// Parse reads the entry with this id in a sale's outbox stream. An error says that it will never be an order.
func Parse(sale int64, id string, fields map[string]string) (Entry, error) {
	e := Entry{ID: fields["id"], Sale: sale, UID: fields["uid"], Slots: fields["slots"], Key: fields["key"], Trace: fields["trace"], Entry: id}
	var err1, err2, err3 error
	e.Quantity, err1 = strconv.Atoi(fields["quantity"])
	e.Epoch, err2 = strconv.ParseInt(fields["epoch"], 10, 64)
	e.At, err3 = strconv.ParseInt(fields["at"], 10, 64)
	err := errors.Join(err1, err2, err3)
	if err == nil {
		err = e.check()
	}
	if err != nil {
		return e, fmt.Errorf("outbox entry %s of sale %d: %v is no order: %w", id, sale, fields, err)
	}
	return e, nil
}

// Encode returns the entry as JSON: a message's body, a dead letter's payload, a row of deferred_orders.
func Encode(e Entry) []byte {
	p, err := json.Marshal(e)
	if err != nil {
		panic("BUG: an entry that does not marshal: " + err.Error())
	}
	return p
}

// Decode reads what Encode wrote. An error says that it will never be an order.
func Decode(p []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(p, &e); err != nil {
		return e, err
	}
	return e, e.check()
}

// EncodeAll returns entries as a JSON array: the body of a message that carries several.
func EncodeAll(entries []Entry) []byte {
	p, err := json.Marshal(entries)
	if err != nil {
		panic("BUG: entries that do not marshal: " + err.Error())
	}
	return p
}

// DecodeAll reads what EncodeAll wrote, one entry at least. An error says that some of it will never be an order.
func DecodeAll(p []byte) ([]Entry, error) {
	var entries []Entry
	if err := json.Unmarshal(p, &entries); err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, errors.New("it carries no order")
	}
	for _, e := range entries {
		if err := e.check(); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

func (e Entry) check() error {
	sale, ok := wire.SaleOfOrder(e.ID)
	switch {
	case !ok || sale != e.Sale:
		return fmt.Errorf("order id %q is not of sale %d", e.ID, e.Sale)
	case !wire.ValidUID(e.UID):
		return fmt.Errorf("uid %q is none", e.UID)
	case e.Quantity < 1:
		return fmt.Errorf("quantity %d is not positive", e.Quantity)
	}
	return nil
}

// DeadMessage is a message or an entry that could not be processed.
type DeadMessage struct {
	Queue      string // where it was last
	Reason     string
	Payload    []byte
	Deliveries int64  // at least
	Entry      *Entry // the order that the payload is; nil: it is none
}

// PoisonError names entries for which MySQL takes no row at all, not even a rejected one. Every other entry of the batch
// is settled. Make these dead letters.
type PoisonError struct {
	Entries []Entry
	Err     error // why, of the last of them
}

func (e *PoisonError) Error() string {
	return fmt.Sprintf("%d entries can never be settled, the last one for: %v", len(e.Entries), e.Err)
}

func (e *PoisonError) Unwrap() error { return e.Err }

// ClosedError names entries of older epochs that Redis does not adopt now: their sale is closed, or Redis is away. Every
// other entry of the batch is settled, but for those of a PoisonError that it is joined with. Keep these and settle them again.
type ClosedError struct {
	Entries []Entry
	Err     error // why, of the last of them
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("%d orders cannot be adopted now, the last one for: %v", len(e.Entries), e.Err)
}

func (e *ClosedError) Unwrap() error { return e.Err }

// KeptError names entries that MySQL keeps without their being settled: as deferred orders or as dead letters. Acknowledge them,
// but do not retire them: where the outbox still has them, it holds their units.
type KeptError struct{ Entries []Entry }

func (e *KeptError) Error() string {
	return fmt.Sprintf("%d orders are kept, but not settled", len(e.Entries))
}
