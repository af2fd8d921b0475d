// Package origins counts from which networks the orders of a sale come: a hundred thousand accounts in one hand pass
// every limit on a single one, but their orders come from where that hand is.
//
// It is a report of one process since its start, in bounded memory, and decides nothing.
package origins

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"floodgate.internal/shared/wire"
)

// Bounds of what a Report remembers.
const (
	maxSales    = 2000
	maxNetworks = 128 // of a sale
)

// Unknown is the network of orders whose gateway did not say.
const Unknown = "unknown"

// Report counts orders. It is safe for concurrent use.
type Report struct {
	since time.Time

	mu    sync.Mutex // guards sales
	sales map[int64]*top
}

// New makes a Report that counts from since on.
func New(since time.Time) *Report { return &Report{since: since, sales: map[int64]*top{}} }

// Count notes an accepted order that came from a network, as wire.Network writes it; anything else is Unknown. When as many
// sales are remembered as may be, the one with the fewest orders is forgotten.
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
		t = &top{networks: map[string]*count{}}
		r.sales[sale] = t
	}
	t.add(network)
}

// Counted is one network's orders: at most Orders, at least AtLeast; the two differ only when a sale has orders from more
// networks than are remembered.
type Counted struct {
	Network string `json:"network"`
	Orders  int64  `json:"orders"`
	AtLeast int64  `json:"at_least"`
}

// Sale is what was counted of a sale: since when, how many orders, and the networks with the most of them, most first. Any
// network with more than Orders / 128 of them is there.
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
	for network, c := range t.networks {
		s.Networks = append(s.Networks, Counted{network, c.n, c.n - c.over})
	}
	slices.SortFunc(s.Networks, func(a, b Counted) int {
		return cmp.Or(cmp.Compare(b.Orders, a.Orders), cmp.Compare(a.Network, b.Network))
	})
	return s
}

// top is the networks with the most orders of one sale: the Space-Saving algorithm (Metwally, Agrawal and El Abbadi,
// "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005). A network that is not among them takes the
// place of the one with the fewest orders, and that one's count, as what it may have too many.
type top struct {
	orders   int64
	networks map[string]*count
}

type count struct{ n, over int64 }

func (t *top) add(network string) {
	t.orders++
	if c := t.networks[network]; c != nil {
		c.n++
		return
	}
	if len(t.networks) < maxNetworks {
		t.networks[network] = &count{n: 1}
		return
	}
	var least string
	for name, c := range t.networks {
		if least == "" || c.n < t.networks[least].n {
			least = name
		}
	}
	n := t.networks[least].n
	delete(t.networks, least)
	t.networks[network] = &count{n: n + 1, over: n}
}
