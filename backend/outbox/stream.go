package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
)

// Queue is the queue's name in dead letters that come from an outbox.
const Queue = "outbox"

// Published is the pseudo consumer that holds the entries that the broker has confirmed. Nobody reads as it.
const Published = "published"

// stream is one consumer's view of the outboxes.
type stream struct {
	redis *reserve.Store
	name  string
}

// row is an entry as it was read: an order, or something else.
type row struct {
	id    string
	entry queued.Entry
	err   error             // why it is no order
	raw   map[string]string // its fields then
	gone  bool              // it was retired; only the group still has it
}

func rows(sale int64, xs []rueidis.XRangeEntry) []row {
	out := make([]row, len(xs))
	for i, x := range xs {
		out[i].id = x.ID
		if x.FieldValues == nil {
			out[i].gone = true
			continue
		}
		if out[i].entry, out[i].err = queued.Parse(sale, x.ID, x.FieldValues); out[i].err != nil {
			out[i].raw = x.FieldValues
		}
	}
	return out
}

var errNoGroup = errors.New("an outbox has no consumer group")

// fresh reads entries that were not delivered yet, at most count of each sale. It waits up to block for the first.
func (s stream) fresh(ctx context.Context, sales []int64, count int64, block time.Duration) (map[int64][]row, error) {
	ctx, cancel := context.WithTimeout(ctx, block+redis.Timeout)
	defer cancel()
	keys, from := make([]string, len(sales)), make([]string, len(sales))
	for i, sale := range sales {
		keys[i], from[i] = s.redis.OutboxKey(sale), ">"
	}
	c := s.redis.Client()
	found, err := c.Do(ctx, c.B().Xreadgroup().Group(reserve.Group, s.name).Count(count).Block(max(1, block.Milliseconds())).
		Streams().Key(keys...).Id(from...).Build()).AsXRead()
	if err != nil {
		return nil, readError(err)
	}
	out := make(map[int64][]row, len(found))
	for i, sale := range sales {
		if xs := found[keys[i]]; len(xs) > 0 {
			out[sale] = rows(sale, xs)
		}
	}
	return out, nil
}

// own reads what this consumer still holds, after an id.
func (s stream) own(ctx context.Context, sale int64, after string, count int64) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	key := s.redis.OutboxKey(sale)
	c := s.redis.Client()
	found, err := c.Do(ctx, c.B().Xreadgroup().Group(reserve.Group, s.name).Count(count).Streams().Key(key).Id(after).Build()).AsXRead()
	if err != nil {
		return nil, readError(err)
	}
	return rows(sale, found[key]), nil
}

func readError(err error) error {
	switch {
	case err == nil, rueidis.IsRedisNil(err):
		return nil
	case strings.HasPrefix(err.Error(), "NOGROUP"), strings.HasPrefix(err.Error(), "UNBLOCKED"), // the stream went away
		strings.HasPrefix(err.Error(), "ERR no such key"):
		return errNoGroup
	default:
		return fmt.Errorf("read the outbox: %w", err)
	}
}

// holders returns the consumers of a sale's group that hold entries, and whether there are others.
func (s stream) holders(ctx context.Context, sale int64) (names []string, others bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis.Client()
	list, err := c.Do(ctx, c.B().XinfoConsumers().Key(s.redis.OutboxKey(sale)).Group(reserve.Group).Build()).ToArray()
	if err != nil {
		return nil, false, readError(err)
	}
	for _, m := range list {
		info, err := m.AsMap()
		if err != nil {
			return nil, false, fmt.Errorf("consumers of sale %d's outbox: %w", sale, err)
		}
		pending, name := info["pending"], info["name"]
		n, err := pending.AsInt64()
		if err != nil {
			return nil, false, fmt.Errorf("consumers of sale %d's outbox: %w", sale, err)
		}
		text, err := name.ToString()
		if err != nil {
			return nil, false, fmt.Errorf("consumers of sale %d's outbox: %w", sale, err)
		}
		switch {
		case n > 0:
			names = append(names, text)
		case text != s.name && text != Published:
			others = true
		}
	}
	return names, others, nil
}

// held is an entry that a consumer holds.
type held struct {
	id         string
	deliveries int64 // since a handler last reported an error
}

func idsOf(list []held) []string {
	ids := make([]string, len(list))
	for i, h := range list {
		ids[i] = h.id
	}
	return ids
}

// idle returns what a consumer has held for at least that long.
func (s stream) idle(ctx context.Context, sale int64, consumer string, atLeast time.Duration, count int64) ([]held, error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis.Client()
	list, err := c.Do(ctx, c.B().Xpending().Key(s.redis.OutboxKey(sale)).Group(reserve.Group).Idle(atLeast.Milliseconds()).
		Start("-").End("+").Count(count).Consumer(consumer).Build()).ToArray()
	if err = readError(err); err == errNoGroup {
		return nil, nil // nobody reads it yet
	}
	if err != nil {
		return nil, fmt.Errorf("pending entries of sale %d: %w", sale, err)
	}
	var found []held
	for _, m := range list {
		four, err := m.ToArray()
		if err != nil || len(four) != 4 {
			return nil, fmt.Errorf("pending entries of sale %d: %v: %w", sale, m, err)
		}
		id, err1 := four[0].ToString()
		deliveries, err2 := four[3].AsInt64()
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("pending entries of sale %d: %w", sale, err)
		}
		found = append(found, held{id, deliveries})
	}
	return found, nil
}

// claim takes over those of the entries that have been idle for at least that long.
func (s stream) claim(ctx context.Context, sale int64, ids []string, atLeast time.Duration) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis.Client()
	xs, err := c.Do(ctx, c.B().Xclaim().Key(s.redis.OutboxKey(sale)).Group(reserve.Group).Consumer(s.name).
		MinIdleTime(strconv.FormatInt(atLeast.Milliseconds(), 10)).Id(ids...).Build()).AsXRange()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, fmt.Errorf("claim %d entries of sale %d: %w", len(ids), sale, err)
	}
	return rows(sale, xs), nil
}

// mark gives entries to Published. It skips those that were retired meanwhile.
func (s stream) mark(ctx context.Context, entries []queued.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis.Client()
	var cmds rueidis.Commands
	for sale, ids := range bySale(entries) {
		cmds = append(cmds, c.B().Xclaim().Key(s.redis.OutboxKey(sale)).Group(reserve.Group).Consumer(Published).
			MinIdleTime("0").Id(ids...).Retrycount(1).Justid().Build())
	}
	for _, r := range c.DoMulti(ctx, cmds...) {
		if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
			return fmt.Errorf("mark %d entries as published: %w", len(entries), err)
		}
	}
	return nil
}

// excuse keeps entries whose handling failed with an error, and resets their count of deliveries. Only deliveries to consumers
// that died count.
func (s stream) excuse(ctx context.Context, sale int64, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis.Client()
	err := c.Do(ctx, c.B().Xclaim().Key(s.redis.OutboxKey(sale)).Group(reserve.Group).Consumer(s.name).
		MinIdleTime("0").Id(ids...).Retrycount(0).Justid().Build()).Error()
	if err != nil && !rueidis.IsRedisNil(err) {
		return fmt.Errorf("keep %d entries of sale %d: %w", len(ids), sale, err)
	}
	return nil
}

// drop removes entries from the group but not from the stream: they are no orders, or are not in the stream any more.
func (s stream) drop(ctx context.Context, sale int64, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis.Client()
	if err := c.Do(ctx, c.B().Xack().Key(s.redis.OutboxKey(sale)).Group(reserve.Group).Id(ids...).Build()).Error(); err != nil {
		return fmt.Errorf("drop %d entries of sale %d: %w", len(ids), sale, err)
	}
	return nil
}

func bySale(entries []queued.Entry) map[int64][]string {
	m := map[int64][]string{}
	for _, e := range entries {
		m[e.Sale] = append(m[e.Sale], e.Entry)
	}
	return m
}
