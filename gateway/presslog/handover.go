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
	betweenFull = 100 * time.Millisecond // between two batches while there is more than one of them
	maxPause    = 10 * time.Second       // after failures, drawn anew between a half and the whole
	reportEvery = 10 * time.Second       // also with nothing to say, so that a gateway that died is missed
	lastTime    = 3 * time.Second        // for what is left when the gateway ends
	lastTries   = 3                      // of a batch that fails then
)

// Handover gives what a Recorder keeps to the backends: one batch at a time, the same one until it is answered, so that each
// is taken once. What is in the batch that is under way is beside the Recorder's bound.
type Handover struct {
	from  *Recorder
	send  func(body []byte) (status int, err error)
	log   *slog.Logger
	every atomic.Int64
	asked chan struct{} // of one: somebody is about to read their timeline; never closed

	batch verdict.Batch // the last one that was made; Run's own
	open  bool          // it is not answered
	left  bool          // there was more than fits into it
	sent  time.Time     // when a batch was last taken

	handed, failures prometheus.Counter
}

// NewHandover makes one that does nothing before Run. send posts a body to verdict.Path at any backend, signed; its error
// says that there was no answer.
func NewHandover(from *Recorder, every time.Duration, send func(body []byte) (int, error), log *slog.Logger, reg prometheus.Registerer) *Handover {
	h := &Handover{from: from, send: send, log: log, asked: make(chan struct{}, 1), batch: verdict.Batch{Gateway: crand.Text()},
		handed:   prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_timeline_handed_over_total", Help: "Presses that a backend has taken for timelines."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_timeline_failures_total", Help: "Attempts to hand records of timelines over that failed; they are tried again."})}
	reg.MustRegister(h.handed, h.failures)
	h.SetEvery(every)
	return h
}

// SetEvery changes how long records lie here before they are handed over.
func (h *Handover) SetEvery(d time.Duration) { h.every.Store(int64(d)) }

// Soon makes the next batch go at once, since somebody wants to read it: at most one in betweenFull.
func (h *Handover) Soon() {
	select {
	case h.asked <- struct{}{}:
	default:
	}
}

// Run hands over until ctx ends, and then, for a short while, what is left.
func (h *Handover) Run(ctx context.Context) {
	pause, failing := time.Duration(0), false
	for {
		hurry := h.asked
		if failing { // nobody can hurry that
			hurry = nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			h.last()
			return
		case <-timer.C:
		case <-hurry:
			timer.Stop()
			if !sleep(ctx, betweenFull) {
				h.last()
				return
			}
		}
		more, err := h.one(false)
		every := time.Duration(h.every.Load())
		switch {
		case err != nil:
			h.failures.Inc()
			if !failing {
				h.log.Warn("the records of timelines are kept, and handed over later", "error", err)
			}
			failing = true
			pause = min(max(2*pause, every), maxPause)
			pause = pause/2 + rand.N(pause/2)
			continue
		case failing:
			h.log.Info("the records of timelines are handed over again")
			failing = false
		}
		if pause = every; more {
			pause = betweenFull
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

// last hands over what is left, and says goodbye. What cannot be handed over is lost with the process; as no goodbye was said,
// a backend knows.
func (h *Handover) last() {
	ctx, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	for failures := 0; ; {
		more, err := h.one(true)
		if err == nil && !more {
			return
		}
		if err != nil {
			failures++
		}
		if failures == lastTries || ctx.Err() != nil || err != nil && !sleep(ctx, betweenFull) {
			if n := len(h.batch.Records) + int(h.from.size.Load()); n > 0 {
				h.log.Warn("records of timelines are lost", "records", n, "error", err)
			}
			return
		}
	}
}

// one hands over the batch that is not answered, or else a new one; more says that there is another one to hand over now.
// With end, a batch behind which nothing is left says that it is the last.
func (h *Handover) one(end bool) (more bool, err error) {
	if !h.open {
		records, dropped, left := h.from.take()
		if len(records) == 0 && len(dropped) == 0 && !end && time.Since(h.sent) < reportEvery {
			return false, nil
		}
		h.batch.Seq++
		h.batch.Records, h.batch.Dropped, h.batch.Last = records, dropped, end && !left
		h.open, h.left = true, left
	}
	body, err := json.Marshal(&h.batch)
	if err != nil {
		panic("BUG: a batch that does not marshal: " + err.Error())
	}
	status, err := h.send(body)
	switch {
	case err != nil:
		return false, fmt.Errorf("batch %d: %w", h.batch.Seq, err)
	case status/100 == 2:
		for _, r := range h.batch.Records {
			h.handed.Add(float64(r.Count))
		}
	case status == 400 || status == 404 || status == 413:
		// A backend that is older than its gateways: it would never take this batch.
		h.log.Error("a backend does not understand the records of timelines: it must not be older than its gateways", "status", status)
		h.from.giveUp(h.batch.Records, h.batch.Dropped)
		h.open, h.batch.Records = false, nil
		return false, fmt.Errorf("batch %d: status %d, given up", h.batch.Seq, status)
	default:
		return false, fmt.Errorf("batch %d: status %d", h.batch.Seq, status)
	}
	h.open, h.sent, h.batch.Records = false, time.Now(), nil
	return h.left || end && !h.batch.Last, nil
}
