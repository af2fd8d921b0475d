// Package origins counts from which networks the orders of a sale come. A hundred thousand accounts of one owner pass
// every limit on a single account, but their orders come from the owner's networks.
//
// It is a report of one process since its start, in bounded memory, and decides nothing.
package origins

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"floodgate.internal/shared/topk"
	"floodgate.internal/shared/wire"
)

// Bounds of what a Report remembers.
const (
	maxSales    = 2000
	maxNetworks = 128 // of a sale
)

// Unknown is the network of orders whose gateway did not name one.
const Unknown = "unknown"

// Report counts orders. It is safe for concurrent use.
type Report struct {
	since time.Time

	mu    sync.Mutex // guards sales
	sales map[int64]*networks
}

type networks struct {
	orders int64
	top    *topk.Sketch[string]
}

// New makes a Report that counts from since on.
func New(since time.Time) *Report { return &Report{since: since, sales: map[int64]*networks{}} }

// Count notes an accepted order that came from a network, as wire.Network writes it. Anything else is Unknown. When too
// many sales are remembered, the one with the fewest orders is dropped.
func (r *Report) Count(sale int64, network string) {
	if p, err := netip.ParsePrefix(network); err != nil || wire.Network(p.Addr()) != network {
		network = Unknown
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.sales[sale]
	if t == nil {
		if len(r.sales) >= maxSales {
			var least int64
			for id, other := range r.sales {
				if least == 0 || other.orders < r.sales[least].orders {
					least = id
				}
			}
			delete(r.sales, least)
		}
		t = &networks{top: topk.NewSketch[string](maxNetworks)}
		r.sales[sale] = t
	}
	t.orders++
	t.top.Add(network, 1)
}

// Counted is one network's orders: at most Orders, at least AtLeast. The two differ only if a sale has orders from more
// networks than are remembered.
type Counted struct {
	Network string `json:"network"`
	Orders  int64  `json:"orders"`
	AtLeast int64  `json:"at_least"`
}

// Sale is the counts of a sale: since when, how many orders, and the networks with the most of them, most first. It has
// every network with more than Orders / 128 of them.
type Sale struct {
	Since    time.Time
	Orders   int64
	Networks []Counted
}

// Of reports a sale.
func (r *Report) Of(sale int64) Sale {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Sale{Since: r.since, Networks: []Counted{}}
	t := r.sales[sale]
	if t == nil {
		return s
	}
	s.Orders = t.orders
	for e := range t.top.All() {
		s.Networks = append(s.Networks, Counted{e.Key, int64(e.Count), int64(e.Count - e.Over)})
	}
	slices.SortFunc(s.Networks, func(a, b Counted) int {
		return cmp.Or(cmp.Compare(b.Orders, a.Orders), cmp.Compare(a.Network, b.Network))
	})
	return s
}
