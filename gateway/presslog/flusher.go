package presslog

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/verdict"
)

const (
	batchPause    = 100 * time.Millisecond // between two batches while more is left
	maxPause      = 10 * time.Second       // after failures; each pause is a half to the whole of it
	emptyEvery    = 10 * time.Second       // an empty batch, so that a backend notices a gateway that died
	shutdownTime  = 3 * time.Second        // for what is left when the gateway ends
	shutdownTries = 3                      // of a batch that fails then
)

// Flusher sends what a Recorder holds to the backends, off the path of any request. It sends one batch at a time, the same
// one until it is answered, so a backend takes each batch once. The records of that batch come on top of the Recorder's
// bound.
type Flusher struct {
	from  *Recorder
	send  func(body []byte) (status int, err error)
	log   *slog.Logger
	every atomic.Int64
	soon  chan struct{} // of one: FlushSoon was called; never closed

	batch   verdict.Batch // the last one that was made; Run's own
	pending bool          // it is not answered
	more    bool          // there was more than fits into it
	sent    time.Time     // when the last batch was answered

	handed, failures prometheus.Counter
}

// NewFlusher makes one that does nothing before Run. send posts a body to verdict.Path at any backend, signed; its error
// says that there was no answer.
func NewFlusher(from *Recorder, every time.Duration, send func(body []byte) (int, error), log *slog.Logger, reg prometheus.Registerer) *Flusher {
	f := &Flusher{from: from, send: send, log: log, soon: make(chan struct{}, 1), batch: verdict.Batch{Gateway: crand.Text()},
		handed:   prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_timeline_handed_over_total", Help: "Presses that a backend has taken for timelines."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_timeline_failures_total", Help: "Attempts to hand records of timelines over that failed; they are tried again."})}
	reg.MustRegister(f.handed, f.failures)
	f.SetEvery(every)
	return f
}

// SetEvery changes the time between two flushes.
func (f *Flusher) SetEvery(d time.Duration) { f.every.Store(int64(d)) }

// FlushSoon makes the next batch go within batchPause, because somebody is about to read their timeline.
func (f *Flusher) FlushSoon() {
	select {
	case f.soon <- struct{}{}:
	default:
	}
}

// Run flushes until ctx ends, and then what is left, for at most shutdownTime.
func (f *Flusher) Run(ctx context.Context) {
	pause, failing := time.Duration(0), false
	for {
		soon := f.soon
		if failing { // then the pause is kept
			soon = nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			f.flushRest()
			return
		case <-timer.C:
		case <-soon:
			timer.Stop()
			if !sleep(ctx, batchPause) {
				f.flushRest()
				return
			}
		}
		more, err := f.flush(false)
		every := time.Duration(f.every.Load())
		switch {
		case err != nil:
			f.failures.Inc()
			if !failing {
				f.log.Warn("the records of timelines are kept, and handed over later", "error", err)
			}
			failing = true
			pause = min(max(2*pause, every), maxPause)
			pause = pause/2 + rand.N(pause/2)
			continue
		case failing:
			f.log.Info("the records of timelines are handed over again")
			failing = false
		}
		if pause = every; more {
			pause = batchPause
		}
	}
}

// sleep reports whether it slept for all of d.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// flushRest sends what is left, and in the last batch that it is the last. What cannot be sent is lost with the process;
// a backend that gets no last batch knows that.
func (f *Flusher) flushRest() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	for failures := 0; ; {
		more, err := f.flush(true)
		if err == nil && !more {
			return
		}
		if err != nil {
			failures++
		}
		if failures == shutdownTries || ctx.Err() != nil || err != nil && !sleep(ctx, batchPause) {
			if n := len(f.batch.Records) + int(f.from.size.Load()); n > 0 {
				f.log.Warn("records of timelines are lost", "records", n, "error", err)
			}
			return
		}
	}
}

// flush sends the batch that is not answered, or else a new one. more says that there is another one to send now. With
// end, a batch that leaves nothing behind says that it is the last.
func (f *Flusher) flush(end bool) (more bool, err error) {
	if !f.pending {
		records, dropped, left := f.from.take()
		if len(records) == 0 && len(dropped) == 0 && !end && time.Since(f.sent) < emptyEvery {
			return false, nil
		}
		f.batch.Seq++
		f.batch.Records, f.batch.Dropped, f.batch.Last = records, dropped, end && !left
		f.pending, f.more = true, left
	}
	body, err := json.Marshal(&f.batch)
	if err != nil {
		panic("BUG: a batch that does not marshal: " + err.Error())
	}
	status, err := f.send(body)
	switch {
	case err != nil:
		return false, fmt.Errorf("batch %d: %w", f.batch.Seq, err)
	case status/100 == 2:
		for _, r := range f.batch.Records {
			f.handed.Add(float64(r.Count))
		}
	case status == 400 || status == 404 || status == 413:
		// The backend is older than its gateways and would never take this batch.
		f.log.Error("a backend does not understand the records of timelines: it must not be older than its gateways", "status", status)
		f.from.giveUp(f.batch.Records, f.batch.Dropped)
		f.pending, f.batch.Records = false, nil
		return false, fmt.Errorf("batch %d: status %d, given up", f.batch.Seq, status)
	default:
		return false, fmt.Errorf("batch %d: status %d", f.batch.Seq, status)
	}
	f.pending, f.sent, f.batch.Records = false, time.Now(), nil
	return f.more || end && !f.batch.Last, nil
}
