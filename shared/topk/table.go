package topk

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Size is how many clients a minute of a Table holds. Who made more than 1/Size of a minute's requests is among them.
	Size = 1024

	exact = 1000 // requests of a second that are counted one by one
	every = 16   // of the others one in so many is counted, for all of them
)

// Client is an Entry under the name that people know.
type Client struct {
	Name     string `json:"name"` // a uid or an address (IPv6: its /64)
	Requests uint64 `json:"requests"`
	Over     uint64 `json:"over"`
	Refused  uint64 `json:"refused"`
}

// Table counts the requests of clients, a minute at a time. Where more than 1,000 came in a second their counts are an estimate.
// It is safe for concurrent use; make it with NewTable.
type Table[K comparable] struct {
	busy atomic.Int64 // the second in which exact was passed

	mu        sync.Mutex // guards what follows
	second    int64
	came      int
	minute    int64
	now, last *Sketch[K]
}

// NewTable makes a table that is empty.
func NewTable[K comparable]() *Table[K] {
	return &Table[K]{now: NewSketch[K](Size), last: NewSketch[K](Size)}
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
	e := t.now.Add(client, weight)
	if refused {
		e.Marked += weight
	}
}

// turn begins a new minute where it is one. Time that goes back is the present minute.
func (t *Table[K]) turn(minute int64) {
	if minute <= t.minute {
		return
	}
	t.now, t.last = t.last, t.now
	t.now.Empty()
	if minute > t.minute+1 {
		t.last.Empty()
	}
	t.minute = minute
}

// Top returns the n clients that asked most since the beginning of the last whole minute, most first. Marked is how many were refused.
func (t *Table[K]) Top(n int, at time.Time) (since time.Time, top []Entry[K]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(at.Unix() / 60)
	sum := map[K]Entry[K]{}
	for _, s := range []*Sketch[K]{t.last, t.now} {
		for e := range s.All() {
			of := sum[e.Key]
			sum[e.Key] = Entry[K]{e.Key, of.Count + e.Count, of.Over + e.Over, of.Marked + e.Marked}
		}
	}
	for _, e := range sum {
		top = append(top, e)
	}
	slices.SortFunc(top, func(a, b Entry[K]) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Over, b.Over))
	})
	return time.Unix((t.minute-1)*60, 0).UTC(), top[:min(n, len(top))]
}
