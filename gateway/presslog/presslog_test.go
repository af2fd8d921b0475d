package presslog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/shared/verdict"
)

func newRecorder(most int) *Recorder { return NewRecorder(most, prometheus.NewRegistry()) }

// all takes everything out.
func (r *Recorder) all() (records []verdict.Record, dropped map[int64]int64) {
	dropped = map[int64]int64{}
	for left := true; left; {
		var some []verdict.Record
		var lost []verdict.Dropped
		some, lost, left = r.take()
		records = append(records, some...)
		for _, d := range lost {
			dropped[d.Sale] += d.Count
		}
	}
	return records, dropped
}

// Whoever presses at once, and whatever is taken out meanwhile: each press is in one record, or counted as dropped, and the
// records span exactly the presses that they count.
func TestEachPressIsCountedOnce(t *testing.T) {
	for _, most := range []int{1_000_000, 150} {
		const pressers, presses, uids = 8, 4000, 60
		r := newRecorder(most)
		rules := []verdict.Rule{verdict.Accepted, verdict.OrderLimit, verdict.SoldOut}
		var mu sync.Mutex // guards want
		want, total := map[key]aggregate{}, int64(0)
		var records []verdict.Record
		dropped := map[int64]int64{}
		var wg, taker sync.WaitGroup
		done := make(chan struct{})
		taker.Go(func() {
			for ended := false; !ended; {
				select {
				case <-done:
					ended = true
				default:
				}
				some, lost := r.all()
				records = append(records, some...)
				for sale, n := range lost {
					dropped[sale] += n
				}
			}
		})
		for p := range pressers {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(p), 7))
				for i := range presses {
					k := key{fmt.Sprint("u", rnd.IntN(uids)), rules[rnd.IntN(len(rules))], 1 + rnd.Int64N(3)}
					at := int64(1_000_000 + i)
					r.Record(k.sale, k.uid, k.rule, at)
					mu.Lock()
					a, ok := want[k]
					if !ok {
						a.first = at
					}
					want[k] = aggregate{min(a.first, at), max(a.last, at), a.count + 1}
					total++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		close(done)
		taker.Wait()
		got, sum := map[key]aggregate{}, int64(0)
		for _, rec := range records {
			k := key{rec.UID, rec.Rule, rec.Sale}
			a, ok := got[k]
			if !ok {
				a.first = rec.First.UnixMilli()
			}
			got[k] = aggregate{min(a.first, rec.First.UnixMilli()), max(a.last, rec.Last.UnixMilli()), a.count + rec.Count}
			sum += rec.Count
		}
		lost := int64(0)
		for _, n := range dropped {
			lost += n
		}
		if sum+lost != total || most > uids*9 && lost > 0 || float64(sum) != testutil.ToFloat64(r.recorded) || float64(lost) != testutil.ToFloat64(r.dropped) {
			t.Errorf("room for %d: %d presses are %d in records and %d dropped; counted %v and %v", most, total, sum, lost, testutil.ToFloat64(r.recorded), testutil.ToFloat64(r.dropped))
		}
		for k, a := range got {
			if w := want[k]; a.count > w.count || lost == 0 && a != w {
				t.Errorf("%v: got %+v, want %+v", k, a, w)
			}
		}
		if n := r.size.Load(); n != 0 {
			t.Errorf("room for %d: %d are said to be left, and all were taken", most, n)
		}
	}
}

// What is new when it is full is dropped and counted by its sale; what is there goes on; what was taken out makes room.
func TestAFullRecorder(t *testing.T) {
	r := newRecorder(2)
	for range 3 {
		r.Record(1, "ann", verdict.Accepted, 5)
		r.Record(1, "bob", verdict.Accepted, 5)
		r.Record(2, "cyd", verdict.Accepted, 5)
	}
	r.Record(3, "ann", verdict.OrderLimit, 5)
	records, dropped := r.all()
	if len(records) != 2 || records[0].Count != 3 || records[1].Count != 3 || len(dropped) != 2 || dropped[2] != 3 || dropped[3] != 1 {
		t.Errorf("got %+v, dropped %v", records, dropped)
	}
	r.Record(2, "cyd", verdict.Accepted, 6)
	if records, dropped = r.all(); len(records) != 1 || len(dropped) != 0 {
		t.Errorf("after it was emptied: got %+v, dropped %v", records, dropped)
	}
	r.SetMax(0)
	for sale := range int64(10 * shards * maxSales) {
		r.Record(1+sale, "ann", verdict.Accepted, 7)
	}
	records, dropped = r.all()
	sum := int64(0)
	for _, n := range dropped {
		sum += n
	}
	if len(records) != 0 || sum != 10*shards*maxSales || len(dropped) > shards*maxSales+1 || dropped[0] == 0 {
		t.Errorf("got %d records, %d presses dropped of %d sales, %d of them of sale 0", len(records), sum, len(dropped), dropped[0])
	}
}

// fickle stands where the backends stand: what it says about a batch need not be what it did with it.
type fickle struct {
	t  *testing.T
	mu sync.Mutex // guards what follows

	answer  func() (status int, taken bool, err error)
	seq     int64
	ended   bool
	total   int64
	dropped int64
	batches int
}

func (f *fickle) send(body []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b verdict.Batch
	if err := json.Unmarshal(body, &b); err != nil || b.Check() != nil || len(body) > 64<<10 {
		f.t.Errorf("a batch of %d bytes: %v, %v", len(body), err, b.Check())
	}
	status, taken, err := f.answer()
	if taken && b.Seq > f.seq {
		f.seq, f.ended = b.Seq, b.Last
		f.batches++
		for _, r := range b.Records {
			f.total += r.Count
		}
		for _, d := range b.Dropped {
			f.dropped += d.Count
		}
	}
	return status, err
}

// However answers get lost, each press arrives once; what is recorded until the gateway ends arrives, too, and a goodbye.
func TestEachPressIsHandedOverOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd, luck := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(3, 4))
		calm := false
		f := &fickle{t: t, answer: func() (int, bool, error) {
			switch n := luck.IntN(8); {
			case calm || n == 0 || n > 4:
				return 204, true, nil
			case n == 1:
				return 0, true, errors.New("no answer")
			case n == 2:
				return 503, true, nil // the outcome of the COMMIT is unknown
			case n == 3:
				return 503, false, nil
			default:
				return 0, false, errors.New("not sent")
			}
		}}
		r := newRecorder(500)
		h := NewFlusher(r, 2*time.Second, f.send, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		var running sync.WaitGroup
		ctx, end := context.WithCancel(t.Context())
		running.Go(func() { h.Run(ctx) })
		total := int64(0)
		for i := range 10_000 {
			r.Record(1+int64(i%3), fmt.Sprint("u", rnd.IntN(3000)), verdict.OrderLimit, int64(i+1))
			total++
			if i%100 == 0 {
				h.FlushSoon()
				time.Sleep(time.Second)
			}
		}
		f.mu.Lock()
		calm = true
		f.mu.Unlock()
		end()
		running.Wait()
		if lost := int64(testutil.ToFloat64(r.dropped)); f.total+f.dropped != total || f.dropped != lost || lost == 0 || !f.ended {
			t.Errorf("of %d presses %d arrived and %d were said to be dropped (%d were); a goodbye: %v", total, f.total, f.dropped, lost, f.ended)
		}
		if f.batches < 20 {
			t.Errorf("only %d batches", f.batches)
		}
	})
}

// A gateway with nothing to say says so; a backend that does not understand a batch loses it, and hears of that.
func TestReportsAndGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 204
		f := &fickle{t: t, answer: func() (int, bool, error) { return status, status == 204, nil }}
		answers := func(s int) {
			f.mu.Lock()
			defer f.mu.Unlock()
			status = s
		}
		got := func() (batches int, total, dropped int64, ended bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.batches, f.total, f.dropped, f.ended
		}
		r := newRecorder(10)
		h := NewFlusher(r, time.Second, f.send, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.Run(ctx) })
		time.Sleep(5*emptyEvery + time.Second/2)
		if batches, total, _, ended := got(); batches != 6 || total != 0 || ended {
			t.Errorf("in five times %v: got %d batches of %d presses, ended %v; want 6 empty ones", emptyEvery, batches, total, ended)
		}
		answers(404)
		r.Record(7, "ann", verdict.SoldOut, 1)
		r.Record(7, "ann", verdict.SoldOut, 2)
		time.Sleep(5 * time.Second)
		answers(204)
		time.Sleep(maxPause)
		if _, total, dropped, _ := got(); total != 0 || dropped != 2 || testutil.ToFloat64(r.dropped) != 2 {
			t.Errorf("what no backend took: %d arrived, %d said to be dropped", total, dropped)
		}
		answers(503) // the backend is away for good
		r.Record(7, "ann", verdict.SoldOut, 3)
		time.Sleep(time.Minute)
		end()
		began := time.Now()
		running.Wait()
		if took := time.Since(began); f.ended || took > shutdownTime {
			t.Errorf("it ended in %v, with a goodbye: %v", took, f.ended)
		}
	})
}

func TestRecordAllocatesNothingForWhatIsThere(t *testing.T) {
	r := newRecorder(10)
	name := []byte("sold_out")
	r.Record(1, "ann", verdict.SoldOut, 1)
	if n := testing.AllocsPerRun(1000, func() {
		rule, _ := verdict.Known(name)
		r.Record(1, "ann", rule, 2)
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	uids := make([]string, 10_000)
	for i := range uids {
		uids[i] = fmt.Sprint("shopper-", i)
	}
	b.Run("hit", func(b *testing.B) {
		r := newRecorder(100_000)
		for _, uid := range uids {
			r.Record(1, uid, verdict.OrderLimit, 1)
		}
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				r.Record(1, uids[i%len(uids)], verdict.OrderLimit, 2)
			}
		})
	})
	b.Run("full", func(b *testing.B) {
		r := newRecorder(0)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				r.Record(1, uids[i%len(uids)], verdict.OrderLimit, 2)
			}
		})
	})
}
