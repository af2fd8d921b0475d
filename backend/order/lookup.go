package order

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	lookupOnce    = 500             // orders in one query
	lookupQueries = 2               // queries under way at once
	lookupTimeout = 3 * time.Second // of one query
)

// lookups turns concurrent lookups of single orders into few queries for many orders. While the maximum of queries is
// under way, further lookups join the next one.
type lookups struct {
	query func(ctx context.Context, ids []string) (map[string]row, error)
	sizes prometheus.Observer
	slots chan struct{} // a query under way holds one

	mu   sync.Mutex // guards next, and what is gathered in it
	next *gathering
}

// gathering is the lookups of one query. The first of them closes done; after that rows and err do not change.
type gathering struct {
	ids  []string
	done chan struct{}
	rows map[string]row
	err  error
}

func newLookups(query func(context.Context, []string) (map[string]row, error), sizes prometheus.Observer) *lookups {
	return &lookups{query: query, sizes: sizes, slots: make(chan struct{}, lookupQueries)}
}

// get reads one order; false if MySQL does not have it.
func (l *lookups) get(ctx context.Context, id string) (row, bool, error) {
	l.mu.Lock()
	g := l.next
	first := g == nil || len(g.ids) >= lookupOnce
	if first {
		g = &gathering{done: make(chan struct{})}
		l.next = g
	}
	g.ids = append(g.ids, id)
	l.mu.Unlock()
	if first {
		l.ask(ctx, g)
	}
	select {
	case <-g.done:
	case <-ctx.Done():
		return row{}, false, ctx.Err()
	}
	r, ok := g.rows[id]
	return r, ok, g.err
}

// ask waits for a slot, ends the gathering, and queries for all in it. It continues if the caller that began it leaves,
// for the others stay.
func (l *lookups) ask(ctx context.Context, g *gathering) {
	ctx = context.WithoutCancel(ctx)
	l.slots <- struct{}{}
	defer func() { <-l.slots }()
	l.mu.Lock()
	if l.next == g {
		l.next = nil
	}
	ids := make([]string, 0, len(g.ids))
	seen := make(map[string]struct{}, len(g.ids))
	for _, id := range g.ids {
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			ids = append(ids, id)
		}
	}
	l.mu.Unlock()
	g.err = fmt.Errorf("the query for %d orders broke off", len(ids)) // stands if it panics
	defer close(g.done)
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	l.sizes.Observe(float64(len(ids)))
	g.rows, g.err = l.query(ctx, ids)
}
