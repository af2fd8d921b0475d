// Package topk finds the clients that ask most, in bounded memory: the Space-Saving sketch of Metwally, Agrawal and El Abbadi
// ("Efficient computation of frequent and top-k elements in data streams", 2005), a minute at a time.
package topk

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Size is how many clients a minute's sketch holds. Who made more than 1/Size of a minute's requests is among them.
	Size = 1024

	exact = 1000 // requests of a second that are counted one by one
	every = 16   // of the others one in so many is counted, for all of them
)

// Entry is a client and what it did.
type Entry[K comparable] struct {
	Client   K
	Requests uint64 // at most, and at least Requests - Over; where more than 1,000 came in a second it is an estimate
	Over     uint64
	Refused  uint64 // at least
}

// Client is an Entry under the name that people know.
type Client struct {
	Name     string `json:"name"` // a uid or an address (IPv6: its /64)
	Requests uint64 `json:"requests"`
	Over     uint64 `json:"over"`
	Refused  uint64 `json:"refused"`
}

// Table counts clients. It is safe for concurrent use; make it with New.
type Table[K comparable] struct {
	busy atomic.Int64 // the second in which exact was passed

	mu        sync.Mutex // guards what follows
	second    int64
	came      int
	minute    int64
	now, last sketch[K]
}

// New makes a table that is empty.
func New[K comparable]() *Table[K] {
	return &Table[K]{now: newSketch[K](), last: newSketch[K]()}
}

// Add counts a request of a client.
func (t *Table[K]) Add(client K, refused bool, at time.Time) {
	second, weight := at.Unix(), uint64(1)
	if t.busy.Load() == second {
		if rand.Uint32()%every != 0 {
			return
		}
		weight = every
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(second / 60)
	if second > t.second {
		t.second, t.came = second, 0
	}
	if t.came++; t.came >= exact {
		t.busy.Store(second)
	}
	t.now.add(client, refused, weight)
}

// turn begins a new minute where it is one. Time that goes back is the present minute.
func (t *Table[K]) turn(minute int64) {
	if minute <= t.minute {
		return
	}
	t.now, t.last = t.last, t.now
	t.now.empty()
	if minute > t.minute+1 {
		t.last.empty()
	}
	t.minute = minute
}

// Top is the n clients that asked most since the beginning of the last whole minute, most first.
func (t *Table[K]) Top(n int, at time.Time) (since time.Time, top []Entry[K]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(at.Unix() / 60)
	sum := map[K]Entry[K]{}
	for _, s := range []*sketch[K]{&t.last, &t.now} {
		for _, c := range s.heap {
			e := sum[c.Client]
			sum[c.Client] = Entry[K]{c.Client, e.Requests + c.Requests, e.Over + c.Over, e.Refused + c.Refused}
		}
	}
	for _, e := range sum {
		top = append(top, e)
	}
	slices.SortFunc(top, func(a, b Entry[K]) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Over, b.Over))
	})
	return time.Unix((t.minute-1)*60, 0).UTC(), top[:min(n, len(top))]
}

// sketch is one minute's Size counters, the smallest on top of a heap.
type sketch[K comparable] struct {
	byClient map[K]*counter[K]
	heap     counters[K]
}

type counter[K comparable] struct {
	Entry[K]
	at int // in the heap
}

func newSketch[K comparable]() sketch[K] { return sketch[K]{byClient: make(map[K]*counter[K], Size)} }

func (s *sketch[K]) empty() {
	clear(s.byClient)
	clear(s.heap)
	s.heap = s.heap[:0]
}

// add counts a client. Where no counter is free the client takes the smallest over, with its count: it may have been that much.
func (s *sketch[K]) add(client K, refused bool, weight uint64) {
	c := s.byClient[client]
	switch {
	case c != nil:
	case len(s.heap) < Size:
		c = &counter[K]{Entry: Entry[K]{Client: client}}
		s.byClient[client] = c
		heap.Push(&s.heap, c)
	default:
		c = s.heap[0]
		delete(s.byClient, c.Client)
		c.Client, c.Over, c.Refused = client, c.Requests, 0
		s.byClient[client] = c
	}
	c.Requests += weight
	if refused {
		c.Refused += weight
	}
	heap.Fix(&s.heap, c.at)
}

// counters is a heap.Interface.
type counters[K comparable] []*counter[K]

func (h counters[K]) Len() int           { return len(h) }
func (h counters[K]) Less(i, j int) bool { return h[i].Requests < h[j].Requests }
func (h counters[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *counters[K]) Push(x any) {
	c := x.(*counter[K])
	c.at = len(*h)
	*h = append(*h, c)
}

// Pop implements heap.Interface; nothing is ever taken out.
func (h *counters[K]) Pop() any { panic("BUG: a counter is taken out") }
