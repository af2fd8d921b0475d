package reserve

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
)

// Backlog is how much a sale's outbox holds.
type Backlog struct {
	Sale   int64
	Depth  int64 // entries
	Oldest int64 // when the order of the first entry was made, in ms since 1970 by Redis's clock; 0: there is none, or it is no order
}

// Backlogs reads the outboxes of these sales, 200 in a round trip, and another for those that hold something.
func (s *Store) Backlogs(ctx context.Context, sales []int64) ([]Backlog, error) {
	all := make([]Backlog, 0, len(sales))
	for part := range slices.Chunk(sales, 200) {
		lengths := make(rueidis.Commands, len(part))
		for i, id := range part {
			lengths[i] = s.client.B().Xlen().Key(s.OutboxKey(id)).Build()
		}
		var some []*Backlog
		for i, r := range s.client.DoMulti(ctx, lengths...) {
			depth, err := r.AsInt64()
			if err != nil {
				return nil, fmt.Errorf("outbox of sale %d: %w", part[i], err)
			}
			all = append(all, Backlog{Sale: part[i], Depth: depth})
			if depth > 0 {
				some = append(some, &all[len(all)-1])
			}
		}
		heads := make(rueidis.Commands, len(some))
		for i, b := range some {
			heads[i] = s.client.B().Xrange().Key(s.OutboxKey(b.Sale)).Start("-").End("+").Count(1).Build()
		}
		for i, r := range s.client.DoMulti(ctx, heads...) {
			b := some[i]
			entries, err := r.AsXRange()
			if err != nil {
				return nil, fmt.Errorf("outbox of sale %d: %w", b.Sale, err)
			}
			for _, x := range entries {
				if e, err := queued.Parse(b.Sale, x.ID, x.FieldValues); err == nil {
					b.Oldest = e.At
				}
			}
		}
	}
	return all, nil
}
