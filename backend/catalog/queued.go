package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
)

// headOf is how many entries of an outbox are looked at. As many old ones mean that nothing is settled; fewer may be such as
// nothing can settle (dead letters that no row can be written for, entries that are no orders), which stay in the outbox,
// and are no reason to sell nothing.
const headOf = 8

// readQueued reads how many orders stand in the outboxes and since when the oldest does, in one round trip: of the sales
// that move (all: that still sell), and of any others until nothing is left.
func (c *Catalog) readQueued(ctx context.Context, v *view, turn int64, all bool) error {
	now := c.clk.Now()
	var ids []int64
	for _, s := range v.items {
		if (all || s.stock.moves(turn)) && !s.Ended(now) || !s.stock.counted.Load() || s.stock.queued.Load() > 0 {
			ids = append(ids, s.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	b := c.redis.Client().B()
	cmds := make(rueidis.Commands, 0, 2*len(ids))
	for _, id := range ids {
		key := c.redis.OutboxKey(id)
		cmds = append(cmds, b.Xlen().Key(key).Build(), b.Xrange().Key(key).Start("-").End("+").Count(headOf).Build())
	}
	r := c.redis.Client().DoMulti(ctx, cmds...)
	var failed error // of the last sale whose node is away: the others are read all the same
	for i, id := range ids {
		n, err := r[2*i].AsInt64()
		if err != nil {
			failed = fmt.Errorf("length of the outbox of sale %d: %w", id, err)
			continue
		}
		head, err := r[2*i+1].AsXRange()
		if err != nil {
			failed = fmt.Errorf("head of the outbox of sale %d: %w", id, err)
			continue
		}
		var oldest, last int64
		for _, x := range head {
			if e, err := queued.Parse(id, x.ID, x.FieldValues); err == nil {
				last = e.At
				if oldest == 0 || e.At < oldest {
					oldest = e.At
				}
			}
		}
		if len(head) < headOf {
			last = 0
		}
		s := v.byID[id].stock
		s.queued.Store(n)
		s.oldest.Store(oldest)
		s.eighth.Store(last)
		s.counted.Store(true)
	}
	return failed
}

// Queued is how many orders stood in the sale's outbox a moment ago.
func (c *Catalog) Queued(id int64) int64 {
	if s := c.live.Load().item(id); s != nil {
		return s.stock.queued.Load()
	}
	return 0
}

// Lag is how far the consumers are behind with a sale: for how long its eighth oldest order has been in the outbox, 0 where
// there are fewer. It grows while Redis cannot be asked.
func (c *Catalog) Lag(id int64) time.Duration {
	if s := c.live.Load().item(id); s != nil {
		return c.since(s.stock.eighth.Load())
	}
	return 0
}

func (c *Catalog) since(at int64) time.Duration {
	if at == 0 {
		return 0
	}
	return max(0, c.clk.Now().Sub(time.UnixMilli(at)))
}

// Oldest is for how long the oldest order of all live sales has been in its outbox.
func (c *Catalog) Oldest() (most time.Duration) {
	v := c.live.Load()
	if v == nil {
		return 0
	}
	for _, s := range v.byID {
		most = max(most, c.since(s.stock.oldest.Load()))
	}
	return most
}

// Silence is how long ago MySQL last gave the sales, which it is asked for twice a second.
func (c *Catalog) Silence() time.Duration {
	return time.Since(c.begun) - time.Duration(c.heard.Load())
}
