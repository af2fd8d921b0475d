// Package presslog counts what became of each user's orders, until a backend has taken the counts. They answer the
// question why somebody did not get one: see docs/timeline.md.
//
// A press is one order that a shopper sends. A record says how often, and between which times, a user's presses in a sale
// met a rule. A Recorder holds a bounded number of records. A new one that finds no room is dropped, and counted by sale.
package presslog

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

const (
	shards = 64
	// maxSales bounds the sales of a shard whose dropped presses are counted apart. Those of further sales count as sale 0.
	maxSales = 64
)

// Recorder is safe for concurrent use. Make it with NewRecorder.
type Recorder struct {
	seed   maphash.Seed
	max    atomic.Int64 // records kept
	size   atomic.Int64
	shards [shards]shard
	next   int // the shard that take begins with; take's own

	recorded, dropped prometheus.Counter
}

// shard is one part of the table. mu guards the rest.
type shard struct {
	mu      sync.Mutex
	kept    map[key]*aggregate
	dropped map[int64]int64 // presses by sale
	_       [40]byte
}

type key struct {
	uid  string
	rule verdict.Rule
	sale int64
}

// aggregate is a record; its times are milliseconds since 1970.
type aggregate struct{ first, last, count int64 }

// NewRecorder makes an empty Recorder of at most maxRecords records.
func NewRecorder(maxRecords int, reg prometheus.Registerer) *Recorder {
	r := &Recorder{seed: maphash.MakeSeed(),
		recorded: prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_timeline_recorded_total", Help: "Presses of known users that were kept for their timelines."}),
		dropped:  prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_timeline_dropped_total", Help: "Presses of known users that were not kept for their timelines, for want of room here, or because the backend would not take them."}),
	}
	r.SetMax(maxRecords)
	for i := range r.shards {
		r.shards[i].kept, r.shards[i].dropped = map[key]*aggregate{}, map[int64]int64{}
	}
	reg.MustRegister(r.recorded, r.dropped, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_timeline_records", Help: "Aggregates in memory that no backend was given yet."},
		func() float64 { return float64(r.size.Load()) }))
	return r
}

// SetMax changes the bound on records. Those that are held stay.
func (r *Recorder) SetMax(n int) { r.max.Store(int64(n)) }

// Record counts one press. at is in milliseconds since 1970, by the server's clock. uid must not belong to a request's
// buffer. Only the first press of a record allocates.
func (r *Recorder) Record(sale int64, uid string, rule verdict.Rule, at int64) {
	k := key{uid, rule, sale}
	s := &r.shards[maphash.Comparable(r.seed, k)%shards]
	s.mu.Lock()
	a := s.kept[k]
	if a == nil {
		if r.size.Add(1) > r.max.Load() {
			r.size.Add(-1)
			s.drop(sale, 1)
			s.mu.Unlock()
			r.dropped.Inc()
			return
		}
		a = &aggregate{first: at, last: at}
		s.kept[k] = a
	}
	a.count++
	a.first, a.last = min(a.first, at), max(a.last, at) // requests do not come here in the order in which they read the clock
	s.mu.Unlock()
	r.recorded.Inc()
}

// drop counts presses that are not kept. The caller holds s.mu.
func (s *shard) drop(sale, n int64) {
	if _, ok := s.dropped[sale]; !ok && len(s.dropped) >= maxSales {
		sale = 0
	}
	s.dropped[sale] += n
}

// giveUp counts a batch that no backend will take as dropped.
func (r *Recorder) giveUp(records []verdict.Record, dropped []verdict.Dropped) {
	s := &r.shards[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range records {
		s.drop(a.Sale, a.Count)
		r.dropped.Add(float64(a.Count))
	}
	for _, d := range dropped { // the metric counts them already
		s.drop(d.Sale, d.Count)
	}
}

// take removes and returns up to verdict.MaxBatch records, and the drops of up to verdict.MaxDropped sales. left says that
// there is more. One caller at a time; each call begins at the shard where the last one stopped.
func (r *Recorder) take() (records []verdict.Record, dropped []verdict.Dropped, left bool) {
	records, dropped = []verdict.Record{}, []verdict.Dropped{}
	for range shards {
		s := &r.shards[r.next]
		s.mu.Lock()
		for k, a := range s.kept {
			if len(records) == verdict.MaxBatch {
				break
			}
			records = append(records, verdict.Record{Sale: k.sale, UID: k.uid, Rule: k.rule, First: wire.Millis(a.first), Last: wire.Millis(a.last), Count: a.count})
			delete(s.kept, k)
		}
		for sale, n := range s.dropped {
			if len(dropped) == verdict.MaxDropped {
				break
			}
			dropped = append(dropped, verdict.Dropped{Sale: sale, Count: n})
			delete(s.dropped, sale)
		}
		left = len(records) == verdict.MaxBatch || len(dropped) == verdict.MaxDropped
		s.mu.Unlock()
		if left {
			break
		}
		r.next = (r.next + 1) % shards
	}
	r.size.Add(-int64(len(records)))
	return records, merge(dropped), left
}

// merge adds up what several shards dropped of one sale.
func merge(list []verdict.Dropped) []verdict.Dropped {
	at := make(map[int64]int, len(list))
	out := list[:0]
	for _, d := range list {
		if i, ok := at[d.Sale]; ok {
			out[i].Count += d.Count
			continue
		}
		at[d.Sale] = len(out)
		out = append(out, d)
	}
	return out
}
