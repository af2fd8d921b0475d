package reserve

import (
	"context"
	"fmt"

	"floodgate.internal/backend/redis"
)

// Subset is some primaries of Redis, with the sales that are on them.
type Subset struct {
	*redis.Subset
	store *Store
}

// On returns the sales' side of a Subset.
func (s *Store) On(nodes *redis.Subset) *Subset { return &Subset{nodes, s} }

// HasSale reports whether a sale's keys are on these nodes.
func (p *Subset) HasSale(sale int64) bool { return p.Has(p.store.state(sale)) }

// Present returns those of the sales that are on these nodes and have a state there.
func (p *Subset) Present(ctx context.Context, sales []int64) (map[int64]bool, error) {
	keys := make([]string, len(sales))
	for i, sale := range sales {
		keys[i] = p.store.state(sale)
	}
	exists, err := p.Exists(ctx, keys)
	if err != nil {
		return nil, err
	}
	present := map[int64]bool{}
	for i, sale := range sales {
		present[sale] = exists[keys[i]]
	}
	return present, nil
}

// Shut is the Store's, over the connection that is held.
func (p *Subset) Shut(ctx context.Context, sale, token int64) (present bool, err error) {
	conn := p.Conn(p.store.state(sale))
	if conn == nil {
		return false, fmt.Errorf("close sale %d: it is on none of these nodes", sale)
	}
	return p.store.shut(ctx, conn, sale, token)
}
