// Package reserve is the Redis side of a sale: its stock, its reservations, its outbox, and the scripts that decide.
//
// Each call runs one script of package lua; their contracts stand at the heads of those files. Nothing here is ever
// retried by the client: a call whose answer was lost may have been carried out, and says so with its error.
package reserve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/lua"
)

// What stands between a caller and a decision. redis.ErrRestarted is another: the scripts of the incarnation in use are not there.
var (
	// ErrNotLoaded: the sale is not in Redis.
	ErrNotLoaded = errors.New("the sale is not in redis")
	// ErrGateClosed: the sale is being reconciled.
	ErrGateClosed = errors.New("the sale is being reconciled")
	// ErrLost: another reconciler took over.
	ErrLost = errors.New("another reconciler took over")
	// ErrNotEnough: fewer units are in Redis's stock than should leave it.
	ErrNotEnough = errors.New("fewer units are available")
)

// Group is the consumer group of every outbox.
const Group = "orders"

// Store calls the scripts of sales. It is safe for concurrent use.
type Store struct {
	client   *redis.Client
	maxEnded int
}

// New makes the Store of a Redis. maxEnded is how many orders of a buyer in one sale may have ended before Reserve takes no other;
// 0: any number. It bounds the accepted Idempotency-Keys, which are kept as long as the sale.
func New(client *redis.Client, maxEnded int) *Store {
	return &Store{client: client, maxEnded: maxEnded}
}

// Open connects to Redis; it fails if Redis does not answer. maxEnded is New's.
func Open(c redis.Config, maxEnded int) (*Store, error) {
	client, err := redis.Open(c)
	if err != nil {
		return nil, err
	}
	return New(client, maxEnded), nil
}

// Client is the connection.
func (s *Store) Client() *redis.Client { return s.client }

// Close ends the connection.
func (s *Store) Close() { s.client.Close() }

func (s *Store) key(sale int64, name string) string {
	return s.client.Prefix() + "{sale:" + strconv.FormatInt(sale, 10) + "}:" + name
}

// OutboxKey is the key of a sale's outbox stream.
func (s *Store) OutboxKey(sale int64) string { return s.key(sale, "outbox") }

func (s *Store) state(sale int64) string   { return s.key(sale, "state") }
func (s *Store) orders(sale int64) string  { return s.key(sale, "orders") }
func (s *Store) buyers(sale int64) string  { return s.key(sale, "buyers") }
func (s *Store) idem(sale int64) string    { return s.key(sale, "idem") }
func (s *Store) applied(sale int64) string { return s.key(sale, "applied") }
func (s *Store) gone(sale int64) string    { return s.key(sale, "gone") }

// all are the keys of sale_forget.lua.
func (s *Store) all(sale int64) []string {
	return []string{s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.OutboxKey(sale), s.applied(sale), s.gone(sale)}
}

// Request is one press of the button.
type Request struct {
	Sale     int64
	UID      string
	Quantity int
	OrderID  string // new: wire.NewOrderID
	Key      string // Idempotency-Key or ""
	Epoch    int64  // that the caller knows
	Trace    string // traceparent or ""
	Line     bool   // on behalf of the standby line, for which units are kept while somebody waits there
}

// Verdict is what sale_reserve.lua decided.
type Verdict struct {
	Answer    lua.Answer // Reserved, Repeated, KeyReused, AlreadyOrdered, SoldOut, NotEnough, TooMany, NotStarted, Ended, Paused, StaleEpoch
	OrderID   string     // Reserved, Repeated, KeyReused, AlreadyOrdered
	Available int64      // after a Reserved, and for NotEnough
	Reserved  int64      // units, after a Reserved
	StartsAt  int64      // NotStarted, in milliseconds
	Epoch     int64      // StaleEpoch
	Entry     string     // after a Reserved: its id in the outbox
	Slots     string     // after a Reserved: "1,2"
	At        int64      // after a Reserved: when, by Redis's clock, in milliseconds
}

// Entry is the outbox entry of an order that was Reserved.
func (r Request) Entry(v Verdict) queued.Entry {
	return queued.Entry{ID: v.OrderID, Sale: r.Sale, UID: r.UID, Quantity: r.Quantity, Slots: v.Slots, Key: r.Key, Epoch: r.Epoch, At: v.At,
		Trace: r.Trace, Entry: v.Entry}
}

// Reserve decides one order. Errors: redis.ErrRestarted, ErrNotLoaded, ErrGateClosed (nothing was done), or anything else, after
// which the order may stand: its outcome is unknown.
func (s *Store) Reserve(ctx context.Context, r Request) (Verdict, error) {
	line := ""
	if r.Line {
		line = lua.ForLine
	}
	reply, err := s.client.Call(ctx, s.client.Incarnation().Reserve,
		[]string{s.state(r.Sale), s.orders(r.Sale), s.buyers(r.Sale), s.idem(r.Sale), s.OutboxKey(r.Sale)},
		strconv.FormatInt(r.Epoch, 10), r.UID, strconv.Itoa(r.Quantity), r.OrderID, r.Key, r.Trace, line, strconv.Itoa(s.maxEnded))
	if err != nil {
		return Verdict{}, fmt.Errorf("reserve sale %d for uid %s: %w", r.Sale, r.UID, err)
	}
	v := Verdict{Answer: reply.Answer()}
	switch v.Answer {
	case lua.NotLoaded:
		return v, ErrNotLoaded
	case lua.GateClosed:
		return v, ErrGateClosed
	case lua.Reserved:
		v.OrderID, v.Available, v.Reserved = reply.Text(1), reply.Int(2), reply.Int(3)
		v.Entry, v.Slots, v.At = reply.Text(4), reply.Text(5), reply.Int(6)
	case lua.Repeated, lua.KeyReused, lua.AlreadyOrdered:
		v.OrderID = reply.Text(1)
	case lua.NotEnough:
		v.Available = reply.Int(1)
	case lua.NotStarted:
		v.StartsAt = reply.Int(1)
	case lua.StaleEpoch:
		v.Epoch = reply.Int(1)
	case lua.SoldOut, lua.TooMany, lua.Ended, lua.Paused:
	default:
		panic("BUG: sale_reserve.lua answered " + string(v.Answer))
	}
	return v, nil
}

// Release gives the units of an order that ended back. It is true when this call did it, false when there was nothing to
// give back. Errors: ErrNotLoaded and ErrGateClosed say that the intent must be kept and tried again later.
func (s *Store) Release(ctx context.Context, sale int64, orderID string) (bool, error) {
	reply, err := s.client.Call(ctx, lua.SaleRelease, []string{s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.gone(sale)}, orderID)
	if err != nil {
		return false, fmt.Errorf("release order %s: %w", orderID, err)
	}
	switch reply.Answer() {
	case lua.Released:
		return true, nil
	case lua.Done:
		return false, nil
	case lua.NotLoaded:
		return false, ErrNotLoaded
	default:
		return false, ErrGateClosed
	}
}

// Adjust applies the change of stock of one intent, once. Errors: ErrNotLoaded (loading will include it), ErrGateClosed
// and ErrNotEnough say that the intent must be kept and tried again later.
func (s *Store) Adjust(ctx context.Context, sale int64, intent int64, units int64) error {
	reply, err := s.client.Call(ctx, lua.SaleAdjust, []string{s.state(sale), s.applied(sale)}, strconv.FormatInt(intent, 10), strconv.FormatInt(units, 10))
	if err != nil {
		return fmt.Errorf("adjust sale %d by %d: %w", sale, units, err)
	}
	switch reply.Answer() {
	case lua.Applied, lua.Done:
		return nil
	case lua.NotLoaded:
		return ErrNotLoaded
	case lua.NotEnough:
		return ErrNotEnough
	default:
		return ErrGateClosed
	}
}

// Tranche is a part of the stock and when it goes on sale.
type Tranche struct {
	At    int64 // milliseconds
	Units int64
}

// Definition is what an operator decides of a sale, but for its stock.
type Definition struct {
	Version        int64
	Starts, Ends   int64 // milliseconds
	Limit          int
	Paused, Closed bool
	Later          []Tranche // those released later than Starts
}

func (d Definition) args() []string {
	var later strings.Builder
	for i, t := range d.Later {
		if i > 0 {
			later.WriteByte(' ')
		}
		fmt.Fprintf(&later, "%d:%d", t.At, t.Units)
	}
	return []string{strconv.FormatInt(d.Starts, 10), strconv.FormatInt(d.Ends, 10), strconv.Itoa(d.Limit), bit(d.Paused), bit(d.Closed), later.String()}
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// Define applies a definition if it is newer than Redis's. ErrNotLoaded: loading the sale will bring it.
func (s *Store) Define(ctx context.Context, sale int64, d Definition) error {
	reply, err := s.client.Call(ctx, lua.SaleDefine, []string{s.state(sale)}, append([]string{strconv.FormatInt(d.Version, 10)}, d.args()...)...)
	if err != nil {
		return fmt.Errorf("define sale %d: %w", sale, err)
	}
	if reply.Answer() == lua.NotLoaded {
		return ErrNotLoaded
	}
	return nil
}

// Adopt takes orders of older epochs over, each into the epoch of its sale in epochs, MySQL's present ones, in one pipeline. The
// answers, in the order of entries, are lua.Adopted and Present (drop the old message: the outbox has a new one), SoldOut,
// Limit and KeyReused (reject it), and GateClosed (hold it, ask again). Any error, redis.ErrRestarted among them: hold them all, though some may be
// adopted.
func (s *Store) Adopt(ctx context.Context, entries []queued.Entry, epochs map[int64]int64) ([]lua.Answer, error) {
	calls := make([]redis.Args, len(entries))
	for i, e := range entries {
		calls[i] = redis.Args{
			Keys: []string{s.state(e.Sale), s.orders(e.Sale), s.buyers(e.Sale), s.idem(e.Sale), s.OutboxKey(e.Sale)},
			Args: []string{strconv.FormatInt(epochs[e.Sale], 10), e.ID, e.UID, strconv.Itoa(e.Quantity), e.Slots, e.Key, strconv.FormatInt(e.At, 10), e.Trace, Group},
		}
	}
	replies, err := s.client.CallAll(ctx, s.client.Incarnation().Adopt, calls)
	if err != nil {
		return nil, fmt.Errorf("adopt %d orders: %w", len(entries), err)
	}
	answers := make([]lua.Answer, len(replies))
	for i, reply := range replies {
		if answers[i] = reply.Answer(); answers[i] == lua.StaleEpoch {
			answers[i] = lua.GateClosed
		}
	}
	return answers, nil
}

// Keep gives the outbox entry of an order that the broker has confirmed to consumer, so that no relay publishes it again,
// and says whether Redis still holds the order in the epoch of that entry: if so, it was not lost in between.
func (s *Store) Keep(ctx context.Context, e queued.Entry, consumer string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	b := s.client.B()
	r := s.client.DoMulti(ctx,
		b.Xclaim().Key(s.OutboxKey(e.Sale)).Group(Group).Consumer(consumer).MinIdleTime("0").Id(e.Entry).Justid().Build(),
		b.Hexists().Key(s.orders(e.Sale)).Field(e.ID).Build(),
		b.Hget().Key(s.state(e.Sale)).Field("epoch").Build()) // after the order: an epoch that has not moved by now had not moved then
	if _, answered := rueidis.IsRedisErr(r[0].Error()); r[0].Error() != nil && !answered { // no relay has made the group: one publishes it again
		return false, fmt.Errorf("keep order %s: %w", e.ID, r[0].Error())
	}
	held, err := r[1].AsBool()
	if err != nil {
		return false, fmt.Errorf("keep order %s: %w", e.ID, err)
	}
	epoch, err := r[2].AsInt64()
	if err != nil && !rueidis.IsRedisNil(err) {
		return false, fmt.Errorf("keep order %s: %w", e.ID, err)
	}
	return held && epoch == e.Epoch, nil
}

// Replicated says which of a sale's orders Redis holds in the epochs of their entries, and how many replicas have acknowledged
// these. It waits up to within for n replicas, where any order is held. One connection looks and waits, so the replicas are those of the
// server that holds the orders, and what they have acknowledged was written after them. A replica acknowledges what it has in memory.
func (s *Store) Replicated(ctx context.Context, sale int64, entries []queued.Entry, n int, within time.Duration) (held []bool, acknowledged int, err error) {
	ctx, cancel := context.WithTimeout(ctx, within+redis.Timeout)
	defer cancel()
	c, end := s.client.Dedicate()
	defer end()
	held, args := make([]bool, len(entries)), make([]string, 0, 2*len(entries))
	for _, e := range entries {
		args = append(args, strconv.FormatInt(e.Epoch, 10), e.ID)
	}
	reply, err := redis.CallOn(ctx, c, lua.SaleHeld, []string{s.state(sale), s.orders(sale)}, args...)
	if err != nil {
		return nil, 0, fmt.Errorf("which of %d orders sale %d holds: %w", len(entries), sale, err)
	}
	for i := range reply.Text(1) { // nothing after lua.NotLoaded
		held[i] = reply.Text(1)[i] == '1'
	}
	if !slices.Contains(held, true) {
		return held, 0, nil
	}
	count, err := c.Do(ctx, c.B().Wait().Numreplicas(int64(n)).Timeout(within.Milliseconds()).Build()).AsInt64()
	if err != nil {
		return nil, 0, fmt.Errorf("wait for %d replicas of sale %d: %w", n, sale, err)
	}
	return held, int(count), nil
}

// retireStep is how many entries one script call retires, at most.
const retireStep = 1000

// Retire takes entries out of a sale's outbox. Only for orders whose row in MySQL is committed.
func (s *Store) Retire(ctx context.Context, sale int64, entries []string) error {
	for part := range slices.Chunk(entries, retireStep) {
		if _, err := s.client.Call(ctx, lua.OutboxRetire, []string{s.OutboxKey(sale)}, append([]string{Group}, part...)...); err != nil {
			return fmt.Errorf("retire %d entries of sale %d: %w", len(part), sale, err)
		}
	}
	return nil
}
