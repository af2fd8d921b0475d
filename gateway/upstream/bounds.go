package upstream

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Class is how much a request matters when places at the backends are short. What was promised comes before new promises,
// and those before pages, which the cache may have.
type Class int

// From the first to be served to the first to be refused.
const (
	Settle Class = iota // order status, payments, cancellations, claims, webhooks
	Order               // new orders, carts, standby lines
	Page                // pages and timelines
	classes
)

// share is the bound for a class, out of n places: all of them, 4/5, 3/5. One more is taken while fewer are in flight. So a
// fifth is left to Settle, and two fifths to Settle and Order, whatever the other classes want (trunk reservation).
func (c Class) share(n int) int64 { return int64(n - n*int(c)/5) }

// bound is what refused a request: the share of its class, or one of those below.
type bound int

const (
	boundSale bound = iota + bound(classes)
	boundWaiting
	bounds
)

var boundNames = [bounds]string{"settle", "order", "page", "sale", "waiting"}

// acquire takes a place for r, or returns ErrBusy.
func (p *Pool) acquire(s *configured, r *Request) error {
	if r.Wait > 0 {
		if !acquire(&p.waiting, int64(s.MaxWaiting)) {
			return p.refuse(boundWaiting, s.MaxWaiting)
		}
		return nil
	}
	if !p.sales.acquire(r.Sale, s.MaxPerSale) {
		return p.refuse(boundSale, s.MaxPerSale)
	}
	if !acquire(&p.busy, r.Class.share(s.MaxInFlight)) {
		p.sales.release(r.Sale)
		return p.refuse(bound(r.Class), int(r.Class.share(s.MaxInFlight)))
	}
	return nil
}

// release gives back what acquire took.
func (p *Pool) release(r *Request) {
	if r.Wait > 0 {
		p.waiting.Add(-1)
		return
	}
	p.busy.Add(-1)
	p.sales.release(r.Sale)
}

func (p *Pool) refuse(by bound, limit int) error {
	p.metrics.refused[by].Inc()
	return fmt.Errorf("%w: %d (%s)", ErrBusy, limit, boundNames[by])
}

// acquire adds 1 to n unless n is at the limit. It never goes beyond the limit for a moment, so a crowd that is refused does
// not hide a free place.
func acquire(n *atomic.Int64, limit int64) bool {
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

// sales counts the orders at the backends by sale. It has no more entries than there are orders in flight.
type sales struct {
	mu     sync.Mutex // guards orders
	orders map[int64]int
}

func (s *sales) acquire(sale int64, limit int) bool {
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

// full reports whether acquire would refuse.
func (s *sales) full(sale int64, limit int) bool {
	if sale == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders[sale] >= limit
}

func (s *sales) release(sale int64) {
	if sale == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orders[sale]--; s.orders[sale] == 0 {
		delete(s.orders, sale)
	}
}
