// Package live keeps the last minutes of what is measured, and hands each new sample to whoever listens. However many listen, there is one
// sampler. While nobody does, it samples for the history alone.
package live

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// Every is the time between two samples while somebody listens.
	Every = 2500 * time.Millisecond
	// HistoryEvery is the time between two points of the history.
	HistoryEvery = 4 * Every
	// Points is how many the history has, at most: a quarter of an hour.
	Points = int(15 * time.Minute / HistoryEvery)
	// MaxListeners is how many may listen at once.
	MaxListeners = 32

	buffered = 4 // samples that a listener may be behind; then it is dropped
)

var (
	// ErrFull says that MaxListeners listen.
	ErrFull = errors.New("too many consoles listen to this backend")
	// ErrEnded says that the hub has ended, with the process.
	ErrEnded = errors.New("this backend is shutting down")
)

// Hub hands samples S out, and keeps a point P of them. It is safe for concurrent use; make it with New, and Run it once.
type Hub[S, P any] struct {
	sample func(ctx context.Context) (S, P)

	mu        sync.Mutex // guards what follows
	ended     bool
	last      *S
	history   []P
	listeners map[*Listener[S]]struct{}
}

// Listener is somebody who listens. Leave must be called.
type Listener[S any] struct {
	// Samples is closed when the hub ends, and when the listener is more than a few samples behind.
	Samples <-chan S
	samples chan S
}

// New makes a hub that has sampled nothing. sample must return soon after its context is done.
func New[S, P any](sample func(ctx context.Context) (S, P)) *Hub[S, P] {
	return &Hub[S, P]{sample: sample, listeners: map[*Listener[S]]struct{}{}}
}

// Run samples until ctx is done. Then whoever listens is told.
func (h *Hub[S, P]) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for n := 0; ; n++ {
		h.step(ctx, n%int(HistoryEvery/Every) == 0)
		select {
		case <-ctx.Done():
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ended = true
			for l := range h.listeners {
				h.drop(l)
			}
			return nil
		case <-tick.C:
		}
	}
}

// step samples where it is to be kept, or somebody listens.
func (h *Hub[S, P]) step(ctx context.Context, keep bool) {
	h.mu.Lock()
	heard := len(h.listeners) > 0
	h.mu.Unlock()
	if !keep && !heard {
		return
	}
	s, p := h.sample(ctx)
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = &s
	if keep {
		if len(h.history) >= Points {
			h.history = append(h.history[:0:0], h.history[1:]...) // what was handed out is not changed
		}
		h.history = append(h.history, p)
	}
	for l := range h.listeners {
		select {
		case l.samples <- s:
		default:
			h.drop(l)
		}
	}
}

// drop takes a listener out. The caller holds mu.
func (h *Hub[S, P]) drop(l *Listener[S]) {
	if _, ok := h.listeners[l]; ok {
		delete(h.listeners, l)
		close(l.samples)
	}
}

// Listen returns the history, the last sample (nil: there is none yet), and who gets each that follows. ErrFull, ErrEnded.
func (h *Hub[S, P]) Listen() (history []P, last *S, l *Listener[S], err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return nil, nil, nil, ErrEnded
	case len(h.listeners) >= MaxListeners:
		return nil, nil, nil, ErrFull
	}
	samples := make(chan S, buffered)
	l = &Listener[S]{samples, samples}
	h.listeners[l] = struct{}{}
	return h.history[:len(h.history):len(h.history)], h.last, l, nil
}

// Leave ends a listener.
func (h *Hub[S, P]) Leave(l *Listener[S]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(l)
}
