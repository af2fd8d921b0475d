package upstream

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Class is how much a request matters when places at the backends are short: what was promised comes before new promises,
// and those before pages, which the cache has.
type Class int

// From the first to be served to the first to be refused.
const (
	Settle Class = iota // order status, payments, cancellations, claims, webhooks
	Order               // new orders and carts
	Page                // public reads that the cache asks for
	classes
)

// share is below how many in flight, of n, one more of a class is let in: all of them, 4/5, 3/5. So whatever the other classes
// want, a fifth is left to Settle, and two fifths to Settle and Order (trunk reservation, as telephone networks do it).
func (c Class) share(n int) int64 { return int64(n - n*int(c)/5) }

// bound is what refused a request: a class's share, or one of those that follow.
type bound int

const (
	boundSale bound = iota + bound(classes)
	boundWaiting
	bounds
)

var boundNames = [bounds]string{"settle", "order", "page", "sale", "waiting"}

// enter takes a place for r, or returns ErrBusy.
func (p *Pool) enter(s *set, r *Request) error {
	if r.Wait > 0 {
		if !take(&p.waiting, int64(s.MaxWaiting)) {
			return p.full(boundWaiting, s.MaxWaiting)
		}
		return nil
	}
	if !p.sales.take(r.Sale, s.MaxPerSale) {
		return p.full(boundSale, s.MaxPerSale)
	}
	if !take(&p.busy, r.Class.share(s.MaxInFlight)) {
		p.sales.give(r.Sale)
		return p.full(bound(r.Class), int(r.Class.share(s.MaxInFlight)))
	}
	return nil
}

// leave gives back what enter took.
func (p *Pool) leave(r *Request) {
	if r.Wait > 0 {
		p.waiting.Add(-1)
		return
	}
	p.busy.Add(-1)
	p.sales.give(r.Sale)
}

func (p *Pool) full(by bound, limit int) error {
	p.metrics.refused[by].Inc()
	return fmt.Errorf("%w: %d (%s)", ErrBusy, limit, boundNames[by])
}

// take counts one more unless there are limit already. It never counts further for a moment, so a crowd that is refused does
// not hide a place from who may have it.
func take(n *atomic.Int64, limit int64) bool {
	for {
		now := n.Load()
		if now >= limit {
			return false
		}
		if n.CompareAndSwap(now, now+1) {
			return true
		}
	}
}

// sales counts the orders at the backends by sale: at most as many sales as there are orders in flight.
type sales struct {
	mu     sync.Mutex // guards orders
	orders map[int64]int
}

func (s *sales) take(sale int64, limit int) bool {
	if sale == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orders[sale] >= limit {
		return false
	}
	s.orders[sale]++
	return true
}

// full reports whether take would refuse.
func (s *sales) full(sale int64, limit int) bool {
	if sale == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders[sale] >= limit
}

func (s *sales) give(sale int64) {
	if sale == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orders[sale]--; s.orders[sale] == 0 {
		delete(s.orders, sale)
	}
}
