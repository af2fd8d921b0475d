package reserve

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
)

// Backlog is how much a sale's outbox holds.
type Backlog struct {
	Sale   int64
	Depth  int64 // entries
	Oldest int64 // when the order of the first entry was made, in ms since 1970 by Redis's clock; 0: there is none, or it is no order
}

// Backlogs reads the outboxes of these sales, 200 in a round trip.
func (s *Store) Backlogs(ctx context.Context, sales []int64) ([]Backlog, error) {
	all := make([]Backlog, 0, len(sales))
	for len(sales) > 0 {
		n := min(len(sales), 200)
		cmds := make(rueidis.Commands, 0, 2*n)
		for _, id := range sales[:n] {
			key := s.OutboxKey(id)
			cmds = append(cmds, s.client.B().Xlen().Key(key).Build(), s.client.B().Xrange().Key(key).Start("-").End("+").Count(1).Build())
		}
		answers := s.client.DoMulti(ctx, cmds...)
		for i, id := range sales[:n] {
			b := Backlog{Sale: id}
			var err error
			if b.Depth, err = answers[2*i].AsInt64(); err != nil {
				return nil, fmt.Errorf("outbox of sale %d: %w", id, err)
			}
			entries, err := answers[2*i+1].AsXRange()
			if err != nil {
				return nil, fmt.Errorf("outbox of sale %d: %w", id, err)
			}
			for _, x := range entries {
				if e, err := queued.Parse(id, x.ID, x.FieldValues); err == nil {
					b.Oldest = e.At
				}
			}
			all = append(all, b)
		}
		sales = sales[n:]
	}
	return all, nil
}
