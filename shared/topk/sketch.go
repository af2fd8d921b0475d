// Package topk finds the keys that are counted most, in bounded memory, by the Space-Saving algorithm of Metwally, Agrawal and El Abbadi
// ("Efficient computation of frequent and top-k elements in data streams", 2005).
package topk

import (
	"container/heap"
	"iter"
)

// Entry is a key and its count.
type Entry[K comparable] struct {
	Key    K
	Count  uint64 // at most this many were counted, and at least Count - Over
	Over   uint64
	Marked uint64 // what the caller adds to it, of those; at least
}

// Sketch holds the keys with the highest counts. A key with more than 1/size of all counts is among them.
type Sketch[K comparable] struct {
	size  int
	byKey map[K]*counter[K]
	heap  counters[K] // the lowest count first
}

type counter[K comparable] struct {
	Entry[K]
	at int // in the heap
}

// NewSketch makes a sketch of at most size keys.
func NewSketch[K comparable](size int) *Sketch[K] {
	return &Sketch[K]{size: size, byKey: map[K]*counter[K]{}}
}

// Empty forgets all keys.
func (s *Sketch[K]) Empty() {
	clear(s.byKey)
	clear(s.heap)
	s.heap = s.heap[:0]
}

// Add counts a key, n times. Where the sketch is full, a new key takes the place of the one with the lowest count, and that count as
// what it may have too many.
func (s *Sketch[K]) Add(key K, n uint64) *Entry[K] {
	c := s.byKey[key]
	switch {
	case c != nil:
	case len(s.heap) < s.size:
		c = &counter[K]{Entry: Entry[K]{Key: key}}
		s.byKey[key] = c
		heap.Push(&s.heap, c)
	default:
		c = s.heap[0]
		delete(s.byKey, c.Key)
		c.Key, c.Over, c.Marked = key, c.Count, 0
		s.byKey[key] = c
	}
	c.Count += n
	heap.Fix(&s.heap, c.at)
	return &c.Entry
}

// All returns every entry, in no order.
func (s *Sketch[K]) All() iter.Seq[Entry[K]] {
	return func(yield func(Entry[K]) bool) {
		for _, c := range s.heap {
			if !yield(c.Entry) {
				return
			}
		}
	}
}

// counters is a heap.Interface.
type counters[K comparable] []*counter[K]

func (h counters[K]) Len() int           { return len(h) }
func (h counters[K]) Less(i, j int) bool { return h[i].Count < h[j].Count }
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
