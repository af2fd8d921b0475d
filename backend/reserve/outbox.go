package reserve

import (
	"context"
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

// Join makes the consumer group of a sale's outbox, from its first entry on, where there is none; false: nothing of the
// sale is in Redis.
func (s *Store) Join(ctx context.Context, sale int64) (bool, error) {
	reply, err := s.client.Call(ctx, lua.OutboxGroup, []string{s.state(sale), s.OutboxKey(sale)}, Group)
	if err != nil {
		return false, fmt.Errorf("make the group of sale %d's outbox: %w", sale, err)
	}
	return reply.Answer() != lua.NotLoaded, nil
}

// outboxPage is how many entries one call reads of an outbox: Redis answers nobody else meanwhile.
const outboxPage = 500

// Outbox reads a sale's outbox, page by page: what is added or retired meanwhile may be in it or not. Bad are entries that
// are no orders.
func (s *Store) Outbox(ctx context.Context, sale int64) (entries []queued.Entry, bad []error, err error) {
	return s.outbox(ctx, s.client, sale)
}

func (s *Store) outbox(ctx context.Context, conn rueidis.CoreClient, sale int64) (entries []queued.Entry, bad []error, err error) {
	for from := "-"; ; {
		page, err := s.outboxPage(ctx, conn, sale, from)
		if err != nil {
			return nil, nil, fmt.Errorf("outbox of sale %d: %w", sale, err)
		}
		for _, x := range page {
			e, err := queued.Parse(sale, x.ID, x.FieldValues)
			if err != nil {
				bad = append(bad, err)
				continue
			}
			entries = append(entries, e)
		}
		if len(page) < outboxPage {
			return entries, bad, nil
		}
		from = "(" + page[len(page)-1].ID
	}
}

// Unheld are those of the entries whose orders this Redis itself does not hold. None where its reservations are not whole: a load of
// them has begun and not ended, or nobody has said yet that they are. Both are certain only behind a closed gate.
func (s *Store) Unheld(ctx context.Context, sale int64, entries []queued.Entry) (map[string]bool, error) {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return s.UnheldOf(ctx, sale, ids)
}

// UnheldOf is Unheld for orders by their ids.
func (s *Store) UnheldOf(ctx context.Context, sale int64, orders []string) (map[string]bool, error) {
	unheld := map[string]bool{}
	b := s.client.B()
	for ids := range slices.Chunk(orders, outboxPage) {
		ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
		r := s.client.DoMulti(ctx, b.Hmget().Key(s.orders(sale)).Field(ids...).Build(), b.Hget().Key(s.state(sale)).Field("whole").Build())
		cancel()
		held, err := r[0].ToArray()
		if err != nil {
			return nil, fmt.Errorf("reservations of sale %d: %w", sale, err)
		}
		whole, err := r[1].ToString() // after them: a load that began in between has said so
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, fmt.Errorf("reservations of sale %d: %w", sale, err)
		}
		if whole != "1" {
			return nil, nil
		}
		for i, h := range held {
			if h.IsNil() {
				unheld[ids[i]] = true
			}
		}
	}
	return unheld, nil
}

// EachHeld gives every reservation of a sale to f, by pages of about 500. What is reserved or released meanwhile may be among them or not;
// one may come twice. Bad are those that cannot be read.
func (s *Store) EachHeld(ctx context.Context, sale int64, f func(page []Held) error) (bad []error, err error) {
	err = s.client.Dedicated(func(c rueidis.DedicatedClient) error { // one node, whose cursors they are
		for cursor := uint64(0); ; {
			part, cancel := context.WithTimeout(ctx, redis.Timeout)
			found, err := c.Do(part, c.B().Hscan().Key(s.orders(sale)).Cursor(cursor).Count(snapshotPage).Build()).AsScanEntry()
			cancel()
			if err != nil {
				return err
			}
			var page []Held
			for i := 0; i+1 < len(found.Elements); i += 2 {
				h, err := parseHeld(found.Elements[i], found.Elements[i+1])
				if err != nil {
					bad = append(bad, err)
					continue
				}
				page = append(page, h)
			}
			if err := f(page); err != nil {
				return err
			}
			if cursor = found.Cursor; cursor == 0 {
				return nil
			}
		}
	})
	if err != nil {
		err = fmt.Errorf("reservations of sale %d: %w", sale, err)
	}
	return bad, err
}

// Gone are the newest reservations of a sale that were released, at most 500.
func (s *Store) Gone(ctx context.Context, sale int64) (list []Held, err error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	gone, err := s.client.Do(ctx, s.client.B().Lrange().Key(s.gone(sale)).Start(-goneMost).Stop(-1).Build()).AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("what sale %d has released: %w", sale, err)
	}
	for _, text := range gone {
		id, value, _ := strings.Cut(text, " ")
		h, err := parseHeld(id, value)
		if err != nil {
			return nil, fmt.Errorf("what sale %d has released: %w", sale, err)
		}
		list = append(list, h)
	}
	return list, nil
}

// Refill adds orders that this Redis holds, and MySQL has forgotten, to the outbox again, behind the gate that token closed, and sets
// their Entry. ErrLost: another reconciler took over.
func (s *Store) Refill(ctx context.Context, sale, token, epoch int64, orders []Held) error {
	for page := range slices.Chunk(orders, loadStep) {
		args := []string{strconv.FormatInt(token, 10), strconv.FormatInt(epoch, 10)}
		for _, o := range page {
			args = append(args, o.ID, o.UID, strconv.Itoa(o.Quantity), o.Slots, o.Key, strconv.FormatInt(o.At, 10))
		}
		reply, err := s.client.Call(ctx, lua.SaleRefill, []string{s.state(sale), s.OutboxKey(sale)}, args...)
		if err != nil {
			return fmt.Errorf("refill the outbox of sale %d: %w", sale, err)
		}
		if reply.Answer() == lua.Lost {
			return ErrLost
		}
		for i := range page {
			page[i].Entry = reply.Text(i + 1)
		}
	}
	return nil
}

func (s *Store) outboxPage(ctx context.Context, conn rueidis.CoreClient, sale int64, from string) ([]rueidis.XRangeEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	return conn.Do(ctx, conn.B().Xrange().Key(s.OutboxKey(sale)).Start(from).End("+").Count(outboxPage).Build()).AsXRange()
}

// StrayEntries gives entries of a sale's outbox that were given to somebody before and are pending with nobody to consumer. It looks at
// most at a hundred that are at least that old, after an entry, "-" for the first ones, and says after which to go on.
func (s *Store) StrayEntries(ctx context.Context, sale int64, consumer, after string, old time.Duration) (next string, found []string, err error) {
	const most = "100"
	words, err := s.client.Call(ctx, lua.OutboxSkipped, []string{s.OutboxKey(sale)}, Group, consumer, after, strconv.FormatInt(old.Milliseconds(), 10), most)
	if err != nil {
		return "", nil, fmt.Errorf("look for stray entries of sale %d: %w", sale, err)
	}
	return words[0], words[1:], nil
}

// SweepOutbox forgets consumers of a sale's outbox that hold nothing and have been silent for idle, but for those named.
func (s *Store) SweepOutbox(ctx context.Context, sale int64, idle time.Duration, keep ...string) error {
	_, err := s.client.Call(ctx, lua.OutboxSweep, []string{s.OutboxKey(sale)}, append([]string{Group, strconv.FormatInt(idle.Milliseconds(), 10)}, keep...)...)
	if err != nil {
		return fmt.Errorf("forget silent consumers of sale %d's outbox: %w", sale, err)
	}
	return nil
}
