// Package event tells the shop's own systems what happens to orders and sales, by signed webhooks in the form of
// https://www.standardwebhooks.com.
//
// Log writes a row for each event and endpoint, in the MySQL transaction of the change itself. So an event is there exactly if its
// change is. Sender delivers the rows at least once, and those of one order, or of one sale, to one endpoint in their order.
// See docs/events.md.
package event

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// Type says what happened.
type Type string

// The types of event.
const (
	OrderCreated   Type = "order.created" // MySQL has the order: it waits for its payment, or its coupons are issued
	OrderPaid      Type = "order.paid"
	OrderCancelled Type = "order.cancelled" // by its owner, or by support
	OrderExpired   Type = "order.expired"   // it was not paid in time
	OrderRejected  Type = "order.rejected"  // an accepted order could not be made
	RefundDue      Type = "refund.due"      // money was taken that pays for nothing
	SaleOpened     Type = "sale.opened"
	SaleSoldOut    Type = "sale.sold_out" // an order took the last unit, as MySQL counts
	SaleEnded      Type = "sale.ended"    // by the clock, or closed by an operator
)

// Types lists them.
var Types = []Type{OrderCreated, OrderPaid, OrderCancelled, OrderExpired, OrderRejected, RefundDue, SaleOpened, SaleSoldOut, SaleEnded}

// Event is one event before it is written.
type Event struct {
	Type Type
	Ref  string // what it is about, whose events keep their order: an order id, or SaleRef
	Data any
}

// Order is the data of an order's event: the order as its owner sees it, and who that is.
type Order struct {
	wire.Order
	UID string `json:"uid"`
}

// OrderEvent is the event that an order has a new status.
func OrderEvent(o wire.Order, uid string) Event {
	of := map[wire.OrderStatus]Type{wire.PendingPayment: OrderCreated, wire.Issued: OrderCreated, wire.Paid: OrderPaid,
		wire.Cancelled: OrderCancelled, wire.Expired: OrderExpired, wire.Rejected: OrderRejected}
	t, ok := of[o.Status]
	if !ok {
		panic("BUG: no event says that an order is " + string(o.Status))
	}
	return Event{Type: t, Ref: o.OrderID, Data: Order{o, uid}}
}

// Sale is the data of a sale's event.
type Sale struct {
	ID       int64         `json:"sale_id"`
	Kind     wire.SaleKind `json:"kind"`
	Title    string        `json:"title"`
	Price    int64         `json:"price"`
	Currency string        `json:"currency"`
	StartsAt wire.Time     `json:"starts_at"`
	EndsAt   wire.Time     `json:"ends_at"`
	Total    int64         `json:"total"` // units, at that moment
	Sold     int64         `json:"sold"`  // paid or issued
}

// SaleRef is the ref of a sale's events.
func SaleRef(sale int64) string { return "sale:" + strconv.FormatInt(sale, 10) }

// envelope is the body of a webhook.
type envelope struct {
	Type      Type      `json:"type"`
	Timestamp wire.Time `json:"timestamp"` // of the change
	Data      any       `json:"data"`
}

// Log writes events for the endpoints that are configured now. A nil Log has none. It is safe for concurrent use.
type Log struct{ endpoints atomic.Pointer[[]Endpoint] }

// NewLog makes a Log.
func NewLog(endpoints []Endpoint) *Log {
	l := new(Log)
	l.Configure(endpoints)
	return l
}

// Configure replaces the endpoints, which Check has found to be right: what is written from now on is for the new ones.
func (l *Log) Configure(endpoints []Endpoint) {
	if l != nil {
		l.endpoints.Store(&endpoints)
	}
}

// Endpoints are those that are configured now.
func (l *Log) Endpoints() []Endpoint {
	if l == nil {
		return nil
	}
	return *l.endpoints.Load()
}

// On reports whether there is an endpoint. Without one nothing is written.
func (l *Log) On() bool { return len(l.Endpoints()) > 0 }

// rowsOnce bounds the rows of one INSERT, at about half a KB each.
const rowsOnce = 1000

// Write writes events of changes that tx makes, at the time of those, for each endpoint that wants them: in one INSERT, up to
// rowsOnce rows. The caller holds the lock on what each event is about, so later events get higher ids.
func (l *Log) Write(ctx context.Context, tx store.Querier, at time.Time, events ...Event) error {
	endpoints := l.Endpoints()
	if len(endpoints) == 0 || len(events) == 0 {
		return nil
	}
	const width = 6
	var args []any
	for _, e := range events {
		var body string
		for i := range endpoints {
			if !endpoints[i].wants(e.Type) {
				continue
			}
			if body == "" {
				b, err := json.Marshal(envelope{e.Type, wire.At(at), e.Data})
				if err != nil {
					panic("BUG: an event that does not marshal: " + err.Error())
				}
				body = string(b)
			}
			args = append(args, endpoints[i].Name, string(e.Type), e.Ref, body, at, at)
		}
	}
	for part := range slices.Chunk(args, width*rowsOnce) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO events (endpoint, type, ref, body, created_at, due_at) VALUES `+store.Tuples(len(part)/width, width), part...); err != nil {
			return fmt.Errorf("write %d events: %w", len(part)/width, err)
		}
	}
	return nil
}
